"""Who may have which connection id: its user, and a new one of a program who belongs to that program.

Java's clients number their connections, ``ID:<host>-<port>-<time>-<n>:1``, ``:2`` and so on, and the ids of their
messages show how far they are. Whoever sees one could take the next, and keep that program out. So what stands before
the number is a program, of the users who have connection ids of it. It may connect for several users: one who is new to
it comes from the address from which one of the others came. Under a new master nobody's address is known until he came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tandemmq.store.records.connection_owners import CONNECTIONS_MAX, ConnectionUsers

# As IdGenerator makes them, that of ActiveMQ and of its clients in other languages.
_NUMBERED = re.compile(r"(.+-\d+-\d{10,}-\d+):\d+")


@dataclass(slots=True)
class _Member:
    """A user of a program: how many connection ids he has of it, and from where he came last."""

    ids: int = 0
    address: str | None = None


class ConnectionIds:
    """Which user each connection id belongs to. ``pairs``: (connection id, user), as the store knows them, ``limit`` of
    them."""

    __slots__ = ("_programs", "_users")

    def __init__(self, pairs: Iterable[tuple[str, str]], *, limit: int = CONNECTIONS_MAX) -> None:
        self._users = ConnectionUsers(limit=limit)
        self._programs: dict[str, dict[str, _Member]] = {}
        for id, user in pairs:
            self.take(id, user, None)

    def is_refused(self, id: str, user: str, address: str) -> bool:
        """Whether ``user``, who comes from ``address``, may not have it."""
        owner = self._users.user(id)
        if owner is not None:
            return owner != user
        members = self._programs.get(_program_of(id) or "", {})
        addresses = {member.address for member in members.values()} - {None}
        return bool(addresses) and user not in members and address not in addresses

    def take(self, id: str, user: str, address: str | None) -> bool:
        """It is ``user``'s, who comes from ``address``. Whether that was known."""
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
    """Whether a client library made that id, also as a client id."""
    return _program_of(id) is not None


def _program_of(connection_id: str) -> str | None:
    found = _NUMBERED.fullmatch(connection_id)
    return None if found is None else found[1]
