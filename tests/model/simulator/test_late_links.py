"""Seeds with brokers that link their journal file late: the late links are reached, and every promise holds."""

from __future__ import annotations

import os

import pytest

from tandemmq.config.load import load
from tandemmq.simulator.kinds import MIXTURES, mixture_of
from tandemmq.simulator.parts import parts_of
from tandemmq.simulator.simulation import Simulation
from tandemmq.simulator.tally import Tally
from tests.support.prove import IS_PROOF, rounds

pytestmark = [pytest.mark.thorough, pytest.mark.prove, pytest.mark.promise("simulator-finds-nothing")]

SEEDS = rounds(6, 600)
FIRST = int(os.environ.get("TANDEMMQ_SEED", "1"))


@pytest.mark.timeout(0 if IS_PROOF else 900)
def test_late_links_are_reached_and_break_no_promise() -> None:
    parts = parts_of(load(None, {}, ()))
    tally = Tally()
    broken = {}
    for seed in range(FIRST, FIRST + SEEDS):
        outcome = Simulation(seed, parts, MIXTURES["late"]).run()
        tally.take(outcome.counts)
        if outcome.problems:
            broken[seed] = outcome.problems
    assert broken == {}
    counts = tally.counts()
    assert counts["late links"]["seeds"] > SEEDS / 2
    assert set(counts["brokers"]) <= {"3", "4", "5"}


def test_one_seed_of_ten_has_late_links() -> None:
    assert [mixture_of(seed, "mixed") for seed in range(100)].count("late") == 10
