"""A database whose own clock is set, by an hour either way, while a lease is held in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.locker.contract import Locker, LockRequest
from tandemmq.locker.kinds import create
from tests.contract.locker.test_contract import eventually

pytestmark = pytest.mark.service

LEASE_SECONDS = 3.0


class Clock:
    """How far the server's clock is from the true one; libfaketime reads the file at each question."""

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


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def clock(server: Any, require_service: Callable[[object, str], None]) -> Iterator[Clock]:
    """The server runs with a clock of its own until the end of the test."""
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


@pytest.fixture
def lockers(server: Any, request_for: Callable[..., LockRequest]) -> Iterator[list[Locker]]:
    url = server.fresh("clocks")
    made: list[Locker] = []
    for name in ("a", "b"):
        request = request_for(name, lock_acquire_sleep_interval_seconds=LEASE_SECONDS)
        made.append(create("lease-database", replace(request, options={"data_source": url, "query_timeout": 5_000})))
    yield made
    for locker in made:
        locker.release()


def test_set_back_it_keeps_a_living_master_and_no_dead_one(clock: Clock, lockers: list[Locker]) -> None:
    a, b = lockers
    assert a.try_acquire()
    assert not b.try_acquire()
    clock.set_by(-1)
    assert a.keep_alive()
    assert not b.try_acquire()
    clock.set_by(-2)
    # From here on a is silent.
    assert eventually(b.try_acquire, 0.1)
    assert b.clock.now() - a.proof().known_at_seconds > LEASE_SECONDS
    assert not a.proof().holds_at(a.clock.now())
    assert not a.keep_alive()
    assert b.keep_alive()


def test_set_forward_it_lets_a_standby_in_and_the_master_knows_at_its_next_question(
    clock: Clock, lockers: list[Locker]
) -> None:
    a, b = lockers
    assert a.try_acquire()
    assert not b.try_acquire()
    clock.set_by(1)
    assert b.try_acquire()
    assert not a.keep_alive()
    assert b.keep_alive()
