"""Work that grows with what a broker holds, as steps: between two of them others have their turn.

A step is bounded by STEP_SECONDS of measured time; what can be said without a clock, ITEMS, is a second bound. The
clock is read once in LOOK items (``Pace.is_full``), and after each item that may be expensive (``Pace.is_over``). A
single item has a bound of its own: an evaluation of a selector, for example (selector/effort.py). The caller of the
steps (broker.net.turns, ``broker.engine.slicing``) bounds how many of them are made in one turn of the loop; between
two steps everything may have changed.
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
#: After so much time a step ends with the item that is under way. That may take longer: see selector/effort.py.
STEP_SECONDS = 0.0005
#: Items between two looks at the clock: they take half a millisecond, or a few of them.
LOOK = 64
#: A message that a cheap selector is asked about is an item, and one more for so many bytes: its properties may have to
#: be decoded.
WEIGHED_BYTES = 512
HEAVY_BYTES = LOOK * WEIGHED_BYTES


def pieces(items: Iterable[T]) -> Generator[list[T], None, None]:
    """``items`` in lists of ITEMS. What they are taken from is not to change meanwhile."""
    rest = iter(items)
    while piece := list(islice(rest, ITEMS)):
        yield piece


class StepClock:
    """What steps are measured by: ``now`` in seconds. It stands still until the process sets a clock (broker/run.py):
    so the steps of a simulator depend on its seed alone. ``apart``: seconds in all that were counted for another client
    than the one whose step it was (broker.core.charging)."""

    __slots__ = ("apart", "now")

    def __init__(self) -> None:
        self.now: Callable[[], float] = float  # always 0.0
        self.apart = 0.0


#: The clock of this process's steps.
CLOCK = StepClock()


class Pace:
    """Measures and counts what a work does, over all its loops: when a step of it is full."""

    __slots__ = ("_ends", "_left", "_look", "_seconds")

    def __init__(self, seconds: float = STEP_SECONDS) -> None:
        self._seconds = seconds
        self._left = ITEMS
        self._look = max(0, ITEMS - LOOK)  # the clock is read when no more is left than this
        self._ends = 0.0  # 0: the clock was not read yet

    def begin(self) -> None:
        """A step begins."""
        self._left = ITEMS
        self._look = max(0, ITEMS - LOOK)
        self._ends = CLOCK.now() + self._seconds

    def is_full(self, items: int = 1) -> bool:
        """``items`` more were done. Whether the step is full, and the next one begins: time to yield."""
        self._left = left = self._left - items
        if left > self._look:
            return False
        return self._is_full_by_clock(left)

    def look_next(self) -> None:
        """What is under way may be expensive: the next ``is_full`` reads the clock."""
        self._look = self._left

    def is_over(self, items: int = 1) -> bool:
        """As ``is_full``, of items that may be expensive."""
        self._left = left = self._left - items
        return self._is_full_by_clock(left)

    @property
    def is_late(self) -> bool:
        """Whether the time of the step that began with ``begin`` is used up. No other begins."""
        return CLOCK.now() >= self._ends

    def _is_full_by_clock(self, left: int) -> bool:
        now = CLOCK.now()
        if not self._ends:
            self._ends = now + self._seconds
        if left > 0 and now < self._ends:
            self._look = max(0, left - LOOK)
            return False
        self.begin()
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
