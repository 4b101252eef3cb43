"""A broker that sends exactly the bytes of a test's script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tandemmq.broker.protocols.stomp.dialects import V12
from tandemmq.broker.protocols.stomp.frames import FrameParser, Limits

HOST = "127.0.0.1"
PATIENCE_SECONDS = 10.0
TANDEMMQ = "TandemMQ"


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of the client."""

    command: str
    headers: dict[str, str]
    body: bytes

    @property
    def receipt(self) -> bytes:
        """Return the RECEIPT for this frame."""
        return f"RECEIPT\nreceipt-id:{V12.escape(self.headers['receipt'])}\n\n\0".encode()


class Peer:
    """The broker's side of one client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = FrameParser(Limits())
        self.beats = 0

    async def read(self) -> Frame:
        """Return the next frame. EOFError: the client closed the connection."""
        while (found := self._parser.next_frame()) is None:
            if self._parser.data:
                continue
            data = await asyncio.wait_for(self._reader.read(1 << 16), PATIENCE_SECONDS)
            if not data:
                raise EOFError
            self.beats += data == b"\n"
            self._parser.feed(data)
        return Frame(*found)

    async def expect(self, *commands: str) -> Frame:
        """Read frames with these commands in this order; return the last one."""
        for command in commands:
            frame = await self.read()
            assert frame.command == command, frame
        return frame

    async def greeted(self) -> Frame:
        """Read CONNECT; the following frames are STOMP 1.2."""
        frame = await self.expect("CONNECT")
        self._parser.dialect = V12
        return frame

    async def welcome(self, server: str = TANDEMMQ, heart_beat: str = "0,0") -> Frame:
        """Read CONNECT and answer it."""
        frame = await self.greeted()
        self.write(f"CONNECTED\nversion:1.2\nserver:{server}\nheart-beat:{heart_beat}\n\n\0".encode())
        return frame

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def trickle(self, data: bytes) -> None:
        """Write single bytes, each in a separate packet."""
        for at in range(len(data)):
            self._writer.write(data[at : at + 1])
            await self._writer.drain()
            await asyncio.sleep(0)

    def error(self, message: str, receipt: str | None = None) -> None:
        about = "" if receipt is None else f"receipt-id:{receipt}\n"
        self.write(f"ERROR\nmessage:{message}\n{about}\n{message}, at length\n\0".encode())

    async def close(self) -> None:
        """Close the connection after the written data."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass


Script = Callable[[Peer], Awaitable[None]]


class ScriptedBroker:
    """Listen on a free port. The n-th connection follows the n-th script; further connections are refused."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self._running: list[asyncio.Task[None]] = []
        self.connections = 0
        self.port = 0

    @property
    def address(self) -> str:
        return f"stomp://{HOST}:{self.port}"

    def url(self, options: str = "maxReconnectDelay=20") -> str:
        return f"failover:({self.address})?{options}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._running:
            task.cancel()
        ended = await asyncio.gather(*self._running, return_exceptions=True)
        if error is None:
            for each in ended:
                if isinstance(each, Exception):
                    raise each

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if not self.scripts:
            writer.close()
            return
        script = self.scripts.pop(0)
        task = asyncio.create_task(self._follow(script, Peer(reader, writer)))
        self._running.append(task)

    async def _follow(self, script: Script, peer: Peer) -> None:
        try:
            await script(peer)
        finally:
            await peer.close()


def confirming(count: int | None = None, server: str = TANDEMMQ) -> Script:
    """Return a script that answers each request for a receipt, and closes the connection after ``count`` SENDs."""

    async def script(peer: Peer) -> None:
        await peer.welcome(server)
        sent = 0
        while count is None or sent < count:
            try:
                frame = await peer.read()
            except EOFError:
                return
            sent += frame.command == "SEND"
            if "receipt" in frame.headers:
                peer.write(frame.receipt)

    return script
