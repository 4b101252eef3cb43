"""Check of the proof: brokers that leave out one step break a promise within few seeds, and the failure is reported.

Each promise of the product has one or more such brokers, and so has each step of the argument of fence, header and
fence check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

import tandemmq.journal.files
import tandemmq.store.state.state
from tandemmq.broker.ha.mastership import Mastership
from tandemmq.broker.ha.waits import BOUNDS, Wait
from tandemmq.config.load import load
from tandemmq.journal.errors import Deposed
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.writer import JournalWriter
from tandemmq.locker.sql.lease_database import LeaseDatabaseLocker
from tandemmq.locker.sql.table import SqlLeaseTable
from tandemmq.simulator.kinds import MIXTURES
from tandemmq.simulator.parts import parts_of
from tandemmq.simulator.simulation import Simulation
from tandemmq.store.maintenance.upkeep import CheckpointDone, Upkeep
from tandemmq.store.operations import Operation
from tandemmq.store.records.commands import REMOVE
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.promotion import Promoted, Promotion
from tandemmq.store.standby import Standby
from tandemmq.store.storage_thread import StorageThread
from tandemmq.store.writer.batch import Batch
from tandemmq.store.writer.journal_end import JournalEnd
from tests.support.prove import rounds

pytestmark = pytest.mark.thorough

SEEDS_MAX = rounds(300, 10_000)
FAULTS = MIXTURES["named"]
STORMS = MIXTURES["storms"]
LATE = MIXTURES["late"]
NO_LOCK = ("locker.use_lock=false",)
LEASE = ("locker.type=lease-database", "locker.data_source=sqlite:///simulated")

#: Between two steps that are in the wrong order.
MOMENT_SECONDS = 0.05
ENDLESS_SECONDS = 1e9

Break = Callable[[pytest.MonkeyPatch], None]


def replaced(owner: object, name: str, instead: object) -> Break:
    return lambda patch: patch.setattr(owner, name, instead)


def first_broken(broken: Broken, simulation: Any = Simulation, seeds: int = SEEDS_MAX) -> str:
    """The first seed that shows it, and what it shows: a sentence with one of the expected words in it."""
    parts = parts_of(load(None, {}, broken.settings))
    words = broken.expected.split("|")
    for seed in range(broken.seed, broken.seed + seeds):
        for problem in simulation(seed, parts, broken.faults).run().problems:
            if any(word in problem for word in words):
                return f"seed {seed}: {problem}"
    return ""


def nobody_looks(patch: pytest.MonkeyPatch) -> None:
    """A master that does not look for a successor answers when it is none any more."""
    patch.setattr(JournalWriter, "check_fence", lambda self: None)
    patch.setattr(JournalWriter, "_check_own_file", lambda self: None)


def fence_is_a_name(patch: pytest.MonkeyPatch) -> None:
    """Accept as the broker's own file, after a suspension, one that another broker linked under its name."""

    def find_name(self: JournalWriter) -> None:
        try:
            self._files.identity_now(self.file)
        except FileNotFoundError:
            self._depose("the file lost its name")

    def find_names(self: Promotion) -> None:
        if self._files.exists(self._first + 1) or not self._files.exists(self._first):
            raise Deposed(self._first, "by name")

    patch.setattr(JournalWriter, "_check_own_file", find_name)
    patch.setattr(Promotion, "_check_fence", find_names)


def lease_is_held_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Treat a lease as extended although no answer came, and make no fence check after it."""
    keep_alive = LeaseDatabaseLocker.keep_alive

    def believe(self: LeaseDatabaseLocker) -> bool:
        try:
            keep_alive(self)
        except Exception:
            pass
        return True

    patch.setattr(LeaseDatabaseLocker, "keep_alive", believe)
    patch.setattr(JournalEnd, "check_fence", lambda self: None)


def reads_before_its_fence(patch: pytest.MonkeyPatch) -> None:
    """Read before the fence: records that the former master writes between the two are in no end."""
    read, fence = Standby.read, Standby.fence

    def read_then_fence(self: Standby, has_proof: Callable[[], bool]) -> None:
        promotion = self._promotion
        ids = promotion._files.list()
        promotion._last = ids[-1] if ids else 0
        promotion._first = promotion._last + 1
        read(self)
        self._threads.sleep(MOMENT_SECONDS)
        fence(self, has_proof)

    patch.setattr(Standby, "fence", read_then_fence)
    patch.setattr(Standby, "read", lambda self: None)


def nothing_is_synced(patch: pytest.MonkeyPatch) -> None:
    def sync(self: JournalWriter) -> None:
        self._is_dirty = False
        if self._end_marker is not None:
            self._write_end_marker()

    patch.setattr(JournalWriter, "sync", sync)


def tells_before_it_writes(patch: pytest.MonkeyPatch) -> None:
    commit, report = StorageThread._commit, StorageThread._report

    def tell_then_commit(self: StorageThread, batch: Batch) -> None:
        report(self, batch.reported())
        commit(self, batch)

    def told_before(self: StorageThread, operations: list[Operation]) -> None:
        pass

    patch.setattr(StorageThread, "_commit", tell_then_commit)
    patch.setattr(StorageThread, "_report", told_before)


def gives_up_what_is_needed(patch: pytest.MonkeyPatch) -> None:
    """Remove all journal files but the last two, also needed ones."""
    reclaimable = tandemmq.store.state.state.reclaimable

    def too_much(
        files: dict[int, object], held: set[int], first: object, before: int, *rest: object
    ) -> tuple[int, ...]:
        return tuple(sorted({*reclaimable(files, held, first, before, *rest), *(f for f in files if f < before - 1)}))

    patch.setattr(tandemmq.store.state.state, "reclaimable", too_much)


def acknowledgements_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    write = JournalEnd.write

    def write_loosely(self: JournalEnd, payloads: list[bytes], size: int, **named: Any) -> list[int]:
        if any(payload[0] != REMOVE for payload in payloads):
            return write(self, payloads, size, **named)
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(self, "sync", lambda: None)
            return write(self, payloads, size, **named)

    patch.setattr(JournalEnd, "write", write_loosely)


def fence_without_a_header_goes_early(patch: pytest.MonkeyPatch) -> None:
    """Act as if the epoch of a promotion that failed before its header had never begun."""

    def first_of_epoch(self: EpochHistory, file: int) -> bool:
        header = self.headers.get(file)
        return header is not None and header.reason == "promotion"

    patch.setattr(EpochHistory, "first_of_epoch", first_of_epoch)


def fences_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    fence = Standby.fence
    patch.setattr(Standby, "fence", lambda self, has_proof: fence(self, lambda: True))


def what_ends_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """Not after it was read, and not before: either alone is enough but for what comes between the two."""
    patch.setattr(Promotion, "_sync_file", lambda self, file: None)
    patch.setattr(JournalFiles, "sync", lambda self, file: None)


def header_names_no_ends(patch: pytest.MonkeyPatch) -> None:
    begin = Promotion.begin

    def begin_without(self: Promotion, *arguments: Any, **named: Any) -> Promoted:
        self._ends = {}
        return begin(self, *arguments, **named)

    patch.setattr(Promotion, "begin", begin_without)


def lock_is_granted_by_an_old_answer(patch: pytest.MonkeyPatch) -> None:
    """Take the lease after reading that it is free, although another broker may have taken it since: two that poll at
    once both have it."""

    def obtain(self: SqlLeaseTable, name: str, lease_ms: int) -> bool:
        spec = self._sql
        changes = f"{spec.name} = :name, {spec.time} = {self._now} + :lease"
        return self._update(changes, f"{spec.id} = {spec.id}", {"name": name, "lease": lease_ms})

    patch.setattr(SqlLeaseTable, "obtain", obtain)


def waits_for_ever(wait: Wait) -> Break:
    def leave_out(patch: pytest.MonkeyPatch) -> None:
        endless = replace(BOUNDS[wait], seconds=None, silence=(ENDLESS_SECONDS, ENDLESS_SECONDS))
        make = Mastership.__init__

        def make_patient(self: Mastership, *arguments: Any, **named: Any) -> None:
            make(self, *arguments, **named, bounds={**BOUNDS, wait: endless})

        patch.setattr(Mastership, "__init__", make_patient)

    return leave_out


def follows_nothing(patch: pytest.MonkeyPatch) -> None:
    """A standby that says that it has caught up, and reads everything when it is promoted."""
    advance = Follower.advance

    def advance_in_words(self: Follower, *, is_final: bool = False) -> dict[int, int]:
        if is_final:
            return advance(self, is_final=True)
        self._progress.reach(self._clock(), 0, 0, 0)
        self.has_caught_up = True
        return {}

    patch.setattr(Follower, "advance", advance_in_words)


def cleans_up_in_the_end_only(patch: pytest.MonkeyPatch) -> None:
    checkpoint_done = Upkeep.checkpoint_done

    def done(self: Upkeep, what: CheckpointDone) -> None:
        self._last_cleanup = math.inf
        checkpoint_done(self, what)

    patch.setattr(Upkeep, "checkpoint_done", done)


class Broken(NamedTuple):
    """Omitted step, the world in which it is omitted, words of the sentence that reports it (any of them), and the seed
    to begin with, which was the first to show it when this was written."""

    leave_out: Break
    settings: Sequence[str]
    faults: Sequence[str]
    expected: str
    seed: int


HARM = "lost|came back|torn|twice|DAMAGED|not sound|out of order|no broker is master"
NOBODY_SERVES = "no other broker serves"
HANG = ("hang",)

BROKEN: dict[str, Broken] = {
    "nobody looks": Broken(nobody_looks, (), FAULTS, HARM, 17),
    "a fence is a name": Broken(fence_is_a_name, (), LATE, HARM, 9),
    "a lease is held for ever": Broken(lease_is_held_for_ever, LEASE, FAULTS, f"{HARM}|still proves", 11),
    "reads before its fence": Broken(reads_before_its_fence, (), FAULTS, HARM, 13),
    "nothing is synced": Broken(nothing_is_synced, (), ("kill",), HARM, 3),
    "tells before it writes": Broken(tells_before_it_writes, (), ("kill",), HARM, 2),
    "gives up what is needed": Broken(gives_up_what_is_needed, (), ("kill",), HARM, 9),
    "acknowledgements are not synced": Broken(acknowledgements_are_not_synced, (), ("kill",), "came back", 21),
    "a fence without a header goes early": Broken(fence_without_a_header_goes_early, NO_LOCK, STORMS, HARM, 135),
    "fences without a proof": Broken(fences_without_a_proof, (), STORMS, "cannot prove", 8),
    "what ends is not synced": Broken(what_ends_is_not_synced, NO_LOCK, ("promotion", "kill"), HARM, 99),
    "a header names no ends": Broken(header_names_no_ends, NO_LOCK, STORMS, HARM, 9),
    "the lock is granted by an old answer": Broken(
        lock_is_granted_by_an_old_answer, LEASE, ("kill",), "still proves", 20
    ),
    "waits for ever for its last look at the journal": Broken(
        waits_for_ever(Wait.FOLLOW), LEASE, HANG, NOBODY_SERVES, 692
    ),
    "waits for ever for its promotion": Broken(waits_for_ever(Wait.PROMOTE), LEASE, HANG, NOBODY_SERVES, 29),
    "waits for ever for its storage": Broken(waits_for_ever(Wait.STORAGE), LEASE, HANG, NOBODY_SERVES, 160),
    "waits for ever while it hands over": Broken(waits_for_ever(Wait.CLOSE), LEASE, HANG, NOBODY_SERVES, 241),
    "follows nothing": Broken(follows_nothing, (), ("kill",), "are due", 10),
    "cleans up in the end only": Broken(cleans_up_in_the_end_only, (), ("handover",), "while it runs", 55),
    "leaves what nobody knows": Broken(
        replaced(tandemmq.journal.files, "NEXT_PREFIX", "next-"), (), ("kill",), "has no known purpose", 3
    ),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_left_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BROKEN[name]
    broken.leave_out(monkeypatch)
    problem = first_broken(broken)
    print(f"{name}: {problem}")
    assert problem, f"{name}: {SEEDS_MAX} seeds found nothing"


def test_without_leaving_out_anything_they_find_nothing() -> None:
    parts = parts_of(load(None, {}, ()))
    assert [Simulation(seed, parts, FAULTS).run().problems for seed in range(1, 4)] == [[]] * 3
