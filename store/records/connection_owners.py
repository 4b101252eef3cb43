"""Users of the connection ids that OpenWire clients choose, for a bounded number of ids. Pure.

The ids of a producer's messages begin with its connection id, and a client with a failover transport reconnects with
the same connection id. So a connection id belongs to its first user, also while the client is disconnected, and after a
failover. No other user can use the id, and so make message ids of that user. The ids are stored in a trace record,
which ActiveMQ ignores.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable

# Limit of the ids. Above it, a user that has more than an equal share loses its oldest id.
CONNECTIONS_MAX = 10_000


class ConnectionUsers:
    """Users by connection id, for one thread. ``revision`` grows with each change, and only then."""

    __slots__ = ("_ids", "_limit", "_users", "revision")

    def __init__(self, pairs: Iterable[tuple[str, str]] = (), *, limit: int = CONNECTIONS_MAX) -> None:
        self.revision = 0
        self._limit = limit
        self._users: OrderedDict[str, str] = OrderedDict()  # by connection id, the most recently used at the end
        self._ids: dict[str, OrderedDict[str, None]] = {}  # by user, in the same order
        self.know(pairs)

    def __len__(self) -> int:
        return len(self._users)

    def user(self, id: str) -> str | None:
        """Return the user of the connection id, or None if it is unknown."""
        return self._users.get(id)

    def know(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Note pairs of a connection id and its user, the last one as the most recently used. Return the pairs that
        were removed for them."""
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
                forgotten.append(self._forget(next(iter(self._ids[self._user_over_share(user)]))))
        return forgotten

    def pairs(self) -> list[tuple[str, str]]:
        """Return all pairs (connection id, user), the most recently used at the end."""
        return list(self._users.items())

    def _user_over_share(self, newest: str) -> str:
        """Return the user that must lose an id: ``newest``, the user of the new id, if it has more than an equal share;
        otherwise the user with the most ids."""
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
