"""Figures from samples. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Field = Literal["sent", "confirmed", "received"]


@dataclass(frozen=True, slots=True)
class Sample:
    """Progress of a run at a moment: messages sent, confirmed by a receipt, received."""

    moment: float
    sent: int
    confirmed: int
    received: int


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile of ascending values; None for no values."""
    if not ordered:
        return None
    rank = max(1, -int(-share * len(ordered) // 1))
    return ordered[min(rank, len(ordered)) - 1]


def value_at(samples: Sequence[Sample], moment: float, field: Field) -> float:
    """Return a counter at any moment, interpolated linearly between samples."""
    place = bisect_left(samples, moment, key=lambda sample: sample.moment)
    if place == 0:
        return float(getattr(samples[0], field))
    if place == len(samples):
        return float(getattr(samples[-1], field))
    before, after = samples[place - 1], samples[place]
    low, high = getattr(before, field), getattr(after, field)
    return float(low + (high - low) * (moment - before.moment) / (after.moment - before.moment))


def rate_between(samples: Sequence[Sample], start: float, stop: float, field: Field) -> float:
    """Return the messages a second between two moments."""
    if stop <= start:
        return 0.0
    return (value_at(samples, stop, field) - value_at(samples, start, field)) / (stop - start)


def reached_at(samples: Sequence[Sample], count: int, field: Field) -> float:
    """Return the moment at which a counter came to ``count``, within the distance of two samples."""
    for before, after in pairwise(samples):
        high: int = getattr(after, field)
        if high >= count:
            low: int = getattr(before, field)
            share = max(0.0, (count - low) / (high - low)) if high > low else 0.0
            return before.moment + (after.moment - before.moment) * share
    return samples[-1].moment


def rate_of_share(samples: Sequence[Sample], first: float, last: float, field: Field) -> float:
    """Return the messages a second while a counter went from one share of its final value to another."""
    total: int = getattr(samples[-1], field)
    start = reached_at(samples, int(total * first), field)
    stop = reached_at(samples, int(total * last), field)
    return total * (last - first) / (stop - start) if stop > start else 0.0
