"""A row that is locked by an open transaction is ours only while that very transaction sees what it wrote."""

# proves: row-lock

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: the extra sqlite")

from tandemmq.locker.contract import LockRefused, LockRequest
from tandemmq.locker.kinds import create
from tandemmq.locker.sql.database import DatabaseLocker

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
    with pytest.raises(LockRefused, match="hit 0 rows"):
        a.try_acquire()
