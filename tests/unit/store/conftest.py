"""Directories for a store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.store.tools.check import check


@pytest.fixture
def unchecked(tmp_path: Path) -> str:
    """A directory for a test that damages its store; it is not checked at the end."""
    path = tmp_path / "data"
    path.mkdir()
    return str(path)


@pytest.fixture
def directory(unchecked: str) -> Iterator[str]:
    """A sound store when the test is over."""
    yield unchecked
    report = check(unchecked)
    assert report.is_clean, report.problems
