"""Detection of work in threads that show no other sign of life, by their CPU time: a thread that computes uses CPU
time, a thread that waits for a disk does not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from tandemmq.store.threads import Threads


class Pulse:
    """Activity of the thread ``native_id``. It is measured only during a call of ``seen_busy``, so the caller must call
    that regularly."""

    __slots__ = ("_cpu_seconds", "_native_id", "_seen_busy", "_threads")

    def __init__(self, threads: Threads, native_id: int) -> None:
        self._threads = threads
        self._native_id = native_id
        self._cpu_seconds = threads.cpu_seconds(native_id)
        self._seen_busy = threads.monotonic()

    def seen_busy(self) -> float:
        """Return the monotonic time of the last call that found that the thread had used CPU time."""
        cpu_seconds = self._threads.cpu_seconds(self._native_id)
        if cpu_seconds > self._cpu_seconds:
            self._cpu_seconds = cpu_seconds
            self._seen_busy = self._threads.monotonic()
        return self._seen_busy


class Pulses:
    """Activity of several threads that work for a waiting caller. Any thread may use it."""

    __slots__ = ("_seen_busy", "_threads", "_working")

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._working: dict[int, Pulse] = {}
        self._seen_busy = -math.inf

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Measure the activity of the calling thread within the block."""
        native_id = self._threads.native_id()
        self._working[native_id] = Pulse(self._threads, native_id)
        try:
            yield
        finally:
            del self._working[native_id]
            self._seen_busy = self._threads.monotonic()

    def seen_busy(self) -> float:
        """Return the monotonic time at which one of the threads was last found at work; -inf if none ever was."""
        return max((pulse.seen_busy() for pulse in list(self._working.values())), default=self._seen_busy)
