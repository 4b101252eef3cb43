"""Dynamic nodes of AMQP: temporary destinations that are deleted with their links."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.errors import NOT_FOUND
from tandemmq.broker.protocols.amqp.types import Described, Symbol, ULong
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind
from tests.support.broker.amqp_wire import AmqpWire, bodies, value
from tests.unit.broker.engine.conftest import Harness
from tests.unit.broker.protocols.amqp.conftest import Make

DELETE_ON_CLOSE = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}


def dynamic_node(wire: AmqpWire, **source: Any) -> str:
    """Attach a receiver with a dynamic node; return the address of the node."""
    (attach,) = wire.receiver(None, dynamic=True, **source)
    assert (attach.source.dynamic, attach.source.dynamic_node_properties) == (True, DELETE_ON_CLOSE)
    assert isinstance(attach.source.address, str)
    return attach.source.address


def test_a_dynamic_node_receives_replies(connect: Make) -> None:
    asker, answerer = connect("asker"), connect("answerer")
    address = dynamic_node(asker)
    assert address.startswith(f"temp-queue://{asker.id}-secret:")
    asker.flow(1, 9)
    asker.sender()
    answerer.receiver(credit=1)
    asker.send(write_composite(schema.Properties(reply_to=address)) + value("how much?"))
    (question,) = answerer.replies()
    assert b"how much?" in question.payload
    assert answerer.sender(address)[0].target.address == address
    answerer.send(value("three"))
    assert bodies(asker.replies()) == ["three"]


def test_other_protocols_can_send_to_a_dynamic_node(connect: Make, harness: Harness) -> None:
    wire = connect()
    address = dynamic_node(wire)
    wire.flow(1, 9)
    queue = Destination(DestinationKind.TEMP_QUEUE, address.removeprefix("temp-queue://"))
    harness.client().store("answer", destination=queue, body_kind=BodyKind.TEXT)
    assert bodies(wire.replies()) == ["answer"]


def test_other_connections_cannot_receive_from_a_dynamic_node(connect: Make) -> None:
    address = dynamic_node(connect())
    attach, detach = connect("other").receiver(address)
    assert attach.source is None
    assert detach.error.condition == NOT_FOUND


@pytest.mark.parametrize("end", [schema.Detach(1, True), schema.End(), schema.Close()])
def test_a_dynamic_node_is_deleted_with_its_link(connect: Make, end: schema.Composite) -> None:
    wire, other = connect(), connect("other")
    address = dynamic_node(wire)
    assert other.sender(address)[0].target is not None
    wire.exchange(end)
    assert other.sender(address, handle=5)[1].error.condition == NOT_FOUND


def test_a_sender_can_create_a_dynamic_node(connect: Make) -> None:
    wire = connect()
    topic = schema.Target(dynamic=True, capabilities=(Symbol("temporary-topic"),))
    target = wire.sender(target=topic)[0].target
    assert target.address.startswith("temp-topic://")
    assert (target.dynamic, target.dynamic_node_properties, target.capabilities) == (
        True,
        DELETE_ON_CLOSE,
        ("temporary-topic",),
    )
    wire.receiver(target.address, credit=9)
    (detach,) = wire.exchange(schema.Detach(0, True))
    assert isinstance(detach.performative, schema.Detach)
    assert detach.performative.error is not None  # it has a consumer
    wire.exchange(schema.Detach(1, True))
    other = connect("other")
    assert other.sender(target.address)[0].target is not None  # it exists until its connection ends
    wire.vanish()
    assert other.sender(target.address, handle=5)[1].error.condition == NOT_FOUND


def test_a_refused_link_leaves_no_dynamic_node(connect: Make) -> None:
    wire = connect()
    bad = {Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "a ====")}
    attach, detach = wire.receiver(None, dynamic=True, filter=bad)
    assert (attach.source, detach.error.condition) == (None, "amqp:invalid-field")
    assert wire.client.temporaries == set()


def test_the_number_of_dynamic_nodes_is_limited(connect: Make) -> None:
    wire = connect()
    wire.client.temporaries |= {Destination(DestinationKind.TEMP_QUEUE, str(each)) for each in range(1_000)}
    attach, detach = wire.receiver(None, dynamic=True)
    assert attach.source is None
    assert "temporary destinations" in detach.error.description
    wire.client.temporaries.clear()


def test_a_dynamic_node_can_be_the_reply_to_of_a_message(connect: Make, harness: Harness) -> None:
    wire = connect()
    address = dynamic_node(wire, capabilities=(Symbol("temporary-queue"),))
    reader = harness.client().subscribe("all", Destination(DestinationKind.QUEUE, "orders"), AckMode.AUTO).turn()
    wire.sender()
    wire.send(write_composite(schema.Properties(reply_to=address)) + value("x"))
    harness.turn()
    assert str(reader.session.delivered[0].message.reply_to) == address
