"""A small STOMP 1.2 client over asyncio streams that returns every frame."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

# A port of this host, or a host and a port.
Address = int | tuple[str, int]


@dataclass(frozen=True, slots=True)
class Frame:
    command: str
    headers: dict[str, str]
    body: bytes


class Wire:
    """One connection. Raises ConnectionError, another OSError or EOFError when it is lost."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: Address, *, seconds_max: float = 5, **headers: str) -> Wire:
        host, number = port if isinstance(port, tuple) else ("127.0.0.1", port)
        # Not wait_for: before Python 3.12 it may lose a cancellation of its caller.
        async with asyncio.timeout(seconds_max):
            reader, writer = await asyncio.open_connection(host, number, limit=1 << 22)
        wire = cls(reader, writer)
        wire.send("CONNECT", {"accept-version": "1.2", "host": "x", **headers})
        try:
            async with asyncio.timeout(seconds_max):
                frame = await wire.read()
        except BaseException:
            wire.close()
            raise
        if frame.command != "CONNECTED":
            wire.close()
            raise ConnectionError(frame.headers.get("message", frame.command))
        return wire

    def send(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        lines = "".join(f"{key}:{value}\n" for key, value in headers.items())
        self._writer.write(f"{command}\n{lines}\n".encode() + body + b"\0")

    async def flush(self) -> None:
        await self._writer.drain()

    async def read(self) -> Frame:
        while True:
            line = (await self._reader.readuntil(b"\n"))[:-1]
            if line:
                break
        command = line.decode()
        headers: dict[str, str] = {}
        while line := (await self._reader.readuntil(b"\n"))[:-1]:
            key, _, value = line.decode().partition(":")
            headers.setdefault(key, value.replace("\\c", ":").replace("\\n", "\n").replace("\\\\", "\\"))
        if "content-length" in headers:
            body = await self._reader.readexactly(int(headers["content-length"]))
            await self._reader.readexactly(1)
        else:
            body = (await self._reader.readuntil(b"\0"))[:-1]
        return Frame(command, headers, body)

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Abort the connection, without DISCONNECT and FIN."""
        self._writer.transport.abort()


LOST = (OSError, EOFError, asyncio.IncompleteReadError, TimeoutError)


async def connect_any(ports: Sequence[Address], seconds: float = 30.0, **headers: str) -> Wire:
    """Return a connection to the broker that answers first."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        for port in ports:
            try:
                return await Wire.open(port, **headers)
            except LOST:
                pass
        assert asyncio.get_running_loop().time() < deadline, f"no broker on {ports}"
        await asyncio.sleep(0.01)


async def send(wire: Wire, destination: str, body: str) -> None:
    """Send a persistent message, with its body as receipt id."""
    wire.send("SEND", {"destination": destination, "persistent": "true", "receipt": body}, body.encode())
    await wire.flush()


async def confirm(port: Address, destination: str, body: str, seconds_max: float) -> None:
    """Send a message, and wait for the receipt."""
    wire = await Wire.open(port)
    await send(wire, destination, body)
    assert (await asyncio.wait_for(wire.read(), seconds_max)).headers["receipt-id"] == body
    wire.close()


async def bodies(port: Address, destination: str, count: int, seconds_max: float) -> list[str]:
    """Return the bodies in the queue, without acknowledging the messages."""
    wire = await Wire.open(port)
    wire.send("SUBSCRIBE", {"id": "0", "destination": destination, "ack": "client-individual"})
    found = [(await asyncio.wait_for(wire.read(), seconds_max)).body.decode() for _ in range(count)]
    wire.close()
    return found
