"""Which concrete thing stands where: the only file that names them all. Settings become values here."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import cast

import uvloop
from aiohttp import web

from broker.admin.guard import Guard
from broker.admin.ha_pages import HaPages
from broker.admin.notify import Notifier, Watchdog, watchdog_period_seconds
from broker.admin.server import AdminServer
from broker.admin.several_store_pages import SeveralStorePages
from broker.admin.store_pages import StorePages
from broker.admin.token import SUFFIX as TOKEN_SUFFIX
from broker.allocator import give_back_long_blocks
from broker.connectors import make_connector
from broker.core.access import OpenAccess
from broker.core.settings import EngineSettings
from broker.descriptors import connections_max, raise_limit
from broker.engine import Engine, destinations_of
from broker.events import SUFFIX as EVENTS_SUFFIX
from broker.events import EventRing
from broker.ha import Mastership
from broker.hung_threads import hung_threads
from broker.local_zone import LocalZone
from broker.locking import make_locker
from broker.long_lived import LongLived
from broker.machine_memory import memory_bytes
from broker.protocols.openwire.advisories import Advisories
from broker.security.setup import access_of, policies_of, tls_of
from broker.server import Server
from broker.service import AnyStandby, AnyStore
from broker.slicing import Slices
from broker.states import Phase, Role
from broker.status import Report
from config.settings import Settings
from config.store import StoreSettings as StoreTable
from locker.shared_file import SharedFileLocker
from store.archive import DEFAULT_NAME
from store.filters import FilteredStore, Filters
from store.settings import StoreSettings
from store.several.layout import ROOT, has_several
from store.several.standbys import SeveralStandbys
from store.several.stores import SeveralStores
from store.standby import Standby
from store.store import Store
from store.volume import Concern, demand_safe
from tandemmq.modes import narrowing, umask_of, wider

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
# A broker numbers the messages it takes: 2^20 a millisecond, from the moment of its start.
SEQUENCE_BITS = 20
# An idle storage thread shows life, and looks for a successor, at each keep-alive, and so often at least.
LOOK_SECONDS_MAX = 2.0
LIFE_SECONDS = 0.05
# At a handover receipts that are on their way are waited for, so long at most.
PENDING_SECONDS_MAX = 1.0
# Of so many files of the store it is looked at, at the start, who may read them.
LOOKED_AT_MAX = 1_000
# Pages of the admin server that read the volume, at the same time.
ASKING_THREADS = 4
# Of the memory that there is, where no limit is set: RabbitMQ's vm_memory_high_watermark.
MEMORY_PERCENT = 40

# Messages and what goes with them make no cycles: reference counts free them, and the collector only has to be rare
# enough not to look through a full window for nothing.
GC_ALLOCATIONS = 10_000
# The middle generation is looked through often, for that holds up the loop by what came since; the old one seldom.
GC_MIDDLE_ROUNDS, GC_OLD_ROUNDS = 2, 200
# How long the loop waits for the interpreter while the storage thread works on a large batch, each time that it comes
# back from a call of the system (Python's own: 5 ms). docs/decisions/0020.
SWITCH_SECONDS = 0.001


def run_broker(settings: Settings) -> None:
    """Run a broker until SIGTERM or SIGINT; returns after the handover. Raises what the operator must mend.

    Threads that hang may be left (broker.hung_threads).
    """
    os.umask(umask_of(int(settings.store.file_mode, 8)))
    give_back_long_blocks()
    # What is there before the first message stays, and need not be looked through again and again.
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, GC_MIDDLE_ROUNDS, GC_OLD_ROUNDS)
    sys.setswitchinterval(SWITCH_SECONDS)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        runner.run(Broker(settings).run())
    finally:
        if not hung_threads():  # else it would wait for them
            runner.close()


def _url_of(settings: Settings) -> str:
    """One address by which advisories name the broker: that of BrokerInfo, where JMS clients connect."""
    for each in settings.connectors:
        if each.protocol == "openwire":
            return f"tcp://{each.address}"
    return next((f"{each.scheme}://{each.address}" for each in settings.connectors), "")


def milliseconds() -> int:
    """Now, in milliseconds since 1970: the clock of messages."""
    return time.time_ns() // 1_000_000


class Broker:
    """One broker process: what it is made of, and what it says of itself. Everything on the loop's thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._name = settings.broker.name
        self._directory = os.path.abspath(settings.store.directory)
        self._index_root = settings.store.index_directory or os.path.join(self._directory, "index")
        self._filters = _filters(settings)
        self._policies = policies_of(settings)
        self._access = access_of(settings)
        self._tls = [tls_of(each, settings) for each in settings.connectors]
        self._engine: Engine | None = None
        self._last_life = time.monotonic()
        self._awaited: set[str] = set()  # what is noted once a term
        self._working = ThreadPoolExecutor(1, "tandemmq-working")  # for what takes too long for the loop
        # For what takes very long; what it makes is held until it is written, so few at a time.
        self._preparing = ThreadPoolExecutor(1, "tandemmq-preparing")
        self._asking = ThreadPoolExecutor(ASKING_THREADS, "tandemmq-asking")  # for pages that read the volume
        # Higher than all that a former term gave, as long as the clock does not go back by months.
        self._sequences = itertools.count(milliseconds() << SEQUENCE_BITS)
        self._server = Server(
            [
                make_connector(
                    each, settings.broker, milliseconds, self._sequences, tls, settings.tls.handshake_timeout / 1000
                )
                for each, tls in zip(settings.connectors, self._tls, strict=True)
            ],
            connections_max(raise_limit()),
        )
        self._notifier = Notifier.from_environment()
        admin = settings.admin.address
        self._admin_url = None if admin is None else f"http://{admin}"
        self._locker = make_locker(settings.locker, self._directory, self._name, admin=self._admin_url)
        self._ring = EventRing(self._name, os.path.join(self._index_root, f"{self._name}{EVENTS_SUFFIX}"))
        self._mastership = Mastership(
            self._locker,
            self._open_standby,
            self,
            admin_url=self._admin_url,
            on_role=self._on_role,
            record=self._ring.record,
            back_off_seconds_max=settings.locker.retry_interval / 1000,
        )
        self._report = Report(
            self._name,
            self._directory,
            settings.locker.type,
            self._locker,
            self._mastership,
            self._server,
            lambda: self._engine,
            self._ring,
        )
        self._admin = None
        if admin is not None:
            names = [admin.host, *settings.admin.hosts]
            access = None if isinstance(self._access, OpenAccess) else self._access
            self._guard = Guard(os.path.join(self._index_root, f"{self._name}{TOKEN_SUFFIX}"), names, access)
            self._admin = AdminServer(
                admin.host,
                admin.port,
                self._report.status,
                self._pages(),
                details=self._report.details,
                check=self._guard.check,
            )

    # ---- a life

    async def run(self) -> None:
        """Start, stand by or be master, and end in order when asked to."""
        os.makedirs(self._directory, exist_ok=True)
        self._report.warnings = self._objections()
        self._ring.start()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(self._asking)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        log.info("%s starts, pid %d, store %s", self._name, os.getpid(), self._directory)
        for warning in self._report.warnings:
            log.warning("%s", warning)
        if self._admin is not None:
            self._admin.bind()
            self._guard.start()
            await self._admin.start()
        helpers = [asyncio.create_task(self._live(), name="life")]
        period = watchdog_period_seconds()
        if period is not None:
            signs = {
                "event loop": lambda: self._last_life,
                "storage thread": self._mastership.storage_seen_alive,
                "lock": self._mastership.lock_seen_alive,
            }
            helpers.append(asyncio.create_task(Watchdog(self._notifier, period, signs).run(), name="watchdog"))
        try:
            await self._mastership.run()
        finally:
            for helper in helpers:
                helper.cancel()
            await self._server.lingered()
            if self._admin is not None:
                await self._admin.stop()
            self._server.unbind()
            self._notifier.close()
            self._ring.close()
            self._access.close()
            self._asking.shutdown(wait=False, cancel_futures=True)
            self._working.shutdown(wait=False, cancel_futures=True)
            self._preparing.shutdown(wait=False, cancel_futures=True)
        log.info("%s ended", self._name)

    def _asked_to_stop(self, name: str) -> None:
        log.info("%s: %s", name, "handing over" if self._mastership.role is Role.MASTER else "ending")
        self._notifier.stopping()
        self._mastership.stop()

    def _reload(self) -> None:
        """SIGHUP: read users and certificates again, whether their files look changed or not."""
        log.info("SIGHUP: users and certificates are read again")
        self._access.reload()
        for tls in self._tls:
            if tls is not None:
                tls.reload()

    def _look_at_files(self) -> None:
        """Users and certificates that have changed hold from now on."""
        self._access.look()
        for tls in self._tls:
            if tls is not None:
                tls.look()

    def _objections(self) -> list[str]:
        """What is unsafe and was chosen all the same. Raises UnsafeVolume."""
        said = [] if self._locker.unsafe is None else [f"unsafe: {self._locker.unsafe}"]
        places = {self._directory: {Concern.LOOK, Concern.DURABILITY}}
        if self._settings.locker.type == SharedFileLocker.kind:
            places.setdefault(self._settings.locker.directory or self._directory, set()).add(Concern.LOCK)
        for place, concerns in places.items():
            said += demand_safe(place, self._settings.store.ignore_unsafe_volume, concerns=concerns)
        return said + self._open_to_others()

    def _open_to_others(self) -> list[str]:
        """What was there before and is open to more than ``file_mode`` says, in a sentence."""
        mode = self._settings.store.file_mode
        with os.scandir(self._directory) as entries:
            names = [self._directory, self._index_root, *(each.path for each in islice(entries, LOOKED_AT_MAX))]
        found = list(dict.fromkeys(wider(names, int(mode, 8))))
        if not found:
            return []
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        mending = f"chmod -R {narrowing(int(mode, 8))} {self._directory}"
        return [f"{found[0]}{more}: open to more users than store.file_mode {mode} says; to mend it: {mending}"]

    async def _live(self) -> None:
        """The loop's sign of life, and the engine's clock for what expires."""
        last_tick = time.monotonic()
        lag = self._report.loop_lag
        while True:
            await asyncio.sleep(LIFE_SECONDS)
            now = time.monotonic()
            lag.note(now - self._last_life - LIFE_SECONDS)
            self._last_life = now
            store = self._mastership.store
            confirmed = 0 if store is None else store.figures.confirmed
            self._ring.alive(confirmed)
            self._note_firsts(confirmed)
            if now - last_tick >= TICK_SECONDS:
                last_tick = now
                self._look_at_files()
                if self._engine is not None:
                    self._engine.tick(milliseconds())
            if self._engine is not None:
                self._long_lived.look(self._engine.memory.used)

    def _note_firsts(self, confirmed: int) -> None:
        """An outage is over for clients when the first is back, and when the first has an answer."""
        if "first-client" in self._awaited and self._server.connections:
            self._awaited.discard("first-client")
            self._ring.record("first-client")
        if "first-receipt" in self._awaited and confirmed:
            self._awaited.discard("first-receipt")
            self._ring.record("first-receipt")

    # ---- what mastership asks (broker.ha.Service)

    async def bind(self) -> None:
        self._server.bind()

    async def serve(self, store: AnyStore) -> None:
        self._slices = slices = Slices(asyncio.get_running_loop())
        self._long_lived = LongLived()
        settings = engine_settings(self._settings)
        destinations = await slices.run(destinations_of(store, settings, self._policies, slices.start))
        self._engine = engine = Engine(
            store,
            settings,
            milliseconds,
            on_drained=self._server.resume_reading_all,
            call_later=asyncio.get_running_loop().call_later,
            policies=self._policies,
            access=self._access,
            advisor=Advisories(
                f"ID:advisories-{self._name}-{store.epoch}",
                milliseconds,
                self._sequences,
                broker_id=f"ID:{self._name}",
                broker_name=self._name,
                broker_url=_url_of(self._settings),
            ),
            zone=LocalZone(),
            in_thread=partial(self._in_thread, self._working),
            prepare_in_thread=partial(self._in_thread, self._preparing),
            start=slices.start,
            destinations=destinations,
        )
        store.start(engine)
        await self._server.listen(engine, f"ID:{self._name}-{store.epoch}")
        self._ring.record("listening")
        self._awaited = {"first-client", "first-receipt"}

    def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[], object], then: Callable[[], None]) -> None:
        working = asyncio.get_running_loop().run_in_executor(threads, work)
        working.add_done_callback(lambda _: then())

    async def abort(self) -> None:
        engine, self._engine = self._engine, None
        await self._server.abort()
        if engine is not None:
            self._slices.end()
            engine.end()
            self._long_lived.end()

    def cut(self) -> None:
        self._server.cut()

    async def finish(self) -> None:
        self._server.stop_reading()
        store = self._mastership.store
        deadline = time.monotonic() + PENDING_SECONDS_MAX
        # Polled: an Event would cost every batch what only the last one needs
        while store is not None and time.monotonic() < deadline:
            if not store.has_pending and self._slices.is_idle:
                break
            await asyncio.sleep(0.002)
        await self._server.close()
        if self._engine is not None:
            self._slices.end()
            self._engine.end()
            self._long_lived.end()
        self._engine = None

    # ---- made of

    def _pages(self) -> list[web.RouteDef]:
        kind = self._settings.locker.type
        ha_pages = HaPages(self._ring, self._report.status, self._locker, kind, lambda: self._mastership)
        return [*self._store_pages().routes(), *ha_pages.routes()]

    def _store_pages(self) -> SeveralStorePages:
        said = self._settings.store

        def members() -> dict[str, Store] | None:
            store = self._mastership.store
            return store.members() if isinstance(store, SeveralStores) else None

        def make(name: str, store: Callable[[], Store | None]) -> StorePages:
            index_root = said.index_directory
            if index_root is not None and name != ROOT:
                index_root = os.path.join(index_root, name)
            archive = None
            if said.archive_data_logs:
                archive = said.directory_archive or os.path.join(self._directory, name, DEFAULT_NAME)
            return StorePages(
                os.path.normpath(os.path.join(self._directory, name)),
                said.journal_max_file_length,
                store,
                self._report.status,
                index_root=index_root,
                archive=archive,
            )

        # Of several, the whole is asked for a compaction only.
        whole = make(ROOT, lambda: cast("Store | None", self._mastership.store))
        return SeveralStorePages(whole, members, make)

    def _open_standby(self) -> AnyStandby:
        said = self._settings.store
        habits = store_settings(said, self._settings)
        if self._filters.entries or has_several(self._directory):
            return SeveralStandbys(self._directory, said.index_directory, self._name, habits, self._filters)
        return Standby(self._directory, self._index_root, self._name, habits)

    # ---- what it says of itself

    def _on_role(self, role: Role, reason: str) -> None:
        phase = self._mastership.phase
        level = logging.WARNING if phase is Phase.DEMOTED else logging.INFO
        log.log(level, "%s (%s): %s", self._name, phase.value, reason)
        line = f"{phase.value}: {reason}"
        if role in (Role.MASTER, Role.STANDBY):
            self._notifier.ready(line)
        else:
            self._notifier.status(line)


def memory_limit(settings: Settings) -> int:
    """What clients may have the broker hold, in bytes."""
    return settings.broker.memory_limit or memory_bytes() * MEMORY_PERCENT // 100


def engine_settings(settings: Settings) -> EngineSettings:
    said = settings.broker
    return EngineSettings(
        stomp_nack=said.stomp_nack,
        maximum_redeliveries=said.maximum_redeliveries,
        max_scheduler_repeat_allowed=said.max_scheduler_repeat_allowed,
        stomp_strict_errors=said.stomp_strict_errors,
        populate_jmsx_user_id=said.populate_jmsx_user_id,
        queue_prefetch=said.queue_prefetch,
        topic_prefetch=said.topic_prefetch,
        durable_topic_prefetch=said.durable_topic_prefetch,
        memory_limit=memory_limit(settings),
    )


def _filters(settings: Settings) -> Filters:
    """Which destinations have stores of their own."""
    said = settings.store
    return Filters(
        FilteredStore(each.queue, each.topic, each.per_destination, store_settings(said.of(each), settings))
        for each in said.filtered_persistence_adapters
    )


def store_settings(said: StoreTable, settings: Settings) -> StoreSettings:
    """``said`` is [store], or one of several stores with [store] beneath it."""
    return StoreSettings(
        journal_disk_sync_strategy=said.journal_disk_sync_strategy,
        journal_disk_sync_interval=said.journal_disk_sync_interval / 1000,
        clock_mark_interval=said.clock_mark_interval / 1000 or math.inf,
        journal_max_file_length=said.journal_max_file_length,
        journal_max_write_batch_size=said.journal_max_write_batch_size,
        checkpoint_interval=said.checkpoint_interval / 1000 or math.inf,
        cleanup_interval=said.cleanup_interval / 1000 or math.inf,
        checkpoint_records=said.checkpoint_records,
        checkpoint_bytes=said.checkpoint_bytes,
        look_interval=min(settings.locker.lock_keep_alive_period / 1000 or LOOK_SECONDS_MAX, LOOK_SECONDS_MAX),
        recovery_budget=said.recovery_budget / 1000,
        failover_budget=said.failover_budget / 1000,
        archive_data_logs=said.archive_data_logs,
        directory_archive=said.directory_archive,
        check_for_corrupt_journal_files=said.check_for_corrupt_journal_files,
        ignore_missing_journalfiles=said.ignore_missing_journalfiles,
        failover_producers_audit_depth=said.failover_producers_audit_depth,
        max_failover_producers_to_track=said.max_failover_producers_to_track,
        purge_recovered_xa_transaction_strategy=said.purge_recovered_xa_transaction_strategy,
        enable_compaction=said.enable_compaction,
        compaction_rate=said.compaction_rate,
        cleanup_on_stop=said.cleanup_on_stop,
        disk_reserve=said.disk_reserve_bytes,
        index_cache_size=said.index_cache_size,
        pending_operations_max=said.max_async_jobs,
        # Each byte that waits for the disk is there twice, in the message and in its record.
        pending_bytes_max=min(StoreSettings().pending_bytes_max, memory_limit(settings) // 8),
    )
