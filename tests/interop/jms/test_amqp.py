"""Messages between AMQP and ActiveMQ's JMS client: bodies, properties, ids, acknowledgements and selectors."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.types import Symbol, UByte, UInt, Uuid
from tests.support.broker.amqp_socket import AmqpSocket
from tests.support.broker.amqp_wire import body_of, header, section, sections_of, value
from tests.support.interop.jms.jvm import JmsConnection, Jvm
from tests.support.interop.jms.peers import TandemMQ

pytestmark = [pytest.mark.service, pytest.mark.promise("jms-works-unmodified", "protocols-meet")]

UUID = Uuid(bytes(range(16)))
TEXT = write_composite(schema.Properties(content_type=Symbol("text/plain")))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, jvm: Jvm) -> Iterator[tuple[int, JmsConnection]]:
    """Return the AMQP port of a broker, and a JMS connection to the broker."""
    port = free_port()
    broker = TandemMQ(tmp_path_factory.mktemp("amqp") / "data", "--amqp", f"127.0.0.1:{port}")
    broker.wait()
    connection = jvm.connect(broker.url())
    yield port, connection
    connection.close()
    broker.close()


ONE = {"bytes": base64.b64encode(b"\1").decode()}


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (value("gr\u00fc\u00dfe \0"), "text", "gr\u00fc\u00dfe \0"),
        (TEXT + section(0x75, b"te") + section(0x75, b"xt"), "text", "text"),
        (section(0x75, b"\xff\0"), "bytes", b"\xff\0"),
        (value({"s": "x", "b": True, "bytes": b"\1"}), "map", {"s": "x", "b": True, "bytes": ONE}),
        (value(["s", True, b"\1"]), "stream", ["s", True, ONE]),
        (value(UUID), "bytes", header(durable=True) + value(UUID)),
        (section(0x75, b"x" * 3_000_000), "bytes", b"x" * 3_000_000),
    ],
    ids=["text", "data as text", "data", "map", "list", "uuid", "long data"],
)  # fmt: skip
def test_an_amqp_body_has_its_jms_form(
    both: tuple[int, JmsConnection], name: str, queue: str, body: bytes, kind: str, expected: Any
) -> None:
    port, connection = both
    with AmqpSocket(port) as client:
        client.send(name, header(durable=True) + body)
    message = connection.session().consumer(queue).receive()
    assert message["kind"] == kind
    assert message.body == expected


def test_amqp_properties_and_ids_are_mapped_to_jms(both: tuple[int, JmsConnection], name: str, queue: str) -> None:
    port, connection = both
    named = {"s": "x", "small": UByte(200), "n": UInt(7), "b": True}

    def sent(id: str) -> bytes:
        properties = schema.Properties(message_id=id, subject="kind", correlation_id=UUID, reply_to="queue://back")
        return header(durable=True, priority=7) + write_composite(properties) + section(0x74, named) + value(id)

    with AmqpSocket(port) as client:
        client.send(name, sent("one"), sent("ID:two"), sent("ID:two"))
    session = connection.session("CLIENT")
    two = session.consumer(queue, "JMSMessageID = 'ID:two' AND small = 200")
    found = [two.receive(), two.receive()]
    assert [each["id"] for each in found] == ["ID:two", "ID:two"]
    assert [(each["priority"], each["type"], each["replyTo"]) for each in found] == [(7, "kind", "queue://back")] * 2
    assert found[0]["correlation"] == "AMQP_UUID:00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert {key: each for key, each in found[0].properties.items() if key in named} == {
        "s": "x",
        "small": {"short": 200},
        "n": 7,
        "b": True,
    }
    found[1].acknowledge()
    session.close()
    rest = connection.session().consumer(queue)
    assert rest.receive()["id"] == "ID:one"
    assert rest.take() is None, "the other two were acknowledged"


def test_an_amqp_client_receives_a_jms_message(both: tuple[int, JmsConnection], name: str, queue: str) -> None:
    port, connection = both
    session = connection.session()
    (id,) = session.send(queue, "text", properties={"s": "x", "long": {"long": 5}}, type="kind", persistent=True)
    session.send(queue, {"a": 1}, kind="map")
    with AmqpSocket(port) as client:
        first, second = map(sections_of, client.receive(name, 2))
    assert (first[0x70], first[0x77]) == ([True], "text")
    assert (first[0x73][0], first[0x73][2:4]) == (id, [f"queue://{name}", "kind"])
    assert first[0x74] == {"s": "x", "long": 5}
    assert (second[0x77], second[0x72]["x-opt-jms-msg-type"]) == ({"a": 1}, 2)


def test_a_message_that_a_jms_client_forwards_keeps_its_section(
    both: tuple[int, JmsConnection], name: str, queue: str
) -> None:
    """A Camel route forwards messages in this way: with all properties that it received."""
    port, connection = both
    with AmqpSocket(port) as client:
        client.send(f"{name}.in", TEXT + section(0x75, b"text"))
        session = connection.session()
        message = session.consumer(f"queue://{name}.in").receive()
        session.send(queue, message.body, properties=message.properties)
        (again,) = client.receive(name, 1)
    assert body_of(again) == b"text"
    assert sections_of(again)[0x73][6] == "text/plain"
