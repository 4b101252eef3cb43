"""A disk and a hand on a lock whose calls hang when a test says so, until it says otherwise."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from tandemmq.locker.memory import MemoryLocker

#: A test that forgot to let go ends all the same.
SECONDS_MAX = 60.0


class Gate:
    """What calls go through. ``is_hit``: one of them hangs, or did."""

    def __init__(self) -> None:
        self.is_hit = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._names: frozenset[str] = frozenset()
        self._thread = ""

    def close(self, *names: str, thread: str = "") -> None:
        """From now on calls by these names hang, if the name of their thread begins so."""
        self._names, self._thread = frozenset(names), thread
        self.is_hit.clear()
        self._open.clear()

    def open(self) -> None:
        """Whoever hangs goes on."""
        self._open.set()

    def pass_by(self, name: str) -> None:
        if name in self._names and threading.current_thread().name.startswith(self._thread):
            if not self._open.is_set():
                self.is_hit.set()
            self._open.wait(SECONDS_MAX)


class HangingDisk:
    """The real disk behind a gate: a call that hangs is made when it is let through."""

    def __init__(self) -> None:
        self.gate = Gate()

    def __getattr__(self, name: str) -> Any:
        real: Callable[..., Any] = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.gate.pass_by(name)
            return real(*arguments, **named)

        return call


class HangingLocker(MemoryLocker):
    """A lock in memory whose answers hang behind a gate: it is asked, and does not say what came of it."""

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
    """The real disk, but that from some moment on each call takes its time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    def slow_down(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real: Callable[..., Any] = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            time.sleep(self.seconds)
            return real(*arguments, **named)

        return call
