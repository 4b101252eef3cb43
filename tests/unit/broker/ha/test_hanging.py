"""A master whose loop or disk hangs, on real threads: it releases the lock, and can be master again when it resumes.

Each phase and each call hangs in test_waits.py, in virtual time; here one of each kind blocks the operating system's
thread. The clock by which a silence is measured is moved by hand, when the thread hangs.
"""

# proves: lost-store-is-halted, proof-of-this-life

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from typing import Any

import pytest

from tandemmq.broker.ha.states import Role, Trouble
from tandemmq.broker.ha.waits import BOUNDS, HUNG_SECONDS_MAX, Bound, Wait
from tandemmq.locker.memory import MemoryLock
from tests.support.ha.ha_node import Node
from tests.support.virtual_time import HandClock, until

pytestmark = pytest.mark.promise("waits-are-bounded")

PATIENCE_SECONDS = 60.0


def only(wait: Wait) -> dict[Wait, Bound]:
    """One thread is silent for too long when the clock is moved, and no other one."""
    never = {each: replace(BOUNDS[each], silence=(1e9, 1e9)) for each in (Wait.LOOP, Wait.STORAGE)}
    drop = replace(BOUNDS[Wait.DROP], seconds=0.05)
    return {**BOUNDS, **never, wait: BOUNDS[wait], Wait.DROP: drop}


async def test_a_loop_that_hangs_is_cut_off_and_the_lock_goes_to_the_standby(directory: str) -> None:
    """The second broker runs in a separate loop and thread."""
    lock, clock = MemoryLock(), HandClock()
    first = Node("a", directory, lock, bounds=only(Wait.LOOP), threads=clock).start()
    await first.become(Role.MASTER)
    await first.send_and_wait()
    confirmed = len(first.receipts)
    second, is_master = Node("b", directory, lock), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(second.live()))
    thread.start()
    await second.become(Role.STANDBY)
    second.on_role = lambda: is_master.set() if second.roles[-1] is Role.MASTER else None
    unsure = first.send()
    await asyncio.sleep(0)  # handed over to the storage thread
    clock.now += HUNG_SECONDS_MAX + 1
    assert is_master.wait(PATIENCE_SECONDS), "until then the loop of the first hangs"
    assert first.cuts == 1
    await until(lambda: Role.DEMOTED in first.roles, "the loop wakes up and finds itself demoted")
    assert first.mastership.demotions == {Trouble.LOOP_HUNG: 1}
    assert len(first.receipts) == confirmed, f"no receipt for {unsure} after the lock was let go"
    assert "cut" in first.events
    await first.become(Role.STANDBY)
    second.end_soon()
    await first.become(Role.MASTER)
    thread.join()
    await first.send_and_wait()
    await first.stop()


class BlockingDisk:
    """The real disk, but while ``blocks`` a sync does not return: its thread waits in read(2) until ``wake``."""

    def __init__(self) -> None:
        self.blocks = False
        self.is_hit = threading.Event()
        self._reader, self._writer = os.pipe()

    def wake(self) -> None:
        self.blocks = False
        os.close(self._writer)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fdatasync(self, fd: int) -> None:
        if self.blocks:
            self.is_hit.set()
            os.read(self._reader, 1)
        os.fdatasync(fd)

    fsync = fdatasync


async def test_a_sync_that_hangs_demotes_and_the_same_process_is_master_again(directory: str) -> None:
    lock, clock, disk = MemoryLock(), HandClock(), BlockingDisk()
    first = Node("a", directory, lock, disk=disk, bounds=only(Wait.STORAGE), threads=clock).start()
    await first.become(Role.MASTER)
    await first.send_and_wait()
    second = Node("b", directory, lock).start()
    await second.become(Role.STANDBY)
    disk.blocks = True
    unsure = first.send()

    def is_given_up() -> bool:
        if disk.is_hit.is_set():
            clock.now += 5  # what it computed before it hung is still to be noticed: then it is silent
        return first.mastership.demotions == {Trouble.STORAGE_HUNG: 1}

    await until(is_given_up, "it gives up")
    await second.become(Role.MASTER)
    assert unsure not in first.receipts
    await second.send_and_wait()
    disk.wake()
    await first.become(Role.STANDBY)
    assert unsure not in first.receipts, "what hung is never confirmed"
    await second.stop()
    await first.become(Role.MASTER)
    await first.send_and_wait()
    await first.stop()
