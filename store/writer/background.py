"""Background threads for long work: a checkpoint, the next journal file, removals.

While the storage thread waits for one of them, it shows no sign of life. It waits through this module, so that the
signs of life of the background threads count meanwhile: a thread that hangs is detected, and one that works is not
taken for hung.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from tandemmq.store.threads import Threads
from tandemmq.store.writer.pulse import Pulses

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
