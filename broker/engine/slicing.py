"""Makes the steps of long work (broker.core.slices) on the event loop: in each turn for a part of the time only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.slices import Work

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Of each turn, for all work together, and for one work while others wait; and one step more at most.
TURN_SECONDS = 0.006
SLICE_SECONDS = 0.002


class Slices:
    """Works that are under way, one after the other for a slice each. For the loop's thread."""

    __slots__ = ("_clock", "_is_called", "_is_over", "_loop", "_works")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._is_called = self._is_over = False
        self._works: deque[Work[Any]] = deque()

    def start(self, work: Work[Any]) -> None:
        """Have the steps of ``work`` made, from the next turn on. What it raises is logged, and ends it."""
        self._works.append(work)
        self._call()

    async def run(self, work: Work[T]) -> T:
        """The outcome of ``work``. Raises what it raises."""
        done: asyncio.Future[T] = self._loop.create_future()
        self.start(_told(work, done))
        return await done

    @property
    def is_idle(self) -> bool:
        """Whether no work is under way."""
        return not self._works

    def end(self) -> None:
        """No step is made any more, of no work."""
        self._is_over = True
        self._works.clear()

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_called = False
        now = self._clock()
        ends = now + TURN_SECONDS
        works = self._works
        while works and now < ends and not self._is_over:
            work = works.popleft()
            slice_ends = min(ends, now + SLICE_SECONDS)
            try:
                while now < slice_ends and not self._is_over:
                    next(work)
                    now = self._clock()
            except StopIteration:
                now = self._clock()
                continue
            except Exception:
                log.exception("work that was under way %s", ERROR_OF_BROKER)
                continue
            works.append(work)
        if works and not self._is_over:
            self._call()


def _told(work: Work[T], done: asyncio.Future[T]) -> Work[None]:
    try:
        outcome = yield from work
    except Exception as error:
        if not done.done():
            done.set_exception(error)
        return
    if not done.done():
        done.set_result(outcome)
