"""STOMP clients, server, transport and the real engine together, over a store that is memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import stomp

from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.shared import Loop
from tandemmq.broker.net.server import Server
from tests.support.store.memory_store import MemoryStore


@pytest.fixture
async def port(make_server: Callable[..., Server]) -> AsyncIterator[int]:
    server = make_server()
    store = MemoryStore(asyncio.get_running_loop().call_soon)
    engine = Engine(
        store, EngineSettings(), Loop(lambda: time.time_ns() // 1_000_000), on_drained=server.resume_reading_all
    )
    store.start(engine)
    server.bind()
    await server.listen(engine, "ID:t-1")
    yield server.addresses[0][2]
    await server.close()
    server.unbind()


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
async def test_messages_come_once_in_order_and_what_is_acknowledged_is_gone(
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


@VERSIONS
async def test_what_is_refused_leaves_the_connection_open(port: int, client_class: Any, acknowledge: Any) -> None:
    def talk() -> None:
        client, listener = connected(client_class, port)
        client.send("/queue/a.*", "no", headers={"receipt": "r"})
        listener.until(lambda: bool(listener.errors))
        assert listener.errors[0].headers["receipt-id"] == "r"
        assert "queue://a.* has wildcards" in listener.errors[0].body
        client.send("/queue/a", "yes", headers={"receipt": "s"})
        listener.until(lambda: listener.receipts == ["s"])
        client.disconnect()

    await asyncio.to_thread(talk)
