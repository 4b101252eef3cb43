"""A proof that can fail: brokers that leave one thing out break a promise within few seeds, and it is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

import store.state
from broker.simulate.parts import parts_of
from broker.simulate.simulation import Simulation
from config.load import load
from journal.writer import JournalWriter
from locker.lease_database import LeaseDatabaseLocker
from store.batch import Batch
from store.journal_end import JournalEnd
from store.operations import Operation
from store.standby import Standby
from store.storage_thread import StorageThread

pytestmark = pytest.mark.thorough

SEEDS_MAX = int(os.environ.get("TANDEMMQ_PROVE_SEEDS", "300"))
FAULTS = ("nfs-pause", "lock-steal", "clock-step", "disk-full", "partition", "kill")
LEASE = ("locker.type=lease-database", "locker.data_source=sqlite:///simulated")

#: Between two steps that are in the wrong order.
MOMENT_SECONDS = 0.05

Break = Callable[[pytest.MonkeyPatch], None]


def first_broken(settings: Sequence[str], faults: Sequence[str]) -> tuple[int, str]:
    """The first seed that shows it, and what it shows."""
    parts = parts_of(load(None, {}, settings))
    for seed in range(1, SEEDS_MAX + 1):
        problems = Simulation(seed, parts, faults).run().problems
        if problems:
            return seed, problems[0]
    return 0, ""


def nobody_looks(patch: pytest.MonkeyPatch) -> None:
    """A master that does not look for a successor answers when it is none any more."""
    patch.setattr(JournalWriter, "look", lambda self: None)
    patch.setattr(JournalWriter, "_look_at_own", lambda self: None)


def lease_is_held_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A lease that is taken for extended although nobody could ask, and no look behind it."""
    keep_alive = LeaseDatabaseLocker.keep_alive

    def believe(self: LeaseDatabaseLocker) -> bool:
        try:
            keep_alive(self)
        except Exception:
            pass
        return True

    patch.setattr(LeaseDatabaseLocker, "keep_alive", believe)
    patch.setattr(JournalEnd, "look", lambda self: None)


def reads_before_its_fence(patch: pytest.MonkeyPatch) -> None:
    """What the former master writes between the two is in no end."""
    read, fence = Standby.read, Standby.fence

    def read_then_fence(self: Standby) -> None:
        promotion = self._promotion
        ids = promotion._files.list()
        promotion._last = ids[-1] if ids else 0
        promotion._first = promotion._last + 1
        read(self)
        self._threads.sleep(MOMENT_SECONDS)
        fence(self)

    patch.setattr(Standby, "fence", read_then_fence)
    patch.setattr(Standby, "read", lambda self: None)


def nothing_is_synced(patch: pytest.MonkeyPatch) -> None:
    def sync(self: JournalWriter) -> None:
        self._is_dirty = False
        if self._farewell is not None:
            self._say_farewell()

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
    """All journal files but the last two are removed, whoever needs them."""
    reclaimable = store.state.reclaimable

    def too_much(
        files: dict[int, object], held: set[int], first: object, before: int, *rest: object
    ) -> tuple[int, ...]:
        return tuple(sorted({*reclaimable(files, held, first, before, *rest), *(f for f in files if f < before - 1)}))

    patch.setattr(store.state, "reclaimable", too_much)


BROKEN: dict[str, tuple[Break, Sequence[str], Sequence[str]]] = {
    "nobody looks": (nobody_looks, (), FAULTS),
    "a lease is held for ever": (lease_is_held_for_ever, LEASE, FAULTS),
    "reads before its fence": (reads_before_its_fence, (), FAULTS),
    "nothing is synced": (nothing_is_synced, (), ("kill",)),
    "tells before it writes": (tells_before_it_writes, (), ("kill",)),
    "gives up what is needed": (gives_up_what_is_needed, (), ("kill",)),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_left_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out, settings, faults = BROKEN[name]
    leave_out(monkeypatch)
    seed, problem = first_broken(settings, faults)
    print(f"{name}: seed {seed}: {problem}")
    assert problem, f"{name}: {SEEDS_MAX} seeds found nothing"


def test_without_leaving_out_anything_they_find_nothing() -> None:
    parts = parts_of(load(None, {}, ()))
    assert [Simulation(seed, parts, FAULTS).run().problems for seed in range(1, 4)] == [[]] * 3
