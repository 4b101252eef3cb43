"""A database with a clock that a fault may set, and the link to it, for the SQL of a lease (locker.sql.table).

SQLite in memory, one for all brokers of a simulation. Each statement takes place at one moment of the database's clock.
An answer that does not come in time leaves open whether the statement took place, or will.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.pool import NullPool

from tandemmq.locker.sql import connection as sql
from tandemmq.locker.sql.connection import SQLITE, Bounds
from tandemmq.locker.sql.table import Statements
from tandemmq.simulator.kernel import Process, World
from tandemmq.simulator.link import Link, NoAnswer

URL: Final = make_url("sqlite:///simulated")
#: SQLite with another clock.
DIALECT: Final = replace(SQLITE, now_ms="simulated_now_ms()", prepare=lambda bounds, is_mariadb: [])
#: A link has its own limits, so these have no effect.
BOUNDS: Final = Bounds(1.0, 1.0, 1.0)
LEASE: Final = Statements()


class Result(NamedTuple):
    """Result of a statement."""

    rows: list[tuple[Any, ...]]
    description: Any
    rowcount: int


class Database:
    """The database server. ``wall_offset``: of its clock, which a fault may set."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wall_offset = 1_700_000_000.0
        self._sqlite = sqlite3.connect(":memory:", isolation_level=None)
        self._sqlite.create_function("simulated_now_ms", 0, self.now_ms)

    def now_ms(self) -> int:
        return int((self.wall_offset + self.world.now) * 1000)

    def execute(self, statement: str, parameters: Sequence[Any]) -> Result:
        """Execute a statement at this moment, committed. Raises the errors of sqlite3."""
        cursor = self._sqlite.execute(statement, parameters)
        return Result(cursor.fetchall(), cursor.description, cursor.rowcount)

    def empty_row(self) -> None:
        """Free the lease, as an operator might."""
        self._on_table(f"UPDATE {LEASE.table} SET {LEASE.name} = NULL, {LEASE.time} = NULL")

    def delete_row(self) -> None:
        """Delete the row, as an operator might."""
        self._on_table(f"DELETE FROM {LEASE.table}")

    def _on_table(self, statement: str) -> None:
        try:
            self.execute(statement, ())
        except sqlite3.OperationalError:
            pass  # the table is not made yet

    def close(self) -> None:
        self._sqlite.close()


@dataclass(frozen=True, slots=True)
class ReachedDatabase(sql.Database):
    """Database as one process reaches it over its link. ``granted`` is called at the moment when a statement of the
    process took the lease, whether the process gets the answer or not."""

    server: Database
    process: Process
    link: Link
    granted: Callable[[], None]

    def engine(self) -> Engine:
        return create_engine(
            self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT", creator=lambda: _Connection(self)
        )

    def call(self, statement: str, parameters: Sequence[Any]) -> Result:
        """Execute a statement over the link. Raises sqlite3.OperationalError when nothing answers."""

        def effect() -> Result:
            result = self.server.execute(statement, parameters)
            if result.rowcount == 1 and _takes_lease(statement) and not self.process.is_dead:
                self.granted()
            return result

        try:
            return self.link.call(self.process, effect)
        except NoAnswer:
            raise sqlite3.OperationalError("the simulated database does not answer") from None


def reached(server: Database, process: Process, link: Link, granted: Callable[[], None]) -> ReachedDatabase:
    """Return ``server`` for one process."""
    return ReachedDatabase(URL, DIALECT, BOUNDS, process.name, server, process, link, granted)


def _takes_lease(statement: str) -> bool:
    """Return whether a statement writes a name in place of another one: not a renewal, and not a release."""
    return statement.startswith("UPDATE") and " IN (" not in statement


class _Connection:
    """Part of sqlite3.Connection that SQLAlchemy uses. Everything is committed at once."""

    def __init__(self, reached: ReachedDatabase) -> None:
        self.isolation_level = None
        self._reached = reached
        reached.call("SELECT 1", ())  # a connect needs an answer

    def cursor(self) -> _Cursor:
        return _Cursor(self._reached)

    def create_function(self, *arguments: Any, **named: Any) -> None:
        """Do nothing: the server has its own functions."""

    def commit(self) -> None:
        """Do nothing: every statement is committed."""

    def rollback(self) -> None:
        """Do nothing: there is nothing to undo."""

    def close(self) -> None:
        """Do nothing: nothing is kept open."""


class _Cursor:
    arraysize = 1
    lastrowid = None

    def __init__(self, reached: ReachedDatabase) -> None:
        self._reached = reached
        self._result = Result([], None, -1)

    @property
    def description(self) -> Any:
        return self._result.description

    @property
    def rowcount(self) -> int:
        return self._result.rowcount

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self._result = self._reached.call(statement, parameters)

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows, self._result = self._result.rows, self._result._replace(rows=[])
        return rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._result.rows.pop(0) if self._result.rows else None

    def close(self) -> None:
        """Do nothing: nothing is kept open."""
