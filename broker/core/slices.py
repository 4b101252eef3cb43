"""Work that grows with what a broker holds, as steps: between two of them others have their turn.

A step is bounded by ITEMS, or by what it says of itself. Who makes the steps (broker.turns, ``broker.slicing``) bounds
how many of them are made in one turn of the loop; between two steps everything may have changed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

Work = Generator[None, None, T]

#: Of a dictionary's entries, destinations, subscribers, in one step.
ITEMS = 256


def pieces(items: Iterable[T]) -> Generator[list[T], None, None]:
    """``items`` in lists of ITEMS. What they are taken from is not to change meanwhile."""
    rest = iter(items)
    while piece := list(islice(rest, ITEMS)):
        yield piece


def at_once(work: Work[T]) -> T:
    """All steps of ``work`` without a rest: its outcome."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            outcome: T = done.value
            return outcome
