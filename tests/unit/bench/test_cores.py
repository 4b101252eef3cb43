"""What a second core gives: that each way reads, and is counted."""

from __future__ import annotations

import sys

import pytest

from tandemmq.bench.connection import BenchError
from tandemmq.bench.cores import WAYS, summary
from tandemmq.bench.interpreters import ask
from tandemmq.bench.reading import FRAMES, read


@pytest.mark.parametrize("way", WAYS)
def test_two_at_once_have_a_rate(way: str) -> None:
    rate = WAYS[way](0.05)

    assert rate is None or rate > FRAMES


def test_one_reads_whole_rounds() -> None:
    assert read(0.01) % FRAMES == 0


@pytest.mark.thorough
def test_rates_are_those_of_another_interpreter() -> None:
    told = ask(sys.executable, "tandemmq.bench.cores", "rates", 0.02)

    assert told.keys() == {"one", "of_cpu", *WAYS}
    assert told["threads"] > FRAMES


def test_an_interpreter_that_fails_says_why() -> None:
    with pytest.raises(BenchError, match="no_such_function"):
        ask(sys.executable, "tandemmq.bench.interpreters", "no_such_function")


def test_ratios_are_of_each_round_and_beside_another_python_of_the_cpu() -> None:
    first = [{"one": 100.0, "of_cpu": 100.0, "threads": 80.0}, {"one": 50.0, "of_cpu": 100.0, "threads": 40.0}]
    other = [{"one": 50.0, "of_cpu": 60.0, "threads": 90.0}, {"one": 10.0, "of_cpu": 60.0, "threads": 18.0}]
    ways = dict.fromkeys(WAYS)

    told = summary([ways | run for run in other], [ways | run for run in first])

    assert told["to_first"] == 0.6
    assert told["threads"] == {"gain": 1.8}
    assert told["processes"] == {"gain": None}
