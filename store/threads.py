"""Threads, queues, waits and time for blocking work: passed in, like the disk.

In production they are the standard library's. The simulator passes others, which run all threads of several brokers one
at a time and in virtual time, so that a seed determines the order of all events.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol


class Event(Protocol):
    """Interface of ``threading.Event``."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Inbox(Protocol):
    """Interface of ``queue.SimpleQueue``, with one consumer thread; ``get`` and ``get_nowait`` raise
    ``queue.Empty``."""

    def put(self, item: Any) -> None: ...

    def get(self, block: bool = True, timeout: float | None = None) -> Any: ...

    def get_nowait(self) -> Any: ...


class Thread(Protocol):
    """Interface of ``threading.Thread``."""

    @property
    def native_id(self) -> int | None:
        """The system's number of the thread; None before the start."""
        ...

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class Threads(Protocol):
    """Makes threads, and the objects that they wait with. For any thread."""

    def thread(self, target: Callable[[], object], name: str) -> Thread:
        """Return a thread that does not keep the process alive; not started yet."""
        ...

    def executor(self, workers: int, name: str) -> Executor: ...

    def inbox(self) -> Inbox: ...

    def event(self) -> Event: ...

    def lock(self) -> AbstractContextManager[Any]: ...

    def wait(self, futures: Iterable[Future[Any]], timeout: float | None = None) -> bool:
        """Wait until all are done (True), or until ``timeout`` seconds are over."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def monotonic(self) -> float:
        """Return the seconds of a clock that cannot be set."""
        ...

    def native_id(self) -> int:
        """Return the system's number of the calling thread."""
        ...

    def cpu_seconds(self, native_id: int) -> float:
        """Return the CPU seconds of that thread, 0 when it has ended; a thread that waits for a disk uses none."""
        ...

    def boottime(self) -> float:
        """Return the seconds of a clock that runs on in suspend and cannot be set."""
        ...

    def wall(self) -> float:
        """Return the seconds since 1970: for people, logs and messages; no decision depends on it."""
        ...


class OsInbox(SimpleQueue[Any]):
    """A ``SimpleQueue`` whose ``get`` respects its timeout. In CPython 3.11, ``get`` waits forever if the lock is free,
    the queue is empty, and the timeout has passed at the second check. To prevent that, a call without waiting takes
    the lock before."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if timeout is not None:
            try:
                return self.get_nowait()
            except Empty:
                pass
        return super().get(block, timeout)


# CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED: with the inverted number of a thread, these make the clock of its CPU
# time. pthread_getcpuclockid(3) makes the same, but reads the memory of a thread that may have ended, which kills.
_CLOCK_OF_A_THREAD: Final = 4 | 2


class OsThreads:
    """The operating system's threads."""

    __slots__ = ()

    event = staticmethod(threading.Event)
    native_id = staticmethod(threading.get_native_id)
    lock = staticmethod(threading.Lock)
    sleep = staticmethod(time.sleep)
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    boottime = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))

    def thread(self, target: Callable[[], object], name: str) -> Thread:
        return threading.Thread(target=target, name=name, daemon=True)

    def executor(self, workers: int, name: str) -> Executor:
        return ThreadPoolExecutor(workers, name)

    def cpu_seconds(self, native_id: int) -> float:
        try:
            return time.clock_gettime(~native_id << 3 | _CLOCK_OF_A_THREAD)
        except OSError:  # the thread has ended
            return 0.0

    def inbox(self) -> Inbox:
        return OsInbox()

    def wait(self, futures: Iterable[Future[Any]], timeout: float | None = None) -> bool:
        return not wait(tuple(futures), timeout).not_done


OS_THREADS: Threads = OsThreads()
