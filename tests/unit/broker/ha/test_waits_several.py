"""Waits of a broker with several stores: each store can hang, and threads that work for others show signs of life."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tandemmq.broker.ha.states import NotMaster, Phase, Role, Trouble
from tandemmq.broker.ha.waits import BOUNDS, Wait
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.filters import FilteredStore, Filters
from tandemmq.store.several.standbys import SeveralStandbys
from tests.support.ha.ha_node import QUIET, NewNode, Node, goes_on_elsewhere
from tests.support.ha.hanging import HangingDisk, SlowDisk
from tests.support.virtual_time import VirtualTime, until

pytestmark = pytest.mark.promise("waits-are-bounded")

EACH_ITS_OWN = Filters(
    [FilteredStore(queue="one", settings=QUIET), FilteredStore(is_per_destination=True, settings=QUIET)]
)


def standbys(directory: str, index_root: str, broker: str, settings: StoreSettings, **system: Any) -> SeveralStandbys:
    return SeveralStandbys(directory, None, broker, settings, EACH_ITS_OWN, **system)


@pytest.fixture
def node(node: NewNode) -> NewNode:
    return partial(node, make_standby=standbys)


async def gives_up(node: Node) -> None:
    await until(lambda: node.mastership.demotions == {Trouble.STORAGE_HUNG: 1}, "it gives up")


@pytest.mark.parametrize("verb", ["link", "fsync"])
async def test_a_promotion_with_one_hanging_store_releases_the_lock(
    node: NewNode, disk: HangingDisk, verb: str
) -> None:
    first = await node("a").started(Role.MASTER)
    hung = await node("b", disk=disk).started(Role.STANDBY)
    hung.when(Phase.PROMOTING, lambda: disk.gate.close(verb, thread="tandemmq-promoting"))
    await first.stop()
    await disk.gate.hit()
    await gives_up(hung)
    await goes_on_elsewhere(hung, node("c").start(), disk.gate.open)


async def test_a_promotion_is_not_taken_for_hung_while_one_store_gets_on(virtual: VirtualTime, node: NewNode) -> None:
    """The thread of this life waits for those that promote the stores, and computes nothing."""
    first = await node("a").started(Role.MASTER)
    disk = SlowDisk(virtual)
    slow = await node("b", disk=disk).started(Role.STANDBY)
    slow.when(Phase.PROMOTING, lambda: setattr(disk, "seconds", 1.0))
    began = virtual.threads.monotonic()
    await first.stop()
    await slow.become(Role.MASTER)
    assert virtual.threads.monotonic() - began > 2 * BOUNDS[Wait.PROMOTE].silence[1]  # type: ignore[index]
    assert slow.mastership.demotions == {}
    disk.seconds = 0.0
    await slow.stop()


async def test_a_master_hanging_at_a_new_store_releases_the_lock(node: NewNode, disk: HangingDisk) -> None:
    hung = node("a", disk=disk).start()
    await hung.become(Role.MASTER)
    other = await node("b").started(Role.STANDBY)
    disk.gate.close("fsync", thread="tandemmq-founding")
    unsure = hung.send()
    await disk.gate.hit()
    await gives_up(hung)
    assert unsure not in hung.receipts
    await goes_on_elsewhere(hung, other, disk.gate.open)


@pytest.mark.parametrize("thread", ["tandemmq-storage", "tandemmq-closing"])
async def test_a_handover_with_one_hanging_store_releases_the_lock(
    node: NewNode, disk: HangingDisk, thread: str
) -> None:
    hung = await node("a", disk=disk).started(Role.MASTER)
    other = await node("b").started(Role.STANDBY)
    disk.gate.close("close" if thread == "tandemmq-closing" else "fdatasync", thread=thread)
    hung.send()
    with pytest.raises(NotMaster):
        await hung.mastership.handover()
    assert hung.mastership.demotions == {Trouble.STORAGE_HUNG: 1}
    await goes_on_elsewhere(hung, other, disk.gate.open)
