"""What a comparison makes of its runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.bench.compare import OURS, Comparison, Run, run_line, table
from tandemmq.bench.connection import BenchError
from tandemmq.bench.peers.server import PeerMissing, Server
from tandemmq.bench.rounds import ratios, take_turns
from tandemmq.bench.statistics import Sample, percentile, rate_between, rate_of_share, reached_at, value_at


def test_a_ratio_above_one_is_for_us_whether_more_or_less_is_better() -> None:
    rates = Comparison("windowed", [Run(OURS, 1, {"sent_per_second": 30.0}), Run("peer", 1, {"sent_per_second": 10.0})])
    times = Comparison("outage", [Run(OURS, 1, {"outage_seconds": 0.5}), Run("peer", 1, {"outage_seconds": 2.5})])

    assert rates.ratio("peer") == pytest.approx(3.0)
    assert times.ratio("peer") == pytest.approx(5.0)


def test_the_median_of_the_rounds_is_compared() -> None:
    runs = [Run(OURS, number, {"sent_per_second": rate}) for number, rate in ((1, 20.0), (2, 30.0), (3, 90.0))]
    comparison = Comparison("windowed", [*runs, Run("peer", 1, {"sent_per_second": 15.0})])

    assert comparison.median(OURS) == pytest.approx(30.0)
    assert comparison.ratio("peer") == pytest.approx(2.0)


def test_a_broker_that_could_not_run_is_named_and_has_no_ratio() -> None:
    comparison = Comparison(
        "windowed", [Run(OURS, 1, {"sent_per_second": 30.0}), Run("peer", 1, {}, "peer is not installed")]
    )

    assert comparison.ratio("peer") is None
    assert "peer is not installed" in "\n".join(table(comparison))
    assert "not installed" in run_line("windowed", comparison.runs[1])


# ---- Figures from samples


# 100 messages a second for ten seconds, then 50 for ten more.
SAMPLES = [Sample(float(second), 0, min(second, 10) * 100 + max(0, second - 10) * 50, 0) for second in range(21)]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.99, 4.0), (0.0, 1.0), (1.0, 4.0), (0.25, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == expected


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 0.5) is None


@given(st.lists(st.floats(0, 1000), min_size=1), st.floats(0, 1))
def test_a_percentile_has_its_share_at_or_below_it(values: list[float], share: float) -> None:
    found = percentile(sorted(values), share)

    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


def test_a_counter_is_known_between_samples() -> None:
    assert value_at(SAMPLES, 2.5, "confirmed") == 250
    assert value_at(SAMPLES, -1, "confirmed") == 0
    assert value_at(SAMPLES, 99, "confirmed") == 1500


def test_rates_are_taken_between_moments_and_between_shares() -> None:
    assert rate_between(SAMPLES, 1.0, 3.0, "confirmed") == pytest.approx(100)
    assert rate_between(SAMPLES, 3.0, 3.0, "confirmed") == 0
    assert rate_of_share(SAMPLES, 0.0, 0.1, "confirmed") == pytest.approx(100)
    assert rate_of_share(SAMPLES, 0.9, 1.0, "confirmed") == pytest.approx(50)


def test_the_moment_a_count_was_reached_lies_between_two_samples() -> None:
    assert reached_at(SAMPLES, 250, "confirmed") == pytest.approx(2.5)
    assert reached_at(SAMPLES, 0, "confirmed") == 0
    assert reached_at(SAMPLES, 9999, "confirmed") == 20


# ---- Brokers take turns, and ratios say who is better


FIGURES = {"sent_per_second": True, "send_p99_ms": False, "cpu_us_per_message": False}


class Nothing(Server):
    """A server that needs no process."""

    def __init__(self, name: str) -> None:
        super().__init__(Path("/nonexistent"))
        self.name = name

    def start(self) -> None:
        if self.name == "missing":
            raise PeerMissing("no such program")

    def ask(self) -> None: ...


def turns(
    names: list[str], rounds: int, measure: Callable[[Nothing, str], dict[str, Any]], compiled: bool = False
) -> list[Any]:
    told: list[Any] = []
    runs = take_turns(
        ["case"],
        {name: lambda name=name: Nothing(name) for name in names},  # type: ignore[misc]
        names,
        rounds,
        lambda tree: Nothing(f"from {tree}"),
        Path("tree") if compiled else None,
        measure,
        told.append,
    )
    assert told == runs
    return runs


def run(broker: str, number: int, sent: float, p99: float) -> dict[str, object]:
    return {
        "case": "sync", "broker": broker, "round": number, "problem": None, "sent_per_second": sent,
        "send_p99_ms": p99, "cpu_us_per_message": 100.0,
    }  # fmt: skip


def test_every_other_round_goes_backwards_and_the_compiled_tree_takes_part() -> None:
    runs = turns(["tandemmq", "peer"], 2, lambda server, case: {"from": server.name}, compiled=True)

    assert [each["broker"] for each in runs] == [
        "tandemmq", "peer", "tandemmq-compiled", "tandemmq-compiled", "peer", "tandemmq",
    ]  # fmt: skip
    assert runs[2]["from"] == "from tree"


def test_what_cannot_be_measured_has_a_problem_and_the_others_go_on() -> None:
    def measure(server: Nothing, case: str) -> dict[str, Any]:
        if server.name == "broken":
            raise BenchError("it hung up")
        return {"sent_per_second": 1.0}

    found = {each["broker"]: each for each in turns(["missing", "broken", "tandemmq"], 1, measure)}

    assert found["missing"]["problem"] == "no such program"
    assert found["broken"]["problem"] == "it hung up"
    assert found["tandemmq"]["problem"] is None
    assert found["tandemmq"]["sent_per_second"] == 1.0


def test_ratios_are_of_the_medians_and_above_one_for_us() -> None:
    ours = [run("tandemmq", number, sent, 2.0) for number, sent in enumerate((30.0, 90.0, 40.0))]

    found = ratios([*ours, run("activemq", 1, 10.0, 6.0)], FIGURES)["tandemmq"]

    assert found["activemq"]["sync"]["sent_per_second"] == pytest.approx(4.0)
    assert found["activemq"]["sync"]["send_p99_ms"] == pytest.approx(3.0)
    assert found["activemq"]["sync"]["cpu_us_per_message"] == pytest.approx(1.0)


def test_a_run_that_failed_counts_for_nothing() -> None:
    failed = {"case": "sync", "broker": "tandemmq", "round": 2, "problem": "sent 10, received 9"}

    found = ratios([run("tandemmq", 1, 30.0, 2.0), failed, run("activemq", 1, 10.0, 6.0)], FIGURES)

    assert found["tandemmq"]["activemq"]["sync"]["sent_per_second"] == pytest.approx(3.0)


def test_each_peer_has_its_ratios() -> None:
    peers = [run("activemq", 1, 15.0, 2.0), run("activemq-stored", 1, 10.0, 2.0)]

    found = ratios([run("tandemmq", 1, 30.0, 2.0), run("tandemmq-compiled", 1, 60.0, 2.0), *peers], FIGURES)

    assert found["tandemmq"]["activemq"]["sync"]["sent_per_second"] == pytest.approx(2.0)
    assert found["tandemmq"]["activemq-stored"]["sync"]["sent_per_second"] == pytest.approx(3.0)
    assert found["tandemmq-compiled"]["activemq"]["sync"]["sent_per_second"] == pytest.approx(4.0)


def test_a_case_that_only_a_peer_ended_has_no_ratio() -> None:
    failed = {"case": "sync", "broker": "tandemmq", "round": 1, "problem": "late"}

    found = ratios([failed, run("activemq", 1, 30.0, 2.0)], FIGURES)

    assert found["tandemmq"]["activemq"]["sync"]["sent_per_second"] is None
    assert ratios([run("tandemmq", 1, 30.0, 2.0)], FIGURES) == {"tandemmq": {}}
