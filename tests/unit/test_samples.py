"""CI tries a part of a table, the same for the same seed, and a proof all of it."""

from __future__ import annotations

import pytest

from tests.support.samples import ALL_CASES, is_chosen, sampled


def chosen(name: str, count: int) -> set[int]:
    cases = sampled(name, range(20), count)
    assert [case.values for case in cases] == [(number,) for number in range(20)]
    assert all("prove" in [mark.name for mark in case.marks] for case in cases)
    return {case.values[0] for case in cases if "proof_only" not in [mark.name for mark in case.marks]}


def test_of_a_table_so_many_cases_are_chosen_and_the_others_are_for_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALL_CASES, raising=False)
    assert len(chosen("a", 5)) == 5
    assert chosen("a", 5) < chosen("a", 6)
    assert chosen("a", 5) != chosen("b", 5)
    assert chosen("a", 30) == set(range(20))
    share = [name for name in range(200) if is_chosen(str(name), 0.25)]
    assert share == [name for name in range(200) if is_chosen(str(name), 0.25)]
    assert 20 < len(share) < 80


def test_a_mutant_is_tried_by_all_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL_CASES, "1")
    assert chosen("a", 5) == set(range(20))
    assert is_chosen("a", 0.0)
