"""A worker's open files: who leaves too many is named, before others fail for it (``select`` takes 1,024)."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_OPEN: Final = Path("/proc/self/fd")
#: Servers and browsers that many tests share have some fifty. Clients that are let go of have hundreds between two
#: rounds of the collector.
OPEN_MAX: Final = 400
#: So many of those that left most are named.
NAMED_MAX: Final = 5

_left: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def descriptors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up first of all, and so the last that is torn down."""
    before = _count()
    yield
    now = _count()
    _left[request.node.nodeid] += now - before
    if now > OPEN_MAX:
        gc.collect()  # what is in cycles is nobody's any more
        if (now := _count()) > OPEN_MAX:
            left = _left.most_common(NAMED_MAX)
            pytest.fail(f"{now} descriptors are open: {_kinds()}; left by {left}", pytrace=False)


def _count() -> int:
    return len(os.listdir(_OPEN)) if _OPEN.exists() else 0


def _kinds() -> list[tuple[str, int]]:
    kinds: Counter[str] = Counter()
    for each in _OPEN.iterdir():
        try:
            kinds[re.sub(r"\d+", "N", os.readlink(each))] += 1
        except FileNotFoundError:  # of this very list
            pass
    return kinds.most_common(NAMED_MAX)
