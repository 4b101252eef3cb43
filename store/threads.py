"""Interfaces of threads, queues, waits and clocks for blocking work. The caller passes the implementation.

In production it is the standard library's. The simulator passes another one, which runs all threads of several brokers
one at a time and in virtual time, so that a seed determines the order of all events.
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

    def empty(self) -> bool: ...


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
    """Factory of threads and of the objects with which they wait; also the clocks. Any thread may use it."""

    def thread(self, target: Callable[[], object], name: str) -> Thread:
        """Return a new thread that is not started. It does not keep the process alive (daemon)."""
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
        """Return the seconds of a monotonic clock."""
        ...

    def native_id(self) -> int:
        """Return the system's number of the calling thread."""
        ...

    def cpu_seconds(self, native_id: int) -> float:
        """Return the CPU time of the thread in seconds; 0 if it has ended. A thread that waits for a disk uses none."""
        ...

    def boottime(self) -> float:
        """Return the seconds of a clock that also counts the time in suspend and cannot be set."""
        ...

    def wall(self) -> float:
        """Return the seconds since 1970, for logs and timestamps. No decision may depend on them."""
        ...


class OsInbox(SimpleQueue[Any]):
    """A ``SimpleQueue`` whose ``get`` respects its timeout. In CPython 3.11, ``get`` waits forever if its lock is free,
    the queue is empty, and the timeout has passed at its second check. To prevent that, ``get`` here first makes a call
    that does not wait: this call takes the lock."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if timeout is not None:
            try:
                return self.get_nowait()
            except Empty:
                pass
        return super().get(block, timeout)


# CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED: with the inverted number of a thread, these give the id of the clock of its
# CPU time. pthread_getcpuclockid(3) gives the same id, but crashes if the thread has ended.
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
