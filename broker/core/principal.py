"""Identity of a client. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANONYMOUS: Final = "anonymous"


@dataclass(frozen=True, slots=True)
class Principal:
    """User of the broker, and the groups of the user, which can have rights. ``is_proved`` is false if no users are
    configured: then a client can use any name. ``may_everything``: an admin of the admin server, or a part of the
    broker that the settings name, such as a bridge."""

    name: str
    groups: frozenset[str] = frozenset()
    is_proved: bool = True
    may_everything: bool = False

    @property
    def owner(self) -> str | None:
        """Name of the user that owns stored state; None: no later client can prove that it is the same user."""
        return self.name if self.is_proved else None
