"""wss: the WebSocket of a connector with TLS, with the certificates of clients."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tandemmq.broker.net.origins import Origins
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.transport import TransportLimits
from tandemmq.broker.net.websocket import WebSocketOptions, of_stomp
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.broker.security.tls import subject
from tests.support.security.authority import Authority


@pytest.fixture
def authority(tmp_path: Path, require_program: Callable[[object, str], None]) -> Authority:
    require_program(shutil.which("openssl"), "no openssl in the path")
    return Authority(tmp_path, "root")


async def test_a_client_with_a_certificate_speaks_stomp(authority: Authority, make_engine: Any) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.certificate("broker"))
    tls.load_verify_locations(authority.root)
    tls.verify_mode = ssl.CERT_REQUIRED
    make_session = partial(StompSession, secret=lambda: "secret", clock=lambda: 0)
    options = WebSocketOptions(of_stomp(make_session, TransportLimits()), Origins(), 1 << 20)
    server = Server(
        [
            Connector(
                "wss", "127.0.0.1", 0, make_session, tls=tls, tls_handshake_seconds_max=5.0, subject=subject,
                connections_max=2, websocket=options,
            )
        ]
    )  # fmt: skip
    await server.listen(make_engine(), "ID:t")
    url = f"wss://127.0.0.1:{server.addresses[0][2]}/"
    trusting = ssl.create_default_context(cafile=str(authority.root))
    async with aiohttp.ClientSession() as session:
        for _ in range(3):  # who has no certificate takes no place
            with pytest.raises(aiohttp.ClientError):
                await session.ws_connect(url, ssl=trusting)
        trusting.load_cert_chain(authority.certificate("client"))
        async with session.ws_connect(url, ssl=trusting, protocols=["v12.stomp"]) as websocket:
            body = "x" * 900_000
            await websocket.send_str(
                "CONNECT\naccept-version:1.2\nhost:/\n\n\0SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0"
            )
            await websocket.send_str(f"SEND\ndestination:/queue/a\n\n{body}\0")
            assert (await websocket.receive(timeout=10)).data.startswith("CONNECTED")
            assert (await websocket.receive(timeout=10)).data.endswith(f"\n\n{body}\0\n")
            (connection,) = server.connections
            assert connection.certificate == "CN=client,O=Example"
    await server.abort()
    server.unbind()
