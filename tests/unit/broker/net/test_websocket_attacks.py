"""Attacks by WebSocket: each ends with its own connection, and uses no more than its bound."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

import tandemmq.broker.net.server
from tandemmq.broker.core.memory import CONNECTION_BYTES, Kind
from tandemmq.broker.net.origins import Origins
from tandemmq.broker.net.server import Server
from tandemmq.broker.net.transport import TransportLimits
from tandemmq.broker.protocols.websocket.frames import BINARY, CLOSE, PING, PONG, TEXT, CloseCode
from tandemmq.broker.protocols.websocket.upgrade import REQUEST_BYTES_MAX
from tests.support.broker.websocket_peer import Peer, client_frame, request

CONNECT = client_frame(TEXT, b"CONNECT\naccept-version:1.2\nhost:/\n\n\0")
RECEIPT = client_frame(TEXT, b"SEND\ndestination:/queue/a\nreceipt:r\n\n\0")


async def opened(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.addresses[0][2])


async def answer_to(server: Server, data: bytes) -> tuple[int, bytes]:
    """Status and body of what the server says before it hangs up."""
    reader, writer = await opened(server)
    writer.write(data)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def code_for(peer: Peer, *sent: bytes) -> int:
    """Return the code with which the server closes."""
    for each in sent:
        peer.writer.write(each)
    while (message := await peer.message())[0] != CLOSE:
        pass
    (code,) = struct.unpack_from(">H", message[1])
    peer.hang_up()
    return int(code)


async def test_a_huge_message_is_refused_by_its_head(websockets: Any) -> None:
    async with websockets(message_bytes_max=1 << 20) as (server, engine):
        peer, other = await Peer.served(server), await Peer.served(server)
        head = b"\x82\xff" + struct.pack(">Q", 1 << 40) + b"mask"
        assert await code_for(peer, head, b"x" * (1 << 20)) == CloseCode.MESSAGE_TOO_BIG
        assert engine.memory.used < 1 << 20
        await other.say(RECEIPT)
        assert (await other.message())[1].startswith(b"RECEIPT")
        other.hang_up()


async def test_a_huge_frame_of_stomp_over_many_messages_is_refused_as_over_tcp(websockets: Any) -> None:
    async with websockets() as (server, _):
        peer = await Peer.of(server)
        await peer.say(client_frame(TEXT, b"CONNECT\n"))
        for _ in range(200):
            peer.writer.write(client_frame(TEXT, b"a:%b\n" % (b"x" * 400)))
        assert b"The maximum number of headers" in (await peer.message())[1]
        assert (await peer.message())[0] == CLOSE
        peer.hang_up()


async def test_frames_that_are_not_whole_count_in_the_budget(websockets: Any) -> None:
    async with websockets() as (server, engine):
        peer = await Peer.served(server)
        await peer.say(
            client_frame(BINARY, b"SEND\ndestination:/queue/a\ncontent-length:3000000\n\n" + b"x" * 2_000_000)
        )
        async with asyncio.timeout(10):
            while engine.memory.used < 1_900_000:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)
        peer.hang_up()
        async with asyncio.timeout(10):
            while engine.memory.used:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("end", ["refused", "leaves", "late", "closed"])
async def test_a_request_that_is_under_way_counts(websockets: Any, end: str) -> None:
    async with websockets(handshake_seconds_max=0.2 if end == "late" else 10.0) as (server, engine):
        begun = b"GET / HTTP/1.1\r\nCookie: " + b"x" * 9_000
        _, writer = await opened(server)
        writer.write(begun)
        await until(lambda: engine.memory.by_kind[Kind.INPUT] == CONNECTION_BYTES + len(begun))
        if end == "refused":
            writer.write(b"\r\n\r\n")
        elif end == "leaves":
            writer.transport.abort()
        elif end == "closed":
            await server.abort()
        await until(lambda: engine.memory.used == 0)
        writer.transport.abort()


async def test_the_memory_of_a_request_is_released_with_it(websockets: Any) -> None:
    async with websockets() as (server, engine):
        peer = await Peer.served(server)
        assert engine.memory.by_kind[Kind.INPUT] == 0
        peer.hang_up()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)


async def test_a_compression_bomb_is_not_inflated(websockets: Any) -> None:
    """Compression is offered, and not agreed upon; who compresses all the same breaks the protocol."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflate.compress(bytes(100 << 20)) + deflate.flush(zlib.Z_SYNC_FLUSH)
    async with websockets() as (server, engine):
        async with aiohttp.ClientSession() as session:
            url = f"ws://127.0.0.1:{server.addresses[0][2]}/"
            async with session.ws_connect(url, compress=15, protocols=["v12.stomp"]) as websocket:
                assert not websocket.compress
        peer = await Peer.of(server, "Sec-WebSocket-Extensions: permessage-deflate\r\n")
        assert await code_for(peer, client_frame(BINARY, bomb, rsv=0x40)) == CloseCode.PROTOCOL_ERROR
        assert engine.memory.used < 1 << 20


async def test_a_slow_handshake_is_cut_off_in_time(websockets: Any) -> None:
    async with websockets(handshake_seconds_max=0.2) as (server, engine):
        status, body = await answer_to(server, b"GET / HTTP/1.1\r\nHost: a\r\n")
        assert status == 408
        assert b"complete within 0.2 s" in body
        assert engine.events == []  # the engine got no event of it


async def test_a_websocket_that_never_says_connect_is_cut_off(websockets: Any) -> None:
    async with websockets(TransportLimits(connect_seconds_max=0.2)) as (server, _):
        peer = await Peer.of(server)
        assert b"No CONNECT came" in (await peer.message())[1]
        assert (await peer.message())[0] == CLOSE
        peer.hang_up()


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "hosts"),
    [
        (None, "anything.example", [], []),
        ("http://127.0.0.1:8161", "127.0.0.1:61614", [], []),
        ("https://mq.example.org", "mq.example.org:61614", [], ["MQ.example.org"]),
        ("http://[::1]:80", "[::1]:61614", [], []),
        ("https://Shop.example", "mq.example.org", ["https://shop.example"], []),
        ("null", "localhost", ["null"], []),
        ("http://evil.example", "mq.example.org", ["*"], []),
    ],
)
async def test_a_page_may_connect(
    websockets: Any, origin: str | None, host: str, allowed: list[str], hosts: list[str]
) -> None:
    async with websockets(None, Origins(allowed, hosts)) as (server, _):
        reader, writer = await opened(server)
        writer.write(request(host, "" if origin is None else f"Origin: {origin}\r\n"))
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")
        writer.close()


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://evil.example", "127.0.0.1:61614"),
        ("null", "127.0.0.1"),
        ("http://evil.example", "evil.example:61614"),  # DNS rebinding
        ("ftp://127.0.0.1", "127.0.0.1"),
        ("http://127.0.0.1.evil.example", "127.0.0.1"),
        ("http://[", "["),
        ("", ""),
    ],
)
async def test_a_page_of_a_foreign_site_may_not(websockets: Any, origin: str, host: str) -> None:
    async with websockets(None, Origins(["https://shop.example"])) as (server, engine):
        status, body = await answer_to(server, request(host, f"Origin: {origin}\r\n"))
        assert status == 403
        assert b"websocket.allowed_origins" in body
        assert engine.events == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"CONNECT\naccept-version:1.2\n\n\0", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (request(more="Sec-WebSocket-Protocol: wamp.2.json\r\n"), 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 426),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * REQUEST_BYTES_MAX, 431),
    ],
)
async def test_a_client_of_another_protocol_gets_an_http_error(websockets: Any, sent: bytes, status: int) -> None:
    async with websockets() as (server, _):
        assert (await answer_to(server, sent))[0] == status


async def test_a_connection_beyond_the_limit_is_refused_and_a_silent_one_makes_room(
    websockets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tandemmq.broker.net.server, "SILENT_SECONDS_MIN", 0.0)
    async with websockets(connections_max=4) as (server, _):
        peers = [await Peer.served(server) for _ in range(2)]
        silent_in_handshake, silent = await opened(server), await Peer.of(server)
        peers += [await Peer.served(server) for _ in range(2)]
        async with asyncio.timeout(10):
            assert await silent_in_handshake[0].read() == b""
        await silent.rest()
        status, body = await answer_to(server, b"")
        assert status == 503
        assert b"maximumConnections of this connector is 4." in body
        for peer in peers:
            await peer.say(RECEIPT)
            assert (await peer.message())[1].startswith(b"RECEIPT")
            peer.hang_up()
        silent_in_handshake[1].close()


async def test_pings_of_who_does_not_read_are_not_answered_without_end(websockets: Any) -> None:
    limits = TransportLimits(write_bytes_high=64 * 1024, write_bytes_low=16 * 1024)
    async with websockets(limits) as (server, engine):
        peer = await Peer.served(server)
        (connection,) = server.connections
        while connection.is_writable:
            connection.session.receipt("x" * 10_000)
            connection.touch()
            await asyncio.sleep(0)
        held = engine.memory.used
        for _ in range(2_000):
            peer.writer.write(client_frame(PING, b"p" * 100))
            await asyncio.sleep(0)
        peer.writer.write(client_frame(PING, b"the last"))
        async with asyncio.timeout(10):
            while connection._transport._frames.ping != b"the last":  # noqa: ASYNC110 - read, and not answered
                await asyncio.sleep(0.005)
        assert engine.memory.used <= held + 20_000
        while (message := await peer.message())[0] != PONG:
            pass
        assert message[1] == b"the last"
        peer.hang_up()


async def test_very_many_empty_frames_leave_their_turns_to_others(websockets: Any) -> None:
    async with websockets() as (server, engine):
        busy, other = await Peer.served(server), await Peer.served(server)
        frames = client_frame(BINARY, b"") * 40_000
        flooding = asyncio.ensure_future(_flood(busy, frames, 20))
        for _ in range(20):
            await other.say(RECEIPT)
            assert (await other.message())[1].startswith(b"RECEIPT")
        assert engine.memory.used < 4 << 20
        flooding.cancel()
        for peer in (busy, other):
            peer.hang_up()


async def _flood(peer: Peer, data: bytes, times: int) -> None:
    for _ in range(times):
        await peer.say(data)
