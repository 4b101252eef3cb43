"""Sets in virtual time. The journals of a test are closed at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.replication.small_set import NewSet, SmallSet
from tests.support.replication.source_journal import SourceJournal
from tests.support.virtual_time import VirtualTime


@pytest.fixture(autouse=True)
def sources() -> Iterator[None]:
    yield
    while SourceJournal.opened:
        SourceJournal.opened.pop().writer.close()


@pytest.fixture
def make(virtual: VirtualTime, tmp_path: Path) -> Iterator[NewSet]:
    """``make(replicas, **options)``: a set of real replicas."""
    made: list[SmallSet] = []

    def new(replicas: int = 3, **options: object) -> SmallSet:
        made.append(SmallSet(tmp_path, replicas, threads=virtual.threads, system_disk=virtual.disk, **options))
        return made[-1]

    yield new
    for each in made:
        virtual.run(each.close)


@pytest.fixture
def whole(make: NewSet) -> SmallSet:
    """A set of three nodes."""
    return make(3)
