"""A random few of the mutants, each caught: six in CI, all in `make prove`, else one."""

from __future__ import annotations

import os
import random

import pytest

from tests.mutants.declared import needs_service
from tests.mutants.run import all_mutants, line_of, summary_of, try_out
from tests.mutants.trial import How
from tests.support.prove import IS_FULL, SEED, rounds

IS_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
COUNT = None if IS_FULL else rounds(6 if IS_CI else 1, 0)  # None: all
JOBS = 2
#: One takes some seconds; on a machine that others work on, too, more.
SECONDS_EACH = 60


@pytest.mark.prove
@pytest.mark.thorough
@pytest.mark.timeout(7200 if COUNT is None else 300 + SECONDS_EACH * COUNT)
def test_a_wrong_line_that_carries_a_safety_argument_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    mutants = all_mutants()
    total = len(mutants)
    if COUNT is not None:
        possible = [mutant for mutant in mutants if IS_CI or not needs_service(mutant.mark)]
        mutants = random.Random(SEED).sample(possible, min(COUNT, len(possible)))
    with capsys.disabled():
        print(f"\n{len(mutants)} of {total} mutants (TANDEMMQ_PROVE), TANDEMMQ_SEED={SEED}")
    outcomes = try_out(mutants, jobs=JOBS)
    for outcome in outcomes:
        print(line_of(outcome))
    with capsys.disabled():
        print(summary_of(outcomes))
    assert [outcome.mutant.name for outcome in outcomes if outcome.how is How.NOTHING] == []
