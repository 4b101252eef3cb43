"""A check of a worker's open files: tests that leave too many open are named before others fail because of them
(``select`` takes 1,024)."""

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
#: Servers and browsers that many tests share have about fifty. Released clients have hundreds between two runs of the
#: garbage collector.
OPEN_MAX: Final = 400
#: Number of tests with the most open files that are named.
NAMED_MAX: Final = 5

_left: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def descriptors(request: pytest.FixtureRequest) -> Iterator[None]:
    """The first fixture that is set up, so that it is torn down last."""
    before = _count()
    yield
    now = _count()
    _left[request.node.nodeid] += now - before
    if now > OPEN_MAX:
        gc.collect()  # objects in cycles are unused
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
        except FileNotFoundError:  # the descriptor of this directory listing
            pass
    return kinds.most_common(NAMED_MAX)
