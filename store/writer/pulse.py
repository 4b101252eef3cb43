"""Detect whether silent threads still work: a thread that computes is busy, one that waits for a disk is not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from tandemmq.store.threads import Threads


class Pulse:
    """Pulse of the thread ``native_id`` from now on. Callers must call regularly: activity is noticed only then."""

    __slots__ = ("_cpu_seconds", "_native_id", "_seen_busy", "_threads")

    def __init__(self, threads: Threads, native_id: int) -> None:
        self._threads = threads
        self._native_id = native_id
        self._cpu_seconds = threads.cpu_seconds(native_id)
        self._seen_busy = threads.monotonic()

    def seen_busy(self) -> float:
        """Return the monotonic time at which the thread was last found to have computed."""
        cpu_seconds = self._threads.cpu_seconds(self._native_id)
        if cpu_seconds > self._cpu_seconds:
            self._cpu_seconds = cpu_seconds
            self._seen_busy = self._threads.monotonic()
        return self._seen_busy


class Pulses:
    """Pulses of several threads that work for a waiting caller. For any thread."""

    __slots__ = ("_seen_busy", "_threads", "_working")

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._working: dict[int, Pulse] = {}
        self._seen_busy = -math.inf

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Count the calling thread as working for the waiting caller, until it leaves."""
        native_id = self._threads.native_id()
        self._working[native_id] = Pulse(self._threads, native_id)
        try:
            yield
        finally:
            del self._working[native_id]
            self._seen_busy = self._threads.monotonic()

    def seen_busy(self) -> float:
        """Return the time at which one of them was last found to have computed; -inf if none ever was."""
        return max((pulse.seen_busy() for pulse in list(self._working.values())), default=self._seen_busy)
