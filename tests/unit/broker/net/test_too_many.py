"""More connections than permitted: served clients continue, and a new client that logs in gets a place."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

import tandemmq.broker.net.server
from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.process.machine import CONNECTIONS_MIN, RESERVE_MIN, connections_max
from tandemmq.broker.protocols.stomp.session import StompSession

pytestmark = pytest.mark.promise("limits-after-login")

SEND = b"SEND\ndestination:/queue/a\nreceipt:r\n\n\0"
ROOM = 6


@pytest.fixture
async def server(make_engine: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """Two connectors: the first for 4 connections, both for ROOM."""
    monkeypatch.setattr(tandemmq.broker.net.server, "SILENT_SECONDS_MIN", 0.05)
    make_session = partial(StompSession, secret=lambda: "secret", clock=lambda: 0)
    server = Server(
        [
            Connector("few", "127.0.0.1", 0, make_session, connections_max=4),
            Connector("many", "127.0.0.1", 0, make_session),
        ],
        ROOM,
    )
    server.bind()
    await server.listen(make_engine(), "ID:t")
    yield server
    await server.abort()
    server.unbind()


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, server: Server, connector: int) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", server.addresses[connector][2]))

    async def ask(self, data: bytes) -> bytes:
        self.writer.write(data)
        async with asyncio.timeout(10):
            return (await self.reader.readuntil(b"\0")).lstrip(b"\n")

    async def connected(self) -> Peer:
        assert (await self.ask(b"CONNECT\n\n\0")).startswith(b"CONNECTED")
        return self

    async def is_cut_off(self) -> bool:
        async with asyncio.timeout(10):
            return await self.reader.read() == b""


async def test_a_silent_connection_makes_room(server: Server) -> None:
    served = [await (await Peer.of(server, 1)).connected() for _ in range(2)]
    silent = [await Peer.of(server, 1) for _ in range(ROOM - 2)]
    await asyncio.sleep(0.1)
    newcomer = await (await Peer.of(server, 1)).connected()
    assert await silent[0].is_cut_off()
    for each in (*served, newcomer):
        assert (await each.ask(SEND)).startswith(b"RECEIPT")
    for each in (*silent, *served, newcomer):
        each.writer.close()


async def test_a_connection_beyond_the_limit_is_refused_with_the_reason(server: Server) -> None:
    served = [await (await Peer.of(server, 1)).connected() for _ in range(ROOM)]
    refused = await (await Peer.of(server, 1)).ask(b"")
    assert b"Too many connections" in refused
    assert f"The file descriptors allow {ROOM} connections".encode() in refused
    served.pop().writer.close()
    async with asyncio.timeout(10):
        while len(server.connections) == ROOM:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
    served.append(await (await Peer.of(server, 0)).connected())
    for each in served:
        each.writer.close()


async def test_a_connector_counts_its_own(server: Server) -> None:
    others = [await (await Peer.of(server, 1)).connected() for _ in range(2)]
    few = [await (await Peer.of(server, 0)).connected() for _ in range(3)]
    silent = await Peer.of(server, 0)
    await asyncio.sleep(0.1)
    few.append(await (await Peer.of(server, 0)).connected())
    assert await silent.is_cut_off()
    assert b"maximumConnections of this connector is 4." in await (await Peer.of(server, 0)).ask(b"")
    for each in (*others, *few):
        each.writer.close()


async def test_a_connector_of_several_addresses_counts_all_of_them(
    make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.1", "127.0.0.2")]
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        server = Server(
            [
                Connector(
                    "both", "two", 0, partial(StompSession, secret=lambda: "secret", clock=lambda: 0), connections_max=2
                )
            ]
        )
        server.bind()
    await server.listen(make_engine(), "ID:t")
    port = server.addresses[0][2]
    opened = [await asyncio.open_connection(host, port) for host in ("127.0.0.1", "127.0.0.2", "127.0.0.1")]
    *served, refused = [Peer(*each) for each in opened]
    for each in served:
        await each.connected()
    assert b"maximumConnections of this connector is 2." in await refused.ask(b"")
    for each in (*served, refused):
        each.writer.close()
    await server.abort()
    server.unbind()


@pytest.mark.parametrize(
    ("limit", "expected"), [(64, CONNECTIONS_MIN), (256, 256 - RESERVE_MIN), (1024, 768), (65536, 49152)]
)
def test_some_descriptors_are_kept_for_the_store(limit: int, expected: int) -> None:
    assert connections_max(limit) == expected
