"""A connection to a database that SQLAlchemy knows, for a lock: bounded in time, reconnected when lost, its errors
classified. A dialect says how databases differ: drivers, time limits, clocks, and how a row is locked.

No pool: a lock's connection is its own. Each statement is committed when it returns, unless `begin` was called before.
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

    connect   until there is a connection
    query     until a statement is answered
    lock      that a statement waits for a lock of others; 0: hardly at all
    silence   after which the server ends a session that is idle inside a transaction; None: never
    """

    connect_seconds: float
    query_seconds: float
    lock_seconds: float
    silence_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """A kind of database.

    driver     SQLAlchemy's name of dialect and driver; our `extra` installs it
    now_ms     an expression: ms since 1970, UTC, when it is evaluated and not when the transaction began
    begin      opens a transaction that ROLLBACK ends
    no_wait    after a SELECT: lock the row, or fail at once
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
        # A statement prepared on one server does not exist on another behind the same pooler.
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
    # A connection may be closed by a thread other than the one that opened it; two threads never use it at once.
    return {"timeout": bounds.lock_seconds, "check_same_thread": False}


def _sqlite_prepare(_bounds: Bounds, _is_mariadb: bool) -> list[str]:
    # All brokers that share the file are on one host. Their writes survive the brokers. The holder of the lock need not
    # survive the host, and a disk that is busy with messages must not make a master late.
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
#: SYSDATE, since NOW is the time when a statement began, which may have waited for a lock.
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
    """Return the dialect of the database. Raises LockSettingsError for a database without one."""
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
    """Rows that a statement returned, and the number of rows that it hit."""

    rows: list[tuple[Any, ...]]
    count: int


@dataclass(frozen=True, slots=True)
class Database:
    """A database and its connection: time bounds, and the name under which the database lists us."""

    url: URL = field(repr=False)
    dialect: Dialect
    bounds: Bounds
    client_name: str

    @property
    def where(self) -> str:
        """URL without password and options."""
        return self.url.set(password=None, query={}).render_as_string()

    def with_suffix(self, suffix: str) -> Database:
        """Return another SQLite file beside this one."""
        assert self.dialect is SQLITE, "a database on a server has no file"
        return replace(self, url=self.url.set(database=f"{self.url.database}{suffix}"))

    def engine(self) -> Engine:
        """Return an engine. Raises UnknownLocker when the driver is not installed."""
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
    """Return the database that `locker.data_source` names. Raises LockSettingsError, whose text contains no
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
    """Have a statement on PostgreSQL end within `seconds`; a later one raises OperationalError, and the connection
    cannot be used any more.

    The server's own time limits do not help when the network, a proxy or the server's machine drops what is sent: libpq
    then waits forever. psycopg lets its caller wait, in steps; so the limit is kept here.
    """
    import psycopg

    def bounded(waiting: Wait[Value]) -> Wait[Value]:
        """Run ``waiting`` with a time limit. psycopg resumes it at each step, a tenth of a second, even if nothing has
        come."""
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
    """Connection that is opened at the first statement and again after it was lost. For one thread at a time."""

    def __init__(self, database: Database, where: str | None = None) -> None:
        """Prepare the connection. `where` is the name in errors, if it is more than the database."""
        self.database = database
        self.where = where or database.where
        self._engine = database.engine()
        self._connection: Connection | None = None

    @property
    def dialect(self) -> Dialect:
        return self.database.dialect

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection as far as is known: the server is not queried."""
        return self._connection is not None

    def execute(self, statement: str, parameters: Parameters | None = None) -> Answer:
        """Execute a statement. Raises LockBusy and LockRefused, which keep the connection, or LockUnavailable, which
        closes it."""
        try:
            return self._execute(self._connected(), statement, parameters or {})
        except DBAPIError as error:
            raised = translate(error, self.where)
            if error.connection_invalidated or not isinstance(raised, LockBusy | LockRefused):
                self.close()
            raise raised from error

    def begin(self) -> None:
        """Begin a transaction, which lasts until `rollback`."""
        self.execute(self.dialect.begin)

    def rollback(self) -> None:
        """End the transaction, if there is one and a connection. Never raises."""
        if self._connection is None:
            return
        try:
            self.execute("ROLLBACK")
        except LockError as error:
            logger.debug("%s: nothing rolled back: %s", self.where, error)
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
                # Errors of drivers for options that they do not know, and for a log-in that they cannot do.
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
