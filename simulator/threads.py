"""Threads, queues and clocks of a simulated process, instead of the operating system's (store.threads.Threads)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty
from typing import Any, ParamSpec, TypeVar

from tandemmq.simulator.kernel import Process, SimulatedThread, call_all

P = ParamSpec("P")
T = TypeVar("T")


class SimulatedEvent:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_set = False
        self._waiting: list[Callable[[], object]] = []

    def set(self) -> None:
        self._is_set = True
        call_all(self._waiting)

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._waiting.append(self._process.waker())
            self._process.park(timeout)
        return self._is_set


class SimulatedInbox:
    """Queue like ``queue.SimpleQueue``."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._waiting: list[Callable[[], object]] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._waiting.pop(0)()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        items = self._items
        while not items:
            if not block:
                raise Empty
            wake = self._process.waker()
            self._waiting.append(wake)
            if not self._process.park(timeout):
                if wake in self._waiting:
                    self._waiting.remove(wake)
                if not items:
                    raise Empty
        return items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items


class SimulatedLock:
    """Lock like ``threading.Lock``, for ``with``."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_held = False
        self._waiting: list[Callable[[], object]] = []

    def __enter__(self) -> bool:
        while self._is_held:
            self._waiting.append(self._process.waker())
            self._process.park(None)
        self._is_held = True
        return True

    def __exit__(self, *_: object) -> None:
        self._is_held = False
        if self._waiting:
            self._waiting.pop(0)()


class SimulatedExecutor(Executor):
    """Executor like ``ThreadPoolExecutor``."""

    def __init__(self, process: Process, workers_max: int, name: str) -> None:
        self._process = process
        self._workers_max = workers_max
        self._name = name
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._idle: list[Callable[[], object]] = []
        self._workers: list[SimulatedThread] = []
        self._is_shut = False

    def submit(self, function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()
        self._work.append((future, lambda: function(*arguments, **named)))
        if self._idle:
            self._idle.pop(0)()
        elif len(self._workers) < self._workers_max:
            worker = self._process.thread(self._run, f"{self._name}-{len(self._workers)}")
            self._workers.append(worker)
            worker.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        while cancel_futures and self._work:
            self._work.popleft()[0].cancel()
        call_all(self._idle)
        for worker in self._workers if wait else ():
            worker.join()

    def _run(self) -> None:
        while True:
            while not self._work:
                if self._is_shut:
                    return
                self._idle.append(self._process.waker())
                self._process.park(None)
            future, function = self._work.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:
                if self._process.is_dead:
                    raise
                future.set_exception(error)
            else:
                future.set_result(result)


class SimulatedThreads:
    """Simulated threads, queues and clocks. ``wall_clock`` is the host's, which may be set."""

    def __init__(self, process: Process, wall_clock: Callable[[], float]) -> None:
        self._process = process
        self.wall = wall_clock
        self.monotonic = process.boot
        self.boottime = process.boot
        self.sleep = process.sleep
        self.thread = process.thread
        self.executor = partial(SimulatedExecutor, process)
        self.inbox = partial(SimulatedInbox, process)
        self.event = partial(SimulatedEvent, process)
        self.lock = partial(SimulatedLock, process)

    def native_id(self) -> int:
        return self._process.running().number

    def cpu_seconds(self, native_id: int) -> float:
        """Return the CPU time: computing takes no time here, so each turn counts as a second."""
        return float(sum(thread.turns for thread in self._process.threads if thread.number == native_id))

    def wait(self, futures: Iterable[Future[Any]], timeout: float | None = None) -> bool:
        process = self._process
        deadline = None if timeout is None else process.boot() + timeout
        for future in futures:
            if not future.done():
                wake = process.waker()
                future.add_done_callback(lambda _, wake=wake: wake())  # type: ignore[misc]
                process.park(None if deadline is None else max(0.0, deadline - process.boot()))
            if not future.done():
                return False
        return True


class SimulatedClock:
    """Clock of a process (locker.contract.Clock)."""

    def __init__(self, process: Process) -> None:
        self.now = process.boot

    def wait(self, stop: SimulatedEvent, seconds: float) -> bool:
        return stop.wait(seconds)
