"""Work that grows with what a broker holds, as steps: between two of them others have their turn.

A step is bounded by ITEMS, or by a bound of its own. The caller of the steps (broker.net.turns,
``broker.engine.slicing``) bounds how many of them are made in one turn of the loop; between two steps everything may
have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

Work = Generator[None, None, T]

#: Of a dictionary's entries, destinations, subscribers, in one step.
ITEMS = 256


def pieces(items: Iterable[T]) -> Generator[list[T], None, None]:
    """``items`` in lists of ITEMS. What they are taken from is not to change meanwhile."""
    rest = iter(items)
    while piece := list(islice(rest, ITEMS)):
        yield piece


class Pace:
    """Counts what a work does, over all its loops: when a step of it is full."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ITEMS

    def begin(self) -> None:
        """A step begins."""
        self._left = ITEMS

    def is_full(self, items: int = 1) -> bool:
        """``items`` more were done. Whether the step is full, and the next one begins: time to yield."""
        self._left -= items
        if self._left > 0:
            return False
        self._left = ITEMS
        return True


def nothing() -> Work[None]:
    """No step at all."""
    return
    yield


def pause() -> Work[None]:
    """The end of a step."""
    yield


def begin(work: Work[None], start: Callable[[Work[None]], object]) -> None:
    """Make the first step of ``work`` at once; ``start`` has the others made in slices."""
    if not is_done(work):
        start(work)


def is_done(work: Work[None]) -> bool:
    """Make one step of ``work``: whether that was all of it."""
    try:
        next(work)
    except StopIteration:
        return True
    return False


class Rounds(Generic[K]):
    """What is done again and again for each of many: of each one round is under way at most, and if it is asked for
    meanwhile there is one more. ``start`` has done in slices what takes more than a step."""

    def __init__(self, start: Callable[[Work[None]], object], make: Callable[[K], Work[None]]) -> None:
        self._start = start
        self._make = make
        self._asked: dict[K, bool] = {}  # of those under way: once more?

    def ask(self, key: K) -> None:
        """A round that begins now or later is made for ``key``."""
        if key in self._asked:
            self._asked[key] = True
            return
        work = self._rounds(key)
        if not is_done(work):
            self._start(work)

    def ask_soon(self, key: K) -> None:
        """As ``ask``, but nothing is done at once: what is asked again and again until then takes one round."""
        if key not in self._asked:
            self._start(self._rounds(key))
        self._asked[key] = True

    def _rounds(self, key: K) -> Work[None]:
        self._asked[key] = True
        try:
            while self._asked[key]:
                self._asked[key] = False
                yield from self._make(key)
        finally:
            del self._asked[key]


def at_once(work: Work[T]) -> T:
    """All steps of ``work`` without a rest: its outcome."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            outcome: T = done.value
            return outcome
