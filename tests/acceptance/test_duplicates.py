"""Clients that send again after a failover, against real pairs: what was stored before is stored once."""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.client import Client
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.stomp_wire import Wire
from tests.support.client.lossy_way import LossyWay


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerProcess, ...]]:
    with serving(*(BrokerProcess(tmp_path / "data", name) for name in "ab")) as pair:
        yield pair


def journal(data: str) -> bytes:
    return b"".join(Path(name).read_bytes() for name in sorted(glob.glob(f"{data}/db-*.log")))


async def until_stored(broker: BrokerProcess, body: bytes) -> None:
    await asyncio.to_thread(wait_until, lambda: body in journal(broker.data), f"{body!r} is stored")


def duplicates(broker: BrokerProcess) -> int:
    status = broker.status()
    assert status is not None
    return int(status["counts"]["duplicates_total"])


async def bodies(broker: BrokerProcess, destination: str, count: int) -> list[bytes]:
    """The messages of a queue, and none beyond ``count``."""
    wire = await Wire.open(broker.stomp)
    wire.send("SUBSCRIBE", {"id": "0", "destination": destination, "ack": "client-individual"})
    frames = [await asyncio.wait_for(wire.read(), 10) for _ in range(count)]
    wire.send("SEND", {"destination": destination, "persistent": "true"}, b"the last one")
    last = await asyncio.wait_for(wire.read(), 10)
    assert last.body == b"the last one", "nothing is there twice"
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
            await proxy.receipt_lost.wait()  # the receipts are on their way
        assert client.unconfirmed == 20
        master.kill()
        await asyncio.wait_for(sending, 30)
        assert (client.resent, client.unconfirmed) == (20, 0)
        await client.close()
    assert duplicates(standby) == 20
    assert await bodies(standby, "/queue/orders", 20) == sent


async def test_what_is_copied_by_a_bridge_is_no_duplicate(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    """It sends each message on with all the headers that it came with."""
    master, _ = pair
    client = await Wire.open(master.stomp)
    numbered = {"destination": "/queue/in", "persistent": "true", "tandemmq-send-id": "shop-1\\c1", "colour": "red"}
    client.send("SEND", numbered, b"to copy")
    client.send("SUBSCRIBE", {"id": "0", "destination": "/queue/in", "ack": "client-individual"})
    frame = await asyncio.wait_for(client.read(), 10)
    headers = {name: value.replace(":", "\\c") for name, value in frame.headers.items()}
    client.send("SEND", {**headers, "destination": "/queue/out"}, frame.body)
    assert await bodies(master, "/queue/out", 1) == [b"to copy"]
    assert duplicates(master) == 0
    client.close()


@pytest.mark.promise("idle-writes-nothing")
async def test_an_idle_broker_writes_nothing(tmp_path: Path) -> None:
    """AMQ-3833: one stored message, twenty checkpoints, not a byte more."""
    broker = BrokerProcess(tmp_path / "data", "a", "--set", "store.checkpoint_interval=50ms")
    try:
        broker.start().wait_role("master")
        async with Client(broker.url) as client:
            await client.send("/queue/orders", b"one small message")
        await asyncio.sleep(0.2)  # its checkpoint
        before = journal(broker.data)
        await asyncio.sleep(20 * 0.05)
        assert journal(broker.data) == before
        assert broker.terminate() == 0
        assert journal(broker.data) == before
    finally:
        broker.stop()
    report = check(str(tmp_path / "data"))
    assert report.is_clean, report.problems
