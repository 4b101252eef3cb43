"""Every metric is named in one place, under a name that promtool accepts, and documented; and what a scrape shows."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from tandemmq.broker.admin.metric_table import METRICS, Kind
from tandemmq.broker.admin.metrics import ROLES, SAMPLES, DestinationMetrics, StatusCollector
from tandemmq.broker.admin.status import LoopLag, set_problems, set_warnings
from tandemmq.broker.core.slices import ITEMS, at_once
from tandemmq.broker.ha.states import Phase, Trouble
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
    absent = ("tandemmq_replication_", "tandemmq_bridge_", "tandemmq_certificate_")  # no set, no bridge, no TLS
    assert {name for name in missing if not name.startswith(absent)} == set()


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


# ---- mastership: phase, lock, proof, demotions


BARE: dict[str, Any] = {"role": "standby", "epoch": 3, "name": "a", "store": "/data"}


def scrape(status: dict[str, Any]) -> list[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status))
    return generate_latest(registry).decode().splitlines()


@pytest.mark.parametrize("phase", list(Phase), ids=lambda phase: phase.value)
def test_exactly_one_phase_is_1(phase: Phase) -> None:
    lines = [line for line in scrape(BARE | {"phase": phase.value}) if line.startswith("tandemmq_phase{")]
    assert len(lines) == len(Phase)
    assert [line for line in lines if line.endswith(" 1.0")] == [f'tandemmq_phase{{phase="{phase.value}"}} 1.0']


def test_a_masters_lock_and_proof_are_shown() -> None:
    lock = {"type": "lease-database", "where": "the table", "proof_age_seconds": 0.2, "proof_holds_seconds": 1.3}
    lines = scrape(BARE | {"lock": lock, "last_takeover_seconds": 0.21})
    assert 'tandemmq_lock_info{kind="lease-database",where="the table"} 1.0' in lines
    assert "tandemmq_lock_proof_age_seconds 0.2" in lines
    assert "tandemmq_lock_proof_holds_seconds 1.3" in lines
    assert "tandemmq_last_takeover_seconds 0.21" in lines


def test_an_unknown_value_is_omitted() -> None:
    endless = {"type": "shared-file", "where": "x", "proof_age_seconds": 0.2, "proof_holds_seconds": None}
    lines = scrape(BARE | {"lock": endless, "last_takeover_seconds": None})
    assert not any(line.startswith(("tandemmq_lock_proof_holds", "tandemmq_last_takeover")) for line in lines)
    assert not any(line.startswith("tandemmq_lock_proof_age_seconds ") for line in scrape(BARE))


def test_connections_are_counted_by_connector() -> None:
    lines = scrape(BARE | {"connector_connections": {"amqp": 3, "stomp": 0}})
    assert 'tandemmq_connector_connections{connector="amqp"} 3.0' in lines
    assert 'tandemmq_connector_connections{connector="stomp"} 0.0' in lines


def test_demotions_are_counted_by_trouble_and_those_that_never_were_are_0() -> None:
    lines = scrape(BARE | {"demotions": {"LOCK_LOST": 2}, "counts": {"handovers_total": 1}})
    shown = {line for line in lines if line.startswith("tandemmq_demotions_total{")}
    assert 'tandemmq_demotions_total{trouble="LOCK_LOST"} 2.0' in shown
    assert 'tandemmq_demotions_total{trouble="DEPOSED"} 0.0' in shown
    assert len(shown) == len(Trouble)
    assert "tandemmq_handovers_total 1.0" in lines


def test_the_loops_lag_is_a_histogram() -> None:
    lag = LoopLag()
    for seconds in (-0.001, 0.0004, 0.02, 0.021, 60.0):
        lag.note(seconds)
    lines = scrape(BARE | {"loop_lag_seconds": lag.figures()})
    shown = dict(line.rsplit(" ", 1) for line in lines if line.startswith("tandemmq_loop_lag_seconds"))
    assert shown['tandemmq_loop_lag_seconds_bucket{le="0.001"}'] == "2.0"
    assert shown['tandemmq_loop_lag_seconds_bucket{le="0.02"}'] == "3.0"
    assert shown['tandemmq_loop_lag_seconds_bucket{le="0.05"}'] == "4.0"
    assert shown['tandemmq_loop_lag_seconds_bucket{le="5.0"}'] == "4.0"
    assert shown['tandemmq_loop_lag_seconds_bucket{le="+Inf"}'] == shown["tandemmq_loop_lag_seconds_count"] == "5.0"
    assert float(shown["tandemmq_loop_lag_seconds_sum"]) == pytest.approx(60.0414)
    assert lag.max_seconds == 60.0


# ---- a node's part in a set


PART: dict[str, Any] = {
    "role": "master",
    "epoch": 12,
    "promised": 12,
    "voters": {"aa": "n1", "bb": "n2", "cc": "n3"},
    "is_voter": True,
    "is_whole": True,
    "has_quorum": True,
    "problem": "",
    "zookeeper": None,
    "elections": 2,
    "quorum_losses": 1,
    "followers": {"bb": {"node": "n2", "lag_bytes": 4096}, "cc": {"node": "n3", "lag_bytes": None}},
}


def test_the_part_of_a_master_is_shown() -> None:
    lines = scrape(BARE | {"replication": PART})
    roles = [line for line in lines if line.startswith("tandemmq_replication_role{")]
    assert len(roles) == len(ROLES)
    assert [line for line in roles if line.endswith(" 1.0")] == ['tandemmq_replication_role{role="master"} 1.0']
    for line in (
        "tandemmq_replication_epoch 12.0",
        "tandemmq_replication_voters 3.0",
        "tandemmq_replication_is_whole 1.0",
        "tandemmq_replication_has_quorum 1.0",
        "tandemmq_replication_has_problem 0.0",
        "tandemmq_replication_elections_total 2.0",
        "tandemmq_replication_quorum_losses_total 1.0",
        'tandemmq_replication_follower_lag_bytes{node="n2",store="bb"} 4096.0',
    ):
        assert line in lines
    assert not any('node="n3"' in line for line in lines), "what is not known is left out"


def test_a_broker_without_a_set_shows_nothing_of_one() -> None:
    assert not any("replication" in line for line in scrape(BARE))


LOST = "/data/replication.promise could not be written before: this node takes no part until it is started again"


@pytest.mark.parametrize(
    ("problem", "is_mended_by_a_start"),
    [
        ("BUG: KeyError('x')", True),
        (LOST, True),
        ("FORK: db-3.log differs from the master's from 5", False),
        ("", False),
    ],
)
def test_only_what_a_start_mends_makes_it_unhealthy(problem: str, is_mended_by_a_start: bool) -> None:
    said = PART | {"problem": problem}
    assert set_problems(said) == ([problem] if is_mended_by_a_start else [])
    assert set_warnings(said) == ([problem] if problem and not is_mended_by_a_start else [])


def test_a_node_without_a_whole_journal_and_an_unreachable_directory_are_shown() -> None:
    shown = set_warnings(PART | {"is_whole": False, "zookeeper": "no server answered"})
    assert len(shown) == 2
    assert "no server answered" in shown[1]


# ---- destinations with separate metrics, and the limit of their number


def queue(name: str, messages: int = 0) -> dict[str, Any]:
    return {"name": name, "messages": messages, "unacknowledged": 0, "consumers": 1} | dict.fromkeys(
        ("enqueued", "dequeued", "dispatched"), 3
    )


TOPIC = {"name": "A.T", "consumers": 2, "durable_subscriptions": 1, "enqueued": 5, "dispatched": 4, "dropped": 1}
DURABLE = queue("mine", 7) | {"client_id": 'c"1', "topic": "A.T"}
STATUS: dict[str, Any] = {
    "queues": [queue("A.Q", 2), queue("B", 3), queue("A.P", 4)],
    "topics": [TOPIC, TOPIC | {"name": "B.T"}],
    "subscriptions": [DURABLE],
}


def samples(status: dict[str, Any], *patterns: str, most: int = 10) -> dict[tuple[str, ...], float]:
    """Return the samples: (name, labels) -> value."""
    text = at_once(DestinationMetrics(patterns, most).text(status)).decode()
    families = list(text_string_to_metric_families(text))
    found = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    assert len(found) == sum(len(family.samples) for family in families), "none twice"
    return found


def test_queues_topics_and_subscriptions_that_match_are_shown() -> None:
    found = samples(STATUS, "A.>")
    assert found["tandemmq_destination_messages", "queue", "A.Q"] == 2
    assert found["tandemmq_destination_messages", "queue", "A.P"] == 4
    assert found["tandemmq_destination_dropped_total", "topic", "A.T"] == 1
    assert found["tandemmq_destination_messages", "subscription", "A.T", 'c"1:mine'] == 7
    assert found["tandemmq_destinations_left_out",] == 0
    assert not any("B" in key or "B.T" in key for key in found)
    assert ("tandemmq_destination_messages", "topic", "A.T") not in found, "a topic keeps none"


def test_beyond_the_bound_they_are_counted() -> None:
    found = samples(STATUS, ">", most=2)
    assert {key[2] for key in found if len(key) > 1} == {"A.Q", "B"}, "those that were known first"
    assert found["tandemmq_destinations_left_out",] == 4


def test_beyond_the_bytes_of_an_answer_they_are_counted() -> None:
    status = STATUS | {"queues": [queue(f"{number}-{'x' * 500}") for number in range(50)]}
    text = at_once(DestinationMetrics((">",), 1000).text(status, 20_000)).decode()
    assert len(text) <= 22_000, "with the heads of the families"
    shown = text.count("tandemmq_destination_enqueued_total{")
    assert 0 < shown < 10
    assert f"tandemmq_destinations_left_out {50 + 2 + 1 - shown}\n" in text


@pytest.mark.parametrize(("status", "patterns"), [(STATUS, ()), ({}, (">",))], ids=["not asked for", "no master"])
def test_no_sample_without_patterns_or_values(status: dict[str, Any], patterns: tuple[str]) -> None:
    assert samples(status, *patterns) == {}


def test_very_many_are_told_in_steps() -> None:
    count = ITEMS * 8
    status = {"queues": [queue(str(number)) for number in range(count)], "topics": [], "subscriptions": []}
    steps = DestinationMetrics((">",), count).text(status)
    assert sum(1 for _ in steps) >= 8 * 2
