"""Clients without a login cannot fill the memory, and reading what they send takes little time of a turn."""

# proves: strangers-are-bounded

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, cast

import pytest

from tandemmq.broker.core.memory import Kind, Memory
from tandemmq.broker.net.early_input import EARLY_PART, KEPT_BYTES, READ_BYTES, EarlyInput
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.transport import DROPPED_BYTES_MAX, TransportLimits
from tandemmq.broker.net.turns import FRESH, FRESH_BYTES_MAX, SENDERS, SPENT, STRANGERS
from tandemmq.broker.protocols.stomp.session import StompSession
from tests.support.broker.recording_engine import RecordingEngine
from tests.unit.broker.net.conftest import Bench, listening, milliseconds

LIMIT = EARLY_PART * 10 * KEPT_BYTES
LINE = b"\n"
SEND = b"SEND\ndestination:/queue/a\n\n%d\0"


class Stranger:
    def __init__(self, early: EarlyInput) -> None:
        self.early = early
        self.is_closed = False

    def end_early(self) -> None:
        self.is_closed = True
        self.early.note(self, 0)


def test_beyond_the_limit_who_keeps_much_is_closed_and_who_keeps_little_is_not() -> None:
    early = EarlyInput(Memory(LIMIT))
    strangers = [Stranger(early) for _ in range(30)]
    for stranger in strangers[:10]:
        early.note(stranger, KEPT_BYTES)
    assert early.bytes == 10 * KEPT_BYTES
    for stranger in strangers[10:20]:
        early.note(stranger, KEPT_BYTES)
    for stranger in strangers[20:]:
        early.note(stranger, KEPT_BYTES + 1)
    assert [stranger.is_closed for stranger in strangers] == [False] * 20 + [True] * 10
    assert early.bytes == 20 * KEPT_BYTES
    early.note(strangers[0], 2 * KEPT_BYTES)
    assert strangers[0].is_closed


def test_below_the_limit_and_with_less_than_before_no_connection_is_closed() -> None:
    early = EarlyInput(Memory(LIMIT))
    much, little = Stranger(early), Stranger(early)
    early.note(much, 10 * KEPT_BYTES)
    early.note(little, KEPT_BYTES)
    early.note(much, 9 * KEPT_BYTES + 1)
    assert not much.is_closed
    early.note(much, 0)
    early.note(little, 0)
    assert early.bytes == 0


async def test_input_that_was_understood_does_not_count(bench: Any) -> None:
    bench.engine.memory.limit = LIMIT
    client = await bench.client()
    await bench.until(lambda: bool(bench.server.connections))
    (connection,) = bench.server.connections
    for _ in range(3):
        connection.stop_reading()
        connection.data_received(LINE * (LIMIT // EARLY_PART))
        connection.resume_reading()
        await bench.until(lambda: not bench.engine.memory.by_kind[Kind.INPUT])
    assert (await client.connect()).startswith(b"CONNECTED")


async def test_a_connection_beyond_the_limit_is_closed_and_one_with_a_login_is_not(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.engine.memory.limit = LIMIT
    served, ours = await bench.served()
    await bench.client()
    await bench.until(lambda: len(bench.server.connections) == 2)
    (other,) = (each for each in bench.server.connections if each is not ours)
    for connection in (ours, other):
        connection.stop_reading()
        if connection is ours:
            await served.say(LINE)
        connection.data_received(LINE * (LIMIT // EARLY_PART + 1))
    assert [ours.is_closing, other.is_closing] == [False, True]
    assert "much input of clients without a login waits" in caplog.text


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
    turns = connection._turns
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


async def test_without_a_login_a_connection_that_had_its_slice_waits_after_all_others(bench: Any) -> None:
    await bench.client()
    await bench.until(lambda: bool(bench.server.connections))
    (connection,) = bench.server.connections
    connection.stop_reading()
    connection.data_received(LINE * (FRESH_BYTES_MAX + 1))
    connection.resume_reading()
    assert connection in connection._turns.lines[STRANGERS]


async def test_what_a_peer_sends_after_the_close_is_bounded(bench: Any) -> None:
    _, connection = await bench.served()
    connection.close()
    for _ in range(DROPPED_BYTES_MAX >> 16):
        connection.data_received(bytes(1 << 16))
    await asyncio.sleep(0)
    assert bench.server.connections
    connection.data_received(b"x")
    await bench.until(lambda: not bench.server.connections)
