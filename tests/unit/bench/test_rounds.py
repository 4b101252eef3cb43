"""Brokers take turns, and ratios say who is better."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.bench.connection import BenchError
from tandemmq.bench.peers.server import PeerMissing, Server
from tandemmq.bench.rounds import ratios, take_turns

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
