"""What the comparison of CPU makes of its runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemmq.bench.baseline import checked_out
from tandemmq.bench.budget import FILE, Budget
from tandemmq.bench.connection import BenchError
from tandemmq.bench.cpu import BASELINE, CANDIDATE, CASES, Run, measure, ratios, summary, table
from tandemmq.bench.jms import driver, is_there
from tandemmq.bench.peers.tandemmq import TREE


def run(side: str, number: int, cpu_us: float) -> Run:
    return Run("stomp-waiting", side, number, {"cpu_us": cpu_us, "waits": 1.0})


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    pairs = [(10.0, 10.0), (30.0, 20.0), (12.0, 10.0)]  # a busy machine in the second round
    runs = [
        run(side, number, value)
        for number, pair in enumerate(pairs)
        for side, value in zip((CANDIDATE, BASELINE), pair, strict=True)
    ]

    assert ratios(runs) == {"stomp-waiting": pytest.approx(1.2)}
    told = summary(runs, "stomp-waiting")
    assert (told["ratio_least"], told["ratio_most"]) == (1.0, 1.5)
    assert told[CANDIDATE]["cpu_us"] == 12.0
    assert told[BASELINE]["cpu_us"] == 10.0


def test_without_a_baseline_there_is_no_ratio_and_nothing_is_beyond_the_budget() -> None:
    runs = [run(CANDIDATE, 1, 10.0)]

    assert Budget(1.1, {}).beyond(ratios(runs)) == []
    assert "ratio" not in summary(runs, "stomp-waiting")


def test_a_case_has_its_own_budget_or_the_one_of_all() -> None:
    budget = Budget.read("default = 1.1\n[cases]\nstomp-waiting = 1.3", CASES)

    assert budget.beyond({"stomp-waiting": 1.29, "stomp-windowed": 1.09}) == []
    assert budget.beyond({"stomp-waiting": 1.31, "stomp-windowed": 1.11}) == ["stomp-waiting", "stomp-windowed"]


def test_a_budget_for_a_case_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="'stomp-waitng'"):
        Budget.read("default = 1.1\n[cases]\nstomp-waitng = 1.3", CASES)


def test_the_budget_of_the_tree_can_be_read() -> None:
    assert Budget.read(FILE.read_text(), CASES).accepted("stomp-windowed") >= 1.0


def test_what_is_beyond_the_budget_is_named_in_the_table() -> None:
    told = {"candidate": {"cpu_us": 12.0}, "baseline": {"cpu_us": 10.0}, "ratio": 1.2}
    told |= {"ratio_least": 1.1, "ratio_most": 1.3}

    lines = table({"cases": {"stomp-waiting": told}, "beyond": ["stomp-waiting"]})

    assert lines[-1] == "beyond the budget: stomp-waiting, 1.200"
    assert "1.200  1.100 to 1.300" in lines[-2]


def test_a_commit_that_is_not_there_is_named() -> None:
    with pytest.raises(BenchError, match="no-such-commit"), checked_out("no-such-commit"):
        pass


@pytest.mark.service
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_jms_cases_are_measured(require_service: Callable[[object, str], None]) -> None:
    require_service(is_there(), "no JMS client or no JDK: the Debian packages libactivemq-java, default-jdk-headless")
    with driver() as path:
        runs = measure({CANDIDATE: TREE, BASELINE: TREE}, ["jms-async"], 1, 0.3, lambda line: None, path)

    told = summary(runs, "jms-async")
    assert told[CANDIDATE]["cpu_us"] > 0
    assert told[CANDIDATE].keys() == told[BASELINE].keys()
    assert told["ratio"] > 0
