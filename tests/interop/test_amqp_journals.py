"""AMQP messages in journals: TandemMQ reads those of ActiveMQ 6.3.1, and ActiveMQ reads those of TandemMQ."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.types import Described, Symbol, UByte, UInt, ULong, Uuid
from tests.support.acceptance.broker_process import BrokerProcess, serving, tandemmq
from tests.support.broker.amqp_socket import AmqpSocket
from tests.support.broker.amqp_wire import body_of, header, section, sections_of, value
from tests.support.interop.java_programs import SOURCES, Release, activemq_amqp, compiled, program
from tests.support.interop.jms.stomp_side import StompSide

pytestmark = [pytest.mark.service, pytest.mark.promise("from-activemq", "back-to-activemq")]

UUID = Uuid(bytes(range(16)))
ENVELOPE = (
    header(durable=True, priority=7)
    + section(0x72, {Symbol("x-a"): "b"})
    + write_composite(schema.Properties(message_id=UUID, subject="kind", content_type=Symbol("text/plain")))
    + section(0x74, {"colour": "red", "small": UByte(200), "n": UInt(7)})
)
FOOTER = section(0x78, {Symbol("sum"): b"\1\2"})
# Each message, and the body that a STOMP client gets. None: the encoded message.
SENT: list[tuple[bytes, bytes | None]] = [
    (ENVELOPE + value("t\u00ebxt"), "t\u00ebxt".encode()),
    (ENVELOPE + section(0x75, b"data") + FOOTER, b"data"),
    (header(durable=True) + section(0x75, b"\xff\0"), b"\xff\0"),
    (header(durable=True) + value(b"\xff"), b"\xff"),
    (header(durable=True) + value(None), b""),
    (header(durable=True), b""),
    (header(durable=True) + value(UUID), None),
    (header(durable=True) + value(Described(ULong(99), "x")) + FOOTER, None),
]
MESSAGES = [encoded for encoded, _ in SENT]
# ActiveMQ does not read the header of such a message, so it does not store the message.
ONLY_TANDEMMQ = ENVELOPE + section(0x75, b"da") + section(0x75, b"ta") + FOOTER


@pytest.fixture(scope="module")
def activemq(require_service: Callable[[object, str], None]) -> Release:
    return activemq_amqp(require_service)


@pytest.fixture(scope="module")
def classes(
    require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory, activemq: Release
) -> Path:
    directory = tmp_path_factory.mktemp("classes")
    compiled(require_service, directory, SOURCES / "Tandem.java", release=activemq)
    return directory


@pytest.fixture(scope="module")
def java(classes: Path, activemq: Release) -> Callable[..., list[str]]:
    return lambda *arguments: [
        *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{activemq.path}", "Tandem"),
        *map(str, arguments),
    ]


@contextmanager
def activemq_on(java: Callable[..., list[str]], directory: Path, options: str = "") -> Iterator[int]:
    """Run ActiveMQ on a directory; yield the port of its AMQP connector."""
    with subprocess.Popen(
        java("serve", directory, options), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield json.loads(process.stdout.readline())["port"]
        finally:
            process.stdin.close()
            assert process.wait(60) == 0


@contextmanager
def tandemmq_on(directory: Path) -> Iterator[tuple[BrokerProcess, int]]:
    """Run TandemMQ on a directory; yield the broker, and the port of its AMQP connector."""
    port = free_port()
    with serving(BrokerProcess(directory, "a", "--amqp", f"127.0.0.1:{port}")) as (broker,):
        broker.wait_role("master")
        yield broker, port


def read_by_stomp(port: int, queue: str, count: int) -> list[tuple[dict[str, str], bytes]]:
    stomp = StompSide(port)
    try:
        stomp.subscribe(f"/queue/{queue}", ack="auto")
        return [(frame.headers, frame.body) for frame in (stomp.read() for _ in range(count))]
    finally:
        stomp.close()


@pytest.mark.parametrize("transformer", ["native", "raw"])
def test_encoded_messages_of_activemq_arrive_byte_for_byte_and_decoded(
    java: Callable[..., list[str]], tmp_path: Path, transformer: str
) -> None:
    directory = tmp_path / "data"
    with activemq_on(java, directory, f"transport.transformer={transformer}") as port, AmqpSocket(port) as client:
        client.send("for.amqp", *MESSAGES)
        client.send("for.stomp", *MESSAGES)
    with tandemmq_on(directory) as (broker, port):
        with AmqpSocket(port) as client:
            assert client.receive("for.amqp", len(MESSAGES)) == MESSAGES
        found = read_by_stomp(broker.stomp, "for.stomp", len(MESSAGES))
    assert [body for _, body in found] == [encoded if text is None else text for encoded, text in SENT]
    if transformer == "native":
        headers = found[0][0]
        assert (headers["colour"], headers["small"], headers["n"], headers["type"]) == ("red", "200", "7", "kind")
        assert (headers["JMS_AMQP_MA_x-a"], headers["priority"]) == ("b", "7")
        assert "JMS_AMQP_NATIVE" not in headers


def test_mapped_messages_of_activemq_arrive_with_their_sections(java: Callable[..., list[str]], tmp_path: Path) -> None:
    directory = tmp_path / "data"
    mapped = [ENVELOPE + value("t\u00ebxt"), ENVELOPE + section(0x75, b"text"), ENVELOPE + value({"a": 1, "b": b"x"})]
    with activemq_on(java, directory, "transport.transformer=jms") as port, AmqpSocket(port) as client:
        client.send("mapped", *mapped)
    with tandemmq_on(directory) as (_, port), AmqpSocket(port) as client:
        found = client.receive("mapped", len(mapped))
    for sent, each in zip(mapped, found, strict=True):
        sections = sections_of(each)
        assert body_of(each) == body_of(sent)
        assert sections[0x70] == [True, 7]
        assert (sections[0x73][0], sections[0x73][3], sections[0x73][6]) == (UUID, "kind", "text/plain")
        assert sections[0x72]["x-a"] == "b"
        assert sections[0x74] == {"colour": "red", "small": 200, "n": 7}


def test_activemq_delivers_messages_that_tandemmq_stored(java: Callable[..., list[str]], tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with tandemmq_on(directory) as (_, port), AmqpSocket(port) as client:
        client.send("for.amqp", ONLY_TANDEMMQ, *MESSAGES)
        client.send("for.jms", *MESSAGES)
    done = tandemmq("store", "handback", str(directory), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    with activemq_on(java, directory) as port, AmqpSocket(port) as client:
        assert client.receive("for.amqp", 1 + len(MESSAGES)) == [ONLY_TANDEMMQ, *MESSAGES]
    consumed = subprocess.run(java("consume", directory), capture_output=True, text=True, timeout=90, check=True)
    (queue,) = [
        line["messages"] for line in map(json.loads, consumed.stdout.splitlines()) if "for.jms" in line["destination"]
    ]
    assert [bytes.fromhex(each["body"]) for each in queue] == MESSAGES
    first = queue[0]
    assert first["jmsId"] == "ID:AMQP_UUID:00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert (first["type"], first["priority"], first["persistent"]) == ("kind", 7, True)
    assert first["properties"] == {
        "JMS_AMQP_HEADER": ["boolean", True],
        "JMS_AMQP_MA_x-a": ["string", "b"],
        "JMS_AMQP_PROPERTIES": ["boolean", True],
        "JMS_AMQP_ContentType": ["string", "text/plain"],
        "JMS_AMQP_NATIVE": ["boolean", True],
        "colour": ["string", "red"],
        "small": ["short", 200],
        "n": ["integer", 7],
    }


def test_activemq_without_amqp_delivers_messages_that_tandemmq_stored(
    require_service: Callable[[object, str], None], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tandem = program(require_service, tmp_path_factory.mktemp("classes"), "Tandem")
    directory = tmp_path / "data"
    with tandemmq_on(directory) as (_, port), AmqpSocket(port) as client:
        client.send("q", *MESSAGES)
    assert tandemmq("store", "handback", str(directory)).returncode == 0
    (queue,) = [line["messages"] for line in map(json.loads, tandem("consume", str(directory)).splitlines())]
    assert [bytes.fromhex(each["body"]) for each in queue] == MESSAGES
    assert queue[0]["properties"]["colour"] == ["string", "red"]


def test_both_brokers_store_the_same_fields(java: Callable[..., list[str]], tmp_path: Path) -> None:
    """Each property that ActiveMQ sets has the same name, type and value here."""
    encoded = (
        header(durable=True, first_acquirer=True, delivery_count=2)
        + section(0x72, {Symbol("x-opt-jms-msg-type"): UByte(5), Symbol("x-big"): UInt(0xFFFFFFFF)})
        + write_composite(
            schema.Properties(
                message_id="ID:x",
                to="queue://elsewhere",
                subject="kind",
                reply_to="topic://back",
                correlation_id=ULong(7),
                content_encoding=Symbol("gzip"),
                creation_time=1_700_000_000_000,
                group_id="g",
                group_sequence=3,
                reply_to_group_id="h",
            )
        )
        + section(0x74, {"b": True, "u": ULong(5), "s": Symbol("y"), "bin": b"a\\\xff", "d": 1.5, "null": None})
        + value("x")
        + FOOTER
    )
    by_activemq, by_tandemmq = tmp_path / "activemq", tmp_path / "tandemmq"
    with activemq_on(java, by_activemq) as port, AmqpSocket(port) as client:
        client.send("q", encoded, message_format=5)
    with tandemmq_on(by_tandemmq) as (_, port), AmqpSocket(port) as client:
        client.send("q", encoded, message_format=5)
    assert tandemmq("store", "handback", str(by_tandemmq)).returncode == 0
    found = []
    for directory in (by_activemq, by_tandemmq):
        dumped = subprocess.run(java("dump", directory), capture_output=True, text=True, timeout=90, check=True)
        lines = [json.loads(line) for line in dumped.stdout.splitlines()]
        (message,) = next(line["messages"] for line in lines if "q" in line["destination"])
        found.append({name: each for name, each in message.items() if name != "id"})
    assert found[0] == found[1]
