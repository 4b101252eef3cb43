"""Choice of the concrete parts: the only file that names them all, except for those of the admin server."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from tandemmq.broker.admin.api.pauses import Pauses
from tandemmq.broker.admin.events import SUFFIX as EVENTS_SUFFIX
from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.notify import Notifier
from tandemmq.broker.admin.places import PLACES
from tandemmq.broker.admin.status import Report
from tandemmq.broker.admin.token import SUFFIX as TOKEN_SUFFIX
from tandemmq.broker.bridges.bridges import Bridges
from tandemmq.broker.core.advisor import Advisor, Fact
from tandemmq.broker.core.clock import milliseconds
from tandemmq.broker.engine.engine import Engine, destinations_of
from tandemmq.broker.engine.part import Loop
from tandemmq.broker.engine.ports import Tracing
from tandemmq.broker.engine.slicing import Slices
from tandemmq.broker.ha.locks import make_locker
from tandemmq.broker.ha.mastership import Mastership
from tandemmq.broker.ha.service import AnyStandby, AnyStore, Service
from tandemmq.broker.ha.states import Role
from tandemmq.broker.mqtt.clients import MqttClients
from tandemmq.broker.net.connectors import (
    AdvertisedAddresses,
    MemberConnectors,
    advertised_address,
    hostname_of,
    is_loopback,
    make_connector,
    url_of,
    urls_of,
)
from tandemmq.broker.net.server import Server
from tandemmq.broker.process.log import Log
from tandemmq.broker.process.machine import LocalZone, connections_max, raise_limit
from tandemmq.broker.process.switch_interval import restore, shorten
from tandemmq.broker.security.expiry import Expiries
from tandemmq.broker.security.setup import access_of, tls_of, tls_of_admin, tls_of_set
from tandemmq.broker.security.tls import Tls
from tandemmq.broker.settings.engine import engine_settings
from tandemmq.broker.settings.policies import policies_of
from tandemmq.broker.settings.store import store_settings
from tandemmq.config.errors import RefusedSetting
from tandemmq.config.settings import Settings
from tandemmq.journal.files import JournalFiles
from tandemmq.locker.contract import Holder, Locker, LockRequest
from tandemmq.store.maintenance.scrubber import OwnVolume, Scrubber
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.several.filters import FilteredStore, Filters
from tandemmq.store.several.layout import ROOT, has_several
from tandemmq.store.several.standbys import SeveralStandbys
from tandemmq.store.several.stores import SeveralStores
from tandemmq.store.standby import Standby

if TYPE_CHECKING:
    from tandemmq.broker.replication.replica import Replica

# Modules for members of a set are imported only if there is a set.

# Number range of messages: 2^20 a millisecond, from the moment of the broker's start.
SEQUENCE_BITS = 20
# Pages of the admin server that read the volume at the same time.
ASKING_THREADS = 4


class Parts:
    """Parts of a broker process, by its settings. Nothing is started here (broker.run)."""

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self.log = log
        self.name = settings.broker.name
        # In a set all nodes have the broker's name; a node is addressed by the name of the node.
        self.node = self.name if settings.replication is None else settings.replication.node_name
        self.directory = os.path.abspath(settings.store.directory)
        self._is_directory_made = False
        self.index_root = settings.store.index_directory or os.path.join(self.directory, "index")
        self.token_file = os.path.join(self.index_root, f"{self.name}{TOKEN_SUFFIX}")
        self.engine_settings = engine_settings(settings)
        self.policies = policies_of(settings)
        self.access = access_of(settings)
        tls_of_connectors = [tls_of(each, settings) for each in settings.connectors]
        self.admin_tls = tls_of_admin(settings)
        self.tls = [each for each in (*tls_of_connectors, self.admin_tls) if each is not None]
        self.expiries = expiries_of(settings, self.tls)
        self.working = ThreadPoolExecutor(1, "tandemmq-working")  # for work that takes too long for the loop
        # For work that takes very long. One thread, because each result stays in memory until it is written.
        self.preparing = ThreadPoolExecutor(1, "tandemmq-preparing")
        self.asking = ThreadPoolExecutor(ASKING_THREADS, "tandemmq-asking")  # for pages that read the volume
        self._filters = filters_of(settings)
        # Higher than all numbers of a former term, as long as the clock is not set back by months.
        self._sequences = itertools.count(milliseconds() << SEQUENCE_BITS)
        self._advertised = AdvertisedAddresses(settings.broker.failover_uris)
        self.mqtt = MqttClients(
            self.name,
            settings.mqtt.retained_messages_max,
            settings.mqtt.retained_bytes_max,
            settings.mqtt.sys_interval,
        )
        self.pauses = Pauses(self.name)
        self.bridges = bridges_of(settings, self.mqtt.may_retain)
        self.server = Server(
            [
                make_connector(
                    each,
                    settings.broker,
                    url_of(settings),
                    milliseconds,
                    self._sequences,
                    tls,
                    settings.tls.handshake_timeout / 1000,
                    self._advertised,
                    hostname_of(settings),
                    (settings.mqtt, self.mqtt),
                    settings.websocket,
                )
                for each, tls in zip(settings.connectors, tls_of_connectors, strict=True)
            ],
            connections_max(raise_limit() - max(0, settings.admin.connections_max - PLACES)),
        )
        self._tracing = _tracing(settings)
        self.notifier = Notifier(os.environ.get("NOTIFY_SOCKET"))
        self._admin_url = _admin_url(settings)
        self.ring = EventRing(self.node, os.path.join(self.index_root, f"{self.name}{EVENTS_SUFFIX}"))
        self.replica = self._make_replica()
        self._volumes: dict[str, OwnVolume] = {}
        if self.replica is not None:
            from tandemmq.broker.replication.member import SetLocker

            self.locker: Locker = SetLocker(
                LockRequest(self.directory, Holder(self.replica.settings.node)), self.replica
            )
        else:
            self.locker = make_locker(settings.locker, self.directory, self.name, admin=self._admin_url)

    def make_directory(self) -> None:
        """Create the store's directory, only once: if it is missing later, its volume may be unmounted. A node of a set
        takes the directory for itself. Raises OSError, or PromiseFileInUse."""
        if not self._is_directory_made:
            os.makedirs(self.directory, exist_ok=True)
            self._is_directory_made = True
        if self.replica is not None:
            self.replica.open()

    def mastership(self, service: Service, on_role: Callable[[Role, str], None]) -> Mastership:
        """Make the mastership. ``service``: the part that serves clients while this broker is master; ``on_role`` is
        called at each change."""
        return Mastership(
            self.locker,
            self._open_standby,
            service,
            on_role=on_role,
            record=self.ring.record,
            back_off_seconds_max=self.settings.locker.retry_interval / 1000,
        )

    def scrubber(self, mastership: Mastership) -> Scrubber:
        """Return the scrubber of the process. The scrubber of a set belongs to the replica, which starts and ends
        it."""
        if self.replica is not None:
            return self.replica.scrubber
        options = self.settings.store
        return Scrubber(
            partial(self._served_volumes, mastership), rate=options.scrub_rate, interval=options.scrub_interval_seconds
        )

    def _served_volumes(self, mastership: Mastership) -> list[OwnVolume]:
        """Return the journals that this broker writes; a standby writes none. Any thread."""
        store = mastership.store
        if store is None:
            return []
        names = store.members() if isinstance(store, SeveralStores) else (ROOT,)
        directories = [os.path.normpath(os.path.join(self.directory, name)) for name in names]
        return [self._volumes.setdefault(each, OwnVolume(JournalFiles(each))) for each in directories]

    def report(self, mastership: Mastership, engine: Callable[[], Engine | None], scrubber: Scrubber) -> Report:
        """Make the report. ``engine``: returns the engine of this term."""
        return Report(
            self.node,
            self.directory,
            self.settings.locker.type if self.replica is None else self.locker.kind,
            self.locker,
            mastership,
            self.server,
            engine,
            self.ring,
            self._part_in_set,
            scrubbed=lambda: scrubber.figures,
            log=self.log,
            mqtt=lambda: self.mqtt.counts,
            bridges=self.bridges.status,
            left_by_bridges=self.bridges.left,
        )

    def _part_in_set(self) -> Mapping[str, Any] | None:
        """Return the status of the replica. None: this broker has no replica, or it has not started."""
        return self.replica.status() if self.replica is not None and self.replica.is_started else None

    def advertise_members(self) -> None:
        """Inform clients of the members of the set when they changed. Runs on the loop; no effect without a set, or
        before this node has started in it."""
        if self.replica is None or not self.replica.is_started:
            return
        members = {
            entry.store: MemberConnectors(entry.address.rpartition(":")[0].strip("[]"), entry.connectors)
            for entry in self.replica.members()
        }
        voters = self.replica.state.voters
        if voters is not None and self._advertised.update(voters.ids, members):
            self.server.tell_brokers()

    async def engine(self, store: AnyStore, slices: Slices) -> Engine:
        """Make the engine of a term on ``store``."""
        return Engine(
            store,
            self.engine_settings,
            Loop(
                milliseconds,
                call_later=asyncio.get_running_loop().call_later,
                start=slices.start,
                start_first=slices.start_first,
                in_thread=partial(_in_thread, self.working),
                prepare_in_thread=partial(_prepare_in_thread, self.preparing),
                zone=LocalZone(),
            ),
            on_drained=self.server.resume_reading_all,
            policies=self.policies,
            access=self.access,
            advisor=_LateAdvisor(partial(self._advisor, store.epoch)),
            tracing=self._tracing,
            of_settings=self.bridges.principals(),  # prove: bridges-are-known-at-once
            destinations=await slices.run(destinations_of(store, self.engine_settings, self.policies, slices.start)),
        )

    def _advisor(self, epoch: int) -> Advisor:
        from tandemmq.broker.protocols.openwire.advisories import Advisories

        return Advisories(
            f"ID:advisories-{self.name}-{epoch}",
            milliseconds,
            self._sequences,
            broker_id=f"ID:{self.name}",
            broker_name=self.name,
            broker_url=url_of(self.settings),
        )

    def _open_standby(self) -> AnyStandby:
        self.make_directory()
        if self.replica is not None:
            self.replica.start()  # if there was no room before
        options = self.settings.store
        store_options = store_settings(options, self.settings)
        if self._filters.entries or has_several(self.directory):
            return SeveralStandbys(self.directory, options.index_directory, self.name, store_options, self._filters)
        if self.replica is not None:
            from tandemmq.broker.replication.member import SetAuthority, set_settings

            return Standby(
                self.directory,
                self.index_root,
                self.name,
                set_settings(store_options, self.replica.settings.sync),
                authority=SetAuthority(self.replica),
            )
        return Standby(self.directory, self.index_root, self.name, store_options)

    def _make_replica(self) -> Replica | None:
        """Make the replica. None: this broker has no set."""
        options = self.settings.replication
        if options is None:
            return None
        from tandemmq.broker.replication.member import make_replica

        return make_replica(
            options,
            self.directory,
            self.name,
            tls=tls_of_set(options, self.settings.tls),
            connectors=urls_of(self.settings),
            admin=self._admin_url,
            record=self.ring.record,
            scrub_rate=self.settings.store.scrub_rate,
            scrub_interval=self.settings.store.scrub_interval_seconds,
        )


class _LateAdvisor:
    """Advisor that is made for the first fact that has a listener: it imports OpenWire, which a broker without a
    connector for it may never need."""

    def __init__(self, make: Callable[[], Advisor]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Advisor:
        return self._make()

    def topic(self, fact: Fact) -> Destination | None:
        """See Advisor."""
        return self._made.topic(fact)

    def message(self, fact: Fact, topic: Destination) -> Message:
        """See Advisor."""
        return self._made.message(fact, topic)


def _in_thread(threads: ThreadPoolExecutor, work: Callable[[], object], then: Callable[[], None]) -> None:
    working = asyncio.get_running_loop().run_in_executor(threads, work)
    working.add_done_callback(lambda _: then())


def _prepare_in_thread(threads: ThreadPoolExecutor, work: Callable[[], object], then: Callable[[], None]) -> None:
    """Do ``work`` in a thread, and then ``then`` on the loop. For work that does not release the interpreter's lock."""

    def is_over() -> None:
        restore()
        then()

    _in_thread(threads, work, is_over)
    shorten()


def _tracing(settings: Settings) -> Tracing | None:
    """Make the tracing. None: spans are off. Raises RefusedSetting."""
    options = settings.tracing
    if options.endpoint == "off":
        return None
    demand_tracing(settings)
    from tandemmq.broker.engine import tracing

    return tracing.Tracing(tracing.exported_to(options.endpoint), settings.broker.name, options.ratio)


def demand_tracing(settings: Settings) -> None:
    """Raise RefusedSetting if spans are enabled and the library for them is not installed."""
    endpoint = settings.tracing.endpoint
    if endpoint != "off":
        try:
            import tandemmq.broker.engine.tracing  # noqa: F401
        except ImportError as error:
            reason = f"tracing needs OpenTelemetry ({error}): pip install 'tandemmq[otel]'"
            raise RefusedSetting("tracing.endpoint", endpoint, reason) from error


def bridges_of(settings: Settings, retains: Callable[[Destination, int], int]) -> Bridges:
    """Make the bridges. ``retains``: as ``Hooks.may_retain`` of sessions. Raises RefusedSetting."""
    if not settings.bridges:
        return Bridges(())
    names = ", ".join(each.name for each in settings.bridges)
    try:
        from tandemmq.broker.bridges import bridge
        from tandemmq.broker.bridges.remote import Unusable
    except ImportError as error:
        reason = f"a bridge needs aiomqtt ({error}): pip install 'tandemmq[mqtt]'"
        raise RefusedSetting("bridges", names, reason) from error
    try:
        return bridge.bridges_of(settings.bridges, retains)
    except Unusable as error:
        raise RefusedSetting("bridges", names, f"a bridge needs another version of it: {error}") from error


def certificate_files(settings: Settings, tls: Iterable[Tls]) -> Iterator[str]:
    """Yield the files with certificates that this broker needs; ``tls``: of its connectors and its admin server."""
    for each in tls:
        yield from each.certificates
    tables: list[tuple[str | None, ...]] = [(each.tls.certificate, each.tls.ca) for each in settings.bridges]
    tables.append((settings.security.ldap.ca,))
    if settings.replication is not None and settings.replication.is_tls:
        tables.append((settings.tls.certificate, settings.tls.ca))
    yield from (path for table in tables for path in table if path is not None)


def expiries_of(settings: Settings, tls: Iterable[Tls]) -> Expiries:
    """Return the expiries of all files of ``certificate_files``, and of the revocation lists that this broker uses."""
    made = list(tls)
    lists = [path for each in made for path in each.revocation_lists]
    if settings.replication is not None and settings.replication.is_tls and settings.tls.check_revocation:
        lists += [settings.tls.ca] if settings.tls.ca is not None else []
    return Expiries(certificate_files(settings, made), lists)


def _admin_url(settings: Settings) -> str | None:
    """Return the address of the admin server for other hosts. None: there is none."""
    admin, replication = settings.admin.address, settings.replication
    if admin is None:
        return None
    scheme, advertised = "https" if settings.admin.is_tls else "http", settings.admin.advertised
    is_hidden = advertised is None and is_loopback(admin.host)
    if replication is not None and is_hidden and not is_loopback(replication.advertised_hostname):
        return None  # on another host, a loopback address would reach another member
    return f"{scheme}://{advertised_address(admin, advertised, hostname_of(settings))}"


def filters_of(settings: Settings) -> Filters:
    """Return the destinations with separate stores."""
    options = settings.store
    return Filters(
        FilteredStore(each.queue, each.topic, each.per_destination, store_settings(options.of(each), settings))
        for each in options.filtered_persistence_adapters
    )
