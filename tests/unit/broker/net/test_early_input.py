"""Clients without a login cannot fill the memory, and reading what they send takes little time of a turn."""

# proves: strangers-are-bounded

from __future__ import annotations

import asyncio
import contextlib
from itertools import count
from typing import Any, cast

import pytest

from tandemmq.broker.core.memory import Kind, Memory
from tandemmq.broker.net.early_input import EARLY_PART, KEPT_BYTES, READ_BYTES, EarlyInput
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.transport import DROPPED_BYTES_MAX, EARLY_DROPPED_BYTES_MAX, RESUMED_MAX, TransportLimits
from tandemmq.broker.net.turns import FRESH, FRESH_BYTES_MAX, SENDERS, SPENT, STRANGERS, Turns
from tandemmq.broker.protocols.stomp.session import StompSession
from tests.support.broker.recording_engine import RecordingEngine
from tests.unit.broker.net.conftest import Bench, listening, milliseconds

LIMIT = EARLY_PART * 10 * KEPT_BYTES
LINE = b"\n"
SEND = b"SEND\ndestination:/queue/a\n\n%d\0"


def turns_of(connection: Any) -> Turns:
    turns: Turns = connection._turns
    return turns


class Stranger:
    def __init__(self) -> None:
        self.is_closed = False

    def end_early(self) -> None:
        self.is_closed = True


def test_beyond_the_limit_the_connection_is_closed_that_has_had_much_for_the_longest_time() -> None:
    early = EarlyInput(Memory(LIMIT))
    strangers = [Stranger() for _ in range(20)]
    early.note(strangers[0], KEPT_BYTES)
    for stranger in strangers[1:]:
        early.note(stranger, 2 * KEPT_BYTES)
    early.note(strangers[17], 2 * KEPT_BYTES + 1)
    assert [stranger.is_closed for stranger in strangers] == [False] + [True] * 15 + [False] * 4
    assert early.bytes == 8 * KEPT_BYTES + 1
    early.note(strangers[0], LIMIT)
    assert all(stranger.is_closed for stranger in strangers)
    assert early.bytes == 0


def test_at_the_limit_no_connection_is_closed() -> None:
    early = EarlyInput(Memory(LIMIT))
    much, little = Stranger(), Stranger()
    for _ in range(3):
        early.note(much, 8 * KEPT_BYTES)
        early.note(little, 2 * KEPT_BYTES)
        assert early.bytes == LIMIT // EARLY_PART
        early.note(much, 0)
        early.note(little, KEPT_BYTES)
        assert early.bytes == 0
    assert not much.is_closed
    assert not little.is_closed


async def test_input_that_was_understood_does_not_count(bench: Any) -> None:
    bench.engine.memory.limit = LIMIT
    client = await bench.client()
    await bench.until(lambda: bool(bench.server.connections))
    (first,) = bench.server.connections
    first.stop_reading()
    first.data_received(LINE * (9 * KEPT_BYTES))
    first.resume_reading()
    await bench.until(lambda: not bench.engine.memory.by_kind[Kind.INPUT])
    await bench.client()
    await bench.until(lambda: len(bench.server.connections) == 2)
    (second,) = (each for each in bench.server.connections if each is not first)
    second.stop_reading()
    second.data_received(LINE * (9 * KEPT_BYTES))
    assert (await client.connect()).startswith(b"CONNECTED")
    assert not second.is_closing


async def test_a_connection_beyond_the_limit_is_closed_and_one_with_a_login_is_not(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.engine.memory.limit = LIMIT
    _, ours = await bench.served()
    await bench.client()
    await bench.until(lambda: len(bench.server.connections) == 2)
    (other,) = (each for each in bench.server.connections if each is not ours)
    for connection in (ours, other):
        connection.stop_reading()
        connection.data_received(LINE * (LIMIT // EARLY_PART + 1))
    assert not other.is_closing, "its caller may be in the middle of a turn"
    await bench.until(lambda: other.is_closing)
    assert not ours.is_closing
    assert "much input of clients without a login waits" in caplog.text


async def test_a_websocket_is_not_closed_before_its_handshake(websockets: Any) -> None:
    async with websockets() as (server, engine):
        engine.memory.limit = LIMIT
        writers = [(await asyncio.open_connection("127.0.0.1", server.addresses[0][2]))[1] for _ in range(12)]
        async with asyncio.timeout(60):
            while len(server.connections) < 12:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert not any(connection.is_closing for connection in server.connections)
        for writer in writers:
            writer.transport.abort()


async def test_a_socket_is_read_in_small_pieces_until_the_login() -> None:
    lengths: list[int] = []

    class Session:
        def __init__(self, id: str) -> None:
            self.session = StompSession(id, secret=lambda: "secret", clock=milliseconds, heart_beat_ms_min=20)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.session, name)

        def receive(self, data: bytes) -> Any:
            lengths.append(len(data))
            return self.session.receive(data)

    connector = Connector("stomp", "127.0.0.1", 0, cast("Any", Session), TransportLimits())
    bench = Bench(Server([connector]), RecordingEngine())
    async with listening(bench.server, bench.engine):
        client = await bench.client()
        await client.say(LINE * 100_000)
        await bench.until(lambda: sum(lengths) == 100_000)
        assert max(lengths) <= READ_BYTES
        await client.connect()
        del lengths[:]
        await client.say(b"".join(SEND % number for number in range(10_000)))
        await bench.until(lambda: len(bench.engine.commands) > 10_000)
        assert max(lengths[1:]) > READ_BYTES
        bench.hang_up()


async def test_a_connection_keeps_its_line_after_its_reading_was_paused(bench: Any) -> None:
    _, connection = await bench.served()
    turns = turns_of(connection)
    for data, line in ((LINE, FRESH), (LINE * (FRESH_BYTES_MAX + 1), SPENT), (SEND % 1 * 2_000, SENDERS)):
        is_sender = line == SENDERS
        if is_sender:
            turns.clock = count().__next__  # a slice ends at once, with input left
            connection.data_received(data)
        connection.stop_reading()
        if not is_sender:
            connection.data_received(data)
        await bench.until(lambda: not turns.waiting)
        connection.resume_reading()
        assert connection in turns.lines[line]
        await bench.until(lambda: not turns.waiting)


async def test_without_a_login_a_connection_waits_after_all_others(bench: Any) -> None:
    await bench.client()
    await bench.until(lambda: bool(bench.server.connections))
    (connection,) = bench.server.connections
    connection.stop_reading()
    connection.data_received(LINE)
    connection.resume_reading()
    assert connection in turns_of(connection).lines[STRANGERS]


@pytest.mark.parametrize(("has_login", "limit"), [(True, DROPPED_BYTES_MAX), (False, EARLY_DROPPED_BYTES_MAX)])
async def test_what_a_peer_sends_after_the_close_is_bounded(bench_of: Any, has_login: bool, limit: int) -> None:
    async with bench_of(TransportLimits(close_seconds_max=1000)) as bench:
        client = await bench.connected() if has_login else await bench.client()
        await bench.until(lambda: bool(bench.server.connections))
        (connection,) = bench.server.connections
        connection.close()
        await client.rest()
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < limit + (64 << 20):
                client.writer.write(LINE * 65536)
                sent += 65536
                async with asyncio.timeout(1):
                    await client.writer.drain()
        assert limit < sent < limit + (64 << 20), "the kernel keeps a part of it"
        assert bench.server.connections, "the answer may still be unread"


async def test_after_a_report_some_connections_continue_to_read_in_each_iteration(bench: Any) -> None:
    for _ in range(RESUMED_MAX + 8):
        await bench.connected()
    engine, connections = bench.engine, list(bench.server.connections)
    turns = turns_of(connections[0])
    turns.clock = lambda: 0.0  # no turn ends, however busy the machine is
    waiting = engine.memory.by_kind
    engine.is_congested = True
    for _ in range(2):  # the first is understood, and reading stops
        for connection in connections:
            connection.data_received(LINE)
    await bench.until(lambda: not turns.waiting)
    assert waiting[Kind.INPUT] == RESUMED_MAX + 8
    engine.is_congested = False
    bench.server.resume_reading_all()
    assert turns.waiting == RESUMED_MAX
    engine.is_congested = True
    await bench.until(lambda: not turns.waiting)
    assert waiting[Kind.INPUT] == 8, "it is congested again"
    engine.is_congested = False
    bench.server.resume_reading_all()
    await bench.until(lambda: not waiting[Kind.INPUT])
