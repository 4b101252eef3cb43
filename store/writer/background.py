"""Background threads for long work: a checkpoint, the next journal file, removals.

While the storage thread waits for one of them, it shows no sign of life. It waits through this module, so that the
signs of life of the background threads count meanwhile: a thread that hangs is detected, and one that works is not
taken for hung.

A thread without another sign of life shows by its CPU time that it works: a thread that computes uses CPU time, a
thread that waits for a disk does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

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


P = ParamSpec("P")
T = TypeVar("T")

THREADS = 2


class Background:
    """Executor of long tasks. Any thread may call ``submit``; only one thread at a time may wait."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._executor = threads.executor(THREADS, "tandemmq-background")
        self._pulses = Pulses(threads)
        self._waited_for_since: float | None = None

    def submit(self, work: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Run ``work`` on a background thread; return its future. Work begins in the order of its submission. Raises
        RuntimeError after ``finish``."""

        def do() -> T:
            with self._pulses.beating():
                return work(*arguments, **named)

        return self._executor.submit(do)

    def wait(self, work: Future[T]) -> None:
        """Wait until ``work`` is done or has failed. Does not raise its error."""
        self._waited_for_since = self._threads.monotonic()
        self._threads.wait([work])
        self._waited_for_since = None

    def finish(self, *, cancel: bool = False) -> None:
        """Accept no further work, and wait until all submitted work is done. With ``cancel``, work that has not begun
        is cancelled."""
        self._waited_for_since = self._threads.monotonic()
        self._executor.shutdown(cancel_futures=cancel)

    def seen_alive(self) -> float:
        """Return the monotonic time at which a background thread was last found at work; -inf: no caller waits."""
        since = self._waited_for_since
        return -math.inf if since is None else max(since, self._pulses.seen_busy())
