"""Links: names, handles, settle modes, errors at their end, and dynamic nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, ClientError, ErrorKind, Unsubscribe
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.errors import LINK_STOLEN, NOT_FOUND, RESOURCE_LIMIT
from tandemmq.broker.protocols.amqp.frames import frame_of
from tandemmq.broker.protocols.amqp.schema import Accepted, Detach, Disposition, Flow, Released, Transfer
from tandemmq.broker.protocols.amqp.session import CHARACTER_BYTES
from tandemmq.broker.protocols.amqp.termini import NAME_CHARACTERS_MAX
from tandemmq.broker.protocols.amqp.types import Described, Symbol, ULong
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind
from tests.support.broker.amqp_wire import AmqpWire, bodies, value
from tests.unit.broker.engine.conftest import ORDERS, Harness
from tests.unit.broker.protocols.amqp.conftest import Make


@pytest.fixture
def five_messages(harness: Harness) -> None:
    """5 messages in the queue."""
    harness.client().store(*range(5), body_kind=BodyKind.TEXT)


def remaining(harness: Harness) -> list[str]:
    """Return the messages that another consumer receives."""
    return harness.client().subscribe("all", ORDERS).turn().bodies


def exchange(wire: AmqpWire, *performatives: Any, channel: int = 0) -> list[Any]:
    return [each.performative for each in wire.exchange(*performatives, channel=channel)]


# ---- names


@pytest.mark.parametrize("channel", [0, 1])
def test_a_second_attach_of_a_receiver_steals_the_link(connect: Make, five_messages: None, channel: int) -> None:
    wire = connect()
    wire.begin(1)
    wire.receiver(name="r", credit=2)
    answers = wire.receiver(name="r", handle=5, channel=channel)
    assert [type(each) for each in answers] == [Detach, schema.Attach]
    assert (answers[0].handle, answers[0].closed, answers[0].error.condition) == (1, True, LINK_STOLEN)
    assert not wire.exchange(Detach(1, True))
    got = [each.delivery_id for each in wire.flow(5, 5, channel=channel)]
    assert len(got) == 5, "the messages of the former link are redelivered"


def test_a_second_attach_of_a_sender_steals_the_link(connect: Make, harness: Harness) -> None:
    wire = connect()
    wire.sender(name="s")
    wire.send(value("a"))
    answers = wire.sender(name="s", handle=5)
    assert [type(each) for each in answers] == [Detach, schema.Attach, Flow]
    assert answers[0].error.condition == LINK_STOLEN
    assert not wire.send(value("b")), "the former link has ended"
    wire.send(value("c"), handle=5)
    assert remaining(harness) == ["a", "c"]


def test_a_link_whose_attach_is_not_answered_can_be_stolen(connect: Make) -> None:
    wire = connect()
    attaches = [
        schema.Attach(name="r", handle=handle, role=True, source=schema.Source(address="q"), target=schema.Target())
        for handle in (1, 2)
    ]
    answers = exchange(wire, *attaches)
    assert [type(each) for each in answers] == [schema.Attach, Detach, schema.Attach]
    assert (answers[0].source, answers[1].error.condition, answers[2].source.address) == (None, LINK_STOLEN, "q")


def test_a_sender_and_a_receiver_can_have_one_name(connect: Make) -> None:
    wire = connect()
    wire.sender(name="x")
    (attach,) = wire.receiver(name="x")
    assert attach.source.address == "orders"
    (flow,) = wire.flow(0, None, echo=True)
    assert flow.handle == 0
    assert len(wire.flow(1, 0, echo=True)) == 1


def test_two_connections_can_have_links_of_one_name(connect: Make, five_messages: None) -> None:
    one, two = connect(), connect()
    for wire in (one, two):
        wire.receiver(name="r", credit=1)
    assert len(one.flow(1, 2, delivery_count=1, next_incoming_id=1)) == 2
    assert len(two.flow(1, 1, delivery_count=1, next_incoming_id=1)) == 1


def test_a_name_can_be_used_again_after_its_link_has_ended(connect: Make) -> None:
    wire = connect()
    wire.begin(1)
    wire.receiver(name="r", channel=1)
    wire.exchange(schema.End(), channel=1)
    assert len(wire.receiver(name="r")) == 1
    wire.exchange(Detach(1, True))
    assert len(wire.receiver(name="r")) == 1


def test_link_names_count_as_memory(connect: Make) -> None:
    wire = connect()
    held = []
    for handle, name in enumerate(("a", "b", "c" * NAME_CHARACTERS_MAX)):
        wire.receiver(name=name, handle=handle)
        held.append(wire.holder.by_kind[Kind.STATE])
    one, two, three = held
    assert (three - two) - (two - one) == (NAME_CHARACTERS_MAX - 1) * CHARACTER_BYTES


# ---- handles


def test_a_handle_can_be_used_again_before_its_detach_is_answered(connect: Make, harness: Harness) -> None:
    wire = connect()
    wire.sender(name="first")
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"0")
    attach = schema.Attach(
        name="second", handle=0, role=False, target=schema.Target(address="orders"), initial_delivery_count=0
    )
    frames = [write_composite(transfer) + durable("a"), write_composite(Detach(0, True)), write_composite(attach)]
    wire.receive(b"".join(frame_of(0, each) for each in frames))
    answers = [each.performative for each in wire.replies()]
    assert [type(each) for each in answers].count(Detach) == 1
    (detach,) = (each for each in answers if isinstance(each, Detach))
    (attached,) = (each for each in answers if isinstance(each, schema.Attach))
    assert (detach.handle, attached.handle, attached.name) == (0, 1, "second")
    (flow,) = (each for each in answers if isinstance(each, Flow))
    assert flow.handle == 1
    wire.next_delivery_id = 1
    (accepted,) = wire.send(value("b"))
    assert (accepted.first, accepted.state) == (1, Accepted())
    (detach,) = exchange(wire, Detach(0, True))
    assert detach.handle == 1


def durable(text: str) -> bytes:
    """Return a durable message. Its outcome is written after it is stored."""
    return write_composite(schema.Header(durable=True)) + value(text)


def test_handles_of_the_broker_respect_the_handle_max_of_the_client(make: Make) -> None:
    wire = make()
    wire.connect()
    begin = schema.Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9, handle_max=1)
    wire.exchange(begin)
    assert wire.sender(handle=7)[0].handle == 0
    assert wire.receiver(handle=9)[0].handle == 1
    (end,) = wire.receiver(handle=3)
    assert (type(end), end.error.condition) == (schema.End, RESOURCE_LIMIT)


# ---- settle modes and resumed deliveries


def test_with_settle_mode_second_a_sender_gets_an_unsettled_outcome(connect: Make) -> None:
    wire = connect()
    attach, _ = wire.sender(rcv_settle_mode=1)
    assert attach.rcv_settle_mode == 1
    (answer,) = wire.send(value("a"))
    assert (answer.role, answer.first, answer.last, answer.settled, answer.state) == (True, 0, 0, False, Accepted())
    assert not wire.exchange(Disposition(role=False, first=0, settled=True, state=Accepted()))
    (rejected,) = wire.send(b"\0\0\0\0")
    assert (rejected.settled, type(rejected.state)) == (False, schema.Rejected)


def test_with_settle_mode_second_a_receiver_gets_a_settled_disposition(
    connect: Make, five_messages: None, harness: Harness
) -> None:
    wire = connect()
    (attach, _) = wire.receiver(rcv_settle_mode=1, credit=1)
    assert attach.rcv_settle_mode == 1
    (answer,) = wire.dispose(0, Accepted(), settled=False)
    assert (answer.settled, answer.state) == (True, Accepted())
    assert not wire.dispose(0, Accepted())
    wire.vanish()
    assert remaining(harness) == ["1", "2", "3", "4"]


def test_unsettled_deliveries_of_a_former_attach_are_ignored(connect: Make, harness: Harness) -> None:
    wire = connect()
    attach, _ = wire.sender(unsettled={b"0": None}, incomplete_unsettled=True)
    assert (attach.unsettled, attach.incomplete_unsettled) == (None, False)
    assert not wire.send(value("a"), resume=True), "an unknown resumed delivery is ignored (2.7.5)"
    (accepted,) = wire.send(value("b"))
    assert accepted.first == 1
    assert remaining(harness) == ["b"]


def test_a_resumed_delivery_of_several_frames_is_ignored(connect: Make, harness: Harness) -> None:
    wire = connect()
    wire.sender()
    wire.send(value("a"), resume=True, more=True)
    assert not wire.exchange(Transfer(handle=0, more=False), payload=b"")
    wire.send(value("b"))
    assert remaining(harness) == ["b"]
    assert wire.session.partial_bytes == 0


# ---- errors at the end of a link


def test_the_answer_to_a_detach_reports_a_refused_presettled_message(connect: Make, harness: Harness) -> None:
    wire = connect()
    wire.sender()
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"0", settled=True)
    commands = wire.session.receive(
        frame_of(0, write_composite(transfer) + value("a")) + frame_of(0, write_composite(Detach(0, True)))
    )
    send, remove = commands
    error = ClientError("full", is_fatal=False, kind=ErrorKind.RESOURCE)
    wire.engine.handle(wire, remove)
    assert not wire.all_of(Detach), "the message may still be refused"
    error.receipt = send.receipt  # type: ignore[attr-defined]
    wire.session.fail(error)
    (detach,) = wire.all_of(Detach)
    assert (detach.closed, detach.error.condition) == (True, RESOURCE_LIMIT)


def test_presettled_messages_use_credit_until_they_are_stored(connect: Make) -> None:
    wire = connect()
    wire.sender()
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"0", settled=True)
    frame = frame_of(0, write_composite(transfer) + value("a"))
    (link, _) = wire.session.by_name["s0.0", False][::-1]
    (send,) = wire.session.receive(frame)
    assert link.unanswered == 1  # type: ignore[union-attr]
    wire.engine.handle(wire, send)
    wire.replies()
    assert link.unanswered == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("state", [Accepted(), Released()])
def test_outcomes_after_the_end_of_a_consumer_do_not_end_the_connection(
    connect: Make, five_messages: None, state: Any
) -> None:
    wire = connect()
    wire.receiver(credit=2)
    (id,) = wire.client.subscriptions
    # The broker ends the consumer while an outcome and credit of the client are being sent.
    commands = wire.session.receive(
        frame_of(0, write_composite(Disposition(role=True, first=0, settled=True, state=state)))
        + frame_of(
            0, write_composite(Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=9))
        )
    )
    assert commands
    wire.engine.handle(wire, Unsubscribe(id))
    wire.session.close_consumer(id, ClientError("too slow"))
    for each in commands:
        wire.engine.handle(wire, each)
    answers = [each.performative for each in wire.replies()]
    assert [type(each) for each in answers] == [Detach]
    assert not wire.is_closed
    assert len(wire.receiver(handle=2, credit=9)) > 1


def test_a_consumer_that_ends_before_its_attach_is_answered_is_refused(connect: Make) -> None:
    wire = connect()
    attach = schema.Attach(name="r", handle=1, role=True, source=schema.Source(address="q"), target=schema.Target())
    *_, subscribe = wire.session.receive(frame_of(0, write_composite(attach)))
    wire.session.close_consumer(subscribe.id, ClientError("gone"))  # type: ignore[attr-defined]
    answers = [each.performative for each in wire.replies()]
    assert [type(each) for each in answers] == [schema.Attach, Detach]
    assert answers[0].source is None  # type: ignore[union-attr]
    wire.engine.handle(wire, subscribe)
    assert not wire.replies()


# ---- dynamic nodes: temporary destinations that are deleted with their links


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
