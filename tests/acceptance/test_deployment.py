"""A pair on two hosts: their links are cut, their volume hangs, and balancers ask for their health."""

from __future__ import annotations

import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import ROOT, BrokerProcess
from tests.support.acceptance.hosts import PROGRAMS, BrokerOnHost, Host, not_allowed
from tests.support.acceptance.load import Books
from tests.support.acceptance.reachable_database import reachable_postgres
from tests.support.acceptance.under_load import demand_kept, under_load, wait_for_receipts
from tests.support.prove import rounds

#: So many rounds of each way to cut a host off; none: one way, once.
ROUNDS = rounds(0, 5)
LEASE = ("locker.type=lease-database", "locker.lock_acquire_sleep_interval=1s", "locker.lock_keep_alive_period=200ms")


# -- two hosts -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hosts(tmp_path: Path, require_service: Callable[[object, str], None]) -> Iterator[list[Host]]:
    for program in PROGRAMS:
        require_service(shutil.which(program), f"{program} is not installed")
    reason = not_allowed(tmp_path)
    if reason is not None:
        pytest.skip(reason)
    (tmp_path / "volume").mkdir()
    with ExitStack() as stack:
        made = []
        for number in (1, 2):
            host = Host(number, tmp_path, tmp_path / "volume")
            stack.callback(host.remove)
            made.append(host)
        yield made


@pytest.fixture
def pair(
    hosts: list[Host], tmp_path: Path, require_service: Callable[[object, str], None]
) -> Iterator[tuple[BrokerOnHost, BrokerOnHost]]:
    """A broker on each host, one master; the lease is in a PostgreSQL of this machine."""
    server = reachable_postgres(require_service)
    url = server.fresh("lease")
    brokers = []
    try:
        for name, host in zip("ab", hosts, strict=True):
            source = url.replace("@127.0.0.1:", f"@{host.gateway}:")
            settings = (*LEASE, f"locker.data_source={source}", f"store.index_directory={tmp_path}/index-{name}")
            brokers.append(BrokerOnHost(host, name, *(word for each in settings for word in ("--set", each))))
        for broker, role in zip(brokers, ("master", "standby"), strict=True):
            broker.start()
            broker.wait_role(role)
        yield brokers[0], brokers[1]
    finally:
        for broker in brokers:
            broker.host.mend_volume()
            broker.stop()
        server.remove()
    report = check(str(tmp_path / "volume" / "data"), str(tmp_path / "index-a"))
    assert report.is_clean, report.problems


@pytest.mark.service
@pytest.mark.prove
@pytest.mark.timeout(120 + 120 * ROUNDS)
def test_hosts_that_are_cut_off_are_replaced_and_stand_by_when_they_are_back(
    pair: tuple[BrokerOnHost, BrokerOnHost],
) -> None:
    """Clients and database out of reach; then the volume; then all three. Each time the other one goes on."""
    a, b = pair
    pids = a.pid, b.pid

    def cut_link_of_a(books: Books) -> None:
        a.host.cut_link()
        b.wait_role("master")
        wait_for_receipts(books)
        a.host.mend_link()
        a.wait_role("standby")

    def hang_volume_of_b(books: Books) -> None:
        b.host.hang_volume()
        a.wait_role("master", 40)
        wait_for_receipts(books)
        b.host.mend_volume()
        b.wait_role("standby", 40)

    def cut_all_of_a(books: Books) -> None:
        a.host.cut_link()
        a.host.hang_volume()
        b.wait_role("master", 40)
        wait_for_receipts(books)
        a.host.mend_link()
        a.host.mend_volume()
        a.wait_role("standby", 40)

    def hand_back(books: Books) -> None:
        b.command("handover")
        a.wait_role("master")
        b.wait_role("standby")

    acts = (cut_link_of_a, hang_volume_of_b, cut_all_of_a, hand_back) * ROUNDS or (cut_link_of_a,)
    books, outages = under_load([a.address, b.address], *acts)
    for act in dict.fromkeys(acts):
        seconds = sorted(outage for each, outage in zip(acts, outages, strict=True) if each is act)
        output_text = f"p50 {seconds[len(seconds) // 2]:.2f} s, at most {seconds[-1]:.2f} s without a receipt"
        print(f"{act.__name__.replace('_', ' ')}: {len(seconds)} times, {output_text}")
    print(
        f"{len(books.stored)} stored, {len(books.acknowledged)} acknowledged, {len(books.problems())} promises broken"
    )
    demand_kept(books)
    assert (a.pid, b.pid) == pids, "they step down, and do not end"


# -- what is watched -----------------------------------------------------------------------------------------------


@pytest.mark.promise("metrics-exist")
@pytest.mark.parametrize("page", ["docs/operations.md", "deploy/prometheus-rules.yml"])
def test_each_metric_that_is_to_be_watched_is_there(two: tuple[BrokerProcess, BrokerProcess], page: str) -> None:
    named = set(re.findall(r"\btandemmq_[a-z_]+\b", (ROOT / page).read_text()))
    shown = "".join(text(broker, "metrics") for broker in two)
    assert named
    assert {name for name in named if not re.search(rf"^{name}(_bucket)?\b", shown, re.MULTILINE)} == set()


# -- health --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """A master and a standby on this host."""
    data = tmp_path_factory.mktemp("two") / "data"
    a, b = (BrokerProcess(data, name) for name in "ab")
    try:
        a.start().wait_role("master")
        b.start().wait_role("standby")
        yield a, b
    finally:
        a.stop()
        b.stop()
    assert check(str(data)).is_clean


def text(broker: BrokerProcess, page: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{broker.admin}/{page}", timeout=5) as answer:
        return str(answer.read().decode())


def code(broker: BrokerProcess, page: str, method: str = "GET") -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{broker.admin}/{page}", method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


HEALTH = {  # page -> code of a master, of a standby
    "health": (200, 200),
    "health?ready": (200, 503),
    "health/live": (200, 200),
    "health/ready": (200, 503),
    "health/standby": (503, 200),
}


@pytest.mark.promise("health")
@pytest.mark.parametrize("page", HEALTH)
def test_balancers_tell_master_and_standby_apart(two: tuple[BrokerProcess, BrokerProcess], page: str) -> None:
    assert tuple(code(broker, page) for broker in two) == HEALTH[page]
    assert tuple(code(broker, page, "HEAD") for broker in two) == HEALTH[page]
