"""Expectations of other projects' STOMP suites (docs/compatibility.md) on which clients may rely, over plain
sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.stomp_wire import Frame, Wire, send

SECONDS_MAX = 10.0
SETTINGS = """\
[[connectors]]
uri = "stomp://127.0.0.1:{}?transport.defaultHeartBeat=3000,3000"

[[connectors]]
uri = "tcp://127.0.0.1:{}"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    broker = BrokerProcess(directory / "data", "a", "--config", str(directory / "settings.toml"))
    broker.openwire = broker.stomp + 1
    broker.leaves_stomp_to_settings = True
    (directory / "settings.toml").write_text(SETTINGS.format(broker.stomp, broker.openwire))
    with serving(broker):
        yield broker


async def hear(wire: Wire) -> Frame:
    return await asyncio.wait_for(wire.read(), SECONDS_MAX)


async def store(wire: Wire, queue: str, *bodies: str) -> None:
    for body in bodies:
        await send(wire, queue, body)
        assert (await hear(wire)).command == "RECEIPT"


async def subscribe(wire: Wire, destination: str, id: str = "s", **headers: str) -> None:
    wire.send("SUBSCRIBE", {"id": id, "destination": destination, "receipt": id, **headers})
    assert (await hear(wire)).headers == {"receipt-id": id}


async def held(wire: Wire, queue: str, id: str = "look") -> list[str]:
    """Return the content of the queue."""
    wire.send("SUBSCRIBE", {"id": id, "destination": queue, "browser": "true"})
    found = []
    while (frame := await hear(wire)).headers.get("browser") != "end":
        found.append(frame.body.decode())
    return found


@pytest.mark.promise("stomp-acknowledges")
@pytest.mark.parametrize("mode", ["client", "client-individual"])
async def test_acks_of_a_transaction_may_come_in_any_order(broker: BrokerProcess, mode: str) -> None:
    wire, queue = await Wire.open(broker.stomp, **{"accept-version": "1.1"}), f"/queue/order.{mode}"
    await store(wire, queue, "1", "2")
    await subscribe(wire, queue, ack=mode)
    first, second = await hear(wire), await hear(wire)
    wire.send("BEGIN", {"transaction": "t"})
    for frame in (second, first):
        ids = {"subscription": "s", "message-id": frame.headers["message-id"].replace(":", "\\c")}
        wire.send("ACK", {**ids, "transaction": "t"})
    wire.send("COMMIT", {"transaction": "t", "receipt": "done"})
    assert (await hear(wire)).headers == {"receipt-id": "done"}
    wire.send("UNSUBSCRIBE", {"id": "s"})
    assert await held(wire, queue) == []
    wire.close()


@pytest.mark.promise("stomp-acknowledges")
async def test_nack_of_the_mode_client_is_for_all_up_to_that_one(broker: BrokerProcess) -> None:
    wire = await Wire.open(broker.stomp)
    await store(wire, "/queue/nack", "1", "2", "3")
    await subscribe(wire, "/queue/nack", ack="client")
    tags = [(await hear(wire)).headers["ack"] for _ in range(3)]
    wire.send("NACK", {"id": tags[1], "receipt": "done"})
    assert (await hear(wire)).headers == {"receipt-id": "done"}
    wire.send("UNSUBSCRIBE", {"id": "s"})
    assert await held(wire, "/queue/ActiveMQ.DLQ.Queue.nack") == ["1", "2"]
    assert await held(wire, "/queue/nack", "rest") == ["3"]
    wire.close()


@pytest.mark.promise("stomp-versions")
def test_1_0_has_the_heart_beat_of_its_connector(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.stomp), SECONDS_MAX) as old:
        old.sendall(b"CONNECT\n\n\0")
        assert b"heart-beat:3000,3000" in old.recv(1000)


@pytest.mark.promise("stomp-versions")
async def test_1_0_unsubscribes_by_destination(broker: BrokerProcess) -> None:
    old, new = await Wire.open(broker.stomp, **{"accept-version": "1.0"}), await Wire.open(broker.stomp)
    old.send("SUBSCRIBE", {"destination": "/queue/old"})
    old.send("UNSUBSCRIBE", {"destination": "/queue/old", "receipt": "gone"})
    assert (await hear(old)).headers == {"receipt-id": "gone"}
    await store(old, "/queue/old", "x")
    assert await held(new, "/queue/old") == ["x"]
    for wire in (old, new):
        wire.close()
