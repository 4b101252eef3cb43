"""Watch over the event loop of a broker that holds the lock, on a separate thread.

A loop that hangs cannot close its connections. It still holds the lock, because the lock has a separate thread. So
another thread must notice the hang and release the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tandemmq.broker.ha.states import LoopHung
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
