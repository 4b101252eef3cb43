"""STOMP by WebSocket from a real pair: nothing that was confirmed is lost when the master is killed, and a client with
two URLs goes on at the other broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import aiomqtt
import pytest

from tests.support.acceptance.broker_process import WebSocketBroker, starting

CONNECT = "CONNECT\naccept-version:1.2\nhost:/\n\n\0"
MESSAGES = 400


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[..., WebSocketBroker]]:
    with starting(tmp_path / "data", WebSocketBroker) as start:
        yield start


@asynccontextmanager
async def first_of(urls: list[str]) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A connection to the first that takes one, as a client with several URLs looks for it."""
    async with aiohttp.ClientSession() as session:
        async with asyncio.timeout(60):
            while True:
                for url in urls:
                    with suppress(aiohttp.ClientError, OSError):
                        websocket = await session.ws_connect(url, protocols=["v12.stomp"])
                        break
                else:
                    await asyncio.sleep(0.02)
                    continue
                break
        async with websocket:
            await websocket.send_str(CONNECT)
            answer = await websocket.receive(timeout=60)
            assert answer.data.startswith("CONNECTED"), answer
            yield websocket


class Lost(Exception):
    """The connection ended."""


async def frame(websocket: aiohttp.ClientWebSocketResponse) -> str:
    message = await websocket.receive(timeout=60)
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise Lost
    assert isinstance(message.data, str)
    return message.data


async def produce(urls: list[str], confirmed: list[int]) -> None:
    """MESSAGES of them, each until it is confirmed, by whichever broker."""
    while len(confirmed) < MESSAGES:
        with suppress(Lost, aiohttp.ClientError, OSError):
            async with first_of(urls) as websocket:
                while len(confirmed) < MESSAGES:
                    number = len(confirmed)
                    await websocket.send_str(
                        f"SEND\ndestination:/queue/a\npersistent:true\nreceipt:{number}\ntandemmq-send-id:p:{number}\n"
                        f"\nm{number}\0"
                    )
                    assert f"receipt-id:{number}\n" in await frame(websocket)
                    confirmed.append(number)


async def consume(urls: list[str], taken: list[int]) -> None:
    """Consume all present messages."""
    async with first_of(urls) as websocket:
        await websocket.send_str("SUBSCRIBE\nid:1\ndestination:/queue/a\nack:auto\n\n\0")
        while len(taken) < MESSAGES:
            body = (await frame(websocket)).partition("\n\n")[2]
            taken.append(int(body.removeprefix("m").rstrip("\0\n")))
        await websocket.send_str("DISCONNECT\nreceipt:bye\n\n\0")
        assert (await frame(websocket)).startswith("RECEIPT")  # and not one message more


@pytest.mark.promise("websocket")
async def test_a_client_with_two_urls_goes_on_when_the_master_is_killed(
    brokers: Callable[..., WebSocketBroker],
) -> None:
    first = brokers("a")
    await asyncio.to_thread(first.wait_role, "master")
    second = brokers("b")
    await asyncio.to_thread(second.wait_role, "standby")
    urls = [first.websocket_url, second.websocket_url]
    confirmed: list[int] = []
    taken: list[int] = []
    async with asyncio.timeout(120):
        producing = asyncio.ensure_future(produce(urls, confirmed))
        while len(confirmed) < MESSAGES // 2:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
        first.kill()
        await producing
        await consume(urls, taken)
    assert taken == list(range(MESSAGES))  # by their ids, none was stored twice


async def test_a_standby_refuses_websockets_and_a_handover_says_goodbye(
    brokers: Callable[..., WebSocketBroker],
) -> None:
    first = brokers("a")
    await asyncio.to_thread(first.wait_role, "master")
    second = brokers("b")
    await asyncio.to_thread(second.wait_role, "standby")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.ws_connect(second.websocket_url)
    async with first_of([first.websocket_url]) as websocket:
        ending = asyncio.ensure_future(asyncio.to_thread(first.terminate))
        assert (await websocket.receive(timeout=60)).type is aiohttp.WSMsgType.CLOSE
        assert websocket.close_code == 1000
        assert await ending == 0
    async with first_of([first.websocket_url, second.websocket_url]) as websocket:
        await websocket.send_str("SEND\ndestination:/queue/a\nreceipt:1\n\n\0")
        assert (await frame(websocket)).startswith("RECEIPT")


@pytest.mark.promise("websocket", "protocols-meet")
async def test_mqtt_by_websocket_and_stomp_meet(brokers: Callable[..., WebSocketBroker]) -> None:
    broker = brokers("a")
    await asyncio.to_thread(broker.wait_role, "master")
    async with (
        asyncio.timeout(60),
        aiomqtt.Client(
            "127.0.0.1", broker.websocket, transport="websockets", protocol=aiomqtt.ProtocolVersion.V5
        ) as client,
        first_of([broker.websocket_url]) as websocket,
    ):
        await client.subscribe("news/#", qos=1)
        await websocket.send_str("SUBSCRIBE\nid:1\ndestination:/topic/news.>\nreceipt:s\n\n\0")
        assert (await frame(websocket)).startswith("RECEIPT")
        await client.publish("news/sport", "x" * 300_000, qos=1)  # in packets of the client's own making
        assert (await frame(websocket)).endswith(f"\n\n{'x' * 300_000}\0\n")
        came = await anext(aiter(client.messages))
        assert (str(came.topic), len(came.payload)) == ("news/sport", 300_000)
        await websocket.send_str("SEND\ndestination:/topic/news.weather\n\nrain\0")
        came = await anext(aiter(client.messages))
        assert (str(came.topic), came.payload) == ("news/weather", b"rain")
