"""Subscriptions, transactions and dead letters of real clients, across kill -9 of the master."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.acceptance.stomp_wire import Frame, Wire


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    brokers = BrokerProcess(tmp_path / "data", "a"), BrokerProcess(tmp_path / "data", "b")
    brokers[0].start().wait_role("master")
    brokers[1].start().wait_role("standby")
    yield brokers
    for broker in brokers:
        broker.stop()
    report = check(str(tmp_path / "data"))
    assert report.is_clean, report.problems


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


@pytest.mark.promise("redelivery-is-bounded")
@pytest.mark.parametrize(
    ("victim", "expected"), [("consumer", [False, True, True]), ("master", [False] * 2 + [True] * 2)]
)
async def test_a_message_that_kills_is_a_dead_letter(tmp_path: Path, victim: str, expected: list[bool]) -> None:
    """It kills each consumer, or each master: one that died of its first delivery left no sign of that."""
    broker = BrokerProcess(tmp_path / "data", "a", "--set", "broker.maximum_redeliveries=2")
    broker.start().wait_role("master")
    await store(await Wire.open(broker.stomp), "/queue/Q", "poison")
    seen = []
    while True:
        consumer, sexton = await Wire.open(broker.stomp), await Wire.open(broker.stomp)
        reading = {
            asyncio.create_task(take(consumer, "/queue/Q", 1)),
            dead := asyncio.create_task(take(sexton, "/queue/ActiveMQ.DLQ.Queue.Q", 1)),
        }
        done, rest = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        for each in rest:
            each.cancel()
        (frame,) = done.pop().result()
        if dead.done() and not dead.cancelled():
            break
        seen.append(frame.headers.get("redelivered") == "true")
        if victim == "master":
            broker.kill()
            broker.start().wait_role("master")
        consumer.close()  # as the end of a process: no DISCONNECT
        sexton.close()
    assert (frame.body, seen) == (b"poison", expected)
    assert "consumers that were lost" in frame.headers["dlqDeliveryFailureCause"]
    broker.stop()
    assert check(str(tmp_path / "data")).is_clean
