"""A WebSocket client that sends exactly the bytes of a test."""

from __future__ import annotations

import asyncio
import base64
import os
import struct

from tandemmq.broker.net.server import Server
from tandemmq.broker.protocols.websocket.frames import TEXT, unmasked

REQUEST = (
    "GET /stomp HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{more}\r\n"
)


def request(host: str = "127.0.0.1", more: str = "") -> bytes:
    return REQUEST.format(host=host, key=base64.b64encode(os.urandom(16)).decode(), more=more).encode()


def client_frame(opcode: int, payload: bytes, *, is_final: bool = True, rsv: int = 0) -> bytes:
    """Return a frame of a client, with a mask."""
    first = (0x80 if is_final else 0) | rsv | opcode
    size = len(payload)
    if size <= 125:
        head = bytes((first, 0x80 | size))
    elif size <= 0xFFFF:
        head = struct.pack(">BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", first, 0x80 | 127, size)
    mask = os.urandom(4)
    return head + mask + unmasked(payload, mask)


class Peer:
    """A client after the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, server: Server, more: str = "Sec-WebSocket-Protocol: v12.stomp\r\n") -> Peer:
        peer = cls(*await asyncio.open_connection("127.0.0.1", server.addresses[0][2]))
        await peer.say(request(more=more))
        answer = await peer.answer()
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        return peer

    @classmethod
    async def served(cls, server: Server) -> Peer:
        """Return a client after the handshake and CONNECT."""
        peer = await cls.of(server)
        await peer.say(client_frame(TEXT, b"CONNECT\naccept-version:1.2\nhost:/\n\n\0"))
        assert (await peer.message())[1].startswith(b"CONNECTED")
        return peer

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> bytes:
        """Return the head of an HTTP response."""
        async with asyncio.timeout(10):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def message(self) -> tuple[int, bytes]:
        """Return opcode and payload of the next frame: the broker sends each message in one frame."""
        async with asyncio.timeout(10):
            first, length = await self.reader.readexactly(2)
            if length == 126:
                (length,) = struct.unpack(">H", await self.reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", await self.reader.readexactly(8))
            assert first & 0xF0 == 0x80, "FIN is set, and no reserved bit"
            return first & 0x0F, await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """Return all bytes up to the end of the connection."""
        async with asyncio.timeout(10):
            return await self.reader.read()

    def hang_up(self) -> None:
        self.writer.transport.abort()
