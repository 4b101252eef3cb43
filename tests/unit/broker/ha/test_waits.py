"""Each wait between "lock granted" and "lock released" hangs once (broker.ha.waits), and another broker gets the lock.

What is told of each: nobody hears anything more from the broker that hangs, another one is master, and when the call
comes back nothing that is shared is written, and the broker stands by again. All in virtual time, with the bounds of
the product; test_hanging.py has a real thread.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.notify import Notifier, Watchdog
from tandemmq.broker.admin.server import health, is_alive
from tandemmq.broker.admin.status import Report
from tandemmq.broker.ha.states import NotMaster, Phase, Role, Trouble
from tandemmq.broker.ha.waits import BOUNDS, LOCK_SILENCE_SECONDS_MAX, Wait
from tandemmq.broker.net.server import Server
from tandemmq.locker.memory import MemoryLock
from tests.support.ha.ha_node import QUIET, NewNode, Node, goes_on_elsewhere, journal
from tests.support.ha.hanging import Gate, HangingDisk, SlowDisk
from tests.support.tree import ROOT
from tests.support.virtual_time import VirtualTime, until

pytestmark = pytest.mark.promise("waits-are-bounded")

T = TypeVar("T")

HUNG: set[Wait] = set()


def hangs(wait: Wait) -> Callable[[T], T]:
    """Marks the test of a row."""
    HUNG.add(wait)
    return lambda test: test


def test_every_row_of_the_table_is_hung_by_a_test() -> None:
    assert HUNG == set(Wait) == set(BOUNDS)


async def gives_up(node: Node, trouble: Trouble = Trouble.STORAGE_HUNG) -> None:
    await until(lambda: node.mastership.demotions == {trouble: 1}, f"{node.name} gives up: {trouble.value}")


async def unwell(node: Node, virtual: VirtualTime, why: str) -> Callable[[], bool]:
    """Check that status and health report the problem, and that the watchdog is not notified; return a function that
    returns whether the broker is healthy."""
    now, ring = virtual.threads.monotonic, EventRing(node.name, None)
    report = Report(
        node.name, "", "memory", node.locker, node.mastership, Server([]), lambda: None, ring, monotonic=now
    )
    await until(lambda: any(why in problem for problem in report.status()["problems"]), f"{node.name} says: {why}")
    answer = report.status()
    assert not is_alive(answer)
    assert not health(answer)["live"]
    signs = {"lock": node.mastership.lock_seen_alive}
    watchdog = Watchdog(Notifier(None), LOCK_SILENCE_SECONDS_MAX, signs, now)
    await until(lambda: watchdog.check() == ("lock",), "the watchdog is not fed")
    return lambda: is_alive(report.status())


# ---- the lock is granted


@hangs(Wait.POLL)
async def test_a_lock_that_does_not_answer_makes_the_broker_unhealthy(
    virtual: VirtualTime, node: NewNode, lock: MemoryLock, gate: Gate
) -> None:
    gate.close("try_acquire")
    hung = node("a", make_locker=gate.locker).start()
    await gate.hit()
    assert lock.holder(0.0) is not None, "it is ours, and nobody knows"
    is_well = await unwell(hung, virtual, "has not answered")
    gate.open()
    await hung.become(Role.MASTER)
    assert is_well()
    await hung.send_and_wait()
    await hung.stop()


async def test_a_standby_whose_lock_does_not_answer_can_be_stopped(node: NewNode, gate: Gate) -> None:
    master = await node("a").started(Role.MASTER)
    standby = await node("b", make_locker=gate.locker).started(Role.STANDBY)
    gate.close("try_acquire")
    await gate.hit()
    await standby.stop()
    await master.send_and_wait()
    await master.stop()
    gate.open()


@hangs(Wait.FOLLOW)
@pytest.mark.parametrize("verb", ["scandir", "stat", "pread"])
async def test_a_standby_that_hangs_after_it_got_the_lock_releases_it(
    node: NewNode, disk: HangingDisk, verb: str
) -> None:
    master = await node("m").started(Role.MASTER)
    hung = node("a", disk=disk)
    hung.when(Phase.STANDBY, lambda: disk.gate.close(verb, thread="tandemmq-life"))
    await hung.started(Role.STANDBY)
    await master.send_and_wait()
    await disk.gate.hit()
    assert hung.mastership.role is Role.STANDBY, "without the lock nobody minds"
    await master.stop()
    await gives_up(hung)
    await goes_on_elsewhere(hung, node("b").start(), disk.gate.open)


@pytest.mark.parametrize("is_starting", [False, True])
async def test_a_broker_without_the_lock_that_hangs_can_be_stopped(
    virtual: VirtualTime, node: NewNode, disk: HangingDisk, is_starting: bool
) -> None:
    master = await node("m").started(Role.MASTER)
    hung = node("a", disk=disk).start()
    if not is_starting:
        await hung.become(Role.STANDBY)
    disk.gate.close("scandir" if not is_starting else "listdir", thread="tandemmq-life")
    await disk.gate.hit()
    await hung.stop()
    await master.send_and_wait()
    await master.stop()
    assert lives(virtual) == 1
    disk.gate.open()
    await until(lambda: not lives(virtual), "the thread that was left behind ends")


def lives(virtual: VirtualTime) -> int:
    return sum(thread.name == "tandemmq-life" for thread in virtual.process.threads)


# ---- promotion


@hangs(Wait.PROMOTE)
@pytest.mark.parametrize("verb", ["fsync", "link", "pread"])
async def test_a_hanging_promotion_releases_the_lock(node: NewNode, disk: HangingDisk, verb: str) -> None:
    """The promotion hangs before the fence, in it, or after it."""
    master = await node("m").started(Role.MASTER)
    for _ in range(5):
        await master.send_and_wait()
    hung = await node("a", disk=disk).started(Role.STANDBY)
    await until(lambda: hung.mastership.standby is not None and hung.mastership.standby.has_caught_up, "it follows")
    hung.when(Phase.PROMOTING, lambda: disk.gate.close(verb, thread="tandemmq-life"))
    await master.stop()
    await disk.gate.hit()
    await gives_up(hung)
    await goes_on_elsewhere(hung, node("b").start(), disk.gate.open)


async def test_a_life_that_is_over_fences_nothing_though_the_lock_is_still_its_own(
    node: NewNode, directory: str, disk: HangingDisk, gate: Gate
) -> None:
    master = await node("m").started(Role.MASTER)
    hung = await node("a", disk=disk, make_locker=gate.locker).started(Role.STANDBY)
    gate.close("release")
    hung.when(Phase.PROMOTING, lambda: disk.gate.close("fsync", thread="tandemmq-life"))
    await master.stop()
    await disk.gate.hit()
    await until(lambda: hung.mastership.is_release_overdue, "it gives up, and does not get rid of the lock")
    before = journal(directory)
    disk.gate.open()
    await hung.become(Role.STARTING)  # the thread has come back
    assert journal(directory) == before
    gate.open()
    await hung.become(Role.MASTER)
    await hung.send_and_wait()
    await hung.stop()


async def test_a_promotion_that_is_slow_is_not_taken_for_hung(virtual: VirtualTime, node: NewNode) -> None:
    """The promotion takes several times the permitted silence."""
    master = await node("m").started(Role.MASTER)
    disk = SlowDisk(virtual)
    slow = await node("a", disk=disk).started(Role.STANDBY)
    slow.when(Phase.PROMOTING, lambda: setattr(disk, "seconds", 1.0))
    await master.stop()
    await slow.become(Role.MASTER)
    assert disk.calls * disk.seconds > 2 * BOUNDS[Wait.PROMOTE].silence[1], "else it proves nothing"  # type: ignore[index]
    assert slow.mastership.demotions == {}
    disk.seconds = 0.0
    await slow.stop()


@hangs(Wait.SERVE)
async def test_ports_that_do_not_open_cost_the_lock(node: NewNode) -> None:
    opened = asyncio.Event()
    hung = node("a")
    serve = hung.serve

    async def hang(store: Any) -> None:
        await opened.wait()
        await serve(store)

    hung.serve = hang
    hung.start()
    await gives_up(hung, Trouble.SERVICE_HUNG)
    assert hung.aborts == 1
    await goes_on_elsewhere(hung, node("b").start(), opened.set)


# ---- a master


async def master_and_standby(node: NewNode, **options: Any) -> tuple[Node, Node]:
    hung = await node("a", **options).started(Role.MASTER)
    return hung, await node("b").started(Role.STANDBY)


@hangs(Wait.STORAGE)
@pytest.mark.parametrize("verb", ["pwrite", "fdatasync", "stat"])
async def test_a_master_with_a_hanging_storage_releases_the_lock(node: NewNode, disk: HangingDisk, verb: str) -> None:
    hung, other = await master_and_standby(node, disk=disk)
    disk.gate.close(verb, thread="tandemmq-storage")
    unsure = hung.send()
    await disk.gate.hit()
    await gives_up(hung)
    assert unsure not in hung.receipts
    await goes_on_elsewhere(hung, other, disk.gate.open, "db-1.log" if verb == "pwrite" else None)


async def test_a_storage_thread_that_waits_for_one_who_hangs_hangs_too(node: NewNode, disk: HangingDisk) -> None:
    """The next journal file is made in the background; the rotation waits for it."""
    settings = replace(QUIET, journal_max_file_length=64 << 10)
    hung, other = await master_and_standby(node, disk=disk, store_settings=settings)
    disk.gate.close("fsync", thread="tandemmq-background")
    for _ in range(9):
        hung.send(bytes(8 << 10))
        await asyncio.sleep(0.02)
    await disk.gate.hit()
    await gives_up(hung)
    await goes_on_elsewhere(hung, other, disk.gate.open)


@hangs(Wait.KEEP_ALIVE)
@pytest.mark.parametrize("verb", ["keep_alive", "announce"])
async def test_a_lock_that_does_not_answer_a_master_ends_with_its_proof(
    virtual: VirtualTime, node: NewNode, lock: MemoryLock, gate: Gate, verb: str
) -> None:
    lock.lease_seconds = 5.0
    if verb == "announce":
        gate.close(verb)
    hung = node("a", make_locker=gate.locker).start()
    await hung.become(Role.MASTER)
    if verb == "keep_alive":
        await hung.send_and_wait()
        gate.close(verb)
    await gate.hit()
    await gives_up(hung, Trouble.PROOF_EXPIRED)
    await unwell(hung, virtual, "was released, but gave no answer")
    await goes_on_elsewhere(hung, node("b").start(), gate.open)


@hangs(Wait.BEGIN)
@hangs(Wait.LOOP)
@pytest.mark.parametrize("phase", [Phase.PROMOTING, Phase.MASTER, Phase.HANDING_OVER])
async def test_a_hanging_event_loop_releases_the_lock(virtual: VirtualTime, node: NewNode, phase: Phase) -> None:
    """The lock is free when the other broker, which runs in a separate loop, becomes master."""
    hung, other = node("a"), node("b")
    serve, finish = hung.serve, hung.finish
    to_hang = True

    async def hang() -> None:
        nonlocal to_hang
        if to_hang:
            to_hang = False
            if phase is Phase.PROMOTING:
                virtual.begin(other.live, "other")
            await virtual.hang_loop(lambda: virtual.until(lambda: other.mastership.role is Role.MASTER, "it leads"))

    async def hang_and_serve(store: Any) -> None:
        if phase is Phase.PROMOTING:
            await hang()
        await serve(store)

    async def hang_and_finish() -> None:
        await hang()
        await finish()

    hung.serve, hung.finish = hang_and_serve, hang_and_finish
    hung.start()
    if phase is not Phase.PROMOTING:
        await hung.become(Role.MASTER)
        await hung.send_and_wait()
        virtual.begin(other.live, "other")
        await other.become(Role.STANDBY)
    if phase is Phase.MASTER:
        hung.send()
        await asyncio.sleep(0)  # handed over to the storage thread
        await hang()
    elif phase is Phase.HANDING_OVER:
        await refused(hung.mastership.handover())
    confirmed = len(hung.receipts)
    await gives_up(hung, Trouble.LOOP_HUNG)
    assert (len(hung.receipts), hung.cuts) == (confirmed, 1)
    await hung.become(Role.STANDBY)
    other.end_soon()
    await hung.become(Role.MASTER)
    await hung.send_and_wait()
    await hung.stop()


# ---- handing over


async def refused(handover: Awaitable[object]) -> str:
    with pytest.raises(NotMaster) as caught:
        await handover
    return str(caught.value)


@hangs(Wait.CHECKPOINT)
async def test_a_handover_does_not_wait_for_ever_for_its_first_checkpoint(node: NewNode, disk: HangingDisk) -> None:
    first, second = await master_and_standby(node, disk=disk)
    disk.gate.close("fsync", "fdatasync", "pwrite", thread="tandemmq-background")
    handing_over = asyncio.create_task(first.mastership.handover())
    await disk.gate.hit()
    await until(lambda: "drained" in first.events, "it goes on")
    disk.gate.open()
    await handing_over
    await second.become(Role.MASTER)
    await first.stop()
    await second.stop()


@hangs(Wait.FINISH)
async def test_clients_that_cannot_be_disconnected_are_cut_off(node: NewNode) -> None:
    hung, other = await master_and_standby(node)
    finished, finish = asyncio.Event(), hung.finish

    async def hang() -> None:
        await finished.wait()

    hung.finish = hang
    assert "not done" in await refused(hung.mastership.handover())
    assert (hung.mastership.demotions, hung.aborts) == ({Trouble.SERVICE_HUNG: 1}, 1)
    hung.finish = finish
    await goes_on_elsewhere(hung, other, finished.set)


@hangs(Wait.CLOSE)
@pytest.mark.parametrize("thread", ["tandemmq-storage", "tandemmq-background", "tandemmq-life"])
async def test_a_hanging_handover_releases_the_lock(node: NewNode, disk: HangingDisk, thread: str) -> None:
    """The handover hangs in the last checkpoint, in the wait for a checkpoint, or in the close of the files."""
    hung, other = await master_and_standby(node, disk=disk)
    finish = hung.finish

    async def hang_then() -> None:
        if thread != "tandemmq-background":
            hung.send()  # so that there is something to do
            await asyncio.sleep(0)
            disk.gate.close("fsync", "fdatasync", "close", thread=thread)
        await finish()

    hung.finish = hang_then
    if thread == "tandemmq-background":
        disk.gate.close("fsync", "fdatasync", "pwrite", thread=thread)
    assert "no sign of life" in await refused(hung.mastership.handover())
    assert hung.mastership.demotions == {Trouble.STORAGE_HUNG: 1}
    hung.finish = finish
    await goes_on_elsewhere(hung, other, disk.gate.open)


async def test_a_handover_that_takes_too_long_releases_the_lock(virtual: VirtualTime, node: NewNode) -> None:
    disk = SlowDisk(virtual)
    slow, other = await master_and_standby(node, disk=disk)
    finish = slow.finish

    async def slow_then() -> None:
        disk.seconds = 3.0
        await finish()

    slow.finish = slow_then
    assert "not done" in await refused(slow.mastership.handover())
    assert slow.mastership.demotions == {Trouble.STORAGE_HUNG: 1}
    slow.finish = finish
    await goes_on_elsewhere(slow, other, lambda: setattr(disk, "seconds", 0.0))


async def test_a_handover_that_hangs_ends_with_a_stop(virtual: VirtualTime, node: NewNode, disk: HangingDisk) -> None:
    hung, other = await master_and_standby(node, disk=disk)
    disk.gate.close("fsync", "fdatasync", thread="tandemmq-storage")
    hung.send()
    await disk.gate.hit()
    await hung.stop()
    assert hung.mastership.phase is Phase.ENDED
    await other.become(Role.MASTER)
    await other.send_and_wait()
    disk.gate.open()
    await until(lambda: lives(virtual) == 1, "only the other's thread is left")
    await other.stop()


# ---- letting go


@hangs(Wait.ABORT)
async def test_clients_that_do_not_hang_up_keep_no_lock(node: NewNode, lock: MemoryLock) -> None:
    hung, other = await master_and_standby(node)
    aborted = asyncio.Event()

    async def hang() -> None:
        hung.store = None
        await aborted.wait()

    hung.abort = hang
    lock.steal()
    await goes_on_elsewhere(hung, other, aborted.set)


@hangs(Wait.DROP)
@pytest.mark.parametrize("thread", ["tandemmq-storage", "tandemmq-life"])
async def test_a_store_that_cannot_be_dropped_keeps_no_lock(
    node: NewNode, lock: MemoryLock, disk: HangingDisk, thread: str
) -> None:
    """Either the storage thread hangs, or the close of its files hangs."""
    hung, other = await master_and_standby(node, disk=disk)
    disk.gate.close("fdatasync", "close", thread=thread)
    unsure = hung.send()
    if thread == "tandemmq-storage":
        await disk.gate.hit()
    lock.steal()
    await disk.gate.hit()
    await other.become(Role.MASTER)
    await asyncio.sleep(60)
    assert hung.mastership.phase is Phase.DEMOTED, "no second life beside the first"
    assert thread == "tandemmq-life" or unsure not in hung.receipts
    await goes_on_elsewhere(hung, other, disk.gate.open)


@hangs(Wait.RELEASE)
async def test_a_lock_that_stays_makes_the_broker_unwell(virtual: VirtualTime, node: NewNode, gate: Gate) -> None:
    hung, other = await master_and_standby(node, make_locker=gate.locker)
    gate.close("release")
    assert "does not answer" in await refused(hung.mastership.handover())
    assert "lock-not-released" in hung.events
    is_well = await unwell(hung, virtual, "was released, but gave no answer")
    assert other.mastership.role is Role.STANDBY
    gate.open()
    await other.become(Role.MASTER)
    await until(is_well, "it is well again")
    await hung.become(Role.STANDBY)
    await other.send_and_wait()
    await hung.stop()
    await other.stop()


async def test_a_lock_that_answers_a_former_life_costs_no_other(node: NewNode, lock: MemoryLock, gate: Gate) -> None:
    """The keep-alive of the first says, when it comes back at last, that the lock was lost."""
    lock.lease_seconds = 5.0
    hung = await node("a", make_locker=gate.locker).started(Role.MASTER)
    gate.close("keep_alive")
    await gate.hit()
    await gives_up(hung, Trouble.PROOF_EXPIRED)
    await hung.become(Role.STARTING)  # the next life, which asks for the lock
    gate.open()
    await hung.become(Role.MASTER)
    assert hung.mastership.demotions == {Trouble.PROOF_EXPIRED: 1}
    await hung.send_and_wait()
    await hung.stop()


# ---- the end

# In a separate process, because the test checks the end of a process.
PROGRAM = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from tandemmq.broker.ha.stall_detector import end_despite_them
begun = threading.Event()
def hang():
    begun.set()
    threading.Event().wait()
ThreadPoolExecutor(1, "tandemmq-something").submit(hang)
begun.wait()
print("said")
end_despite_them(3, seconds=0.0)
"""


@hangs(Wait.EXIT)
def test_a_process_ends_though_a_thread_of_it_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 3, done.stderr
    assert "tandemmq-something" in done.stderr
