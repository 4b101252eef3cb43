"""Simulations with faults and the default settings: each promise holds, and a seed always gives the same run.

The number of seeds is 18, or the number in TANDEMMQ_PROVE. The first seed is TANDEMMQ_SEED. To examine a failure, use
``tandemmq simulate --seed N --trace`` with the same settings.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from tests.support import forked
from tests.support.prove import IS_PROOF, rounds

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.prove,
    pytest.mark.promise("simulator-finds-nothing", "confirmed-survives", "one-master-counts"),
]

SEEDS = rounds(18, 20_000)
FIRST = int(os.environ.get("TANDEMMQ_SEED", "1"))
LOCKERS = {
    "shared-file": (),
    "none": ("--set", "locker.use_lock=false"),
    "lease-database": ("--set", "locker.type=lease-database", "--set", "locker.data_source=sqlite:///simulated"),
}
#: Every other seed is a storm.
MIXTURES = ("mixed", "storms")


def simulate(*arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Run the command in a separate process. Return its exit code and answer."""
    done = forked.run(
        [sys.executable, "-m", "tandemmq", "simulate", "--json", *arguments],
        env=os.environ | environment,
        timeout=None if IS_PROOF else 1800,
    )
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, answer


def no_promise_is_broken(count: int, *arguments: str) -> None:
    """Check that ``count`` seeds break no promise."""
    code, answer = simulate("--seeds", f"{FIRST}..{FIRST + count - 1}", "--jobs", "2", *arguments)
    broken = "\n".join(f"seed {each['seed']}: {each['problems']}" for each in answer["broken"])
    assert not answer["broken"], f"{arguments}:\n{broken}"
    assert (code, answer["seeds"]) == (0, count)


def fingerprint_of_twice(*arguments: str) -> Any:
    """Return the fingerprint of the first seed, which must not depend on the order of sets."""
    runs = [simulate("--seed", str(FIRST), *arguments, PYTHONHASHSEED=seed)[1] for seed in ("1", "2")]
    for run in runs:
        del run["seconds"]
    assert runs[0] == runs[1]
    return runs[0]["fingerprint"]


@pytest.mark.timeout(0 if IS_PROOF else 1800)
@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("locker", LOCKERS)
def test_no_promise_is_broken(locker: str, mixture: str) -> None:
    count = max(1, SEEDS // (len(LOCKERS) * len(MIXTURES)))
    no_promise_is_broken(count, *LOCKERS[locker], "--mixture", mixture)


@pytest.mark.parametrize("locker", ["shared-file", "lease-database"])
def test_a_seed_is_always_the_same_run(locker: str) -> None:
    found = fingerprint_of_twice(*LOCKERS[locker])
    assert found != simulate("--seed", str(FIRST + 1), *LOCKERS[locker])[1]["fingerprint"]


@pytest.mark.parametrize("brokers", ["2", "4"])
def test_there_are_as_many_brokers_as_were_asked_for(brokers: str) -> None:
    _, answer = simulate("--seeds", f"{FIRST}..{FIRST + 1}", "--brokers", brokers)
    assert answer["happened"]["brokers"] == {brokers: 2}
