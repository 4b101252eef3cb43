"""Do the steps of long work (broker.core.slices) on the event loop: each turn uses a part of its time only.

A step may take 2 ms (a selector), and a receipt needs four iterations of the loop: its command is read, passed to the
store, reported, written. So after a long turn the next turn comes four iterations later: a receipt waits for one long
turn at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.slices import Work
from tandemmq.broker.process.switch_interval import restore, shorten

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Time of each turn for all work of a loop together (a half more, behind work for which all clients wait), and for one
#: work while others wait. One step may exceed it.
TURN_SECONDS = 0.0005
SLICE_SECONDS = 0.0005
#: After a turn that took this long, because a step cannot be interrupted, this number of iterations is for other work.
OVERLONG_SECONDS = 0.001
GIVEN_ITERATIONS = 3
#: Work that took this long is long work, and has its turn after all short work.
LONG_SECONDS = 0.01


class _Making:
    """A work that is under way, for one of the loop's Slices."""

    __slots__ = ("of", "took", "work")

    def __init__(self, of: Slices, work: Work[Any], took: float) -> None:
        self.of = of
        self.work = work
        self.took = took


class _Line:
    """All works of one loop, of any Slices: a slice of the first, then short ones, then one of the long ones."""

    __slots__ = ("_clock", "_first", "_is_called", "_long", "_short")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._is_called = False
        self._first: deque[_Making] = deque()
        self._short: deque[_Making] = deque()
        self._long: deque[_Making] = deque()

    def add(self, making: _Making) -> None:
        (self._first if making.took < 0 else self._short).append(making)
        self._call(making.of.loop)

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_called:
            self._is_called = True
            loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_called = False
        began = self._clock()
        shorten()
        try:
            self._make(began + TURN_SECONDS)
        finally:
            restore()
        left = self._first or self._short or self._long
        if not left or self._is_called:
            return
        loop = left[0].of.loop
        if self._clock() - began < OVERLONG_SECONDS:
            self._call(loop)
        else:
            self._is_called = True
            loop.call_soon(self._give_way, loop, GIVEN_ITERATIONS)

    def _give_way(self, loop: asyncio.AbstractEventLoop, iterations: int) -> None:
        if iterations:
            loop.call_soon(self._give_way, loop, iterations - 1)
        else:
            self._turn()

    def _make(self, ends: float) -> None:
        if self._first:
            self._slice(self._first.popleft(), ends)
            ends = max(ends, self._clock() + SLICE_SECONDS / 2)  # prove: first-work-leaves-time
        long = self._long.popleft() if self._long else None
        while self._short and self._clock() < ends:
            self._slice(self._short.popleft(), ends)
        if long is not None:  # one slice, however many short ones there are
            self._slice(long, self._clock() + SLICE_SECONDS)

    def _slice(self, making: _Making, ends: float) -> None:
        slices, work = making.of, making.work
        began = now = self._clock()
        slice_ends = min(ends, now + SLICE_SECONDS)
        try:
            while now < slice_ends and not slices.is_over:
                next(work)
                now = self._clock()
        except StopIteration:
            slices.under_way -= 1
            return
        except Exception:
            slices.under_way -= 1
            log.exception("work in progress %s", ERROR_OF_BROKER)
            return
        if slices.is_over:
            return
        making.took += now - began
        if making.took < 0:
            self._first.append(making)
        else:
            (self._long if making.took >= LONG_SECONDS else self._short).append(making)


_LINES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()


class Slices:
    """Works that are under way, one after the other for a slice each. All Slices of one loop share its time. Only for
    the loop's thread."""

    __slots__ = ("_line", "is_over", "loop", "under_way")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] | None = None) -> None:
        self.loop = loop
        line = None if clock is not None else _LINES.get(loop)
        if line is None:
            line = _Line(clock or time.monotonic)
            if clock is None:
                _LINES[loop] = line
        self._line = line
        self.is_over = False
        self.under_way = 0

    def start(self, work: Work[Any]) -> None:
        """Begin to do the steps of ``work`` in the next turn. An error is logged, and ends it."""
        self.under_way += 1
        self._line.add(_Making(self, work, 0.0))

    def start_first(self, work: Work[Any]) -> None:
        """Begin work for which all clients wait: it has a slice in each turn, before all others. See ``start``."""
        self.under_way += 1
        self._line.add(_Making(self, work, -math.inf))

    async def run(self, work: Work[T]) -> T:
        """Return the result of ``work``, or raise its error."""
        done: asyncio.Future[T] = self.loop.create_future()
        self.start(_told(work, done))
        return await done

    @property
    def is_idle(self) -> bool:
        """True if no work is under way."""
        return self.under_way <= 0

    def end(self) -> None:
        """Stop all works: no step is done any more."""
        self.is_over = True
        self.under_way = 0


def _told(work: Work[T], done: asyncio.Future[T]) -> Work[None]:
    try:
        outcome = yield from work
    except Exception as error:
        if not done.done():
            done.set_exception(error)
        return
    if not done.done():
        done.set_result(outcome)
