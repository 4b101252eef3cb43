"""Attacks of one MQTT client on a broker that others use; for attacks.py and memory_attacks.py."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tandemmq.broker.protocols.mqtt.packets import (
    Connect,
    Disconnect,
    Filter,
    PacketType,
    PingRequest,
    Publish,
    Subscribe,
    Unsubscribe,
    Version,
    Will,
)
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tests.support.protocols.mqtt.client_packets import ServerPacket, decode, encode, framed

# Time that an attack waits until the broker reads its data, which may never happen.
ENOUGH_SECONDS = 6.0
HOUR = 3600
LARGE = b"x" * 200_000
WILL = b"w" * 60_000
PING = encode(PingRequest())
CONNECT_BYTES = 200_000

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_OPEN: list[tuple[asyncio.StreamWriter, asyncio.Task[None]]] = []  # until the end of the program


def connect(client_id: str, *, version: Version = Version.V5, lasts: bool = False, will: Will | None = None) -> bytes:
    carried = Properties(session_expiry=HOUR) if lasts and version is Version.V5 else NONE
    return encode(Connect(version, client_id, not lasts, 0, will, None, None, carried))


def publish(
    topic: str, payload: bytes = b"x", qos: int = 0, id: int = 0, *, retain: bool = False, **more: Any
) -> bytes:
    return encode(Publish(topic, payload, qos, retain, False, id, Properties(**more) if more else NONE))


def subscribe(topic_filter: str, qos: int = 0, id: int = 1) -> bytes:
    return encode(Subscribe(id, (Filter(topic_filter, qos, False, False, 0),), NONE))


async def packet(reader: asyncio.StreamReader, version: Version = Version.V5) -> ServerPacket:
    """Return the next packet. ConnectionError: there is none."""
    data = await reader.readexactly(2)
    while data[-1] & 0x80:
        data += await reader.readexactly(1)
    length = sum((each & 0x7F) << 7 * at for at, each in enumerate(data[1:]))
    found = decode(data + await reader.readexactly(length), version)
    assert found is not None
    return found[0]


async def connected(port: int, client_id: str, **options: Any) -> Streams:
    """Connect. ConnectionError: the broker refuses it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(connect(client_id, **options))
    answer = await packet(reader, options.get("version", Version.V5))
    if answer.codes != [0]:
        writer.close()
        raise ConnectionError(f"refused: {answer.codes}")
    return reader, writer


async def send_all(port: int, client_id: str, *pieces: bytes, **options: Any) -> None:
    """Send all pieces, read the answers, and wait until the broker has processed or refused the pieces."""
    reader, writer = await connected(port, client_id, **options)
    reading = asyncio.create_task(_until_ping(reader, options.get("version", Version.V5)))
    with contextlib.suppress(ConnectionError, EOFError):
        for piece in (*pieces, PING):
            writer.write(piece)
            await writer.drain()
        await reading
    reading.cancel()
    writer.close()


async def _until_ping(reader: asyncio.StreamReader, version: Version) -> None:
    while (await packet(reader, version)).type is not PacketType.PINGRESP:
        pass


def keep(streams: list[Streams]) -> None:
    """Keep the connections open until the end of the program."""
    for reader, writer in streams:
        _OPEN.append((writer, asyncio.create_task(_read(reader))))


async def _read(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 20):
            pass


async def sends(port: int, client_id: str, piece: bytes, count: int, **options: Any) -> None:
    """Send until the broker stops reading; read its answers."""
    with contextlib.suppress(TimeoutError, ConnectionError, EOFError):
        async with asyncio.timeout(ENOUGH_SECONDS):
            reader, writer = await connected(port, client_id, **options)
            _OPEN.append((writer, asyncio.create_task(_read(reader))))
            for _ in range(count):
                writer.write(piece)
                await writer.drain()


# ---- attacks on the broker's CPU time


async def pings(port: int, count: int) -> None:
    reader, writer = await connected(port, "pings")
    reading = asyncio.create_task(_read(reader))
    for _ in range(count // 1_000):
        writer.write(PING * 1_000)
        await writer.drain()
    writer.write(encode(Disconnect(0, NONE)))
    await reading
    writer.close()


async def subscribes_and_unsubscribes(port: int, count: int) -> None:
    """In a persistent session, so that each change is stored."""
    both = subscribe("s/+/t", 1) + encode(Unsubscribe(2, ("s/+/t",), NONE))
    await send_all(port, "subscribes", *[both * 100] * (count // 100), lasts=True)


async def take_overs(port: int, count: int) -> None:
    """Take over the client's own session repeatedly; each connection is closed by the next one."""
    former: asyncio.StreamWriter | None = None
    for _ in range(count):
        _, writer = await connected(port, "again", lasts=True, will=Will("wills/again", b"", 0, False, NONE))
        if former is not None:
            former.close()
        former = writer


async def wills(port: int, count: int) -> None:
    """All wills are published at the same time, when their connections are cut."""
    writers = []
    for number in range(count):
        _, writer = await connected(
            port, f"will-{number}", will=Will(f"wills/{number % 10}", LARGE[:1000], 1, True, NONE)
        )
        writers.append(writer)
    for writer in writers:
        writer.transport.abort()


async def many_filters_at_once(port: int, count: int) -> None:
    """Filters that match no retained message although many exist, and UNSUBSCRIBE from filters without a
    subscription."""
    pieces = [publish(f"m/{number}/r", b"r", retain=True) for number in range(count)]
    await send_all(port, "retains", b"".join(pieces))
    ask = encode(Subscribe(1, tuple(Filter(f"m/+/{number}", 1, False, False, 0) for number in range(100)), NONE))
    end = encode(Unsubscribe(2, tuple(f"m/+/x{number}" for number in range(1_000)), NONE))
    for lasts in (False, True):
        await send_all(port, f"filters-{lasts}", ask, *[end] * 100, lasts=lasts)


async def filters_of_many_levels(port: int, count: int) -> None:
    levels = 120
    filters = ["/".join("+" if number >> at & 1 else "a" for at in range(levels)) for number in range(1, count)]
    topic = "/".join("a" * levels)
    await send_all(port, "levels", *(subscribe(each, id=1) for each in filters), publish(topic) * 50)


async def unreleased(port: int, count: int, client: str = "unreleased") -> None:
    """Packet ids of QoS 2 for which no PUBREL comes, from a client without a Receive Maximum."""
    version = Version.V3_1_1
    reader, writer = await connected(port, client, version=version)
    received = asyncio.create_task(reader.readexactly(4 * (count - 1)))  # PUBRECs
    with contextlib.suppress(TimeoutError, ConnectionError, EOFError):
        async with asyncio.timeout(ENOUGH_SECONDS * 3):
            for first in range(1, count, 500):
                ids = range(first, min(first + 500, count))
                writer.write(b"".join(encode(Publish("u", b"", 2, False, False, id, NONE), version) for id in ids))
                await writer.drain()
            await received
    received.cancel()
    keep([(reader, writer)])


# ---- attacks on the broker's memory


async def nothing_is_acknowledged(port: int) -> None:
    for number in range(5):
        reader, writer = await connected(port, f"silent-{number}", lasts=bool(number % 2))
        writer.write(subscribe("large/#", 1))
        _OPEN.append((writer, asyncio.create_task(_read(reader))))
    await asyncio.gather(
        *(sends(port, f"sender-{number}", publish("large/x", LARGE, 1, 1), 300) for number in range(3)),
        sends(port, "sender", publish("large/y", LARGE), 600),
    )


async def packets_that_are_not_whole(port: int) -> None:
    whole = framed(0x30, bytes(50 << 20))
    clients = [await connected(port, f"half-{number}") for number in range(20)]
    for _, writer in clients:
        writer.write(whole[: 49 << 20])
    for _ in range(300):
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(0x10, connect("x")[2:] + bytes(CONNECT_BYTES))[:CONNECT_BYTES])
            clients.append((reader, writer))
    await asyncio.sleep(ENOUGH_SECONDS)
    for _, writer in clients:
        writer.transport.abort()


async def wills_that_wait(port: int) -> None:
    """Wills of connected clients, and delayed wills of clients that have left."""
    later = Properties(will_delay=HOUR)
    with contextlib.suppress(ConnectionError, EOFError):
        for number in range(1_000):
            will = Will(f"w/{number}", WILL, 1, False, later)
            _, writer = await connected(port, f"leaves-{number}", lasts=True, will=will)
            writer.transport.abort()
    with contextlib.suppress(ConnectionError, EOFError):
        for number in range(1_000):
            streams = await connected(port, f"stays-{number}", will=Will("w", WILL, 0, False, NONE))
            _OPEN.append((streams[1], asyncio.create_task(_read(streams[0]))))


async def unreleased_of_many(port: int) -> None:
    await asyncio.gather(*(unreleased(port, 0xFFFF, f"unreleased-{number}") for number in range(6)))


async def aliases_of_long_topics(port: int) -> None:
    async def one(number: int) -> None:
        pieces = [publish(f"{each}/" + "t" * 500, topic_alias=each % 16 + 1) for each in range(2_000)]
        pieces += [publish(f"$/{each}/" + "t" * 500) for each in range(2_000)]
        await sends(port, f"aliases-{number}", b"".join(pieces), 1)

    await asyncio.gather(*(one(number) for number in range(60)))
