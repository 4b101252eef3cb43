"""Choice of the parts of the admin server. They need aiohttp, so this module is imported after the start
(broker.admin.port)."""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future
from functools import partial

from aiohttp import web

from tandemmq.broker.admin.answers import Answers
from tandemmq.broker.admin.api.api import Api
from tandemmq.broker.admin.callers import Groups
from tandemmq.broker.admin.connections import Connections
from tandemmq.broker.admin.console import console_routes
from tandemmq.broker.admin.guard import Guard
from tandemmq.broker.admin.metrics import DestinationMetrics
from tandemmq.broker.admin.node_pages import HaPages, LogPages, ReplicationPages
from tandemmq.broker.admin.places import Places
from tandemmq.broker.admin.server import AdminServer
from tandemmq.broker.admin.status import Report
from tandemmq.broker.admin.store_pages import StorePages
from tandemmq.broker.core.access import OpenAccess
from tandemmq.broker.ha.mastership import Mastership
from tandemmq.broker.net.connectors import advertised_address, hostname_of
from tandemmq.broker.security.access import users_and_rights
from tandemmq.broker.wiring import Parts
from tandemmq.config.addresses import Address
from tandemmq.journal.files import JournalFiles
from tandemmq.store.maintenance.archive import DEFAULT_NAME
from tandemmq.store.several.layout import ROOT
from tandemmq.store.store import Store
from tandemmq.store.tools.why.explain import Place


def make_admin(
    parts: Parts, address: Address, report: Report, mastership: Mastership, listener: socket.socket
) -> tuple[AdminServer, Guard]:
    """Make the admin server of a bound socket. Any thread: nothing is started here."""
    settings = parts.settings
    options = settings.admin
    hostname = hostname_of(settings)
    # Other brokers link to these addresses.
    advertised = advertised_address(address, options.advertised, hostname)
    access = None if isinstance(parts.access, OpenAccess) else parts.access
    groups = Groups(options.viewers, options.operators, options.administrators)
    guard = Guard(parts.token_file, [address.host, advertised.host, hostname, *options.hosts], access, groups)
    answers = Answers(options.answer_size_max)
    pages = _pages(parts, report, mastership, answers)
    api = Api(
        report,
        report.engine,
        parts.server,
        parts.ring,
        guard,
        {f"{page.method} {page.path}": page.handler for page in pages},
        partial(users_and_rights, settings.security),
        parts.pauses,
        options.backup_directory,
        answers,
    )
    server = AdminServer(
        address.host,
        address.port,
        report.status,
        [*pages, *api.routes(), *console_routes()],
        details=report.details,
        check=guard.check,
        tls=None if parts.admin_tls is None else parts.admin_tls.context,
        tls_handshake_seconds_max=settings.tls.handshake_timeout / 1000,
        destinations=DestinationMetrics(options.metrics_destinations, options.metrics_destinations_max),
        answers=answers,
        connections=Connections(
            Places(options.connections_max, options.request_timeout / 1000, options.response_timeout / 1000)
        ),
        listener=listener,
    )
    return server, guard


def _pages(parts: Parts, report: Report, mastership: Mastership, answers: Answers) -> list[web.RouteDef]:
    kind = parts.settings.locker.type if parts.replica is None else parts.locker.kind
    choose = None if parts.replica is None else parts.replica.choose_successor
    store_pages = StorePages(partial(_place, parts), lambda: mastership.store, report.status, report.details, answers)
    ha_pages = HaPages(parts.ring, report.status, parts.locker, kind, lambda: mastership, choose, answers)
    return [
        *store_pages.routes(),
        *ha_pages.routes(),
        *(LogPages(parts.log).routes() if parts.log is not None else ()),
        *_replication_pages(parts, mastership),
    ]


def _replication_pages(parts: Parts, mastership: Mastership) -> list[web.RouteDef]:
    if parts.replica is None:
        return []

    def rotate() -> Future[None] | None:
        store = mastership.store
        return store.rotate() if isinstance(store, Store) else None

    return ReplicationPages(parts.replica, rotate).routes()


def _place(parts: Parts, name: str) -> Place:
    """Return the paths of one of several stores; with ROOT, those of the only store."""
    options = parts.settings.store
    index_root = options.index_directory
    if index_root is not None and name != ROOT:
        index_root = os.path.join(index_root, name)
    archive = None
    if options.archive_data_logs:
        archive = options.directory_archive or os.path.join(parts.directory, name, DEFAULT_NAME)
    files = JournalFiles(os.path.normpath(os.path.join(parts.directory, name)))
    return Place(files, options.journal_max_file_length, True, index_root, archive)
