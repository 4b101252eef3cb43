"""Roles of callers of the admin server. The groups of a user decide on its role."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from tandemmq.broker.core.principal import Principal


class Role(IntEnum):
    """Role of a caller. Each role has the rights of those before it.

    ``VIEWER``: sees everything except messages. ``OPERATOR``: reads messages and changes destinations, where its rights
    as a client allow it. ``ADMIN``: everything.
    """

    NOBODY = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """Name of the role for operators and in the API."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups whose users have a role. Users with admin rights on all destinations have the role admin without a
    group."""

    viewers: Collection[str] = ()
    operators: Collection[str] = ()
    administrators: Collection[str] = ()

    def role_of(self, principal: Principal) -> Role:
        for role, groups in (
            (Role.ADMIN, self.administrators),
            (Role.OPERATOR, self.operators),
            (Role.VIEWER, self.viewers),
        ):
            if not principal.groups.isdisjoint(groups):
                return role
        return Role.NOBODY


NO_GROUPS = Groups()


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller. ``principal``: its rights on destinations."""

    name: str
    role: Role
    principal: Principal


#: Caller that sent the admin token.
TOKEN_HOLDER = Caller("admin token", Role.ADMIN, Principal("admin", may_everything=True))
#: Any caller of a broker without users; such a broker shows its status to all.
ANYBODY = Caller("anybody", Role.VIEWER, Principal("nobody"))
STRANGER = Caller("nobody", Role.NOBODY, Principal("nobody"))
