"""Life of a broker: first the lock, then the store, then the listeners. A broker that loses the lock stops at once and
becomes a standby again, in the same process.

    starting -> standing by -> (lock) -> promoting -> (fence, replay, header, ports) -> master
    master -> (a trouble) -> demoted -> (a pause) -> starting
    master -> (a handover) -> handing over -> starting; this broker does not take the lock for a while
    any -> (stop requested) -> ended; a master hands over first

The phases, and the effect of each kind of failure in each phase, are tables in broker.ha.states; each wait and its
bound is a row of broker.ha.waits. This module decides nothing about messages. It owns the order of steps, and the role
that the broker reports.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

from tandemmq import log_events
from tandemmq.broker.ha.lock_thread import LockThread
from tandemmq.broker.ha.service import AnyStandby, AnyStore, Record, Service, unrecorded
from tandemmq.broker.ha.stall_detector import loop_watched
from tandemmq.broker.ha.states import (
    ANSWERS,
    LEAVES_THE_LOCK,
    TRANSITIONS,
    Answer,
    Event,
    HandedOver,
    LoopHung,
    Moment,
    NotMaster,
    Phase,
    Role,
    ServiceHung,
    StorageHung,
    Trouble,
    classify,
)
from tandemmq.broker.ha.volume_thread import VolumeThread
from tandemmq.broker.ha.waits import BOUNDS, Bound, Wait
from tandemmq.locker.contract import Holder, Locker, LockError, LockUnavailable
from tandemmq.modes import whose
from tandemmq.store.threads import OS_THREADS, Threads

log = logging.getLogger(__name__)

FOLLOW_INTERVAL_SECONDS = 0.1
# Pause after a demotion or a failed promotion, in which the other broker can become master. Each pause is longer, with
# jitter.
BACK_OFF_SECONDS_MIN = 0.2
BACK_OFF_SECONDS_MAX = 10.0
# A free lock is taken within this time. After this time, the broker reports that it is a standby.
FIRST_POLL_SECONDS = 0.05
# Interval at which signs of life are checked.
POLL_SECONDS = 0.5
# Time for which the lock is left to the others after a handover.
HANDS_OFF_SECONDS = 3.0

T = TypeVar("T")


class Mastership:
    """Life of a broker as standby and master. All methods run on the loop. Attributes may be read there at any
    time.

    ``demotions``: trouble -> number of demotions. ``holder`` and ``waiters``: result of the last read of the lock.
    ``holder_silent_seconds``: for how long the holder had shown no sign of life at that read; None: the holder is not
    silent, or this kind of lock has no signs of life.
    """

    def __init__(
        self,
        locker: Locker,
        open_standby: Callable[[], AnyStandby],
        service: Service,
        *,
        on_role: Callable[[Role, str], None],
        record: Record = unrecorded,
        threads: Threads = OS_THREADS,
        chance: random.Random | None = None,
        back_off_seconds_max: float = BACK_OFF_SECONDS_MAX,
        hands_off_seconds: float = HANDS_OFF_SECONDS,
        bounds: Mapping[Wait, Bound] = BOUNDS,
    ) -> None:
        self.phase = Phase.STARTING
        self.store: AnyStore | None = None
        self.standby: AnyStandby | None = None
        self.holder: Holder | None = None
        self.waiters: list[Holder] | None = None
        self.holder_silent_seconds: float | None = None
        self.epoch = 0
        self.promotions = 0
        self.handovers = 0
        self.demotions: dict[Trouble, int] = {}
        self.trouble: Trouble | None = None  # the last one that led to a demotion
        self._reason = ""
        self._locker = locker
        self._open_standby = open_standby
        self._service = service
        self._on_role = on_role
        self._record = record
        self._threads = threads
        self._chance = chance or random.Random()
        self._back_off_max = back_off_seconds_max
        self._hands_off_seconds = hands_off_seconds
        self._bounds = bounds
        self._hands_off = 0.0  # seconds; for the next time that this broker stands by
        self._has_stood = False
        self._stop = asyncio.Event()
        self._handover: asyncio.Future[None] | None = None  # set when a handover is requested
        self._requests: list[asyncio.Future[HandedOver]] = []
        self._lost: asyncio.Future[BaseException] | None = None
        self._back_off = BACK_OFF_SECONDS_MIN
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: LockThread | None = None
        self._life: VolumeThread | None = None
        self._overdue: asyncio.Future[None] | None = None  # a release that has no answer yet

    @property
    def role(self) -> Role:
        return self.phase.role

    @property
    def reason(self) -> str:
        """Sentence that explains the phase."""
        silence = self.holder_silent_seconds
        return self._reason if silence is None else f"{self._reason}; the holder has been silent for {silence:.0f} s"

    # ---- signs of life

    def storage_seen_alive(self) -> float:
        """Return the last sign of life, on the monotonic clock, of the thread on the volume that was silent longest;
        without such a thread, the present time."""
        now = self._threads.monotonic()
        store, life = self.store, self._life
        return min(now if store is None else store.seen_alive(), now if life is None else life.seen_alive())

    def lock_seen_alive(self) -> float:
        """Return when the unanswered request to the lock was sent; without one, the present time."""
        return self._threads.monotonic() if self._lock is None else self._lock.seen_alive()

    @property
    def is_release_overdue(self) -> bool:
        """Return whether the release of the lock was not answered in time: this broker may hold the lock as long as
        this process lives."""
        return self._overdue is not None and not self._overdue.done()

    def stop(self) -> None:
        """Request an orderly end of ``run``: a master hands over. Runs on the loop; returns at once."""
        self._stop.set()
        if self._lock is not None:
            self._lock.stop_waiting()
        if self.standby is not None:
            self.standby.halt()

    async def handover(self) -> HandedOver:
        """Make another broker master, as a planned stop does, and become a standby. Returns when the lock is free.

        Confirmed operations are written and checkpointed before. For ``hands_off_seconds`` the lock is left to the
        others; if none takes it, this broker does again. Raises NotMaster, or the trouble that prevents the handover.
        """
        if self.phase is not Phase.MASTER or self._handover is None:
            raise NotMaster(f"this broker is {self.phase.value}: {self.reason}")
        if not self._handover.done():
            self._handover.set_result(None)
        request: asyncio.Future[HandedOver] = asyncio.get_running_loop().create_future()
        self._requests.append(request)
        return await request

    async def run(self) -> None:
        """Run as standby, then as master, then as standby again, until ``stop``. Raises the errors that the operator
        must repair (broker.ha.states)."""
        self._loop = asyncio.get_running_loop()
        await self._service.bind()
        self._lock = LockThread(self._locker, self._threads, self._lock_is_held_by, self._call_soon)
        self._record("started")
        try:
            while not self._stop.is_set():
                try:
                    await self._one_life(self._lock)
                except Exception as error:
                    await self._answer(error)
            if self.phase is not Phase.ENDED:
                self._move(Event.STOP_ASKED, "ended before it was master")
        finally:
            self._lock.end()
            self._record("ended", reason=self.reason)

    async def _one_life(self, lock: LockThread) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        self._life = life = VolumeThread(self._threads, self._call_soon)
        async with self._loop_watched(lock, life):
            try:
                self.standby = standby = await self._open(life)
                if standby is None or not await self._stand_by(lock, life, standby):
                    return
                store = await self._promote(life, standby)
                self.store, self.standby = store, None  # the store took over the open files of the standby
                began = await self._be_master(life, store)
            finally:
                await self._let_go(lock, life)
        self._handed_over(store, began)

    async def _open(self, life: VolumeThread) -> AnyStandby | None:
        """Open the standby. None: a stop was requested. This broker holds no lock then, so a hung volume may take any
        time."""
        opening = life.do(self._open_standby, close_by=lambda standby: standby.close)
        return opening.result() if await self._unless_stopped(opening) else None

    async def _let_go(self, lock: LockThread, life: VolumeThread) -> None:
        """Release the store, and then the lock; a thread or lock that hangs is left behind."""
        life.leave()
        self.store = self.standby = None
        if not await self._in_time(Wait.DROP, life.has_ended.wait()):
            log.error(
                "a call to the volume hangs: open files are closed only when it returns",
                extra=log_events.VOLUME_HANGS,
            )
        releasing = asyncio.wrap_future(lock.release())
        if not await self._in_time(Wait.RELEASE, releasing):
            self._overdue = releasing
            log.error(
                "%s does not answer: the lock is released when it answers, or when this process ends",
                self._locker.where,
                extra=log_events.LOCK_NOT_RELEASED,
            )
            self._record("lock-not-released")

    async def _answer(self, error: Exception) -> None:
        """Apply the answer of the table. Raises ``error`` if the answer is END."""
        if self._is_the_end(error):
            raise error
        if self.phase is not Phase.DEMOTED:
            self._demote(error)
        pause = self._back_off * self._chance.uniform(0.5, 1.5)
        self._back_off = min(self._back_off * 2, self._back_off_max)
        await self._unless_stopped(asyncio.sleep(pause))
        # Two lives of one broker never use one volume at the same time.
        if self._life is not None:
            await self._unless_stopped(self._life.has_ended.wait())
        if not self._stop.is_set():
            self._record("rested")
            self._move(Event.RESTED, "opening the store as standby")

    def _is_the_end(self, error: BaseException) -> bool:
        return ANSWERS[classify(error)][self._moment()] is Answer.END

    def _demote(self, error: BaseException) -> None:
        """Report the end of this life, and the reason."""
        self.trouble = trouble = classify(error)
        self.demotions[trouble] = self.demotions.get(trouble, 0) + 1
        if trouble in LEAVES_THE_LOCK:
            self._hands_off = self._hands_off_seconds
        self._record("demoted", trouble=trouble.name, reason=str(error))
        owner = whose(error) if isinstance(error, OSError) else ""
        self._move(Event.LOST, f"{trouble.value} ({type(error).__name__}: {error}{owner})")

    def _moment(self) -> Moment:
        match self.phase:
            case Phase.STARTING | Phase.STANDBY | Phase.PROMOTING if not self._has_stood:
                return Moment.START
            case Phase.PROMOTING:
                return Moment.PROMOTION
            case Phase.MASTER:
                return Moment.MASTER
            case Phase.HANDING_OVER:
                return Moment.HANDOVER
            case _:
                return Moment.STANDBY

    # ---- standing by

    async def _stand_by(self, lock: LockThread, life: VolumeThread, standby: AnyStandby) -> bool:
        """Follow the journal until this broker has the lock (True) or a stop is requested (False)."""
        started = self._locker.clock.now()
        hands_off, self._hands_off = self._hands_off, 0.0
        acquiring = asyncio.wrap_future(lock.acquire(hands_off, partial(self._on_lost, life)))
        if self._stop.is_set():
            lock.stop_waiting()
        await asyncio.wait([acquiring], timeout=FIRST_POLL_SECONDS)
        if not acquiring.done():
            await self._follow_until(acquiring, lock, life, standby)
        try:
            is_ours = await acquiring
        except LockError:  # raised only by the first poll, even a late one: the operator must repair the cause
            self._has_stood = False
            raise
        if not is_ours or self._stop.is_set():
            return False
        self._record(
            "lock-taken",
            waited_seconds=round(self._locker.clock.now() - started, 4),
            refused_at_boot=self._locker.refused_at_seconds,
        )
        return True

    async def _follow_until(
        self, acquiring: asyncio.Future[bool], lock: LockThread, life: VolumeThread, standby: AnyStandby
    ) -> None:
        stop_following = self._threads.event()

        def follow() -> None:
            while not stop_following.is_set():
                standby.follow()
                stop_following.wait(FOLLOW_INTERVAL_SECONDS)

        following = life.do(follow)
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            waiting: list[asyncio.Future[Any]] = [acquiring, following, stopping]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            stop_following.set()
            standby.halt()
            if not acquiring.done():  # a standby that cannot follow must not become master later
                lock.stop_waiting()
                await self._in_time(Wait.RELEASE, acquiring)
        if following.done() or not self._stop.is_set():
            await self._within(Wait.FOLLOW, following, life.seen_alive, StorageHung)
        if not acquiring.done():  # if the thread gets the lock later, the queued request releases it
            raise LockUnavailable(f"{self._locker.where} does not answer")

    def _lock_is_held_by(
        self, holder: Holder | None, waiters: list[Holder] | None, silent_seconds: float | None
    ) -> None:
        """Note the holder and the waiters of the lock."""
        self.waiters = waiters
        if self.phase not in (Phase.STARTING, Phase.STANDBY) or self._stop.is_set():
            return
        if self.phase is not Phase.STANDBY or holder != self.holder:
            self.holder = holder
            whom = f"for {holder}" if holder is not None else "while the lock changes hands"
            self._record("standby", holder=None if holder is None else holder.name)
            self._move(Event.LOCK_BUSY, f"standing by {whom}; the lock is {self._locker.where}")
        self._note_silence(silent_seconds)

    def _note_silence(self, seconds: float | None) -> None:
        """Log the silence of a holder that keeps the lock but may be stopped or hang: only the operator decides whether
        to end it."""
        before, self.holder_silent_seconds = self.holder_silent_seconds, seconds
        if before is None and seconds is not None:
            self._record("holder-silent", seconds=round(seconds, 1))
            log.warning(
                "the holder of the lock, %s, has been silent for %.0f s and keeps the lock: it is stopped, or hangs. "
                "When its process ends, this broker takes over",
                self.holder,
                seconds,
                extra=log_events.HOLDER_SILENT,
            )
        elif before is not None and seconds is None:
            self._record("holder-heard", seconds=round(before, 1))
            log.warning(
                "the holder of the lock, %s, shows life again, after %.0f s",
                self.holder,
                before,
                extra=log_events.HOLDER_HEARD,
            )

    # ---- being master

    async def _promote(self, life: VolumeThread, standby: AnyStandby) -> AnyStore:
        self.holder = None
        self._move(Event.LOCK_TAKEN, "this broker has the lock; fencing the journal and reading its end")
        locker = self._locker
        now = locker.clock.now
        loop = asyncio.get_running_loop()

        def has_proof() -> bool:
            """Return whether the proof is valid. A life that has ended may see the proof of a later life."""
            return not life.is_over and locker.proof().holds_at(now())  # prove: proof-of-this-life

        def promote() -> AnyStore:
            return standby.promote(
                has_proof=has_proof,
                call_soon=self._call_soon,
                call_later=loop.call_later,
                on_lost=partial(self._on_lost, life),
                on_step=self._record,
            )

        promoting = life.do(promote, close_by=lambda store: store.drop, seen_alive=standby.seen_busy)
        # A broker that has the lock and makes no progress prevents all others from becoming master, although the volume
        # may hang only here.
        store = await self._within(Wait.PROMOTE, promoting, life.seen_alive, StorageHung)
        self.epoch = store.epoch
        self._record(
            "store-open",
            epoch=store.epoch,
            records=store.records_replayed,
            recovery_seconds=round(store.recovery_seconds, 4),
        )
        return store

    async def _be_master(self, life: VolumeThread, store: AnyStore) -> float:
        """Serve until all but the lock is handed over. Return the time when the handover began. Raises the error if the
        lock or the store is lost before."""
        self._handover = asyncio.get_running_loop().create_future()
        try:
            await self._serve(store)
            await self._until_over(store, self._handover)
            return await self._hand_over(life, store)
        except BaseException as error:
            self._record("lost", trouble=classify(error).name, reason=str(error))
            life.halt()
            store.halt()
            if not self._is_the_end(error):
                self._demote(error)  # reported at once: releasing everything may take a while
            try:
                async with asyncio.timeout(self._bounds[Wait.ABORT].seconds):
                    await self._service.abort()  # not by a task: it must close the connections in this turn of the loop
            except TimeoutError:
                log.error("the clients were not disconnected in time")
            self._answer_handovers(NotMaster(f"the handover failed: {error}"))
            raise
        finally:
            self._handover = None

    async def _serve(self, store: AnyStore) -> None:
        assert self._lock is not None, "a master has a lock"
        # Not awaited, because clients wait: the lock is held even if the name is written to it late.
        self._lock.announce(store.epoch, self._locker.request.holder.admin)
        serving = asyncio.ensure_future(self._service.serve(store))
        if not await self._in_time(Wait.SERVE, serving):
            serving.cancel()
            raise ServiceHung(f"not done in {self._bounds[Wait.SERVE].seconds:g} s: {Wait.SERVE.value}")
        serving.result()
        self.promotions += 1
        self._back_off = BACK_OFF_SECONDS_MIN
        self._record("master", epoch=store.epoch)
        self._move(
            Event.SERVING,
            f"master of epoch {store.epoch}; {store.records_replayed} records read in {store.recovery_seconds:.3f} s",
        )

    async def _until_over(self, store: AnyStore, requested: asyncio.Future[None]) -> None:
        """Serve until a handover or a stop is requested, and a checkpoint is made. Raises the error if the lock or the
        store is lost before."""

        async def serve() -> None:
            await self._unless_stopped(requested)
            # A checkpoint while clients are still served leaves little work for the last one, for which clients wait.
            self._record("handover-asked", reason="stop" if self._stop.is_set() else "asked for")
            done = [asyncio.wrap_future(each) for each in store.checkpoint()]
            await self._in_time(Wait.CHECKPOINT, asyncio.wait(done))

        await self._within(Wait.STORAGE, serve(), store.seen_alive, StorageHung)

    async def _hand_over(self, life: VolumeThread, store: AnyStore) -> float:
        """Finish the work in progress and make a checkpoint; the lock is released after that. Return the time when the
        handover began."""
        began = self._threads.monotonic()
        self._record("draining")
        self._move(Event.HANDOVER_ASKED, "handing over")
        await self._within(Wait.FINISH, self._service.finish(), None, ServiceHung)
        self._record("drained")
        closing = life.do(store.close, seen_alive=store.seen_alive)
        await self._within(Wait.CLOSE, closing, store.seen_alive, StorageHung)
        self._record("store-closed")
        return began

    def _handed_over(self, store: AnyStore, began: float) -> None:
        """Report the handover after the lock is released."""
        seconds = self._threads.monotonic() - began
        if self.is_release_overdue:
            self._answer_handovers(NotMaster(f"the store is handed over, but {self._locker.where} does not answer"))
        else:
            self._record("lock-released", seconds=round(seconds, 4))
            self.handovers += 1
            self._answer_handovers(HandedOver(store.epoch, seconds))
        reason = f"handed over in {seconds:.3f} s"
        if self._stop.is_set():
            self._move(Event.STOP_ASKED, reason)
        else:
            self._hands_off = self._hands_off_seconds
            self._move(Event.LET_GO, f"{reason}; this broker does not take the lock for {self._hands_off:g} s")

    def _answer_handovers(self, outcome: HandedOver | NotMaster) -> None:
        requests, self._requests = self._requests, []
        for request in requests:
            if request.done():
                continue  # the caller has given up
            if isinstance(outcome, HandedOver):
                request.set_result(outcome)
            else:
                request.set_exception(outcome)

    def _on_lost(self, life: VolumeThread, reason: BaseException) -> None:
        """Stop the store of this life (on the loop). From this moment no client receives anything."""
        if life is self._life and self._lost is not None and not self._lost.done():
            if self.store is not None:
                self.store.halt()  # prove: lost-store-is-halted
            self._lost.set_result(reason)

    # ---- waits and hangs

    async def _within(
        self,
        wait: Wait,
        work: asyncio.Future[T] | Coroutine[Any, Any, T],
        seen_alive: Callable[[], float] | None,
        hung: Callable[[str], Exception],
    ) -> T:
        """Return the result of ``work``. Raises the error if the lock or the store is lost meanwhile, and ``hung`` at
        the bound of this wait.

        ``seen_alive`` returns the last sign of life of the working threads; None: the work is on the loop.
        """
        assert self._lost is not None, "a waiting life has begun"
        bound, lost = self._bounds[wait], self._lost
        working = asyncio.ensure_future(work)
        began = self._threads.monotonic()
        try:
            while not working.done() and not lost.done():
                now = self._threads.monotonic()
                silence_max = bound.silence_seconds(self._locker.proof().valid_for_seconds)
                if bound.seconds is not None and now - began >= bound.seconds:
                    raise hung(f"not done in {bound.seconds:g} s: {wait.value}")
                if silence_max is not None and seen_alive is not None and now - seen_alive() >= silence_max:
                    raise hung(f"no sign of life for {now - seen_alive():.1f} s: {wait.value}")
                interval = min(
                    [POLL_SECONDS, *[limit / 4 for limit in (bound.seconds, silence_max) if limit is not None]]
                )
                waiting: list[asyncio.Future[Any]] = [working, lost]
                await asyncio.wait(waiting, timeout=interval, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise lost.result()
            return working.result()
        finally:
            working.cancel()

    async def _in_time(self, wait: Wait, work: asyncio.Future[Any] | Coroutine[Any, Any, Any]) -> bool:
        """Return whether the work was done, or failed, within the bound of this wait. At the bound, a future continues
        and a coroutine is cancelled."""
        working = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([working], timeout=self._bounds[wait].seconds)
        if not done and working is not work:
            working.cancel()
        return bool(done)

    async def _unless_stopped(self, work: asyncio.Future[Any] | Coroutine[Any, Any, Any]) -> bool:
        """Return whether the work was done, or failed, before a stop was requested. Otherwise a future continues, a
        coroutine is cancelled."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
            return working.done()
        finally:
            stopping.cancel()
            if working is not work:
                working.cancel()

    def _loop_watched(self, lock: LockThread, life: VolumeThread) -> AbstractAsyncContextManager[None]:
        """Return a context in which a detector watches over the loop."""

        def on_hung(reason: LoopHung) -> None:
            """Stop this life, on the detector's thread, without the loop."""
            life.halt()
            store = self.store
            if store is not None:
                store.halt()
            self._service.cut()
            lock.release()
            self._record("cut", reason=str(reason))
            log.error("%s: its clients are disconnected and the lock is released", reason, extra=log_events.LOOP_HUNG)
            self._call_soon(partial(self._on_lost, life, reason))

        def silence_seconds_max() -> float:
            proof_seconds = self._locker.proof().valid_for_seconds
            wait = Wait.BEGIN if self.phase is Phase.PROMOTING else Wait.LOOP
            return self._bounds[wait].silence_seconds(proof_seconds) or POLL_SECONDS

        return loop_watched(self._threads, silence_seconds_max, lambda: lock.is_ours, on_hung)

    # ---- steps

    def _move(self, event: Event, reason: str) -> None:
        phase = TRANSITIONS.get((self.phase, event))
        assert phase is not None, f"{event.name} cannot happen to a broker that is {self.phase.value}"
        self.phase, self._reason, self.holder_silent_seconds = phase, reason, None
        self._has_stood = self._has_stood or phase in (Phase.STANDBY, Phase.MASTER)
        self._on_role(phase.role, reason)

    def _call_soon(self, function: Callable[[], None]) -> None:
        """Call a function on the loop. Any thread."""
        assert self._loop is not None, "nothing runs before the loop does"
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # a thread that hung in the volume woke up after the loop had ended: there is no listener
            if not self._loop.is_closed():
                raise
