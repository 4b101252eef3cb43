"""Space on the disk: when producers are refused, when they may continue, and the reason that they get."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tandemmq.store.operations import AddMessage
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.check import check
from tandemmq.store.writer.space import (
    CHECKPOINT_READ_SECONDS,
    CHECKPOINT_SPACE_BYTES,
    FAILURE_SECONDS_MAX,
    IN_FLIGHT_BYTES_MIN,
    PREPARE_AGAIN_SECONDS,
    READ_BYTES,
    READ_SECONDS,
    Space,
    StoreFull,
)
from tests.support.store.store_harness import KIB, SMALL, Q, Term

pytestmark = pytest.mark.promise("full-disk-stops-producers")

MIB = 1 << 20
BLOCK = 4096


class Volumes:
    """Free bytes of volumes, by path. The first part of a path is its volume."""

    def __init__(self, **free: int) -> None:
        self.free = free
        self.asked = 0
        self.blocks = 1 << 40
        self.error: OSError | None = None

    def stat(self, path: str) -> Any:
        return os.stat_result((0, 0, hash(path.split("/")[1]), *[0] * 7))

    def statvfs(self, path: str) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        free = self.free[path.split("/")[1]]
        return os.statvfs_result((BLOCK, BLOCK, self.blocks, 0, free // BLOCK, *[0] * 5))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def space_of(volumes: Volumes, reserve: int = 64 * MIB, *directories: str) -> tuple[Space, Clock]:
    clock = Clock()
    # type: ignore[arg-type]
    made = Space(directories or ("/a/data",), reserve, volumes, clock=clock, now=lambda: clock.now + 1_000_000)
    return made, clock


def let_pass(space: Space, clock: Clock, seconds: float = 1.0) -> None:
    clock.now += seconds
    space.note_written(0)


def test_producers_are_refused_below_the_reserve_and_go_on_half_a_reserve_above_it() -> None:
    volumes = Volumes(a=64 * MIB)
    space, clock = space_of(volumes)
    assert not space.is_short
    assert space.reason == ""
    lines = []
    for free in (64, 63, 64, 95, 96, 64, 10):
        volumes.free["a"] = free * MIB
        let_pass(space, clock)
        lines.append((free, space.is_short))
    assert lines == [(64, False), (63, True), (64, True), (95, True), (96, False), (64, False), (10, True)]


def test_the_reason_names_free_bytes_directory_reserve_what_helps_and_since_when() -> None:
    volumes = Volumes(a=12 * MIB)
    space, clock = space_of(volumes)
    since = space.reason.partition(", since ")[2]
    assert space.reason == (
        "disk full: 12.0 MiB free in /a/data, producers are refused until 96.0 MiB is free "
        f"(the reserve is 64.0 MiB), since {since}"
    )
    volumes.free["a"] = 70 * MIB
    let_pass(space, clock, 3600)
    assert space.reason.startswith("disk full: 70.0 MiB free in /a/data")
    assert space.reason.endswith(f"since {since}")


def test_the_volume_is_asked_by_time_or_by_bytes_and_not_with_every_batch() -> None:
    volumes = Volumes(a=1 << 40)
    space, clock = space_of(volumes)
    volumes.asked = 0
    for _ in range(1_000):
        space.note_written(1_000)
    assert volumes.asked == 0
    space.note_written(READ_BYTES)
    assert volumes.asked == 1
    space.note_written(1)
    assert volumes.asked == 1
    clock.now += 1.5 * READ_SECONDS
    space.note_written(0)
    assert volumes.asked == 2


def test_a_small_reserve_is_not_used_up_before_the_volume_is_asked() -> None:
    """In 100 ms much more can be written than a small reserve holds."""
    volumes = Volumes(a=2 * MIB)
    space, _ = space_of(volumes, 2 * MIB)
    for _ in range(1000):
        volumes.free["a"] -= BLOCK
        space.note_written(BLOCK)
        if space.is_short:
            break
    assert volumes.free["a"] >= 2 * MIB - MIB // 4


def test_the_volume_with_the_least_counts_and_each_is_asked_once() -> None:
    volumes = Volumes(a=500 * MIB, b=70 * MIB)
    space, clock = space_of(volumes, 64 * MIB, "/a/data", "/a/data/index/x", "/b/index")
    assert volumes.asked == 2
    assert space.free_bytes == 70 * MIB
    volumes.free["b"] = 1 * MIB
    let_pass(space, clock)
    assert "1.0 MiB free in /b/index" in space.reason


def test_a_journal_file_that_found_no_room_refuses_producers_until_one_was_made() -> None:
    """A quota does not show in the free bytes."""
    volumes = Volumes(a=1 << 40)
    space, clock = space_of(volumes)
    assert space.may_prepare
    space.note_prepared(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))
    assert space.is_short
    assert "no room for the next journal file (Disk quota exceeded)" in space.reason
    assert not space.may_prepare
    let_pass(space, clock, PREPARE_AGAIN_SECONDS)
    assert space.may_prepare
    assert space.is_short
    space.note_prepared(None)
    assert not space.is_short


def test_a_failure_that_is_not_repeated_is_over() -> None:
    """Acknowledgements filled the file, the rotation made the next one itself, and no other one is being prepared."""
    space, clock = space_of(Volumes(a=1 << 40))
    space.note_prepared(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))
    let_pass(space, clock, FAILURE_SECONDS_MAX - 1)
    space.note_prepared(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))
    let_pass(space, clock, FAILURE_SECONDS_MAX - 1)
    assert space.is_short
    let_pass(space, clock, 1)
    assert not space.is_short


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_another_failure_of_a_preparation_says_nothing_of_space(number: int) -> None:
    space, _ = space_of(Volumes(a=1 << 40))
    space.note_prepared(OSError(number, os.strerror(number)))
    assert not space.is_short
    assert space.may_prepare


def test_without_a_reserve_only_a_failed_journal_file_refuses() -> None:
    volumes = Volumes(a=0)
    space, clock = space_of(volumes, 0)
    assert not space.is_short
    assert space.has_checkpoint_space(lambda: 1 << 40)
    space.note_prepared(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert space.is_short
    let_pass(space, clock)
    assert space.is_short
    space.note_prepared(None)
    assert not space.is_short


def test_a_volume_that_cannot_be_read_changes_nothing() -> None:
    volumes = Volumes(a=1 * MIB)
    space, clock = space_of(volumes)
    volumes.error = OSError(errno.ESTALE, "stale")
    let_pass(space, clock)
    assert space.is_short
    volumes.error = None
    volumes.free["a"] = 1 << 40
    let_pass(space, clock)
    assert not space.is_short


@pytest.mark.parametrize(
    ("reserve", "free", "needed", "has_space"),
    [
        (64 * MIB, CHECKPOINT_SPACE_BYTES, 1 << 40, True),
        (64 * MIB, CHECKPOINT_SPACE_BYTES - BLOCK, 1 << 40, False),
        (64 * MIB, 1 * MIB, 1 * MIB, True),
        (64 * MIB, 1 * MIB, 1 * MIB + 1, False),
        (2 * MIB, 1 * MIB, 1 << 40, True),
        (2 * MIB, 1 * MIB - BLOCK, 1 * MIB, False),
        (2 * MIB, 1 * MIB - BLOCK, 1 * MIB - BLOCK, True),
    ],
)
def test_a_checkpoint_needs_a_little_room(reserve: int, free: int, needed: int, has_space: bool) -> None:
    space, _ = space_of(Volumes(a=free), reserve)
    assert space.has_checkpoint_space(lambda: needed) is has_space


def test_writes_that_are_not_needed_leave_the_reserve() -> None:
    volumes = Volumes(a=65 * MIB)
    space, _ = space_of(volumes)
    assert [space.has_room_beside_reserve(size) for size in (MIB, MIB + 1)] == [True, False]
    volumes.free["a"] = 64 * MIB
    assert not space.has_room_beside_reserve(MIB), "it asks"


def test_a_checkpoint_is_not_begun_by_what_was_known_before() -> None:
    volumes = Volumes(a=100 * MIB)
    space, clock = space_of(volumes)
    assert space.has_checkpoint_space(lambda: 1 << 40)
    volumes.free["a"] = 0
    clock.now += 2 * CHECKPOINT_READ_SECONDS
    assert not space.has_checkpoint_space(lambda: MIB)
    assert space.is_short


def test_a_file_system_that_counts_no_blocks_is_not_taken_for_full() -> None:
    volumes = Volumes(a=0)
    volumes.blocks = 0
    space, _ = space_of(volumes)
    assert not space.is_short
    assert space.has_checkpoint_space(lambda: 1 << 40)
    space.note_prepared(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    text = "disk full: no room for the next journal file (No space left on device) in /a/data, producers are refused"
    assert space.reason.startswith(text)


def test_less_is_on_its_way_when_little_is_free() -> None:
    """Operations handed over before the disk ran short are still written: they must fit into the reserve."""
    volumes = Volumes(a=1 << 40)
    space, clock = space_of(volumes)
    assert space.in_flight_max(32 * MIB) == 32 * MIB
    volumes.free["a"] = 70 * MIB
    let_pass(space, clock)
    assert space.in_flight_max(32 * MIB) < 20 * MIB
    volumes.free["a"] = 0
    let_pass(space, clock)
    assert space.in_flight_max(32 * MIB) == IN_FLIGHT_BYTES_MIN


def test_a_real_directory_answers(tmp_path: Any) -> None:
    space = Space((str(tmp_path),), 1)
    found = os.statvfs(tmp_path)
    assert abs(space.free_bytes - found.f_bavail * found.f_frsize) < 1 << 30
    assert not space.is_short
    with pytest.raises(FileNotFoundError):
        Space((str(tmp_path / "none"),), 1)


# ---- a real store


class Quota:
    """``os``; while ``is_used_up`` no byte of a next journal file can be written, and no free byte less is shown."""

    def __init__(self) -> None:
        self.is_used_up = False
        self.refusals = 0
        self._next: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        fd = os.open(path, flags, mode)
        self._next.discard(fd)
        if "/.next-" in path:
            self._next.add(fd)
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        if self.is_used_up and fd in self._next:
            self.refusals += 1
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return os.pwrite(fd, data, offset)


def test_a_full_quota_refuses_sends_but_not_acknowledgements(tmp_path: Path) -> None:
    disk = Quota()
    settings = StoreSettings(
        journal_max_file_length=64 * KIB, checkpoint_interval=0.1, cleanup_interval=0.0, fence_check_interval=0.02
    )
    term = Term(str(tmp_path), settings=settings, disk=cast(Any, disk))
    disk.is_used_up = True
    added = term.add_durably(40, body=b"x" * KIB)  # more than half a file: the next one is due
    term.wait(lambda: term.store.is_full)
    assert "no room for the next journal file (Disk quota exceeded)" in term.store.full_reason
    with pytest.raises(StoreFull, match="Disk quota exceeded"):
        term.add()
    term.take(added[:-1])
    term.wait(lambda: disk.refusals > 1)
    assert term.store.is_full

    disk.is_used_up = False
    term.wait(lambda: not term.store.is_full)
    added += term.add_durably(200, body=b"y" * KIB)
    assert term.bodies() == [b"x" * KIB, *[b"y" * KIB] * 200]
    term.close()
    assert check(str(tmp_path)).problems == []


class Volume:
    """``os``, with the free bytes that the test sets."""

    def __init__(self) -> None:
        self.free = 1 << 40
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def statvfs(self, path: str) -> Any:
        self.asked += 1
        return os.statvfs_result((BLOCK, BLOCK, 1 << 40, 0, self.free // BLOCK, *[0] * 5))


RECLAIMING = StoreSettings(
    journal_max_file_length=64 * KIB,
    checkpoint_interval=0.05,
    fence_check_interval=0.02,
    disk_reserve=1 * MIB,
    enable_compaction=False,
)


def journal_of(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("db-*.log")}


def files_full(term: Term, count: int) -> list[AddMessage]:
    """Messages, several batches to a file (a batch is not divided), that take so many files of 64 KiB."""
    return [operation for _ in range(4 * count) for operation in term.add_durably(16, body=b"x" * KIB)]


class Bounded(Volume):
    """A volume of a size: the less is free, the more is in the directory."""

    def __init__(self, directory: Path, size: int) -> None:
        super().__init__()
        self.least = size
        self.size = size
        self._directory = directory

    def statvfs(self, path: str) -> Any:
        self.free = self.size - sum(each.stat().st_size for each in self._directory.rglob("*") if each.is_file())
        self.least = min(self.least, self.free)
        return super().statvfs(path)


def test_a_compaction_on_a_nearly_full_volume_uses_half_of_the_free_space(tmp_path: Path) -> None:
    """Copied records exist twice until the compaction is done: so it does a part, and when that has freed space, the
    next one."""
    settings = replace(RECLAIMING, cleanup_interval=0.05, disk_reserve=128 * KIB)
    with Term(str(tmp_path), settings=settings) as term:
        added = files_full(term, 60)
        term.take([operation for number, operation in enumerate(added) if number % 5 > 1])
        kept = [operation.message.body for number, operation in enumerate(added) if number % 5 <= 1]

    before = journal_of(tmp_path)
    there = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    disk = Bounded(tmp_path, there + 256 * KIB)
    settings = replace(settings, enable_compaction=True, compaction_rate=1 << 40)
    with Term(str(tmp_path), settings=settings, disk=cast(Any, disk)) as term:
        term.wait(lambda: len(journal_of(tmp_path)) < len(before) * 9 // 10)
        assert disk.least > 0
        assert term.store.figures.compactions > 1
        assert term.bodies() == kept
    assert check(str(tmp_path)).problems == []


def test_a_store_below_its_reserve_is_full_from_the_start_and_ends_in_order(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    with Term(str(tmp_path)) as term:
        added = term.add_durably(3)
    term = Term(str(tmp_path), settings=replace(SMALL, disk_reserve=2 * free))
    assert term.store.is_full
    with pytest.raises(StoreFull, match="disk full"):
        term.add()
    owner = term.store.queue(Q)
    page = term.page(owner)
    term.remove(page.messages[0], owner)
    term.wait_durable(2)
    term.close()
    with Term(str(tmp_path)) as term:
        assert term.bodies() == [operation.message.body for operation in added[1:]]
    assert check(str(tmp_path)).problems == []
