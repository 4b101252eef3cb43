"""Promotion and demotion in one process, with real stores and a lock that the test controls.

In virtual time.
"""

# proves: lost-store-is-halted, proof-of-this-life

from __future__ import annotations

import asyncio

import pytest

from tandemmq.broker.ha.states import NotMaster, Phase, Role, Trouble
from tandemmq.locker.contract import LockLost
from tandemmq.locker.memory import MemoryLock, MemoryLocker
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Message
from tests.support.ha.ha_node import NewNode, Q
from tests.support.virtual_time import until

pytestmark = pytest.mark.promise("lost-lock-deposes", "silent-holder-is-reported")


async def test_a_lock_that_is_granted_twice_makes_one_master_and_one_standby(node: NewNode, lock: MemoryLock) -> None:
    first = await node("a").started(Role.MASTER)
    lock.grant_twice()
    second = node("b").start()
    await second.become(Role.MASTER)
    late = first.send() if first.store is not None else None
    await until(lambda: Role.DEMOTED in first.roles, "the first finds itself deposed")
    assert late not in first.receipts
    assert first.aborts == 1
    await first.become(Role.STANDBY)
    await second.send_and_wait()
    await second.stop()
    await first.become(Role.MASTER)  # the same process, once more
    await first.send_and_wait()
    assert first.mastership.promotions == 2
    await first.stop()


async def test_a_lock_that_cannot_be_asked_demotes_when_its_proof_is_too_old(node: NewNode, lock: MemoryLock) -> None:
    lock.lease_seconds = 5.0
    a = node("a").start()
    await a.become(Role.MASTER)
    lock.fail("the network is gone")
    await asyncio.sleep(4.0)
    assert a.mastership.role is Role.MASTER, "unknown is not lost"
    await until(lambda: Role.DEMOTED in a.roles, "the proof is too old")
    assert a.aborts == 1
    lock.fail(None)
    await a.become(Role.MASTER)
    await a.stop()


async def test_a_standby_has_nothing_to_hand_over_and_may_be_stopped(node: NewNode) -> None:
    master = await node("a").started(Role.MASTER)
    standby = await node("b").started(Role.STANDBY)
    assert standby.mastership.holder is not None
    assert standby.mastership.holder.name == "a"
    with pytest.raises(NotMaster, match="standby"):
        await standby.mastership.handover()
    await standby.stop()
    await master.send_and_wait()
    await master.stop()


async def test_stopping_a_master_hands_over_with_everything(node: NewNode) -> None:
    master = await node("a").started(Role.MASTER)
    standby = await node("b").started(Role.STANDBY)
    for _ in range(19):
        await master.send_and_wait()
    await master.stop()
    await standby.become(Role.MASTER)
    assert standby.store is not None
    assert [owner.count for owner in standby.store.owners()] == [20]
    await standby.stop()


async def test_a_handover_leaves_the_lock_to_the_standby(node: NewNode) -> None:
    first = await node("a").started(Role.MASTER)
    second = await node("b").started(Role.STANDBY)
    for _ in range(19):
        await first.send_and_wait()
    done = await first.mastership.handover()
    assert done.epoch == first.mastership.epoch
    await second.become(Role.MASTER)
    await first.become(Role.STANDBY)
    assert (first.aborts, first.mastership.demotions) == (0, {})
    await second.send_and_wait()
    assert second.store is not None
    assert [owner.count for owner in second.store.owners()] == [20]
    await second.mastership.handover()
    await first.become(Role.MASTER)
    assert (first.mastership.promotions, first.mastership.handovers) == (2, 1)
    await first.stop()
    await second.stop()


async def test_a_handover_that_nobody_wants_is_taken_back(node: NewNode) -> None:
    a = await node("a", hands_off_seconds=0.2).started(Role.MASTER)
    await a.mastership.handover()
    await a.become(Role.MASTER)
    await a.send_and_wait()
    assert a.mastership.promotions == 2
    await a.stop()


async def test_a_stop_while_handing_over_is_the_end(node: NewNode) -> None:
    a = await node("a").started(Role.MASTER)
    handing_over = asyncio.create_task(a.mastership.handover())
    await asyncio.sleep(0)
    await a.stop()
    await handing_over
    assert a.mastership.phase is Phase.ENDED
    assert a.mastership.promotions == 1


async def test_a_handover_of_one_who_is_deposed_meanwhile_says_so(node: NewNode, lock: MemoryLock) -> None:
    first = await node("a").started(Role.MASTER)
    lock.grant_twice()
    second = node("b").start()
    await second.become(Role.MASTER)
    assert first.mastership.phase is Phase.MASTER, "it has not looked yet"
    with pytest.raises(NotMaster):
        await first.mastership.handover()
    assert first.mastership.demotions == {Trouble.DEPOSED: 1}
    await second.stop()
    await first.stop()


class Faulty(MemoryLocker):
    """Locker of another package, with a fault as long as ``fails``."""

    fails = False

    def keep_alive(self) -> bool:
        if Faulty.fails:
            Faulty.fails = False
            raise ZeroDivisionError("a fault")
        return super().keep_alive()


async def test_a_fault_in_a_locker_costs_the_lock_and_not_the_broker(node: NewNode) -> None:
    """The broker is demoted, releases, and competes again."""
    a = await node("a", make_locker=Faulty).started(Role.MASTER)
    Faulty.fails = True
    await until(lambda: a.mastership.demotions == {Trouble.LOCK_LOST: 1}, "the fault demotes")
    await a.become(Role.MASTER)
    await a.send_and_wait()
    await a.stop()


async def test_an_ended_life_has_no_proof_for_any_state_of_the_lock(node: NewNode, lock: MemoryLock) -> None:
    """A hung call of that life may continue when this process is master again: the proof belongs to another life."""
    a = await node("a").started(Role.MASTER)
    first = a.store
    assert first is not None
    assert first.may_speak()
    lock.steal()
    await until(lambda: a.store is not None and a.store is not first, "a is master again")
    assert a.store is not None
    assert a.store.may_speak()
    assert not first.may_speak()
    await a.stop()


async def test_a_lost_store_reports_nothing_from_that_moment(node: NewNode) -> None:
    """The storage thread comes to the end of a batch before the loop has had another turn."""
    a = await node("a").started(Role.MASTER)
    store, life = a.store, a.mastership._life
    assert store is not None
    assert life is not None
    before = store.figures.confirmed
    a.mastership._on_lost(life, LockLost("stolen"))
    store._storage._report([AddMessage(Message(Q, "ID:late", b"x"), (1,), b"")])
    assert store.figures.confirmed == before
    await until(lambda: a.aborts == 1, "its clients are hung up on")
    await a.stop()


class Quiet(MemoryLocker):
    """Locker whose holder shows no life for as long as the test says."""

    silence: float | None = None

    def silence_seconds(self) -> float | None:
        return self.silence


async def test_a_standby_tells_when_the_holder_falls_silent_and_when_it_is_heard_again(
    node: NewNode, caplog: pytest.LogCaptureFixture
) -> None:
    master = await node("a").started(Role.MASTER)
    standby = await node("b", make_locker=Quiet).started(Role.STANDBY)
    standby.locker.silence = 8.2  # type: ignore[attr-defined]
    await until(lambda: "holder-silent" in standby.events, "it is told")
    assert standby.mastership.reason.endswith("; the holder has been silent for 8 s")
    assert "the holder of the lock, a (epoch 1), has been silent for 8 s" in caplog.text
    standby.locker.silence = None  # type: ignore[attr-defined]
    await until(lambda: "holder-heard" in standby.events, "it is told")
    assert "silent" not in standby.mastership.reason
    await standby.stop()
    await master.stop()
