"""Amounts as text, and round values for an axis: bytes in steps of 1024, times in ms, s, min, h and d, other units in
powers of ten."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import Final

from tandemmq.pipeline.table import size

BYTES: Final = "bytes"
MILLISECONDS: Final = "ms"
# Units that are part of each label of an axis. Other units are written once beside the axis.
NAMED_BY_TICKS: Final = frozenset({BYTES, MILLISECONDS})

_CLOCK: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_ROUNDED: Final = 1e-9  # tolerance for the rounding of a logarithm
_MEMORY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def amount(value: float, unit: str) -> str:
    """Format an amount: (1536, "bytes") -> "1.5 KiB"; (2300, "ms") -> "2.3 s"; (1200, "items") -> "1,200 items"."""
    if unit == BYTES:
        return size(round(value))
    if unit == MILLISECONDS:
        length, name = next((part for part in _CLOCK if value >= part[0]), _CLOCK[-1])
        return f"{_plain(round(value / length, 1))} {name}"
    return f"{_plain(value)} {unit}"


def ticks(greatest: float, unit: str, most: int) -> list[tuple[float, str]]:
    """Return at most ``most`` + 1 round amounts, from 0 to the first one that is at least ``greatest`` (above 0), with
    their labels. All labels have the same unit; those of counted items have none. ``most`` must be at least 1.
    """
    factor, length, name = next(step for step in _steps(unit) if math.ceil(greatest / (step[0] * step[1])) <= most)
    factors = [number * factor for number in range(math.ceil(greatest / (factor * length)) + 1)]
    return [(factor * length, f"{factor:,} {name}".rstrip()) for factor in factors]


def log_ticks(least: float, greatest: float, unit: str, most: int) -> list[tuple[float, str]]:
    """Return at most ``most`` + 1 powers of ten (for bytes: of 32) at equal distances, with their labels. They begin at
    or below ``least`` (at least 1), and end at or above ``greatest``."""
    base = 32 if unit == BYTES else 10
    low = max(math.ceil(math.log(least, base) - _ROUNDED) - 1, 0)
    high = max(math.ceil(math.log(greatest, base) - _ROUNDED), low + 1)
    every = -(-(high - low) // most)
    powers = [float(base) ** (low + every * number) for number in range(-(-(high - low) // every) + 1)]
    if unit in NAMED_BY_TICKS:
        return [(value, amount(value, unit)) for value in powers]
    return [(value, _plain(value)) for value in powers]


def _steps(unit: str) -> Iterator[tuple[int, int, str]]:
    """Yield steps of increasing length, each as a factor, the length of its unit, and the name of the unit."""
    if unit == BYTES:
        for power, name in enumerate(_MEMORY):
            yield from ((factor, 1024**power, name) for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500))
    elif unit == MILLISECONDS:
        yield from ((factor, 1, "ms") for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500))
        yield from ((factor, 1000, "s") for factor in (1, 2, 5, 10, 20, 30))
        yield from ((factor, 60_000, "min") for factor in (1, 2, 5, 10, 20, 30))
        yield from ((factor, 3_600_000, "h") for factor in (1, 2, 6, 12))
    length, name = {BYTES: (1024 ** len(_MEMORY), "EiB"), MILLISECONDS: _CLOCK[0]}.get(unit, (1, ""))
    yield from ((factor * 10**power, length, name) for power in count() for factor in (1, 2, 5))


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
