"""Whose the connection ids are that clients give themselves (OpenWire), over a bounded number of them. Pure.

The ids of a producer's messages begin with its connection's, and a client with a failover transport comes back under
the same one. So it belongs to the user who had it first, also while he is away and under the next master: no other user
can take his place, or use up his messages' ids. ActiveMQ knows nothing of this, and steps over the trace that says it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable

# So many are remembered. Who has more than his part forgets his own first.
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
        """The user of the connection id; None: no user is remembered."""
        return self._users.get(id)

    def know(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those connection ids are those users', and were seen last, in this order. What was forgotten for it."""
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
        """(connection id, user), the one seen last at the end."""
        return list(self._users.items())

    def _holder_of_most(self, newest: str) -> str:
        """Who has more than an equal part of what may be: ``newest``, who just got one more, if that is so of him."""
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
    """As text."""
    return json.dumps(list(pairs), separators=(",", ":"))


def decode_pairs(text: str) -> list[tuple[str, str]]:
    """What ``encode_pairs`` made. Raises ValueError for any other text."""
    return [(str(id), str(user)) for id, user in json.loads(text)]
