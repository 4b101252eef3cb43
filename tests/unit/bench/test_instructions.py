"""Instructions of a message: what is counted, and what is beyond the budget."""

from __future__ import annotations

import pytest

from tandemmq.bench.budget import FILE, Budget
from tandemmq.bench.cpu import BASELINE, CANDIDATE
from tandemmq.bench.instructions import CASES, counted, summary, table, total_in

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


def test_the_ratio_is_that_of_the_medians_of_the_rounds() -> None:
    counts = {CANDIDATE: {"stomp-waiting": [90.0, 120.0, 110.0]}, BASELINE: {"stomp-waiting": [100.0, 400.0, 90.0]}}

    assert summary(counts) == {"stomp-waiting": {CANDIDATE: 110, BASELINE: 100, "ratio": 1.1}}


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

    budget = Budget(1.1, {})
    counts = counted(count, [BASELINE, CANDIDATE], ["stomp-waiting"], 1, budget)

    assert asked == [BASELINE, CANDIDATE] * rounds
    assert budget.beyond({case: told["ratio"] for case, told in summary(counts).items()}) == beyond


def test_without_a_baseline_there_is_no_ratio_and_nothing_is_beyond_the_budget() -> None:
    told = summary({CANDIDATE: {"stomp-waiting": [100.0]}})

    assert told == {"stomp-waiting": {CANDIDATE: 100}}
    assert Budget(1.1, {}).beyond({"stomp-waiting": None}) == []


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
    told = {CANDIDATE: 120_000, BASELINE: 100_000, "ratio": 1.2}

    lines = table({"cases": {"stomp-waiting": told}, "beyond": ["stomp-waiting"]})

    assert "100,000    120,000  1.200" in lines[-2]
    assert lines[-1] == "beyond the budget: stomp-waiting, 1.200"
