"""Becoming master and ceasing to be, in one process, over real stores and a lock that does as it is told."""

# proves: lost-store-is-halted, proof-of-this-life

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.broker.ha.states import NotMaster, Phase, Role, Trouble
from tandemmq.locker.contract import LockLost
from tandemmq.locker.memory import MemoryLock, MemoryLocker
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Message
from tandemmq.store.tools.check import check
from tests.support.ha.ha_node import Node, Q, until
from tests.support.locker.manual_clock import ManualClock

pytestmark = pytest.mark.promise("lost-lock-deposes", "silent-holder-is-reported")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    report = check(str(tmp_path))
    assert report.is_clean, report.problems


async def test_a_lock_that_is_granted_twice_makes_one_master_and_one_standby(directory: str) -> None:
    lock = MemoryLock()
    first = Node("a", directory, lock).start()
    await first.become(Role.MASTER)
    await first.send_and_wait()
    lock.grant_twice()
    second = Node("b", directory, lock).start()
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


async def test_a_stolen_lock_demotes_at_the_next_keep_alive(directory: str) -> None:
    lock = MemoryLock()
    node = Node("a", directory, lock).start()
    await node.become(Role.MASTER)
    await node.send_and_wait()
    lock.steal()
    await until(lambda: Role.DEMOTED in node.roles, "the loss is noticed")
    await node.become(Role.MASTER)  # nobody else wanted it
    await node.send_and_wait()
    await node.stop()


async def test_a_lock_that_cannot_be_asked_demotes_when_the_last_proof_is_too_old(directory: str) -> None:
    lock, clock = MemoryLock(lease_seconds=5.0), ManualClock()
    node = Node("a", directory, lock, clock).start()
    await node.become(Role.MASTER)
    lock.fail("the network is gone")
    await asyncio.sleep(0.2)
    assert node.mastership.role is Role.MASTER, "unknown is not lost"
    clock.advance(60)
    await until(lambda: Role.DEMOTED in node.roles, "the proof is too old")
    assert node.aborts == 1
    lock.fail(None)
    for _ in range(100):
        clock.advance(1)
        if node.mastership.role is Role.MASTER:
            break
        await asyncio.sleep(0.05)
    await node.stop()


async def test_a_standby_that_is_stopped_ends_and_the_master_goes_on(directory: str) -> None:
    lock = MemoryLock()
    master = Node("a", directory, lock).start()
    await master.become(Role.MASTER)
    standby = Node("b", directory, lock).start()
    await standby.become(Role.STANDBY)
    assert standby.mastership.holder is not None
    assert standby.mastership.holder.name == "a"
    await standby.stop()
    await master.send_and_wait()
    await master.stop()


async def test_stopping_a_master_hands_over_with_everything(directory: str) -> None:
    lock = MemoryLock()
    master = Node("a", directory, lock).start()
    await master.become(Role.MASTER)
    standby = Node("b", directory, lock).start()
    await standby.become(Role.STANDBY)
    for _ in range(20):
        await master.send_and_wait()
    await master.stop()
    await standby.become(Role.MASTER)
    assert standby.store is not None
    assert [owner.count for owner in standby.store.owners()] == [20]
    await standby.stop()


async def test_a_handover_leaves_the_lock_to_the_standby(directory: str) -> None:
    lock = MemoryLock()
    first, second = Node("a", directory, lock).start(), Node("b", directory, lock)
    await first.become(Role.MASTER)
    second.start()
    await second.become(Role.STANDBY)
    for _ in range(20):
        await first.send_and_wait()
    done = await first.mastership.handover()
    assert done.epoch == first.mastership.epoch
    await second.become(Role.MASTER)
    await first.become(Role.STANDBY)
    assert first.aborts == 0
    assert first.mastership.demotions == {}
    await second.send_and_wait()
    assert second.store is not None
    assert [owner.count for owner in second.store.owners()] == [20]
    await second.mastership.handover()
    await first.become(Role.MASTER)
    assert (first.mastership.promotions, first.mastership.handovers) == (2, 1)
    await first.stop()
    await second.stop()


async def test_a_handover_that_nobody_wants_is_taken_back(directory: str) -> None:
    node = Node("a", directory, MemoryLock(), hands_off_seconds=0.2).start()
    await node.become(Role.MASTER)
    await node.send_and_wait()
    await node.mastership.handover()
    await node.become(Role.MASTER)
    await node.send_and_wait()
    assert node.mastership.promotions == 2
    await node.stop()


async def test_a_standby_has_nothing_to_hand_over(directory: str) -> None:
    lock = MemoryLock()
    first, second = Node("a", directory, lock).start(), Node("b", directory, lock)
    await first.become(Role.MASTER)
    second.start()
    await second.become(Role.STANDBY)
    with pytest.raises(NotMaster, match="standby"):
        await second.mastership.handover()
    await second.stop()
    await first.stop()


async def test_a_stop_while_handing_over_is_the_end(directory: str) -> None:
    node = Node("a", directory, MemoryLock()).start()
    await node.become(Role.MASTER)
    await node.send_and_wait()
    handing_over = asyncio.create_task(node.mastership.handover())
    await asyncio.sleep(0)
    await node.stop()
    await handing_over
    assert node.mastership.phase is Phase.ENDED
    assert node.mastership.promotions == 1


async def test_a_handover_of_one_who_is_deposed_meanwhile_says_so(directory: str) -> None:
    lock = MemoryLock()
    first = Node("a", directory, lock).start()
    await first.become(Role.MASTER)
    lock.grant_twice()
    second = Node("b", directory, lock).start()
    await second.become(Role.MASTER)
    if first.mastership.phase is Phase.MASTER:
        with pytest.raises(NotMaster):
            await first.mastership.handover()
    await until(lambda: Trouble.DEPOSED in first.mastership.demotions, "the first is demoted for being deposed")
    await second.stop()
    await first.stop()


async def test_a_fault_in_a_locker_costs_the_lock_and_not_the_broker(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locker of somebody else's, with a fault in it: the broker is demoted, releases, and competes anew."""
    node = Node("a", directory, MemoryLock()).start()
    await node.become(Role.MASTER)
    await node.send_and_wait()

    def fail(locker: MemoryLocker) -> bool:
        raise ZeroDivisionError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryLocker, "keep_alive", fail)
        await until(lambda: Trouble.LOCK_LOST in node.mastership.demotions, "the fault demotes")
    await node.become(Role.MASTER)
    await node.send_and_wait()
    await node.stop()


async def test_a_life_that_is_over_shows_no_proof_whatever_the_lock_says(directory: str) -> None:
    """What hung in it may wake up when this very process is master again: the proof is that of another life."""
    a = Node("a", directory, MemoryLock()).start()
    await a.become(Role.MASTER)
    first, life = a.store, a.mastership._life
    assert first is not None
    assert life is not None
    assert first.may_speak()
    life.halt()
    assert not first.may_speak()
    await until(lambda: a.store is not None and a.store is not first, "a is master again")
    assert a.store is not None
    assert a.store.may_speak()
    assert not first.may_speak()
    await a.stop()


async def test_who_is_lost_reports_nothing_from_the_first_moment_on(directory: str) -> None:
    """The storage thread comes to the end of a batch before the loop has had another turn."""
    a = Node("a", directory, MemoryLock()).start()
    await a.become(Role.MASTER)
    await a.send_and_wait()
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
    """Whose holder shows no life for as long as the test says."""

    silence: float | None = None

    def silence_seconds(self) -> float | None:
        return self.silence


async def test_a_standby_tells_when_the_holder_falls_silent_and_when_it_is_heard_again(
    directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    lock = MemoryLock()
    master = Node("a", directory, lock).start()
    await master.become(Role.MASTER)
    standby = Node("b", directory, lock, make_locker=Quiet).start()
    await standby.become(Role.STANDBY)
    standby.locker.silence = 8.2  # type: ignore[attr-defined]
    await until(lambda: "holder-silent" in standby.events, "it is told")
    assert standby.mastership.reason.endswith("; the holder has been silent for 8 s")
    assert "the holder of the lock, a (epoch 1), has been silent for 8 s" in caplog.text
    standby.locker.silence = None  # type: ignore[attr-defined]
    await until(lambda: "holder-heard" in standby.events, "it is told")
    assert "silent" not in standby.mastership.reason
    await standby.stop()
    await master.stop()
