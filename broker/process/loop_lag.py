"""Lag of the event loop: delay of its timers."""

from __future__ import annotations

from typing import Any, Final

from tandemmq.store.histogram import Histogram

# Upper bounds of the histogram's buckets. On an idle machine, no step on the loop may take longer than 20 ms.
BOUNDS_SECONDS: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopLag:
    """Histogram of the delays. On the loop. Call ``note`` with the delay of each timer in seconds; a negative delay
    counts as 0."""

    __slots__ = ("_histogram", "max_seconds")

    def __init__(self) -> None:
        self._histogram = Histogram(BOUNDS_SECONDS)
        self.max_seconds = 0.0

    def note(self, seconds: float) -> None:
        seconds = max(seconds, 0.0)
        self._histogram.note(seconds)
        self.max_seconds = max(self.max_seconds, seconds)

    def figures(self) -> dict[str, Any]:
        """Return the figures of the histogram, and ``max``: the longest delay in seconds."""
        return self._histogram.figures() | {"max": round(self.max_seconds, 6)}
