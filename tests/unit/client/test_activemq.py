"""The client at ActiveMQ: people who change brokers change one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tandemmq.bench.peers.activemq import HOME, JAVA, ActiveMQ
from tandemmq.bench.peers.server import HOST, Server
from tandemmq.client import Client, Subscription

pytestmark = pytest.mark.service

JAR = HOME / "bin" / "activemq.jar"


@pytest.fixture(scope="module")
def activemq(
    tmp_path_factory: pytest.TempPathFactory, require_service: Callable[[object, str], None]
) -> Iterator[Server]:
    require_service(JAR.exists() and JAVA.exists(), f"ActiveMQ is not installed ({JAR}, {JAVA})")
    with ActiveMQ(tmp_path_factory.mktemp("activemq")) as server:
        yield server


def client_of(server: Server, client_id: str | None = None) -> Client:
    return Client(f"failover:(stomp://{HOST}:{server.port})?maxReconnectDelay=50", client_id=client_id)


async def drain(client: Client, subscription: Subscription) -> list[bytes]:
    bodies = []
    while (message := await subscription.receive(1.0)) is not None:
        bodies.append(message.body)
        assert await client.acknowledge(message, is_confirmed=True)
    return bodies


async def test_messages_go_there_and_back_with_their_headers(activemq: Server) -> None:
    bodies = [b"one", "zwölf".encode(), b"with\0nul", b"\xff\xfe"]
    async with client_of(activemq) as client:
        for body in bodies:
            await client.send("/queue/client.order", body, {"colour": "a:b\\c"})
        await client.flush()
        subscription = await client.subscribe("/queue/client.order")
        first = await subscription.receive(10)
        assert first is not None
        assert first.headers["colour"] == "a:b\\c"
        assert "tandemmq-send-id" not in first.headers
        await client.acknowledge(first)
        assert [first.body, *await drain(client, subscription)] == bodies
        assert await client.close()


async def test_a_transaction_is_done_whole_or_undone(activemq: Server) -> None:
    async with client_of(activemq) as client:
        undone = await client.begin()
        await undone.send("/queue/client.transaction", b"undone")
        await undone.abort()
        async with await client.begin() as done:
            await done.send("/queue/client.transaction", b"1")
            await done.send("/queue/client.transaction", b"2")
        assert await drain(client, await client.subscribe("/queue/client.transaction")) == [b"1", b"2"]


async def test_a_durable_subscription_is_kept_and_forgotten(activemq: Server) -> None:
    async with client_of(activemq, "reader") as client:
        await client.subscribe("/topic/client.news", durable_name="news")
    async with client_of(activemq) as client:
        await client.send("/topic/client.news", b"while you were away")
    async with client_of(activemq, "reader") as client:
        subscription = await client.subscribe("/topic/client.news", durable_name="news")
        assert await drain(client, subscription) == [b"while you were away"]
        await subscription.unsubscribe(is_forgotten=True)
    async with client_of(activemq) as client:
        await client.send("/topic/client.news", b"nobody asked for this")
    async with client_of(activemq, "reader") as client:
        assert await drain(client, await client.subscribe("/topic/client.news", durable_name="news")) == []


async def test_what_had_no_receipt_is_sent_again_after_a_restart(activemq: Server) -> None:
    async with client_of(activemq) as client:
        await client.send_confirmed("/queue/client.restart", b"before")
        activemq.kill()
        activemq.start()
        for number in range(20):
            await client.send("/queue/client.restart", str(number))
        await client.flush()
        found = await drain(client, await client.subscribe("/queue/client.restart"))
    assert list(dict.fromkeys(found)) == [b"before", *(b"%d" % number for number in range(20))]
