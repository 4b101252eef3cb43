"""Seeds and cases of a run: the default run and CI have one seed and try a part of each table; a proof draws its seed
and tries all cases. TANDEMMQ_SEED sets the seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.prove import FIXED_SEED
from tests.support.samples import ALL_CASES, is_chosen, sampled


def seed_of(**environment: str) -> tuple[int, bool]:
    rest = {name: value for name, value in os.environ.items() if name not in ("TANDEMMQ_SEED", "TANDEMMQ_PROVE")}
    code = "from tests.support.prove import IS_FIXED, SEED; print(SEED, IS_FIXED)"
    said = subprocess.check_output([sys.executable, "-c", code], env=rest | environment, text=True).split()
    return int(said[0]), said[1] == "True"


@pytest.mark.parametrize("environment", [{}, {"CI": "1"}, {"TANDEMMQ_PROVE": "0"}])
def test_a_run_that_proves_nothing_has_the_fixed_seed(environment: dict[str, str]) -> None:
    assert seed_of(**environment) == (FIXED_SEED, True)


def test_a_proof_draws_its_seed() -> None:
    assert seed_of(TANDEMMQ_PROVE="full") != seed_of(TANDEMMQ_PROVE="full")


@pytest.mark.parametrize("environment", [{}, {"TANDEMMQ_PROVE": "3"}])
def test_a_seed_that_is_set_holds(environment: dict[str, str]) -> None:
    assert seed_of(TANDEMMQ_SEED="1234", **environment) == (1234, False)


# ---- the part of a table that CI tries is the same for the same seed


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
