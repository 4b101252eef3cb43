"""What a session has to say, until the transport takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


def asleep() -> None:
    """Nobody would give it a turn."""


@dataclass(slots=True, eq=False, repr=False)
class Output:
    """Pieces of bytes in order; ``pending_bytes``: how many in all. ``wake`` asks for
    a turn for the session (``Session.set_wake``)."""

    _out: list[bytes | memoryview] = field(default_factory=list, init=False)
    pending_bytes: int = field(default=0, init=False)
    wake: Callable[[], None] = field(default=asleep, init=False)

    def set_wake(self, wake: Callable[[], None]) -> None:
        """See ``Session.set_wake``."""
        self.wake = wake

    def take(self) -> bytes:
        """All that is to be written now; nothing of it is kept."""
        data = b"".join(self._out)
        self._out.clear()
        self.pending_bytes = 0
        return data

    def take_parts(self) -> list[bytes | memoryview]:
        """As ``take``, in pieces: a long body is the one that the broker holds."""
        parts, self._out = self._out, []
        self.pending_bytes = 0
        return parts

    def _write(self, frame: bytes) -> None:
        self._out.append(frame)
        self.pending_bytes += len(frame)
