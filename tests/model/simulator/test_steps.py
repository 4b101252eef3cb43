"""Traps: what waits for a step of a broker's life meets it there, to the call of its disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from tandemmq.config.load import load
from tandemmq.simulator.disk import SimulatedDisk
from tandemmq.simulator.host import Host
from tandemmq.simulator.kernel import Process, World
from tandemmq.simulator.kinds import MIXTURES
from tandemmq.simulator.link import Link
from tandemmq.simulator.parts import parts_of
from tandemmq.simulator.server import Server
from tandemmq.simulator.simulation import Simulation
from tandemmq.simulator.steps import PROMOTION, Step, Steps, Trap, Traps


class Promoting:
    """A process that does what a promotion does of a disk, and what its broker tells of it."""

    def __init__(self) -> None:
        self.world = World(1)
        server = Server(self.world, capacity=1 << 20, keeps_open=True, is_synchronous=True)
        server.makedirs("/data")
        self.traps = Traps()
        self.process = Process(self.world, "p")
        self.steps = Steps(self.process, self.traps)
        host = Host(self.world, "h", server, Link(self.world), attribute_seconds=0.0)
        self.disk = SimulatedDisk(self.process, host, "/scratch", self.steps)
        self.done: list[str] = []

    def run(self) -> None:
        self.process.thread(self._promote, "tandemmq-life").start()
        self.world.run(10.0)
        assert self.world.bugs == []

    def _promote(self) -> None:
        disk = self.disk
        self.steps.notified("lock-taken")
        fd = self._did("open", lambda: disk.open("/data/.next", os.O_RDWR | os.O_CREAT))
        self._did("prepare", lambda: disk.pwrite(fd, b"zeros", 0))
        self._did("link", lambda: disk.link("/data/.next", "/data/db-2.log"))
        self._did("unlink", lambda: disk.unlink("/data/.next"))
        self.steps.notified("fenced")
        fd = self._did("reopen", lambda: disk.open("/data/db-2.log", os.O_RDWR))
        self._did("header", lambda: disk.pwrite(fd, b"header", 0))
        self._did("sync", lambda: disk.fsync(fd))
        self._did("look", lambda: disk.listdir("/data") and disk.stat("/data/db-2.log"))
        self.steps.notified("header")
        self.steps.notified("master")

    def _did(self, what: str, call: Callable[[], int]) -> int:
        result = call()
        self.done.append(what)
        return result


CALLS = ["open", "prepare", "link", "unlink", "reopen", "header", "sync", "look"]


@pytest.mark.parametrize(
    ("step", "calls", "done"),
    [
        (Step.FENCING, 0, []), (Step.FENCING, 1, []), (Step.FENCING, 2, CALLS[:1]), (Step.FENCING, None, CALLS[:2]),
        (Step.FENCING, 9, CALLS[:3]),
        (Step.LINKED, 0, CALLS[:2]),  # before it knows that its link was made
        (Step.LINKED, 1, CALLS[:3]), (Step.READING, 1, CALLS[:4]), (Step.READING, None, CALLS[:5]),
        (Step.WRITTEN, None, CALLS[:6]), (Step.SYNCED, 1, CALLS[:7]), (Step.SYNCED, None, CALLS[:7]),
        (Step.PROMOTED, 5, CALLS),
    ],
)  # fmt: skip
def test_a_trap_springs_at_its_step_and_only_there(step: Step, calls: int | None, done: list[str]) -> None:
    promoting = Promoting()

    def spring(met: Steps) -> None:
        promoting.world.after(0.0, promoting.process.kill)
        promoting.process.sleep(1.0)

    promoting.traps.set(Trap(step, calls, spring))
    promoting.run()
    assert promoting.done == (done if calls != 9 else CALLS[:2])
    assert not promoting.traps


def test_a_call_that_a_trap_fails_fails_there() -> None:
    promoting = Promoting()
    promoting.traps.set(Trap(Step.WRITTEN, None, lambda met: errno.EIO))
    promoting.process.thread(promoting._promote, "tandemmq-life").start()
    promoting.world.run(10.0)
    assert promoting.done == CALLS[:6]
    assert "Input/output error" in promoting.world.bugs[0]


@pytest.mark.thorough
def test_storms_meet_every_step_of_a_promotion() -> None:
    parts = parts_of(load(None, {}, ("locker.use_lock=false",)))
    met: set[str] = set()
    wanted = {step.value for step in PROMOTION}
    for seed in (3, 5, 9, 33, *range(1, 61)):  # the first ones met all of them when this was written
        if met == wanted:
            break
        counts = Simulation(seed, parts, MIXTURES["storms"], storm_seconds=10.0).run().counts
        met.update(name.partition(":")[0] for name in counts.get("promotion steps", ()))
    assert met == wanted
