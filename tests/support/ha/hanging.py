"""A disk and a locker with calls that hang as long as a test demands it, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tandemmq.locker.contract import LockRequest
from tandemmq.locker.memory import MemoryLock, MemoryLocker
from tests.support.virtual_time import VirtualTime, until


class Gate:
    """A gate for calls. ``is_hit``: a call hangs, or did."""

    def __init__(self, virtual: VirtualTime) -> None:
        self._virtual = virtual
        self._open = virtual.threads.event()
        self._open.set()
        self._names: frozenset[str] = frozenset()
        self._thread = ""
        self.is_hit = False

    def close(self, *names: str, thread: str = "") -> None:
        """From now on calls with these names hang, if the name of their thread begins with ``thread``."""
        self._names, self._thread = frozenset(names), thread
        self.is_hit = False
        self._open.clear()

    def open(self) -> None:
        """Let all hanging calls continue."""
        self._open.set()

    async def hit(self) -> None:
        await until(lambda: self.is_hit, "a call hangs")

    def pass_by(self, name: str) -> None:
        if name in self._names and self._virtual.process.running().name.startswith(self._thread):
            if not self._open.is_set():
                self.is_hit = True
            self._open.wait()

    def locker(self, request: LockRequest, lock: MemoryLock) -> HangingLocker:
        """Return a locker behind this gate."""
        made = HangingLocker(request, lock)
        made.gate = self
        return made


class HangingDisk:
    """A disk behind a gate: a hanging call is made when the gate opens."""

    def __init__(self, virtual: VirtualTime) -> None:
        self.gate = Gate(virtual)
        self._disk = virtual.disk

    def __getattr__(self, name: str) -> Any:
        real: Callable[..., Any] = getattr(self._disk, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.gate.pass_by(name)
            return real(*arguments, **named)

        return call


class HangingLocker(MemoryLocker):
    """A lock in memory with its answers behind a gate: the request is made, but the result hangs."""

    gate: Gate

    def try_acquire(self) -> bool:
        is_ours = super().try_acquire()
        self.gate.pass_by("try_acquire")
        return is_ours

    def keep_alive(self) -> bool:
        self.gate.pass_by("keep_alive")
        return super().keep_alive()

    def announce(self, epoch: int, admin: str | None = None) -> None:
        self.gate.pass_by("announce")
        super().announce(epoch, admin)

    def release(self) -> None:
        self.gate.pass_by("release")
        super().release()


class SlowDisk:
    """A disk whose calls each take ``seconds``. ``calls``: number of slow calls."""

    def __init__(self, virtual: VirtualTime) -> None:
        self.seconds = 0.0
        self.calls = 0
        self._sleep, self._disk = virtual.sleep, virtual.disk

    def __getattr__(self, name: str) -> Any:
        real: Callable[..., Any] = getattr(self._disk, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if self.seconds:
                self.calls += 1
                self._sleep(self.seconds)
            return real(*arguments, **named)

        return call
