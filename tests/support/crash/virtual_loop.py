"""An event loop whose time passes only while it is idle, together with a store that has a real thread."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import Any

ANSWER_SECONDS_MAX = 60.0


class VirtualLoop(asyncio.BaseEventLoop):
    """``now``: initial time. ``awaits_report``: returns whether another thread will call ``report``. The loop waits for
    the report before anything else happens, so that the same turns lead to the same batches. ``errors``: exceptions of
    callbacks."""

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
        """Call ``function`` on the loop. Safe in any thread."""
        self._reports.put(function)

    def pass_time(self, seconds: float) -> None:
        """Run everything that is ready or due within ``seconds``, in order."""
        self._until = self._now + seconds
        self.run_forever()

    def do(self, function: Callable[[], None]) -> None:
        """Call a function on the loop, and run everything that follows at once."""
        self.call_soon(function)
        self.pass_time(0)

    # ---- methods that BaseEventLoop needs of a selector and of its subclass

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
