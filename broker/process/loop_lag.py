"""How late the event loop comes to what is due: a histogram, as Prometheus has them. For the loop's thread."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Any, Final

# Upper bounds in seconds. Nothing on the loop is to take longer than 20 ms on an idle machine.
BOUNDS_SECONDS: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopLag:
    """``note`` each time that something came so many seconds late; none is as good as a little early."""

    __slots__ = ("_counts", "_sum", "max_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._sum = 0.0
        self.max_seconds = 0.0

    def note(self, seconds: float) -> None:
        seconds = max(seconds, 0.0)
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self._sum += seconds
        self.max_seconds = max(self.max_seconds, seconds)

    def figures(self) -> dict[str, Any]:
        """``buckets``: [upper bound in seconds, or "+Inf"; how many were not later], ``sum`` in seconds."""
        bounds = (*map(str, BOUNDS_SECONDS), "+Inf")
        return {
            "buckets": [list(each) for each in zip(bounds, accumulate(self._counts), strict=True)],
            "sum": round(self._sum, 6),
        }
