"""State of MQTT beyond connections, on an engine with a store in memory, over several terms."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tandemmq.broker.core.access import Access
from tandemmq.broker.core.commands import Begin, Command, Commit, Send
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import InProcessClient
from tandemmq.broker.engine.part import Loop
from tandemmq.broker.mqtt.clients import MqttClients
from tandemmq.broker.protocols.mqtt.messages import message_of, to_retain
from tandemmq.broker.protocols.mqtt.packets import Publish
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.session_records import queue_of
from tandemmq.broker.protocols.mqtt.topics import destination_of
from tandemmq.store.records.message import Destination, Message
from tests.support.broker.virtual_loop import VirtualTime
from tests.support.store.memory_store import MemoryStore

SECONDS_MAX = 60.0


class Terms:
    """Terms one after the other on the same store; ``now`` is the clock, in milliseconds."""

    access: Access | None = None

    def __init__(self, **limits: int) -> None:
        self.now = 1_000_000
        self._numbers = itertools.count(1)
        self._limits = {"retained_messages_max": 1_000, "retained_bytes_max": 1 << 20, "sys_interval_ms": 0} | limits
        self.store = MemoryStore(asyncio.get_running_loop().call_soon)
        self.begin()

    def begin(self) -> None:
        loop = Loop(lambda: self.now)
        self.engine = Engine(self.store, EngineSettings(prefetch_max=100), loop, access=self.access)
        self.store.start(self.engine)
        self.clients = MqttClients("broker", **self._limits, clock=lambda: self.now)
        self.clients.begin(self.engine)

    def end(self) -> None:
        self.clients.end()
        self.engine.end()

    def again(self, **limits: int) -> None:
        """The next term."""
        self.end()
        self._limits |= limits
        self.begin()

    def client(self, client_id: str = "publisher") -> InProcessClient:
        """Return a client with a stored session."""
        number = next(self._numbers)
        name = Principal("someone", is_proved=False)
        return InProcessClient(self.engine, name, f"test-{number}", f"test {number}", state=queue_of(client_id))

    async def retain(self, topic: str, payload: bytes, expiry: int | None = None) -> None:
        """Retain a message as a session does."""
        properties = NONE if expiry is None else Properties(message_expiry=expiry)
        publish = Publish(topic, payload, 1, True, False, 1, properties)
        destination, number = destination_of(topic), next(self._numbers)
        message = message_of(publish, destination, f"ID:test:1:1:{2 * number}", self.now)
        newest = self.clients.may_retain(destination, message.size if payload else 0)
        kept = to_retain(publish, destination, f"ID:test:1:1:{2 * number + 1}", self.now, newest)
        commands: list[Command] = [Begin("t"), Send(message, "t"), Send(kept, "t"), Commit("t")]
        client = self.client()
        assert await client.do_all(commands) == [None] * 4
        self.engine.closed(client)

    def retained(self, topic_filter: str = "#") -> dict[str, bytes]:
        """Return the retained messages that a subscriber receives."""
        found: dict[str, bytes] = {}
        for message in self.clients.retained(topic_filter):
            if message is not None:
                assert message.original_destination is not None
                found[message.original_destination.name.replace(".", "/")] = message.body
        return found

    def stored(self, queue: Destination) -> int:
        """Messages that the store has of a queue."""
        return sum(owner.count for owner in self.store.owners() if owner.destination == queue)

    async def loaded(self) -> None:
        """Wait until the retained messages of a former term are read."""
        told = asyncio.Event()
        self.clients.when_loaded(told.set)
        async with asyncio.timeout(SECONDS_MAX):
            await told.wait()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():  # noqa: ASYNC110 - what it waits for has no event
                await asyncio.sleep(0.01)

    def message(self, queue: Destination, body: bytes, type: str) -> Message:
        number = next(self._numbers)
        return Message(queue, f"ID:test:2:1:{number}", body, persistent=True, timestamp=self.now, type=type)


@pytest.fixture
def event_loop_policy() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
async def terms() -> AsyncIterator[Terms]:
    terms = Terms()
    yield terms
    terms.end()
