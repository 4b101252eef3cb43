"""Lock, then store, then listeners; lock lost: stop at once, then stand by again, in the same process.

    starting -> standby -> (lock) -> starting -> (fence, replay, header) -> master
    master -> (lock, store or proof lost) -> demoted -> standby
    any -> (stop asked) -> the end; a master writes what is waiting, checkpoints, and lets the lock go last

This module decides nothing about messages. It owns the order of things, the two threads that may hang in a volume
(one for the lock, one for the store while it is opened), and the role that everybody is told.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, Protocol, TypeVar

from index.errors import IndexTrouble
from journal.errors import Deposed, FenceTaken, JournalFailed
from locker.contract import Holder, Locker, LockLost, LockUnavailable
from store.several.standbys import SeveralStandbys
from store.several.stores import SeveralStores
from store.standby import Standby
from store.store import Store

log = logging.getLogger(__name__)

FOLLOW_INTERVAL_SECONDS = 0.1
# After a demotion or a failed promotion: a moment for the other broker, longer each time, with jitter.
BACK_OFF_SECONDS_MIN = 0.2
BACK_OFF_SECONDS_MAX = 10.0
HOLDER_INTERVAL_SECONDS = 1.0
DROP_SECONDS_MAX = 1.0
# A lock that is free is had within this; only then it is said that this broker stands by.
FIRST_POLL_SECONDS = 0.05

T = TypeVar("T")

# One store, or several with the face of one.
AnyStore = Store | SeveralStores
AnyStandby = Standby | SeveralStandbys


class Role(Enum):
    """What a broker is; the values are those of ``tandemmq status``."""

    STARTING = "starting"
    STANDBY = "standby"
    MASTER = "master"
    DEMOTED = "demoted"


class Service(Protocol):
    """What a master does with its store: the engine and the listeners. All on the loop."""

    async def bind(self) -> None:
        """Take the addresses without listening. OSError names a wrong one."""
        ...

    async def serve(self, store: AnyStore) -> None:
        """Begin to serve clients from ``store``."""
        ...

    async def abort(self) -> None:
        """Hang up at once: nothing is written any more."""
        ...

    async def finish(self) -> None:
        """Take no more clients; what is being answered is answered, within a bound."""
        ...


class Mastership:
    """One broker's life as standby and master. All on the loop, where its attributes may be read any time."""

    def __init__(
        self,
        locker: Locker,
        open_standby: Callable[[], AnyStandby],
        service: Service,
        *,
        admin_url: str | None,
        on_role: Callable[[Role, str], None],
    ) -> None:
        self.role = Role.STARTING
        self.reason = ""
        self.store: AnyStore | None = None
        self.holder: Holder | None = None
        self.epoch = 0
        self.promotions = 0
        self.standby: AnyStandby | None = None
        self._locker = locker
        self._open_standby = open_standby
        self._service = service
        self._admin_url = admin_url
        self._on_role = on_role
        self._has_stood = False
        self._stop = asyncio.Event()
        self._stop_waiting = threading.Event()
        self._lost: asyncio.Future[BaseException] | None = None
        self._back_off = BACK_OFF_SECONDS_MIN
        # One thread for the lock and one for the store: either may hang in a dead volume without the other.
        self._lock_thread = ThreadPoolExecutor(1, "tandemmq-lock")
        self._store_thread = ThreadPoolExecutor(1, "tandemmq-opening")

    def stop(self) -> None:
        """Ask ``run`` to end in order: a master hands over. On the loop; at once."""
        self._stop.set()
        self._stop_waiting.set()
        if self.standby is not None:
            self.standby.halt()

    async def run(self) -> None:
        """Stand by, be master, stand by again, until ``stop``. Raises what the operator must mend: LockHeld when
        fail_if_locked, LockUnavailable at the first poll, OSError of an address or a directory at start."""
        await self._service.bind()
        try:
            while not self._stop.is_set():
                try:
                    await self._one_life()
                except (Deposed, FenceTaken) as reason:
                    log.warning("promotion given up, another broker came first: %s", reason)
                    await self._demoted(str(reason))
                except (OSError, IndexTrouble, JournalFailed, LockLost, LockUnavailable) as reason:
                    if not self._has_stood:
                        raise
                    log.error("the store cannot be had: %s", reason)
                    await self._demoted(str(reason))
        finally:
            self._lock_thread.shutdown(wait=False)
            self._store_thread.shutdown(wait=False)

    async def _one_life(self) -> None:
        self.standby = standby = await self._in_store_thread(self._open_standby)
        keeping: asyncio.Task[None] | None = None
        try:
            if not await self._stand_by(standby):
                return
            self._lost = asyncio.get_running_loop().create_future()
            keeping = asyncio.create_task(self._keep_alive(), name="keep-alive")
            store = await self._promote(standby)
            self.standby = None  # what it had, the store has
            await self._be_master(store)
        finally:
            if keeping is not None:
                keeping.cancel()
            if self.standby is not None:
                self.standby = None
                await self._in_store_thread(standby.close)
            self._lost = None
            self.store = None
            await self._in_lock_thread(self._locker.release)

    # ---- standing by

    async def _stand_by(self, standby: AnyStandby) -> bool:
        """Follow the journal until the lock is ours (True) or a stop is asked (False)."""
        stop_following = threading.Event()

        def follow() -> None:
            while not stop_following.is_set():
                standby.follow()
                stop_following.wait(FOLLOW_INTERVAL_SECONDS)

        acquiring = asyncio.ensure_future(self._in_lock_thread(lambda: self._locker.acquire(self._stop_waiting)))
        await asyncio.wait([acquiring], timeout=FIRST_POLL_SECONDS)
        if acquiring.done():
            return await acquiring
        following = asyncio.ensure_future(self._in_store_thread(follow))
        telling = asyncio.create_task(self._tell_holder(), name="holder")
        try:
            waiting: list[asyncio.Future[Any]] = [acquiring, following]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop_following.set()
            standby.halt()
            telling.cancel()
            if not acquiring.done():  # a standby that cannot follow must not become master by and by
                self._stop_waiting.set()
            is_mine = await acquiring
            if not self._stop.is_set():
                self._stop_waiting.clear()
        await following
        return is_mine

    async def _tell_holder(self) -> None:
        """Say for whom we stand by, and again when that changes."""
        loop = asyncio.get_running_loop()
        said: Holder | str | None = "nothing"
        while True:
            try:
                # The lock thread is busy polling; to look who holds the lock is a read of its own.
                self.holder = await loop.run_in_executor(None, self._locker.holder)
            except LockUnavailable:
                self.holder = None
            if self.holder != said:
                said = self.holder
                whom = f"for {self.holder}" if self.holder is not None else "while the lock changes hands"
                self._become(Role.STANDBY, f"standing by {whom}; the lock is {self._locker.where}")
            await asyncio.sleep(HOLDER_INTERVAL_SECONDS)

    # ---- being master

    async def _promote(self, standby: AnyStandby) -> AnyStore:
        loop = asyncio.get_running_loop()
        self.holder = None
        self._become(Role.STARTING, "the lock is ours; fencing the journal and reading its end")
        locker = self._locker
        now = locker.clock.now

        def has_proof() -> bool:
            return locker.proof().holds_at(now())

        def call_soon(function: Callable[[], None]) -> None:
            try:
                loop.call_soon_threadsafe(function)
            except RuntimeError:  # a thread that hung in the volume woke up when the loop had ended: nobody listens
                if not loop.is_closed():
                    raise

        store = await self._in_store_thread(
            lambda: standby.promote(
                has_proof=has_proof,
                call_soon=call_soon,
                call_later_this_turn=loop.call_soon,
                on_lost=self._on_lost,
            )
        )
        self.epoch = store.epoch
        return store

    async def _be_master(self, store: AnyStore) -> None:
        assert self._lost is not None, "a master can lose what it has"
        self.store = store
        try:
            await self._in_lock_thread(lambda: self._locker.announce(store.epoch, self._admin_url))
            await self._service.serve(store)
        except BaseException:
            await self._in_store_thread(lambda: store.drop(DROP_SECONDS_MAX))
            raise
        self.promotions += 1
        self._back_off = BACK_OFF_SECONDS_MIN
        self._become(
            Role.MASTER,
            f"master of epoch {store.epoch}; {store.records_replayed} records read in {store.recovery_seconds:.3f} s",
        )
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        waiting: list[asyncio.Future[Any]] = [self._lost, stopping]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._lost.done():
            reason = self._lost.result()
            await self._service.abort()
            await self._in_store_thread(lambda: store.drop(DROP_SECONDS_MAX))
            await self._in_lock_thread(self._locker.release)
            await self._demoted(f"{type(reason).__name__}: {reason}")
            return
        started = time.monotonic()
        await self._service.finish()
        await self._in_store_thread(store.close)
        self._become(Role.STARTING, f"handed over in {time.monotonic() - started:.3f} s")

    def _on_lost(self, reason: BaseException) -> None:
        """The store must not go on (on the loop). From this moment nobody is told anything."""
        if self._lost is not None and not self._lost.done():
            if self.store is not None:
                self.store.halt()
            self._lost.set_result(reason)

    async def _keep_alive(self) -> None:
        """Prove ownership again and again. Unknown is not lost: then the proof grows old, and the store stops by it."""
        period = self._locker.settings.lock_keep_alive_period_seconds
        if period <= 0:
            return
        said = ""
        while True:
            await asyncio.sleep(period)
            try:
                is_mine = await self._in_lock_thread(self._locker.keep_alive)
                said = ""
            except LockUnavailable as reason:
                if str(reason) != said:
                    said = str(reason)
                    log.warning("the lock cannot be asked: %s", reason)
                continue
            if not is_mine:
                self._on_lost(LockLost(f"{self._locker.where} is not ours any more"))
                return

    async def _demoted(self, reason: str) -> None:
        self._become(Role.DEMOTED, f"demoted: {reason}")
        await self._wait_or_stop(self._back_off * random.uniform(0.5, 1.5))
        self._back_off = min(self._back_off * 2, BACK_OFF_SECONDS_MAX)
        if not self._stop.is_set():
            self._become(Role.STARTING, "opening the store to stand by")

    async def _wait_or_stop(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            pass

    def _become(self, role: Role, reason: str) -> None:
        self.role, self.reason = role, reason
        self._has_stood = self._has_stood or role in (Role.STANDBY, Role.MASTER)
        self._on_role(role, reason)

    def _in_lock_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._lock_thread, function)

    def _in_store_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._store_thread, function)
