"""Every image that a power loss may leave of some short lives of a store is opened, and the store held to its word.

Of each life a seeded sample is opened; with TANDEMMQ_PROVE_IMAGES set (``make prove``) all of it is, once as it is
and once without its indexes, and the recoveries of many images are crashed as well.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from explorer import Candidate, Judge, explore, sampled, scratch_directory
from recording_disk import ROOT, Event, RecordingDisk, Sync
from short_lives import LIVES, SETTINGS, Life, killed_at

SEED = int(os.environ.get("TANDEMMQ_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
IS_PROOF = "TANDEMMQ_PROVE_IMAGES" in os.environ
# What the default run opens of each life.
IMAGES = 12
RECOVERIES = 2
IMAGES_OF_A_RECOVERY = 5
KILLS = 4
# A proof crashes the recovery of so many images of each life, at every moment and with every image.
RECOVERIES_PROVED = 25
# So many random images are more than enough to come upon what a lie about syncs makes possible.
IMAGES_TO_FIND_A_LIE = 1000
# A master's life under ``killed_at`` has about so many calls.
CALLS_OF_A_LIFE = 75

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900 if IS_PROOF else 120)]


@pytest.fixture
def scratch() -> Iterator[str]:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    with scratch_directory() as directory:
        yield directory


def lived(scratch: str, life: Life, disk_of: Any = RecordingDisk) -> RecordingDisk:
    directory = f"{scratch}/life"
    os.mkdir(directory)
    disk: RecordingDisk = disk_of(directory)
    life(directory, disk)
    return disk


def some(candidates: Sequence[Candidate], count: int, dice: random.Random) -> Sequence[Candidate]:
    return candidates if IS_PROOF else dice.sample(candidates, min(count, len(candidates)))


@pytest.mark.parametrize("name", LIVES)
def test_whatever_a_power_loss_leaves_every_promise_holds(scratch: str, name: str) -> None:
    dice = random.Random(SEED)
    life = LIVES[name]
    disk = lived(scratch, life.live)
    exploration = explore(disk.events, disk.start, dice)
    judge = Judge(scratch, life.settings, life.also)
    started = time.monotonic()
    for candidate in some(exploration.candidates, IMAGES, dice):
        judge.hold(candidate)
    for candidate in some(exploration.candidates, IMAGES // 4, dice):
        judge.hold(candidate, has_index=False)
    rate = judge.opened / (time.monotonic() - started)
    print(f"{name}: {exploration}; {judge.opened} opened, {rate:.0f} images/s")


@pytest.mark.parametrize("name", LIVES)
def test_a_crash_during_recovery_breaks_no_promise_either(scratch: str, name: str) -> None:
    """What the first recovery found stays, from the moment on at which it could be seen."""
    dice = random.Random(SEED)
    life = LIVES[name]
    disk = lived(scratch, life.live)
    candidates = explore(disk.events, disk.start, dice).candidates
    judge = Judge(scratch, life.settings, life.also)
    images = 0
    started = time.monotonic()
    for candidate in dice.sample(candidates, RECOVERIES_PROVED if IS_PROOF else RECOVERIES):
        recovery = judge.recovery(candidate, has_index=dice.random() < 0.8)
        exploration = explore(recovery.events, recovery.start, dice, before=candidate.allowed)
        for second in some(exploration.candidates, IMAGES_OF_A_RECOVERY, dice):
            images += 1
            judge.hold(second)
    print(f"{name}: {images} images of recoveries, {images / (time.monotonic() - started):.0f} images/s")


def test_a_master_killed_at_any_call_and_then_the_power_lost_breaks_no_promise(scratch: str) -> None:
    """The successor finds what the dead process wrote and never synced; it must not rely on it before it is synced."""
    dice = random.Random(SEED)
    calls = range(1, CALLS_OF_A_LIFE)
    judge = Judge(scratch, SETTINGS)
    for call in calls if IS_PROOF else dice.sample(calls, KILLS):
        with scratch_directory() as directory:
            disk = lived(directory, killed_at(call))
        for candidate in dice.sample(explore(disk.events, disk.start, dice).candidates, 25 if IS_PROOF else 10):
            judge.hold(candidate)
    print(f"{judge.opened} images opened")


class LyingDisk(RecordingDisk):
    """Its syncs of some files are done by the system, and yet not to be counted on."""

    def __init__(self, root: str, lies_about: str) -> None:
        self.lies_about = lies_about
        super().__init__(root)

    def fsync(self, fd: int) -> None:
        if self._is_lie(fd):
            os.fsync(fd)
        else:
            super().fsync(fd)

    def _is_lie(self, fd: int) -> bool:
        if self.lies_about == "names":
            return self.node_of(fd) == ROOT
        return self.lies_about in self.name_of(fd)


@pytest.mark.parametrize("lies_about", ["names", "db-", "db.data", "db.free"])
def test_the_explorer_finds_a_sync_that_is_missing(scratch: str, lies_about: str) -> None:
    dice = random.Random(SEED)
    life = LIVES["a message that stays"].live
    disk = lived(scratch, life, lambda root: LyingDisk(root, lies_about))
    assert count_syncs(disk.events) < count_syncs(lived_again(life).events)
    judge = Judge(scratch, SETTINGS)
    found = 0
    for candidate in sampled(disk.events, disk.start, IMAGES_TO_FIND_A_LIE, dice):
        try:
            judge.hold(candidate)
        except Exception:  # refused as damaged, or a promise that is broken: it is seen
            found += 1
            break
    assert found, f"{judge.opened} images, and no promise was broken"


def count_syncs(events: Sequence[Event]) -> int:
    return sum(isinstance(event, Sync) for event in events)


def lived_again(life: Life) -> RecordingDisk:
    with scratch_directory() as directory:
        return lived(directory, life)
