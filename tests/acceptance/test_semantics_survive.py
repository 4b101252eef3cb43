"""Subscriptions, transactions and dead letters of real clients, across kill -9 of the master."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.stomp_wire import Frame, Wire


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerProcess, ...]]:
    with serving(*(BrokerProcess(tmp_path / "data", name) for name in "ab")) as pair:
        yield pair


async def told(wire: Wire, command: str, headers: dict[str, str], body: bytes = b"") -> None:
    """Send a frame and wait for its receipt."""
    wire.send(command, {**headers, "receipt": "told"}, body)
    while True:
        frame = await wire.read()
        if frame.command == "RECEIPT":
            assert frame.headers["receipt-id"] == "told"
            return
        assert frame.command == "MESSAGE", frame


async def store(wire: Wire, destination: str, *bodies: str, **headers: str) -> None:
    for body in bodies:
        await told(wire, "SEND", {"destination": destination, "persistent": "true", **headers}, body.encode())


async def take(wire: Wire, destination: str, count: int, **headers: str) -> list[Frame]:
    wire.send("SUBSCRIBE", {"id": "0", "destination": destination, "ack": "client-individual", **headers})
    return [await wire.read() for _ in range(count)]


@pytest.mark.promise("durable-subscription-kept")
async def test_a_durable_subscription_has_what_came_while_it_was_away(
    pair: tuple[BrokerProcess, BrokerProcess],
) -> None:
    master, standby = pair
    subscriber = await Wire.open(master.stomp, **{"client-id": "c"})
    durable = {"destination": "/topic/news", "id": "0", "activemq.subscriptionName": "s", "ack": "client-individual"}
    await told(subscriber, "SUBSCRIBE", durable)
    await told(subscriber, "DISCONNECT", {})
    publisher = await Wire.open(master.stomp)
    await store(publisher, "/topic/news", "one", "two", "three")
    master.kill()
    standby.wait_role("master")
    again = await Wire.open(standby.stomp, **{"client-id": "c"})
    frames = await take(again, "/topic/news", 3, **{"activemq.subscriptionName": "s"})
    assert [frame.body for frame in frames] == [b"one", b"two", b"three"]
    await told(again, "ACK", {"id": frames[0].headers["ack"]})
    standby.kill()
    master.start().wait_role("master")
    third = await Wire.open(master.stomp, **{"client-id": "c"})
    frames = await take(third, "/topic/news", 2, **{"activemq.subscriptionName": "s"})
    assert [frame.body for frame in frames] == [b"two", b"three"]
    third.close()


@pytest.mark.promise("transaction-is-whole")
async def test_a_transaction_is_there_whole_or_not_at_all(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    master, standby = pair
    client = await Wire.open(master.stomp)
    await store(client, "/queue/in", "first", "second")
    frames = await take(client, "/queue/in", 2)
    client.send("BEGIN", {"transaction": "committed"})
    await told(client, "ACK", {"id": frames[0].headers["ack"], "transaction": "committed"})
    await store(client, "/queue/out", "a", "b", transaction="committed")
    await told(client, "COMMIT", {"transaction": "committed"})
    client.send("BEGIN", {"transaction": "open"})
    await told(client, "ACK", {"id": frames[1].headers["ack"], "transaction": "open"})
    await store(client, "/queue/out", "never", transaction="open")
    master.kill()
    standby.wait_role("master")
    again = await Wire.open(standby.stomp)
    assert [frame.body for frame in await take(again, "/queue/out", 2)] == [b"a", b"b"]
    other = await Wire.open(standby.stomp)
    assert [frame.body for frame in await take(other, "/queue/in", 1)] == [b"second"]
    status = standby.status()
    assert status is not None
    assert status["counts"]["messages"] == 3
    again.close()
    other.close()


@pytest.mark.promise("dead-letter-with-cause")
async def test_what_was_refused_is_a_dead_letter_with_its_cause(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    master, standby = pair
    client = await Wire.open(master.stomp)
    await store(client, "/queue/work", "poison", "fine")
    frames = await take(client, "/queue/work", 2)
    await told(client, "NACK", {"id": frames[0].headers["ack"]})
    await told(client, "ACK", {"id": frames[1].headers["ack"]})
    master.kill()
    standby.wait_role("master")
    again = await Wire.open(standby.stomp)
    (letter,) = await take(again, "/queue/ActiveMQ.DLQ.Queue.work", 1)
    assert letter.body == b"poison"
    assert "NACK" in letter.headers["dlqDeliveryFailureCause"]
    assert letter.headers["original-destination"] == "/queue/work"
    status = standby.status()
    assert status is not None
    assert status["counts"]["messages"] == 1
    again.close()


@pytest.mark.promise("order-is-kept")
async def test_a_queue_longer_than_memory_comes_out_in_order_after_a_failover(
    pair: tuple[BrokerProcess, BrokerProcess],
) -> None:
    master, standby = pair
    client = await Wire.open(master.stomp)
    count = 6_000  # the window of a queue holds 2,000
    for number in range(count):
        headers = {"destination": "/queue/long", "persistent": "true", "receipt": str(number)}
        client.send("SEND", headers, str(number).encode())
        if number % 500 == 499:
            await client.flush()
    for _ in range(count):
        assert (await client.read()).command == "RECEIPT"
    master.kill()
    standby.wait_role("master")
    again = await Wire.open(standby.stomp)
    again.send("SUBSCRIBE", {"id": "0", "destination": "/queue/long", "ack": "client"})
    for number in range(count):
        frame = await again.read()
        assert frame.body == str(number).encode()
        if number % 100 == 99:
            again.send("ACK", {"id": frame.headers["ack"]})
    await told(again, "DISCONNECT", {})
    status = standby.status()
    assert status is not None
    assert status["counts"]["messages"] == 0
