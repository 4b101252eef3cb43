"""Each image that a power loss can leave of some short lives of a store is opened, and the promises are checked.

By default the test opens a seeded sample of the images of each life. With TANDEMMQ_PROVE set (``make prove``) it opens
all images, in as many processes as there are processors: once as they are and once without their indexes. It also
crashes the recoveries of some images. An image that was judged under the same promises is not judged again.
"""

# proves: archive, aside-first, compaction, journal, live-files, minimal-left, pins, upkeep

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.crash.conftest import STEPS
from tests.support.crash import explorer, what_happened
from tests.support.crash.explorer import Candidate, Exploration, Judge, explore, hold_all, scratch_directory
from tests.support.crash.promises import State
from tests.support.crash.promotion_lives import PROMOTION_LIVES
from tests.support.crash.recording_disk import ROOT, RecordingDisk
from tests.support.crash.several_lives import SEVERAL_LIVES
from tests.support.crash.short_lives import LIVES as LIVES_OF_ONE_OR_TWO
from tests.support.crash.short_lives import SETTINGS, Life, ShortLife, killed_at
from tests.support.crash.takeover_lives import TAKEOVER_LIVES
from tests.support.prove import IS_PROOF, SEED
from tests.support.samples import sampled

LIVES: dict[str, ShortLife] = {**LIVES_OF_ONE_OR_TWO, **PROMOTION_LIVES, **TAKEOVER_LIVES, **SEVERAL_LIVES}
# What a run that is no proof opens of each life.
IMAGES = 8
RECOVERIES = 1
IMAGES_OF_A_RECOVERY = 5
KILLS = 2
IMAGES_OF_A_KILL = 10
# All lives in CI; in the default run one in so many.
ONE_IN = 8
# A proof crashes the recovery of so many images of each life, at every moment and with every image.
RECOVERIES_PROVED = 8
# So many random images are more than enough to come upon what a lie about syncs makes possible.
IMAGES_TO_FIND_A_LIE = 1000
# A master's life under ``killed_at`` has about so many calls.
CALLS_OF_A_LIFE = 75
TRIES = 3
PROVED_LIVES_MIN = 20
# In so many lives each of these happens, at least.
LIVES_WITH = {
    what_happened.PROMOTION: PROVED_LIVES_MIN,
    what_happened.ROTATION: 15,
    what_happened.COMPACTION: 10,
    what_happened.FENCE_WITHOUT_HEADER: 10,
    what_happened.LATE_WRITE: 6,
    what_happened.TAKE_OVER: 6,
    what_happened.JOINT: 5,
    what_happened.XA_PREPARED: 5,
    what_happened.ARCHIVING: 4,
    what_happened.XA_COMMITTED: 3,
    what_happened.XA_ROLLED_BACK: 3,
}

pytestmark = [
    pytest.mark.usefixtures("steps"),
    pytest.mark.prove,
    pytest.mark.timeout(7200 if IS_PROOF else 120),
    pytest.mark.promise("confirmed-survives", "acknowledged-stays-gone", "one-master-counts"),
]


def one_in_some(first: int) -> list[Any]:
    """Each life, and by which code its journal is written: one of the two, and in a proof both. In the default run one
    life in ONE_IN, from this one on."""
    return [
        pytest.param(*case.values, marks=[*case.marks, *(() if number % ONE_IN == first else [pytest.mark.thorough])])
        for number, name in enumerate(LIVES)
        for case in sampled(f"{first} {name}", [(name, steps) for steps in STEPS], 1)
    ]


@dataclass(slots=True)
class Tally:
    """Sums over all tests of this module."""

    lives: int = 0
    images: int = 0
    distinct: int = 0
    opened: int = 0
    of_recoveries: int = 0
    of_kills: int = 0
    seconds: float = 0.0
    lives_with: Counter[str] = field(default_factory=Counter)


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    sums = Tally()
    yield sums
    print(
        f"\n{sums.lives} lives: {sums.images} images, {sums.distinct} of them distinct, {sums.opened} openings; and "
        f"{sums.of_recoveries} of images of recoveries, {sums.of_kills} behind kills; {sums.seconds:.0f} s"
    )
    print("lives with: " + ", ".join(f"{what} {count}" for what, count in sums.lives_with.most_common()))


@pytest.fixture(autouse=True)
def timed(tally: Tally) -> Iterator[None]:
    started = time.monotonic()
    yield
    tally.seconds += time.monotonic() - started


def lived(scratch: str, life: Life, disk_of: Any = RecordingDisk) -> RecordingDisk:
    directory = f"{scratch}/life"
    os.mkdir(directory)
    disk: RecordingDisk = disk_of(directory)
    life(directory, disk)
    return disk


def recorded(directory: str, life: ShortLife) -> tuple[RecordingDisk, frozenset[State]]:
    """The life, and what was held before it."""
    os.mkdir(directory)
    before = life.found(directory)
    disk = RecordingDisk(directory)
    life.live(directory, disk)
    return disk, frozenset([before])


def explored(life: ShortLife, disk: RecordingDisk, dice: random.Random, before: frozenset[State]) -> Exploration:
    return explore(disk.events, disk.start, dice, before=before, ledger_of=life.store_kind.ledger)


def recorded_and_explored(scratch: str, life: ShortLife, dice: random.Random) -> tuple[RecordingDisk, Exploration]:
    """A life all images of which are known. Of one whose threads met so that there are too many another try is made."""
    for number in range(TRIES):
        disk, before = recorded(f"{scratch}/life{number}", life)
        exploration = explored(life, disk, dice, before)
        if not exploration.is_capped:
            return disk, exploration
    raise AssertionError("some images are left out each time: the life is to be made shorter")


def judge_of(scratch: str, life: ShortLife) -> Judge:
    return Judge(scratch, life.settings, life.also, store_kind=life.store_kind)


def hold(judge: Judge, images: Sequence[tuple[Candidate, bool]]) -> None:
    if IS_PROOF:
        hold_all(judge, images)
        return
    for candidate, has_index in images:
        judge.hold(candidate, has_index=has_index)


def some(candidates: Sequence[Candidate], count: int, dice: random.Random) -> Sequence[Candidate]:
    return candidates if IS_PROOF else dice.sample(candidates, min(count, len(candidates)))


@pytest.mark.parametrize(("name", "steps"), one_in_some(0), indirect=["steps"])
def test_whatever_a_power_loss_leaves_every_promise_holds(scratch: str, tally: Tally, name: str, steps: str) -> None:
    dice = random.Random(SEED)
    life = LIVES[name]
    disk, exploration = recorded_and_explored(scratch, life, dice)
    judge = judge_of(scratch, life)
    started = time.monotonic()
    images = IMAGES if steps == "python" else IMAGES // 2
    with_index = [(candidate, True) for candidate in some(exploration.candidates, images, dice)]
    without = [(candidate, False) for candidate in some(exploration.candidates, images // 4, dice)]
    hold(judge, [*with_index, *without])
    happened = what_happened.what_happened(disk.events, disk.start)
    tally.lives += 1
    tally.images += exploration.images
    tally.distinct += len(exploration.candidates)
    tally.opened += judge.opened
    tally.lives_with.update(happened.keys())
    print(f"{name}: {', '.join(f'{count} x {what}' for what, count in happened.items())}")
    print(f"{exploration}; {judge.opened} opened, {judge.opened / (time.monotonic() - started):.0f} images/s")


@pytest.mark.thorough
def test_the_lives_have_in_them_what_can_happen_to_a_store(scratch: str, tally: Tally) -> None:
    found: Counter[str] = Counter()
    for life in LIVES.values():
        with scratch_directory() as directory:
            disk, _ = recorded(f"{directory}/life", life)
            found.update(what_happened.what_happened(disk.events, disk.start).keys())
    assert len(LIVES) >= PROVED_LIVES_MIN
    assert {what: found[what] for what, least in LIVES_WITH.items() if found[what] < least} == {}


@pytest.mark.parametrize(("name", "steps"), one_in_some(4), indirect=["steps"])
def test_a_crash_during_recovery_breaks_no_promise_either(scratch: str, tally: Tally, name: str) -> None:
    """The records that the first recovery found stay, from the moment on at which they could be seen."""
    dice = random.Random(SEED)
    life = LIVES[name]
    candidates = recorded_and_explored(scratch, life, dice)[1].candidates
    judge = judge_of(scratch, life)
    images = 0
    started = time.monotonic()
    for candidate in dice.sample(candidates, RECOVERIES_PROVED if IS_PROOF else RECOVERIES):
        recovery = judge.recovery(candidate, has_index=dice.random() < 0.8)
        exploration = explored(life, recovery, dice, candidate.allowed)
        seconds = some(exploration.candidates, IMAGES_OF_A_RECOVERY, dice)
        hold(judge, [(second, True) for second in seconds])
        images += len(seconds)
    tally.of_recoveries += images
    print(f"{name}: {images} images of recoveries, {images / (time.monotonic() - started):.0f} images/s")


def test_a_master_killed_at_any_call_and_then_the_power_lost_breaks_no_promise(scratch: str, tally: Tally) -> None:
    """The successor finds what the dead process wrote and never synced; it must not rely on it before it is synced."""
    dice = random.Random(SEED)
    calls = range(1, CALLS_OF_A_LIFE)
    judge = Judge(scratch, SETTINGS)
    judged: set[tuple[bytes, frozenset[State]]] = set()
    distinct = 0
    for call in calls if IS_PROOF else dice.sample(calls, KILLS):
        with scratch_directory() as directory:
            disk = lived(directory, killed_at(call))
        exploration = explore(disk.events, disk.start, dice)
        distinct += len(exploration.candidates)
        candidates = some(exploration.candidates, IMAGES_OF_A_KILL, dice)
        new = {(candidate.image.key, candidate.allowed): candidate for candidate in candidates}
        hold(judge, [(candidate, True) for key, candidate in new.items() if key not in judged])
        judged |= new.keys()
    tally.of_kills += judge.opened
    print(f"{distinct} images, {judge.opened} opened")


class LyingDisk(RecordingDisk):
    """Disk whose syncs of some files are executed by the system, but do not count as durable."""

    def __init__(self, root: str, lies_about: str) -> None:
        self.lies_about = lies_about
        self.lies = 0
        super().__init__(root)

    def fsync(self, fd: int) -> None:
        if self._is_lie(fd):
            self.lies += 1
            os.fsync(fd)
        else:
            super().fsync(fd)

    def _is_lie(self, fd: int) -> bool:
        if self.lies_about == "names":
            return self.node_of(fd) == ROOT
        return self.lies_about in self.name_of(fd)


@pytest.mark.parametrize(
    "lies_about", ["names", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("db-", "db.data", "db.free"))]
)
def test_the_explorer_finds_a_sync_that_is_missing(scratch: str, lies_about: str) -> None:
    dice = random.Random(SEED)
    life = LIVES["a message that stays"].live
    disk = lived(scratch, life, lambda root: LyingDisk(root, lies_about))
    assert isinstance(disk, LyingDisk)
    assert disk.lies
    judge = Judge(scratch, SETTINGS)
    found = 0
    for candidate in explorer.sampled(disk.events, disk.start, IMAGES_TO_FIND_A_LIE, dice):
        try:
            judge.hold(candidate)
        except Exception:  # refused as damaged, or a promise that is broken: it is seen
            found += 1
            break
    assert found, f"{judge.opened} images, and no promise was broken"
