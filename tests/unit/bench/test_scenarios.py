"""Each scenario reads the options that it has parameters for; others are refused by name."""

from __future__ import annotations

import inspect

import pytest
from click.testing import CliRunner

from tandemmq.bench.__main__ import SCENARIOS, main
from tandemmq.bench.growth import SUBJECTS, each, growth
from tandemmq.bench.pairs import is_counted, pairs

OF_ALL = {"scenario", "as_json_asked", "report"}
OPTIONS = {option.name for option in main.params} - OF_ALL


def test_every_option_is_read_by_some_scenario_and_no_scenario_wants_another() -> None:
    read = [set(inspect.signature(scenario).parameters) for scenario in SCENARIOS.values()]
    assert set().union(*read) == OPTIONS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_option_that_says_nothing_to_a_scenario_is_refused(scenario: str) -> None:
    read = inspect.signature(SCENARIOS[scenario]).parameters
    unread = "--gigabytes" if "gigabytes" not in read else "--load"
    done = CliRunner().invoke(main, ["--scenario", scenario, unread, "5"])
    assert done.exit_code == 2
    assert f"--scenario {scenario} has no option {unread}" in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--peers", "carrot"], "'carrot': expected some of "),
        (["--peers", "mosquitto", "--cases", "jms-sync"], "'mosquitto': expected some of "),
        (["--scenario", "growth", "--sizes", "many"], "'many': expected numbers"),
        (["--scenario", "jms-patterns", "--cases", "carrot"], "'carrot': expected some of "),
    ],
)
def test_what_cannot_be_meant_is_told(arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert told in done.output


# ---- The growth scenario on a real broker, by small steps


@pytest.mark.thorough
def test_each_subject_grows_and_what_lasts_is_there_after_a_start() -> None:
    said: list[str] = []
    figures = growth(["connections", "durable-subscriptions"], (1, 40), said.append)

    steps = figures["steps"]
    assert [step["count"] for step in steps["connections"]] == [1, 40]
    assert all(step["cpu_us"] > 0 for found in steps.values() for step in found)
    assert [step["start_seconds"] for step in steps["connections"]] == [None, None]
    assert all(step["start_seconds"] > 0 for step in steps["durable-subscriptions"])
    assert figures["bytes_each"]["connections"] == round(each(steps["connections"])) > 0
    assert len(said) == 4
    assert figures["steps"].keys() < SUBJECTS.keys()


def test_the_slope_is_of_the_last_two_steps() -> None:
    steps = [{"count": 1, "bytes": 9_000}, {"count": 10, "bytes": 10_000}, {"count": 100, "bytes": 19_000}]
    assert each(steps) == 100.0


# ---- The scenario of pairs on a real broker


@pytest.mark.thorough
def test_what_pairs_take_is_counted() -> None:
    said: list[str] = []
    assert not pairs(["topics", "named-queues"], said.append)["has_failed"], said


@pytest.mark.parametrize(
    ("used", "counted", "expected"), [(0, 8, True), (0, 9, False), (100, 80, True), (100, 79, False), (100, 121, False)]
)
def test_counted_is_what_is_near_enough(used: int, counted: int, expected: bool) -> None:
    assert is_counted(used << 20, counted << 20) is expected
