"""Each life that is recorded is lived twice: with the journal's steps of the disk in Python, and in C."""

from __future__ import annotations

import pytest

from tests.support.journal.journal_native import use_recorded


@pytest.fixture(params=["python", "c"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which code the journal is written in this test."""
    if request.param == "c":
        use_recorded(monkeypatch)
    return str(request.param)
