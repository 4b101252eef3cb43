"""Lanes: queues of logins that wait for a thread to check the password. Password guessers delay only logins in their
own lane.

There are three lanes. KNOWN: the name logged in from that address before. USERS: the name is in the file or logged in
before, and has no recent try from that address. OTHERS: all other logins. The lane KNOWN has separate threads. The
threads of the two other lanes have a lower priority than the rest of the broker, and take three of four tries from
USERS. Within a lane, names take turns; in OTHERS addresses take turns, because names there may be invented. The latest
try of a name or address is served first. If it has too many tries, or the lane is full and it has the most, a random
one of its tries is given up and then waits in OTHERS. A try is dropped when no client waits for it any more.

So an address has one try a minute among those of a user's name. While N addresses guess that user's password, a login
from an address that the user never used is always tried if the threads compute N / 60 hashes a second, otherwise only
by chance.

An asyncio semaphore cannot be used, because the choice of the next try depends on all waiting tries. All methods run on
the loop.
"""

# proofs: login-lanes

from __future__ import annotations

import asyncio
import os
import secrets
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
#: Maximum number of logins of a lane that wait for a thread.
WAITING_MAX: Final = 1_000
#: Nice value of the threads of USERS and OTHERS: ten such threads together get as much CPU as the loop.
NICE: Final = 10
#: Maximum number of tries of one name or address that wait in a lane.
TRIES_OF_ONE_MAX: Final = 20


#: Number of tries from USERS for each try from OTHERS.
USERS_SHARE: Final = 3


class Lane(Enum):
    KNOWN = 0
    USERS = 1
    OTHERS = 2


@dataclass(eq=False, slots=True)
class Try:
    """Login that waits for its check. ``who``: the name or address that it counts for. ``work`` runs on a thread.
    ``then`` is called with its result, or with None if the try was given up. ``is_wanted`` returns whether a client
    still waits."""

    who: str
    work: Callable[[], Any]
    then: Callable[[asyncio.Future[Any] | None], object]
    is_wanted: Callable[[], bool] = lambda: True


class LaneQueue:
    """Tries of one lane. Names or addresses take turns: after one of its tries, each waits until all others had one."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Try]] = OrderedDict()
        self._count = 0

    def put(self, one: Try) -> Try | None:
        """Add ``one``. Return the try that is given up for it; None: no limit was reached."""
        longest = self._waiting.setdefault(one.who, deque())
        longest.append(one)
        self._count += 1
        if self._count > WAITING_MAX:
            # prove: the-longest-loses "max(self._waiting.values(), key=len)" -> "longest"
            longest = max(self._waiting.values(), key=len)
        elif len(longest) <= TRIES_OF_ONE_MAX:
            return None
        gone = (number for number, each in enumerate(longest) if not each.is_wanted())
        chosen = next(gone, None)
        # prove: all-of-a-name-have-a-chance "secrets.randbelow(len(longest))" -> "len(longest) - 1"
        number = secrets.randbelow(len(longest)) if chosen is None else chosen
        self._count -= 1
        lost = longest[number]
        del longest[number]
        if not longest:
            del self._waiting[lost.who]
        return lost

    def next(self) -> Try | None:
        if not self._waiting:
            return None
        who, tries = next(iter(self._waiting.items()))
        one = tries.pop()
        self._count -= 1
        del self._waiting[who]
        if tries:
            self._waiting[who] = tries  # prove: names-take-turns
        return one


@dataclass(eq=False, slots=True)
class _Threads:
    """Thread pool that serves its lanes in turn."""

    pool: ThreadPoolExecutor
    count: int
    lanes: deque[LaneQueue] = field(default_factory=deque)
    busy: int = 0

    def start(self) -> None:
        while self.busy < self.count and (one := self._next()) is not None:
            if not one.is_wanted():  # prove: abandoned-check-is-dropped
                one.then(None)
                continue
            future = asyncio.get_running_loop().run_in_executor(self.pool, one.work)
            self.busy += 1
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
    """The three lanes with their threads. ``threads``: number of threads for KNOWN, and for the two others together.
    Call ``close`` at the end; waiting tries then get no answer."""

    def __init__(self, threads: int = THREADS) -> None:
        known = _Threads(ThreadPoolExecutor(threads, "tandemmq-login-known"), threads)
        others = _Threads(ThreadPoolExecutor(threads, "tandemmq-login", initializer=_lower_priority), threads)
        self._turns = {lane: LaneQueue() for lane in Lane}
        # prove: known-logins-have-threads "known" -> "others"
        self._threads = {lane: known if lane is Lane.KNOWN else others for lane in Lane}
        for lane, serving in self._threads.items():
            serving.lanes.extend([self._turns[lane]] * (USERS_SHARE if lane is Lane.USERS else 1))

    def put(self, lane: Lane, one: Try) -> None:
        lost = self._turns[lane].put(one)
        if lost is not None:
            lost.then(None)
        self._threads[lane].start()

    def close(self) -> None:
        for serving in self._threads.values():
            serving.pool.shutdown(wait=False, cancel_futures=True)


def _lower_priority() -> None:
    """Lower the priority of the current thread (Linux has a priority for each thread). If that is forbidden, the
    priority does not change."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
