"""Connection of a lock to a database, with SQLAlchemy: time limits, reconnection, classified errors. A Dialect has what
differs between databases: driver, time limits, clock, and how to lock a row.

Each lock has its own connection; there is no pool. A statement is committed when it returns, unless `begin` was called
before.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from tandemmq.locker.contract import LockError, LockRefused, LockSettingsError, UnknownLocker
from tandemmq.locker.sql.errors import LockBusy, translate

#: Lower limit of the time-out: psycopg rounds smaller values up to this.
POSTGRES_CONNECT_SECONDS_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class Bounds:
    """Time limits of a database, in seconds.

    connect   for opening a connection
    query     for a statement
    lock      for the time that a statement waits for a lock of another session; 0: as short as the database allows
    silence   after which the server ends a session that is idle inside a transaction; None: never
    """

    connect_seconds: float
    query_seconds: float
    lock_seconds: float
    silence_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """A kind of database.

    driver     SQLAlchemy's name of dialect and driver
    extra      the extra of the package `tandemmq` that installs the driver
    now_ms     SQL expression: ms since 1970, UTC, at its evaluation, not at the start of the transaction
    begin      statement that opens a transaction
    no_wait    suffix of a SELECT: lock the row, or fail at once
    connect    returns arguments of the driver's connect function
    prepare    returns statements that are executed after connecting
    """

    driver: str
    extra: str
    now_ms: str
    begin: str
    no_wait: str
    connect: Callable[[Bounds, str], dict[str, Any]]
    prepare: Callable[[Bounds, bool], list[str]]


def _postgres_connect(bounds: Bounds, name: str) -> dict[str, Any]:
    return {
        "connect_timeout": max(math.ceil(bounds.connect_seconds), POSTGRES_CONNECT_SECONDS_MIN),
        "tcp_user_timeout": _ms(bounds.query_seconds),
        "application_name": name[:63],
        # Behind a pooler, the next call may reach another server, where a prepared statement does not exist.
        "prepare_threshold": None,
    }


def _postgres_prepare(bounds: Bounds, _is_mariadb: bool) -> list[str]:
    limits = [
        "SET TIME ZONE 'UTC'",
        f"SET statement_timeout = {_ms(bounds.query_seconds)}",
        f"SET lock_timeout = {_ms(bounds.lock_seconds)}",
    ]
    if bounds.silence_seconds is not None:
        limits.append(f"SET idle_in_transaction_session_timeout = {_ms(bounds.silence_seconds)}")
    return ["; ".join(limits)]


def _mysql_connect(bounds: Bounds, name: str) -> dict[str, Any]:
    return {
        "connect_timeout": bounds.connect_seconds,
        "read_timeout": bounds.query_seconds,
        "write_timeout": bounds.query_seconds,
        "program_name": name,
    }


def _mysql_prepare(bounds: Bounds, is_mariadb: bool) -> list[str]:
    limits = ["time_zone = '+00:00'", "innodb_lock_wait_timeout = 1"]
    limits.append(f"max_statement_time = {bounds.query_seconds:.3f}") if is_mariadb else limits.append(
        f"max_execution_time = {_ms(bounds.query_seconds)}"
    )
    if bounds.silence_seconds is not None:
        limits.append(f"wait_timeout = {math.ceil(bounds.silence_seconds)}")
    return [f"SET SESSION {', '.join(limits)}"]


def _sqlite_connect(bounds: Bounds, _name: str) -> dict[str, Any]:
    # A thread may close a connection that another thread opened. Two threads never use a connection at the same time.
    return {"timeout": bounds.lock_seconds, "check_same_thread": False}


def _sqlite_prepare(_bounds: Bounds, _is_mariadb: bool) -> list[str]:
    # All brokers that share the file are on one host. Without a sync, a write survives the end of a broker, but not of
    # the host; then all brokers have ended too. A sync could be slow while the disk is busy with messages.
    return ["PRAGMA synchronous = OFF"]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


POSTGRES: Final = Dialect(
    "postgresql+psycopg",
    "postgres",
    "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "BEGIN",
    "FOR UPDATE NOWAIT",
    _postgres_connect,
    _postgres_prepare,
)
#: The time is SYSDATE. NOW would be the start of the statement, which may have waited for a lock.
MYSQL: Final = Dialect(
    "mysql+pymysql",
    "mysql",
    "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)",
    "START TRANSACTION",
    "FOR UPDATE NOWAIT",
    _mysql_connect,
    _mysql_prepare,
)
SQLITE: Final = Dialect(
    "sqlite",
    "sqlite",
    "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
    "BEGIN IMMEDIATE",
    "",
    _sqlite_connect,
    _sqlite_prepare,
)

_BY_NAME: Final = {"postgresql": POSTGRES, "mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}


def dialect_of(url: URL) -> Dialect:
    """Return the dialect of the database. Raises LockSettingsError for other databases."""
    name = url.get_backend_name()
    if name not in _BY_NAME:
        raise LockSettingsError("data_source", f"{name}://…", "postgresql, mysql, mariadb or sqlite before the ://")
    return _BY_NAME[name]


logger = logging.getLogger(__name__)

_EXPECTED_URL: Final = "an SQLAlchemy URL: postgresql://user:password@host/database, mysql://…, sqlite:////path"

Parameters = Mapping[str, object]
Value = TypeVar("Value")
Wait = Generator[Any, Any, Value]


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows that a statement returned, and the number of rows that it returned or changed."""

    rows: list[tuple[Any, ...]]
    count: int


@dataclass(frozen=True, slots=True)
class Database:
    """Address of a database, its time limits, and the name of this broker's connections in the lists of the server."""

    url: URL = field(repr=False)
    dialect: Dialect
    bounds: Bounds
    client_name: str

    @property
    def where(self) -> str:
        """URL without password and options."""
        return self.url.set(password=None, query={}).render_as_string()

    def with_suffix(self, suffix: str) -> Database:
        """Return the SQLite database in another file, whose name has this suffix."""
        assert self.dialect is SQLITE, "a database on a server has no file"
        return replace(self, url=self.url.set(database=f"{self.url.database}{suffix}"))

    def engine(self) -> Engine:
        """Return an engine. Raises UnknownLocker if the driver is not installed."""
        arguments = self.dialect.connect(self.bounds, self.client_name)
        options = {key: value for key, value in arguments.items() if key not in self.url.query}
        try:
            engine = create_engine(self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=options)
        except (ImportError, NoSuchModuleError) as error:
            extra = self.dialect.extra
            raise UnknownLocker(
                f"the driver of {self.url.drivername} is not installed ({error}): pip install 'tandemmq[{extra}]'"
            ) from error
        if self.dialect is POSTGRES:
            _bound(engine, self.bounds.query_seconds)
        return engine


def database(data_source: object, bounds: Bounds, client_name: str) -> Database:
    """Return the database at the URL `locker.data_source`. Raises LockSettingsError, whose text contains no
    password."""
    if not isinstance(data_source, str) or not data_source:
        raise LockSettingsError("data_source", data_source, _EXPECTED_URL)
    try:
        url = make_url(data_source)
    except (ArgumentError, ValueError) as error:
        raise LockSettingsError("data_source", "…", _EXPECTED_URL) from error
    dialect = dialect_of(url)
    if "+" not in url.drivername:
        url = url.set(drivername=dialect.driver)
    if dialect is SQLITE and url.database in (None, "", ":memory:"):
        raise LockSettingsError("data_source", data_source, "sqlite:////path: a database in memory excludes no broker")
    return Database(url, dialect, bounds, client_name)


def _bound(engine: Engine, seconds: float) -> None:
    """Limit a statement on PostgreSQL to `seconds`. After that it raises OperationalError, and the connection cannot be
    used any more.

    The time limits of the server do not help if the network, a proxy or the server's machine drops packets: libpq then
    waits forever. psycopg waits in steps, and this function checks the limit at each step.
    """
    import psycopg

    def bounded(waiting: Wait[Value]) -> Wait[Value]:
        """Run ``waiting`` with a time limit. psycopg resumes it every tenth of a second, also if no data arrived."""
        deadline = time.monotonic() + seconds
        try:
            wanted = next(waiting)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() >= deadline:
                    raise psycopg.OperationalError(f"no answer within {seconds:g} s")
                wanted = waiting.send(ready)
        except StopIteration as end:
            value: Value = end.value
            return value

    class Bounded(psycopg.Connection[Any]):
        def wait(self, gen: Wait[Value], *arguments: Any, **settings: Any) -> Value:
            return super().wait(bounded(gen), *arguments, **settings)

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, settings: Any) -> Any:
        return Bounded.connect(*arguments, **settings)


class Session:
    """Connection that is opened by the first statement, and again by the next statement after a loss. For one thread at
    a time."""

    def __init__(self, database: Database, where: str | None = None) -> None:
        """Make a session that is not connected yet. `where` is the name in errors; default: that of the database."""
        self.database = database
        self.where = where or database.where
        self._engine = database.engine()
        self._connection: Connection | None = None

    @property
    def dialect(self) -> Dialect:
        return self.database.dialect

    @property
    def is_connected(self) -> bool:
        """Return whether a connection is open. The server is not queried, so a broken connection may count as open."""
        return self._connection is not None

    def execute(self, statement: str, parameters: Parameters | None = None) -> Answer:
        """Execute a statement. Raises LockBusy or LockRefused, and the connection stays open, or LockUnavailable, and
        the connection is closed."""
        try:
            return self._execute(self._connected(), statement, parameters or {})
        except DBAPIError as error:
            raised = translate(error, self.where)
            if error.connection_invalidated or not isinstance(raised, LockBusy | LockRefused):
                self.close()
            raise raised from error

    def begin(self) -> None:
        """Begin a transaction, which lasts until `rollback`. Raises the errors of `execute`."""
        self.execute(self.dialect.begin)

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one. Never raises."""
        if self._connection is None:
            return
        try:
            self.execute("ROLLBACK")
        except LockError as error:
            logger.debug("%s: rollback failed: %s", self.where, error)
            self.close()

    def close(self) -> None:
        """Close the connection at once; an open transaction ends with it. Never raises."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.invalidate()
            connection.close()
        except DBAPIError as error:
            logger.debug("%s: closing failed: %s", self.where, error)

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                connection = self._engine.connect()
            except (TypeError, ValueError, RuntimeError) as error:
                # Drivers raise these errors for unknown options, and for a log-in method that they do not support.
                raise LockRefused(f"{self.where}: {error}") from error
            try:
                is_mariadb = bool(getattr(self._engine.dialect, "is_mariadb", False))
                for statement in self.dialect.prepare(self.database.bounds, is_mariadb):
                    self._execute(connection, statement, {})
            except DBAPIError:
                connection.invalidate()
                connection.close()
                raise
            self._connection = connection
        return self._connection

    @staticmethod
    def _execute(connection: Connection, statement: str, parameters: Parameters) -> Answer:
        result = connection.execute(text(statement), dict(parameters))
        if result.returns_rows:
            rows = [tuple(row) for row in result]
            return Answer(rows, len(rows))
        return Answer([], result.rowcount)
