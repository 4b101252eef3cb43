"""Subscriptions, transactions, dead letters and resent messages, across kill -9 of the master of real pairs."""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.client import Client
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.stomp_wire import Frame, Wire
from tests.support.client.lossy_way import LossyWay


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


def journal(data: str) -> bytes:
    return b"".join(Path(name).read_bytes() for name in sorted(glob.glob(f"{data}/db-*.log")))


async def until_stored(broker: BrokerProcess, body: bytes) -> None:
    await asyncio.to_thread(wait_until, lambda: body in journal(broker.data), f"{body!r} is stored")


def duplicates(broker: BrokerProcess) -> int:
    status = broker.status()
    assert status is not None
    return int(status["counts"]["duplicates_total"])


async def all_bodies(broker: BrokerProcess, destination: str, count: int) -> list[bytes]:
    """The messages of a queue, and none beyond ``count``."""
    wire = await Wire.open(broker.stomp)
    wire.send("SUBSCRIBE", {"id": "0", "destination": destination, "ack": "client-individual"})
    frames = [await asyncio.wait_for(wire.read(), 10) for _ in range(count)]
    wire.send("SEND", {"destination": destination, "persistent": "true"}, b"the last one")
    last = await asyncio.wait_for(wire.read(), 10)
    assert last.body == b"the last one", "nothing occurs twice"
    wire.close()
    return [frame.body for frame in frames]


@pytest.mark.promise("sent-again-stored-once")
async def test_the_master_dies_between_store_and_receipt(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    master, standby = pair
    sent = [f"order {number} of twenty".encode() for number in range(20)]
    async with LossyWay(master.stomp) as proxy:
        url = f"failover:(stomp://127.0.0.1:{proxy.port},{standby.url})?randomize=false&maxReconnectDelay=50"
        client = Client(url)
        await client.connect()
        proxy.is_withholding = True

        async def send_all() -> None:
            for body in sent:
                await client.send("/queue/orders", body)
            await client.flush()

        sending = asyncio.create_task(send_all())
        await until_stored(master, sent[-1])
        async with asyncio.timeout(30):
            await proxy.receipt_lost.wait()  # the broker has sent the receipts
        assert client.unconfirmed == 20
        master.kill()
        await asyncio.wait_for(sending, 30)
        assert (client.resent, client.unconfirmed) == (20, 0)
        await client.close()
    assert duplicates(standby) == 20
    assert await all_bodies(standby, "/queue/orders", 20) == sent


async def test_what_is_copied_by_a_bridge_is_no_duplicate(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    """The bridge forwards each message with all its headers."""
    master, _ = pair
    client = await Wire.open(master.stomp)
    numbered = {"destination": "/queue/in", "persistent": "true", "tandemmq-send-id": "shop-1\\c1", "colour": "red"}
    client.send("SEND", numbered, b"to copy")
    client.send("SUBSCRIBE", {"id": "0", "destination": "/queue/in", "ack": "client-individual"})
    frame = await asyncio.wait_for(client.read(), 10)
    headers = {name: value.replace(":", "\\c") for name, value in frame.headers.items()}
    client.send("SEND", {**headers, "destination": "/queue/out"}, frame.body)
    assert await all_bodies(master, "/queue/out", 1) == [b"to copy"]
    assert duplicates(master) == 0
    client.close()


@pytest.mark.promise("idle-writes-nothing")
async def test_an_idle_broker_writes_nothing(tmp_path: Path) -> None:
    """AMQ-3833: one stored message, twenty checkpoints, not a byte more."""
    with serving(BrokerProcess(tmp_path / "data", "a", "--set", "store.checkpoint_interval=50ms")) as (broker,):
        async with Client(broker.url) as client:
            await client.send("/queue/orders", b"one small message")
        await asyncio.sleep(0.2)  # its checkpoint
        before = journal(broker.data)
        await asyncio.sleep(20 * 0.05)
        assert journal(broker.data) == before
        assert broker.terminate() == 0
        assert journal(broker.data) == before


@pytest.mark.promise("redelivery-is-bounded")
@pytest.mark.parametrize(
    ("victim", "expected"), [("consumer", [False, True, True]), ("master", [False] * 2 + [True] * 2)]
)
async def test_a_message_that_kills_is_a_dead_letter(tmp_path: Path, victim: str, expected: list[bool]) -> None:
    """The message kills each consumer, or each master: a master that ended at its first delivery left no sign of
    that."""
    broker = BrokerProcess(tmp_path / "data", "a", "--set", "broker.maximum_redeliveries=2")
    broker.start().wait_role("master")
    await store(await Wire.open(broker.stomp), "/queue/Q", "poison")
    seen = []
    while True:
        consumer, dlq_client = await Wire.open(broker.stomp), await Wire.open(broker.stomp)
        reading = {
            asyncio.create_task(take(consumer, "/queue/Q", 1)),
            dead := asyncio.create_task(take(dlq_client, "/queue/ActiveMQ.DLQ.Queue.Q", 1)),
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
        dlq_client.close()
    assert (frame.body, seen) == (b"poison", expected)
    assert "consumers that were lost" in frame.headers["dlqDeliveryFailureCause"]
    broker.stop()
    assert check(str(tmp_path / "data")).is_clean
