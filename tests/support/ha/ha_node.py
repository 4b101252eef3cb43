"""A mastership with real stores and a lock in memory, controlled by a test; and checks after one of them hung."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tandemmq.broker.ha.mastership import Mastership
from tandemmq.broker.ha.service import AnyStandby
from tandemmq.broker.ha.states import Phase, Role
from tandemmq.journal.files import file_id
from tandemmq.locker.contract import BootClock, Clock, Holder, LockRequest, LockSettings
from tandemmq.locker.memory import MemoryLock, MemoryLocker
from tandemmq.store.operations import AddMessage, Operation
from tandemmq.store.records.commands import encode_add
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store
from tandemmq.store.threads import OS_THREADS, Threads
from tests.support.virtual_time import until

Q = Destination(DestinationKind.QUEUE, "Q")
# No periodic writes, so that the files show only the effects of completed calls.
QUIET = StoreSettings(fence_check_interval=0.25, checkpoint_interval=math.inf, cleanup_interval=math.inf)
LOCK = LockSettings(lock_acquire_sleep_interval_seconds=0.1, lock_keep_alive_period_seconds=0.25)


class Node:
    """A mastership with a service that only keeps its store. ``on_role``: called at each change."""

    def __init__(
        self,
        name: str,
        directory: str,
        lock: MemoryLock,
        *,
        threads: Threads = OS_THREADS,
        clock: Clock | None = None,
        disk: Any = os,
        make_locker: Callable[[LockRequest, MemoryLock], MemoryLocker] = MemoryLocker,
        store_settings: StoreSettings = QUIET,
        make_standby: Callable[..., AnyStandby] = Standby,
        **options: Any,
    ) -> None:
        self.name = name
        self.directory = directory
        self.roles: list[Role] = []
        self.on_role: Callable[[], object] = lambda: None
        self.store: Store | None = None
        self.receipts: list[str] = []
        self.sent = 0
        self.aborts = 0
        self.cuts = 0
        self.events: list[str] = []
        self.locker = make_locker(LockRequest(directory, Holder(name), LOCK, clock=clock or BootClock()), lock)
        self.mastership = Mastership(
            self.locker,
            lambda: make_standby(directory, f"{directory}/index", name, store_settings, disk=disk, threads=threads),
            self,
            on_role=self._moved,
            record=lambda kind, **facts: self.events.append(kind),
            threads=threads,
            **options,
        )
        self.task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def _moved(self, role: Role, reason: str) -> None:
        self.roles.append(role)
        self.on_role()

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

    # the engine

    def durable(self, operations: list[Operation]) -> None:
        self.receipts += [o.message.message_id for o in operations if isinstance(o, AddMessage)]

    def drained(self) -> None:
        pass

    # methods for the test

    def start(self) -> Node:
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(self.mastership.run())
        return self

    async def started(self, role: Role) -> Node:
        """Start it, and wait until it has this role. A master also confirms a message."""
        self.start()
        await self.become(role)
        if role is Role.MASTER:
            await self.send_and_wait()
        return self

    async def live(self) -> None:
        """Start it in a separate loop, which ends with it."""
        self.start()
        assert self.task is not None
        await self.task

    def end_soon(self) -> None:
        """Request its end, from any thread."""
        assert self._loop is not None, "it was started"
        self._loop.call_soon_threadsafe(self.mastership.stop)

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
        await asyncio.wait_for(self.task, 60)

    def when(self, phase: Phase, function: Callable[[], object]) -> None:
        """Call ``function`` at the first time of this phase."""

        def moved() -> None:
            if self.mastership.phase is phase:
                self.on_role = lambda: None
                function()

        self.on_role = moved


NewNode = Callable[..., Node]


def journal(directory: str) -> dict[str, str]:
    """Return the shared files, by name and content."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(directory).rglob("db-*")
        if file_id(path.name) is not None
    }


async def goes_on_elsewhere(hung: Node, other: Node, wake: Callable[[], object], own: str | None = None) -> None:
    """Check that ``hung`` has released the lock and ``other`` has it, then let the hung call return. Stops both."""
    receipts = list(hung.receipts)
    await other.become(Role.MASTER)
    await other.send_and_wait()
    assert hung.receipts == receipts, "no client gets anything after the lock was released"
    before = journal(hung.directory)
    wake()
    await hung.become(Role.STANDBY)
    after = journal(hung.directory)
    if own is not None:  # the hung call is made after the end of the file, where it has no effect
        before[own] = after[own]
    assert after == before, "after its return it writes no shared file"
    assert hung.receipts == receipts
    await other.send_and_wait()
    await other.stop()
    await hung.become(Role.MASTER)  # the same process
    await hung.send_and_wait()
    await hung.stop()
