"""The statements by which a lease is taken, extended and freed hit the row only while it says what they ask for; and a
row that is locked by a transaction."""

# proves: lease, lease-table, proof-grows-old, row-lock

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: the extras sqlite, postgres, mysql")

from tandemmq.locker.contract import LockRefused, LockRequest
from tandemmq.locker.kinds import create
from tandemmq.locker.options import Options
from tandemmq.locker.sql.connection import Bounds, Session, database
from tandemmq.locker.sql.database import DatabaseLocker
from tandemmq.locker.sql.lease_database import LeaseRow
from tandemmq.locker.sql.table import TABLE, SqlLeaseTable, Statements

BOUNDS = Bounds(connect_seconds=5.0, query_seconds=5.0, lock_seconds=0.0)
LEASE_MS = 60_000
#: Long ago, and long to come, by any database's clock.
PAST_MS, FUTURE_MS = 1_000, 1 << 52
#: A statement of the operator's, which does not look at the end.
EXTEND = f"UPDATE {TABLE} SET BROKER_NAME = ?, TIME = ? WHERE BROKER_NAME = ?"
_fresh = itertools.count()


@dataclass
class Row:
    """Row of the table, and a client that may write any value into it."""

    table: SqlLeaseTable
    session: Session
    name: str

    def set(self, name: str, ends_ms: int) -> LeaseRow:
        self.session.execute(
            f"UPDATE {self.name} SET BROKER_NAME = :name, TIME = :ends WHERE ID = 1", {"name": name, "ends": ends_ms}
        )
        return self.table.read()

    def stands(self) -> tuple[str | None, int | None]:
        row = self.table.read()
        return row.name, row.ends_ms


SERVERS = [pytest.param(name, marks=pytest.mark.service) for name in ("postgres", "mariadb")]


@pytest.fixture(params=["sqlite", "a statement of the operator's", *SERVERS])
def row(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Row]:
    url, name = f"sqlite:///{tmp_path}/lock.db", f"ROWS_{next(_fresh)}"
    statements = Statements(table=name)
    if request.param == "a statement of the operator's":
        name, statements = TABLE, Statements.read(Options({}), {"lease_update_statement": f"{EXTEND} AND ID = 1"})
    elif request.param != "sqlite":
        server = request.getfixturevalue(request.param)
        server.fresh(name.lower())
        url = server.url(name.lower())
    named = database(url, BOUNDS, "test")
    table = SqlLeaseTable(named, statements, may_create=True)
    table.read()
    session = Session(named)
    yield Row(table, session, name)
    session.close()
    table.close()


def test_a_lease_that_has_ended_is_not_extended_though_nobody_took_it(row: Row) -> None:
    row.set("a", PAST_MS)
    assert not row.table.renew("a", LEASE_MS, ("a",))
    assert row.stands() == ("a", PAST_MS)


def test_a_lease_is_extended_by_its_holder_alone(row: Row) -> None:
    row.set("a", FUTURE_MS)
    assert not row.table.renew("b", LEASE_MS, ("b", "c"))
    assert row.stands() == ("a", FUTURE_MS)
    assert row.table.renew("a2", LEASE_MS, ("z", "a"))
    assert row.stands()[0] == "a2"


def test_a_lease_that_lasts_is_not_obtained(row: Row) -> None:
    row.set("a", FUTURE_MS)
    assert not row.table.obtain("b", LEASE_MS)
    assert row.stands() == ("a", FUTURE_MS)
    row.set("a", PAST_MS)
    assert row.table.obtain("b", LEASE_MS)
    assert row.stands()[0] == "b"


def test_a_row_is_taken_over_only_as_it_was_seen(row: Row) -> None:
    seen = row.set("a", FUTURE_MS)
    row.set("a", FUTURE_MS + 1)  # it was extended meanwhile
    assert not row.table.take_over("b", LEASE_MS, seen)
    row.set("c", FUTURE_MS)  # another broker has it, until the same millisecond
    assert not row.table.take_over("b", LEASE_MS, seen)
    assert row.stands() == ("c", FUTURE_MS)
    assert row.table.take_over("b", LEASE_MS, row.table.read())
    assert row.stands()[0] == "b"


def test_a_row_is_freed_by_its_holder_alone(row: Row) -> None:
    row.set("a", FUTURE_MS)
    row.table.free(("b", "c"))
    assert row.stands() == ("a", FUTURE_MS)
    row.table.free(("z", "a"))
    assert row.table.read().is_free


def test_a_lease_ends_at_its_end_and_not_behind_it() -> None:
    assert LeaseRow("a", 1_000, 1_000).is_free
    assert not LeaseRow("a", 1_001, 1_000).is_free
    assert LeaseRow(None, None, 1_000).is_free


# ---- statements of the operator's


@pytest.fixture
def overridden(tmp_path: Path) -> Iterator[Callable[..., Row]]:
    made: list[Row] = []

    def make(**options: str) -> Row:
        named = database(f"sqlite:///{tmp_path}/lock.db", BOUNDS, "test")
        table = SqlLeaseTable(named, Statements.read(Options({}), options), may_create=True)
        table.read()
        made.append(Row(table, Session(named), TABLE))
        return made[-1]

    yield make
    for row in made:
        row.session.close()
        row.table.close()


def test_a_statement_of_the_operators_that_hit_nothing_extended_nothing(overridden: Callable[..., Row]) -> None:
    row = overridden(lease_update_statement=f"{EXTEND} AND ID = 2")
    row.set("a", FUTURE_MS)
    assert not row.table.renew("a", LEASE_MS, ("a",))


def test_a_clock_that_shows_whole_seconds_does_not_end_a_lease_early(overridden: Callable[..., Row]) -> None:
    row = overridden(current_date_time_statement="SELECT 7000")
    row.set("a", PAST_MS)
    assert row.table.obtain("b", LEASE_MS)
    assert row.stands() == ("b", 7_000 + LEASE_MS + 999)
    row = overridden(current_date_time_statement="SELECT 7001")
    row.set("a", PAST_MS)
    assert row.table.obtain("b", LEASE_MS)
    assert row.stands() == ("b", 7_001 + LEASE_MS)


# ---- a row that is locked by an open transaction is ours only while that very transaction sees what it wrote


Make = Callable[..., DatabaseLocker]


@pytest.fixture
def make(request_for: Callable[..., LockRequest], tmp_path: Path) -> Iterator[Make]:
    """Lockers on one SQLite file."""
    made: list[DatabaseLocker] = []

    def build(name: str, **statements: str) -> DatabaseLocker:
        options = {"data_source": f"sqlite:///{tmp_path}/lock.db", "query_timeout": 5_000, "statements": statements}
        locker = create("database", replace(request_for(name), options=options))
        assert isinstance(locker, DatabaseLocker)
        made.append(locker)
        return locker

    yield build
    for locker in made:
        locker.release()


def test_who_lost_the_connection_lost_the_lock(make: Make) -> None:
    a = make("a")
    assert a.try_acquire()
    a._session.close()
    assert not a.keep_alive()


def test_who_lost_the_transaction_lost_the_lock_though_the_connection_stands(make: Make, tmp_path: Path) -> None:
    a, b = make("a"), make("b")
    assert b.try_acquire()
    b.release()
    with sqlite3.connect(tmp_path / "lock.db") as connection:
        connection.execute("UPDATE ACTIVEMQ_LOCK SET TIME = 5")  # what an ActiveMQ broker left there
    connection.close()
    assert a.try_acquire()
    a._session.rollback()
    assert b.try_acquire()
    assert not a.keep_alive()
    assert b.keep_alive()


def test_who_holds_a_file_that_was_replaced_holds_nothing(make: Make, tmp_path: Path) -> None:
    a, b = make("a"), make("b")
    assert a.try_acquire()
    os.rename(tmp_path / "lock.db", tmp_path / "away.db")
    assert b.try_acquire()
    assert not a.keep_alive()


def test_a_statement_that_locks_no_row_locks_nobody_out(make: Make) -> None:
    a = make("a", lock_update_statement="UPDATE ACTIVEMQ_LOCK SET TIME = ? WHERE ID = 2")
    with pytest.raises(LockRefused, match="changed 0 rows"):
        a.try_acquire()
