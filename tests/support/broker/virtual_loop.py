"""An event loop that does not wait: when nothing is ready, the time of its next timer has come."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Looks what is ready; lets the time pass for which the loop would have waited."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(None if timeout is None else 0)
        if not found and timeout is not None:
            self.passed += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """For tests that use no threads: their work takes no time here."""

    def __init__(self) -> None:
        self._times = _Selector()
        super().__init__(self._times)

    def time(self) -> float:
        return self._times.passed


class VirtualTime(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop()
