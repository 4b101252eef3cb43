"""Power losses at random moments of two long lives: confirmed messages are there, acknowledged messages are not.

Short lives are enumerated in ``test_crash_explorer``; this one takes random images of lives with many files, many
checkpoints and every sync policy.
"""

# proves: archive, aside-first, compaction, journal, live-files, minimal-left, pins, upkeep

from __future__ import annotations

import os
import random

import pytest

from tandemmq.store.operations import AddMessage
from tandemmq.store.settings import StoreSettings
from tests.support.crash.explorer import Judge, sampled
from tests.support.crash.promises import PromisingTerm
from tests.support.crash.recording_disk import RecordingDisk, Unlink
from tests.support.prove import SEED, rounds
from tests.support.store.store_harness import KIB

pytestmark = [pytest.mark.promise("confirmed-survives", "acknowledged-stays-gone"), pytest.mark.usefixtures("steps")]

IMAGES = rounds(40, 2_000, quick=12)
ROUNDS = 16


def settings(strategy: str) -> StoreSettings:
    return StoreSettings(
        journal_disk_sync_strategy=strategy,
        journal_disk_sync_interval=0.005,
        journal_max_file_length=16 * KIB,
        checkpoint_records=25,
        cleanup_interval=0.0,
        fence_check_interval=0.01,
    )


def live(term: PromisingTerm) -> None:
    owner = term.queue()
    kept: list[AddMessage] = []
    for _ in range(ROUNDS):
        added = [term.add() for _ in range(6)]
        term.wait_all()
        # Each round leaves one message, which goes four rounds later: files become empty out of turn.
        kept.append(added.pop())
        if len(kept) > 4:
            added.append(kept.pop(0))
        for operation in added:
            term.remove(operation, owner)
        term.wait_all()


def record_two_lives(directory: str, strategy: str) -> RecordingDisk:
    """A master that is killed, and its successor, over several files, checkpoints and reclaimed files."""
    disk = RecordingDisk(directory)
    first = PromisingTerm(directory, "a", settings(strategy), disk, body_bytes=900)
    live(first)
    first.crash()
    second = PromisingTerm(directory, "b", settings(strategy), disk, body_bytes=900)
    live(second)
    second.close()
    return disk


@pytest.mark.prove
@pytest.mark.timeout(60 + IMAGES)
@pytest.mark.parametrize("strategy", ["always", "periodic", "never"])
def test_after_a_power_loss_every_promise_holds(scratch: str, strategy: str) -> None:
    """Only "always" promises anything against a power loss; else what is there is whole, and a beginning of it all."""
    print(f"{IMAGES} images (TANDEMMQ_PROVE)")
    os.mkdir(f"{scratch}/life")
    disk = record_two_lives(f"{scratch}/life", strategy)
    reclaimed = [event for event in disk.events if isinstance(event, Unlink) and event.name.startswith("db-")]
    assert len(reclaimed) > 1, "files were reclaimed"
    judge = Judge(scratch, settings(strategy))
    for candidate in sampled(disk.events, disk.start, IMAGES, random.Random(SEED), must_last=strategy == "always"):
        judge.hold(candidate)
