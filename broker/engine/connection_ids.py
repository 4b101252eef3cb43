"""Check which user may have a connection id: its user, and for a new id of a program a user of that program.

Java's clients number their connections, ``ID:<host>-<port>-<time>-<n>:1``, ``:2`` and so on, and the ids of their
messages show the last number. A client that sees one could take the next, and lock that program out. So the part before
the number is a program, which belongs to the users who have connection ids of it. It may connect for several users: a
new user of it must come from the same address as one of the others. After a failover the address of a user is not known
until the user connects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tandemmq.store.records.connection_owners import CONNECTIONS_MAX, ConnectionUsers

# Format of IdGenerator, of ActiveMQ and of its clients in other languages.
_NUMBERED = re.compile(r"(.+-\d+-\d{10,}-\d+):\d+")


@dataclass(slots=True)
class _Member:
    """User of a program: number of its connection ids in the program, and its last address."""

    ids: int = 0
    address: str | None = None


class ConnectionIds:
    """Records the user of each connection id. ``pairs``: (connection id, user) of the store, ``limit`` of them."""

    __slots__ = ("_programs", "_users")

    def __init__(self, pairs: Iterable[tuple[str, str]], *, limit: int = CONNECTIONS_MAX) -> None:
        self._users = ConnectionUsers(limit=limit)
        self._programs: dict[str, dict[str, _Member]] = {}
        for id, user in pairs:
            self.take(id, user, None)

    def is_refused(self, id: str, user: str, address: str) -> bool:
        """Return whether ``user``, who connects from ``address``, may not have that id."""
        owner = self._users.user(id)
        if owner is not None:
            return owner != user
        members = self._programs.get(_program_of(id) or "", {})
        addresses = {member.address for member in members.values()} - {None}
        return bool(addresses) and user not in members and address not in addresses

    def take(self, id: str, user: str, address: str | None) -> bool:
        """Record that the id belongs to ``user``, who connects from ``address``. Return whether that was known."""
        is_known = self._users.user(id) == user
        if not is_known:
            self._count(id, user, 1)
        for forgotten in self._users.know([(id, user)]):
            self._count(*forgotten, -1)
        program = _program_of(id)
        if program in self._programs and user in self._programs[program]:
            self._programs[program][user].address = address
        return is_known

    def _count(self, id: str, user: str, more: int) -> None:
        program = _program_of(id)
        if program is None:
            return
        members = self._programs.setdefault(program, {})
        member = members.setdefault(user, _Member())
        member.ids += more
        if not member.ids:
            del members[user]
        if not members:
            del self._programs[program]


def is_generated(id: str) -> bool:
    """Return whether a client library made that id, also as a client id."""
    return _program_of(id) is not None


def _program_of(connection_id: str) -> str | None:
    found = _NUMBERED.fullmatch(connection_id)
    return None if found is None else found[1]
