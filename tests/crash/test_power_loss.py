"""The power goes at any moment: what had a receipt is there, what was acknowledged for good does not come back."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(__file__)), "store"))

from recording_disk import Event, RecordingDisk, image_at
from store_harness import KIB, Q, Term

from store.check import check
from store.operations import AddMessage, Operation, RemoveMessage
from store.settings import StoreSettings

IMAGES = int(os.environ.get("TANDEMMQ_PROVE_IMAGES", "120"))
SEED = int(os.environ.get("TANDEMMQ_SEED", "0")) or random.SystemRandom().randrange(1 << 32)


def settings(strategy: str) -> StoreSettings:
    return StoreSettings(
        journal_disk_sync_strategy=strategy,
        journal_max_file_length=16 * KIB,
        checkpoint_records=25,
        cleanup_interval=0.0,
        look_interval=0.01,
    )


class PromisingTerm(Term):
    """Notes in the disk's own record when each promise was made."""

    def __init__(self, directory: str, broker: str, disk: RecordingDisk, strategy: str) -> None:
        self.disk = disk
        super().__init__(directory, broker, settings(strategy), disk=disk)

    def durable(self, operations: list[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, AddMessage):
                self.disk.note("stored", operation.message.message_id)
            elif isinstance(operation, RemoveMessage):
                self.disk.note("removed", operation.message_id)
        super().durable(operations)

    def live(self, rounds: int) -> None:
        owner = self.store.queue(Q)
        kept: list[AddMessage] = []
        for _ in range(rounds):
            before = len(self.durable_operations)
            added = self.add_durably(6, body=b"x" * 900)
            # Each round leaves one message, which goes four rounds later: files become empty out of turn.
            kept.append(added.pop())
            if len(kept) > 4:
                added.append(kept.pop(0))
            for operation in added:
                self.disk.note("removing", operation.message.message_id)
                self.remove(operation, owner)
            self.wait_durable(before + 6 + len(added))


def record_two_lives(directory: str, strategy: str) -> list[Event]:
    """A master that is killed, and its successor, over several files, checkpoints and reclaimed files."""
    disk = RecordingDisk()
    first = PromisingTerm(directory, "a", disk, strategy)
    first.live(16)
    first.crash()
    second = PromisingTerm(directory, "b", disk, strategy)
    second.live(16)
    second.close()
    return disk.events


@pytest.mark.prove
@pytest.mark.timeout(60 + IMAGES)
@pytest.mark.parametrize("strategy", ["always", "never"])
def test_after_a_power_loss_every_promise_holds(tmp_path: Path, strategy: str) -> None:
    """With "never" a receipt promises nothing against a power loss; but what is there is whole, and the store opens."""
    print(f"seed {SEED}, {IMAGES} images (TANDEMMQ_SEED, TANDEMMQ_PROVE_IMAGES)")
    dice = random.Random(SEED)
    live = tmp_path / "live"
    live.mkdir()
    events = record_two_lives(str(live), strategy)
    assert sum(event[0] == "unname" and "db-" in event[1] for event in events) > 1, "files were reclaimed"
    for number in range(IMAGES):
        stop = dice.randrange(len(events) + 1)
        directory = tmp_path / str(number)
        directory.mkdir()
        image_at(events, stop, dice).put(str(live), str(directory))
        where = f"image {number}, after event {stop} of {len(events)}"
        report = check(str(directory))
        assert report.is_clean, (where, report.problems)
        term = Term(str(directory), "c", settings(strategy))
        found = [paged.message.message_id for paged in term.page(term.store.queue(Q)).messages]
        term.close()
        promised = {kind: {e[1] for e in events[:stop] if e[0] == kind} for kind in ("stored", "removing", "removed")}
        assert len(found) == len(set(found)), where
        if strategy == "always":
            assert not promised["stored"] - promised["removing"] - set(found), f"{where}: lost"
            assert not promised["removed"] & set(found), f"{where}: undone"
        assert check(str(directory)).is_clean, where
        shutil.rmtree(directory)
