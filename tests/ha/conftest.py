"""What tests of mastership share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from hanging import HangingDisk


@pytest.fixture
def disk() -> Iterator[HangingDisk]:
    """Whoever hangs in it is let go at the end."""
    made = HangingDisk()
    yield made
    made.gate.open()
