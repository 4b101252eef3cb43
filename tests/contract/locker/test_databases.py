"""Both database locks keep what every lock promises, on each database."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from sqlalchemy import make_url

from tandemmq.locker.contract import Locker, LockRequest
from tests.contract.locker.conftest import OtherProcess
from tests.contract.locker.test_contract import BetweenProcesses, Leased, OutOfReach, Refusing
from tests.support.locker.interleaved import Interleaved, InterleavedLease
from tests.support.locker.stepped_sql import sqlite_goes_by, statements_are_steps
from tests.support.prove import IS_PROOF
from tests.support.services.mariadb import MariaDB
from tests.support.services.postgres import Postgres
from tests.support.services.proxy import Proxy

pytestmark = pytest.mark.promise("locks-keep-their-contract")

DATABASE = "contract"
_fresh = itertools.count()
_prepared: list[Postgres | MariaDB] = []
FREE = "UPDATE {} SET BROKER_NAME = NULL, TIME = 0"


class _Database(BetweenProcesses, Refusing, Interleaved):
    """A separate database for each test, reached through a proxy."""

    url: str
    #: What takes processes of its own and waits for leases runs on PostgreSQL, and elsewhere on demand.
    has_children: ClassVar[bool] = True

    @pytest.fixture
    def child(
        self, spawn_locker: Callable[[str, LockRequest], OtherProcess], request_to: Callable[..., LockRequest]
    ) -> Callable[..., OtherProcess]:
        if not self.has_children:
            pytest.skip("runs on PostgreSQL, and with TANDEMMQ_PROVE=full on every database")
        return lambda name: spawn_locker(self.factory, request_to(name, **self.short))

    def options(self) -> dict[str, object]:
        # Patience: of tests that run beside others.
        return {"data_source": self.url, "query_timeout": 5_000}

    @pytest.fixture
    def place(self) -> Iterator[None]:
        with statements_are_steps():
            yield

    def stepped(self, request: LockRequest) -> Locker:
        return self.build(request)

    def refused(self, request: LockRequest) -> Locker:
        url = make_url(self.url).set(password="wrong").render_as_string(hide_password=False)
        return self.build(replace(request, options={**request.options, "data_source": url}))


class _Lease(_Database, Leased, OutOfReach):
    factory = "tandemmq.locker.sql.kinds:lease_database_locker"
    settings: ClassVar = {"lock_acquire_sleep_interval_seconds": 30.0}
    short: ClassVar = {"lock_acquire_sleep_interval_seconds": 1.0, "lock_keep_alive_period_seconds": 0.1}


class _Transaction(_Database):
    factory = "tandemmq.locker.sql.kinds:database_locker"


class _OnServer(_Database):
    """A separate table for each test, in one database, which is reached through a proxy."""

    pytestmark = pytest.mark.service
    switches_max = 1
    switches_of_three_max = 1

    def serve(self, server: Postgres | MariaDB) -> Iterator[None]:
        if server not in _prepared:
            server.fresh(DATABASE)
            _prepared.append(server)
        self.server, self.table = server, f"LOCK_{next(_fresh)}"
        self.proxy = Proxy(server.port)
        self.url = server.url(DATABASE, self.proxy.port)
        yield
        self.proxy.close()

    def options(self) -> dict[str, object]:
        return {**super().options(), "lock_table_name": self.table}

    def anew(self) -> None:
        self.server.sql(f"DROP TABLE IF EXISTS {self.table}", database=DATABASE)

    def out_of_reach(self, locker: Locker) -> AbstractContextManager[None]:
        return self.proxy.cut()


class _OnPostgres(_OnServer):
    @pytest.fixture(autouse=True)
    def _fresh_table(self, postgres: Postgres) -> Iterator[None]:
        yield from self.serve(postgres)


class _OnMariaDB(_OnServer):
    has_children = IS_PROOF

    # Each life of a lock connects again, which takes a tenth of a second here.
    switches_of_three_max = 1 if IS_PROOF else 0
    switches_of_asking_twice_max = switches_of_many_max = 2 if IS_PROOF else 1

    def anew(self) -> None:
        if IS_PROOF:
            super().anew()

    @pytest.fixture(autouse=True)
    def _fresh_table(self, mariadb: MariaDB) -> Iterator[None]:
        yield from self.serve(mariadb)


class _OnSQLite(_Database):
    has_children = IS_PROOF
    switches_max = 3 if IS_PROOF else 2
    switches_of_three_max = 1

    @pytest.fixture(autouse=True)
    def _fresh_database(self, tmp_path: Path) -> None:
        self.path = tmp_path / "lock.db"
        self.url = f"sqlite:///{self.path}"

    def options(self) -> dict[str, object]:
        return {"data_source": self.url, "query_timeout": 1_000}

    def anew(self) -> None:
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink()

    def refused(self, request: LockRequest) -> Locker:
        options = {**request.options, "data_source": "sqlite:////no/such/directory/lock.db"}
        return self.build(replace(request, options=options))

    @contextmanager
    def out_of_reach(self, locker: Locker) -> Iterator[None]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.close()


class TestLeaseOnPostgres(_OnPostgres, _Lease):
    def steal(self, locker: Locker) -> None:
        self.server.sql(FREE.format(self.table), database=DATABASE)


class TestLeaseOnMariaDB(_OnMariaDB, _Lease):
    def steal(self, locker: Locker) -> None:
        self.server.sql(FREE.format(self.table), database=DATABASE)


class TestLeaseOnSQLite(_OnSQLite, _Lease, InterleavedLease):
    @pytest.fixture
    def place(self) -> Iterator[None]:
        with statements_are_steps(), sqlite_goes_by(lambda: self.clock.now()):
            yield

    def steal(self, locker: Locker) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute(FREE.format("ACTIVEMQ_LOCK"))
        connection.close()


class TestTransactionOnPostgres(_OnPostgres, _Transaction):
    def steal(self, locker: Locker) -> None:
        self.server.end_sessions(DATABASE)


class TestTransactionOnMariaDB(_OnMariaDB, _Transaction):
    def steal(self, locker: Locker) -> None:
        self.server.end_sessions(DATABASE)


class TestTransactionOnSQLite(_OnSQLite, _Transaction):
    def steal(self, locker: Locker) -> None:
        self.path.unlink()
