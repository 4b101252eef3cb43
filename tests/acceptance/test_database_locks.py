"""Pairs of real brokers elect by a database, are replaced when killed, and show the password in no output."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.prove import IS_PROOF
from tests.support.services.postgres import Postgres
from tests.support.services.proxy import Proxy, Way

#: A server for each kind; each with each on demand.
PAIRS = [("postgres", "lease-database"), ("mariadb", "database")]
if IS_PROOF:
    PAIRS += [("postgres", "database"), ("mariadb", "lease-database")]

_fresh = itertools.count()


class Brokers:
    """Brokers over one store and one lock; gone at the end, and the store is looked through."""

    def __init__(self, data: Path, kind: str, url: str) -> None:
        self.data = data
        self.options = ("--set", f"locker.type={kind}")
        self.url = url
        self.started: list[BrokerProcess] = []

    def start(self, name: str, url: str = "") -> BrokerProcess:
        broker = BrokerProcess(self.data, name, *self.options)
        broker.environment = {"TANDEMMQ_LOCKER__DATA_SOURCE": url or self.url}
        self.started.append(broker)
        return broker.start()

    def end(self) -> None:
        for broker in self.started:
            broker.stop()
        assert check(str(self.data)).problems == []


@pytest.fixture(params=PAIRS, ids="-".join)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Brokers, Any]]:
    """Brokers that elect by a server, and the server."""
    server = request.getfixturevalue(request.param[0])
    brokers = Brokers(tmp_path / "data", request.param[1], server.fresh(f"brokers{next(_fresh)}"))
    yield brokers, server
    brokers.end()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """Brokers that elect by a lease in a file."""
    found = Brokers(tmp_path / "data", "lease-database", f"sqlite:///{tmp_path / 'lock.db'}")
    yield found
    found.end()


@pytest.mark.promise("locks-keep-their-contract")
@pytest.mark.service
def test_a_killed_master_is_followed_and_the_password_is_nobodys(served: tuple[Brokers, Any]) -> None:
    brokers, server = served
    a = brokers.start("a")
    a.wait_role("master")
    b = brokers.start("b")
    waiting = b.wait_role("standby")
    assert waiting["holder"]["name"] == "a"
    assert waiting["holder"]["pid"] == a.pid
    a.kill()
    serving = b.wait_role("master")
    assert serving["epoch"] > waiting["epoch"]
    assert b.terminate() == 0
    again = brokers.start("a")
    assert again.wait_role("master")["epoch"] > serving["epoch"]
    answer = json.dumps([waiting, serving]) + a.log.read_text() + b.log.read_text()
    assert server.login[1] not in answer
    assert "127.0.0.1" in answer


@pytest.mark.promise("locks-keep-their-contract")
@pytest.mark.service
@pytest.mark.parametrize("way", [Way.SILENT, Way.CUT], ids=lambda way: way.value)
def test_a_master_that_is_cut_off_is_followed_and_stands_by_when_it_is_back(
    tmp_path: Path, postgres: Postgres, way: Way
) -> None:
    proxy = Proxy(postgres.port)
    url = postgres.fresh(f"brokers{next(_fresh)}")
    brokers = Brokers(tmp_path / "data", "lease-database", url)
    try:
        a = brokers.start("a", url.replace(f":{postgres.port}/", f":{proxy.port}/"))
        epoch, pid = a.wait_role("master")["epoch"], a.pid
        b = brokers.start("b")
        b.wait_role("standby")
        proxy.set(way)
        assert b.wait_role("master")["epoch"] > epoch
        proxy.set(Way.OPEN)
        a.wait_role("standby")
        assert a.pid == pid, "it steps down, and does not end"
    finally:
        brokers.end()
        proxy.close()


def test_a_second_broker_of_one_name_ends_and_says_where_the_first_is(brokers: Brokers) -> None:
    first = brokers.start("same")
    first.wait_role("master")
    second = brokers.start("same")
    assert second.wait() == 2
    assert f"pid {first.pid}" in second.log.read_text()
    first.wait_role("master")


@pytest.mark.promise("locks-keep-their-contract")
def test_a_broker_that_was_killed_follows_itself(brokers: Brokers) -> None:
    first = brokers.start("same")
    first.wait_role("master")
    first.kill()
    assert brokers.start("same").wait_role("master")["epoch"] == 2
