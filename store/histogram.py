"""Histogram of measured values, as in Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any


class Histogram:
    """Histogram. ``counts[i]`` is the number of values that are larger than ``bounds[i - 1]`` and not larger than
    ``bounds[i]``; the last count is for values above all bounds.

    One thread notes values. Any thread may read, and may miss the newest values. Hot paths inline ``note``.
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
        """Return the sum of this histogram and another one with the same bounds, given by its counts and its sum."""
        both = Histogram(self.bounds)
        both.counts = [mine + theirs for mine, theirs in zip(self.counts, counts, strict=True)]
        both.sum = self.sum + total
        return both

    def figures(self) -> dict[str, Any]:
        """Return {"buckets": [[upper bound as text or "+Inf", number of values up to the bound], ...], "sum": sum}."""
        bounds = (*map(str, self.bounds), "+Inf")
        return {
            "buckets": [list(each) for each in zip(bounds, accumulate(self.counts), strict=True)],
            "sum": round(self.sum, 6),
        }
