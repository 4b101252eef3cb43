"""A producer that sends on although there is no room, over a real socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from tandemmq.broker.core.policies import DestinationPolicy, Policies
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import at_once
from tandemmq.broker.engine import flow_control as flow
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.shared import Loop
from tandemmq.broker.net.server import Server
from tests.support.store.memory_store import MemoryStore

BODY = b"x" * 10_000
COUNT = 2_000
PATIENCE_SECONDS = 20


@pytest.fixture
async def harness(make_server: Callable[..., Server]) -> AsyncIterator[tuple[Engine, int]]:
    server = make_server()
    loop = asyncio.get_running_loop()
    store = MemoryStore(loop.call_soon)
    engine = Engine(
        store,
        EngineSettings(),
        Loop(lambda: time.time_ns() // 1_000_000, loop.call_later),
        on_drained=server.resume_reading_all,
        policies=Policies((), DestinationPolicy(memory_limit=50_000)),
    )
    store.start(engine)
    server.bind()
    await server.listen(engine, "ID:t-1")
    yield engine, server.addresses[0][2]
    await server.close()
    server.unbind()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
    assert (await reader.readuntil(b"\0")).startswith(b"CONNECTED")
    return reader, writer


async def test_it_is_held_back_by_its_socket_and_loses_nothing(harness: tuple[Engine, int]) -> None:
    engine, port = harness
    _, writer = await connect(port)

    async def produce() -> None:
        for number in range(COUNT):
            writer.write(b"SEND\ndestination:/queue/a\nn:%d\n\n%b\0" % (number, BODY))
            await writer.drain()
        writer.write(b"DISCONNECT\nreceipt:bye\n\n\0")
        await writer.drain()

    async with asyncio.timeout(PATIENCE_SECONDS):
        producing = asyncio.create_task(produce())
        # Asked again and again: an engine tells nobody that it stopped reading
        while not (told := engine.flow.blocked()) or told[0]["is_read"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # What was read before it was stopped is no more than a piece of input beyond the bound.
        assert told[0]["bytes"] < flow.BYTES_MAX + (1 << 20)
        reader, consumer = await connect(port)
        consumer.write(b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0")
        for number in range(COUNT):
            frame = await reader.readuntil(b"\0")
            assert b"\nn:%d\n" % number in frame
        await producing
    consumer.close()
    writer.close()
    assert at_once(engine.statistics())["counts"]["sends_waiting"] == 0
