"""Instructions of a message: how they are counted, and how an excess over the budget is detected."""

from __future__ import annotations

import pytest

from tandemmq.bench.cpu import BASELINE
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.instructions import (
    BUDGET_FILE,
    CASES,
    COMPILED,
    PLAIN,
    Budget,
    baselines_of,
    counted,
    summary,
    table,
    total_in,
)

DUMP = """# callgrind format
version: 1
positions: line
events: Ir
summary: 12345

fl=(1) frames.c
1 12000
2 345
totals: 12345
"""


def test_a_dump_has_one_sum() -> None:
    assert total_in(DUMP) == 12345
    assert total_in("# callgrind format\n") == 0


def test_the_ratios_are_those_of_the_medians_of_the_rounds() -> None:
    counts = {
        PLAIN: {"stomp-waiting": [90.0, 120.0, 110.0]},
        COMPILED: {"stomp-waiting": [50.0]},
        BASELINE: {"stomp-waiting": [100.0, 400.0, 90.0]},
    }

    assert summary(counts) == {
        "stomp-waiting": {PLAIN: 110, COMPILED: 50, BASELINE: 100, "ratios": {PLAIN: 1.1, COMPILED: 0.5}}
    }


@pytest.mark.parametrize(
    ("figures", "rounds", "beyond"),
    [
        ([100.0], 1, []),
        ([130.0, 101.0, 99.0, 102.0], 3, []),  # by chance, once
        ([130.0], 4, ["stomp-waiting"]),
    ],
)
def test_what_is_beyond_the_budget_is_counted_again(figures: list[float], rounds: int, beyond: list[str]) -> None:
    asked: list[str] = []

    def count(side: str, case: str) -> float:
        asked.append(side)
        return 100.0 if side == BASELINE else figures[(len(asked) // 2 - 1) % len(figures)]

    budget = Budget(0.1, {"stomp-waiting": "f0bf0e1"}, {"stomp-waiting": {PLAIN: 1.0}})
    counts = counted(count, [BASELINE, PLAIN], ["stomp-waiting"], 1, budget)

    assert asked == [BASELINE, PLAIN] * rounds
    assert budget.beyond({case: told["ratios"] for case, told in summary(counts).items()}) == beyond


def test_without_a_baseline_there_is_no_ratio_and_nothing_is_beyond_the_budget() -> None:
    told = summary({PLAIN: {"stomp-waiting": [100.0]}})

    assert told == {"stomp-waiting": {PLAIN: 100, "ratios": {}}}
    assert Budget(0.1, {}, {}).beyond({"stomp-waiting": {}}) == []


BUDGET = """
noise = 0.1
[f0bf0e1]
stomp-waiting = { plain = 1.0, compiled = 0.5 }
[3af4fc6e]
mqtt-qos0 = { plain = 1.0 }
"""


def test_each_side_of_a_case_has_its_own_budget() -> None:
    budget = Budget.read(BUDGET, CASES)

    assert budget.beyond({"stomp-waiting": {PLAIN: 1.09, COMPILED: 0.54}, "mqtt-qos0": {PLAIN: 1.09}}) == []
    assert budget.beyond({"stomp-waiting": {PLAIN: 1.11}, "mqtt-qos0": {PLAIN: 1.0}}) == ["stomp-waiting"]
    assert budget.beyond({"stomp-waiting": {PLAIN: 1.0, COMPILED: 0.56}}) == ["stomp-waiting"]


def test_each_case_has_a_baseline_that_stays() -> None:
    assert Budget.read(BUDGET, CASES).baselines == {"stomp-waiting": "f0bf0e1", "mqtt-qos0": "3af4fc6e"}


def test_what_has_no_budget_is_not_checked_in_silence() -> None:
    with pytest.raises(BenchError, match="no budget of stomp-windowed"):
        baselines_of(None, ["stomp-waiting", "stomp-windowed"], Budget.read(BUDGET, CASES))


@pytest.mark.parametrize(
    ("line", "reason"),
    [("stomp-waitng = { plain = 1.0 }", "'stomp-waitng', which is not known"), ("mqtt-qos0 = {}", "'mqtt-qos0' twice")],
)
def test_a_budget_for_a_case_that_is_not_known_or_has_one_is_refused(line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Budget.read(f"{BUDGET}[aaaa]\n{line}", CASES)


def test_the_budget_of_the_tree_has_both_sides_of_every_case() -> None:
    budget = Budget.read(BUDGET_FILE.read_text(), CASES)

    assert set(budget.shares) == set(CASES)
    assert all(set(of_sides) == {PLAIN, COMPILED} for of_sides in budget.shares.values())


def test_what_is_beyond_the_budget_is_named_in_the_table() -> None:
    told = {PLAIN: 120_000, BASELINE: 100_000, "ratios": {PLAIN: 1.2}}

    lines = table({"cases": {"stomp-waiting": told}, "beyond": ["stomp-waiting"]})

    assert lines[-2].split() == ["stomp-waiting", "100,000", "120,000", "1.200"]
    assert lines[-1] == "beyond the budget: stomp-waiting"
