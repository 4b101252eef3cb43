"""Members of a set, as an external directory lists them.

A directory and an alarm. It decides nothing: a wrong, old or empty answer costs time, never a message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry that a member publishes about itself. ``store`` and ``set`` are ids in hex; ``address`` is where it accepts
    links, HOST:PORT; ``admin`` and ``connectors`` are the URIs advertised to operators and clients."""

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
    """Directory of the members. It serves as a list and an alarm, and decides nothing. Calls never block long; any
    thread."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to watch. ``on_change`` is called, on any thread, after ``entries`` has changed; it must not block."""

    def publish(self, entry: Entry) -> None:
        """Publish this entry for this node from now on, in place of the former one; after a lost session it is
        published again automatically."""

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries known now, ours included, by store id; while the directory cannot be reached, those known
        last."""

    @property
    def session_timeout_seconds(self) -> float:
        """Seconds of silence after which a member's entry is removed, as agreed with the directory; before the
        agreement, as requested."""

    @property
    def problem(self) -> str | None:
        """Reason for which the directory cannot be reached now, for the operator; None: it can."""

    def end(self) -> None:
        """Remove our entry if possible, and stop watching. ``on_change`` is not called afterwards."""
