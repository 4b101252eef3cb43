"""The default run and CI have one seed; a proof draws one, and TANDEMMQ_SEED sets one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.prove import FIXED_SEED


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
