"""The thread on which one life of a broker makes calls that may hang in the volume: open, follow, promote, close.

If a call hangs, the broker can leave this thread behind and continue. When the call returns, the thread closes its
files and reports nothing. A life that is over (``is_over``) never has a proof of ownership again, even if the broker
gets the lock later: if a call of that life continues later, it writes nothing to shared files.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tandemmq.store.threads import Threads
from tandemmq.store.writer.background import Pulse

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True, eq=False, repr=False)
class _Call:
    """A call to make. ``close_by`` takes the result and returns the function that closes all open files of this
    life."""

    function: Callable[[], Any]
    outcome: asyncio.Future[Any]
    close_by: Callable[[Any], Callable[[], None]] | None
    seen_alive: Callable[[], float]


def _no_signs() -> float:
    return -math.inf


class VolumeThread:
    """Runs the store's blocking calls of one life. Used on the loop, except ``halt``, ``is_over`` and ``seen_alive``,
    which any thread may use.

    ``call_soon`` runs a function on the loop, from any thread; when the loop has ended it does nothing.
    """

    def __init__(self, threads: Threads, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self.is_over = False
        self.has_ended = asyncio.Event()
        self._threads = threads
        self._call_soon = call_soon
        self._inbox = threads.inbox()
        self._is_left = False
        self._close: Callable[[], None] | None = None
        self._working_since: float | None = None
        self._seen_alive_elsewhere: Callable[[], float] = _no_signs
        self._pulse: Pulse | None = None
        threads.thread(self._run, "tandemmq-life").start()

    def do(
        self,
        function: Callable[[], T],
        *,
        close_by: Callable[[T], Callable[[], None]] | None = None,
        seen_alive: Callable[[], float] = _no_signs,
    ) -> asyncio.Future[T]:
        """Run ``function`` after the earlier calls. Not after ``leave``.

        ``close_by``: the result owns all open files of this life, and ``close_by(result)`` closes them. ``seen_alive``
        returns the last sign of life of other threads that work for ``function``.
        """
        assert not self._is_left, "no call follows ``leave``"
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._inbox.put(_Call(function, outcome, close_by, seen_alive))
        return outcome

    def halt(self) -> None:
        """End this life: it writes nothing to shared files any more. Returns at once."""
        self.is_over = True

    def leave(self) -> None:
        """End this life, and close its files after the call in progress; then ``has_ended`` is set. Returns at once;
        may be called again."""
        self.halt()
        if not self._is_left:
            self._is_left = True
            self._inbox.put(None)

    def seen_alive(self) -> float:
        """Return the monotonic time of the last sign of life; if there is no call in progress, the present time."""
        since, pulse = self._working_since, self._pulse
        if since is None or pulse is None:
            return self._threads.monotonic()
        return max(since, pulse.seen_busy(), self._seen_alive_elsewhere())

    # ---- the thread

    def _run(self) -> None:
        self._pulse = Pulse(self._threads, self._threads.native_id())
        while (call := self._inbox.get()) is not None:
            if not self.is_over:
                self._do(call)
        self._seen_alive_elsewhere = _no_signs
        self._working_since = self._threads.monotonic()
        if self._close is not None:
            try:
                self._close()
            except Exception as error:
                log.warning("files that this broker had open as standby or master could not be closed: %s", error)
        self._working_since = None
        self._call_soon(self.has_ended.set)

    def _do(self, call: _Call) -> None:
        self._seen_alive_elsewhere = call.seen_alive
        self._working_since = self._threads.monotonic()
        try:
            result = call.function()
        except Exception as error:
            failure = error  # the name of an exception ends with its block
            self._call_soon(lambda: _fail(call.outcome, failure))
        else:
            if call.close_by is not None:
                self._close = call.close_by(result)
            self._call_soon(lambda: _succeed(call.outcome, result))
        finally:
            self._working_since = None


def _succeed(outcome: asyncio.Future[Any], result: Any) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[Any], error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)
        outcome.exception()  # the waiting code may be gone
