"""Output of a session, until the transport takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


def asleep() -> None:
    """Do nothing: the session has no transport that gives it a turn."""


def roomy() -> bool:
    """Return True: there is no transport that limits the output."""
    return True


def uncounted(count: int) -> None:
    """Do nothing: there is no transport that counts waiting bytes."""


@dataclass(slots=True, eq=False, repr=False)
class Output:
    """Pieces of bytes in order; ``pending_bytes``: how many in all. ``wake`` requests a turn for the session
    (``Session.set_wake``)."""

    _out: list[bytes | memoryview] = field(default_factory=list, init=False)
    pending_bytes: int = field(default=0, init=False)
    wake: Callable[[], None] = field(default=asleep, init=False)

    def set_wake(self, wake: Callable[[], None]) -> None:
        """See ``Session.set_wake``."""
        self.wake = wake

    def set_output(self, has_room: Callable[[], bool], count_waiting: Callable[[int], None]) -> None:
        """Do nothing: deliveries do not wait here."""

    def set_certificate(self, certificate: str) -> None:
        """Do nothing: this protocol cannot select a login by certificate. The engine uses one if a login has no
        name."""

    def take(self) -> bytes:
        """Return all output that waits, and forget it."""
        data = b"".join(self._out)
        self._out.clear()
        self.pending_bytes = 0
        return data

    def take_parts(self) -> list[bytes | memoryview]:
        """Return the same as ``take``, in pieces. A long body is the broker's object, not a copy."""
        parts, self._out = self._out, []
        self.pending_bytes = 0
        return parts

    def _write(self, frame: bytes) -> None:
        self._out.append(frame)
        self.pending_bytes += len(frame)
