"""Threads that are suspended between two steps, for up to ten seconds, where safety depends on the order of the steps.

A process that is stopped at random is seldom stopped at such a point. So the steps are named here, and a thread is
suspended before or after them at intervals: the fence check, the link that is a fence, the reading, the header, the
removal of files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.config.load import load
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.writer import JournalWriter
from tandemmq.simulator.disk import SimulatedDisk
from tandemmq.simulator.parts import parts_of
from tandemmq.simulator.simulation import Simulation
from tandemmq.store.recovery.promotion import Promotion
from tests.support.prove import IS_PROOF, rounds

pytestmark = pytest.mark.promise("simulator-finds-nothing", "one-master-counts")

SEEDS = max(1, rounds(60, 10_000, quick=12) // 6)
FIRST = int(os.environ.get("TANDEMMQ_SEED", "1"))
FAULTS = ("nfs-pause", "lock-steal", "partition", "kill")
SLEEP_SECONDS_MAX = 10.0
LOCKERS = {
    "no lock": ("locker.use_lock=false",),
    "shared-file": (),
    "lease-database": ("locker.type=lease-database", "locker.data_source=sqlite:///simulated"),
}

#: step -> (share that sleeps before it, share that sleeps after it)
STEPS: dict[tuple[type, str], tuple[float, float]] = {
    (JournalFiles, "publish"): (0.3, 0.2),
    (JournalFiles, "remove"): (0.3, 0.0),
    (JournalFiles, "identity_now"): (0.005, 0.0),
    (JournalWriter, "append"): (0.003, 0.003),
    (JournalWriter, "check_fence"): (0.01, 0.005),
    (Promotion, "read"): (0.2, 0.0),
    (Promotion, "begin"): (0.2, 0.0),
}


def sleepy(step: Callable[..., Any], before: float, after: float) -> Callable[..., Any]:
    def sleep(disk: object, share: float) -> None:
        if isinstance(disk, SimulatedDisk) and disk.host.world.random.random() < share:
            process = disk.process
            process.sleep(SLEEP_SECONDS_MAX * disk.host.world.random.random() ** 2)

    def slept(self: Any, *arguments: Any, **named: Any) -> Any:
        disk = self.disk if isinstance(self, JournalFiles) else self._files.disk
        sleep(disk, before)
        result = step(self, *arguments, **named)
        sleep(disk, after)
        return result

    return slept


@pytest.mark.prove
@pytest.mark.timeout(0 if IS_PROOF else 1200)
@pytest.mark.parametrize("locker", LOCKERS)
def test_who_falls_asleep_between_two_steps_breaks_no_promise(locker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for (owner, name), (before, after) in STEPS.items():
        monkeypatch.setattr(owner, name, sleepy(getattr(owner, name), before, after))
    # A storage thread that sleeps gives no page meanwhile; and several sleeps may follow each other, with a new master
    # after each.
    monkeypatch.setattr("tandemmq.simulator.simulation.QUIET_SECONDS", 2 * SLEEP_SECONDS_MAX)
    monkeypatch.setattr("tandemmq.simulator.simulation.DRAIN_SECONDS_MAX", 20 * SLEEP_SECONDS_MAX)
    parts = parts_of(load(None, {}, LOCKERS[locker]))
    broken = {
        seed: problems
        for seed in range(FIRST, FIRST + SEEDS)
        if (problems := Simulation(seed, parts, FAULTS).run().problems)
    }
    assert broken == {}
