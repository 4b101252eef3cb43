"""Identity of a client. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANONYMOUS: Final = "anonymous"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user known to the broker, and the groups that rights are given to. Without ``is_proved`` the name is only the
    client's claim: no users are configured. ``may_everything``: an admin, through the admin server, or a part of the
    broker that the settings name, such as a bridge."""

    name: str
    groups: frozenset[str] = frozenset()
    is_proved: bool = True
    may_everything: bool = False

    @property
    def owner(self) -> str | None:
        """Name that owns the state kept for it; None: no later client could prove to be the same."""
        return self.name if self.is_proved else None
