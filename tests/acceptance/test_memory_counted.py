"""What is counted is what is held: the figures of ``status`` beside the growth of the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.mqtt.packets import Will
from tandemmq.broker.protocols.mqtt.properties import Properties
from tandemmq.broker.protocols.openwire import schema
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.acceptance import mqtt_attacks
from tests.support.acceptance.attacks import CONNECT
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.acceptance.openwire_wire import OpenWire

MIB = 1 << 20
PAGE_BYTES = 4096

KINDS = {
    "small": (60_000, b"\nhello {number}"),
    "bodies": (8_000, b"content-length:10000\n\n{number}" + b"x" * 9_992),
    "headers": (15_000, b"".join(b"h%d:v{number}-%d\n" % (n, n) for n in range(20)) + b"\nhello"),
    "long headers": (25, b"".join(b"h%d:{number}%b\n" % (n, b"y" * 9_000) for n in range(900)) + b"\nhello"),
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data", "a", "--set", "broker.memory_limit=1gb")
    broker.mqtt = free_port()
    broker.start()
    await asyncio.to_thread(broker.wait_role, "master")
    yield broker
    broker.stop()


def resident(broker: BrokerProcess) -> int:
    return int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def counted(broker: BrokerProcess, kind: str = "non_persistent") -> int:
    status = broker.status()
    assert status is not None
    return int(status["counts"][f"memory_{kind}_bytes"])


@pytest.mark.parametrize(
    "kind", [pytest.param("small", marks=pytest.mark.promise("memory-is-counted")), *sorted({*KINDS} - {"small"})]
)
async def test_memory_is_counted_within_a_quarter_of_what_is_held(broker: BrokerProcess, kind: str) -> None:
    count, rest = KINDS[kind]
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.stomp)
    writer.write(CONNECT)
    await reader.readuntil(b"\0")

    async def receipt() -> None:
        writer.write(b"SEND\ndestination:/topic/none\nreceipt:r\n\n\0")
        await reader.readuntil(b"\0")

    await receipt()
    before = resident(broker), counted(broker)
    for number in range(count):
        writer.write(b"SEND\ndestination:/queue/q\n%b\0" % rest.replace(b"{number}", b"%08d" % number))
        await writer.drain()
    await receipt()
    held, lines = resident(broker) - before[0], counted(broker) - before[1]
    print(f"{kind}: {lines / MIB:.0f} MiB counted, {held / MIB:.0f} MiB held")
    assert 0.75 < lines / held < 1.34
    writer.close()


async def retained(port: int) -> None:
    pieces = [mqtt_attacks.publish(f"r/{number}", b"r" * 10_000, retain=True) for number in range(3_000)]
    await mqtt_attacks.says(port, "retains", *pieces)


async def packet_ids(port: int) -> None:
    for number in range(3):
        await mqtt_attacks.unreleased(port, 40_000, f"unreleased-{number}")


async def wills(port: int) -> None:
    later = Properties(will_delay=mqtt_attacks.HOUR, user=(("a", "b"),) * 10)
    for number in range(2_000):
        will = Will("w", b"w" * 20_000, 1, False, later)
        _, writer = await mqtt_attacks.connected(port, f"w-{number}", lasts=True, will=will)
        writer.transport.abort()


async def sessions(port: int) -> list[asyncio.StreamWriter]:
    writers = []
    for number in range(1_000):
        reader, writer = await mqtt_attacks.connected(port, f"s-{number}", lasts=True)
        writer.write(mqtt_attacks.subscribe(f"news/{number % 10}", 1))
        await mqtt_attacks.packet(reader)
        writers.append(writer)
    return writers


@pytest.mark.parametrize("kind", [retained, packet_ids, wills, sessions])
async def test_memory_of_mqtt_is_counted_within_a_quarter_of_what_is_held(
    broker: BrokerProcess, kind: Callable[[int], Awaitable[list[asyncio.StreamWriter] | None]]
) -> None:
    assert broker.mqtt is not None
    for number in range(20):
        await mqtt_attacks.says(
            broker.mqtt, f"first-{number}", mqtt_attacks.publish("t", b"x", retain=True), lasts=True
        )
    before = resident(broker), counted(broker, "used")
    connected = await kind(broker.mqtt) or []
    held, lines = resident(broker) - before[0], counted(broker, "used") - before[1]
    for writer in connected:
        writer.transport.abort()
    print(f"{kind.__name__}: {lines / MIB:.0f} MiB counted, {held / MIB:.0f} MiB held")
    assert 0.75 < lines / held < 1.34


async def test_the_parts_of_a_composite_of_a_jms_client_share_their_body(broker: BrokerProcess) -> None:
    broker.leaves_stomp_to_settings = True
    openwire = free_port()
    broker.terminate()
    broker.options += ("--stomp", f"127.0.0.1:{broker.stomp}", "--openwire", f"127.0.0.1:{openwire}")
    broker.start()
    await asyncio.to_thread(broker.wait_role, "master")

    def send(body: bytes, count: int) -> None:
        client = OpenWire(openwire).connect()
        parts = Destination(DestinationKind.QUEUE, ",".join(f"part.{number}" for number in range(25)))
        for _ in range(count):
            client.send(parts, body, make=schema.ActiveMQBytesMessage, content=body, is_persistent=False)
        client.close()

    await asyncio.to_thread(send, b"x", 1)
    before = resident(broker), counted(broker)
    await asyncio.to_thread(send, b"x" * MIB, 60)
    held, lines = resident(broker) - before[0], counted(broker) - before[1]
    print(f"parts: {lines / MIB:.0f} MiB counted, {held / MIB:.0f} MiB held")
    assert 60 * MIB < lines < 70 * MIB
    assert 0.75 < lines / held < 1.34


async def test_what_many_do_not_read_is_counted_once(broker: BrokerProcess) -> None:
    size = 40 * MIB
    clients = []
    for _ in range(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.stomp)
        writer.write(CONNECT + b"SUBSCRIBE\nid:0\ndestination:/topic/t\nreceipt:s\n\n\0")
        await reader.readuntil(b"\0")
        await reader.readuntil(b"\0")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        clients.append(writer)
    before = resident(broker), counted(broker, "output")
    _, sender = await asyncio.open_connection("127.0.0.1", broker.stomp)
    sender.write(CONNECT + b"SEND\ndestination:/topic/t\ncontent-length:%d\n\n%b\0" % (size, bytes(size)))
    async with asyncio.timeout(20):
        while counted(broker, "output") - before[1] < size * 3 // 4:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.1)
    await asyncio.sleep(1)  # until all were told
    held, lines = resident(broker) - before[0], counted(broker, "output") - before[1]
    print(f"output of {len(clients)}: {lines / MIB:.0f} MiB counted, {held / MIB:.0f} MiB held")
    assert 0.75 < lines / held < 1.34
    for writer in [*clients, sender]:
        writer.close()
