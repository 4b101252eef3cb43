"""Each wait between "lock granted" and "lock released" hangs once (broker.ha.waits), and the lock goes to somebody
else.

What is told of each: nobody hears anything more from the broker that hangs, another one is master, and when the call
comes back nothing that is shared is written, and the broker stands by again.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tandemmq.broker.admin import status
from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.notify import Notifier, Watchdog
from tandemmq.broker.admin.server import health, is_alive
from tandemmq.broker.admin.status import Report
from tandemmq.broker.ha.states import NotMaster, Phase, Role, Trouble
from tandemmq.broker.ha.waits import BOUNDS, Wait
from tandemmq.broker.net.server import Server
from tandemmq.locker.memory import MemoryLock
from tandemmq.store.tools.check import check
from tests.support.ha.ha_node import InItsOwnLoop, until
from tests.support.ha.hanging import Gate, HangingDisk, SlowDisk
from tests.support.ha.waiting import (
    QUIET,
    SOON,
    Node,
    hit,
    journal,
    locker_behind,
    soon,
    the_other_is_master_and_nothing_comes_of_it,
    when_promoting,
)
from tests.support.tree import ROOT

pytestmark = pytest.mark.promise("waits-are-bounded")

T = TypeVar("T")

NEVER = (3600.0, 3600.0)

HUNG: set[Wait] = set()


def hangs(wait: Wait) -> Callable[[T], T]:
    """Marks the test of a row."""
    HUNG.add(wait)
    return lambda test: test


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    report = check(str(tmp_path))
    assert report.is_clean, report.problems


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


def report_of(node: Node, directory: str) -> Report:
    ring = EventRing(node.name, None)
    return Report(node.name, directory, "memory", node.locker, node.mastership, Server([]), lambda: None, ring)


def test_every_row_of_the_table_is_hung_by_a_test() -> None:
    assert HUNG == set(Wait) == set(BOUNDS)


# ---- the lock is granted


@hangs(Wait.POLL)
async def test_a_lock_that_may_be_ours_and_does_not_say_so_makes_the_broker_unwell(
    directory: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "LOCK_SILENCE_SECONDS_MAX", SOON)
    lock = MemoryLock()
    gate.close("try_acquire")
    node = Node("a", directory, lock, make_locker=locker_behind(gate)).start()
    await hit(gate)
    assert lock.holder(0.0) is not None, "it is ours, and nobody knows"
    await unwell(node, directory, "has not answered")
    gate.open()
    await node.become(Role.MASTER)
    assert is_alive(report_of(node, directory).status())
    await node.send_and_wait()
    await node.stop()


async def unwell(node: Node, directory: str, why: str) -> None:
    """It says so in status and health, and systemd's watchdog is not fed."""
    report = report_of(node, directory)
    await until(lambda: any(why in problem for problem in report.status()["problems"]), f"{node.name} says: {why}")
    answer = report.status()
    assert not is_alive(answer)
    assert not health(answer)["live"]
    watchdog = Watchdog(Notifier(None), SOON / 4, {"lock": node.mastership.lock_seen_alive})
    await until(lambda: watchdog.check() == ("lock",), "the watchdog is not fed")


@hangs(Wait.FOLLOW)
@pytest.mark.parametrize("verb", ["listdir", "stat", "pread"])
async def test_a_standby_that_hangs_when_it_gets_the_lock_lets_it_go(
    directory: str, disk: HangingDisk, verb: str
) -> None:
    lock = MemoryLock()
    master = Node("m", directory, lock).start()
    await master.become(Role.MASTER)
    await master.send_and_wait()
    hung = Node("a", directory, lock, disk=disk, bounds=soon(Wait.FOLLOW)).start()
    await hung.become(Role.STANDBY)
    disk.gate.close(verb, thread="tandemmq-life")
    await master.send_and_wait()
    await hit(disk.gate)
    assert hung.mastership.role is Role.STANDBY, "without the lock nobody minds"
    await master.stop()
    await until(lambda: hung.mastership.demotions == {Trouble.STORAGE_HUNG: 1}, "it gives up")
    other = Node("b", directory, lock).start()
    await the_other_is_master_and_nothing_comes_of_it(directory, hung, other, disk.gate.open)


async def test_a_standby_that_hangs_can_be_stopped(directory: str, disk: HangingDisk) -> None:
    lock = MemoryLock()
    master = Node("m", directory, lock).start()
    await master.become(Role.MASTER)
    hung = Node("a", directory, lock, disk=disk).start()
    await hung.become(Role.STANDBY)
    disk.gate.close("listdir", thread="tandemmq-life")
    await hit(disk.gate)
    await hung.stop()
    await master.send_and_wait()
    await master.stop()
    disk.gate.open()
    await until(lambda: not lives(), "the thread that was left behind ends")


async def test_a_broker_whose_volume_hangs_when_it_starts_can_be_stopped(directory: str, disk: HangingDisk) -> None:
    disk.gate.close("listdir")
    node = Node("a", directory, MemoryLock(), disk=disk).start()
    await hit(disk.gate)
    await node.stop()
    disk.gate.open()
    await until(lambda: not lives(), "the thread that was left behind ends")


def lives() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tandemmq-life"]


# ---- promotion


@hangs(Wait.PROMOTE)
@pytest.mark.parametrize("verb", ["fsync", "link", "pread"])
async def test_a_promotion_that_hangs_lets_the_lock_go(directory: str, disk: HangingDisk, verb: str) -> None:
    """Before the fence; in it; behind it."""
    lock = MemoryLock()
    master = Node("m", directory, lock).start()
    await master.become(Role.MASTER)
    for _ in range(5):
        await master.send_and_wait()
    hung = Node("a", directory, lock, disk=disk, bounds=soon(Wait.PROMOTE)).start()
    await hung.become(Role.STANDBY)
    await until(lambda: hung.mastership.standby is not None and hung.mastership.standby.has_caught_up, "it follows")
    when_promoting(hung, lambda: disk.gate.close(verb, thread="tandemmq-life"))
    await master.stop()
    await hit(disk.gate)
    await until(lambda: hung.mastership.demotions == {Trouble.STORAGE_HUNG: 1}, "it gives up")
    other = Node("b", directory, lock).start()
    await the_other_is_master_and_nothing_comes_of_it(directory, hung, other, disk.gate.open)


async def test_a_life_that_is_over_fences_nothing_though_the_lock_is_still_its_own(
    directory: str, disk: HangingDisk, gate: Gate
) -> None:
    lock = MemoryLock()
    master = Node("m", directory, lock).start()
    await master.become(Role.MASTER)
    await master.send_and_wait()
    bounds = soon(Wait.PROMOTE, Wait.RELEASE)
    hung = Node("a", directory, lock, disk=disk, make_locker=locker_behind(gate), bounds=bounds).start()
    await hung.become(Role.STANDBY)
    gate.close("release")
    when_promoting(hung, lambda: disk.gate.close("fsync", thread="tandemmq-life"))
    await master.stop()
    await hit(disk.gate)
    await until(lambda: hung.mastership.is_release_overdue, "it gives up, and does not get rid of the lock")
    before = journal(directory)
    disk.gate.open()
    await hung.become(Role.STARTING)  # the thread has come back
    assert journal(directory) == before
    gate.open()
    await hung.become(Role.MASTER)
    await hung.send_and_wait()
    await hung.stop()


async def test_a_promotion_that_is_slow_is_not_taken_for_hung(directory: str) -> None:
    """It takes several times as long as it may be silent."""
    lock = MemoryLock()
    master = Node("m", directory, lock).start()
    await master.become(Role.MASTER)
    for _ in range(5):
        await master.send_and_wait()
    disk = SlowDisk()
    slow = Node("a", directory, lock, disk=disk, bounds=soon(Wait.PROMOTE)).start()
    await slow.become(Role.STANDBY)
    when_promoting(slow, lambda: disk.slow_down(SOON / 16))
    await master.stop()
    await slow.become(Role.MASTER)
    assert disk.calls * disk.seconds > 2 * SOON, "else it proves nothing"
    assert slow.mastership.demotions == {}
    disk.seconds = 0.0
    await slow.stop()


@hangs(Wait.SERVE)
async def test_ports_that_do_not_open_cost_the_lock(directory: str) -> None:
    lock = MemoryLock()
    opened = asyncio.Event()
    hung = Node("a", directory, lock, bounds=soon(Wait.SERVE))
    serve = hung.serve

    async def hang(store: Any) -> None:
        await opened.wait()
        await serve(store)

    hung.serve = hang  # type: ignore[method-assign]
    hung.start()
    other = Node("b", directory, lock)
    await until(lambda: hung.mastership.demotions == {Trouble.SERVICE_HUNG: 1}, "it gives up")
    assert hung.aborts == 1
    other.start()
    await the_other_is_master_and_nothing_comes_of_it(directory, hung, other, opened.set)


# ---- a master


async def master_and_standby(directory: str, **options: Any) -> tuple[Node, Node]:
    lock = options.pop("lock", None) or MemoryLock()
    hung, other = Node("a", directory, lock, **options).start(), Node("b", directory, lock)
    await hung.become(Role.MASTER)
    await hung.send_and_wait()
    other.start()
    await other.become(Role.STANDBY)
    return hung, other


@hangs(Wait.STORAGE)
@pytest.mark.parametrize("verb", ["pwrite", "fdatasync", "stat"])
async def test_a_master_whose_storage_thread_hangs_lets_the_lock_go(
    directory: str, disk: HangingDisk, verb: str
) -> None:
    hung, other = await master_and_standby(directory, disk=disk, bounds=soon(Wait.STORAGE))
    disk.gate.close(verb, thread="tandemmq-storage")
    unsure = hung.send()
    await hit(disk.gate)
    await until(lambda: hung.mastership.demotions == {Trouble.STORAGE_HUNG: 1}, "it gives up")
    assert unsure not in hung.receipts
    own = "db-1.log" if verb == "pwrite" else None
    await the_other_is_master_and_nothing_comes_of_it(directory, hung, other, disk.gate.open, own)


async def test_a_storage_thread_that_waits_for_one_who_hangs_hangs_too(directory: str, disk: HangingDisk) -> None:
    """The next journal file is made in the background; the rotation waits for it."""
    settings = replace(QUIET, journal_max_file_length=64 << 10)
    hung, other = await master_and_standby(directory, disk=disk, bounds=soon(Wait.STORAGE), store_settings=settings)
    disk.gate.close("fsync", thread="tandemmq-background")
    for _ in range(9):
        hung.send(bytes(8 << 10))
        await asyncio.sleep(0.02)
    await hit(disk.gate)
    await until(lambda: hung.mastership.demotions == {Trouble.STORAGE_HUNG: 1}, "it gives up")
    await the_other_is_master_and_nothing_comes_of_it(directory, hung, other, disk.gate.open)


@hangs(Wait.KEEP_ALIVE)
@pytest.mark.parametrize("verb", ["keep_alive", "announce"])
async def test_a_lock_that_does_not_answer_a_master_ends_with_its_proof(directory: str, gate: Gate, verb: str) -> None:
    lock = MemoryLock(lease_seconds=1.0)
    if verb == "announce":
        gate.close(verb)
    hung = Node("a", directory, lock, make_locker=locker_behind(gate), bounds=soon(Wait.RELEASE)).start()
    await hung.become(Role.MASTER)
    if verb == "keep_alive":
        await hung.send_and_wait()
        gate.close(verb)
    await hit(gate)
    await until(lambda: hung.mastership.demotions == {Trouble.PROOF_EXPIRED: 1}, "it gives up")
    await unwell(hung, directory, "was let go, and does not answer")
    other = Node("b", directory, lock).start()
    await the_other_is_master_and_nothing_comes_of_it(directory, hung, other, gate.open)


@hangs(Wait.BEGIN)
@hangs(Wait.LOOP)
@pytest.mark.parametrize("phase", [Phase.PROMOTING, Phase.MASTER, Phase.HANDING_OVER])
async def test_a_loop_that_hangs_lets_the_lock_go(directory: str, phase: Phase) -> None:
    lock = MemoryLock()
    hung = Node("a", directory, lock, bounds=soon(Wait.BEGIN if phase is Phase.PROMOTING else Wait.LOOP))
    serve, finish, has_hung = hung.serve, hung.finish, threading.Event()
    other: InItsOwnLoop | None = None

    def hang() -> None:
        """Until somebody else is master."""
        nonlocal other
        if not has_hung.is_set():
            has_hung.set()
            other = other or InItsOwnLoop("b", directory, lock)
            other.until_role(Role.MASTER)

    async def hang_and_serve(store: Any) -> None:
        if phase is Phase.PROMOTING:
            hang()
        await serve(store)

    async def hang_and_finish() -> None:
        if phase is Phase.HANDING_OVER:
            hang()
        await finish()

    hung.serve, hung.finish = hang_and_serve, hang_and_finish  # type: ignore[method-assign]
    hung.start()
    if phase is not Phase.PROMOTING:
        await hung.become(Role.MASTER)
        await hung.send_and_wait()
        other = InItsOwnLoop("b", directory, lock)
        other.until_role(Role.STANDBY)
        if phase is Phase.MASTER:
            hung.send()
            await asyncio.sleep(0)  # handed over to the storage thread
            hang()
        else:
            with pytest.raises(NotMaster):
                await hung.mastership.handover()
    confirmed = len(hung.receipts)
    await until(lambda: hung.mastership.demotions == {Trouble.LOOP_HUNG: 1}, "it finds itself demoted")
    assert len(hung.receipts) == confirmed
    assert hung.cuts == 1
    await hung.become(Role.STANDBY)
    assert other is not None
    other.end()
    await hung.become(Role.MASTER)
    await hung.send_and_wait()
    await hung.stop()


# ---- handing over


async def refused(handover: Awaitable[object]) -> str:
    with pytest.raises(NotMaster) as caught:
        await handover
    return str(caught.value)


@hangs(Wait.CHECKPOINT)
async def test_a_handover_does_not_wait_for_ever_for_its_first_checkpoint(directory: str, disk: HangingDisk) -> None:
    first, second = await master_and_standby(directory, disk=disk, bounds=soon(Wait.CHECKPOINT))
    disk.gate.close("fsync", "fdatasync", "pwrite", thread="tandemmq-background")
    handing_over = asyncio.create_task(first.mastership.handover())
    await hit(disk.gate)
    await until(lambda: "drained" in first.events, "it goes on")
    disk.gate.open()
    await handing_over
    await second.become(Role.MASTER)
    await first.stop()
    await second.stop()


@hangs(Wait.FINISH)
async def test_clients_that_cannot_be_let_go_are_cut_off(directory: str) -> None:
    hung, other = await master_and_standby(directory, bounds=soon(Wait.FINISH))
    finished = asyncio.Event()

    async def hang() -> None:
        await finished.wait()

    hung.finish = hang  # type: ignore[method-assign]
    assert "not done" in await refused(hung.mastership.handover())
    assert hung.mastership.demotions == {Trouble.SERVICE_HUNG: 1}
    assert hung.aborts == 1

    async def finish() -> None:
        hung.store = None

    hung.finish = finish  # type: ignore[method-assign]
    await the_other_is_master_and_nothing_comes_of_it(directory, hung, other, finished.set)


@hangs(Wait.CLOSE)
@pytest.mark.parametrize("is_silent", [True, False])
@pytest.mark.parametrize("thread", ["tandemmq-storage", "tandemmq-background", "tandemmq-life"])
async def test_a_handover_that_hangs_lets_the_lock_go(
    directory: str, disk: HangingDisk, thread: str, is_silent: bool
) -> None:
    """While it writes its last checkpoint, waits for the one that is under way, or closes its files."""
    bounds = soon(Wait.CHECKPOINT, Wait.CLOSE)
    close = bounds[Wait.CLOSE]
    bounds[Wait.CLOSE] = replace(close, seconds=3600.0) if is_silent else replace(close, silence=NEVER)
    hung, other = await master_and_standby(directory, disk=disk, bounds=bounds)
    finish = hung.finish

    async def hang_then() -> None:
        if thread != "tandemmq-background":
            hung.send()  # so that there is something to do
            await asyncio.sleep(0)
            disk.gate.close("fsync", "fdatasync", "close", thread=thread)
        await finish()

    hung.finish = hang_then  # type: ignore[method-assign]
    if thread == "tandemmq-background":
        disk.gate.close("fsync", "fdatasync", "pwrite", thread=thread)
    answer = await refused(hung.mastership.handover())
    assert ("no sign of life" if is_silent else "not done") in answer
    assert hung.mastership.demotions == {Trouble.STORAGE_HUNG: 1}
    hung.finish = finish  # type: ignore[method-assign]
    await the_other_is_master_and_nothing_comes_of_it(directory, hung, other, disk.gate.open)


async def test_a_handover_that_hangs_ends_a_broker_that_is_stopped(directory: str, disk: HangingDisk) -> None:
    hung, other = await master_and_standby(directory, disk=disk, bounds=soon(Wait.CHECKPOINT, Wait.CLOSE))
    disk.gate.close("fsync", "fdatasync", thread="tandemmq-storage")
    hung.send()
    await hit(disk.gate)
    await hung.stop()
    assert hung.mastership.phase is Phase.ENDED
    await other.become(Role.MASTER)
    await other.send_and_wait()
    disk.gate.open()
    await until(lambda: not lives() or len(lives()) == 1, "only the other's thread is left")
    await other.stop()


# ---- letting go


@hangs(Wait.ABORT)
async def test_clients_that_do_not_hang_up_keep_no_lock(directory: str) -> None:
    lock = MemoryLock()
    hung, other = await master_and_standby(directory, lock=lock, bounds=soon(Wait.ABORT))
    aborted = asyncio.Event()

    async def hang() -> None:
        hung.store = None
        await aborted.wait()

    hung.abort = hang  # type: ignore[method-assign]
    lock.steal()
    await the_other_is_master_and_nothing_comes_of_it(directory, hung, other, aborted.set)


@hangs(Wait.DROP)
@pytest.mark.parametrize("thread", ["tandemmq-storage", "tandemmq-life"])
async def test_a_store_that_cannot_be_dropped_keeps_no_lock(directory: str, disk: HangingDisk, thread: str) -> None:
    """Its storage thread hangs, or closing its files does."""
    hung, other = await master_and_standby(directory, disk=disk, bounds=soon(Wait.DROP))
    disk.gate.close("fdatasync", "close", thread=thread)
    unsure = hung.send()
    if thread == "tandemmq-storage":
        await hit(disk.gate)
    hung.mastership._on_lost(hung.mastership._life, ZeroProof())  # type: ignore[arg-type]
    await hit(disk.gate)
    await other.become(Role.MASTER)
    await asyncio.sleep(1.0)
    assert hung.mastership.phase is Phase.DEMOTED, "no second life beside the first"
    assert thread == "tandemmq-life" or unsure not in hung.receipts
    await the_other_is_master_and_nothing_comes_of_it(directory, hung, other, disk.gate.open)


class ZeroProof(OSError):
    """Some trouble of the world."""


@hangs(Wait.RELEASE)
async def test_a_lock_that_cannot_be_let_go_makes_the_broker_unwell(directory: str, gate: Gate) -> None:
    hung, other = await master_and_standby(directory, make_locker=locker_behind(gate), bounds=soon(Wait.RELEASE))
    gate.close("release")
    assert "does not answer" in await refused(hung.mastership.handover())
    assert "lock-not-released" in hung.events
    await unwell(hung, directory, "was let go, and does not answer")
    assert other.mastership.role is Role.STANDBY
    gate.open()
    await other.become(Role.MASTER)
    await until(lambda: is_alive(report_of(hung, directory).status()), "it is well again")
    await hung.become(Role.STANDBY)
    await other.send_and_wait()
    await hung.stop()
    await other.stop()


async def test_a_lock_that_answers_a_former_life_costs_the_next_one_nothing(directory: str, gate: Gate) -> None:
    """The keep-alive of the first says, when it comes back at last, that the lock was lost."""
    lock = MemoryLock(lease_seconds=1.0)
    node = Node("a", directory, lock, make_locker=locker_behind(gate), bounds=soon(Wait.RELEASE)).start()
    await node.become(Role.MASTER)
    gate.close("keep_alive")
    await hit(gate)
    await until(lambda: node.mastership.demotions == {Trouble.PROOF_EXPIRED: 1}, "it gives up")
    await node.become(Role.STARTING)  # the next life, which asks for the lock
    gate.open()
    await node.become(Role.MASTER)
    assert node.mastership.demotions == {Trouble.PROOF_EXPIRED: 1}
    await node.send_and_wait()
    await node.stop()


# ---- the end

# In a process of its own: it is about how one ends.
PROGRAM = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from tandemmq.broker.ha.hung_threads import end_despite_them
begun = threading.Event()
def hang():
    begun.set()
    threading.Event().wait()
ThreadPoolExecutor(1, "tandemmq-something").submit(hang)
begun.wait()
print("said")
end_despite_them(3)
"""


@hangs(Wait.EXIT)
def test_a_process_ends_though_a_thread_of_it_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 3, done.stderr
    assert "tandemmq-something" in done.stderr
