"""Users of the connection ids that clients choose (OpenWire), for a bounded number of ids. Pure.

The ids of a producer's messages begin with its connection's, and a client with a failover transport comes back under
the same one. So it belongs to its first user, also during an absence and under the next master: no other user can take
over the id, or use up the ids of that user's messages. ActiveMQ skips the trace that records this.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable

# Maximum of ids that are kept. A user with more than an equal share loses the oldest of its own first.
CONNECTIONS_MAX = 10_000


class ConnectionUsers:
    """The user of each connection id. One thread uses it. ``revision`` grows with each change, and only then."""

    __slots__ = ("_ids", "_limit", "_users", "revision")

    def __init__(self, pairs: Iterable[tuple[str, str]] = (), *, limit: int = CONNECTIONS_MAX) -> None:
        self.revision = 0
        self._limit = limit
        self._users: OrderedDict[str, str] = OrderedDict()  # by connection id, the one seen last at the end
        self._ids: dict[str, OrderedDict[str, None]] = {}  # by user, in the same order
        self.know(pairs)

    def __len__(self) -> int:
        return len(self._users)

    def user(self, id: str) -> str | None:
        """Return the user of the connection id, or None if unknown."""
        return self._users.get(id)

    def know(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Note connection ids with their users, as seen last, in this order. Return the pairs that were forgotten for
        them."""
        forgotten: list[tuple[str, str]] = []
        for id, user in pairs:
            if self._users.get(id) == user:
                self._users.move_to_end(id)
                self._ids[user].move_to_end(id)
                continue
            if id in self._users:
                forgotten.append(self._forget(id))
            self._users[id] = user
            self._ids.setdefault(user, OrderedDict())[id] = None
            self.revision += 1
            if len(self._users) > self._limit:
                forgotten.append(self._forget(next(iter(self._ids[self._holder_of_most(user)]))))
        return forgotten

    def pairs(self) -> list[tuple[str, str]]:
        """Return (connection id, user), the latest at the end."""
        return list(self._users.items())

    def _holder_of_most(self, newest: str) -> str:
        """Return a user with more than an equal share: ``newest``, the user of the latest id, if that applies to it."""
        if len(self._ids[newest]) * len(self._ids) > self._limit:
            return newest
        return max(self._ids, key=lambda user: len(self._ids[user]))

    def _forget(self, id: str) -> tuple[str, str]:
        user = self._users.pop(id)
        ids = self._ids[user]
        del ids[id]
        if not ids:
            del self._ids[user]
        self.revision += 1
        return id, user


def encode_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the pairs as text."""
    return json.dumps(list(pairs), separators=(",", ":"))


def decode_pairs(text: str) -> list[tuple[str, str]]:
    """Return the pairs in a text of ``encode_pairs``. Raises ValueError for any other text."""
    return [(str(id), str(user)) for id, user in json.loads(text)]
