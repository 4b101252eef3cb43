"""Attacks of WebSocket clients on a real broker with little memory, and their effect on a well-behaved client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tandemmq.broker.protocols.websocket.frames import BINARY, TEXT
from tests.support.acceptance import mqtt_attacks
from tests.support.acceptance.broker_process import WebSocketBroker, serving
from tests.support.acceptance.good_client import GoodClient, living
from tests.support.broker.websocket_peer import client_frame, request

CONNECT = client_frame(TEXT, b"CONNECT\naccept-version:1.2\nhost:/\n\n\0")
MIB = 1 << 20
MEMORY_LIMIT_MIB, GROWTH_MIB_MAX = 32, 128
CLIENTS = 24
Attack = Callable[[int], Awaitable[None]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSocketBroker]:
    data = tmp_path_factory.mktemp("attacks") / "data"
    limit = ("--set", f"broker.memory_limit={MEMORY_LIMIT_MIB}mb")
    with serving(WebSocketBroker(data, "a", *limit)) as (broker,):
        yield broker


async def opened_for_mqtt(port: int) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(more="Sec-WebSocket-Protocol: mqtt\r\n") + client_frame(BINARY, mqtt_attacks.connect("")))
    await reader.readuntil(b"\x82")  # CONNACK's frame
    return reader, writer


async def opened(port: int) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(more="Sec-WebSocket-Protocol: v12.stomp\r\n") + CONNECT)
    await reader.readuntil(b"CONNECTED")
    return reader, writer


async def says(port: int, *pieces: bytes, of: Callable[[int], Awaitable[Streams]] = opened) -> None:
    """Wait until the text comes, the broker closes the connection, or the time is over."""
    with suppress(ConnectionError, EOFError, TimeoutError):
        async with asyncio.timeout(5):
            _, writer = await of(port)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            writer.transport.abort()


async def frames_that_are_not_whole(port: int) -> None:
    head = b"SEND\ndestination:/queue/a\ncontent-length:8000000\n\n"
    with suppress(ConnectionError, EOFError, TimeoutError):
        async with asyncio.timeout(5):
            _, writer = await opened(port)
            writer.write(client_frame(BINARY, head + bytes(4 * MIB)))
            await writer.drain()
            await asyncio.sleep(2)  # and holds it
            writer.transport.abort()


async def subscribers_that_do_not_read(port: int) -> None:
    subscribe = client_frame(TEXT, b"SUBSCRIBE\nid:1\ndestination:/topic/t\n\n\0")
    send = client_frame(BINARY, b"SEND\ndestination:/topic/t\ncontent-length:100000\n\n%b\0" % bytes(100_000))
    await says(port, subscribe, *[send] * 20)


async def mqtt_pings_whose_answers_are_not_read(port: int) -> None:
    await says(port, *[client_frame(BINARY, mqtt_attacks.PING * 20_000)] * 10, of=opened_for_mqtt)


BYTE_BY_BYTE = b"".join(client_frame(BINARY, bytes([each])) for each in mqtt_attacks.publish("t", bytes(4_000)))


async def mqtt_packets_of_a_byte_a_frame(port: int) -> None:
    await says(port, *[BYTE_BY_BYTE] * 5, of=opened_for_mqtt)


@pytest.mark.parametrize(
    "attack",
    [
        frames_that_are_not_whole,
        subscribers_that_do_not_read,
        mqtt_pings_whose_answers_are_not_read,
        mqtt_packets_of_a_byte_a_frame,
    ],
)
async def test_a_good_client_is_served_and_memory_is_bounded(broker: WebSocketBroker, attack: Attack) -> None:
    before = await asyncio.to_thread(broker.wait_role, "master")
    memory = peak_mib(broker.pid)
    async with living(GoodClient(broker)) as client:
        await asyncio.gather(*(attack(broker.websocket) for _ in range(CLIENTS)))
        await client.goes_on(5)
    after = await asyncio.to_thread(broker.wait_role, "master")
    assert (after["epoch"], after["counts"]["promotions_total"]) == (before["epoch"], 1)
    assert peak_mib(broker.pid) - memory < GROWTH_MIB_MAX


def peak_mib(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) // 1024
