"""The fixtures of the tests of mastership: brokers over one directory, with one lock, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tandemmq.locker.memory import MemoryLock
from tandemmq.store.tools.check_several import check_all
from tests.support.ha.ha_node import NewNode, Node
from tests.support.ha.hanging import Gate, HangingDisk
from tests.support.virtual_time import VirtualTime


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    report = check_all(str(tmp_path))
    assert report.is_clean, report.problems


@pytest.fixture
def lock() -> MemoryLock:
    return MemoryLock()


@pytest.fixture
def node(virtual: VirtualTime, directory: str, lock: MemoryLock) -> NewNode:
    """``node("a", **options)``: one that is not started yet."""
    system = {"threads": virtual.threads, "clock": virtual.clock, "disk": virtual.disk}
    return partial(Node, directory=directory, lock=lock, **system)


@pytest.fixture
def disk(virtual: VirtualTime) -> HangingDisk:
    return HangingDisk(virtual)


@pytest.fixture
def gate(virtual: VirtualTime) -> Gate:
    return Gate(virtual)
