"""Connections over real sockets: a slow, silent or lost client harms no other client and uses a named bound."""

# proves: last-words-ask-too, outbox-asks-before-words

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, Send
from tandemmq.broker.net.transport import _BEHIND, FLUSH_BYTES_MAX, SHORT_BYTES_MAX, TransportLimits
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tests.support.client.idle_time import IdleTime

SEND = b"SEND\ndestination:/queue/a\nreceipt:%d\n\n%b\0"


async def test_one_turn_of_the_loop_is_one_write(bench: Any) -> None:
    client, connection = await bench.served()
    writes: list[bytes] = []
    transport = connection._transport

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(transport, name)

        def write(self, data: bytes) -> None:
            writes.append(data)
            transport.write(data)

    connection._transport = Counting()
    connection._turns.clock = lambda: 0.0  # no slice of the loop ends, however busy the machine is
    connection.data_received(b"".join(SEND % (i, b"x") for i in range(100)))
    connection.data_received(SEND % (100, b"x"))
    await client.frame()
    assert [data.count(b"RECEIPT") for data in writes] == [101]


class Written:
    """Writes to each connection, in their order, with the turn of the loop."""

    def __init__(self) -> None:
        self.turn = 0
        self.writes: list[tuple[int, str, int]] = []

    def watch(self, connection: Any, name: str) -> None:
        written, transport = self, connection._transport

        class Watched:
            def __getattr__(self, attribute: str) -> Any:
                return getattr(transport, attribute)

            def write(self, data: bytes) -> None:
                written.writes.append((written.turn, name, len(data)))

            def writelines(self, pieces: list[bytes]) -> None:
                written.writes.append((written.turn, name, sum(map(len, pieces))))

        connection._transport = Watched()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self.turn < 1000
            await asyncio.sleep(0)
            self.turn += 1

    def to(self, name: str) -> list[int]:
        return [turn for turn, each, _ in self.writes if each == name]


async def watched(bench: Any, names: list[str]) -> tuple[dict[str, Any], Written]:
    """Connections that get what they send to themselves."""
    written = Written()
    connections: dict[str, Any] = {}
    for name in names:
        client = await bench.connected()
        await client.say(b"SUBSCRIBE\nid:0\ndestination:/queue/a\n\n\0")
        await bench.until(lambda: len(bench.engine.subscriptions) > len(connections))
        connections[name] = next(each for each in bench.server.connections if each not in connections.values())
    await asyncio.sleep(0)
    for name, connection in connections.items():
        written.watch(connection, name)
    return connections, written


def say(connection: Any, count: int) -> None:
    """Write ``count`` bytes to it, and more."""
    connection.session.deliver("0", 1, new_message(b"x" * count), 0, AckMode.AUTO)
    connection.touch()


def new_message(body: bytes) -> Message:
    return Message(Destination(DestinationKind.QUEUE, "a"), "ID:m:1:1:1", body, BodyKind.BYTES)


async def test_connections_with_little_output_do_not_wait_for_those_with_much(bench: Any) -> None:
    large = [f"large {number}" for number in range(8)]
    connections, written = await watched(bench, [*large, "small"])
    for name in large:
        say(connections[name], FLUSH_BYTES_MAX)
    say(connections["small"], 10)
    await written.until(lambda: len(written.writes) == 9)
    names = [name for _, name, _ in written.writes]
    assert names == ["small", *large], "and each in his turn"
    assert [len(written.to(name)) for name in large] == [1] * 8
    turns = [turn for turn, name, _ in written.writes if name != "small"]
    assert len(set(turns)) == 8, "one of these fills a turn"


async def test_a_connection_with_much_output_has_its_turn_among_many_with_little(bench: Any) -> None:
    small = [f"small {number}" for number in range(20)]
    connections, written = await watched(bench, ["large", *small])
    body = SHORT_BYTES_MAX - 1000
    assert len(small) * body > FLUSH_BYTES_MAX
    say(connections["large"], FLUSH_BYTES_MAX)
    for _ in range(10):
        for name in small:
            if connections[name].session.pending_bytes == 0:
                say(connections[name], body)
        await asyncio.sleep(0)
        written.turn += 1
    (turn,) = written.to("large")
    assert turn <= 1
    assert {len(written.to(name)) > 2 for name in small} == {True}, "nor do they wait for one another"


async def test_a_mistake_is_answered_and_ends_the_connection_alone(bench: Any) -> None:
    other, client = await bench.connected(), await bench.connected()
    # More than one read of the loop: what follows the mistake must not reset the connection under the answer.
    await client.say(b"SENT\nreceipt:5\n\n\0" + b"x" * 300_000)
    answer = await client.rest()
    assert answer.lstrip(b"\n").startswith(b"ERROR\nmessage:Unknown STOMP command\\c 'SENT'\n")
    assert b"receipt-id:5\n" in answer
    client.hang_up()
    await other.say(SEND % (1, b""))
    assert await other.frame() == b"RECEIPT\nreceipt-id:1\n\n"
    await bench.until(lambda: len(bench.server.connections) == 1)
    assert bench.engine.events.count("closed") == 1


@pytest.mark.parametrize("says", ["take", "receive", "tell_brokers"])
async def test_a_session_that_fails_ends_alone(bench: Any, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    """The session fails during a write to all connections, during its own turn, or during the last write to all."""
    broken = await bench.connected()
    (first,) = bench.server.connections
    good = await bench.connected()
    (second,) = (each for each in bench.server.connections if each is not first)
    of_all = getattr(type(first.session), says)

    def fail(session: Any, *what: Any) -> Any:
        if session is first.session:
            raise KeyError("a session has forgotten what it asked for")
        return of_all(session, *what)

    monkeypatch.setattr(type(first.session), says, fail)
    if says == "receive":
        await broken.say(SEND % (1, b""))
        await bench.until(lambda: len(bench.server.connections) == 1)
    elif says == "take":
        first.data_received(SEND % (1, b""))
    second.data_received(SEND % (1, b""))
    if says == "tell_brokers":
        await bench.server.close()
    assert await good.frame() == b"RECEIPT\nreceipt-id:1\n\n"
    assert (await broken.rest()).strip() == b""


async def test_all_are_told_of_brokers_a_few_in_a_turn(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        await bench.connected()
    told: list[Any] = []
    sessions = [connection.session for connection in bench.server.connections]
    monkeypatch.setattr("tandemmq.broker.net.server.ADVERTISED_A_TURN", 2)
    monkeypatch.setattr(type(sessions[0]), "tell_brokers", lambda session: told.append(session))
    bench.server.tell_brokers()
    assert len(told) == 2
    await bench.until(lambda: len(told) == 3)
    assert set(map(id, told)) == set(map(id, sessions))


async def test_a_client_that_vanishes_in_a_frame_is_forgotten(bench: Any) -> None:
    client = await bench.connected()
    await client.say(b"SEND\ndestination:/queue/a\ncontent-length:1000\n\nhalf")
    client.hang_up()
    await bench.until(lambda: not bench.server.connections)
    assert bench.engine.events == ["opened", "closed"]
    assert not any(isinstance(command, Send) for command in bench.engine.commands)


async def test_a_client_that_never_sends_connect_gets_the_reason(bench_of: Any) -> None:
    async with bench_of(TransportLimits(connect_seconds_max=0.05)) as bench:
        client = await bench.client()
        assert b"message:No CONNECT came\n" in await client.rest()


class TestHeartBeats:
    async def test_a_silent_client_is_hung_up(self, bench: Any) -> None:
        client = await bench.client()
        assert b"heart-beat:0,50\n" in await client.connect(b"heart-beat:50,0\n")
        assert b"message:No heart-beat for" in await client.rest()
        await bench.until(lambda: "closed" in bench.engine.events)

    @pytest.mark.parametrize("event_loop_policy", [IdleTime()], ids=["idle"])
    async def test_a_client_that_beats_stays(self, bench: Any) -> None:
        client = await bench.connected(b"heart-beat:200,0\n")
        for _ in range(15):
            await client.say(b"\n")
            await asyncio.sleep(0.05)
        await client.say(SEND % (1, b""))
        assert await client.frame() == b"RECEIPT\nreceipt-id:1\n\n"

    @pytest.mark.parametrize("event_loop_policy", [IdleTime()], ids=["idle"])
    async def test_a_client_that_promised_a_beat_every_10_ms_has_a_second(self, bench: Any) -> None:
        client = await bench.connected(b"heart-beat:10,0\n")
        await asyncio.sleep(0.9)
        await client.say(SEND % (1, b""))
        assert await client.frame() == b"RECEIPT\nreceipt-id:1\n\n"
        assert b"message:No heart-beat for" in await client.rest()

    async def test_the_client_gets_the_signs_of_life_it_asked_for(self, bench: Any) -> None:
        client = await bench.connected(b"heart-beat:0,40\n")
        async with asyncio.timeout(10):
            assert await client.reader.readexactly(6) == b"\n" * 6


class TestAClientThatNeverReads:
    async def test_deliveries_stop_until_it_reads(self, bench: Any) -> None:
        client = await bench.connected()
        await client.say(b"SUBSCRIBE\nid:0\ndestination:/queue/a\n\n\0")
        await bench.until(lambda: bool(bench.engine.subscriptions))
        (connection,) = bench.server.connections
        client.writer.transport.pause_reading()
        connection.data_received(SEND % (1, b"x" * 1_000_000))
        assert not connection.is_writable, "what the session holds counts before it is written"
        for number in range(2, 30):
            connection.data_received(SEND % (number, b"x" * 1_000_000))
            await asyncio.sleep(0)
        await bench.until(lambda: connection._states & _BEHIND)
        assert not connection.is_writable
        before = len(bench.engine.events)
        client.writer.transport.resume_reading()
        reading = asyncio.create_task(self._read_receipts(client, 29))
        await bench.until(lambda: "writable" in bench.engine.events[before:] and connection.is_writable)
        await reading
        assert sum(isinstance(command, Send) for command in bench.engine.commands) == 29

    async def _read_receipts(self, client: Any, count: int) -> None:
        while count:
            frame = await client.frame()
            count -= frame.startswith(b"RECEIPT")

    @pytest.mark.parametrize(
        ("limits", "why"),
        [
            (TransportLimits(unread_bytes_max=1_000_000), "with"),
            (TransportLimits(unread_seconds_max=0.05, check_seconds=0.02), "after"),
        ],
    )
    async def test_it_is_hung_up_when_too_much_piles_up_or_it_takes_too_long(
        self, bench_of: Any, caplog: Any, limits: TransportLimits, why: str
    ) -> None:
        caplog.set_level(logging.WARNING)
        async with bench_of(limits) as bench:
            client, connection = await bench.served()
            client.writer.transport.pause_reading()
            data = b"".join(b"SEND\ndestination:/queue/a\nreceipt:%0200d\n\n\0" % i for i in range(1000))
            while not (connection.is_closing or (why == "after" and connection._states & _BEHIND)):
                connection.data_received(data)
                await asyncio.sleep(0)
            await bench.until(lambda: not bench.server.connections)
            assert bench.engine.events[-1] == "closed"
            assert f"does not read: disconnected {why}" in caplog.text


async def test_no_message_is_delivered_while_one_is_prepared(bench: Any) -> None:
    _, connection = await bench.served()
    assert connection.is_writable
    connection.is_held = True
    assert not connection.is_writable


async def test_disconnect_is_answered_before_the_end(bench: Any) -> None:
    client = await bench.connected()
    await client.say(SEND % (1, b"") + b"DISCONNECT\nreceipt:2\n\n\0")
    assert await client.rest() == b"\nRECEIPT\nreceipt-id:1\n\n\0\nRECEIPT\nreceipt-id:2\n\n\0\n"
    client.hang_up()
    await bench.until(lambda: not bench.server.connections)


async def test_a_half_closed_client_still_gets_its_answers(bench: Any) -> None:
    """TCP's half-close; the rest of its input still waits for its turn."""
    client = await bench.connected()
    count = 4_000
    client.writer.write(b"".join(SEND % (number, b"") for number in range(count)))
    client.writer.write_eof()
    answers = await client.rest()
    assert answers.count(b"RECEIPT") == count
    await bench.until(lambda: not bench.server.connections)


async def test_no_timer_holds_a_connection_that_ended_after_a_half_close(bench: Any) -> None:
    client, connection = await bench.served()
    timers: list[asyncio.TimerHandle] = []
    loop = connection._loop

    class Recorded:
        def __getattr__(self, name: str) -> Any:
            return getattr(loop, name)

        def call_later(self, seconds: float, function: Callable[[], object]) -> asyncio.TimerHandle:
            timers.append(loop.call_later(seconds, function))
            return timers[-1]

    connection._loop = Recorded()
    client.writer.write_eof()
    await client.rest()
    await bench.until(lambda: not bench.server.connections)
    assert timers
    assert all(timer.cancelled() for timer in timers)


async def test_a_sign_of_life_is_not_said_at_half_its_interval(bench: Any) -> None:
    client = await bench.client()
    await client.say(b"CONNECT\naccept-version:1.2\nhost:x\nheart-beat:0,1000\n\n\0")
    await client.frame()
    (connection,) = bench.server.connections
    now = asyncio.get_running_loop().time()
    connection._last_sent = now
    assert 0.75 < connection._until_check(now) < 1.0
    for interval_ms, seconds in ((800, 0.4), (10, 0.25)):  # the latter has a second of grace
        connection.session.receive_interval_ms = interval_ms
        assert connection._until_check(now) == seconds
    text = connection.session.pending_bytes
    connection._last_sent = now - 0.5
    connection._last_received = asyncio.get_running_loop().time()
    connection._check_times()
    assert connection.session.pending_bytes == text
    assert connection._last_sent == now - 0.5, "half of it has passed"
    connection._last_sent = now - 0.9
    connection._check_times()
    assert connection._last_sent > now - 0.9


async def test_heart_beats_begin_with_an_answer_that_comes_later(bench: Any) -> None:
    """A password is checked on a thread. The client sends nothing after its CONNECT."""
    handle = bench.engine.handle

    def handle_later(connection: Any, command: Any) -> None:
        asyncio.get_running_loop().call_later(0.01, handle, connection, command)

    bench.engine.handle = handle_later
    client = await bench.client()
    assert b"heart-beat:50," in await client.connect(b"heart-beat:0,50\n")
    async with asyncio.timeout(20):  # without a beat, the first check of the connection comes after 30 s
        assert await client.reader.readexactly(2) == b"\n\n"
