"""Each mutant of a random choice is caught. In CI six are chosen from NAMED and six from all; `make prove` runs all."""

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
#: Number of mutants that CI chooses from NAMED.
NAMED_COUNT = 6
#: Marks of lines that no test proved at one time.
NAMED = {
    "completion-is-as-old-as-its-check", "halted-delivers-nothing", "queued-batch-needs-proof",
    "forgets-the-first-of-a-window", "left-copy-is-synced", "resigns-when-nothing-is-written",
    "lease-from-before-the-question", "follows-none-while-paused", "master-stays-a-voter", "pubrec-after-the-store",
    "newest-record-counts", "first-record-moves", "prepare-alone-moves", "settles-only-the-newest-record",
    "native-sync-before-fence-check", "native-successor-before-own-file", "native-proof-from-before",
    "native-proof-counts-suspension", "native-short-write-is-not-all", "native-rest-has-its-place",
}  # fmt: skip
#: A mutant takes some seconds, and more on a busy machine.
SECONDS_EACH = 60


@pytest.mark.prove
@pytest.mark.thorough
@pytest.mark.timeout(7200 if COUNT is None else 300 + SECONDS_EACH * (COUNT + IS_CI * NAMED_COUNT))
def test_a_wrong_line_that_carries_a_safety_argument_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    mutants = all_mutants()
    total, marks = len(mutants), {mutant.mark.name for mutant in mutants}
    if COUNT is not None:
        possible = [mutant for mutant in mutants if IS_CI or not needs_service(mutant.mark)]
        dice = random.Random(SEED)
        mutants = dice.sample(possible, min(COUNT, len(possible)))
        if IS_CI:
            mutants += dice.sample([mutant for mutant in possible if mutant.mark.name in NAMED], NAMED_COUNT)
    with capsys.disabled():
        print(f"\n{len(mutants)} of {total} mutants (TANDEMMQ_PROVE), TANDEMMQ_SEED={SEED}")
    outcomes = try_out(mutants, jobs=JOBS)
    for outcome in outcomes:
        print(line_of(outcome))
    with capsys.disabled():
        print(summary_of(outcomes))
    assert marks >= NAMED
    assert [outcome.mutant.name for outcome in outcomes if outcome.how is How.NOTHING] == []
