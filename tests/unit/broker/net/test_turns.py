"""A client that sends very much waits for its turn, so that others hardly wait; the order of no client changes."""

# proves: reports-between-steps, reports-between-first-steps

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from tandemmq.broker.core.commands import Send, Subscribe
from tandemmq.broker.core.memory import SHARE, Kind
from tandemmq.broker.net.transport import OPERATIONS_PER_REPORT_MAX
from tandemmq.broker.net.turns import (
    FRESH,
    HANDSHAKES,
    LOAD_SECONDS,
    LONG_READ_BYTES,
    OVERLONG_SECONDS,
    READ_SECONDS,
    SENDERS,
    SLICE_SECONDS,
    SPENT,
    STRANGERS,
    TURN_SECONDS,
    Turns,
)
from tandemmq.broker.protocols.session import COMMANDS_MAX

pytestmark = pytest.mark.promise("others-are-served")

SEND = b"SEND\ndestination:/queue/a\n\n%d\0"
MANY = 20_000
COMMAND_SECONDS = 0.0001
# The round trip of one command takes fewer turns. A read of the loop that is understood whole has some 5,000 commands.
AHEAD_MAX = 10 * (COMMANDS_MAX + round(TURN_SECONDS / COMMAND_SECONDS))


@pytest.fixture
async def timed_bench(bench_of: Any) -> AsyncIterator[Any]:
    """Return a bench where each command takes ``COMMAND_SECONDS`` on any machine."""

    async with bench_of(clock=lambda: len(bench.engine.commands) * COMMAND_SECONDS) as bench:
        yield bench


def numbers(commands: list[Any]) -> list[int]:
    return [int(command.message.body) for command in commands if isinstance(command, Send)]


async def test_while_consumers_have_commands_senders_get_a_small_part_of_the_time(bench_of: Any) -> None:
    subscribe = b"SUBSCRIBE\nid:%d\ndestination:/queue/a\n\n\0"
    async with bench_of(clock=lambda: len(bench.engine.commands) * COMMAND_SECONDS / 10) as bench:
        commands = bench.engine.commands

        def count(kind: type[Any]) -> int:
            return sum(isinstance(command, kind) for command in commands)

        clients = [(await bench.connected(), form) for form in (SEND, subscribe) for _ in range(4)]
        saying = [asyncio.create_task(client.say(b"".join(form % n for n in range(1000)))) for client, form in clients]
        await bench.until(lambda: count(Subscribe) > 2000 or count(Send) > 2000)
        assert count(Subscribe) > 2 * count(Send) > 0
        await bench.until(lambda: count(Send) == 4000)
        await asyncio.gather(*saying)


async def test_a_client_that_sends_very_much_lets_others_in_between(timed_bench: Any) -> None:
    hasty, other = await timed_bench.connected(), await timed_bench.connected()
    saying = asyncio.create_task(hasty.say(b"".join(SEND % number for number in range(MANY))))
    await timed_bench.until(lambda: len(timed_bench.engine.commands) > 1000)
    ahead = []
    while len(timed_bench.engine.commands) < MANY and len(ahead) < 5:
        before = len(timed_bench.engine.commands)
        await other.say(b"SEND\ndestination:/queue/b\nreceipt:r\n\n-1\0")
        assert await other.frame() == b"RECEIPT\nreceipt-id:r\n\n"
        ahead.append(len(timed_bench.engine.commands) - before)
    assert ahead
    assert max(ahead) < AHEAD_MAX
    await saying
    await timed_bench.until(lambda: len(numbers(timed_bench.engine.commands)) == MANY + len(ahead))
    assert [number for number in numbers(timed_bench.engine.commands) if number >= 0] == list(range(MANY))


async def test_a_connection_whose_share_of_the_store_is_used_waits_for_the_next_report(bench: Any) -> None:
    hasty, other = await bench.connected(), await bench.connected()
    engine = bench.engine
    handle = engine.handle

    def store(connection: Any, command: Any) -> None:
        handle(connection, command)
        engine.handed_over += isinstance(command, Send)

    engine.handle = store
    saying = asyncio.create_task(hasty.say(b"".join(SEND % number for number in range(20_000))))
    rounds = 0
    while sum(number >= 0 for number in numbers(engine.commands)) < 20_000:
        await bench.until(lambda: bench.server._outbox._paused)
        held = len(numbers(engine.commands))
        assert held - rounds > OPERATIONS_PER_REPORT_MAX * (rounds + 1)
        await other.say(b"SEND\ndestination:/queue/b\nreceipt:r\n\n-1\0")
        assert await other.frame() == b"RECEIPT\nreceipt-id:r\n\n"
        rounds += 1
        assert len(numbers(engine.commands)) == held + 1, "it waits, and others do not"
        engine.reports += 1
        bench.server.resume_reading_all()
        if sum(number >= 0 for number in numbers(engine.commands)) + OPERATIONS_PER_REPORT_MAX >= 20_000:
            break
    await bench.until(lambda: sum(number >= 0 for number in numbers(engine.commands)) == 20_000)
    assert rounds > 5
    await saying
    assert [number for number in numbers(engine.commands) if number >= 0] == list(range(20_000))


@pytest.mark.parametrize("reason", ["congestion", "stopped"])
async def test_waiting_input_continues_after_reading_was_paused(bench: Any, reason: str) -> None:
    client, connection = await bench.served()
    engine = bench.engine
    handle = engine.handle

    def handle_until(connection: Any, command: Any) -> None:
        handle(connection, command)
        if len(engine.commands) == 500:
            if reason == "congestion":
                engine.is_congested = True
            else:
                connection.stop_reading()

    engine.handle = handle_until
    client.writer.write(b"".join(SEND % number for number in range(5_000)))
    await bench.until(lambda: len(engine.commands) >= 500)
    await asyncio.sleep(0.05)
    held = len(engine.commands)
    # The slice in which it happened ends, and nothing comes after it.
    assert held < 5_000
    await asyncio.sleep(0.05)
    assert len(engine.commands) == held
    assert engine.memory.by_kind[Kind.INPUT] > 10_000, "what waits counts, wherever it is"
    engine.is_congested = False
    if reason == "congestion":
        bench.server.resume_reading_all()
    else:
        connection.resume_reading()
    await bench.until(lambda: len(numbers(engine.commands)) == 5_000)
    assert numbers(engine.commands) == list(range(5_000))
    await bench.until(lambda: not engine.memory.by_kind[Kind.INPUT])


async def test_a_connection_whose_reading_ended_is_not_read_again(bench: Any) -> None:
    client, connection = await bench.served()
    connection.stop_reading()
    connection.end_reading()
    connection.resume_reading()
    client.writer.write(SEND % 1)
    await asyncio.sleep(0.05)
    assert numbers(bench.engine.commands) == []


async def test_an_error_of_the_broker_ends_only_one_connection(
    timed_bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = await timed_bench.connected(), await timed_bench.connected()
    engine = timed_bench.engine
    handle = engine.handle

    def handle_and_fail(connection: Any, command: Any) -> None:
        if isinstance(command, Send) and command.message.body == b"900":
            raise RuntimeError("an error of the broker")
        handle(connection, command)

    engine.handle = handle_and_fail
    client.writer.write(b"".join(SEND % number for number in range(1000)))
    await timed_bench.until(lambda: len(timed_bench.server.connections) == 1)
    await other.say(b"SEND\ndestination:/queue/b\nreceipt:r\n\n1\0")
    assert await other.frame() == b"RECEIPT\nreceipt-id:r\n\n"
    assert engine.events.count("closed") == 1


class ManualLoop:
    """Makes the scheduled calls when the test requests it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.timers: list[tuple[float, Any]] = []
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Any) -> None:
        self.calls.append(call)

    def call_later(self, seconds: float, call: Any) -> None:
        self.timers.append((self.now + seconds, call))

    def wait(self) -> None:
        """Let the time of the next timer come, and call it."""
        self.now, call = self.timers.pop(0)
        call()

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Worker:
    """Has so much to do, and does it whenever it has its turn."""

    def __init__(self, world: World, name: str, seconds: float, *, line: int = SPENT) -> None:
        self.world = world
        self.name = name
        self.seconds = seconds
        self.line = line

    def begin(self) -> None:
        until = self.world.turns.begin()
        if until:
            self.resume(until)
        else:
            self.world.turns.wait(self, FRESH)

    def resume(self, until: float) -> None:
        self.world.ran.append(self.name)
        spent = min(self.seconds, until - self.world.now)
        self.world.now += spent
        self.seconds -= spent
        if self.seconds > 1e-9:
            self.world.turns.wait(self, self.line)


class World:
    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.now = 100.0
        self.turns = Turns(self.loop, lambda: self.now)  # type: ignore[arg-type]
        self.ran: list[str] = []

    def turn(self) -> list[str]:
        self.ran = []
        self.loop.turn()
        return self.ran


def test_a_connection_that_found_no_time_is_served_before_those_that_had_a_slice() -> None:
    world = World()
    for name in "abcd":
        Worker(world, name, 1.0).begin()
    assert world.ran == ["a", "b", "c"], "two slices and a part make a turn"
    late = Worker(world, "late", SLICE_SECONDS / 10)
    late.begin()
    assert "late" not in world.ran
    assert world.turn()[:2] == ["d", "late"]
    counts = Counter(name for _ in range(20) for name in world.turn())
    assert max(counts.values()) - min(counts.values()) <= 1, counts


def test_senders_have_the_time_that_consumers_leave_and_always_a_slice() -> None:
    world = World()
    for _ in range(4):
        Worker(world, "sender", 1.0, line=SENDERS).begin()
    world.turn()
    consumers = [Worker(world, "consumer", 20 * TURN_SECONDS) for _ in range(4)]
    for consumer in consumers:
        consumer.begin()
    world.turn()
    world.turn()
    counts = Counter(name for _ in range(40) for name in world.turn())
    assert counts["consumer"] > 3 * counts["sender"] > 0
    while any(consumer.seconds > 1e-9 for consumer in consumers):
        assert len(world.loop.calls) == 1
        world.turn()
    counts = Counter(name for _ in range(40) for name in world.turn())
    assert counts["sender"] > 40


def test_the_load_ends_when_no_connection_has_had_more_than_its_slice_for_some_time() -> None:
    world = World()
    told: list[bool] = []
    world.turns.note_load = told.append
    Worker(world, "x", 2 * TURN_SECONDS).begin()
    while world.loop.calls:
        world.turn()
    assert set(told) == {True}
    world.loop.now = LOAD_SECONDS / 2
    Worker(world, "x", 2 * TURN_SECONDS).begin()
    while world.loop.calls:
        world.turn()
    world.loop.wait()
    assert set(told) == {True}, "there was load meanwhile"
    world.loop.wait()
    assert told.count(False) == 1
    assert not told[-1]
    assert world.loop.now == pytest.approx(LOAD_SECONDS * 1.5)
    assert not world.loop.timers, "an idle loop is left alone"
    Worker(world, "x", 2 * TURN_SECONDS, line=STRANGERS).begin()
    while world.loop.calls:
        world.turn()
    assert not told[-1], "handshakes are no load"


def test_strangers_and_handshakes_have_the_time_that_all_others_leave_and_always_a_slice() -> None:
    world = World()
    for name, line in (("stranger", STRANGERS), ("handshake", HANDSHAKES)):
        for _ in range(50):
            Worker(world, name, 1.0, line=line).begin()
    for _ in range(60):
        world.turn()
    alone = Counter(name for _ in range(60) for name in world.turn())
    Worker(world, "consumer", 1.0).begin()
    Worker(world, "sender", 1.0, line=SENDERS).begin()
    world.turn()
    beside = Counter(name for _ in range(60) for name in world.turn())
    assert alone["stranger"] > 2 * beside["stranger"] > 0
    assert alone["handshake"] > 2 * beside["handshake"] > 0
    assert beside["stranger"] + beside["handshake"] <= min(beside["consumer"], beside["sender"])


def test_reports_are_taken_between_the_steps_of_connections() -> None:
    world = World()
    world.turns.between = lambda: world.ran.append("|")
    for _ in range(8):
        Worker(world, "x", 1.0).begin()
    turns = ["".join(world.turn()) for _ in range(30)]
    assert max(map(len, turns)) > 6, turns
    assert not any("xx" in steps for steps in turns), turns


def test_those_who_had_their_slice_are_not_forgotten_for_unauthenticated() -> None:
    world = World()
    Worker(world, "long", 1000 * SLICE_SECONDS).begin()
    served = 0
    for _ in range(20):
        for _ in range(10):
            Worker(world, "new", SLICE_SECONDS / 2).begin()
        served += "long" in world.turn()
    assert served >= 4, "beside newcomers that had a part of their slice"


def test_a_turn_ends_however_many_wait() -> None:
    world = World()
    for _ in range(50):
        Worker(world, "x", 1.0).begin()
    for _ in range(100):
        began = world.now
        world.turn()
        assert world.now - began <= TURN_SECONDS + SLICE_SECONDS + 1e-6
    assert world.turns.waiting == 50


class Sender:
    """Sends one message. Its receipt takes three more steps of the loop: it is handed to the store, the store reports
    it, and the output is written."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.began = 0.0
        self.waited: float | None = None
        self.left = 3

    def resume(self, until: float) -> None:
        self.began = self.world.now
        self.world.loop.call_soon(self.step)

    def step(self) -> None:
        self.left -= 1
        if self.left:
            self.world.loop.call_soon(self.step)
        else:
            self.waited = self.world.now - self.began


def test_a_receipt_waits_once_for_those_who_had_their_slice() -> None:
    world = World()
    for _ in range(50):
        Worker(world, "x", 1.0).begin()
    for _ in range(100):
        world.turn()
    for turn in range(30):
        for _ in range(turn % 3):
            world.turn()
        sender = Sender(world)
        world.turns.wait(sender, FRESH)
        while sender.waited is None:
            world.turn()
        # They have their time while the store writes.
        assert sender.waited <= TURN_SECONDS + 1e-6


def test_an_error_in_a_turn_does_not_end_the_turns() -> None:
    class Failing:
        def resume(self, until: float) -> None:
            raise RuntimeError

    world = World()
    Worker(world, "x", 1.0).begin()
    world.turns.wait(Failing(), FRESH)
    world.turns.wait(Failing(), SPENT)
    errors = 0
    for _ in range(30):
        try:
            world.turn()
        except RuntimeError:
            errors += 1
    assert errors == 2
    assert world.turns.waiting == 1
    assert "x" in [name for _ in range(3) for name in world.turn()]


def test_an_idle_loop_is_left_alone() -> None:
    world = World()
    Worker(world, "x", 2 * TURN_SECONDS).begin()
    while world.loop.calls:
        world.turn()
    assert world.now == pytest.approx(100.0 + 2 * TURN_SECONDS)
    assert world.turns.waiting == 0


def test_a_long_step_is_told_once_in_a_while_with_what_it_did(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING):
        world.turns.took(OVERLONG_SECONDS * 0.9, "c-1", [1])
        world.turns.took(OVERLONG_SECONDS * 2, "c-1", [1, "text", 2])
        world.turns.took(OVERLONG_SECONDS * 2, "c-2", [1])
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop was busy for 100 ms with input from c-1: int, str"
    ]
    assert world.turns.overlong == 2


class Idle:
    """Waits for its turn, and has nothing to do in it."""

    def resume(self, until: float) -> None: ...


async def test_a_client_beyond_its_share_waits_after_those_that_found_no_time(timed_bench: Any) -> None:
    await timed_bench.connected()
    (connection,) = timed_bench.server.connections
    turns = connection._turns
    connection.holder.is_beyond_share(10.0)  # a second begins
    for busy, has_others, is_understood in ((SHARE / 2, True, True), (SHARE, False, True), (0, True, False)):
        await timed_bench.until(lambda: not turns.waiting)
        connection.holder.busy += busy
        if has_others:
            turns.wait(Idle(), SPENT)
        before = len(timed_bench.engine.commands)
        connection.data_received(SEND % 1)
        assert (len(timed_bench.engine.commands) > before) is is_understood
    assert turns.lines[SPENT][-1] is connection
    await timed_bench.until(lambda: len(timed_bench.engine.commands) > before)
    assert connection.holder.is_beyond_share(10.5)
    assert not connection.holder.is_beyond_share(11.0), "each second begins anew"


async def test_time_used_long_ago_does_not_count_in_a_used_up_turn(timed_bench: Any) -> None:
    await timed_bench.connected()
    (connection,) = timed_bench.server.connections
    turns = connection._turns
    connection.holder.busy = 2 * SHARE
    turns.wait(Idle(), SPENT)
    clock, turns.clock = turns.clock, lambda: 100.0
    turns.ends = 99.0  # this turn's
    connection.data_received(SEND % 1)
    turns.clock = clock
    assert turns.lines[FRESH][-1] is connection


@pytest.mark.parametrize(("read_bytes", "is_read_on"), [(LONG_READ_BYTES, False), (LONG_READ_BYTES - 1, True)])
async def test_a_long_frame_is_read_for_a_part_of_each_turn(bench: Any, read_bytes: int, is_read_on: bool) -> None:
    _, connection = await bench.served()
    ticks, transport = count(), connection._transport
    turns = connection._turns
    turns.clock = lambda: next(ticks) * READ_SECONDS * 0.6
    turns.number += 1  # in the turn of the login, the time may be that of the former clock
    connection.data_received(b"SEND\ndestination:/queue/a\ncontent-length:1000000\n\n".ljust(read_bytes, b"x"))
    assert transport.is_reading(), "there is time left"
    connection.data_received(bytes(read_bytes))
    assert transport.is_reading() is is_read_on
    await bench.until(transport.is_reading)
