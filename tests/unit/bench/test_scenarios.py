"""Each scenario reads the options that it has parameters for; others are refused by name."""

from __future__ import annotations

import inspect

import pytest
from click.testing import CliRunner

from tandemmq.bench.__main__ import main
from tandemmq.bench.scenarios import SCENARIOS

OF_ALL = {"scenario", "as_json_asked", "report"}
OPTIONS = {option.name for option in main.params} - OF_ALL


def test_every_option_is_read_by_some_scenario_and_no_scenario_wants_another() -> None:
    read = [set(inspect.signature(scenario).parameters) for scenario in SCENARIOS.values()]
    assert set().union(*read) == OPTIONS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_option_that_says_nothing_to_a_scenario_is_refused(scenario: str) -> None:
    read = inspect.signature(SCENARIOS[scenario]).parameters
    unread = "--gigabytes" if "gigabytes" not in read else "--window"
    done = CliRunner().invoke(main, ["--scenario", scenario, unread, "5"])
    assert done.exit_code == 2
    assert f"{unread} is nothing that --scenario {scenario} reads" in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--peers", "carrot"], "'carrot': expected some of "),
        (["--peers", "", "--without-ours"], "nothing to do: no peers and not ours"),
        (["--scenario", "backlog", "--backlog", "0"], "a backlog has at least one message"),
        (["--scenario", "growth", "--sizes", "many"], "'many': expected numbers"),
        (["--scenario", "jms", "--cases", "carrot"], "'carrot': expected some of "),
    ],
)
def test_what_cannot_be_meant_is_told(arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert told in done.output
