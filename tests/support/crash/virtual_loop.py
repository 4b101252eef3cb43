"""An event loop whose time passes only when nothing else is to be done, beside a store with its own, real thread."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import Any

ANSWER_SECONDS_MAX = 60.0


class VirtualLoop(asyncio.BaseEventLoop):
    """``now`` is the time at which it begins. ``awaits_report`` says whether another thread is to ``report``: before
    anything else happens that is waited for, so that the same turns lead to the same batches. What callbacks raise is
    in ``errors``."""

    def __init__(self, now: float, awaits_report: Callable[[], bool]) -> None:
        super().__init__()
        self._selector = self
        self._now = self._until = now
        self._awaits_report = awaits_report
        self._reports: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.errors: list[BaseException | str] = []
        self.set_exception_handler(
            lambda loop, context: self.errors.append(context.get("exception") or context["message"])
        )

    def time(self) -> float:
        return self._now

    def report(self, function: Callable[[], None]) -> None:
        """``function`` is called on the loop. Any thread."""
        self._reports.put(function)

    def pass_time(self, seconds: float) -> None:
        """All that is ready or due within so many seconds is done, in order."""
        self._until = self._now + seconds
        self.run_forever()

    def do(self, function: Callable[[], None]) -> None:
        """On the loop, with all that follows from it at once."""
        self.call_soon(function)
        self.pass_time(0)

    # ---- what BaseEventLoop asks of a selector and of its subclass

    def select(self, timeout: float | None) -> list[Any]:
        if self._awaits_report():
            self.call_soon(self._reports.get(timeout=ANSWER_SECONDS_MAX))
        elif timeout is None or timeout > 0:
            due = self._until if timeout is None else min(self._now + timeout, self._until)
            if due <= self._now:
                self.stop()
            self._now = due
        return []

    def _process_events(self, events: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...
