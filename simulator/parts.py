"""Parts of the brokers in a simulation, from the settings of real brokers.

Settings of behaviour are used unchanged. Settings of size are small unless the operator set them: many journal files
must come and go in a few simulated seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.ha.locks import LOCK
from tandemmq.broker.settings.engine import engine_settings
from tandemmq.broker.settings.store import store_settings
from tandemmq.config.settings import Settings
from tandemmq.locker.contract import Locker, LockRequest
from tandemmq.locker.kinds import Unlocked
from tandemmq.locker.shared_file import SharedFileLocker
from tandemmq.locker.sql.lease_database import LeaseDatabaseLocker, LeaseSettings
from tandemmq.locker.sql.table import SqlLeaseTable
from tandemmq.simulator.database import LEASE, Database, reached
from tandemmq.simulator.generous_lock import GenerousLocker, Grants
from tandemmq.simulator.host import Host
from tandemmq.simulator.kernel import Process
from tandemmq.simulator.link import Link
from tandemmq.simulator.node import MakeLocker, Parts
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.filters import FilteredStore, Filters

DIRECTORY: Final = "/data"

#: Sizes of a simulation, by setting.
SMALL: Final[dict[str, int]] = {
    "journal_max_file_length": 32 << 10,
    "disk_reserve": 64 << 10,
    "compaction_rate": 1 << 20,
    "checkpoint_records": 200,
}
REDELIVERIES: Final = 1_000_000
KINDS: Final = (SharedFileLocker.kind, LeaseDatabaseLocker.kind)

#: Settings with shorter files that are reclaimed sooner, so that files are reclaimed while a broker sleeps.
LATE: Final[dict[str, float]] = {
    "journal_max_file_length": 2 << 10,
    "checkpoint_records": 50,
    "checkpoint_interval": 0.5,
    "cleanup_interval": 0.1,
}

#: Queues with a store of their own in a simulation with several stores, unless the operator set stores.
SEVERAL: Final = ("Q0", "Q1")

PartsOf = Callable[[Database, dict[str, Link]], Parts]


class NotSimulated(Exception):
    """Settings that cannot be simulated; the message says which, and what can be."""


def parts_of(settings: Settings) -> PartsOf:
    """Return a function that makes the parts from a database and each broker's link to it. Raises NotSimulated."""
    options = settings.store
    if settings.locker.use_lock and settings.locker.type not in KINDS:
        raise NotSimulated(f"locker.type = {settings.locker.type!r}: only {', '.join(KINDS)} can be simulated")
    if options.journal_disk_sync_strategy != "always":
        strategy = options.journal_disk_sync_strategy
        raise NotSimulated(f"store.journal_disk_sync_strategy = {strategy!r}: the promises are made for 'always'")
    store = _small(store_settings(options, settings), settings)
    filters = Filters(
        FilteredStore(each.queue, each.topic, each.per_destination, store)
        for each in options.filtered_persistence_adapters
    )

    def make(database: Database, links: dict[str, Link]) -> Parts:
        locker = _maker(settings, database, links)
        return Parts(DIRECTORY, store, _patient(settings), LOCK(settings.locker), locker, filters)

    return make


def with_several(parts: Parts) -> Parts:
    """Return the parts with several stores."""
    return replace(parts, filters=Filters(FilteredStore(queue=queue, settings=parts.store) for queue in SEVERAL))


def with_late_links(parts: Parts, grants: Grants) -> Parts:
    """Return the parts with short files that are reclaimed soon, and a lock that may be granted twice."""

    def make(request: LockRequest, process: Process, host: Host, granted: Callable[[], None]) -> Locker:
        return GenerousLocker(parts.make_locker(request, process, host, granted), grants, granted)

    return replace(parts, make_locker=make, store=replace(parts.store, **LATE))  # type: ignore[arg-type]


def _patient(settings: Settings) -> EngineSettings:
    """Return engine settings with which a message that many masters die with is no dead letter, unless the settings say
    so: the checks expect it in its queue."""
    engine = engine_settings(settings)
    is_said = settings.origin("broker.maximum_redeliveries") is not None
    return engine if is_said else replace(engine, maximum_redeliveries=REDELIVERIES)


def _small(store: StoreSettings, settings: Settings) -> StoreSettings:
    unsaid = {name: size for name, size in SMALL.items() if settings.origin(f"store.{name}") is None}
    return replace(store, archive_data_logs=False, **unsaid)  # type: ignore[arg-type]


def _maker(settings: Settings, database: Database, links: dict[str, Link]) -> MakeLocker:
    def make(request: LockRequest, process: Process, host: Host, granted: Callable[[], None]) -> Locker:
        if not request.settings.use_lock:
            return Unlocked(request)
        if settings.locker.type == SharedFileLocker.kind:
            return SharedFileLocker(request)
        lease = LeaseSettings(request.holder.name)
        way = reached(database, process, links[process.name], granted)
        return LeaseDatabaseLocker(request, lease, lambda: SqlLeaseTable(way, LEASE, may_create=True), host.wall)

    return make
