"""How often what was measured was how large: as Prometheus has it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any


class Histogram:
    """``counts``: how many values were not larger than each of ``bounds``, and larger than the one before; the last
    one: larger than all. One thread notes values; any may read, and may miss what is noted meanwhile.

    Where each call counts, what ``note`` does stands in its place.
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
        """Another one, with what was measured elsewhere by the same bounds."""
        both = Histogram(self.bounds)
        both.counts = [mine + theirs for mine, theirs in zip(self.counts, counts, strict=True)]
        both.sum = self.sum + total
        return both

    def figures(self) -> dict[str, Any]:
        """``buckets``: [upper bound, or "+Inf"; how many were not larger], and ``sum``."""
        bounds = (*map(str, self.bounds), "+Inf")
        return {
            "buckets": [list(each) for each in zip(bounds, accumulate(self.counts), strict=True)],
            "sum": round(self.sum, 6),
        }
