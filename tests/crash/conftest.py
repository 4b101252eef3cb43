"""A place for what a test leaves, where syncs cost nothing, and the seed that repeats the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.crash.explorer import scratch_directory
from tests.support.prove import SEED


@pytest.fixture
def scratch() -> Iterator[str]:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    with scratch_directory() as directory:
        yield directory
