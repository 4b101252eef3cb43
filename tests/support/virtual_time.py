"""Tests in the simulator's virtual time: the parts are real, but their threads run one at a time, and waiting takes no
time.

A test that uses the fixture ``virtual`` runs on a simulated thread; an ``async`` test runs in a simulated loop. The
tested objects get ``virtual.threads``, ``virtual.clock`` and ``virtual.disk``. An idle hour passes at once, so a test
uses the time limits of the product, and a busy machine does not change the result.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

import pytest

from tandemmq.locker.contract import Clock
from tandemmq.simulator.kernel import Killed, Process, World
from tandemmq.simulator.loop import SimulatedLoop
from tandemmq.simulator.threads import SimulatedClock, SimulatedThreads
from tandemmq.store.threads import OsThreads, Threads

T = TypeVar("T")

#: Seed of the choice of the next thread.
SEED: Final = int(os.environ.get("TANDEMMQ_SEED", "1"))
#: Limit in virtual time for any condition.
WAIT_SECONDS_MAX: Final = 300.0
REAL_SECONDS_MAX: Final = 30.0
RUN_SECONDS_MAX: Final = 10_000.0
POLL_SECONDS: Final = 0.1


class UnsyncedDisk:
    """The real disk without syncs: without a power loss a sync has no effect that a test can see."""

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def fsync(self, fd: int, /) -> None:
        pass

    fdatasync = fsync


class HangingLoop(SimulatedLoop):
    """A loop that a test can make hang."""

    def hang(self, wait: Callable[[], object]) -> None:
        """Call ``wait``, which waits: until it returns, nothing else happens in this loop. For a callback."""
        with self._left():
            wait()


class VirtualTime:
    """One simulated process for a test and everything that it starts."""

    def __init__(self) -> None:
        self.world = World(SEED)
        self.process = Process(self.world, "test")
        simulated = SimulatedThreads(self.process, lambda: 1_700_000_000.0 + self.world.now)
        self.threads: Threads = simulated
        self.clock: Clock = SimulatedClock(self.process)  # type: ignore[assignment]  # its events are simulated, too
        self.disk: Any = UnsyncedDisk()
        self.sleep = simulated.sleep

    def run(self, function: Callable[[], T | Awaitable[T]]) -> None:
        """Call a function on a simulated thread, or complete a coroutine in a simulated loop. Raises its exceptions."""
        outcome: Future[None] = Future()

        def call() -> None:
            try:
                result = function()
                if inspect.iscoroutine(result):
                    HangingLoop(self.process).complete(result)
            except Killed:
                raise
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        self.process.thread(call, "test").start()
        self.world.run(self.world.now + RUN_SECONDS_MAX, outcome.done)
        assert outcome.done(), "the test waits for an event that never happens"
        outcome.result()

    def begin(self, make: Callable[[], Awaitable[None]], name: str) -> None:
        """Complete a coroutine in a separate loop and thread."""
        self.process.thread(lambda: HangingLoop(self.process).complete(make()), name).start()  # type: ignore[arg-type]

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Wait for the first true result of ``condition``, called on this thread; return it. Fails with the text
        ``what`` if there is none."""
        deadline = self.world.now + WAIT_SECONDS_MAX
        while not (answer := condition()):
            assert self.world.now < deadline, f"it does not happen: {what}"
            self.sleep(POLL_SECONDS)
        return answer

    async def hang_loop(self, wait: Callable[[], object]) -> None:
        """Make the loop of the caller hang, like a call that does not return, until ``wait`` has ended."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, HangingLoop), "the test is async"
        loop.call_soon(partial(loop.hang, wait))
        await asyncio.sleep(0)

    def end(self) -> None:
        """End all threads as SIGKILL does. Fails if one of them ended with an exception."""
        self.process.kill()
        assert not self.world.bugs, self.world.bugs


class HandClock(OsThreads):
    """The system's threads with a clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def boottime(self) -> float:
        return self.now


async def until(condition: Callable[[], T], what: str) -> T:
    """Wait as ``VirtualTime.until`` does, in a loop; in a real one at most REAL_SECONDS_MAX."""
    loop = asyncio.get_running_loop()
    time = loop.time
    deadline = time() + (WAIT_SECONDS_MAX if isinstance(loop, SimulatedLoop) else REAL_SECONDS_MAX)
    while not (answer := condition()):
        assert time() < deadline, f"it does not happen: {what}"
        await asyncio.sleep(POLL_SECONDS)
    return answer


@pytest.fixture
def virtual() -> Iterator[VirtualTime]:
    made = VirtualTime()
    yield made
    made.end()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    virtual = pyfuncitem.funcargs.get("virtual")
    if not isinstance(virtual, VirtualTime):
        return None
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    virtual.run(partial(inspect.unwrap(pyfuncitem.obj), **arguments))
    return True
