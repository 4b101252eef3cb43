"""The client against real brokers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tandemmq.bench.peers.brokers import HOME, JAVA, ActiveMQ
from tandemmq.bench.peers.server import HOST, Server
from tandemmq.client import BrokerError, Client, Subscription

JAR = HOME / "bin" / "activemq.jar"


@pytest.fixture(scope="module")
def activemq(
    tmp_path_factory: pytest.TempPathFactory, require_service: Callable[[object, str], None]
) -> Iterator[Server]:
    require_service(JAR.exists() and JAVA.exists(), f"ActiveMQ is not installed ({JAR}, {JAVA})")
    with ActiveMQ(tmp_path_factory.mktemp("activemq")) as server:
        yield server


@pytest.fixture(params=["broker", pytest.param("activemq", marks=pytest.mark.service)])
def either(request: pytest.FixtureRequest) -> Server:
    """TandemMQ, or ActiveMQ: people who change brokers change one at a time."""
    server = request.getfixturevalue(request.param)
    assert isinstance(server, Server)
    return server


def url_of(*servers: Server, options: str = "maxReconnectAttempts=1000&maxReconnectDelay=20") -> str:
    return f"failover:({','.join(f'stomp://{HOST}:{server.port}' for server in servers)})?{options}"


async def drain(client: Client, subscription: Subscription, seconds: float = 1.0) -> list[bytes]:
    bodies = []
    while (message := await subscription.receive(seconds)) is not None:
        bodies.append(message.body)
        assert await client.acknowledge(message, is_confirmed=True)
    return bodies


async def test_sent_messages_are_received_with_their_headers_in_order(either: Server) -> None:
    bodies = [b"one", "zwölf".encode(), b"with\0nul", b"", b"\xff\xfe"]
    async with Client(url_of(either)) as client:
        for body in bodies:
            await client.send("/queue/client.order", body, {"colour": "a:b\\c\nd"})
        await client.flush()
        assert client.unconfirmed == 0

        subscription = await client.subscribe("/queue/client.order")
        received = []
        async for message in subscription:
            assert message.headers["colour"] == "a:b\\c\nd"
            assert "tandemmq-send-id" not in message.headers
            assert await client.acknowledge(message)
            received.append(message.body)
            if len(received) == len(bodies):
                break

    assert received == bodies


async def test_a_refused_message_is_a_dead_letter(broker: Server) -> None:
    async with Client(url_of(broker)) as client:
        await client.send("/queue/client.nack", b"bad")
        message = await (await client.subscribe("/queue/client.nack")).receive(5)
        assert message is not None
        assert await client.refuse(message, is_confirmed=True)
        letters = await client.subscribe("/queue/ActiveMQ.DLQ.Queue.client.nack")
        assert await drain(client, letters, 0.5) == [b"bad"]


async def test_a_refused_subscription_is_told_to_who_subscribes(broker: Server) -> None:
    async with Client(url_of(broker)) as client:
        with pytest.raises(BrokerError, match="Invalid selector"):
            await client.subscribe("/queue/client.refused", headers={"selector": "colour ="})
        await client.send_confirmed("/queue/client.refused", b"the connection is as good as before")


async def test_auto_acknowledgement_is_not_offered(broker: Server) -> None:
    async with Client(url_of(broker)) as client:
        with pytest.raises(ValueError, match="client-individual"):
            await client.subscribe("/queue/a", "auto")


async def test_a_durable_subscription_keeps_what_comes_meanwhile_until_it_is_forgotten(either: Server) -> None:
    url = url_of(either)

    async def subscribed(client: Client) -> Subscription:
        return await client.subscribe("/topic/client.news", durable_name="reader")

    async with Client(url, client_id="client-test") as client:
        await subscribed(client)
    async with Client(url) as other:
        await other.send("/topic/client.news", b"while you were away")
    async with Client(url, client_id="client-test") as client:
        subscription = await subscribed(client)
        assert await drain(client, subscription, 0.3) == [b"while you were away"]
        await subscription.unsubscribe(is_forgotten=True)
    async with Client(url) as other:
        await other.send("/topic/client.news", b"nobody asked for this")
    async with Client(url, client_id="client-test") as client:
        assert await drain(client, await subscribed(client), 0.3) == []


async def test_a_transaction_moves_messages_whole_or_not_at_all(either: Server) -> None:
    async with Client(url_of(either)) as client:
        for number in range(3):
            await client.send("/queue/client.from", str(number))
        source = await client.subscribe("/queue/client.from", prefetch=1)

        async def move(*, fails: bool) -> None:
            async with await client.begin() as transaction:
                for _ in range(3):
                    message = await source.receive(5)
                    assert message is not None
                    await transaction.send("/queue/client.to", message.body)
                    await transaction.acknowledge(message)
                if fails:
                    raise RuntimeError("no")

        with pytest.raises(RuntimeError):
            await move(fails=True)
        await source.unsubscribe()
        source = await client.subscribe("/queue/client.from", prefetch=10)
        await move(fails=False)
        target = await client.subscribe("/queue/client.to")
        assert await drain(client, target, 0.3) == [b"0", b"1", b"2"]
        assert await source.receive(0.1) is None


async def test_killing_the_master_loses_nothing_that_was_sent(pair: tuple[Server, Server]) -> None:
    master, standby = pair
    lines: list[str] = []
    bodies = [b"%d" % number for number in range(600)]
    async with Client(url_of(master, standby), window=50, notice=lines.append) as client:
        for number, body in enumerate(bodies):
            if number == 300:
                os.kill(master.pid, signal.SIGKILL)
            await client.send("/queue/client.failover", body)
        await client.flush()
        received = await drain(client, await client.subscribe("/queue/client.failover"))

    assert received == bodies, "none is missing, and what was stored before its receipt was lost is not there twice"
    assert any(text.startswith("connection to") for text in lines)
    assert any(f"reconnected to stomp://{HOST}:{standby.port}" in text for text in lines)


@pytest.mark.service
async def test_messages_without_a_receipt_are_sent_again_after_a_restart_of_activemq(activemq: Server) -> None:
    async with Client(url_of(activemq)) as client:
        await client.send_confirmed("/queue/client.restart", b"before")
        activemq.kill()
        activemq.start()
        for number in range(20):
            await client.send("/queue/client.restart", str(number))
        await client.flush()
        found = await drain(client, await client.subscribe("/queue/client.restart"))
    assert list(dict.fromkeys(found)) == [b"before", *(b"%d" % number for number in range(20))]
