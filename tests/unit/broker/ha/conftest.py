"""What tests of mastership share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ha.hanging import HangingDisk


@pytest.fixture
def disk() -> Iterator[HangingDisk]:
    """Whoever hangs in it is let go at the end."""
    made = HangingDisk()
    yield made
    made.gate.open()
