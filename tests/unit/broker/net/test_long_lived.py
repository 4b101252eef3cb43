"""The garbage collector does not examine long-lived objects, and does not have to free the objects of ended clients."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Iterator

import pytest

from tandemmq.broker.admin.api.tasks import Task, Tasks
from tandemmq.broker.admin.callers import ANYBODY
from tandemmq.broker.admin.server import AdminServer
from tandemmq.broker.core.commands import ClientError, Unsubscribe
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import InProcessClient
from tandemmq.broker.engine.part import Loop
from tandemmq.broker.mqtt.clients import MqttClients
from tandemmq.broker.net.connectors import make_connector
from tandemmq.broker.net.server import Server
from tandemmq.broker.process.memory import GROWTH_BYTES, REFREEZE_SECONDS, LongLived
from tandemmq.broker.protocols.mqtt.packets import PacketType, Will
from tandemmq.broker.protocols.mqtt.properties import NONE
from tandemmq.broker.protocols.websocket.frames import TEXT
from tandemmq.config.mqtt import MqttSettings
from tandemmq.config.settings import BrokerSettings, ConnectorSettings
from tests.support.acceptance.mqtt_wire import Mqtt
from tests.support.acceptance.openwire_wire import OpenWire, queue
from tests.support.broker.websocket_peer import client_frame, request
from tests.support.store.memory_store import MemoryStore

CLIENTS = 5
CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"


@pytest.fixture
def collector() -> Iterator[None]:
    gc.collect()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.unfreeze()
    gc.enable()


def test_held_objects_become_permanent_as_they_grow(collector: None) -> None:
    now = 0.0
    long_lived = LongLived(lambda: now)
    before = gc.get_freeze_count()
    long_lived.update(GROWTH_BYTES - 1)
    assert gc.get_freeze_count() <= before  # what others hold may go meanwhile
    long_lived.update(GROWTH_BYTES)
    first = gc.get_freeze_count()
    assert first > before
    more = [[] for _ in range(1000)]
    long_lived.update(2 * GROWTH_BYTES - 1)
    assert gc.get_freeze_count() <= first
    long_lived.update(2 * GROWTH_BYTES)
    second = gc.get_freeze_count()
    assert second > first + len(more) // 2
    long_lived.update(0)
    more += [[] for _ in range(1000)]
    long_lived.update(2 * GROWTH_BYTES)
    assert gc.get_freeze_count() <= second, "so soon it is not done again for what fell and grew"
    now += REFREEZE_SECONDS
    long_lived.update(2 * GROWTH_BYTES)
    assert gc.get_freeze_count() > second
    long_lived.end()
    assert gc.get_freeze_count() == 0


async def stomp(port: int, *, is_polite: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
        b"SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client\n\n\0SUBSCRIBE\nid:1\ndestination:/topic/t.>\n\n\0"
        b"SEND\ndestination:/topic/t.1\n\nhello\0SEND\ndestination:/queue/q\n\nhello\0BEGIN\ntransaction:1\n\n\0"
        b"SEND\ndestination:/temp-queue/mine\nreply-to:/temp-queue/mine\nreceipt:a\n\n\0"
    )
    await reader.readuntil(b"receipt-id:a")
    if is_polite:
        writer.write(b"DISCONNECT\nreceipt:b\n\n\0")
        await reader.readuntil(b"receipt-id:b")
    writer.close()


def openwire(port: int) -> None:
    client = OpenWire(port)
    client.connect()
    client.consume(queue("q"))
    client.send(queue("q"), b"hello")
    client.socket.close()


def mqtt(port: int, *, lasts: bool) -> None:
    with Mqtt(port) as client:
        client.connect("c", lasts=lasts, will=Will("t/will", b"gone", 1, True, NONE))
        client.subscribe("t/+", "q/#", qos=2)
        for qos in (1, 2):
            client.publish("t/1", b"hello", qos=qos, retain=True, id=qos)
        client.hear_of(PacketType.PUBLISH)  # and has it not


async def says(port: int, *said: bytes) -> None:
    """Send the text, and return the first bytes of an answer, or that there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for each in said:
        writer.write(each)
        await reader.read(1 << 16)
    writer.close()


async def test_a_client_that_left_is_freed_without_the_collector(collector: None) -> None:
    loop = asyncio.get_running_loop()
    store = MemoryStore(loop.call_soon)
    engine = Engine(store, EngineSettings(), Loop(lambda: 1000, loop.call_later))
    store.start(engine)
    settings = [ConnectorSettings(uri=f"{kind}://127.0.0.1:0") for kind in ("stomp", "openwire", "mqtt", "ws")]
    hooks = MqttSettings(), MqttClients("a", 100, 1 << 20, 0, lambda: 1000)
    hooks[1].begin(engine)
    server = Server(
        [
            make_connector(each, BrokerSettings(name="a"), "", lambda: 1000, itertools.count(1), None, 10.0, mqtt=hooks)
            for each in settings
        ]
    )
    server.bind()
    await server.listen(engine, "ID:x")
    ports = {name: port for name, _, port in server.addresses}

    async def clients() -> None:
        for number in range(CLIENTS):
            await stomp(ports["stomp"], is_polite=number % 2 == 0)
            await asyncio.to_thread(openwire, ports["openwire"])
            await asyncio.to_thread(mqtt, ports["mqtt"], lasts=number % 2 == 0)
            await says(ports["ws"], request(more="Sec-WebSocket-Protocol: v12.stomp\r\n"), client_frame(TEXT, CONNECT))
            await says(ports["ws"], request(), client_frame(3, b"of no kind"))
            await says(ports["ws"], request(), client_frame(TEXT, b"\xff"))
            inside = InProcessClient(engine, Principal("inside"), f"ID:in-{number}", "inside")
            with pytest.raises(ClientError):
                await inside.do(Unsubscribe("none"))
            engine.closed(inside)
            for port in ports.values():
                await says(port)
                await says(port, b"\0\0\0\0nonsense\r\n\r\n\0")
        async with asyncio.timeout(10):
            while server.connections or engine.memory.by_kind["state"] > 50_000:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)

    await clients()  # what is made once
    gc.collect()
    gc.disable()
    await clients()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    left = [repr(each) for each in gc.garbage if type(each).__module__.startswith("tandemmq.")]
    assert left == []
    await server.abort()
    hooks[1].end()


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"\xff is no request\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\ncut", b""),
        (b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" * 3, b""),
    ],
)
async def test_a_connection_of_the_admin_port_is_freed_without_the_collector(
    collector: None, said: bytes, status: bytes
) -> None:
    server = AdminServer("127.0.0.1", 0, lambda: {"role": "master"})
    server.bind()
    await server.start()

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        writer.write(said)
        if status:
            assert (await reader.readline()).split()[1] == status
        writer.close()
        await asyncio.sleep(0.05)

    await ask()  # what is made once
    gc.collect()
    gc.disable()
    await ask()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    left = [repr(each) for each in gc.garbage if type(each).__module__.startswith("tandemmq.")]
    assert left == []
    await server.stop()


async def test_a_task_that_was_refused_holds_no_frames(collector: None) -> None:
    tasks = Tasks()

    async def work(task: Task) -> None:
        raise ClientError("no")

    task = tasks.begin("purge", "queue://a", ANYBODY, work)
    await task.over.wait()
    assert task.refusal is not None
    assert task.refusal.__traceback__ is None
