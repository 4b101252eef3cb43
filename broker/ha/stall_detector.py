"""Watch over the event loop of a broker that holds the lock, on a separate thread.

A loop that hangs cannot close its connections. It still holds the lock, because the lock has a separate thread. So
another thread must notice the hang and release the lock.

Threads can also keep a process from ending, because the interpreter waits for each non-daemon thread. A process that
does not end may hold a lock that only its end frees.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tandemmq.broker.ha.states import LoopHung
from tandemmq.broker.ha.waits import BOUNDS, Wait
from tandemmq.store.threads import Threads

POLL_SECONDS = 0.5


@asynccontextmanager
async def loop_watched(
    threads: Threads,
    silence_seconds_max: Callable[[], float],
    holds_lock: Callable[[], bool],
    on_hung: Callable[[LoopHung], None],
) -> AsyncIterator[None]:
    """Watch the loop inside the context. If the loop shows no life for ``silence_seconds_max`` while the lock is held,
    ``on_hung`` is called once, on the detector's thread. The other two functions are called there, too."""
    detector = _StallDetector(threads, silence_seconds_max, holds_lock, on_hung)
    living = asyncio.create_task(detector.show_life(), name="signs of life")
    try:
        yield
    finally:
        detector.end()
        living.cancel()


class _StallDetector:
    def __init__(
        self,
        threads: Threads,
        silence_seconds_max: Callable[[], float],
        holds_lock: Callable[[], bool],
        on_hung: Callable[[LoopHung], None],
    ) -> None:
        self._threads = threads
        self._silence_seconds_max = silence_seconds_max
        self._holds_lock = holds_lock
        self._on_hung = on_hung
        self._seen_alive = threads.monotonic()
        self._ended = threads.event()
        threads.thread(self._run, "tandemmq-stalls").start()

    async def show_life(self) -> None:
        while True:
            self._seen_alive = self._threads.monotonic()
            await asyncio.sleep(self._interval())

    def end(self) -> None:
        self._ended.set()

    def _interval(self) -> float:
        return min(POLL_SECONDS, self._silence_seconds_max() / 4)

    def _run(self) -> None:
        while not self._ended.wait(self._interval()):
            silence = self._threads.monotonic() - self._seen_alive
            if silence > self._silence_seconds_max() and self._holds_lock():
                self._on_hung(LoopHung(f"the event loop has shown no life for {silence:.1f} s"))
                return


log = logging.getLogger(__name__)

# Prefix of the names of all threads of a broker; other threads do not count.
PREFIX = "tandemmq-"
EXIT_SECONDS = BOUNDS[Wait.EXIT].seconds or 0.0


def hung_threads(seconds: float = EXIT_SECONDS) -> list[str]:
    """Return the names of the threads that are still alive after ``seconds``."""
    deadline = time.monotonic() + seconds
    ending = [each for each in threading.enumerate() if each.name.startswith(PREFIX) and not each.daemon]
    for thread in ending:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in ending if thread.is_alive()]


def end_despite_them(code: int, seconds: float = EXIT_SECONDS) -> None:
    """End the process at once if such threads are left after ``seconds``; return if none is."""
    names = hung_threads(seconds)
    if names:
        is_failure = isinstance(sys.exc_info()[1], Exception)
        log.error("the process ends without %s: a volume or a server hangs", ", ".join(names), exc_info=is_failure)
        logging.shutdown()
        os._exit(code)
