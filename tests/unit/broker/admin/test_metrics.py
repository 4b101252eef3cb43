"""Every metric is named in one place, under a name that promtool accepts, and documented."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.admin.metric_table import METRICS, Kind
from tandemmq.broker.admin.metrics import SAMPLES, StatusCollector
from tests.support.acceptance.broker_process import BrokerProcess, wait_until

pytestmark = pytest.mark.promise("metrics-exist")


def test_each_is_named_once_and_only_counters_end_in_total() -> None:
    assert not [name for name, times in Counter(named.name for named in METRICS).items() if times > 1]
    for named in METRICS:
        assert named.name.endswith("_total") == (named.kind is Kind.COUNTER), named.name
        assert named.meaning.endswith("."), named.name


def test_each_has_a_place_in_the_status_or_its_own_samples() -> None:
    assert {named.name for named in METRICS if named.labels} == set(SAMPLES)
    assert all(bool(named.path) != bool(named.labels) for named in METRICS)


# ---- a real one


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    data = tmp_path_factory.mktemp("pair") / "data"
    a, b = (BrokerProcess(data, name) for name in "ab")
    try:
        a.start().wait_role("master")
        b.start().wait_role("standby")
        wait_until(lambda: (b.status() or {})["standby"]["has_caught_up"], "the standby has read the journal")
        yield a, b
    finally:
        for broker in (a, b):
            broker.stop()


def scraped(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def test_all_that_a_real_broker_counts_is_named(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    status: dict[str, Any] | None = pair[0].status()
    assert status is not None
    # Milliseconds are for people: metrics have the same in seconds.
    counted = set(status["counts"]) - {"loop_pause_max_ms"}
    assert counted == {named.path.removeprefix("counts.") for named in METRICS if named.path.startswith("counts.")}


def test_a_pair_shows_every_metric_but_those_of_a_set(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    shown = "".join(map(scraped, pair))
    missing = {named.full_name for named in METRICS if f"# HELP {named.full_name} " not in shown}
    assert {name for name in missing if not name.startswith(("tandemmq_replication_", "tandemmq_bridge_"))} == set()


def test_each_bridge_has_its_metrics() -> None:
    carried = {"connects": 2, "received": 3, "sent": 4, "refused": 5, "dropped": 6, "circled": 7, "waiting": 8}
    status = {"name": "a", "role": "master", "bridges": [{"name": "factory", "connected": True} | carried]}
    found = {each.name: each.samples[0] for each in StatusCollector(status).collect() if "_bridge_" in each.name}
    assert [sample.value for sample in found.values()] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(sample.labels == {"bridge": "factory"} for sample in found.values())


@pytest.mark.service
def test_promtool_accepts_each_name(
    pair: tuple[BrokerProcess, BrokerProcess], require_service: Callable[[object, str], None], tmp_path: Path
) -> None:
    require_service(shutil.which("promtool"), "promtool is not installed (Debian: prometheus)")
    for broker in pair:
        found = subprocess.run(
            ["promtool", "check", "metrics"], input=scraped(broker), capture_output=True, text=True, check=False
        )
        assert (found.returncode, found.stdout + found.stderr) == (0, "")
