"""An asyncio event loop in virtual time: it never polls a socket, and waits by parking its thread."""

from __future__ import annotations

import asyncio
import threading
from asyncio.events import _set_running_loop
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from tandemmq.simulator.kernel import Process
from tandemmq.simulator.threads import SimulatedExecutor

# Unwinding a coroutine of a killed process may need several attempts.
UNWINDINGS_MAX = 100


class SimulatedLoop(asyncio.BaseEventLoop):
    """Loop for one thread of ``process``, which calls ``complete``."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._selector = self
        self._wake: Callable[[], None] | None = None
        self._executor = SimulatedExecutor(process, 4, "asyncio")
        self._clock_resolution = 1e-9
        self.set_exception_handler(self._note_exception)

    def time(self) -> float:
        return self._process.boot()

    def complete(self, main: Coroutine[Any, Any, None]) -> None:
        """Run until ``main`` ends; raises its exception. On a simulated thread."""
        thread = self._process.running()
        task = self.create_task(main)
        self._thread_id = threading.get_ident()
        thread.may_wait = False
        _set_running_loop(self)
        try:
            while not task.done():
                self._run_once()  # type: ignore[attr-defined]
        finally:
            _set_running_loop(self)  # what begins during the unwinding is a task of this loop
            self._unwind()
            _set_running_loop(None)
            thread.may_wait = True
            self._thread_id = None  # type: ignore[assignment]
        task.result()

    def _unwind(self) -> None:
        """End the remaining tasks at once, without a report: no task outlives the loop."""
        ended: set[asyncio.Task[Any]] = set()
        while tasks := asyncio.all_tasks(self) - ended:  # a task that ends may have begun another
            ended |= tasks
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                try:
                    for _ in range(UNWINDINGS_MAX):
                        coroutine.throw(asyncio.CancelledError())
                except BaseException:
                    pass  # StopIteration, or the result of the cancellation
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self._closed = True

    def _note_exception(self, loop: object, context: dict[str, Any]) -> None:
        if not self._process.is_dead:
            error = context.get("exception")
            self._process.world.bugs.append(f"{self._process.name}, loop: {context['message']}: {error!r}")

    # ---- interface to BaseEventLoop, as its selector and subclass

    def select(self, timeout: float | None) -> list[Any]:
        process = self._process
        if timeout is not None and timeout <= 0:
            return []  # something is ready; others get their turns when it waits
        self._wake = process.waker()
        try:
            with self._left():
                process.park(timeout)
        finally:
            self._wake = None
        return []

    @contextmanager
    def _left(self) -> Iterator[None]:
        """Let the thread wait, and other loops run, inside this context."""
        process = self._process
        thread = process.running()
        _set_running_loop(None)
        thread.may_wait = True
        try:
            yield
        finally:
            if not process.is_dead:
                thread.may_wait = False
                _set_running_loop(self)

    def _process_events(self, events: list[Any]) -> None:
        assert not events, "there are no sockets"

    def _write_to_self(self) -> None:
        if self._wake is not None:
            self._wake()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        return super().run_in_executor(executor or self._executor, function, *arguments)
