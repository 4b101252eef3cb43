"""A server on a free port with a recording engine behind it, on both event loops."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tandemmq.broker.net.origins import Origins
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.transport import TransportLimits
from tandemmq.broker.net.websocket import WebSocketOptions, of_amqp, of_stomp
from tandemmq.broker.protocols.amqp.opening import AmqpLimits
from tandemmq.broker.protocols.amqp.session import AmqpSession
from tandemmq.broker.protocols.stomp.session import StompSession
from tests.support.broker import recording_engine
from tests.support.security.authority import Authority


@pytest.fixture(
    params=[
        pytest.param(asyncio.DefaultEventLoopPolicy, id="asyncio"),
        pytest.param(uvloop.EventLoopPolicy, id="uvloop"),
    ]
)
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


# More than any test's largest frame: the stream reader gives up at frames that are longer.
READ_BYTES = 4 * 1024 * 1024
MESSAGE_BYTES_MAX = 4 << 20
# Of a test whose machine does much else: nothing waits so long that goes right.
PATIENCE_SECONDS = 60.0


def milliseconds() -> int:
    return time.time_ns() // 1_000_000


class Client:
    """A socket that sends exactly the bytes of a test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> bytes:
        """The next frame, without its NUL and the line ends before it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self.reader.readuntil(b"\0"))[:-1].lstrip(b"\n")

    async def rest(self) -> bytes:
        """Return all bytes up to the end of the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.read()

    async def connect(self, headers: bytes = b"") -> bytes:
        await self.say(b"CONNECT\naccept-version:1.2\nhost:/\n%b\n\0" % headers)
        return await self.frame()

    def hang_up(self) -> None:
        self.writer.transport.abort()


class Bench:
    """A listening server, its engine, and clients for it."""

    def __init__(self, server: Server, engine: Any) -> None:
        self.server = server
        self.engine = engine
        self._clients: list[Client] = []

    @property
    def port(self) -> int:
        return self.server.addresses[0][2]

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=READ_BYTES))
        self._clients.append(client)
        return client

    async def connected(self, headers: bytes = b"") -> Client:
        """Return a client that has sent CONNECT and got an answer."""
        client = await self.client()
        await client.connect(headers)
        return client

    async def served(self, headers: bytes = b"") -> tuple[Client, Any]:
        """The only client, connected, and its connection."""
        client = await self.connected(headers)
        (connection,) = self.server.connections
        return client, connection

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)

    def hang_up(self) -> None:
        for client in self._clients:
            client.hang_up()


def new_server(limits: TransportLimits | None = None, port: int = 0, **options: Any) -> Server:
    make_session = partial(StompSession, secret=lambda: "secret", clock=milliseconds, heart_beat_ms_min=20)
    return Server([Connector("stomp", "127.0.0.1", port, make_session, limits or TransportLimits())], **options)


@asynccontextmanager
async def listening(server: Server, engine: Any) -> AsyncIterator[Server]:
    """Bind and listen for the time of a `with`."""
    server.bind()
    await server.listen(engine, "ID:t-1")
    try:
        yield server
    finally:
        await server.abort()
        server.unbind()


@pytest.fixture
def authority(tmp_path: Path, require_program: Callable[[object, str], None]) -> Authority:
    require_program(shutil.which("openssl"), "no openssl in the path")
    return Authority(tmp_path, "root")


@pytest.fixture
def make_server() -> Callable[..., Server]:
    return new_server


@pytest.fixture
def make_engine() -> Any:
    return recording_engine.RecordingEngine


@pytest.fixture
def bench_of() -> Iterator[Any]:
    @asynccontextmanager
    async def open_bench(limits: TransportLimits | None = None, **options: Any) -> AsyncIterator[Bench]:
        bench = Bench(new_server(limits, **options), recording_engine.RecordingEngine())
        async with listening(bench.server, bench.engine):
            try:
                yield bench
            finally:
                bench.hang_up()

    return open_bench


@pytest.fixture
async def bench(bench_of: Any) -> AsyncIterator[Bench]:
    async with bench_of() as bench:
        yield bench


def amqp_session(id: str) -> AmqpSession:
    return AmqpSession(id, lambda: 0, limits=AmqpLimits("broker"), secret=lambda: "secret")


def new_websocket_server(
    limits: TransportLimits | None = None,
    origins: Origins | None = None,
    *,
    connections_max: int = 10_000,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    **options: Any,
) -> Server:
    make_session = partial(StompSession, secret=lambda: "secret", clock=lambda: 0, heart_beat_ms_min=20)
    limits = limits or TransportLimits()
    subprotocols = of_stomp(make_session, limits) | of_amqp(amqp_session, limits)
    websocket = WebSocketOptions(subprotocols, origins or Origins(), message_bytes_max, **options)
    connector = Connector(
        "ws", "127.0.0.1", 0, make_session, limits, connections_max=connections_max, websocket=websocket
    )
    return Server([connector])


@pytest.fixture
def websockets(make_engine: Any) -> Any:
    """A server of WebSockets and its engine, for the time of a `with`."""

    @asynccontextmanager
    async def serve(*args: Any, **options: Any) -> AsyncIterator[tuple[Server, Any]]:
        engine = make_engine()
        async with listening(new_websocket_server(*args, **options), engine) as server:
            yield server, engine
        assert not server.connections
        assert not engine.memory.used

    return serve
