"""Lock, then store, then listeners; lock lost: stop at once, then stand by again, in the same process.

    starting -> standing by -> (lock) -> promoting -> (fence, replay, header, ports) -> master
    master -> (a trouble) -> demoted -> (a pause) -> starting
    master -> (a handover) -> handing over -> starting; the lock is left to the others for a while
    any -> (stop asked) -> ended; a master hands over first

The phases, and what each kind of failure leads to in each, are tables in broker.states. This module decides nothing
about messages. It owns the order of things, the thread that may hang while the store is opened, and the role that
everybody is told.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from broker.lock_thread import LockThread
from broker.service import AnyStandby, AnyStore, Record, Service, unrecorded
from broker.states import (
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
    StorageHung,
    Trouble,
    classify,
)
from broker.vigil import LOOK_SECONDS, Vigil
from locker.contract import Holder, Locker, LockError, LockLost, LockUnavailable
from store.pulse import Pulse
from store.threads import OS_THREADS, Threads

log = logging.getLogger(__name__)

FOLLOW_INTERVAL_SECONDS = 0.1
# After a demotion or a failed promotion: a moment for the other broker, longer each time, with jitter.
BACK_OFF_SECONDS_MIN = 0.2
BACK_OFF_SECONDS_MAX = 10.0
DROP_SECONDS_MAX = 1.0
# A lock whose server or volume hangs is waited for so long when it is let go.
RELEASE_SECONDS_MAX = 2.0
# A lock that is free is had within this; only then it is said that this broker stands by.
FIRST_POLL_SECONDS = 0.05
# A handover waits so long for the checkpoint that it makes before it hangs up on clients.
CHECKPOINT_SECONDS_MAX = 5.0
# A promotion whose thread computes nothing for so long hangs in its volume.
PROMOTION_HUNG_SECONDS = 30.0
# After a handover the lock is the others' to take for so long.
HANDS_OFF_SECONDS = 3.0

T = TypeVar("T")


class Mastership:
    """One broker's life as standby and master. All on the loop, where its attributes may be read any time.

    ``demotions`` counts by trouble. ``holder`` and ``waiters`` are what the lock said of them a moment ago.
    """

    def __init__(
        self,
        locker: Locker,
        open_standby: Callable[[], AnyStandby],
        service: Service,
        *,
        admin_url: str | None,
        on_role: Callable[[Role, str], None],
        record: Record = unrecorded,
        threads: Threads = OS_THREADS,
        chance: random.Random | None = None,
        back_off_seconds_max: float = BACK_OFF_SECONDS_MAX,
        hands_off_seconds: float = HANDS_OFF_SECONDS,
    ) -> None:
        self.phase = Phase.STARTING
        self.reason = ""
        self.store: AnyStore | None = None
        self.standby: AnyStandby | None = None
        self.holder: Holder | None = None
        self.waiters: list[Holder] | None = None
        self.epoch = 0
        self.promotions = 0
        self.handovers = 0
        self.demotions: dict[Trouble, int] = {}
        self._locker = locker
        self._open_standby = open_standby
        self._service = service
        self._admin_url = admin_url
        self._on_role = on_role
        self._record = record
        self._threads = threads
        self._chance = chance or random.Random()
        self._back_off_max = back_off_seconds_max
        self._hands_off_seconds = hands_off_seconds
        self._hands_off = 0.0  # for the next time that it stands by
        self._has_stood = False
        self._stop = asyncio.Event()
        self._handover: asyncio.Future[None] | None = None  # set when one is asked for
        self._asking: list[asyncio.Future[HandedOver]] = []
        self._lost: asyncio.Future[BaseException] | None = None
        self._back_off = BACK_OFF_SECONDS_MIN
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: LockThread | None = None
        self._store_thread = threads.executor(1, "tandemmq-opening")

    @property
    def role(self) -> Role:
        return self.phase.role

    def stop(self) -> None:
        """Ask ``run`` to end in order: a master hands over. On the loop; at once."""
        self._stop.set()
        if self._lock is not None:
            self._lock.stop_waiting()
        if self.standby is not None:
            self.standby.halt()

    async def handover(self) -> HandedOver:
        """Let another broker be master, as a planned stop does, and stand by. Returns when the lock is free.

        What was promised is written and checkpointed before. For ``hands_off_seconds`` the lock is left to the others;
        if none takes it, this broker does again. Raises NotMaster, and whatever trouble comes between.
        """
        if self.phase is not Phase.MASTER or self._handover is None:
            raise NotMaster(f"this broker is {self.phase.value}: {self.reason}")
        if not self._handover.done():
            self._handover.set_result(None)
        asked: asyncio.Future[HandedOver] = asyncio.get_running_loop().create_future()
        self._asking.append(asked)
        return await asked

    async def run(self) -> None:
        """Stand by, be master, stand by again, until ``stop``. Raises what the operator must mend (broker.states)."""
        self._loop = asyncio.get_running_loop()
        await self._service.bind()
        self._lock = LockThread(self._locker, self._threads, self, self._call_soon)
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
            self._store_thread.shutdown(wait=False)
            self._record("ended", reason=self.reason)

    async def _one_life(self, lock: LockThread) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        self.standby = standby = await self._in_store_thread(self._open_standby)
        try:
            if not await self._stand_by(lock, standby):
                return
            store = await self._promote(standby)
            self.standby = None  # what it had, the store has
            await self._be_master(store)
        finally:
            self.store = None
            if self.standby is not None:
                self.standby = None
                await self._in_store_thread(standby.close)
            await self._release(lock)

    async def _answer(self, error: Exception) -> None:
        """Do what the table says; raises ``error`` when that is to end."""
        if self._is_the_end(error):
            raise error
        if self.phase is not Phase.DEMOTED:
            self._demote(error)
        await self._wait_or_stop(self._back_off * self._chance.uniform(0.5, 1.5))
        self._back_off = min(self._back_off * 2, self._back_off_max)
        if not self._stop.is_set():
            self._record("rested")
            self._move(Event.RESTED, "opening the store to stand by")

    def _is_the_end(self, error: BaseException) -> bool:
        return ANSWERS[classify(error)][self._moment()] is Answer.END

    def _demote(self, error: BaseException) -> None:
        """Say that it is over, and why."""
        trouble = classify(error)
        self.demotions[trouble] = self.demotions.get(trouble, 0) + 1
        if trouble in LEAVES_THE_LOCK:
            self._hands_off = self._hands_off_seconds
        self._record("demoted", trouble=trouble.name, reason=str(error))
        self._move(Event.LOST, f"{trouble.value} ({type(error).__name__}: {error})")

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

    async def _stand_by(self, lock: LockThread, standby: AnyStandby) -> bool:
        """Follow the journal until the lock is ours (True) or a stop is asked (False)."""
        started = self._locker.clock.now()
        hands_off, self._hands_off = self._hands_off, 0.0
        acquiring = asyncio.wrap_future(lock.acquire(hands_off))
        if self._stop.is_set():
            lock.stop_waiting()
        await asyncio.wait([acquiring], timeout=FIRST_POLL_SECONDS)
        if not acquiring.done():
            await self._follow_until(acquiring, lock, standby)
        try:
            is_ours = await acquiring
        except LockError:  # only a first poll raises: what it says is the operator's to mend, though it took a while
            self._has_stood = False
            raise
        if not is_ours:
            return False
        self._record(
            "lock-taken",
            waited_seconds=round(self._locker.clock.now() - started, 4),
            refused_at_boot=self._locker.refused_at_seconds,
        )
        return True

    async def _follow_until(self, acquiring: asyncio.Future[bool], lock: LockThread, standby: AnyStandby) -> None:
        stop_following = self._threads.event()

        def follow() -> None:
            while not stop_following.is_set():
                standby.follow()
                stop_following.wait(FOLLOW_INTERVAL_SECONDS)

        following = asyncio.ensure_future(self._in_store_thread(follow))
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            waiting: list[asyncio.Future[Any]] = [acquiring, following, stopping]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            stop_following.set()
            standby.halt()
            if not acquiring.done():  # a standby that cannot follow must not become master by and by
                lock.stop_waiting()
                await asyncio.wait([acquiring], timeout=RELEASE_SECONDS_MAX)
        await following
        if not acquiring.done():  # what it gets when it wakes up is released by the request that stands behind
            raise LockUnavailable(f"{self._locker.where} does not answer")

    def lock_is_held_by(self, holder: Holder | None, waiters: list[Holder] | None) -> None:
        """What the lock thread saw (broker.lock_thread.Listener)."""
        self.waiters = waiters
        if self.phase not in (Phase.STARTING, Phase.STANDBY) or self._stop.is_set():
            return
        if self.phase is Phase.STANDBY and holder == self.holder:
            return
        self.holder = holder
        whom = f"for {holder}" if holder is not None else "while the lock changes hands"
        self._record("standby", holder=None if holder is None else holder.name)
        self._move(Event.LOCK_BUSY, f"standing by {whom}; the lock is {self._locker.where}")

    def lock_is_lost(self, reason: LockLost) -> None:
        """What the lock thread noticed (broker.lock_thread.Listener)."""
        self._on_lost(reason)

    # ---- being master

    async def _promote(self, standby: AnyStandby) -> AnyStore:
        self.holder = None
        self._move(Event.LOCK_TAKEN, "the lock is ours; fencing the journal and reading its end")
        locker = self._locker
        now = locker.clock.now

        def has_proof() -> bool:
            return locker.proof().holds_at(now())

        assert self._loop is not None, "a promotion runs on the loop"
        call_later_this_turn = self._loop.call_soon
        pulses: list[Pulse] = []
        started = self._threads.monotonic()

        def promote() -> AnyStore:
            pulses.append(Pulse(self._threads, self._threads.native_id()))
            return standby.promote(
                has_proof=has_proof,
                call_soon=self._call_soon,
                call_later_this_turn=call_later_this_turn,
                on_lost=self._on_lost,
                told=self._record,
            )

        # Who has the lock and does not get on keeps everybody from being master: a volume may hang for us alone.
        async with self._watched(
            lambda: pulses[0].seen_busy() if pulses else started, lambda: None, PROMOTION_HUNG_SECONDS
        ):
            store = await self._in_store_thread(promote)
        self.epoch = store.epoch
        self._record(
            "store-open",
            epoch=store.epoch,
            records=store.records_replayed,
            recovery_seconds=round(store.recovery_seconds, 4),
        )
        return store

    async def _be_master(self, store: AnyStore) -> None:
        assert self._lost is not None, "a master can lose what it has"
        self.store = store
        self._handover = asyncio.get_running_loop().create_future()
        try:
            if self._lost.done():
                raise self._lost.result()
            await self._serve(store)
            await self._until_over(self._lost, self._handover)
            await self._checkpoint_first(store)
            if self._lost.done():
                raise self._lost.result()
        except BaseException as error:
            self._record("lost", trouble=classify(error).name, reason=str(error))
            store.halt()
            if not self._is_the_end(error):
                self._demote(error)  # said at once: letting everything go may take a while
            await self._service.abort()
            await self._in_store_thread(lambda: store.drop(DROP_SECONDS_MAX))
            self._handover = None
            self._tell_who_asked(NotMaster(f"the handover came to nothing: {error}"))
            raise
        await self._hand_over(store)

    async def _serve(self, store: AnyStore) -> None:
        assert self._lock is not None, "a master has a lock"
        # Not waited for: clients are, and a lock that is slow to take our name is ours all the same.
        self._lock.announce(store.epoch, self._admin_url)
        await self._service.serve(store)
        self.promotions += 1
        self._back_off = BACK_OFF_SECONDS_MIN
        self._record("master", epoch=store.epoch)
        self._move(
            Event.SERVING,
            f"master of epoch {store.epoch}; {store.records_replayed} records read in {store.recovery_seconds:.3f} s",
        )

    async def _until_over(self, lost: asyncio.Future[BaseException], asked: asyncio.Future[None]) -> None:
        """Serve until a handover or a stop is asked for; raises what is lost before."""
        assert self.store is not None, "a master has a store"
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            async with self._watched(self.store.seen_alive, self.store.halt):
                waiting: list[asyncio.Future[Any]] = [lost, asked, stopping]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if lost.done():
            raise lost.result()

    async def _hand_over(self, store: AnyStore) -> None:
        """Finish what was begun, make a checkpoint, let the lock go: in this order, since the lock goes last."""
        assert self._lock is not None, "a master has a lock"
        started = self._threads.monotonic()
        self._record("draining")
        self._move(Event.HANDOVER_ASKED, "handing over")
        try:
            await self._service.finish()
            self._record("drained")
            await self._in_store_thread(store.close)
            self._record("store-closed")
            await self._release(self._lock)
        except BaseException as error:
            self._tell_who_asked(NotMaster(f"the handover came to nothing: {error}"))
            raise
        seconds = self._threads.monotonic() - started
        self._record("lock-released", seconds=round(seconds, 4))
        self.handovers += 1
        self._tell_who_asked(HandedOver(store.epoch, seconds))
        reason = f"handed over in {seconds:.3f} s"
        if self._stop.is_set():
            self._move(Event.STOP_ASKED, reason)
        else:
            self._hands_off = self._hands_off_seconds
            self._move(Event.LET_GO, f"{reason}; the lock is left to the others for {self._hands_off:g} s")

    async def _checkpoint_first(self, store: AnyStore) -> None:
        """While clients are still served: the last checkpoint, for which they wait, then has little to do."""
        self._record("handover-asked", reason="stop" if self._stop.is_set() else "asked for")
        done = [asyncio.wrap_future(each) for each in store.checkpoint()]
        await asyncio.wait(done, timeout=CHECKPOINT_SECONDS_MAX)

    def _tell_who_asked(self, outcome: HandedOver | NotMaster) -> None:
        asking, self._asking = self._asking, []
        for asked in asking:
            if asked.done():
                continue  # who asked is gone
            if isinstance(outcome, HandedOver):
                asked.set_result(outcome)
            else:
                asked.set_exception(outcome)

    def _on_lost(self, reason: BaseException) -> None:
        """The store must not go on (on the loop). From this moment nobody is told anything."""
        if self._lost is not None and not self._lost.done():
            if self.store is not None:
                self.store.halt()
            self._lost.set_result(reason)

    # ---- when a thread hangs

    @asynccontextmanager
    async def _watched(
        self, storage_seen_alive: Callable[[], float], halt: Callable[[], None], seconds_min: float | None = None
    ) -> AsyncIterator[None]:
        """Somebody watches over the loop and a thread meanwhile; ``halt`` is called, on any thread, if one hangs."""

        def loop_hung(reason: LoopHung) -> None:
            """On the thread of the vigil: what the loop cannot do is done without it."""
            halt()
            self._service.cut()
            if self._lock is not None:
                self._lock.release()
            self._record("cut", reason=str(reason))
            log.error("%s: its clients are cut off and the lock is let go", reason)
            self._call_soon(lambda: self._on_lost(reason))

        vigil = Vigil(
            self._threads,
            storage_seen_alive,
            lambda: self._locker.proof().valid_for_seconds,
            hung_seconds_min=seconds_min,
            on_loop_hung=loop_hung,
            on_storage_hung=lambda reason: self._call_soon(lambda: self._storage_hung(reason)),
        )
        living = asyncio.create_task(_show_life(vigil), name="signs of life")
        try:
            yield
        finally:
            vigil.end()
            living.cancel()

    def _storage_hung(self, reason: StorageHung) -> None:
        """The loop is well. A promotion cannot be given up while its thread hangs, but its lock can."""
        self._on_lost(reason)
        if self.phase is Phase.PROMOTING and self._lock is not None:
            log.error("%s: the lock is let go", reason)
            self._lock.release()

    # ---- steps

    async def _release(self, lock: LockThread) -> None:
        released = asyncio.wrap_future(lock.release())
        done, _ = await asyncio.wait([released], timeout=RELEASE_SECONDS_MAX)
        if not done:
            log.error("%s does not answer: it is let go when it does", self._locker.where)

    async def _wait_or_stop(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            pass

    def _move(self, event: Event, reason: str) -> None:
        phase = TRANSITIONS.get((self.phase, event))
        assert phase is not None, f"{event.name} cannot happen to a broker that is {self.phase.value}"
        self.phase, self.reason = phase, reason
        self._has_stood = self._has_stood or phase in (Phase.STANDBY, Phase.MASTER)
        self._on_role(phase.role, reason)

    def _call_soon(self, function: Callable[[], None]) -> None:
        """Have a function called on the loop. Any thread."""
        assert self._loop is not None, "nothing runs before the loop does"
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # a thread that hung in the volume woke up when the loop had ended: nobody listens
            if not self._loop.is_closed():
                raise

    def _in_store_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._store_thread, function)


async def _show_life(vigil: Vigil) -> None:
    while True:
        vigil.loop_is_alive()
        await asyncio.sleep(LOOK_SECONDS)
