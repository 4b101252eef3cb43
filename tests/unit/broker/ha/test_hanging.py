"""A master whose loop or whose disk hangs: it lets go, and is of use again when it wakes up."""

# proves: lost-store-is-halted, proof-of-this-life

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.broker.ha.states import Role, Trouble
from tandemmq.broker.ha.waits import BOUNDS, Wait
from tandemmq.locker.memory import MemoryLock, MemoryLocker
from tandemmq.store.tools.check import check
from tests.support.ha.ha_node import InItsOwnLoop, Node, until
from tests.support.ha.hanging import HangingDisk

pytestmark = pytest.mark.promise("waits-are-bounded")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    report = check(str(tmp_path))
    assert report.is_clean, report.problems


SHORT = {**BOUNDS, **{wait: replace(BOUNDS[wait], silence=(0.6, 0.6)) for wait in (Wait.LOOP, Wait.STORAGE)}}


async def test_a_loop_that_hangs_is_cut_off_and_the_lock_goes_to_the_standby(directory: str) -> None:
    """The second broker lives in a loop and a thread of its own."""
    lock = MemoryLock()
    first = Node("a", directory, lock, bounds=SHORT).start()
    await first.become(Role.MASTER)
    await first.send_and_wait()
    confirmed = len(first.receipts)
    second = InItsOwnLoop("b", directory, lock)
    second.until_role(Role.STANDBY)
    unsure = first.send()
    await asyncio.sleep(0)  # handed over to the storage thread
    second.until_role(Role.MASTER)  # until then the loop of the first hangs
    assert first.cuts == 1
    await until(lambda: Role.DEMOTED in first.roles, "the loop wakes up and finds itself demoted")
    assert first.mastership.demotions == {Trouble.LOOP_HUNG: 1}
    assert len(first.receipts) == confirmed, f"no receipt for {unsure} after the lock was let go"
    assert "cut" in first.events
    await first.become(Role.STANDBY)
    second.end()
    await first.become(Role.MASTER)
    await first.send_and_wait()
    await first.stop()


async def test_a_sync_that_hangs_demotes_and_the_same_process_is_master_again(directory: str) -> None:
    disk = HangingDisk()
    lock = MemoryLock()
    first = Node("a", directory, lock, disk=disk, bounds=SHORT).start()
    await first.become(Role.MASTER)
    await first.send_and_wait()
    second = Node("b", directory, lock).start()
    await second.become(Role.STANDBY)
    disk.gate.close("fsync", "fdatasync")
    unsure = first.send()
    await second.become(Role.MASTER)
    assert first.mastership.demotions == {Trouble.STORAGE_HUNG: 1}
    assert unsure not in first.receipts
    await second.send_and_wait()
    disk.gate.open()
    await first.become(Role.STANDBY)
    assert unsure not in first.receipts, "what hung is never confirmed"
    await second.stop()
    await first.become(Role.MASTER)
    await first.send_and_wait()
    await first.stop()


async def test_a_standby_whose_lock_does_not_answer_can_be_stopped(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, answers, asked = MemoryLock(), threading.Event(), threading.Event()
    master = Node("a", directory, lock).start()
    await master.become(Role.MASTER)
    standby = Node("b", directory, lock).start()
    await standby.become(Role.STANDBY)
    poll = MemoryLocker.try_acquire

    def hang(locker: MemoryLocker) -> bool:
        asked.set()
        answers.wait(30)
        return poll(locker)

    monkeypatch.setattr(MemoryLocker, "try_acquire", hang)
    await until(asked.is_set, "it polls")
    try:
        await standby.stop()
    finally:
        answers.set()
    await master.send_and_wait()
    await master.stop()
