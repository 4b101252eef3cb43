"""Faults of a database, and other names that its operator may have set."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from tandemmq.locker.contract import Locker, LockRefused, LockRequest, LockSettingsError, LockUnavailable, UnknownLocker
from tandemmq.locker.kinds import create
from tandemmq.locker.options import Options
from tandemmq.locker.sql.connection import Bounds, database
from tandemmq.locker.sql.database import DatabaseLocker
from tandemmq.locker.sql.table import Statements
from tests.contract.locker.test_contract import answers, eventually
from tests.support.prove import IS_PROOF
from tests.support.services.proxy import Proxy

KINDS = ["lease-database", "database"]
#: A bound of patience, far beyond the query timeout of the tests.
HANGS_SECONDS = 10.0
QUERY_MS = 400
CLOCK_LEASE_SECONDS = 3.0
_fresh = itertools.count()

Make = Callable[..., Locker]


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Any:
    """A server, running; also after the test."""
    return request.getfixturevalue(request.param)


def on_servers(*kinds: str) -> pytest.MarkDecorator:
    """Each server once and each kind once; all of them on demand."""
    pairs = list(zip(["postgres", "mariadb"], kinds, strict=True))
    if IS_PROOF:
        pairs = list(itertools.product(["postgres", "mariadb"], KINDS))
    return pytest.mark.parametrize(("server", "kind"), pairs, indirect=["server"])


@pytest.fixture
def name(server: Any) -> str:
    found = f"sql{next(_fresh)}"
    server.fresh(found)
    return found


@pytest.fixture
def proxy(server: Any) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()


@pytest.fixture
def make(request_for: Callable[..., LockRequest]) -> Iterator[Make]:
    """A locker by kind, URL and options; released at the end."""
    made: list[Locker] = []

    def build(kind: str, url: str, name: str = "a", lease: float = 30.0, **options: object) -> Locker:
        request = request_for(name, lock_acquire_sleep_interval_seconds=lease)
        settings = {"data_source": url, "query_timeout": 5_000, **options}
        made.append(create(kind, replace(request, options=settings)))
        return made[-1]

    yield build
    for locker in made:
        locker.release()


# ---- a server that is away


@pytest.mark.service
def test_a_lease_outlives_the_restart_of_the_database(server: Any, name: str, make: Make) -> None:
    a, b = make("lease-database", server.url(name)), make("lease-database", server.url(name), "b")
    assert a.try_acquire()
    server.kill()
    with pytest.raises(LockUnavailable):
        a.keep_alive()
    server.start()
    assert eventually(lambda: answers(a.keep_alive))
    assert not b.try_acquire()


@pytest.mark.service
def test_a_transaction_ends_with_the_database(server: Any, name: str, make: Make) -> None:
    a, b = make("database", server.url(name)), make("database", server.url(name), "b")
    assert a.try_acquire()
    server.kill()
    assert not a.keep_alive()
    with pytest.raises(LockUnavailable):
        b.try_acquire()
    server.start()
    assert not a.keep_alive()
    assert eventually(lambda: answers(b.try_acquire))


@pytest.mark.service
@on_servers("lease-database", "database")
def test_a_server_that_swallows_what_is_sent_holds_up_nobody_for_long(
    server: Any, name: str, proxy: Proxy, make: Make, kind: str
) -> None:
    url = server.url(name, proxy.port)
    a, b = (make(kind, url, each, query_timeout=QUERY_MS) for each in ("a", "b"))
    assert eventually(lambda: answers(a.try_acquire))
    assert eventually(lambda: not answers(b.try_acquire) and b.holder() is not None)
    started = time.monotonic()
    with proxy.swallow():
        # For one kind that is "unknown", for the other the end of its lock.
        assert not answers(a.keep_alive)
        with pytest.raises(LockUnavailable):
            b.try_acquire()
        with pytest.raises(LockUnavailable):
            make(kind, url, "c", query_timeout=QUERY_MS).try_acquire()
        a.release()
    assert time.monotonic() - started < HANGS_SECONDS


@pytest.mark.service
def test_a_silent_master_is_not_waited_for_until_tcp_gives_up(
    server: Any, name: str, proxy: Proxy, request_for: Callable[..., LockRequest], make: Make
) -> None:
    bounds = Bounds(5.0, 5.0, 0.0, silence_seconds=1.0)
    url = database(server.url(name, proxy.port), bounds, "test")
    master = DatabaseLocker(request_for("a"), url, url, Statements(), may_create=True)
    b = make("database", server.url(name), "b")
    assert master.try_acquire()
    assert not b.try_acquire()
    with proxy.swallow():
        assert eventually(b.try_acquire)
    assert not master.keep_alive()
    master.release()
    assert b.keep_alive()


# ---- a server whose own clock is set, by hours either way, while a lease is held in it


class Clock:
    """Difference between the server's clock and the true one; libfaketime reads the file at each query."""

    def __init__(self, path: Path, server: Any) -> None:
        self._path = path
        self._server = server

    def set_by(self, hours: int) -> None:
        before = self._now()
        self._path.write_text(f"{hours:+d}h\n")
        self._path.chmod(0o644)
        assert eventually(lambda: abs(self._now() - before) > 1_800)

    def _now(self) -> float:
        asked = {"Postgres": "EXTRACT(EPOCH FROM clock_timestamp())", "MariaDB": "UNIX_TIMESTAMP(SYSDATE())"}
        return float(self._server.sql(f"SELECT {asked[type(self._server).__name__]}")[0][0])


@pytest.fixture
def clock(server: Any, require_service: Callable[[object, str], None]) -> Iterator[Clock]:
    """The server runs with a separate clock until the end of the test."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    require_service(libraries, "no libfaketime: the Debian package faketime has it")
    path = server.directory / "clock"
    path.write_text("+0h\n")
    path.chmod(0o644)
    server.stop()
    server.start(
        {
            "LD_PRELOAD": str(libraries[0]),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    )
    yield Clock(path, server)
    server.kill()
    server.start()


@pytest.mark.service
def test_set_back_it_keeps_a_living_master_and_no_dead_one(clock: Clock, server: Any, name: str, make: Make) -> None:
    a, b = (make("lease-database", server.url(name), each, CLOCK_LEASE_SECONDS) for each in "ab")
    assert a.try_acquire()
    assert not b.try_acquire()
    clock.set_by(-1)
    assert a.keep_alive()
    assert not b.try_acquire()
    clock.set_by(-2)
    # From here on a is silent.
    assert eventually(b.try_acquire, 0.1)
    assert b.clock.now() - a.proof().known_at_seconds > CLOCK_LEASE_SECONDS
    assert not a.proof().holds_at(a.clock.now())
    assert not a.keep_alive()
    assert b.keep_alive()


@pytest.mark.service
def test_set_forward_it_lets_a_standby_in_and_the_master_knows_at_its_next_question(
    clock: Clock, server: Any, name: str, make: Make
) -> None:
    a, b = (make("lease-database", server.url(name), each, CLOCK_LEASE_SECONDS) for each in "ab")
    assert a.try_acquire()
    assert not b.try_acquire()
    clock.set_by(1)
    assert b.try_acquire()
    assert not a.keep_alive()
    assert b.keep_alive()


# ---- a server that refuses


@pytest.mark.service
@on_servers("lease-database", "database")
def test_a_wrong_password_and_a_missing_database_are_refusals(server: Any, name: str, make: Make, kind: str) -> None:
    url = make_url(server.url(name))
    for wrong in (url.set(password="not-this-one"), url.set(username="nobody"), url.set(database="no_such")):
        locker = make(kind, wrong.render_as_string(hide_password=False))
        with pytest.raises(LockRefused) as failure:
            locker.try_acquire()
        text = str(failure.value) + locker.where + repr(failure.value.__cause__)
        assert "not-this-one" not in text
        assert server.login[1] not in text


@pytest.mark.service
@on_servers("database", "lease-database")
def test_a_missing_table_is_a_refusal_where_it_may_not_be_made(server: Any, name: str, make: Make, kind: str) -> None:
    locker = make(kind, server.url(name), create_tables_on_startup=False)
    with pytest.raises(LockRefused) as failure:
        locker.try_acquire()
    assert failure.value.sqlstate in ("42P01", "42S02")
    make(kind, server.url(name), "b").try_acquire()
    locker.try_acquire()


@pytest.mark.service
@on_servers("lease-database", "database")
def test_a_table_without_its_row_is_a_refusal_or_gets_it(server: Any, name: str, make: Make, kind: str) -> None:
    server.sql(
        "CREATE TABLE ACTIVEMQ_LOCK(ID BIGINT NOT NULL, TIME BIGINT, BROKER_NAME VARCHAR(250), PRIMARY KEY (ID))",
        database=name,
    )
    with pytest.raises(LockRefused):
        make(kind, server.url(name), create_tables_on_startup=False).try_acquire()
    assert make(kind, server.url(name)).try_acquire()


@pytest.mark.service
@on_servers("database", "lease-database")
def test_who_may_not_write_is_refused(server: Any, name: str, make: Make, kind: str) -> None:
    holder = make(kind, server.url(name))
    assert holder.try_acquire()
    user = f"reader_{name}"
    server.create_reader(user, name)
    url = make_url(server.url(name)).set(username=user).render_as_string(hide_password=False)
    reader = make(kind, url, "b")
    try:
        assert not reader.try_acquire()  # reading may be enough to learn that another has it
    except LockRefused:
        assert kind == "database"
    holder.release()
    with pytest.raises(LockRefused) as failure:
        reader.try_acquire()
    assert str(failure.value.sqlstate).startswith("42")


@pytest.mark.service
def test_two_brokers_that_make_the_table_at_once_both_find_it(server: Any, name: str, make: Make) -> None:
    lockers = [make("lease-database", server.url(name), f"b{number}") for number in range(4)]
    with ThreadPoolExecutor(len(lockers)) as threads:
        taken = list(threads.map(lambda locker: locker.try_acquire(), lockers))
    assert taken.count(True) == 1
    assert len(server.sql("SELECT * FROM ACTIVEMQ_LOCK", database=name)) == 1


# ---- other names

ACTIVEMQS_OWN = {
    "lock_table_name": "the_lock",
    "lease_obtain_statement": "UPDATE the_lock SET BROKER_NAME=?, TIME=? WHERE (TIME IS NULL OR TIME < ?) AND ID = 1",
    "lease_update_statement": "UPDATE the_lock SET BROKER_NAME=?, TIME=? WHERE BROKER_NAME=? AND ID = 1;",
    "lease_owner_statement": "SELECT BROKER_NAME, TIME FROM the_lock WHERE ID = 1 AND 'a:b?' = 'a:b?'",
    "current_date_time_statement": "SELECT CURRENT_TIMESTAMP FROM the_lock",
    "lock_create_statement": "SELECT * FROM the_lock WHERE ID = 1 FOR UPDATE",
    "lock_update_statement": "UPDATE the_lock SET TIME = ? WHERE ID = 1",
}
OTHER_NAMES = {
    "table_prefix": "amq_",
    "lock_table_name": "locks",
    "id_column": "number",
    "time_column": "until",
    "broker_name_column": "who",
    "long_data_type": "NUMERIC(20)",
    "string_id_data_type": "VARCHAR(251)",
}


def excludes(make: Make, kind: str, url: str, **options: object) -> None:
    """Two brokers with these settings keep each other out, tell each other their names, and follow each other."""
    a, b = make(kind, url, "a", 2.0, **options), make(kind, url, "b", 2.0, **options)
    assert a.try_acquire()
    a.announce(3)
    assert not b.try_acquire()
    holder = b.holder()
    assert holder is not None
    assert (holder.name, holder.epoch) == ("a", 3)
    assert a.keep_alive()
    a.release()
    assert b.try_acquire()
    assert b.keep_alive()
    assert not a.keep_alive()
    b.release()
    assert a.holder() is None


@pytest.mark.service
@on_servers("lease-database", "database")
@pytest.mark.parametrize("statements", [ACTIVEMQS_OWN, OTHER_NAMES], ids=["statements", "names"])
def test_table_columns_and_statements_may_be_others(
    server: Any, name: str, make: Make, kind: str, statements: dict[str, str]
) -> None:
    excludes(make, kind, server.url(name), statements=statements)
    table = statements.get("table_prefix", "") + statements["lock_table_name"]
    assert server.sql(f"SELECT COUNT(*) FROM {table}", database=name)[0][0] in (1, 2)


@pytest.mark.service
def test_a_dead_masters_lease_is_taken_with_the_operators_statements(server: Any, name: str, make: Make) -> None:
    a, b = (make("lease-database", server.url(name), each, 1.0, statements=ACTIVEMQS_OWN) for each in ("a", "b"))
    assert a.try_acquire()
    # As if the database's clock had been set back by an hour.
    server.sql("UPDATE the_lock SET TIME = TIME + 3600000", database=name)
    assert not b.try_acquire()
    assert eventually(b.try_acquire, 0.1)
    assert not a.keep_alive()


@pytest.mark.parametrize(
    ("kind", "statements"),
    [
        *((kind, OTHER_NAMES) for kind in KINDS),
        ("database", {"use_lock_create_where_clause": False}),  # all rows are locked, as ActiveMQ does
    ],
)
def test_sqlite_takes_other_names_too(make: Make, tmp_path: Path, kind: str, statements: dict[str, object]) -> None:
    excludes(make, kind, f"sqlite:///{tmp_path / 'lock.db'}", statements=statements)


def test_the_schema_may_be_made_otherwise(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "lock.db"
    create = "CREATE TABLE t(ID INTEGER PRIMARY KEY, TIME INTEGER, BROKER_NAME TEXT, x TEXT DEFAULT ':a')"
    statements = {"create_lock_schema_statements": [create, "INSERT INTO t(ID) VALUES (1)"]}
    excludes(make, "lease-database", f"sqlite:///{path}", lock_table_name="t", statements=statements)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT ID, x FROM t").fetchall() == [(1, ":a")]
    connection.close()


# ---- SQLite


def test_what_is_no_sqlite_file_is_a_refusal(make: Make, tmp_path: Path) -> None:
    (tmp_path / "lock.db").write_bytes(b"something else" * 100)
    with pytest.raises(LockRefused):
        make("lease-database", f"sqlite:///{tmp_path / 'lock.db'}").try_acquire()


# ---- settings


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({}, "locker.data_source"),
        ({"data_source": "no url"}, "expected an SQLAlchemy URL"),
        ({"data_source": "oracle://u:s3cret@h/d"}, "postgresql, mysql, mariadb or sqlite"),
        ({"data_source": "sqlite://"}, "excludes no broker"),
        ({"data_source": "sqlite:////x", "nonsense": 1}, "locker.nonsense"),
        ({"data_source": "sqlite:////x", "statements": {"nonsense": 1}}, "locker.statements.nonsense"),
        ({"data_source": "sqlite:////x", "lock_table_name": "a; DROP"}, "locker.lock_table_name = 'a; DROP'"),
        (
            {"data_source": "sqlite:////x", "lock_table_name": "a", "statements": {"lock_table_name": "b"}},
            "the same as",
        ),
        (
            {"data_source": "sqlite:////x", "statements": {"lease_obtain_statement": "UPDATE x SET TIME = ?"}},
            r"3 parameters '\?': name, end, now",
        ),
        ({"data_source": "sqlite:////x", "query_timeout": "soon"}, "locker.query_timeout"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_settings_that_cannot_be_meant_are_named(
    make: Make, kind: str, expected: dict[str, object], message: str
) -> None:
    url = expected.get("data_source")
    options = {key: value for key, value in expected.items() if key != "data_source"}
    with pytest.raises(LockSettingsError, match=message) as failure:
        make(kind, url, **options)
    assert "s3cret" not in str(failure.value)


def test_a_driver_that_is_not_installed_is_named_with_what_brings_it(make: Make) -> None:
    with pytest.raises(UnknownLocker, match=r"mysql\+aiomysql is not installed .*tandemmq\[mysql\]"):
        make("lease-database", "mysql+aiomysql://u:s3cret@h/d")


@pytest.mark.service
def test_an_option_that_the_driver_does_not_know_is_a_refusal(server: Any, name: str, make: Make) -> None:
    with pytest.raises((LockRefused, LockUnavailable), match="nonsense"):
        make("lease-database", f"{server.url(name)}?nonsense=1").try_acquire()


def test_a_locker_that_is_only_built_asks_nobody_and_shows_no_password(make: Make) -> None:
    for kind in KINDS:
        locker = make(kind, "postgresql://u:s3cret@h:5/d?password=s3cret")
        assert "h:5/d" in locker.where
        assert "s3cret" not in locker.where
        locker.release()


def test_parameters_are_told_from_texts() -> None:
    text = Statements.read(Options({}), {"lease_update_statement": "UPDATE t SET n=?, x='?:a' WHERE m=? OR a::int=?"})
    override = text.overrides["lease_update_statement"]
    assert override.sql == r"UPDATE t SET n=:p0, x='?\:a' WHERE m=:p1 OR a\:\:int=:p2"
    assert override.parameters(1, 2, 3) == {"p0": 1, "p1": 2, "p2": 3}
