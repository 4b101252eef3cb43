"""Lag of the event loop behind its due work. For the loop's thread."""

from __future__ import annotations

from typing import Any, Final

from tandemmq.store.histogram import Histogram

# Upper bounds in seconds. Nothing on the loop may take longer than 20 ms on an idle machine.
BOUNDS_SECONDS: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopLag:
    """Call ``note`` with the delay in seconds of each due call; a call a little early counts as no delay."""

    __slots__ = ("_histogram", "max_seconds")

    def __init__(self) -> None:
        self._histogram = Histogram(BOUNDS_SECONDS)
        self.max_seconds = 0.0

    def note(self, seconds: float) -> None:
        seconds = max(seconds, 0.0)
        self._histogram.note(seconds)
        self.max_seconds = max(self.max_seconds, seconds)

    def figures(self) -> dict[str, Any]:
        """Return the figures of the histogram, and ``max``, in seconds."""
        return self._histogram.figures() | {"max": round(self.max_seconds, 6)}
