"""OpenWire connections have a time limit for the login, even if they send KeepAliveInfo."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tandemmq.broker.net.server import Connector, Server
from tandemmq.broker.net.transport import TransportLimits
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED, WireFormat
from tandemmq.broker.protocols.openwire.frames import FrameCutter
from tandemmq.broker.protocols.openwire.session import OpenWireSession
from tandemmq.broker.protocols.openwire.types import ConnectionId
from tandemmq.broker.protocols.openwire.wireformat import Greeting
from tests.support.client.idle_time import IdleTime
from tests.support.protocols.openwire.peer import info

LIMITS = TransportLimits(login_seconds_max=0.2, check_seconds=0.02)
WIRE = WireFormat(11)


class Talker:
    """A client that greeted, and says that it is alive."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.heard: list[object] = []
        writer.write(STORED.encode(info(11)))

    def say(self, command: schema.Command) -> None:
        self._writer.write(WIRE.encode(command))

    async def beat(self, seconds: float) -> bool:
        """Send KeepAliveInfo for this time. Return whether the broker closed the connection before."""
        cutter = FrameCutter(1 << 20)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            self.say(schema.KeepAliveInfo())
            try:
                async with asyncio.timeout(0.02):
                    data = await self._reader.read(1 << 16)
            except TimeoutError:
                continue
            if not data:
                return True
            cutter.feed(data)
            while (frame := cutter.next_frame()) is not None:
                self.heard.append(WIRE.decode(frame))
        return False

    def hang_up(self) -> None:
        self._writer.transport.abort()


async def talk(make_engine: Callable[..., Any], *value: schema.Command) -> tuple[bool, list[object]]:
    greeting = Greeting("b", "ID:b", "tcp://b:1")
    make_session = partial(
        OpenWireSession, clock=lambda: time.time_ns() // 1_000_000, sequences=itertools.count(), greeting=greeting
    )
    server = Server([Connector("openwire", "127.0.0.1", 0, make_session, LIMITS)])
    server.bind()
    await server.listen(make_engine(), "ID:b")
    talker = Talker(*await asyncio.open_connection("127.0.0.1", server.addresses[0][2]))
    try:
        for command in value:
            talker.say(command)
        return await talker.beat(1.0), talker.heard
    finally:
        talker.hang_up()
        await server.close()


async def test_a_client_that_only_keeps_alive_without_a_login_is_disconnected_with_the_reason(make_engine: Any) -> None:
    is_over, heard = await talk(make_engine)
    assert is_over
    (error,) = [each for each in heard if isinstance(each, schema.ConnectionError)]
    assert error.exception is not None
    assert "No login was received" in str(error.exception)


@pytest.mark.parametrize("event_loop_policy", [IdleTime()], ids=["idle"])
async def test_a_client_with_a_login_stays(make_engine: Any) -> None:
    login = schema.ConnectionInfo(
        command_id=1, response_required=True, connection_id=ConnectionId("ID:c"), client_id="c"
    )
    is_over, heard = await talk(make_engine, login)
    assert not is_over
    assert any(isinstance(each, schema.Response) for each in heard)
