"""A proof counts from before the request to the lock: the time until the answer makes the proof older.

By clocks that go on while the lock is asked, and stand still otherwise.
"""

# proves: lease, memory-lock, proof-grows-old, row-lock, shared-file-lock

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.locker.contract import Holder, Locker, LockRequest, LockSettings
from tandemmq.locker.memory import MemoryLock, MemoryLocker
from tandemmq.locker.shared_file import SharedFileLocker
from tandemmq.locker.sql.lease_database import LeaseDatabaseLocker, LeaseSettings
from tandemmq.locker.volume import OsVolume
from tests.contract.locker.test_lease_database import ManualTable, Row
from tests.support.locker.manual_clock import ManualClock

ANSWER_SECONDS = 1.0
LEASE_SECONDS = 60.0


def request(directory: Path, clock: ManualClock) -> LockRequest:
    settings = LockSettings(lock_acquire_sleep_interval_seconds=LEASE_SECONDS)
    return LockRequest(str(directory), Holder("a", pid=os.getpid(), host="here"), settings, clock=clock)


class SlowLock(MemoryLock):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(lease_seconds=LEASE_SECONDS)
        self._clock = clock

    def take(self, who: object, holder: Holder, now_seconds: float) -> bool:
        self._clock.advance(ANSWER_SECONDS)
        return super().take(who, holder, now_seconds)

    def renew(self, who: object, now_seconds: float) -> bool:
        self._clock.advance(ANSWER_SECONDS)
        return super().renew(who, now_seconds)


class SlowTable(ManualTable):
    def _happens(self, verb: str, change: Callable[[], bool]) -> bool:
        self.row.clock.advance(ANSWER_SECONDS)
        return super()._happens(verb, change)


class SlowVolume(OsVolume):
    __slots__ = ("_clock",)

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def lock(self, descriptor: int) -> bool:
        self._clock.advance(ANSWER_SECONDS)
        return super().lock(descriptor)


def memory(asked: LockRequest, clock: ManualClock) -> Locker:
    return MemoryLocker(asked, SlowLock(clock))


def lease_database(asked: LockRequest, clock: ManualClock) -> Locker:
    return LeaseDatabaseLocker(asked, LeaseSettings("a"), lambda: SlowTable(Row(clock)), wall_clock=clock.now)


def shared_file(asked: LockRequest, clock: ManualClock) -> Locker:
    return SharedFileLocker(replace(asked, volume=SlowVolume(clock)))


def database(asked: LockRequest, clock: ManualClock) -> Locker:
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: the extra sqlite")
    from tandemmq.locker.sql.connection import Bounds, Database
    from tandemmq.locker.sql.connection import database as named
    from tandemmq.locker.sql.database import DatabaseLocker
    from tandemmq.locker.sql.table import Statements

    class SlowDatabase(Database):
        __slots__ = ()

        def engine(self) -> Any:
            engine = super().engine()
            sqlalchemy.event.listen(engine, "before_cursor_execute", lambda *_: clock.advance(ANSWER_SECONDS))
            return engine

    plain = named(
        f"sqlite:///{asked.directory}/lock.db", Bounds(connect_seconds=5.0, query_seconds=5.0, lock_seconds=0.0), "a"
    )
    slow = SlowDatabase(plain.url, plain.dialect, plain.bounds, plain.client_name)
    return DatabaseLocker(asked, slow, plain.with_suffix("-names"), Statements(), may_create=True)


@pytest.fixture(params=[memory, lease_database, shared_file, database])
def kind(request: pytest.FixtureRequest) -> Callable[[LockRequest, ManualClock], Locker]:
    made: Callable[[LockRequest, ManualClock], Locker] = request.param
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def locker(kind: Callable[[LockRequest, ManualClock], Locker], clock: ManualClock, tmp_path: Path) -> Iterator[Locker]:
    made = kind(request(tmp_path, clock), clock)
    yield made
    made.release()


def test_a_lock_that_was_taken_is_proved_from_before_it_was_asked_for(locker: Locker, clock: ManualClock) -> None:
    assert locker.try_acquire()
    # The last question was the one that was granted.
    assert locker.proof().known_at_seconds <= clock.now() - ANSWER_SECONDS


def test_a_lock_that_was_kept_is_proved_from_before_it_was_asked_for(locker: Locker, clock: ManualClock) -> None:
    assert locker.try_acquire()
    clock.advance(1.0)
    asked_at = clock.now()
    assert locker.keep_alive()
    assert clock.now() > asked_at
    assert locker.proof().known_at_seconds == asked_at
