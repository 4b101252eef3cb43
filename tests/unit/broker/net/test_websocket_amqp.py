"""AMQP 1.0 over WebSocket (subprotocol `amqp`): frames are independent of the borders of messages."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiohttp
import pytest

from tandemmq.broker.core.commands import Connect, LogIn
from tandemmq.broker.net.origins import Origins
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.transport import TransportLimits
from tandemmq.broker.net.websocket import WebSocketOptions, of_amqp
from tandemmq.broker.protocols.amqp import frames, schema
from tandemmq.broker.protocols.amqp.codec import read_composite, write_composite
from tandemmq.broker.protocols.amqp.frames import FrameCutter, frame_of
from tandemmq.broker.protocols.amqp.types import Reader
from tandemmq.broker.protocols.websocket.frames import BINARY, TEXT
from tandemmq.broker.security.tls import subject
from tests.support.broker.websocket_peer import Peer, client_frame
from tests.support.security.authority import Authority
from tests.unit.broker.net.conftest import amqp_session

pytestmark = pytest.mark.promise("websocket")

AMQP = "Sec-WebSocket-Protocol: amqp\r\n"
BEGIN = schema.Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
ALL = b"".join(
    (
        frames.SASL,
        frame_of(0, write_composite(schema.SaslInit("PLAIN", b"\0me\0word")), 1),
        frames.AMQP,
        *(frame_of(0, write_composite(each)) for each in (schema.Open("me"), BEGIN)),
    )
)


class Received:
    """Names of the headers and frames in the bytes that a client receives, in any pieces."""

    def __init__(self) -> None:
        self.cutter = FrameCutter(1 << 20)
        self.names: list[str] = []

    def feed(self, data: bytes) -> None:
        self.cutter.feed(data)
        while True:
            if len(self.names) in (0, 3):  # headers, before the mechanisms and before the open
                header = self.cutter.header()
                if header is None:
                    return
                self.names.append(header.decode("latin-1"))
                continue
            frame = self.cutter.next_frame()
            if frame is None:
                return
            self.names.append(type(read_composite(Reader(frame.body))).__name__)


EXPECTED = [
    frames.SASL.decode("latin-1"),
    "SaslMechanisms",
    "SaslOutcome",
    frames.AMQP.decode("latin-1"),
    "Open",
    "Begin",
]


@pytest.mark.parametrize("size", [1, 5, 64_000])
async def test_frames_can_be_split_and_joined_in_messages(websockets: Any, size: int) -> None:
    async with websockets() as (server, engine):
        peer = await Peer.of(server, AMQP)
        for start in range(0, len(ALL), size):
            await peer.say(client_frame(BINARY, ALL[start : start + size]))
        received = Received()
        while len(received.names) < len(EXPECTED):
            kind, data = await peer.message()
            assert kind == BINARY
            received.feed(data)
        assert received.names == EXPECTED
        assert [type(each) for each in engine.commands[:2]] == [LogIn, Connect]
        peer.hang_up()


async def test_text_is_refused(websockets: Any) -> None:
    async with websockets() as (server, engine):
        peer = await Peer.of(server, AMQP)
        await peer.say(client_frame(TEXT, b"AMQP"))
        code = await peer.message()
        assert int.from_bytes(code[1][:2]) == 1003
        assert not engine.commands
        peer.hang_up()


async def test_external_is_offered_to_a_client_with_a_certificate(authority: Authority, make_engine: Any) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.certificate("broker"))
    tls.load_verify_locations(authority.root)
    tls.verify_mode = ssl.CERT_OPTIONAL
    options = WebSocketOptions(of_amqp(amqp_session, TransportLimits()), Origins(), 1 << 20)
    server = Server([Connector("wss", "127.0.0.1", 0, amqp_session, tls=tls, subject=subject, websocket=options)])
    await server.listen(make_engine(), "ID:t")
    url = f"wss://127.0.0.1:{server.addresses[0][2]}/"
    trusting = ssl.create_default_context(cafile=str(authority.root))

    async def mechanisms(session: aiohttp.ClientSession) -> schema.SaslMechanisms:
        async with session.ws_connect(url, ssl=trusting, protocols=["amqp"]) as websocket:
            await websocket.send_bytes(frames.SASL)
            cutter = FrameCutter()
            while cutter.pending_bytes <= len(frames.SASL):
                cutter.feed((await websocket.receive(timeout=10)).data)
            assert cutter.header() == frames.SASL
            frame = cutter.next_frame()
            assert frame is not None
            found = read_composite(Reader(frame.body))
            assert isinstance(found, schema.SaslMechanisms)
            return found

    try:
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            assert "EXTERNAL" not in (await mechanisms(session)).sasl_server_mechanisms
            trusting.load_cert_chain(authority.certificate("client"))
            assert (await mechanisms(session)).sasl_server_mechanisms[0] == "EXTERNAL"
    finally:
        await server.abort()
        server.unbind()
