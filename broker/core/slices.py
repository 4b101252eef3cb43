"""Work that grows with the broker's content, divided into steps: between two steps other work has its turn.

A step is bounded by STEP_SECONDS of measured time; ITEMS, which needs no clock, is a second bound. The clock is read
once in CLOCK_ITEMS items (``Pace.is_full``), and after each item that may be expensive (``Pace.is_over``). A single
item has a separate bound: an evaluation of a selector, for example (selector/effort.py). The caller of the steps
(broker.net.turns, ``broker.engine.slicing``) bounds the number of steps in one turn of the loop. Between two steps
everything may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable
from itertools import islice
from typing import Final, Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

Work = Generator[None, None, T]

#: Dictionary entries, destinations or subscribers in one step.
ITEMS = 256
#: Time after which a step ends with the item in progress. That may take longer: see selector/effort.py.
STEP_SECONDS = 0.0005
#: Items between two readings of the clock: together they take half a millisecond, or a few times that.
CLOCK_ITEMS: Final = 64
#: A message tested by a cheap selector is one item, and one more for this many bytes: its properties may have to be
#: decoded.
WEIGHED_BYTES: Final = 512
HEAVY_BYTES: Final = CLOCK_ITEMS * WEIGHED_BYTES


def pieces(items: Iterable[T]) -> Generator[list[T], None, None]:
    """Yield ``items`` in lists of ITEMS. Their source must not change meanwhile."""
    rest = iter(items)
    while piece := list(islice(rest, ITEMS)):
        yield piece


class StepClock:
    """Clock of the steps: ``now`` in seconds. It stands still until the process sets a clock (broker/run.py), so the
    steps of a simulator depend on its seed alone. ``apart``: total seconds of steps that were charged to a client other
    than the step's own (broker.core.charging)."""

    __slots__ = ("apart", "now")

    def __init__(self) -> None:
        self.now: Callable[[], float] = float  # always 0.0
        self.apart = 0.0


#: The clock of this process's steps.
CLOCK = StepClock()


class Pace:
    """Counter and clock of a work, over all its loops: it reports when a step is full."""

    __slots__ = ("_ends", "_left", "_read_below", "_seconds")

    def __init__(self, seconds: float = STEP_SECONDS) -> None:
        self._seconds = seconds
        self._left = ITEMS
        self._read_below = max(0, ITEMS - CLOCK_ITEMS)  # the clock is read when no more is left than this
        self._ends = 0.0  # 0: the clock was not read yet

    def begin(self) -> None:
        """Begin a step."""
        self._left = ITEMS
        self._read_below = max(0, ITEMS - CLOCK_ITEMS)
        self._ends = CLOCK.now() + self._seconds

    def is_full(self, items: int = 1) -> bool:
        """Count ``items`` more. Return whether the step is full, and the next one begins: time to yield."""
        self._left = left = self._left - items
        if left > self._read_below:
            return False
        return self._is_full_by_clock(left)

    def read_clock_next(self) -> None:
        """Make the next ``is_full`` read the clock, because the present item may be expensive."""
        self._read_below = self._left

    def is_over(self, items: int = 1) -> bool:
        """Count items that may be expensive; return as ``is_full`` does."""
        self._left = left = self._left - items
        return self._is_full_by_clock(left)

    @property
    def is_late(self) -> bool:
        """True if the time of the step that began with ``begin`` is used up. No other step begins."""
        return CLOCK.now() >= self._ends

    def _is_full_by_clock(self, left: int) -> bool:
        now = CLOCK.now()
        if not self._ends:
            self._ends = now + self._seconds
        if left > 0 and now < self._ends:
            self._read_below = max(0, left - CLOCK_ITEMS)
            return False
        self.begin()
        return True


def nothing() -> Work[None]:
    """Work without a step."""
    return
    yield


def pause() -> Work[None]:
    """End a step."""
    yield


def begin(work: Work[None], start: Callable[[Work[None]], object]) -> None:
    """Make the first step of ``work`` at once; ``start`` makes the others in slices."""
    if not is_done(work):
        start(work)


def is_done(work: Work[None]) -> bool:
    """Make one step of ``work``. Return whether that was the last."""
    try:
        next(work)
    except StopIteration:
        return True
    return False


class Rounds(Generic[K]):
    """Repeated work for each of many keys: at most one round per key is in progress, and a request meanwhile adds one
    more round. ``start`` makes rounds of more than one step in slices."""

    def __init__(self, start: Callable[[Work[None]], object], make: Callable[[K], Work[None]]) -> None:
        self._start = start
        self._make = make
        self._in_progress: dict[K, bool] = {}  # keys in progress: True if one more round follows

    def ask(self, key: K) -> None:
        """Request a round for ``key`` that begins now or later."""
        if key in self._in_progress:
            self._in_progress[key] = True
            return
        work = self._rounds(key)
        if not is_done(work):
            self._start(work)

    def ask_soon(self, key: K) -> None:
        """Request a round as ``ask`` does, but never at once: repeated requests until then share one round."""
        if key not in self._in_progress:
            self._start(self._rounds(key))
        self._in_progress[key] = True

    def _rounds(self, key: K) -> Work[None]:
        self._in_progress[key] = True
        try:
            while self._in_progress[key]:
                self._in_progress[key] = False
                yield from self._make(key)
        finally:
            del self._in_progress[key]


def at_once(work: Work[T]) -> T:
    """Make all steps of ``work`` without a pause and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            outcome: T = done.value
            return outcome
