"""Virtual time, and threads that take turns in it: a seed decides the order of all events.

Each simulated thread is a greenlet. It runs until it waits for something; then the world picks a random ready thread.
When none is ready, time jumps to the next timer. Only one thread runs at a time, and only explicit waits take time. A
process can be stopped (SIGSTOP) and killed (SIGKILL) wherever its threads wait, in the middle of a system call too.

Knows nothing of brokers and disks.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

from greenlet import getcurrent, greenlet

#: Limit of turns at one time; more mean a busy loop.
TURNS_AT_ONE_TIME_MAX: Final = 200_000


class Killed(BaseException):
    """The process of this thread was killed: it unwinds, and nothing that it does meanwhile has any effect."""


class StandsStill(Exception):
    """Threads take turns forever while time stands still."""


class Timer(list[Any]):
    """A future call, which ``cancel`` may end at any time: its time, a unique number, and the function. It is a list
    because it is compared often."""

    __slots__ = ()

    def cancel(self) -> None:
        self[2] = None


def call_all(calls: list[Callable[[], object]]) -> None:
    """Call each function once, and clear the list."""
    due = calls[:]
    calls.clear()
    for call in due:
        call()


class World:
    """Time in seconds from 0, randomness, and the order of threads. ``fingerprint`` is equal for equal runs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.current: SimulatedThread | None = None
        self.fingerprint = seed
        self.bugs: list[str] = []  # unhandled exceptions
        self._ready: list[SimulatedThread] = []
        self._timers: list[Timer] = []
        self._timer_numbers = count(1)
        self.thread_numbers = count(1)
        self._is_over = False

    def after(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Call ``call`` after ``seconds``; it must not wait for anything."""
        timer = Timer((self.now + seconds, next(self._timer_numbers), call))
        heapq.heappush(self._timers, timer)
        return timer

    def run(self, until: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until then, or until ``is_over``, which is called after each timer."""
        assert self.current is None, "only from outside"
        turns = 0
        timers = self._timers
        ready = self._ready
        hub = getcurrent()
        while True:
            while ready:
                turns += 1
                if turns > TURNS_AT_ONE_TIME_MAX:
                    raise StandsStill(f"at {self.now:.6f} s; {ready[0].name} of {ready[0].process.name} is one of them")
                self._turn(ready, hub)
            if is_over():
                return
            if not timers or timers[0][0] > until:
                self.now = max(self.now, until)
                return
            when, _, call = heapq.heappop(timers)
            if call is None:
                continue
            if when > self.now:
                self.now = when
                turns = 0
            call()

    def _turn(self, ready: list[SimulatedThread], hub: greenlet) -> None:
        count = len(ready)
        if count > 1:
            chosen = int(self.random.random() * count)
            ready[chosen], ready[-1] = ready[-1], ready[chosen]
        thread = ready.pop()
        self.fingerprint = hash((self.fingerprint, self.now, thread.number))
        self.current = thread
        thread.turns += 1
        thread.switch(hub)
        self.current = None

    def make_ready(self, thread: SimulatedThread) -> None:
        self._ready.append(thread)

    def withdraw(self, process: Process) -> list[SimulatedThread]:
        """Stop the threads of a process; return those that were ready."""
        taken = [thread for thread in self._ready if thread.process is process]
        if taken:
            self._ready[:] = [thread for thread in self._ready if thread.process is not process]
        return taken


class SimulatedThread:
    """Thread of a process. It runs from its first turn after ``start``."""

    def __init__(self, process: Process, target: Callable[[], object], name: str) -> None:
        self.process = process
        self.world = process.world
        self.name = name
        self.number = next(self.world.thread_numbers)
        self.native_id: int | None = None
        self.turns = 0
        self.may_wait = True  # false while an event loop runs code that must never wait
        self._target = target
        self._is_alive = False
        self._ticket = 0  # of the next ``park``: its waker ends only that one
        self._was_woken = False
        self._joining: list[Callable[[], object]] = []
        self._greenlet: greenlet = greenlet(self._run)

    def start(self) -> None:
        if self.process.is_dead:
            raise Killed
        self.native_id = self.number
        self._is_alive = True
        self.process.threads.append(self)
        self.process.make_ready(self)

    def is_alive(self) -> bool:
        return self._is_alive

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, or for ``timeout`` by this process's clock."""
        if self._is_alive:
            self._joining.append(self.process.waker())
            self.process.wait(timeout, lambda: not self._is_alive)

    def _run(self) -> None:
        try:
            self._target()
        except Killed:
            pass
        except BaseException as error:
            self.world.bugs.append(f"{self.process.name}, {self.name}: {type(error).__name__}: {error}")
        self._is_alive = False
        if not self.process.is_dead:
            self.process.threads.remove(self)
        call_all(self._joining)

    def switch(self, hub: greenlet) -> None:
        """Give the thread its turn; called by the world, which runs in ``hub``."""
        own = self._greenlet
        if own.parent is not hub:
            own.parent = hub
        own.switch()

    def kill(self) -> None:
        """Unwind the thread; its process is dead, so nothing that it does counts."""
        if not self._is_alive or self._greenlet is getcurrent():
            return
        if self._greenlet:  # it has begun
            self._greenlet.parent = getcurrent()
            self._greenlet.throw(Killed)
        self._is_alive = False

    # ---- waiting, on this thread

    def park(self, seconds: float | None) -> bool:
        """Wait until woken (True), or for ``seconds`` of true time (False)."""
        if self.process.is_dead:
            raise Killed
        assert self.may_wait, f"{self.name} of {self.process.name} must not wait: everything else does while it waits"
        ticket = self._ticket
        timer = None
        if seconds is not None:
            timer = self.world.after(seconds if seconds > 1e-6 else 1e-6, partial(self._resume, ticket, False))
        hub = self._greenlet.parent
        assert hub is not None, "the world gave this thread its turn"
        hub.switch()
        if timer is not None:
            timer.cancel()
        if self.process.is_dead:
            raise Killed
        return self._was_woken

    def waker(self) -> Callable[[], None]:
        """Return a function that ends the next ``park``, unless that ended before."""
        return partial(self._resume, self._ticket, True)

    def _resume(self, ticket: int, was_woken: bool) -> None:
        if ticket != self._ticket or not self._is_alive:
            return
        self._ticket += 1
        self._was_woken = was_woken
        self.process.make_ready(self)


class Process:
    """Threads that stop, continue and die together, and a clock that cannot be set.

    The clock (CLOCK_BOOTTIME) began at its own time, and runs ``clock_rate`` times as fast as true time.
    """

    def __init__(self, world: World, name: str, *, clock_rate: float = 1.0, clock_began: float = 1000.0) -> None:
        self.world = world
        self.name = name
        self.threads: list[SimulatedThread] = []
        self.is_dead = False
        self.is_paused = False
        self._clock_rate = clock_rate
        self._clock_began = clock_began
        self._waiting: list[SimulatedThread] = []  # threads that would run if the process were not paused

    def boot(self) -> float:
        """Return the seconds of the clock that cannot be set."""
        return self._clock_began + self.world.now * self._clock_rate

    def thread(self, target: Callable[[], object], name: str) -> SimulatedThread:
        return SimulatedThread(self, target, name)

    def make_ready(self, thread: SimulatedThread) -> None:
        if self.is_dead:
            return
        if self.is_paused:
            self._waiting.append(thread)
        else:
            self.world.make_ready(thread)

    def pause(self) -> None:
        """Stop the process (SIGSTOP): its disk and network requests continue, its threads do not."""
        if not self.is_paused and not self.is_dead:
            self.is_paused = True
            self._waiting = self.world.withdraw(self)

    def resume(self) -> None:
        """Continue the process (SIGCONT)."""
        if self.is_paused and not self.is_dead:
            self.is_paused = False
            waiting, self._waiting = self._waiting, []
            for thread in waiting:
                self.world.make_ready(thread)

    def kill(self) -> None:
        """Kill the process (SIGKILL). Called by the world, not by a thread of the process."""
        if self.is_dead:
            return
        self.is_dead = True
        self.world.withdraw(self)
        self._waiting = []
        for thread in list(self.threads):
            thread.kill()
        self.threads = []

    # ---- for the running thread

    def running(self) -> SimulatedThread:
        """Return the thread of this process whose turn it is."""
        if self.is_dead:
            raise Killed
        thread = self.world.current
        assert thread is not None, f"a thread of {self.name} is running"
        assert thread.process is self, f"a thread of {self.name} is running, not of {thread.process.name}"
        return thread

    def waker(self) -> Callable[[], None]:
        """Return a function that ends the next wait of the running thread; called too early or too late it does
        nothing."""
        return self.running().waker()

    def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds`` by this process's clock."""
        self.running().park(max(0.0, seconds) / self._clock_rate)

    def park(self, timeout: float | None) -> bool:
        """Wait for the running thread's waker, for ``timeout`` of this process's clock at most."""
        return self.running().park(None if timeout is None else timeout / self._clock_rate)

    def wait(self, timeout: float | None, is_done: Callable[[], bool]) -> bool:
        """Wait for the waker that was taken before this call. Return the final result of ``is_done``."""
        if not is_done():
            self.park(timeout)
        return is_done()
