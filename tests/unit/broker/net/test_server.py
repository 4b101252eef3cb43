"""Ports: had at start or refused with the reason, silent on a standby, free again after each term."""

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


def test_a_taken_port_is_named_with_the_reason(make_server: Callable[..., Server]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            BindError, match=rf"cannot bind 127.0.0.1:{port}: Address already in use \(EADDRINUSE\)"
        ) as e:
            make_server(port=port).bind()
        assert e.value.errno == errno.EADDRINUSE


def test_two_standbys_do_not_share_a_port(make_server: Callable[..., Server]) -> None:
    port = free_port()
    first = make_server(port=port)
    first.bind()
    try:
        with pytest.raises(BindError):
            make_server(port=port).bind()
    finally:
        first.unbind()


@pytest.mark.parametrize(
    ("host", "reason"), [("203.0.113.1", "EADDRNOTAVAIL"), ("no.such.host.invalid", "getaddrinfo")]
)
def test_an_address_of_another_machine_is_refused(host: str, reason: str) -> None:
    server = Server([Connector("stomp", host, 0, lambda id: pytest.fail("nobody connects"))])
    with pytest.raises(BindError, match=rf"connector stomp: cannot bind {host}:0: .*{reason}"):
        server.bind()


def test_a_server_that_is_not_bound_yet_has_no_address(make_server: Callable[..., Server]) -> None:
    """The admin server answers before the ports are there."""
    assert make_server(port=free_port()).addresses == []


def test_a_failed_bind_holds_no_port(make_server: Callable[..., Server]) -> None:
    port = free_port()
    (good,) = make_server(port=port)._connectors
    server = Server([good, good._replace(host="203.0.113.1")])
    with pytest.raises(BindError):
        server.bind()
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_a_standby_refuses_at_once(make_server: Callable[..., Server]) -> None:
    server = make_server()
    server.bind()
    try:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.addresses[0][2])
    finally:
        server.unbind()


@pytest.mark.parametrize("ending", ["close", "abort"])
async def test_a_term_ends_and_the_next_has_the_same_port(
    make_server: Callable[..., Server], make_engine: Any, ending: str
) -> None:
    server = make_server()
    server.bind()
    _, _, port = server.addresses[0]
    ids = []
    for term in (1, 2, 3):
        engine = make_engine()
        await server.listen(engine, f"ID:a-{term}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"CONNECT\naccept-version:1.2\n\n\0")
        frame = await reader.readuntil(b"\0")
        ids += [connection.id for connection in server.connections]
        assert f"session:{ids[-1]}".encode() in frame
        await getattr(server, ending)()
        # A peer that has not hung up yet does not hold up what comes after a close.
        assert len(server.connections) == (ending == "close")
        writer.transport.abort()
        await server.lingered()
        assert not server.connections
        # The engine of a term that was aborted is of no use any more; else it hears of every end.
        assert engine.events == (["opened", "closed"] if ending == "close" else ["opened"])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    server.unbind()
    assert ids == ["ID:a-1-1", "ID:a-2-2", "ID:a-3-3"]


async def test_close_writes_what_was_promised(bench_of: Any) -> None:
    async with bench_of() as bench:
        client = await bench.connected()
        (connection,) = bench.server.connections
        connection.session.receipt("promised")
        closing = asyncio.create_task(bench.server.close())
        assert await client.rest() == b"\nRECEIPT\nreceipt-id:promised\n\n\0\n"
        client.hang_up()
        await closing


async def test_abort_writes_nothing_more(bench_of: Any) -> None:
    async with bench_of() as bench:
        client = await bench.connected()
        (connection,) = bench.server.connections
        connection.session.receipt("never")
        connection.touch()
        await bench.server.abort()
        with pytest.raises((ConnectionResetError, AssertionError)):
            assert b"never" in await client.rest()


async def test_close_is_over_in_time_though_a_client_does_not_hang_up(bench_of: Any) -> None:
    async with bench_of() as bench:
        clients = [await bench.client() for _ in range(3)]
        for client in clients:
            await client.connect()
            client.writer.transport.pause_reading()
        async with asyncio.timeout(10):
            await bench.server.close(seconds_max=0.05)
            await bench.server.lingered(seconds_max=0.05)
        assert not bench.server._servers


async def test_close_hangs_up_though_nobody_knows_whether_it_may_speak(bench_of: Any) -> None:
    """A master that was stopped in its handover, and deposed meanwhile: its clients must not wait for it for ever."""
    async with bench_of() as bench:
        client = await bench.connected()
        (connection,) = bench.server.connections
        bench.engine.is_sure = False
        connection.session.receipt("never")
        async with asyncio.timeout(10):
            await bench.server.close(seconds_max=0.05)
            with pytest.raises((ConnectionResetError, AssertionError)):
                assert b"never" in await client.rest()


async def test_who_may_be_deposed_says_nothing_until_he_knows(bench_of: Any) -> None:
    """A process that slept finds requests in its sockets. A successor may rule: they are not answered yet."""
    async with bench_of() as bench:
        client = await bench.connected()
        bench.engine.is_sure = False
        await client.say(b"SEND\ndestination:/queue/q\nreceipt:late\n\nx\0")
        while "look" not in bench.engine.events:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.frame()
        bench.engine.is_sure = True
        assert b"receipt-id:late" in await client.frame()


async def test_who_may_be_deposed_does_not_take_leave_either(bench_of: Any) -> None:
    async with bench_of() as bench:
        client = await bench.connected()
        bench.engine.is_sure = False
        await client.say(b"DISCONNECT\nreceipt:bye\n\n\0")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.frame()
        bench.engine.is_sure = True
        assert b"receipt-id:bye" in await client.rest()


async def test_who_may_be_deposed_still_shows_life(bench_of: Any) -> None:
    """A disk that is slow for a while costs no client its connection."""
    async with bench_of() as bench:
        client = await bench.client()
        await client.say(b"CONNECT\naccept-version:1.2\nheart-beat:0,100\n\n\0")
        await client.frame()
        bench.engine.is_sure = False
        assert await client.reader.readexactly(3) == b"\n\n\n"
