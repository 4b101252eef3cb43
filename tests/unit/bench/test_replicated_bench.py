"""The scenario of sets: real nodes under load, through a change of masters, and one that catches up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.bench.catch_up import plain_copy
from tandemmq.bench.driver.plan import Endpoint, LoadPlan
from tandemmq.bench.peers.replicated import JAR
from tandemmq.bench.replicated import SIGTERM, Run, has_failed, outages, ratios, replicated, throughput


@pytest.fixture
def zookeeper(require_service: Callable[[object, str], None]) -> None:
    pytest.importorskip("kazoo", reason="kazoo is not installed: the extra zookeeper")
    require_service(JAR.exists(), f"no ZooKeeper in {JAR}: the Debian package zookeeper")


@pytest.mark.service
@pytest.mark.thorough
@pytest.mark.usefixtures("zookeeper")
class TestARun:
    def test_a_set_takes_both_loads_and_its_processes_are_measured(self) -> None:
        plan = LoadPlan(Endpoint("127.0.0.1", 0), body_bytes=100, seconds=0.5, warmup_seconds=0.1)
        figures = throughput(["tandemmq-quorum_mem"], 1, plan, lambda line: None)
        assert [(run["load"], run["problem"]) for run in figures["runs"]] == [("windowed", None), ("waiting", None)]
        for run in figures["runs"]:
            assert run["confirmed"] == run["received"] > 0
            assert len(run["server_cpu_seconds_each"]) == 4, "three nodes and ZooKeeper"

    def test_a_master_that_ends_is_replaced_and_nothing_is_lost(self) -> None:
        (case,) = outages(1, 0, lambda line: None, ends=[SIGTERM], load=50)
        assert case["problem"] is None
        assert (case["rounds"], case["lost"], case["undone"]) == (1, 0, 0)
        assert 0 < case["max_seconds"] < 60

    def test_an_empty_node_catches_up_beside_a_load(self) -> None:
        figures = replicated(["catch-up"], [], 1, LoadPlan(Endpoint("127.0.0.1", 0)), 0, 0.02, 1, lambda line: None)
        assert not has_failed(figures), figures
        found = figures["catch-up"]
        (measured,) = found["rounds"]
        assert measured["bytes"] > 0.02 * 10**9 / 2
        assert measured["megabytes_per_second"] > 0
        assert measured["copy_megabytes_per_second"] > 0
        load = measured["load"]
        assert load["at_rest"]["receipts"]
        # So little is copied at once, perhaps between two messages of the load.
        assert load["while_the_node_starts"]["receipts"] + load["during"]["receipts"]
        assert found["medians"]["of_the_copy"] == measured["of_the_copy"]


def test_a_plain_copy_moves_every_byte(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}" for number in range(3)]
    for number, path in enumerate(files):
        path.write_bytes(bytes(number * 700_000))
    copied, seconds = plain_copy(files, tmp_path)
    assert copied == 3 * 700_000
    assert seconds > 0


def test_a_file_that_grows_meanwhile_is_copied_as_it_was(tmp_path: Path) -> None:
    first, growing = tmp_path / "1", tmp_path / "2"
    for path in (first, growing):
        path.write_bytes(bytes(3 << 20))
    grows = threading.Timer(0.2, lambda: growing.write_bytes(bytes(5 << 20)))
    grows.start()
    copied, _ = plain_copy([first, growing], tmp_path, rate=6 << 20)
    grows.join()
    assert copied == 6 << 20


def test_a_paced_copy_goes_no_faster(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 << 20))
    copied, seconds = plain_copy([path], tmp_path, rate=10 << 20)
    assert copied / seconds <= 10 << 20


def test_ratios_are_of_the_means_and_leave_out_who_could_not_run() -> None:
    def run(group: str, rate: float | None) -> Run:
        if rate is None:
            return Run(group, "windowed", 1, {}, "not installed")
        names = ("receipt_p50_ms", "receipt_p99_ms", "cpu_us_per_message")
        return Run(group, "windowed", 1, {"sent_per_second": rate, **dict.fromkeys(names, 1.0)})

    runs = [run("tandemmq-quorum_disk", 20.0), run("tandemmq-quorum_disk", 40.0), run("tandemmq", 60.0)]
    found = ratios([*runs, run("rabbitmq-quorum", None)], "windowed")
    assert found == {"tandemmq-quorum_disk": {"tandemmq": 0.5, "rabbitmq-quorum": None}}


@pytest.mark.parametrize(
    ("figures", "is_failed"),
    [
        ({"throughput": {"runs": [{"problem": "x", "broker": "rabbitmq-quorum"}]}}, False),
        ({"throughput": {"runs": [{"problem": "x", "broker": "tandemmq-quorum_mem"}]}}, True),
        ({"outage": [{"problem": None, "lost": 0, "undone": 0}]}, False),
        ({"outage": [{"problem": None, "lost": 1, "undone": 0}]}, True),
        ({"catch-up": {"problem": "it does not catch up"}}, True),
    ],
)
def test_it_fails_by_what_is_ours(figures: dict[str, object], is_failed: bool) -> None:
    assert has_failed(figures) is is_failed
