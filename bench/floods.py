"""Floods: attacks of ``--scenario attacks`` that consist only of bytes. They need much time or memory to parse, or come
from many connections.

A flood is an entry of FLOODS: the bytes that each of its connections sends first, and the bytes that it sends
repeatedly. A connection reads and drops the answers, and is made again when the broker closes it.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tandemmq.bench.driver.stomp import command_frame
from tandemmq.bench.mqtt_load import packet, text
from tandemmq.bench.peers.server import HOST
from tandemmq.broker.net.tls_handshake import HELLO_BYTES_MAX
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.types import ConnectionId, MessageId, ProducerId, SessionId
from tandemmq.broker.protocols.openwire.wireformat import our_info
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.utf import encode_modified

UNHEARD: Final = "/topic/unheard"
CHUNK_BYTES: Final = 1 << 18

Words = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Flood:
    """A flood. ``port``: protocol of the port. ``greets``: bytes that the nth connection sends first; it then waits for
    an answer. ``says``: bytes that a connection sends in its nth turn. ``chunk``: bytes in one write. ``listens``:
    bytes that one more STOMP connection sends, which then only reads. ``is_held``: a connection has only one turn, and
    stays open."""

    port: str
    connections: int
    says: Words
    greets: Words | None = None
    chunk: int = CHUNK_BYTES
    listens: bytes = b""
    is_held: bool = False


# ---- OpenWire


def _openwire(number: int) -> bytes:
    id = f"ID:flood-{number}"
    return b"".join(
        STORED.encode(each)
        for each in (
            our_info(max_frame_size=1 << 40, provider_version="bench", inactivity_ms=0, initial_delay_ms=0),
            schema.ConnectionInfo(connection_id=ConnectionId(id), client_id=id, command_id=1, response_required=True),
            schema.SessionInfo(session_id=SessionId(id, 1)),
            schema.ProducerInfo(producer_id=ProducerId(id, 1, 1)),
        )
    )


def _message(turn: int, make: Any, **fields: Any) -> bytes:
    """Encode a non-persistent message from the producer of connection 0."""
    producer = ProducerId("ID:flood-0", 1, 1)
    id = MessageId(None, producer, turn + 1, 0)
    destination = Destination(DestinationKind.TOPIC, "flood")
    return STORED.encode(make(producer_id=producer, destination=destination, message_id=id, priority=4, **fields))


@cache
def _nulls() -> bytes:
    """Encode 10 million nulls, in arrays within an array."""
    return STORED.encode(schema.DataArrayResponse(data=(schema.DataArrayResponse(data=(None,) * 32_000),) * 312))


@cache
def _properties() -> bytes:
    """Encode 300,000 properties, each of them true."""
    names = (f"p{number}".encode() for number in range(300_000))
    return struct.pack(">i", 300_000) + b"".join([struct.pack(">H", len(each)) + each + b"\1\1" for each in names])


@cache
def _emoji() -> bytes:
    """Encode a text of emojis, with 20 MB in Java's modified UTF-8."""
    body = encode_modified("\U0001f600") * (20_000_000 // 6)
    return struct.pack(">i", len(body)) + body


# ---- STOMP and MQTT


def _connect(number: int) -> bytes:
    return command_frame("CONNECT", [("accept-version", "1.2"), ("host", "/")])


def _subscribe(**headers: str) -> bytes:
    subscribe = command_frame("SUBSCRIBE", [("id", "0"), ("destination", "/topic/flood"), *headers.items()])
    return _connect(0) + subscribe


@cache
def _map(form: str, count: int) -> bytes:
    """Encode a map of ``count`` entries. A map with 85,000 entries has 4 MB and is not parsed; one with 16,000 is."""
    if form == "xml":
        entries = "".join(f"<entry><string>k{n}</string><int>{n}</int></entry>" for n in range(count))
        body = f"<map>{entries}</map>"
    else:
        entries = ",".join(f'{{"string":"k{n}","int":{n}}}' for n in range(count))
        body = f'{{"map":{{"entry":[{entries}]}}}}'
    head = command_frame("SEND", [("destination", "/topic/flood"), ("transformation", f"jms-map-{form}")])
    return head[:-1] + body.encode() + b"\0"


@cache
def _head(destination: str) -> bytes:
    """Encode a frame with 1 MiB of escapes in header lines of maximum length."""
    lines = "".join("h{}:{}\n".format(number, "\\c" * 5_000) for number in range(104))
    return f"SEND\ndestination:{destination}\n{lines}\n\0".encode()


def _mqtt(number: int) -> bytes:
    return packet(0x10, text("MQTT") + b"\4\2\0\0" + text(f"flood-{number}"))


@cache
def _filters() -> bytes:
    deep = "/".join("+" * 100)
    return packet(0x82, b"\0\1" + b"".join(text(f"{deep}/{number}") + b"\0" for number in range(999)))


def _request(turn: int) -> bytes:
    return b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2_000 + b"\r\n\r\n"


def _partial(turn: int) -> bytes:
    return f"SEND\ndestination:{UNHEARD}\ncontent-length:100000\n\n".encode() + b"x" * 60_000


def _short(turn: int) -> bytes:
    return command_frame("SEND", [("destination", UNHEARD)]) * 20


@cache
def _hello(length: int) -> bytes:
    """Return the beginning of a record with a ClientHello of ``length`` bytes. OpenSSL reads up to 131,396."""
    record = b"\x16\3\1" + min(length + 4, 1 << 14).to_bytes(2)
    return record + b"\1" + length.to_bytes(3) + b"\3\3" + bytes(min(length, 1 << 14) - 1_000)


FLOODS: Final[Mapping[str, Flood]] = {
    "nulls": Flood("openwire", 1, lambda turn: _nulls(), _openwire),
    "properties": Flood(
        "openwire",
        1,
        lambda turn: _message(turn, schema.ActiveMQMessage, marshalled_properties=_properties()),
        _openwire,
    ),
    "properties-heard": Flood(
        "openwire",
        1,
        lambda turn: _message(turn, schema.ActiveMQMessage, marshalled_properties=_properties()),
        _openwire,
        listens=_subscribe(),
    ),
    "emoji": Flood(
        "openwire",
        1,
        lambda turn: _message(turn, schema.ActiveMQTextMessage, content=_emoji()),
        _openwire,
        listens=_subscribe(),
    ),
    "map-xml": Flood(
        "stomp", 1, lambda turn: _map("xml", 85_000), _connect, listens=_subscribe(transformation="jms-map-json")
    ),
    "map-json": Flood(
        "stomp", 1, lambda turn: _map("json", 140_000), _connect, listens=_subscribe(transformation="jms-map-xml")
    ),
    "maps": Flood(
        "stomp", 1, lambda turn: _map("xml", 16_000), _connect, listens=_subscribe(transformation="jms-map-json")
    ),
    "heads": Flood("stomp", 4, lambda turn: _head(UNHEARD), _connect),
    "heads-heard": Flood("stomp", 1, lambda turn: _head("/topic/flood"), _connect, listens=_subscribe()),
    "admin-bytes": Flood("admin", 16, _request, chunk=1),
    "filters": Flood("mqtt", 4, lambda turn: _filters(), _mqtt),
    "frames-90mb": Flood(
        "openwire", 1, lambda turn: _message(turn, schema.ActiveMQBytesMessage, content=bytes(90_000_000)), _openwire
    ),
    "partial": Flood("stomp", 1_000, _partial, _connect, is_held=True),
    "hellos": Flood("tls", 400, lambda turn: _hello(HELLO_BYTES_MAX), chunk=4_096, is_held=True),
    "hellos-long": Flood("tls", 400, lambda turn: _hello(131_396), chunk=4_096, is_held=True),
    "senders": Flood("stomp", 200, _short, _connect),
    "connects": Flood("stomp", 400, lambda turn: b"unknown\n\n\0"),
    "strangers": Flood("stomp", 1_000, lambda turn: b"\n" * CHUNK_BYTES),
}


# ---- running a flood


def flood(name: str, seconds: float, ports: Mapping[str, int]) -> None:
    """Run one of FLOODS for ``seconds``."""
    asyncio.run(_flood(FLOODS[name], time.monotonic() + seconds, ports))


async def _flood(what: Flood, until: float, ports: Mapping[str, int]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(until - time.monotonic()), asyncio.TaskGroup() as tasks:
            if what.listens:
                listener = Flood("stomp", 1, lambda turn: b"", lambda number: what.listens, is_held=True)
                tasks.create_task(_again(listener, ports["stomp"], 0))
            for number in range(what.connections):
                tasks.create_task(_again(what, ports[what.port], number))


async def _again(what: Flood, port: int, number: int) -> None:
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                if what.greets is not None:
                    writer.write(what.greets(number))
                    await reader.read(CHUNK_BYTES)
                await _talk(what, reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(0.01)


async def _talk(what: Flood, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the flood's bytes until the broker closes the connection."""
    hearing = asyncio.create_task(_hear(reader))
    try:
        for turn in range(1 if what.is_held else 1 << 62):
            data = memoryview(what.says(turn))
            for start in range(0, len(data), what.chunk):
                writer.write(data[start : start + what.chunk])
                await writer.drain()
                await asyncio.sleep(0)
                if hearing.done():
                    return
        await hearing
    finally:
        hearing.cancel()


async def _hear(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(CHUNK_BYTES):
            pass
