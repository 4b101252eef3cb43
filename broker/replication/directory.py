"""Who is there: the members of a set, as far as something outside of it tells.

A directory and an alarm. Nothing is decided by it: a wrong, old or empty answer costs time, never a message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """What a member says of itself. ``store`` and ``set`` are ids in hex; ``address`` is where its links end,
    HOST:PORT; ``admin`` and ``connectors`` are the URIs that are told to people and clients."""

    store: str
    node: str
    address: str
    weight: int
    set: str | None  # None: it belongs to no set yet
    has_journal: bool
    version: str
    is_master: bool
    epoch: int
    admin: str | None
    connectors: tuple[str, ...]


class Directory(Protocol):
    """Who is there. Only a directory and an alarm: nothing is decided by it. Calls never block long; any thread."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to watch. ``on_change`` is called, on any thread, after ``entries`` has changed; it must not block."""

    def publish(self, entry: Entry) -> None:
        """Say this of us from now on, in the place of what was said before; again after a lost session, by itself."""

    def entries(self) -> tuple[Entry, ...]:
        """As known now, ours included, by store id; the last known while the directory cannot be asked."""

    @property
    def session_timeout_seconds(self) -> float:
        """After so long a silence a member's entry goes, as agreed with the directory; before that, as asked for."""

    @property
    def problem(self) -> str | None:
        """Why the directory cannot be asked now, for the operator; None: it can."""

    def end(self) -> None:
        """Take our entry away, where that can be done, and watch no more. ``on_change`` is not called afterwards."""
