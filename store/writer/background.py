"""Threads beside the storage thread, for long work: a checkpoint, the next journal file, removals.

The storage thread must not hang unnoticed in a wait for one of them, nor be taken for hung while they progress. So it
waits here, and meanwhile their signs of life replace its own.
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
    """Runs long tasks beside the storage thread. ``submit`` from any thread; one thread at a time may wait."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._executor = threads.executor(THREADS, "tandemmq-background")
        self._pulses = Pulses(threads)
        self._waited_for_since: float | None = None

    def submit(self, work: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Do ``work`` after all work submitted before. RuntimeError after ``finish``."""

        def do() -> T:
            with self._pulses.beating():
                return work(*arguments, **named)

        return self._executor.submit(do)

    def wait(self, work: Future[T]) -> None:
        """Wait until ``work`` is done, or failed."""
        self._waited_for_since = self._threads.monotonic()
        self._threads.wait([work])
        self._waited_for_since = None

    def finish(self, *, cancel: bool = False) -> None:
        """Take no more work; wait until all is done, with ``cancel`` until the work under way is done."""
        self._waited_for_since = self._threads.monotonic()
        self._executor.shutdown(cancel_futures=cancel)

    def seen_alive(self) -> float:
        """Return the monotonic time at which they last worked for a waiting caller; -inf: no caller waits."""
        since = self._waited_for_since
        return -math.inf if since is None else max(since, self._pulses.seen_busy())
