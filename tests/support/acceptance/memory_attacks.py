"""Attacks of one client on the memory of a broker that others use. Run as a program, like attacks.py."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import socket
import sys
from collections.abc import Awaitable, Callable

from tests.support.acceptance import mqtt_attacks
from tests.support.acceptance.attacks import CONNECT, SECONDS_MAX, Target, connected

# Time that an attack waits for an answer that may never come.
ENOUGH_SECONDS = 6.0
LARGE = b"x" * 200_000


def message(destination: bytes, body: bytes, headers: bytes = b"") -> bytes:
    return b"SEND\ndestination:%b\ncontent-length:%d\n%b\n%b\0" % (destination, len(body), headers, body)


async def sends(target: Target, frame: bytes, count: int) -> None:
    """Send until the broker stops reading."""
    _, writer = await connected(target)
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(ENOUGH_SECONDS):
            for _ in range(count):
                writer.write(frame)
                await writer.drain()
    writer.transport.abort()


async def subscribed(target: Target, destination: bytes, headers: bytes = b"") -> None:
    """Read messages without acknowledging them."""
    reader, writer = await connected(target)
    writer.write(b"SUBSCRIBE\nid:0\nack:client\ndestination:%b\n%breceipt:s\n\n\0" % (destination, headers))
    await reader.readuntil(b"\0")
    _OPEN.append((writer, asyncio.create_task(_read(reader))))


_OPEN: list[tuple[asyncio.StreamWriter, asyncio.Task[None]]] = []


async def _read(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 20):
            pass


async def many_unacknowledged(target: Target) -> None:
    await subscribed(target, b"/queue/large", b"activemq.prefetchSize:32000\n")
    await sends(target, message(b"/queue/large", LARGE, b"persistent:true\n"), 1_500)


async def unfinished_frames(target: Target) -> None:
    clients = [await connected(target) for _ in range(20)]
    for _, writer in clients:
        writer.write(b"SEND\ndestination:/topic/none\ncontent-length:%d\n\n" % (50 << 20) + bytes(49 << 20))
    await asyncio.sleep(ENOUGH_SECONDS)
    for _, writer in clients:
        writer.transport.abort()


async def copies_for_offline_durables(target: Target) -> None:
    for number in range(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", target.stomp)
        writer.write(CONNECT.replace(b"host:x", b"host:x\nclient-id:c%d" % number))
        await reader.readuntil(b"\0")
        writer.write(b"SUBSCRIBE\nid:0\ndestination:/topic/kept\nactivemq.subscriptionName:d\nreceipt:r\n\n\0")
        await reader.readuntil(b"\0")
        writer.close()
    await sends(target, message(b"/topic/kept", LARGE), 1_500)


async def unread_messages(target: Target) -> None:
    """Subscribers with small TCP windows that read nothing."""
    loop = asyncio.get_running_loop()
    sockets = []
    for _ in range(100):
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        await loop.sock_connect(made, ("127.0.0.1", target.stomp))
        await loop.sock_sendall(made, CONNECT + b"SUBSCRIBE\nid:0\ndestination:/topic/unread.>\n\n\0")
        sockets.append(made)
    for number in range(40):
        await sends(target, message(b"/topic/unread.%d" % number, LARGE * 5), 1)
    await asyncio.sleep(1)
    for made in sockets:
        made.close()


async def unread_receipts(target: Target) -> None:
    receipt = b"SEND\ndestination:/topic/none\nreceipt:%b\n\n\0" % (b"r" * 9_000)
    await asyncio.gather(*(sends(target, receipt * 100, 40) for _ in range(20)))


async def transactions(target: Target) -> None:
    begin = b"".join(b"BEGIN\ntransaction:%d\n\n\0" % number for number in range(60))
    inside = b"".join(message(b"/queue/t", LARGE, b"transaction:%d\n" % number) for number in range(60))

    async def one() -> None:
        reader, writer = await connected(target)
        reading = asyncio.create_task(_read(reader))
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(ENOUGH_SECONDS):
                writer.write(begin)
                for _ in range(10):
                    writer.write(inside)
                    await writer.drain()
        writer.transport.abort()
        reading.cancel()

    await asyncio.gather(*(one() for _ in range(4)))


ATTACKS: dict[str, Callable[[Target], Awaitable[None]]] = {
    "1,500 messages of 200 kB, not acknowledged": many_unacknowledged,
    "20 unfinished frames of 50 MB": unfinished_frames,
    "1,500 messages of 200 kB for 10 durable subscriptions": copies_for_offline_durables,
    "40 MB for each of 100 subscribers that do not read": unread_messages,
    "receipts that are not read": unread_receipts,
    "240 transactions of 2 MB": transactions,
    "MQTT: nothing is acknowledged": lambda target: mqtt_attacks.nothing_is_acknowledged(target.mqtt),
    "MQTT: packets that are not whole": lambda target: mqtt_attacks.packets_that_are_not_whole(target.mqtt),
    "MQTT: 2,000 wills of 60 kB": lambda target: mqtt_attacks.wills_that_wait(target.mqtt),
    "MQTT: 390,000 packet ids that are not released": lambda target: mqtt_attacks.unreleased_of_many(target.mqtt),
    "MQTT: aliases and topics of 500 bytes": lambda target: mqtt_attacks.aliases_of_long_topics(target.mqtt),
}


if __name__ == "__main__":
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
    asyncio.run(ATTACKS[sys.argv[1]](Target(int(sys.argv[2]), int(sys.argv[3]), 0, int(sys.argv[4]))))
