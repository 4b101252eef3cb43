"""Clients that misbehave get an error that names it, or are disconnected. A well-behaved client is not affected."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.openwire import schema
from tests.support.acceptance.broker_process import BrokerProcess, WebSocketBroker, serving
from tests.support.acceptance.good_client import GoodClient, living
from tests.support.acceptance.openwire_wire import OpenWire, queue
from tests.support.acceptance.stomp_wire import Wire

CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
MISTAKES = {
    "a malformed frame": (CONNECT + b"SEND\nthis is no header\n\nbody\0", "header"),
    "an unknown command": (CONNECT + b"DANCE\n\n\0", "DANCE"),
    "a missing header": (CONNECT + b"SEND\n\nbody\0", "destination"),
    "a command before CONNECT": (b"SEND\ndestination:/queue/x\n\nbody\0", "CONNECT"),
    "a version nobody speaks": (b"CONNECT\naccept-version:9.9\nhost:x\n\n\0", "9.9"),
    "a header line over the limit": (CONNECT + b"SEND\nh:" + b"x" * 20_000 + b"\n\n\0", "header line"),
    "too many headers": (CONNECT + b"SEND\n" + b"a:b\n" * 1_100 + b"\n\0", "1000"),
    "a content-length that is none": (CONNECT + b"SEND\ndestination:/queue/x\ncontent-length:many\n\n\0", "many"),
    "an undefined escape": (CONNECT + b"SEND\ndestination:/queue/x\nh:\\q\n\n\0", "escape"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("bad-input")
    config = directory / "tandemmq.toml"
    made = BrokerProcess(directory / "data", "a", "--config", str(config))
    config.write_text(f'[[connectors]]\nuri = "stomp://127.0.0.1:{made.stomp}?wireFormat.maxFrameSize=1mb"\n')
    made.leaves_stomp_to_settings = True
    with serving(made):
        yield made


@pytest.mark.promise("stomp-errors-are-named")
@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_is_named_and_nobody_else_notices(broker: BrokerProcess, mistake: str) -> None:
    data, word = MISTAKES[mistake]
    async with living(GoodClient(broker)) as good:
        await good.goes_on()
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.stomp)
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(), 10)  # to the end: the connection is closed
        assert b"ERROR\n" in answer
        assert word in answer.decode(), answer
        writer.close()
        await good.goes_on()


@pytest.mark.promise("vanished-client")
async def test_a_client_that_vanishes_loses_nothing_that_others_need(broker: BrokerProcess) -> None:
    async with living(GoodClient(broker)) as good:
        taker = await Wire.open(broker.stomp)
        for number in range(5):
            taker.send("SEND", {"destination": "/queue/left", "persistent": "true", "receipt": str(number)}, b"x")
            assert (await taker.read()).command == "RECEIPT"
        taker.send("SUBSCRIBE", {"id": "0", "destination": "/queue/left", "ack": "client"})
        for _ in range(5):
            assert (await taker.read()).command == "MESSAGE"
        taker.reset()
        await good.goes_on()
    heir = await Wire.open(broker.stomp)
    heir.send("SUBSCRIBE", {"id": "0", "destination": "/queue/left", "ack": "auto"})
    frames = [await asyncio.wait_for(heir.read(), 10) for _ in range(5)]
    assert {frame.headers.get("redelivered") for frame in frames} == {"true"}
    heir.close()


@pytest.mark.promise("slow-readers")
async def test_a_client_that_never_reads_holds_up_nobody_and_fills_no_memory(broker: BrokerProcess) -> None:
    def resident_kib() -> int:
        status = Path(f"/proc/{broker.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])

    async with living(GoodClient(broker)) as good:
        _, writer = await asyncio.open_connection("127.0.0.1", broker.stomp, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(CONNECT + b"SUBSCRIBE\nid:0\ndestination:/topic/much\nack:auto\n\n\0")
        writer.write(b"SUBSCRIBE\nid:1\ndestination:/queue/much\nack:auto\n\n\0")
        await good.goes_on()
        before = resident_kib()
        sender = await Wire.open(broker.stomp)
        for number in range(100):
            for destination in ("/queue/much", "/topic/much"):
                headers = {"destination": destination, "persistent": "true", "receipt": f"{destination}{number}"}
                sender.send("SEND", headers, b"x" * 500_000)
            for _ in range(2):
                assert (await asyncio.wait_for(sender.read(), 10)).command == "RECEIPT"
        await good.goes_on()
        assert resident_kib() - before < 80_000, "100 MB were sent to one who does not read"
        writer.transport.abort()
        await good.goes_on()
        sender.close()


BODIES, BODY_BYTES = 4, 50 << 20
PAUSE_SECONDS = 2.0


def test_several_wait_and_are_given_one_after_the_other_as_it_reads(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "a")
    openwire = broker.openwire = free_port()
    with serving(broker):
        sender = OpenWire(openwire).connect()
        body = BODY_BYTES.to_bytes(4, "big") + zlib.compress(b"\1" * BODY_BYTES)
        for _ in range(BODIES):  # short as they are sent: they are given out together
            sender.send(queue("long"), make=schema.ActiveMQBytesMessage, content=body, compressed=True)
        sender.close()
        with socket.create_connection(("127.0.0.1", broker.stomp), 30) as reader:
            reader.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0SUBSCRIBE\nid:0\ndestination:/queue/long\n\n\0")
            time.sleep(PAUSE_SECONDS)
            received = 0
            while received < BODIES * BODY_BYTES:
                data = reader.recv(1 << 20)
                assert data, f"hung up after {received} bytes"
                received += len(data)


LOSSES = 12  # more than any message may come back from lost consumers


@pytest.mark.promise("redelivery-is-bounded")
@pytest.mark.parametrize("how", ["reset", "unsubscribe"])
async def test_a_client_that_leaves_before_its_message_is_inflated_has_not_seen_it(tmp_path: Path, how: str) -> None:
    broker = BrokerProcess(tmp_path / "data", "a")
    openwire = broker.openwire = free_port()
    with serving(broker):
        sender = OpenWire(openwire).connect()
        text = zlib.compress(BODY_BYTES.to_bytes(4, "big") + b"x" * BODY_BYTES)
        sender.send(queue("long"), content=text, compressed=True)
        sender.close()
        for _ in range(LOSSES):
            wire = await Wire.open(broker.stomp)
            wire.send("SUBSCRIBE", {"id": "0", "destination": "/queue/long", "ack": "client", "receipt": "r"})
            assert (await wire.read()).command == "RECEIPT"  # the message is being inflated now
            if how == "reset":
                wire.reset()
                continue
            wire.send("UNSUBSCRIBE", {"id": "0", "receipt": "u"})
            assert (await wire.read()).headers["receipt-id"] == "u"
            wire.close()
        wire = await Wire.open(broker.stomp)
        wire.send("SUBSCRIBE", {"id": "0", "destination": "/queue/ActiveMQ.DLQ.>", "ack": "auto"})
        wire.send("SUBSCRIBE", {"id": "1", "destination": "/queue/long", "ack": "client"})
        message = await asyncio.wait_for(wire.read(), 60)
        wire.close()
    assert (message.headers["subscription"], len(message.body)) == ("1", BODY_BYTES)
    assert "redelivered" not in message.headers


GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300,  # a TLS handshake begins
    b"\xff" * 300,
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET /%zz HTTP/9.9\r\nHost: [::1\r\nOrigin: http://[\r\nContent-Length: -1\r\n\r\n",
    b"\x10\xff\xff\xff\xff\xff" + b"\0" * 300,  # an MQTT packet whose length does not end
    b"\0\0\0\x20\x01ActiveMQ\xff\xff\xff\xff" + b"\xff" * 300,  # a greeting of OpenWire, of no version
)


def test_garbage_on_any_port_is_one_line_a_minute_and_kind(tmp_path: Path) -> None:
    """Of each port and each kind of garbage, twenty times."""
    broker = WebSocketBroker(tmp_path / "data", "a")
    openwire, mqtt = free_port(), free_port()
    broker.options += ("--openwire", f"127.0.0.1:{openwire}", "--mqtt", f"127.0.0.1:{mqtt}")
    with serving(broker):
        broker.wait_role("master")
        began = len(broker.log.read_text())
        ports = (broker.stomp, broker.admin, openwire, mqtt, broker.websocket)
        for port in ports:
            for garbage in GARBAGE * 20:
                with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), 20) as client:
                    client.sendall(garbage)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(1 << 16):
                        pass
        assert broker.wait_role("master")["epoch"] == 1
        told = broker.log.read_text()[began:]
    assert "Traceback" not in told
    lines = told.splitlines()
    assert len(lines) <= len(ports) * len(GARBAGE), "not more than kinds"
    assert max(map(len, lines), default=0) <= 500
