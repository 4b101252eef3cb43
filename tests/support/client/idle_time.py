"""An event loop with real sockets whose clock runs only while the loop is idle, and then ten times as fast."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

POLL_SECONDS = 0.001
HASTE = 10


class IdleTimeLoop(asyncio.SelectorEventLoop):
    """Work takes no time on this clock, so timeouts do not expire on a busy machine."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now


class IdleTime(asyncio.DefaultEventLoopPolicy):
    _loop_factory: Any = IdleTimeLoop


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: IdleTimeLoop) -> None:
        super().__init__()
        self._of_loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        passed = min(timeout, POLL_SECONDS * HASTE)
        ready = super().select(passed / HASTE)
        if not ready:
            self._of_loop.now += passed
        return ready
