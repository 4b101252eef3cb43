"""A mastership over real stores and a lock in memory, with hands for a test."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from tandemmq.broker.ha.mastership import Mastership
from tandemmq.broker.ha.service import AnyStandby
from tandemmq.broker.ha.states import Role
from tandemmq.locker.contract import BootClock, Clock, Holder, LockRequest, LockSettings
from tandemmq.locker.memory import MemoryLock, MemoryLocker
from tandemmq.store.operations import AddMessage, Operation
from tandemmq.store.records.commands import encode_add
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store

# As long as on a machine that is busy with others, too; waited for to the end is only what never comes.
WAIT_SECONDS_MAX = 60.0

Q = Destination(DestinationKind.QUEUE, "Q")
STORE_SETTINGS = StoreSettings(fence_check_interval=0.05)


class Node:
    """A mastership with a service that only keeps what it was served with."""

    def __init__(
        self,
        name: str,
        directory: str,
        lock: MemoryLock,
        clock: Clock | None = None,
        *,
        disk: Any = os,
        make_locker: Callable[[LockRequest, MemoryLock], MemoryLocker] = MemoryLocker,
        store_settings: StoreSettings = STORE_SETTINGS,
        make_standby: Callable[..., AnyStandby] = Standby,
        **options: Any,
    ) -> None:
        self.name = name
        self.roles: list[Role] = []
        self.store: Store | None = None
        self.receipts: list[str] = []
        self.sent = 0
        self.aborts = 0
        self.cuts = 0
        self.events: list[str] = []
        settings = LockSettings(lock_acquire_sleep_interval_seconds=0.02, lock_keep_alive_period_seconds=0.05)
        request = LockRequest(directory, Holder(name), settings, clock=clock or BootClock())
        self.locker = make_locker(request, lock)
        self.mastership = Mastership(
            self.locker,
            lambda: make_standby(directory, f"{directory}/index", name, store_settings, disk=disk),
            self,
            on_role=lambda role, reason: self.roles.append(role),
            record=self.record,
            **options,
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

    def cut(self) -> None:
        self.cuts += 1

    def record(self, kind: str, **facts: object) -> None:
        self.events.append(kind)

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

    def send(self, body: bytes = b"x") -> str:
        assert self.store is not None, "a master has a store"
        self.sent += 1
        message = Message(Q, f"ID:{self.name}-{self.store.epoch}:1:1:{self.sent}", body, persistent=True)
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


class InItsOwnLoop:
    """A broker on another thread: it lives while the loop of the test hangs."""

    def __init__(self, name: str, directory: str, lock: MemoryLock) -> None:
        self._node: Node | None = None
        self._ready = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live(name, directory, lock)))
        self._thread.start()
        assert self._ready.wait(10), "the other loop begins"

    async def _live(self, name: str, directory: str, lock: MemoryLock) -> None:
        self._node = Node(name, directory, lock).start()
        self._ready.set()
        while not self._end.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await self._node.stop()

    def until_role(self, role: Role) -> None:
        """Blocks the caller's thread."""
        assert self._node is not None, "it is ready"
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while self._node.mastership.role is not role:
            assert time.monotonic() < deadline, f"not in time: the other is {self._node.mastership.role.value}"
            time.sleep(0.01)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


async def until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.005)
