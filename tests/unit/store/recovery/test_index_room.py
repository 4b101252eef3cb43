"""A standby's index on a full volume: it leaves the reserve to the master, and its memory stays bounded."""

# proves: standby-spares-the-reserve, full-standby-stops-reading

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.store.recovery.index_room import READ_SECONDS
from tandemmq.store.threads import OsThreads
from tests.support.store.standbys import standby_of
from tests.support.store.store_harness import KIB, SMALL, Term

pytestmark = pytest.mark.promise("full-disk-stops-producers")

BLOCK = 4096
RECORDS = 50
SETTINGS = replace(SMALL, checkpoint_records=RECORDS, disk_reserve=256 * KIB)


class Volume:
    """The operating system's disk, with as much free as the test says."""

    free = 0

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def statvfs(self, path: str) -> os.statvfs_result:
        return os.statvfs_result((BLOCK, BLOCK, 1 << 20, 0, self.free // BLOCK, *[0] * 5))


class TickingThreads(OsThreads):
    """Threads of the operating system, with a clock by which the volume is queried each time."""

    now = 0.0

    def monotonic(self) -> float:  # type: ignore[override]
        self.now += READ_SECONDS
        return self.now


@pytest.mark.parametrize("is_promoted_without_room", [False, True])
def test_a_standby_does_not_use_the_reserve_and_continues_when_there_is_room(
    directory: str, is_promoted_without_room: bool
) -> None:
    volume = Volume()
    master = Term(directory, settings=SETTINGS)
    volume.free = SETTINGS.disk_reserve
    follower = standby_of(directory, settings=SETTINGS, disk=volume, threads=TickingThreads())
    index = Path(directory, "index", "b", "db.data")
    size = index.stat().st_size
    for _ in range(10 * RECORDS // 5):
        master.add_durably(5)
        follower.follow()
    assert index.stat().st_size == size, "the last bytes are the master's"
    assert follower.follower.state.tail.operations < 3 * RECORDS
    assert follower.messages < 5 * RECORDS
    expected = master.bodies()
    if not is_promoted_without_room:
        volume.free += BLOCK
        for _ in range(100):
            follower.follow()
        assert follower.messages == len(expected) - 5, "the last batch is only seen"
        assert index.stat().st_size > size
    master.crash()
    with Term.of(follower) as successor:
        assert successor.bodies() == expected
