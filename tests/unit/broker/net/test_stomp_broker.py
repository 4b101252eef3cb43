"""STOMP clients, server, transport and the real engine together, with a store in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import stomp

from tandemmq.broker.core.policies import DestinationPolicy, Policies
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import at_once
from tandemmq.broker.engine import flow_control as flow
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.part import Loop
from tandemmq.broker.net.server import Server
from tests.support.store.memory_store import MemoryStore


@pytest.fixture
def policies() -> Policies | None:
    return None


@pytest.fixture
async def broker(make_server: Callable[..., Server], policies: Policies | None) -> AsyncIterator[tuple[Engine, int]]:
    """The engine, and the port of its server."""
    server = make_server()
    loop = asyncio.get_running_loop()
    store = MemoryStore(loop.call_soon)
    clock = Loop(lambda: time.time_ns() // 1_000_000, loop.call_later)
    engine = Engine(store, EngineSettings(), clock, on_drained=server.resume_reading_all, policies=policies)
    store.start(engine)
    server.bind()
    await server.listen(engine, "ID:t-1")
    yield engine, server.addresses[0][2]
    await server.close()
    server.unbind()


@pytest.fixture
def port(broker: tuple[Engine, int]) -> int:
    return broker[1]


class Listener(stomp.ConnectionListener):  # type: ignore[misc]
    def __init__(self, client: Any, acknowledge: Callable[[Any, Any], None] | None = None) -> None:
        self.client = client
        self.acknowledge = acknowledge
        self.frames: list[Any] = []
        self.errors: list[Any] = []
        self.receipts: list[str] = []
        self.changed = threading.Condition()

    def on_message(self, frame: Any) -> None:
        if self.acknowledge is not None:
            self.acknowledge(self.client, frame)
        self._add(self.frames, frame)

    def on_receipt(self, frame: Any) -> None:
        self._add(self.receipts, frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self._add(self.errors, frame)

    def _add(self, things: list[Any], thing: Any) -> None:
        with self.changed:
            things.append(thing)
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=10), "the broker did not answer in time"


def ack_10(client: Any, frame: Any) -> None:
    client.ack(frame.headers["message-id"])


def ack_11(client: Any, frame: Any) -> None:
    client.ack(frame.headers["message-id"], frame.headers["subscription"])


def ack_12(client: Any, frame: Any) -> None:
    client.ack(frame.headers["ack"])


VERSIONS = pytest.mark.parametrize(
    ("client_class", "acknowledge"),
    [(stomp.Connection10, ack_10), (stomp.Connection11, ack_11), (stomp.Connection12, ack_12)],
    ids=["1.0", "1.1", "1.2"],
)


def connected(client_class: Any, port: int, acknowledge: Any = None) -> tuple[Any, Listener]:
    client = client_class([("127.0.0.1", port)])
    listener = Listener(client, acknowledge)
    client.set_listener("", listener)
    client.connect(wait=True)
    return client, listener


@VERSIONS
async def test_messages_are_delivered_once_in_order_and_acknowledged_ones_are_removed(
    port: int, client_class: Any, acknowledge: Any
) -> None:
    def talk() -> None:
        sender, sent = connected(client_class, port)
        for number in range(50):
            sender.send("/queue/a", f"{number}", headers={"persistent": "true", "receipt": f"{number}"})
        sent.until(lambda: len(sent.receipts) == 50)
        assert sent.receipts == [f"{number}" for number in range(50)]
        receiver, received = connected(client_class, port, acknowledge)
        receiver.subscribe("/queue/a", id="1", ack="client-individual")
        received.until(lambda: len(received.frames) == 50)
        assert [frame.body for frame in received.frames] == [f"{number}" for number in range(50)]
        receiver.disconnect()
        late, nothing = connected(client_class, port)
        late.subscribe("/queue/a", id="1")
        late.send("/queue/a", "last")
        nothing.until(lambda: bool(nothing.frames))
        assert [frame.body for frame in nothing.frames] == ["last"]
        late.disconnect()
        sender.disconnect()

    await asyncio.to_thread(talk)


@VERSIONS
async def test_a_vanished_client_leaves_its_messages_to_others(port: int, client_class: Any, acknowledge: Any) -> None:
    def talk() -> None:
        sender, _ = connected(client_class, port)
        first, got = connected(client_class, port)
        first.subscribe("/queue/a", id="1", ack="client")
        sender.send("/queue/a", "again", headers={"persistent": "true"})
        got.until(lambda: bool(got.frames))
        assert "redelivered" not in got.frames[0].headers
        first.transport.disconnect_socket()
        second, received = connected(client_class, port, acknowledge)
        second.subscribe("/queue/a", id="1", ack="client")
        received.until(lambda: bool(received.frames))
        assert (received.frames[0].body, received.frames[0].headers["redelivered"]) == ("again", "true")
        second.disconnect()
        sender.disconnect()

    await asyncio.to_thread(talk)


@VERSIONS
async def test_a_transaction_happens_with_its_commit(port: int, client_class: Any, acknowledge: Any) -> None:
    def talk() -> None:
        client, listener = connected(client_class, port, acknowledge)
        client.subscribe("/queue/a", id="1", ack="client")
        for body, end in (("undone", client.abort), ("done", client.commit)):
            transaction = client.begin()
            client.send("/queue/a", body, headers={"persistent": "true"}, transaction=transaction)
            end(transaction)
        listener.until(lambda: bool(listener.frames))
        assert [frame.body for frame in listener.frames] == ["done"]
        client.disconnect()

    await asyncio.to_thread(talk)


# ---- a producer that sends on although there is no room

BODY = b"x" * 10_000
COUNT = 2_000


async def opened(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
    assert (await reader.readuntil(b"\0")).startswith(b"CONNECTED")
    return reader, writer


@pytest.mark.parametrize("policies", [Policies((), DestinationPolicy(memory_limit=50_000))])
async def test_a_producer_that_sends_on_is_held_back_by_its_socket_and_loses_nothing(
    broker: tuple[Engine, int],
) -> None:
    engine, port = broker
    _, writer = await opened(port)

    async def produce() -> None:
        for number in range(COUNT):
            writer.write(b"SEND\ndestination:/queue/a\nn:%d\n\n%b\0" % (number, BODY))
            await writer.drain()
        writer.write(b"DISCONNECT\nreceipt:bye\n\n\0")
        await writer.drain()

    async with asyncio.timeout(20):
        producing = asyncio.create_task(produce())
        # Polled: an engine does not report that it stopped reading
        while not (told := engine.flow.blocked()) or told[0]["is_read"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # The input that was read before the stop exceeds the bound by at most one piece.
        assert told[0]["bytes"] < flow.BYTES_MAX + (1 << 20)
        reader, consumer = await opened(port)
        consumer.write(b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0")
        for number in range(COUNT):
            frame = await reader.readuntil(b"\0")
            assert b"\nn:%d\n" % number in frame
        await producing
    consumer.close()
    writer.close()
    assert at_once(engine.statistics())["counts"]["sends_waiting"] == 0
