"""Ports of a server: bound at the start, or an error with the reason; closed on a standby and after each term."""

# proves: last-words-ask-too, outbox-asks-before-words

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.net.server import BindError, Connector, Server
from tandemmq.broker.net.transport import SHORT_BYTES_MAX
from tests.support.compiled import LOOKS_INTO_A_CLASS


def test_a_port_that_another_standby_has_is_named_with_the_reason(make_server: Callable[..., Server]) -> None:
    other = make_server()
    other.bind()
    port = other.addresses[0][2]
    with pytest.raises(BindError, match=rf"cannot bind 127.0.0.1:{port}: Address already in use \(EADDRINUSE\)") as e:
        make_server(port=port).bind()
    assert e.value.errno == errno.EADDRINUSE
    other.unbind()


@pytest.mark.parametrize(
    ("host", "reason"), [("203.0.113.1", "EADDRNOTAVAIL"), ("no.such.host.invalid", "getaddrinfo")]
)
def test_an_address_of_another_machine_is_refused(host: str, reason: str) -> None:
    server = Server([Connector("stomp", host, 0, lambda id: pytest.fail("nobody connects"))])
    with pytest.raises(BindError, match=rf"connector stomp: cannot bind {host}:0: .*{reason}"):
        server.bind()


def test_a_server_that_is_not_bound_yet_has_no_address(make_server: Callable[..., Server]) -> None:
    """The admin server answers before the ports are bound."""
    assert make_server(port=free_port()).addresses == []


def test_a_failed_bind_holds_no_port(make_server: Callable[..., Server]) -> None:
    port = free_port()
    (good,) = make_server(port=port)._connectors
    server = Server([good, good._replace(host="203.0.113.1")])
    with pytest.raises(BindError):
        server.bind()
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("ending", ["close", "abort"])
async def test_a_term_ends_and_the_next_has_the_same_port(
    make_server: Callable[..., Server], make_engine: Any, ending: str
) -> None:
    server = make_server()
    server.bind()
    _, _, port = server.addresses[0]
    ids = []
    for term in (1, 2, 3):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        engine = make_engine()
        await server.listen(engine, f"ID:a-{term}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"CONNECT\naccept-version:1.2\n\n\0")
        frame = await reader.readuntil(b"\0")
        ids += [connection.id for connection in server.connections]
        assert f"session:{ids[-1]}".encode() in frame
        await getattr(server, ending)()
        # A close does not wait for a client that has not disconnected yet.
        assert len(server.connections) == (ending == "close")
        writer.transport.abort()
        await server.lingered()
        assert not server.connections
        # After an abort, the engine is not used any more. After a close, it gets the end of each connection.
        assert engine.events == (["opened", "closed"] if ending == "close" else ["opened"])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    server.unbind()
    assert ids == ["ID:a-1-1", "ID:a-2-2", "ID:a-3-3"]


async def test_close_writes_what_was_promised(bench: Any) -> None:
    client, connection = await bench.served()
    connection.session.receipt("promised")
    closing = asyncio.create_task(bench.server.close())
    assert await client.rest() == b"\nRECEIPT\nreceipt-id:promised\n\n\0\n"
    client.hang_up()
    await closing


async def test_abort_writes_nothing_more(bench: Any) -> None:
    client, connection = await bench.served()
    connection.session.receipt("never")
    connection.touch()
    await bench.server.abort()
    with pytest.raises((ConnectionResetError, AssertionError)):
        assert b"never" in await client.rest()


async def test_close_is_over_in_time_though_a_client_does_not_hang_up(bench: Any) -> None:
    clients = [await bench.client() for _ in range(3)]
    for client in clients:
        await client.connect()
        client.writer.transport.pause_reading()
    async with asyncio.timeout(10):
        await bench.server.close(seconds_max=0.05)
        await bench.server.lingered(seconds_max=0.05)
    assert not bench.server._servers


async def test_close_hangs_up_though_nobody_knows_whether_it_may_speak(bench: Any) -> None:
    """A master is suspended during its handover, and deposed. Its clients must not wait for it for ever."""
    client, connection = await bench.served()
    bench.engine.is_sure = False
    connection.session.receipt("never")
    async with asyncio.timeout(10):
        await bench.server.close(seconds_max=0.05)
        with pytest.raises((ConnectionResetError, AssertionError)):
            assert b"never" in await client.rest()


class Noting:
    """Event loop that records the scheduled calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, scheduled: list[object]) -> None:
        self.time = loop.time
        self.call_soon = scheduled.append
        self.call_later = lambda seconds, call: scheduled.append(call)


@pytest.mark.parametrize("is_sure", [True, False])
async def test_receipts_of_reports_are_written_between_the_steps_of_a_turn(bench: Any, is_sure: bool) -> None:
    client, connection = await bench.served()

    def report() -> bool:
        connection.session.receipt("early")
        connection.touch()
        return True

    bench.engine.is_sure = is_sure
    bench.engine.take_reports = report
    bench.server._turns.between()
    assert (connection.session.pending_bytes == 0) is is_sure
    bench.engine.is_sure = True
    assert b"receipt-id:early" in await client.frame()


@LOOKS_INTO_A_CLASS
async def test_reports_between_steps_schedule_nothing_more(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flush that is scheduled already writes the rest, at most FLUSH_BYTES_MAX in a turn."""
    _, connection = await bench.served()
    loop = asyncio.get_running_loop()
    bench.engine.take_reports = lambda: True
    scheduled: list[object] = []
    for _ in range(10):
        connection.session.receipt("x" * 2 * SHORT_BYTES_MAX)  # much output: for the scheduled flush
        connection.touch()
        with monkeypatch.context() as patch:
            patch.setattr(bench.server._outbox, "_loop", Noting(loop, scheduled))
            bench.server._turns.between()
    assert not scheduled
    assert connection.session.pending_bytes > SHORT_BYTES_MAX


@pytest.mark.parametrize(
    "said", [b"SEND\ndestination:/queue/q\nreceipt:late\n\nx\0", b"DISCONNECT\nreceipt:late\n\n\0"]
)
async def test_a_broker_that_may_be_deposed_does_not_answer(bench: Any, said: bytes) -> None:
    """After a suspend, a process finds requests in its sockets. It does not answer them until it has checked that it is
    still the master."""
    client = await bench.connected()
    bench.engine.is_sure = False
    await client.say(said)
    await bench.until(lambda: "look" in bench.engine.events)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.frame()
    bench.engine.is_sure = True
    assert b"receipt-id:late" in await client.frame()


async def test_a_broker_that_may_be_deposed_still_sends_heart_beats(bench: Any) -> None:
    """Clients keep their connections while the disk is slow."""
    client = await bench.client()
    await client.say(b"CONNECT\naccept-version:1.2\nheart-beat:0,100\n\n\0")
    await client.frame()
    bench.engine.is_sure = False
    assert await client.reader.readexactly(3) == b"\n\n\n"
