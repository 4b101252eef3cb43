"""Deliveries that wait for the window of an AMQP client: they are counted, and written only as the client reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.transport import Connection, TransportLimits
from tandemmq.broker.protocols.amqp import frames, schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.frames import frame_of
from tandemmq.broker.protocols.amqp.session import SENT_FRAMES_MAX
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tests.unit.broker.net.conftest import amqp_session

BODY = b"x" * 90_000
FRAME_BYTES_MAX = 512
LIMITS = TransportLimits(unread_bytes_max=1_000_000)
TARGET = Destination(DestinationKind.QUEUE, "orders")


def encoded(*performatives: schema.Composite) -> bytes:
    return b"".join(frame_of(0, write_composite(each)) for each in performatives)


def flow(window: int, *, next_id: int | None = None) -> bytes:
    return encoded(schema.Flow(next_incoming_id=next_id, incoming_window=window, next_outgoing_id=0, outgoing_window=9))


class Bench:
    """A connection with a receiver, its engine, and the client, whose window is closed."""

    def __init__(self, connection: Connection, engine: Any, reader: asyncio.StreamReader, writer: Any) -> None:
        self.connection = connection
        self.engine = engine
        self.reader = reader
        self.writer = writer
        self.tag = 0

    def deliver(self, body: bytes = BODY) -> None:
        self.tag += 1
        message = Message(TARGET, f"ID:{self.tag}", body, BodyKind.BYTES)
        assert self.connection.session.deliver("1", self.tag, message, 0, AckMode.RANGE) is None
        self.connection.touch()

    @property
    def counted(self) -> int:
        assert self.connection.holder.memory.by_kind[Kind.OUTPUT] == self.connection.holder.by_kind[Kind.OUTPUT]
        return self.connection.holder.by_kind[Kind.OUTPUT]

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - the condition has no event
                await asyncio.sleep(0.001)

    async def read(self, count: int) -> None:
        async with asyncio.timeout(10):
            await self.reader.readexactly(count)


@pytest.fixture
async def bench(make_engine: Any) -> AsyncIterator[Bench]:
    engine = make_engine()
    server = Server([Connector("amqp", "127.0.0.1", 0, amqp_session, LIMITS)])
    server.bind()
    await server.listen(engine, "ID:t-1")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0][2], limit=1 << 16)
    attach = schema.Attach(name="r", handle=1, role=True, source=schema.Source(address="orders"))
    begin = schema.Begin(next_outgoing_id=0, incoming_window=0, outgoing_window=9)
    writer.write(frames.AMQP + encoded(schema.Open("me", max_frame_size=FRAME_BYTES_MAX), begin, attach))
    async with asyncio.timeout(10):
        while not engine.subscriptions:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.001)
    (connection,) = server.connections
    bench = Bench(connection, engine, reader, writer)
    await bench.until(lambda: connection.session.pending_bytes == 0)
    yield bench
    writer.transport.abort()
    await server.abort()
    server.unbind()
    assert bench.counted == 0


async def test_deliveries_that_wait_for_the_window_are_counted_and_limited(bench: Bench) -> None:
    connection = bench.connection
    while connection.is_writable:
        bench.deliver()
    assert LIMITS.write_bytes_high <= bench.counted < LIMITS.write_bytes_high + 2 * len(BODY)
    assert bench.tag == 3
    before = len(bench.engine.events)
    bench.writer.write(flow(250))
    await bench.until(lambda: bench.counted < LIMITS.write_bytes_high)
    assert not connection.is_writable, "only one of the messages was written"
    bench.writer.write(flow(10_000, next_id=250))
    await bench.until(lambda: connection.is_writable)
    await bench.until(lambda: "writable" in bench.engine.events[before:])


async def test_the_count_is_released_with_the_connection(bench: Bench) -> None:
    bench.deliver()
    assert bench.counted > len(BODY)
    bench.writer.write(encoded(schema.Close()))
    await bench.until(lambda: bench.counted == 0)


async def test_the_output_is_filled_only_as_fast_as_the_client_reads(bench: Bench) -> None:
    bench.writer.transport.pause_reading()
    for _ in range(200):
        bench.deliver()
    waiting = bench.counted
    bench.writer.write(flow(1 << 20))
    await bench.until(lambda: bench.counted < waiting)
    await asyncio.sleep(0.02)
    assert not bench.connection.is_closing
    written = waiting - bench.connection.session.waiting_bytes  # type: ignore[attr-defined]
    bench.writer.transport.resume_reading()
    await bench.read(waiting)
    assert written < waiting
    await bench.until(lambda: bench.connection.session.waiting_bytes == 0)  # type: ignore[attr-defined]
    assert not bench.connection.is_closing


async def test_flows_in_one_read_share_the_frame_limit_of_a_turn(bench: Bench) -> None:
    for _ in range(3):
        bench.deliver()
    before = bench.connection.session.pending_bytes
    bench.connection.session.receive(flow(1 << 20) * 50)
    assert bench.connection.session.has_more
    assert bench.connection.session.pending_bytes - before <= SENT_FRAMES_MAX * FRAME_BYTES_MAX
