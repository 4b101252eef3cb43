"""Directory of several stores. The checker must find no problem in it after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandemmq.store.tools.check_several import check_all


@pytest.fixture
def directory(unchecked: str) -> Iterator[str]:
    yield unchecked
    report = check_all(unchecked)
    assert report.is_clean, report.problems
