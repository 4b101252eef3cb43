"""A connection to a database that SQLAlchemy knows, for a lock: bounded in time, reconnected when lost, its errors
classified.

No pool: a lock's connection is its own. Each statement is committed when it returns, unless `begin` was called before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from tandemmq.locker.contract import LockError, LockRefused, LockSettingsError, UnknownLocker
from tandemmq.locker.sql.dialects import POSTGRES, SQLITE, Bounds, Dialect, dialect_of
from tandemmq.locker.sql.errors import LockBusy, translate

logger = logging.getLogger(__name__)

_EXPECTED_URL: Final = "an SQLAlchemy URL: postgresql://user:password@host/database, mysql://…, sqlite:////path"

Parameters = Mapping[str, object]


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
    from tandemmq.locker.sql.postgres import BoundedConnection

    class Bounded(BoundedConnection):
        answer_seconds = seconds

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
