"""What a caller of the admin server may do, by the groups that he is in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from tandemmq.broker.core.principal import Principal


class Role(IntEnum):
    """Each may what those before it may.

    ``VIEWER``: sees what there is, but no message. ``OPERATOR``: reads messages and changes destinations, where his
    rights as a client allow it. ``ADMIN``: everything.
    """

    NOBODY = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """The name under which people and the API know it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Groups:
    """Which groups have which role, beside users with admin rights on everything."""

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
    """Who asks. ``principal``: with whose rights he acts on destinations."""

    name: str
    role: Role
    principal: Principal


#: Whoever reads the broker's own files.
TOKEN_HOLDER = Caller("admin token", Role.ADMIN, Principal("admin", may_everything=True))
#: Whoever reaches a broker without users: what it says of itself is for all then.
ANYBODY = Caller("anybody", Role.VIEWER, Principal("nobody"))
STRANGER = Caller("nobody", Role.NOBODY, Principal("nobody"))
