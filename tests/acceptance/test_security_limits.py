"""Clients that send too much, too slowly, or data that expands too much, on a running broker with other clients."""

from __future__ import annotations

import contextlib
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.engine.declarations import TEMPORARIES_MAX
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.frames import HANDSHAKE_BYTES_MAX
from tandemmq.broker.protocols.openwire.types import MessageId, ProducerId
from tandemmq.broker.protocols.openwire.wireformat import our_info
from tandemmq.broker.protocols.stomp.session import CONNECT_BYTES_MAX
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import INFLATED_BYTES_MAX
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.dripping import is_let_drip
from tests.support.acceptance.openwire_wire import INFO, OpenWire, Refused, queue, topic
from tests.support.acceptance.stomp_wire import Wire

MIB = 1 << 20
FRAME_MAX = 2 * MIB
CONNECTIONS_MAX = 3
SETTINGS = f"""\
[[connectors]]
uri = "stomp://127.0.0.1:{{stomp}}?wireFormat.maxFrameSize={FRAME_MAX}&transport.connectAttemptTimeout=1000"
[[connectors]]
uri = "openwire://127.0.0.1:{{openwire}}?wireFormat.maxFrameSize={FRAME_MAX}&transport.connectAttemptTimeout=1000"
[[connectors]]
uri = "stomp://127.0.0.1:{{few}}?maximumConnections={CONNECTIONS_MAX}"

[store]
journal_max_file_length = "4mb"
filtered_persistence_adapters = [{{{{ per_destination = true }}}}]
"""
CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"


class Bounded(BrokerProcess):
    """A broker with low limits, and a separate store for each queue: the names of queues become directories."""

    def __init__(self, directory: Path) -> None:
        settings = directory / "tandemmq.toml"
        super().__init__(directory / "data", "a", "--config", str(settings))
        self.leaves_stomp_to_settings = True
        self.openwire, self.few = free_port(), free_port()
        settings.write_text(SETTINGS.format(stomp=self.stomp, openwire=self.openwire, few=self.few))

    def memory_max(self) -> int:
        """The most it ever had, in bytes."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bounded]:
    with serving(Bounded(tmp_path_factory.mktemp("bounded"))) as (broker,):
        yield broker


async def serves_others(broker: Bounded) -> None:
    wire = await Wire.open(broker.stomp)
    wire.send("SEND", {"destination": "/queue/others", "receipt": "r", "persistent": "true"}, b"x")
    assert (await wire.read()).command == "RECEIPT"
    wire.close()


def hears(port: int, *parts: bytes) -> bytes:
    """Return the answer to ``parts`` until the broker closes the connection."""
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        heard = b""
        try:
            for part in parts:
                client.sendall(part)
            while more := client.recv(1 << 16):
                heard += more
        except ConnectionError:
            pass
        return heard


# ---- too much


@pytest.mark.promise("limits-before-login")
def test_openwire_before_the_login_is_short(broker: Bounded) -> None:
    client = OpenWire(broker.openwire).greet()
    client.socket.sendall(struct.pack(">i", HANDSHAKE_BYTES_MAX + 1) + b"\3")
    with pytest.raises((Refused, ConnectionError)):
        client.ask(schema.KeepAliveInfo)
    assert client.is_closed()


@pytest.mark.promise("limits-before-login")
def test_stomp_before_connect_is_short(broker: Bounded) -> None:
    assert str(CONNECT_BYTES_MAX).encode() in hears(broker.stomp, b"CONNECT\n\n" + b"x" * (CONNECT_BYTES_MAX + 1))
    assert b"100 headers" in hears(broker.stomp, b"CONNECT\n" + b"a:b\n" * 500)


@pytest.mark.promise("limits-after-login")
def test_stomp_after_connect_is_as_long_as_the_connector_says(broker: Bounded) -> None:
    # Nobody waits for CONNECTED to send more.
    body = b"x" * (FRAME_MAX - 1000)
    heard = hears(
        broker.stomp,
        CONNECT + b"SEND\ndestination:/queue/long\nreceipt:r\ncontent-length:%d\n\n" % len(body) + body + b"\0",
        b"SEND\ndestination:/queue/long\nreceipt:long\ncontent-length:%d\n\n" % (16 * FRAME_MAX),
        *[body] * 16 + [bytes(16_000)],
        b"\0DISCONNECT\nreceipt:end\n\n\0",
    )
    assert b"receipt-id:r\n" in heard
    assert b"receipt-id:long\n" in heard
    assert str(FRAME_MAX).encode() in heard
    assert b"RECEIPT\nreceipt-id:end\n" in heard, "the connection stays"


@pytest.mark.promise("limits-after-login")
def test_a_message_of_openwire_that_is_too_long_is_refused_alone(broker: Bounded) -> None:
    client = OpenWire(broker.openwire).connect()
    client.send(queue("long"), b"x" * (FRAME_MAX - 1000))
    before = broker.memory_max()
    with pytest.raises(Refused, match=f"the maximum is {FRAME_MAX}") as refused:
        client.send(queue("long"), b"x" * (32 * FRAME_MAX))
    assert refused.value.kind == "ResourceAllocationException"
    assert broker.memory_max() - before < 8 * FRAME_MAX, "it is not held"
    client.send(queue("long"), b"x")
    client.close()


@pytest.mark.promise("limits-after-login")
def test_a_connection_too_many_is_told_so(broker: Bounded) -> None:
    held = [socket.create_connection(("127.0.0.1", broker.few), 20) for _ in range(CONNECTIONS_MAX)]
    for each in held:
        each.sendall(CONNECT)
        assert each.recv(100).startswith(b"CONNECTED")
    assert b"Too many connections" in hears(broker.few)
    held.pop().close()
    wait_until(lambda: _is_welcome(broker.few), "the place is free again")
    for each in held:
        each.close()


def _is_welcome(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        client.sendall(CONNECT)
        return client.recv(100).startswith(b"CONNECTED")


async def test_temporary_queues_have_a_bound(broker: Bounded) -> None:
    client = OpenWire(broker.openwire).connect()
    for number in range(TEMPORARIES_MAX):
        client.create(Destination(DestinationKind.TEMP_QUEUE, f"{client.id}:{number}"))
    with pytest.raises(Refused, match=f"More than {TEMPORARIES_MAX} temporary") as refused:
        client.create(Destination(DestinationKind.TEMP_QUEUE, f"{client.id}:more"))
    assert refused.value.kind == "ResourceAllocationException"
    await serves_others(broker)
    client.close()


@pytest.mark.promise("limits-after-login")
async def test_subscriptions_have_a_bound(broker: Bounded) -> None:
    client = OpenWire(broker.openwire).connect()
    for _ in range(1000):
        client.consume(queue("subscribed"))
    with pytest.raises(Refused, match="More than 1000 subscriptions"):
        client.consume(queue("subscribed"))
    await serves_others(broker)
    client.close()


# ---- too slowly


@pytest.mark.parametrize(("protocol", "beginning"), [("stomp", b"CONNECT\nh:"), ("openwire", INFO[:5])])
def test_who_drips_before_he_says_who_he_is_has_a_time(broker: Bounded, protocol: str, beginning: bytes) -> None:
    with socket.create_connection(("127.0.0.1", getattr(broker, protocol)), 20) as client:
        client.sendall(beginning)
        assert not is_let_drip(client, b"x")  # longer than the connector's second


@pytest.mark.promise("limits-before-login")
def test_who_falls_silent_within_a_frame_is_hung_up_on(broker: Bounded) -> None:
    info = our_info(max_frame_size=FRAME_MAX, provider_version="", inactivity_ms=300, initial_delay_ms=300)
    client = OpenWire(broker.openwire)
    client.socket.sendall(STORED.encode(info) + struct.pack(">i", 100) + b"\3half a frame")
    assert client.is_closed()


# ---- data that expands too much


@pytest.mark.promise("bombs-stay-small")
async def test_a_compressed_bomb_stays_small(broker: Bounded) -> None:
    bomb = zlib.compress(b"\0" * (1024 * MIB), 9)
    assert len(bomb) < FRAME_MAX
    client = OpenWire(broker.openwire).connect()
    wire = await Wire.open(broker.stomp)
    wire.send("SUBSCRIBE", {"id": "0", "destination": "/queue/bombs", "selector": "a = 'b' OR a IS NULL"})
    wire.send("SUBSCRIBE", {"id": "1", "destination": "/queue/bombs", "transformation": "jms-map-json", "receipt": "r"})
    assert (await wire.read()).command == "RECEIPT"
    before = broker.memory_max()
    for make in (schema.ActiveMQTextMessage, schema.ActiveMQBytesMessage, schema.ActiveMQMapMessage):
        client.send(queue("bombs"), make=make, content=bomb, compressed=True)
        assert (await wire.read()).command == "MESSAGE"
    # One body at a time is inflated, as far as is allowed, and what came of it copied once.
    assert broker.memory_max() - before < 3 * INFLATED_BYTES_MAX
    await serves_others(broker)
    wire.close()
    client.close()


@pytest.mark.promise("bombs-stay-small")
async def test_maps_in_maps_in_maps_are_no_map(broker: Bounded) -> None:
    # Each holds one entry, "k", that is a map again.
    def nested(depth: int) -> bytes:
        return struct.pack(">i", 1) + (b"\0\1k\x0b" + struct.pack(">i", 1)) * depth + b"\0\1k\1\1"

    client = OpenWire(broker.openwire).connect()
    wire = await Wire.open(broker.stomp)
    wire.send("SUBSCRIBE", {"id": "0", "destination": "/queue/maps", "transformation": "jms-map-json", "receipt": "r"})
    assert (await wire.read()).command == "RECEIPT"
    client.send(queue("maps"), make=schema.ActiveMQMapMessage, content=nested(100_000))
    assert (await wire.read()).command == "MESSAGE"
    client.send(queue("maps"), b"x", marshalled_properties=nested(9_000))
    with pytest.raises(Refused, match="more than 10000 values in its properties"):
        client.send(queue("maps"), b"x", marshalled_properties=nested(100_000))
    await serves_others(broker)
    wire.close()
    client.close()


SELECTORS = {
    "brackets": "(" * 30_000 + "a = 1" + ")" * 30_000,
    "negations": "NOT " * 16_000 + "a",
    "a sum": "+".join(["1"] * 30_000) + " = 1",
    "alternatives": " OR ".join(["a = 1"] * 6_000),
    "a list": "a IN (" + ",".join(["'x'"] * 15_000) + ")",
    "many percents": "t LIKE '" + "%a" * 30_000 + "b'",
}


@pytest.mark.promise("bombs-stay-small")
@pytest.mark.parametrize("selector", SELECTORS)
async def test_a_selector_that_should_burst_is_refused_or_quick(broker: Bounded, selector: str) -> None:
    client = OpenWire(broker.openwire).connect()
    with contextlib.suppress(Refused):
        client.consume(queue("selected"), selector=SELECTORS[selector])
    for body in (b"a" * 10_000, b"x"):
        client.send(queue("selected"), body, correlation_id="a" * 5000)
    await serves_others(broker)
    client.close()


# ---- names


@pytest.mark.promise("no-injection")
async def test_a_header_stays_a_header(broker: Bounded) -> None:
    """STOMP 1.0 has no way to write a line's end: what a 1.2 client has in one header is not two to a 1.0 client."""
    sender = await Wire.open(broker.stomp)
    sender.send("SEND", {"destination": "/queue/headers", "receipt": "r", "a": "1\\nforged\\cyes\\n\\nbody"}, b"real")
    assert (await sender.read()).command == "RECEIPT"
    sender.close()
    heard = hears(
        broker.stomp,
        b"CONNECT\n\n\0SUBSCRIBE\nid:0\ndestination:/queue/headers\n\n\0NONSENSE\n\n\0",
    )
    assert b"\n\nreal\0" in heard
    assert b"\nforged" not in heard


async def test_names_do_not_leave_the_store(broker: Bounded) -> None:
    root = Path(broker.data).parent
    before = {each.name for each in root.iterdir()}
    client = OpenWire(broker.openwire).connect()
    names = [
        "../escaped",
        "../../escaped",
        "/tmp/escaped",
        "a/../../escaped",
        "..",
        ".",
        "nul\0byte",
        "lock",
    ]
    for name in names:
        client.send(queue(name), b"x")
    assert {each.name for each in root.iterdir()} == before
    found = [path for path in Path(broker.data).rglob("*") if path.name in ("escaped", "..", ".")]
    assert found == []
    assert not Path("/tmp/escaped").exists()
    client.close()


async def test_names_and_ids_that_no_store_can_keep_are_refused(broker: Bounded) -> None:
    client = OpenWire(broker.openwire).connect()
    with pytest.raises(Refused, match="too long"):
        client.send(queue("x" * 5000), b"x")
    producer = client.produce(None)
    for id in ("ID:" + "x" * 5000, "ID:\ud800"):
        with pytest.raises(Refused, match="its id"):
            client.ask(
                schema.ActiveMQTextMessage, producer_id=producer, destination=queue("ids"), persistent=True,
                message_id=MessageId(None, ProducerId(id, 1, 1), 1, 0),
            )  # fmt: skip
    for id in ("x" * 5000, "\ud800"):
        with pytest.raises(Refused, match="client id is"):
            OpenWire(broker.openwire).connect(client_id=id)
    with pytest.raises(Refused, match="name of a durable subscription is too long"):
        client.consume(topic("ids"), subscription_name="x" * 5000)
    await serves_others(broker)
    client.close()


def test_tls_at_a_plain_port_is_told_in_the_log(broker: Bounded) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300
    for port in (broker.stomp, broker.openwire):
        hears(port, hello)
    broker.wait_log("begins TLS, which this connector does not support", 2)
