"""Factories of the database locks, which read the settings of `[locker]`. This module needs SQLAlchemy, so it is
imported only for these kinds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.locker.contract import LockRequest
from tandemmq.locker.options import Options
from tandemmq.locker.sql.connection import SQLITE, Bounds, Database, database
from tandemmq.locker.sql.database import DatabaseLocker
from tandemmq.locker.sql.lease_database import LeaseDatabaseLocker, LeaseSettings
from tandemmq.locker.sql.table import SqlLeaseTable, Statements

#: Bounds of a query's time limit. The limit is half of a lease, so that there is time for a second query.
QUERY_SECONDS_MIN: Final = 0.25
QUERY_SECONDS_MAX: Final = 5.0
CONNECT_SECONDS_MIN: Final = 1.0
#: Kind `database`: a query may take this part (1/4) of a proof's length. The server ends a session that is silent for
#: this many times the length of a proof.
QUERIES_PER_PROOF: Final = 4
SILENCE_PER_PROOF: Final = 1.25


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Settings of `[locker]` for both kinds: the database, its time limits, its table and its statements."""

    data_source: object
    query_seconds: float | None
    create_tables_on_startup: bool
    statements: Statements

    @classmethod
    def read(cls, options: Options, statements: object) -> DatabaseSettings:
        """Read the settings. Raises LockSettingsError."""
        query_ms = options.number("query_timeout", 0.0)
        return cls(
            data_source=options.text("data_source"),
            query_seconds=query_ms / 1000 if query_ms > 0 else None,
            create_tables_on_startup=options.flag("create_tables_on_startup", True),
            statements=Statements.read(options, statements),
        )

    def bounds(self, usual_query_seconds: float, silence_seconds: float | None = None) -> Bounds:
        usual = min(max(usual_query_seconds, QUERY_SECONDS_MIN), QUERY_SECONDS_MAX)
        query_seconds = self.query_seconds or usual
        return Bounds(max(query_seconds, CONNECT_SECONDS_MIN), query_seconds, query_seconds / 2, silence_seconds)


def lease_database_locker(request: LockRequest) -> LeaseDatabaseLocker:
    """Make a locker that is not connected yet. Raises LockSettingsError, or UnknownLocker if the driver is not
    installed."""
    options, statements = _options(request)
    settings = DatabaseSettings.read(options, statements)
    lease = LeaseSettings.read(options, request.holder.name)
    options.end()
    bounds = settings.bounds(request.settings.lock_acquire_sleep_interval_seconds / 2)
    where = _database(settings, bounds, request)

    def open_table() -> SqlLeaseTable:
        return SqlLeaseTable(where, settings.statements, settings.create_tables_on_startup)

    return LeaseDatabaseLocker(request, lease, open_table)


def database_locker(request: LockRequest) -> DatabaseLocker:
    """Make a locker that is not connected yet. Raises LockSettingsError, or UnknownLocker if the driver is not
    installed."""
    options, statements = _options(request)
    settings = DatabaseSettings.read(options, statements)
    options.end()
    proof_seconds = request.settings.proof_seconds
    usual_seconds = QUERY_SECONDS_MAX if math.isinf(proof_seconds) else proof_seconds / QUERIES_PER_PROOF
    silence_seconds = None if math.isinf(proof_seconds) else proof_seconds * SILENCE_PER_PROOF
    names = _database(settings, settings.bounds(usual_seconds), request)
    # A poll does not wait for the holder of the lock. A write of the name may wait for a statement of another session.
    lock = replace(names, bounds=replace(names.bounds, lock_seconds=0.0, silence_seconds=silence_seconds))
    if lock.dialect is SQLITE:
        # A second connection cannot write to the locked file, so the name is in another file.
        names = names.with_suffix("-holder")
    return DatabaseLocker(request, lock, names, settings.statements, settings.create_tables_on_startup)


def _options(request: LockRequest) -> tuple[Options, object]:
    """Return the keys of `[locker]` for this kind, and the table [locker.statements]."""
    settings = dict(request.options)
    statements = settings.pop("statements", None)
    return Options(settings), statements


def _database(settings: DatabaseSettings, bounds: Bounds, request: LockRequest) -> Database:
    return database(settings.data_source, bounds, f"tandemmq {request.holder.name}")
