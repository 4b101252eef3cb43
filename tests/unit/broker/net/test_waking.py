"""A session with output but without input gets a turn: soon, once, and not while it is held back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from tandemmq.broker.core.commands import Command, Disconnect, SetPrefetch
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.transport import Connection
from tandemmq.broker.net.turns import FRESH
from tandemmq.broker.protocols.output import asleep

# So many commands it gives at once.
GIVEN_MAX = 2


class WakingSession:
    """Session that outputs the bytes set by the test; ``received``: its input."""

    survives_errors = False
    can_pull = False
    pending_bytes = 0
    unfinished_bytes = 0
    is_connected = True
    is_logged_in = True
    send_interval_ms = 0
    receive_interval_ms = 0

    def __init__(self) -> None:
        self.wake: Callable[[], None] = asleep
        self.received: list[bytes] = []
        self.waiting: deque[Command] = deque()
        self.disconnect: Command | None = None

    @property
    def has_more(self) -> bool:
        return bool(self.waiting)

    def give(self, *prefetches: int) -> None:
        """Add the commands that it returns next."""
        self.waiting.extend(SetPrefetch("s", prefetch) for prefetch in prefetches)
        self.wake()

    def set_wake(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def receive(self, data: bytes) -> Sequence[Command]:
        self.received.append(data)
        return [self.waiting.popleft() for _ in range(min(GIVEN_MAX, len(self.waiting)))]

    def peer_disconnect(self) -> Command | None:
        return self.disconnect

    def end(self) -> None:
        self.waiting.clear()

    def set_output(self, has_room: Callable[[], bool], count_waiting: Callable[[int], None]) -> None: ...

    def set_certificate(self, certificate: str) -> None: ...

    def tell_brokers(self) -> None:
        pass

    def receipt(self, receipt: object) -> None:
        pass


class Bench:
    """One connection of a :class:`WakingSession`, its peer, and the engine."""

    def __init__(
        self, connection: Connection, engine: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connection = connection
        self.session: Any = connection.session
        self.engine = engine
        self.reader = reader
        self.writer = writer

    @property
    def given(self) -> list[int]:
        """Return the commands that the session gave and that were carried out."""
        return [each.prefetch for each in self.engine.commands if isinstance(each, SetPrefetch)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.001)

    async def turns(self) -> None:
        """Wait for more turns of the loop than any action here needs."""
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def bench(make_engine: Any) -> AsyncIterator[Bench]:
    engine = make_engine()
    server = Server([Connector("waking", "127.0.0.1", 0, lambda id: WakingSession())])
    server.bind()
    await server.listen(engine, "ID:t-1")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0][2])
    async with asyncio.timeout(10):
        while not engine.events:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.001)
    (connection,) = server.connections
    yield Bench(connection, engine, reader, writer)
    writer.transport.abort()
    await server.abort()
    server.unbind()


async def test_a_session_that_wakes_gets_turns_without_input_until_it_has_no_more(bench: Bench) -> None:
    bench.session.give(1)
    assert bench.given == [], "not within what it was called by"
    bench.session.give(2)
    await bench.turns()
    assert bench.given == [1, 2]
    assert bench.session.received == [b""], "to wake again is no second turn"
    bench.session.give(*range(5 * GIVEN_MAX))
    await bench.turns()
    assert bench.given == [1, 2, *range(5 * GIVEN_MAX)]
    assert bench.session.received == [b""] * 6


async def test_a_session_that_the_engine_delays_gets_its_turn_afterwards(bench: Bench) -> None:
    bench.connection.stop_reading()
    bench.session.give(1)
    await bench.turns()
    assert bench.given == []
    bench.connection.resume_reading()
    await bench.turns()
    assert bench.given == [1]
    assert bench.session.received == [b""]


async def test_a_session_that_is_delayed_during_its_turn_gets_it_afterwards(bench: Bench) -> None:
    bench.session.give(1)
    bench.connection.stop_reading()
    await bench.turns()
    assert bench.given == []
    bench.connection.resume_reading()
    await bench.turns()
    assert bench.given == [1]


async def test_input_received_during_the_delay_comes_after_the_sessions_own_commands(bench: Bench) -> None:
    bench.connection.stop_reading()
    bench.connection.data_received(b"said")
    bench.session.give(1)
    bench.connection.resume_reading()
    await bench.turns()
    assert bench.session.received == [b"", b"said"]
    assert bench.given == [1]


async def test_input_before_the_requested_turn_may_be_passed_at_once(bench: Bench) -> None:
    bench.session.give(*range(GIVEN_MAX + 1))
    bench.connection.data_received(b"said")
    assert bench.session.received[0] == b"said"
    await bench.turns()  # on a busy machine its time in this one is over
    assert bench.given == list(range(GIVEN_MAX + 1))
    assert bench.session.received == [b"said", b""], "and there is no turn for nothing"


async def test_a_session_that_wakes_within_its_turn_is_served_in_it(bench: Bench) -> None:
    handle = bench.engine.handle

    def handle_and_tell(connection: Connection, command: Any) -> None:
        handle(connection, command)
        if command.prefetch < 3:
            bench.session.give(command.prefetch + 1)

    bench.engine.handle = handle_and_tell
    bench.session.give(1)
    await bench.turns()
    assert bench.given == [1, 2, 3]
    assert bench.session.received == [b""] * 3


async def test_the_peer_is_read_all_the_time(bench: Bench) -> None:
    for number in range(100):
        bench.session.give(number)
        bench.writer.write(b"x")
        await bench.turns()
    await bench.until(lambda: b"".join(bench.session.received) == b"x" * 100)
    assert bench.given == list(range(100))


async def test_a_half_close_of_the_peer_comes_after_its_waiting_commands(bench: Bench) -> None:
    bench.session.disconnect = Disconnect()
    bench.connection.stop_reading()
    bench.session.give(1)
    bench.connection.eof_received()
    assert bench.engine.commands == []
    bench.connection.resume_reading()
    await bench.turns()
    assert [type(each) for each in bench.engine.commands] == [SetPrefetch, Disconnect]


async def test_after_the_end_it_wakes_nobody(bench: Bench) -> None:
    bench.session.give(1)
    bench.connection.abort()
    bench.session.give(2)
    await bench.turns()
    assert bench.session.received == []
    assert bench.session.wake is asleep, "it holds its connection no more"


async def test_others_have_their_turn_however_often_it_wakes(bench: Bench) -> None:
    made: list[int] = []

    class Other:
        def resume(self, until: float) -> None:
            made.append(len(bench.engine.commands))

    handle = bench.engine.handle

    def handle_and_tell(connection: Connection, command: Any) -> None:
        handle(connection, command)
        bench.session.give(command.prefetch + 1)

    bench.engine.handle = handle_and_tell
    bench.session.give(1)
    await bench.turns()
    before = len(bench.engine.commands)
    bench.connection._turns.wait(Other(), FRESH)
    await bench.until(lambda: bool(made))
    bench.engine.handle = handle
    assert made[0] >= before > 0
