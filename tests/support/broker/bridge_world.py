"""A bridge between an engine and a connection that records what the bridge sends. Engines end at any moment, like
killed masters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tandemmq.broker.bridges.flow import Flow, queue_of
from tandemmq.broker.bridges.link import Counts, Topic
from tandemmq.broker.core.commands import AckMode, Connect, Send, Subscribe
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import at_once
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import InProcessClient
from tandemmq.broker.engine.part import Loop
from tandemmq.broker.engine.slicing import Slices
from tandemmq.broker.protocols.mqtt.packets import PacketType, Publish
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.topics import destination_of
from tandemmq.store.records.message import Destination, Message
from tests.support.store.memory_store import MemoryStore

OPERATOR = Principal("operator", may_everything=True)
OUT = Topic("up/#", 2, "", "site/", is_in=False, is_out=True)
IN = Topic("down/#", 2, "from/", "", is_in=True, is_out=False)
BOTH = Topic("both/#", 2, "", "", is_in=True, is_out=True)


class Noted:
    """The other broker's end of a connection, which records the packets in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.properties: list[Properties] = []  # of each PUBLISH
        self.is_paused = False
        self.has_room = True

    def publish(
        self, topic: str, payload: bytes, qos: int, packet_id: int, retain: bool, dup: bool, properties: Properties
    ) -> bool:
        if self.has_room:
            self.told.append(("PUBLISH", topic, payload.decode(), qos, packet_id, dup))
            self.properties.append(properties)
        return self.has_room

    def acknowledge(self, type: PacketType, packet_id: int) -> None:
        self.told.append((type.name, packet_id))

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


class Client(InProcessClient):
    """A client of the engine that reads and writes."""

    def __init__(self, engine: Engine) -> None:
        self.bodies: list[str] = []
        self.properties: list[dict[str, Any]] = []
        super().__init__(engine, OPERATOR, f"client-{id(self)}", "client")

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        self.bodies.append(message.body.decode())
        self.properties.append(dict(message.properties or {}))
        return None

    async def subscribe_durably(self, topic: str) -> None:
        """Subscribe durably. The client must have sent its client id before."""
        await self.do(Subscribe("s", destination_of(topic), AckMode.AUTO, durable_name="all"))

    def leave(self) -> None:
        """End the connection."""
        self._engine.closed(self)


class World:
    """A store, the engine of the term, and the flow of its bridge."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.store: Any = MemoryStore(self.loop.call_soon)
        self.counts = Counts()
        self.terms = 0
        self.now = 1_000
        self.sent = 0
        self.topics: tuple[Topic, ...] = (OUT, IN)
        self.window = 10
        self.name = "b"

    async def begin(self, *topics: Topic, is_resumed: bool = True, receive_maximum: int = 100) -> Noted:
        """Begin a new term, which does not know what the former one had not confirmed. Return its connection."""
        self.topics = topics or self.topics
        assert await self.begin_term(*self.topics)
        remote = Noted()
        self.flow.attach(remote, is_resumed=is_resumed, receive_maximum=receive_maximum)
        await self.quiet()
        return remote

    async def begin_as(self, name: str, *topics: Topic) -> Noted:
        """Like ``begin``, for another bridge."""
        self.name = name
        return await self.begin(*topics)

    def gathered_for_bridge(self, topic_filter: str) -> int:
        """Return the number of messages in a durable subscription of the bridge."""
        return self.engine.inventory.gathered(f"local.{self.name}", topic_filter)

    def begin_engine(self) -> None:
        """Begin a new term without a bridge."""
        self.terms += 1
        slices = Slices(self.loop)
        times = Loop(lambda: self.now, self.loop.call_later, slices.start)
        self.engine = Engine(self.store, EngineSettings(), times)
        self.store.start(self.engine)
        self.client = Client(self.engine)

    async def begin_term(self, *topics: Topic) -> bool:
        """Like ``begin``, without a connection. Return False if the store does not answer."""
        self.begin_engine()
        self.make_flow(*topics)
        begun = self.loop.create_task(self.flow.begin())
        await self.quiet()
        if not begun.cancel():
            begun.result()
            return True
        await asyncio.wait([begun])
        return False

    def make_flow(self, *topics: Topic) -> None:
        """Create the flow, without starting it."""
        self.flow = Flow(
            self.engine, self.name, self.name, topics, f"ID:b-{self.terms}",
            counts=self.counts, clock=lambda: self.now, window=self.window,
        )  # fmt: skip

    async def reconnect(self) -> Noted:
        """Reconnect; the session continues in this term."""
        remote = Noted()
        self.flow.attach(remote, is_resumed=True, receive_maximum=10)
        await self.quiet()
        return remote

    async def receive(self, topic: str, body: str, packet_id: int, **options: Any) -> None:
        """Pass a PUBLISH of the other broker to the bridge."""
        self.flow.published(publish(topic, body, packet_id, **options))
        await self.quiet()

    async def release(self, packet_id: int) -> None:
        """Pass a PUBREL of the other broker to the bridge."""
        self.flow.released(packet_id)
        await self.quiet()

    async def answer(self, type: PacketType, packet_id: int, reason: int = 0) -> None:
        """Pass the other broker's answer to a PUBLISH or PUBREL to the bridge."""
        self.flow.acknowledged(type, packet_id, reason)
        await self.quiet()

    async def quiet(self) -> None:
        """Run until all started work is complete."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def send(self, topic: str, body: str, **fields: Any) -> None:
        fields.setdefault("persistent", True)
        self.sent += 1
        message = Message(destination_of(topic), f"ID:c-{self.terms}:1:1:{self.sent}", body.encode(), **fields)
        await self.client.do(Send(message))
        await self.quiet()

    async def listen(self, topic: str) -> None:
        await self.client.do(Subscribe("s", destination_of(topic), AckMode.AUTO))

    async def gather(self, topic: str) -> None:
        """Start to collect the messages of a topic."""
        (await self._gatherer(topic)).leave()

    async def gathered(self, topic: str) -> list[str]:
        """Return the bodies of the collected messages."""
        gatherer = await self._gatherer(topic)
        await self.quiet()
        gatherer.leave()
        return gatherer.bodies

    async def _gatherer(self, topic: str) -> Client:
        gatherer = Client(self.engine)
        await gatherer.do(Connect("gatherer"))
        await gatherer.subscribe_durably(topic)
        return gatherer

    def kept(self, destination: Destination) -> int:
        rows = at_once(self.engine.statistics())["queues"]
        return next((int(row["messages"]) for row in rows if row["name"] == destination.name), 0)

    @property
    def records(self) -> int:
        """Return the number of the bridge's records, without that of its subscriptions."""
        return self.kept(queue_of(self.name)) - 1


def publish(
    topic: str,
    body: str,
    packet_id: int,
    qos: int = 2,
    *,
    dup: bool = False,
    retain: bool = False,
    properties: Properties = NONE,
) -> Publish:
    return Publish(topic, body.encode(), qos, retain, dup, packet_id, properties)
