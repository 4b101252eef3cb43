"""The thread on which one life of a broker does what may hang in the volume: open, follow, promote, close.

It can be left behind. Then whoever waited goes on, and when the call that hung comes back, what it opened is closed,
here, and not reported. A life that is over has no proof of ownership (``is_over``), whatever the lock says later:
what wakes up in it writes nothing that is shared.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tandemmq.store.threads import Threads
from tandemmq.store.writer.pulse import Pulse

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True, eq=False, repr=False)
class _Call:
    """One thing to do. ``close_by`` makes of its result what will close all that this life has open."""

    function: Callable[[], Any]
    outcome: asyncio.Future[Any]
    close_by: Callable[[Any], Callable[[], None]] | None
    seen_alive: Callable[[], float]


def _nobody() -> float:
    return -math.inf


class VolumeThread:
    """Runs the store's blocking calls of one life. Used on the loop, but for ``halt``, ``is_over`` and ``seen_alive``,
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
        self._seen_alive_elsewhere: Callable[[], float] = _nobody
        self._pulse: Pulse | None = None
        threads.thread(self._run, "tandemmq-life").start()

    def do(
        self,
        function: Callable[[], T],
        *,
        close_by: Callable[[T], Callable[[], None]] | None = None,
        seen_alive: Callable[[], float] = _nobody,
    ) -> asyncio.Future[T]:
        """Have it done, after what was asked for before. Not after ``leave``.

        With ``close_by`` its result owns from then on what is open here, and ``close_by(result)`` closes it. Signs of
        life of those who work for it on other threads are those of ``seen_alive``.
        """
        assert not self._is_left, "a life that was left does nothing more"
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._inbox.put(_Call(function, outcome, close_by, seen_alive))
        return outcome

    def halt(self) -> None:
        """This life is over: nothing that is shared is written any more. At once."""
        self.is_over = True

    def leave(self) -> None:
        """Over, and to be closed, after what is under way. ``has_ended`` says when. At once; may be called again."""
        self.halt()
        if not self._is_left:
            self._is_left = True
            self._inbox.put(None)

    def seen_alive(self) -> float:
        """When, on the monotonic clock, a sign of life was last seen; now, when there is nothing to do."""
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
        self._seen_alive_elsewhere = _nobody
        self._working_since = self._threads.monotonic()
        if self._close is not None:
            try:
                self._close()
            except Exception as error:
                log.warning("what a life of this broker had open is not closed: %s", error)
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
        outcome.exception()  # whoever waited may have gone
