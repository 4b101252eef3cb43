"""The directory of a test, its seed, and the code that writes the journal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.crash.explorer import scratch_directory
from tests.support.journal.recorded_steps import are_recorded
from tests.support.prove import SEED


@pytest.fixture
def scratch() -> Iterator[str]:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    with scratch_directory() as directory:
        yield directory


#: By which code a journal is written.
STEPS = ("python", "c")


@pytest.fixture(params=STEPS)
def steps(request: pytest.FixtureRequest) -> Iterator[str]:
    """By which code the journal is written in this test: a life that is recorded is lived twice."""
    if request.param == "python":
        yield "python"
        return
    with are_recorded():
        yield "c"
