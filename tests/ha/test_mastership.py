"""Becoming master and ceasing to be, in one process, over real stores and a lock that does as it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.ha import Mastership, Role
from locker.contract import BootClock, Clock, Holder, LockRequest, LockSettings
from locker.memory import HandClock, MemoryLock, MemoryLocker
from store.check import check
from store.operations import AddMessage, Operation
from store.records.commands import encode_add
from store.records.message import Destination, DestinationKind, Message
from store.records.openwire import encode_message
from store.settings import StoreSettings
from store.standby import Standby
from store.store import Store

Q = Destination(DestinationKind.QUEUE, "Q")


class Node:
    """A mastership with a service that only keeps what it was served with."""

    def __init__(self, name: str, directory: str, lock: MemoryLock, clock: Clock | None = None) -> None:
        self.name = name
        self.roles: list[Role] = []
        self.store: Store | None = None
        self.receipts: list[str] = []
        self.sent = 0
        self.aborts = 0
        settings = LockSettings(lock_acquire_sleep_interval_seconds=0.02, lock_keep_alive_period_seconds=0.05)
        request = LockRequest(directory, Holder(name), settings, clock=clock or BootClock())
        self.mastership = Mastership(
            MemoryLocker(request, lock),
            lambda: Standby(directory, f"{directory}/index", name, StoreSettings(look_interval=0.05)),
            self,
            admin_url=None,
            on_role=lambda role, reason: self.roles.append(role),
        )
        self.task: asyncio.Task[None] | None = None

    # the service

    async def bind(self) -> None:
        pass

    async def serve(self, store: Store) -> None:
        self.store = store
        store.start(self)

    async def abort(self) -> None:
        self.aborts += 1
        self.store = None

    async def finish(self) -> None:
        self.store = None

    # the engine

    def durable(self, operations: list[Operation]) -> None:
        self.receipts += [o.message.message_id for o in operations if isinstance(o, AddMessage)]

    def drained(self) -> None:
        pass

    # the test's hands

    def start(self) -> Node:
        self.task = asyncio.create_task(self.mastership.run())
        return self

    async def become(self, role: Role) -> None:
        await until(lambda: self.mastership.role is role, f"{self.name} is {role.value}")

    def send(self) -> str:
        assert self.store is not None, "a master has a store"
        self.sent += 1
        message = Message(Q, f"ID:{self.name}-{self.store.epoch}:1:1:{self.sent}", b"x", persistent=True)
        payload = encode_add(message, encode_message(message))
        self.store.append(AddMessage(message, (self.store.queue(Q),), payload))
        return message.message_id

    async def send_and_wait(self) -> None:
        sent = self.send()
        await until(lambda: sent in self.receipts, f"{self.name} confirms {sent}")

    async def stop(self) -> None:
        assert self.task is not None, "it was started"
        self.mastership.stop()
        await asyncio.wait_for(self.task, 5)


async def until(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.005)


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
    lock, clock = MemoryLock(lease_seconds=5.0), HandClock()
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
