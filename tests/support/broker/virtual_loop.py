"""An event loop that does not wait: if nothing is ready, its clock goes to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Select ready sockets without waiting; advance the clock by the time that the loop would have waited."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(None if timeout is None else 0)
        if not found and timeout is not None:
            self.passed += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop for tests without threads: their work takes no time on its clock."""

    def __init__(self) -> None:
        self._times = _Selector()
        super().__init__(self._times)

    def time(self) -> float:
        return self._times.passed


class VirtualTime(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop()
