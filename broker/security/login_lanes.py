"""Passwords that wait for a thread, in lanes: a guesser fills its own lane, and others go past it.

Known are names that logged in from that address before; users have a name that is in the file or logged in before, and
did not fail from there lately; all others share a lane. Known logins have threads of their own. The others' threads
yield the CPU to the rest of the broker. Within a lane names take turns, and in the last one addresses, whose names may
be made up. If a lane is full, the name or address with most tries in it loses its latest.

A queue and not a semaphore of asyncio: whose turn it is depends on who waits. All on the loop's thread.
"""

# proofs: login-lanes

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final

THREADS: Final = 2
#: Logins of a lane that wait for a thread.
WAITING_MAX: Final = 1_000
#: By so much the threads of unknown logins are nicer: ten of them get as much of a CPU as the loop.
NICE: Final = 10


class Lane(Enum):
    KNOWN = 0
    USERS = 1
    OTHERS = 2


@dataclass(eq=False, slots=True)
class Try:
    """It counts for ``who``. ``work`` runs on a thread; ``then`` is called with its result, or with None if the try was
    given up."""

    who: str
    work: Callable[[], Any]
    then: Callable[[asyncio.Future[Any] | None], object]


class Turns:
    """The tries of one lane. Names, or addresses, take turns: each has its next one after all others had one."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Try]] = OrderedDict()
        self._count = 0

    def put(self, one: Try) -> Try | None:
        """Return the try that is given up for this one; None: there was room."""
        self._waiting.setdefault(one.who, deque()).append(one)
        self._count += 1
        if self._count <= WAITING_MAX:
            return None
        # prove: the-longest-loses "max(self._waiting.values(), key=len)" -> "self._waiting[one.who]"
        longest = max(self._waiting.values(), key=len)
        self._count -= 1
        lost = longest.pop()
        if not longest:
            del self._waiting[lost.who]
        return lost

    def next(self) -> Try | None:
        if not self._waiting:
            return None
        who, tries = next(iter(self._waiting.items()))
        one = tries.popleft()
        self._count -= 1
        del self._waiting[who]
        if tries:
            self._waiting[who] = tries  # prove: names-take-turns
        return one


@dataclass(eq=False, slots=True)
class _Threads:
    """Serves its lanes by turns."""

    pool: ThreadPoolExecutor
    lanes: deque[Turns] = field(default_factory=deque)
    busy: int = 0

    def start(self) -> None:
        while self.busy < THREADS and (one := self._next()) is not None:
            self.busy += 1
            future = asyncio.get_running_loop().run_in_executor(self.pool, one.work)
            future.add_done_callback(partial(self._done, one))

    def _next(self) -> Try | None:
        for _ in range(len(self.lanes)):
            self.lanes.rotate(-1)
            if (one := self.lanes[-1].next()) is not None:
                return one
        return None

    def _done(self, one: Try, future: asyncio.Future[Any]) -> None:
        self.busy -= 1
        if not future.cancelled():
            self.start()
        one.then(future)


class LoginLanes:
    """``close`` at the end: what waits is not answered."""

    def __init__(self) -> None:
        known = _Threads(ThreadPoolExecutor(THREADS, "tandemmq-login-known"))
        others = _Threads(ThreadPoolExecutor(THREADS, "tandemmq-login", initializer=_yield_the_cpu))
        self._turns = {lane: Turns() for lane in Lane}
        # prove: known-logins-have-threads "known" -> "others"
        self._threads = {lane: known if lane is Lane.KNOWN else others for lane in Lane}
        for lane, threads in self._threads.items():
            threads.lanes.append(self._turns[lane])

    def put(self, lane: Lane, one: Try) -> None:
        lost = self._turns[lane].put(one)
        if lost is not None:
            lost.then(None)
        self._threads[lane].start()

    def close(self) -> None:
        for threads in self._threads.values():
            threads.pool.shutdown(wait=False, cancel_futures=True)


def _yield_the_cpu() -> None:
    """On a thread of the pool; Linux has a priority for each thread. Where that is forbidden, they are equals."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
