"""A WebSocket carries what a socket does: with a real client, whole, byte by byte and joined; and how it ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tandemmq.broker.net.server import Server
from tandemmq.broker.net.transport import TransportLimits
from tandemmq.broker.protocols.websocket.frames import BINARY, CLOSE, PING, PONG, TEXT
from tests.support.broker.websocket_peer import Peer, client_frame
from tests.support.client.idle_time import IdleTime

pytestmark = pytest.mark.promise("websocket")

CONNECT = "CONNECT\naccept-version:1.2\nhost:/\n\n\0"
STOMP = ("v12.stomp", "v11.stomp", "v10.stomp")


def url_of(server: Server) -> str:
    return f"ws://127.0.0.1:{server.addresses[0][2]}/stomp"


@asynccontextmanager
async def connected(server: Server, **options: Any) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """aiohttp's client."""
    options.setdefault("protocols", STOMP)
    async with aiohttp.ClientSession() as session, session.ws_connect(url_of(server), **options) as websocket:
        yield websocket


async def said(websocket: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMessage:
    return await websocket.receive(timeout=10)


async def test_a_client_sends_and_gets_what_it_sent(websockets: Any) -> None:
    async with websockets() as (server, _), connected(server) as websocket:
        assert websocket.protocol == "v12.stomp"
        await websocket.send_str(CONNECT)
        answer = await said(websocket)
        assert answer.type is aiohttp.WSMsgType.TEXT
        assert answer.data.startswith("CONNECTED\nversion:1.2\n")
        await websocket.send_str("SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0")
        await websocket.send_str("SEND\ndestination:/queue/a\nreceipt:r\n\nhell\u00f6\0")
        message, receipt = await said(websocket), await said(websocket)
        assert message.type is aiohttp.WSMsgType.TEXT
        assert message.data.endswith("\n\nhell\u00f6\0\n")
        assert receipt.data == "RECEIPT\nreceipt-id:r\n\n\0\n"


async def test_a_body_that_is_no_text_comes_as_a_binary_message(websockets: Any) -> None:
    body = os.urandom(100_000) + b"\xff\0"
    async with websockets() as (server, _), connected(server) as websocket:
        await websocket.send_bytes(CONNECT.encode())
        await said(websocket)
        await websocket.send_str("SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0")
        await websocket.send_bytes(b"SEND\ndestination:/queue/a\ncontent-length:%d\n\n%b\0" % (len(body), body))
        message = await said(websocket)
        assert message.type is aiohttp.WSMsgType.BINARY
        assert message.data.endswith(b"\n\n" + body + b"\0\n")
        await websocket.send_str("SEND\ndestination:/queue/a\n\nplain\0")
        assert (await said(websocket)).type is aiohttp.WSMsgType.TEXT


@pytest.mark.parametrize("size", [1, 2, 7, 64_000])
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
async def test_frames_of_stomp_may_be_split_over_messages_and_joined(websockets: Any, size: int, opcode: int) -> None:
    said_by_client = (
        CONNECT + "SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0\n" + "SEND\ndestination:/queue/a\n\nh\u00e4llo\0" * 3
    ).encode()
    async with websockets() as (server, _):
        peer = await Peer.of(server)
        for start in range(0, len(said_by_client), size):
            piece = said_by_client[start : start + size]
            # A character of a text message may not be split, unless the message goes on.
            kind = opcode if piece.isascii() else BINARY
            await peer.say(client_frame(kind, piece))
        kinds_and_bodies = [await peer.message() for _ in range(4)]
        assert [kind for kind, _ in kinds_and_bodies] == [TEXT] * 4
        assert kinds_and_bodies[0][1].startswith(b"CONNECTED")
        assert all(body.endswith("\n\nh\u00e4llo\0\n".encode()) for _, body in kinds_and_bodies[1:])
        peer.hang_up()


async def test_a_message_may_have_many_fragments_with_pings_between(websockets: Any) -> None:
    text = CONNECT.encode()
    async with websockets() as (server, _):
        peer = await Peer.of(server)
        await peer.say(client_frame(TEXT, text[:1], is_final=False))
        for each in text[1:-1]:
            await peer.say(client_frame(0, bytes((each,)), is_final=False) + client_frame(PING, b""))
        await peer.say(client_frame(0, text[-1:]))
        while (message := await peer.message())[0] == PONG:
            pass
        assert message[1].startswith(b"CONNECTED")
        peer.hang_up()


async def test_very_many_frames_in_one_piece_are_all_read(websockets: Any) -> None:
    async with websockets() as (server, engine):
        peer = await Peer.served(server)
        send = b"SEND\ndestination:/queue/a\n\nx\0"
        await peer.say(client_frame(TEXT, b"") * 50_000 + client_frame(TEXT, send) * 2_000)
        await peer.say(client_frame(TEXT, b"SEND\ndestination:/queue/a\nreceipt:r\n\nx\0"))
        assert await peer.message() == (TEXT, b"RECEIPT\nreceipt-id:r\n\n\0\n")
        assert len(engine.commands) == 2_002
        assert engine.memory.used < 1 << 20
        peer.hang_up()


async def test_a_close_is_answered_with_its_code(websockets: Any) -> None:
    async with websockets() as (server, engine):
        async with connected(server) as websocket:
            await websocket.send_str(CONNECT)
            await said(websocket)
            assert await websocket.close(code=4001, message=b"bye")
            assert websocket.close_code == 4001
        await until(lambda: "closed" in engine.events)


async def test_receipts_come_before_the_answer_to_a_close(websockets: Any) -> None:
    async with websockets() as (server, _):
        peer = await Peer.of(server)
        await peer.say(
            client_frame(TEXT, CONNECT.encode())
            + client_frame(TEXT, b"SEND\ndestination:/queue/a\nreceipt:r\n\n\0")
            + client_frame(CLOSE, b"")
        )
        assert (await peer.message())[1].startswith(b"CONNECTED")
        assert (await peer.message())[1].startswith(b"RECEIPT")
        assert await peer.message() == (CLOSE, b"")
        assert await peer.rest() == b""


@pytest.mark.parametrize(
    ("said_last", "answer"),
    [("DISCONNECT\nreceipt:bye\n\n\0", "RECEIPT"), ("NONSENSE\n\n\0", "ERROR\nmessage:Unknown STOMP command")],
)
async def test_the_last_word_of_stomp_comes_before_our_close(websockets: Any, said_last: str, answer: str) -> None:
    async with websockets() as (server, _), connected(server) as websocket:
        await websocket.send_str(CONNECT + said_last)
        await said(websocket)
        assert (await said(websocket)).data.startswith(answer)
        assert (await said(websocket)).type is aiohttp.WSMsgType.CLOSE
        assert websocket.close_code == 1000


async def test_a_silent_peer_gets_a_ping_and_is_then_disconnected(websockets: Any) -> None:
    async with websockets(ping_seconds=0.05) as (server, engine):
        peer = await Peer.served(server)
        assert await peer.message() == (PING, b"")
        await peer.rest()  # it ends
        await until(lambda: "closed" in engine.events)


@pytest.mark.parametrize("event_loop_policy", [IdleTime()], ids=["idle"])
async def test_a_peer_that_answers_pings_stays(websockets: Any) -> None:
    async with websockets(ping_seconds=0.5) as (server, _):
        peer = await Peer.served(server)
        for _ in range(3):
            assert await peer.message() == (PING, b"")
            await peer.say(client_frame(PONG, b""))
        await peer.say(client_frame(TEXT, b"SEND\ndestination:/queue/a\nreceipt:r\n\n\0"))
        assert (await peer.message())[1].startswith(b"RECEIPT")
        peer.hang_up()


async def test_heart_beats_of_stomp_are_messages(websockets: Any) -> None:
    async with websockets() as (server, _), connected(server) as websocket:
        await websocket.send_str("CONNECT\naccept-version:1.2\nhost:/\nheart-beat:0,50\n\n\0")
        await said(websocket)
        assert (await said(websocket)).data == "\n"


async def test_closing_the_server_says_so(websockets: Any) -> None:
    async with websockets() as (server, _), connected(server) as websocket:
        await websocket.send_str(CONNECT)
        await said(websocket)
        closing = asyncio.ensure_future(server.close())
        assert (await said(websocket)).type is aiohttp.WSMsgType.CLOSE
        await closing


async def test_aborting_the_server_ends_handshakes_too(websockets: Any) -> None:
    async with websockets() as (server, engine):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0][2])
        writer.write(b"GET / HTTP/1.1\r\n")
        await until(lambda: len(server.connections) == 1)
        await server.abort()
        assert await ended(reader)
        assert engine.events == []
        writer.close()


async def test_a_client_that_does_not_read_gets_no_more(websockets: Any) -> None:
    """Output waits in the kernel and in one buffer, which is counted; deliveries stop, and go on when it reads."""
    limits = TransportLimits(write_bytes_high=64 * 1024, write_bytes_low=16 * 1024)
    async with websockets(limits) as (server, engine):
        peer = await Peer.served(server)
        (connection,) = server.connections
        body = "x" * 10_000
        while connection.is_writable:
            connection.session.receipt(body)
            connection.touch()
            await asyncio.sleep(0)
        assert "writable" not in engine.events
        while "writable" not in engine.events:
            await peer.message()
        assert connection.is_writable
        peer.hang_up()


async def test_a_connection_that_is_not_to_be_read_is_not_read(websockets: Any) -> None:
    """The engine's pauses of reading reach the socket: the peer can send no more than the kernel's buffers take."""
    async with websockets() as (server, engine):
        peer = await Peer.served(server)
        (connection,) = server.connections
        connection.stop_reading()
        send = client_frame(BINARY, b"SEND\ndestination:/queue/a\ncontent-length:50000\n\n%b\0" % (b"x" * 50_000))
        count = 0
        while not peer.writer.transport.get_write_buffer_size():  # the kernel takes no more
            peer.writer.write(send)
            count += 1
            await asyncio.sleep(0)
        assert len(engine.commands) == 1
        assert engine.memory.used < 1 << 20
        connection.resume_reading()
        await until(lambda: len(engine.commands) == 1 + count)
        peer.hang_up()


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def ended(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(10):
        try:
            await reader.read()
        except ConnectionResetError:
            pass
        return True
