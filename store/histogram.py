"""Histogram of measured values, as in Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any


class Histogram:
    """``counts``: number of values at most as large as each of ``bounds``, and larger than the previous bound; the last
    one: larger than all. One thread notes values; any thread may read, and may miss values noted meanwhile.

    Callers on a hot path inline ``note``.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def plus(self, counts: Sequence[int], total: float) -> Histogram:
        """Return a sum with values that were measured elsewhere with the same bounds."""
        both = Histogram(self.bounds)
        both.counts = [mine + theirs for mine, theirs in zip(self.counts, counts, strict=True)]
        both.sum = self.sum + total
        return both

    def figures(self) -> dict[str, Any]:
        """Return ``buckets``: [upper bound, or "+Inf"; number of values up to it], and ``sum``."""
        bounds = (*map(str, self.bounds), "+Inf")
        return {
            "buckets": [list(each) for each in zip(bounds, accumulate(self.counts), strict=True)],
            "sum": round(self.sum, 6),
        }
