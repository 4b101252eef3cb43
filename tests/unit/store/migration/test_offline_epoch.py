"""An epoch of a tool: its flushed operations are as durable as the operations that a master confirms."""

# proves: offline-fence-check, offline-sync-before-fence-check, promotion

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tandemmq.disk import Disk
from tandemmq.journal.errors import Deposed
from tandemmq.journal.files import JournalFiles
from tandemmq.store.migration.offline_epoch import OfflineEpoch
from tandemmq.store.records.marks import encode_clock
from tandemmq.store.writer.journal_end import NoProof
from tests.support.store.noting_disk import NotingDisk
from tests.support.store.standbys import publish_next

PAYLOAD = encode_clock(1)


@pytest.fixture
def disk() -> NotingDisk:
    return NotingDisk()


@pytest.fixture
def proof() -> list[bool]:
    """Return whether this process has the lock."""
    return [True]


@pytest.fixture
def epoch(tmp_path: Path, disk: NotingDisk, proof: list[bool]) -> Iterator[Callable[[], OfflineEpoch]]:
    (tmp_path / "data").mkdir()
    made: list[OfflineEpoch] = []

    def begin() -> OfflineEpoch:
        places = str(tmp_path / "data"), str(tmp_path / "index")
        made.append(OfflineEpoch(*places, name="tool", has_proof=lambda: proof[-1], disk=cast(Disk, disk)))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def test_flushed_records_are_synced_and_then_fence_checked(epoch: Callable[[], OfflineEpoch], disk: NotingDisk) -> None:
    made = epoch()
    made.write([PAYLOAD])
    disk.steps.clear()
    made.flush()
    assert disk.steps == ["write 1", "sync 1", "look for 2"]


def test_the_header_of_an_epoch_is_synced_and_then_looked_at(
    epoch: Callable[[], OfflineEpoch], disk: NotingDisk
) -> None:
    epoch()
    first = disk.steps.index("sync 1")
    assert disk.steps[first - 1 : first + 2] == ["write 1", "sync 1", "look for 2"]


def test_records_after_a_successors_fence_are_not_flushed(epoch: Callable[[], OfflineEpoch], tmp_path: Path) -> None:
    made = epoch()
    publish_next(str(tmp_path / "data"))
    made.write([PAYLOAD])
    with pytest.raises(Deposed):
        made.flush()


def test_a_process_without_the_lock_writes_nothing(
    epoch: Callable[[], OfflineEpoch], proof: list[bool], disk: NotingDisk
) -> None:
    made = epoch()
    made.write([PAYLOAD])
    proof.append(False)
    disk.steps.clear()
    with pytest.raises(NoProof):
        made.flush()
    with pytest.raises(NoProof):
        made.check_fence()
    assert disk.steps == []


def test_a_process_without_a_proof_begins_no_epoch(
    epoch: Callable[[], OfflineEpoch], proof: list[bool], tmp_path: Path
) -> None:
    proof.append(False)
    with pytest.raises(NoProof):
        epoch()
    assert JournalFiles(str(tmp_path / "data")).list() == []
