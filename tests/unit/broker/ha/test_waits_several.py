"""The waits of a broker with several stores: each of them can hang, and those who work for others show their life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.ha.states import NotMaster, Role, Trouble
from tandemmq.broker.ha.waits import Wait
from tandemmq.locker.memory import MemoryLock
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.filters import FilteredStore, Filters
from tandemmq.store.several.standbys import SeveralStandbys
from tandemmq.store.tools.check_several import check_all
from tests.support.ha.ha_node import until
from tests.support.ha.hanging import HangingDisk, SlowDisk
from tests.support.ha.waiting import QUIET, SOON, Node, hit, soon, when_promoting

pytestmark = pytest.mark.promise("waits-are-bounded")

EACH_ITS_OWN = Filters(
    [FilteredStore(queue="one", settings=QUIET), FilteredStore(is_per_destination=True, settings=QUIET)]
)


def standbys(directory: str, index_root: str, broker: str, settings: StoreSettings, *, disk: Any) -> SeveralStandbys:
    return SeveralStandbys(directory, None, broker, settings, EACH_ITS_OWN, disk=disk)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    report = check_all(str(tmp_path))
    assert report.is_clean, report.problems


def node(name: str, directory: str, lock: MemoryLock, **options: Any) -> Node:
    return Node(name, directory, lock, make_standby=standbys, **options).start()


async def master(directory: str, lock: MemoryLock, **options: Any) -> Node:
    made = node("a", directory, lock, **options)
    await made.become(Role.MASTER)
    await made.send_and_wait()
    return made


async def the_other_is_master(hung: Node, other: Node, disk: HangingDisk) -> None:
    receipts = list(hung.receipts)
    await other.become(Role.MASTER)
    await other.send_and_wait()
    disk.gate.open()
    await hung.become(Role.STANDBY)
    assert hung.receipts == receipts
    await other.send_and_wait()
    await other.stop()
    await hung.become(Role.MASTER)
    await hung.send_and_wait()
    await hung.stop()


@pytest.mark.parametrize("verb", ["link", "fsync"])
async def test_a_promotion_of_which_one_store_hangs_lets_the_lock_go(
    directory: str, disk: HangingDisk, verb: str
) -> None:
    lock = MemoryLock()
    first = await master(directory, lock)
    hung = node("b", directory, lock, disk=disk, bounds=soon(Wait.PROMOTE))
    await hung.become(Role.STANDBY)
    when_promoting(hung, lambda: disk.gate.close(verb, thread="tandemmq-promoting"))
    await first.stop()
    await hit(disk.gate)
    await until(lambda: hung.mastership.demotions == {Trouble.STORAGE_HUNG: 1}, "it gives up")
    await the_other_is_master(hung, node("c", directory, lock), disk)


async def test_a_promotion_is_not_taken_for_hung_while_one_store_gets_on(directory: str) -> None:
    """The thread of this life waits for those that promote the stores, and computes nothing."""
    lock = MemoryLock()
    first = await master(directory, lock)
    disk = SlowDisk()
    slow = node("b", directory, lock, disk=disk, bounds=soon(Wait.PROMOTE))
    await slow.become(Role.STANDBY)
    when_promoting(slow, lambda: disk.slow_down(SOON / 16))
    await first.stop()
    await until(lambda: slow.mastership.role is Role.MASTER, "it is master", 60.0)
    assert slow.mastership.demotions == {}
    disk.seconds = 0.0
    await slow.stop()


async def test_a_master_that_hangs_while_it_makes_a_new_store_lets_the_lock_go(
    directory: str, disk: HangingDisk
) -> None:
    lock = MemoryLock()
    hung = node("a", directory, lock, disk=disk, bounds=soon(Wait.STORAGE))
    await hung.become(Role.MASTER)
    other = node("b", directory, lock)
    await other.become(Role.STANDBY)
    disk.gate.close("fsync", thread="tandemmq-founding")
    unsure = hung.send()
    await hit(disk.gate)
    await until(lambda: hung.mastership.demotions == {Trouble.STORAGE_HUNG: 1}, "it gives up")
    assert unsure not in hung.receipts
    await the_other_is_master(hung, other, disk)


@pytest.mark.parametrize("thread", ["tandemmq-storage", "tandemmq-closing"])
async def test_a_handover_of_which_one_store_hangs_lets_the_lock_go(
    directory: str, disk: HangingDisk, thread: str
) -> None:
    lock = MemoryLock()
    hung = await master(directory, lock, disk=disk, bounds=soon(Wait.CHECKPOINT, Wait.CLOSE))
    other = node("b", directory, lock)
    await other.become(Role.STANDBY)
    disk.gate.close("close" if thread == "tandemmq-closing" else "fdatasync", thread=thread)
    hung.send()
    with pytest.raises(NotMaster):
        await hung.mastership.handover()
    assert hung.mastership.demotions == {Trouble.STORAGE_HUNG: 1}
    await the_other_is_master(hung, other, disk)
