"""Each life that is recorded is lived twice: with the journal's steps of the disk in Python, and in C."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.journal.recorded_steps import are_recorded


@pytest.fixture(params=["python", "c"])
def steps(request: pytest.FixtureRequest) -> Iterator[str]:
    """By which code the journal is written in this test."""
    if request.param == "python":
        yield "python"
        return
    with are_recorded():
        yield "c"
