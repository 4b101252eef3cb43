"""The thread that alone touches the lock: it polls, keeps alive, announces and releases.

A volume or a database that hangs blocks only this thread, and a busy event loop does not delay a keep-alive. Futures
return the results of requests. The thread reports its observations on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Any

from tandemmq import log_events
from tandemmq.locker.contract import Holder, Locker, LockError, LockLost, LockRefused, LockUnavailable
from tandemmq.store.threads import Event, Threads

log = logging.getLogger(__name__)

# Interval at which holder and waiters of the lock are read.
HOLDER_INTERVAL_SECONDS = 1.0
# Interval at which, after a handover, the lock is checked for a new holder.
HANDS_OFF_INTERVAL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Request:
    function: Callable[[], Any]
    answer: Future[Any]


class LockThread:
    """Thread that alone uses the locker. All methods return at once, from any thread; the locker's ``proof`` may be
    read meanwhile. ``report`` is called on the loop with the holder, the waiters and Locker.silence_seconds."""

    def __init__(
        self,
        locker: Locker,
        threads: Threads,
        report: Callable[[Holder | None, list[Holder] | None, float | None], None],
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._locker = locker
        self._report = report
        self._call_soon = call_soon
        self._threads = threads
        self._stop_waiting = threads.event()
        self._sent_at: float | None = None
        self._requests = threads.inbox()
        self._is_ours = False
        self._keep_alive_at = 0.0
        self._holder_read_at = float("-inf")
        self._announcement: tuple[int, str | None] | None = None
        self._logged_reason = ""
        self._on_lost: Callable[[LockLost], None] = lambda reason: None
        self._thread = threads.thread(self._run, "tandemmq-lock")
        self._thread.start()

    # ---- from other threads

    def acquire(self, hands_off_seconds: float, on_lost: Callable[[LockLost], None]) -> Future[bool]:
        """Wait for the lock. True: this broker has it, and keep-alives begin. False: ``stop_waiting`` was called.

        During the first ``hands_off_seconds`` this broker does not try to take the lock, unless another one has taken
        it. Raises the errors that the locker raises at its first poll. ``on_lost`` is called on the loop when a lock
        taken by this call is lost.
        """
        self._stop_waiting.clear()
        return self._request(lambda: self._acquire(hands_off_seconds, on_lost))

    def stop_waiting(self) -> None:
        """Make a waiting ``acquire`` return. It may have succeeded meanwhile."""
        self._stop_waiting.set()

    def announce(self, epoch: int, admin: str | None) -> None:
        """Write the epoch and the admin URL into the lock, as soon as the lock answers."""
        self._request(lambda: self._announce(epoch, admin))

    @property
    def is_ours(self) -> bool:
        """Return whether the lock was taken, and is neither known to be lost nor released."""
        return self._is_ours

    def seen_alive(self) -> float:
        """Return the monotonic time at which the request to the lock that is still open was sent; if none is open, the
        present time."""
        sent_at = self._sent_at
        return self._threads.monotonic() if sent_at is None else sent_at

    def release(self) -> Future[None]:
        """Release the lock; it is no longer kept alive."""
        self._stop_waiting.set()
        return self._request(self._release)

    def end(self) -> None:
        """Release the lock, and end the thread after that."""
        self.release()
        self._requests.put(None)

    def _request(self, function: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._requests.put(_Request(function, answer))
        return answer

    # ---- the thread

    def _run(self) -> None:
        while True:
            try:
                request = self._requests.get(timeout=self._patience())
            except Empty:
                if self._patience() == 0.0:
                    self._sent_at = self._threads.monotonic()
                    self._keep_alive_or_lose()
                    self._sent_at = None
                continue
            if request is None:
                return
            if not request.answer.set_running_or_notify_cancel():
                continue
            self._sent_at = self._threads.monotonic()
            try:
                request.answer.set_result(request.function())
            except BaseException as error:
                request.answer.set_exception(error)
            finally:
                self._sent_at = None

    def _patience(self) -> float | None:
        """Return the seconds until the next keep-alive; None: none is due."""
        if not self._is_ours or self._locker.settings.lock_keep_alive_period_seconds <= 0:
            return None
        return max(0.0, self._keep_alive_at - self._locker.clock.now())

    def _acquire(self, hands_off_seconds: float, on_lost: Callable[[LockLost], None]) -> bool:
        self._on_lost = on_lost
        clock = self._locker.clock
        between_polls = _BetweenPolls(self, self._stop_waiting)
        until = clock.now() + hands_off_seconds
        while clock.now() < until and self._report_holder() is None:
            if clock.wait(between_polls, HANDS_OFF_INTERVAL_SECONDS):
                return False
        self._holder_read_at = float("-inf")
        self._is_ours = self._locker.acquire(between_polls, self._report_holder_if_due)
        self._keep_alive_at = clock.now() + self._locker.settings.lock_keep_alive_period_seconds
        return self._is_ours

    def _report_holder_if_due(self) -> None:
        if self._locker.clock.now() - self._holder_read_at >= HOLDER_INTERVAL_SECONDS:
            self._report_holder()

    def _report_holder(self) -> Holder | None:
        """Return the holder of the lock, and report it on the loop."""
        self._holder_read_at = self._locker.clock.now()
        try:
            holder, waiters = self._locker.holder(), self._locker.waiters()
            silent_seconds = self._locker.silence_seconds()
        except LockError:  # the next poll reports the error
            return None
        self._call_soon(partial(self._report, holder, waiters, silent_seconds))
        return holder

    def _keep_alive_or_lose(self) -> None:
        """Keep the lock alive. An error of the locker must not end the thread: a lock without keep-alives is lost."""
        try:
            self._keep_alive()
        except Exception as error:
            log.exception("%s: its keep-alive fails", self._locker.where)
            self._lost(LockLost(f"{self._locker.where}: its keep-alive fails: {error!r}"))

    def _keep_alive(self) -> None:
        """Keep the lock alive. If the lock does not answer, it is not lost yet: the store stops when the proof has
        expired."""
        period = self._locker.settings.lock_keep_alive_period_seconds
        self._keep_alive_at = self._locker.clock.now() + period
        try:
            is_ours = self._locker.keep_alive()
            self._logged_reason = ""
            if is_ours and self._announcement is not None:
                self._announce(*self._announcement)
        except (LockUnavailable, LockRefused) as reason:
            if str(reason) != self._logged_reason:
                self._logged_reason = str(reason)
                log.warning("%s", reason, extra=log_events.LOCK_SILENT)
            return
        except LockLost as reason:
            self._lost(reason)
            return
        if not is_ours:
            self._lost(LockLost(f"{self._locker.where} is no longer held by this broker"))
            return
        self._report_holder_if_due()

    def _announce(self, epoch: int, admin: str | None) -> None:
        self._announcement = epoch, admin
        try:
            self._locker.announce(epoch, admin)
        except (LockUnavailable, LockRefused) as reason:
            log.warning("the epoch cannot be announced yet: %s", reason, extra=log_events.LOCK_SILENT)
            return
        except LockLost as reason:
            self._lost(reason)
        self._announcement = None

    def _lost(self, reason: LockLost) -> None:
        self._is_ours = False
        self._call_soon(partial(self._on_lost, reason))

    def _release(self) -> None:
        self._is_ours, self._announcement, self._logged_reason = False, None, ""
        self._locker.release()


class _BetweenPolls:
    """Event for a locker's wait between two polls (locker.contract.Event): no request is open meanwhile."""

    __slots__ = ("_stop", "_thread")

    def __init__(self, thread: LockThread, stop: Event) -> None:
        self._thread = thread
        self._stop = stop

    def is_set(self) -> bool:
        return self._stop.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self._thread._sent_at = None
        try:
            return self._stop.wait(timeout)
        finally:
            self._thread._sent_at = self._thread._threads.monotonic()
