"""Receivers: bugs that users reported for other brokers. Sources are in the docstrings."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, Send
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.frames import FRAME_BYTES_MIN, frame_of
from tandemmq.broker.protocols.amqp.schema import (
    UINT_MAX,
    Accepted,
    Disposition,
    Flow,
    Modified,
    Rejected,
    Released,
    Transfer,
)
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind
from tests.support.broker.amqp_wire import bodies, header, sections_of, selector, value
from tests.unit.broker.engine.conftest import DLQ, ORDERS, Client, Harness
from tests.unit.broker.protocols.amqp.conftest import Make

BILLS = Destination(DestinationKind.QUEUE, "bills")


@pytest.fixture
def writer(harness: Harness) -> Client:
    return harness.client()


@pytest.fixture
def five_messages(writer: Client) -> None:
    """5 messages in the queue."""
    writer.store(*range(5), body_kind=BodyKind.TEXT)


def received(answers: list[Any]) -> list[int | None]:
    return [each.delivery_id for each in answers if isinstance(each, Transfer)]


def remaining(harness: Harness, destination: Destination = ORDERS) -> list[tuple[str, int]]:
    """Return the messages that another consumer receives, each with its number of redeliveries."""
    reader = harness.client().subscribe("all", destination, AckMode.CLIENT).turn()
    return [(each.body, each.redeliveries) for each in reader.session.delivered]


def flow_of(credit: int, **fields: Any) -> Flow:
    return Flow(incoming_window=99, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=credit, **fields)


# ---- credit and drain


def test_each_drain_is_answered_once_while_messages_arrive(connect: Make, writer: Client) -> None:
    """ARTEMIS-1283, azure-amqp #219: ``receive`` blocked, because a drain was not answered under load."""
    wire = connect()
    wire.receiver()
    count = seen = 0
    for number in range(30):
        if number % 3:
            writer.send(f"m{number}", body_kind=BodyKind.TEXT)
        answers = wire.flow(1, 2, delivery_count=count, next_incoming_id=seen, drain=True)
        *transfers, flow = answers
        assert all(isinstance(each, Transfer) for each in transfers)
        assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, count + 2)
        count += 2
        seen += len(transfers)
    assert seen == 20


def test_a_drain_is_answered_after_the_last_frame_of_a_long_message(make: Make, writer: Client) -> None:
    """ARTEMIS-2642, -4108: with long messages, the answer was sent too early, or never."""
    writer.store("x" * 2_000, body_kind=BodyKind.TEXT)
    wire = make()
    wire.connect(max_frame_size=FRAME_BYTES_MIN)
    wire.begin(window=0)
    wire.receiver()
    assert not wire.flow(1, 5, window=0, drain=True)
    taken = 0
    answers: list[Any] = []
    while not (answers and isinstance(answers[-1], Flow)):
        assert taken < 9, "the drain is not answered"
        answers = wire.flow(None, None, window=1, next_incoming_id=taken)
        taken += 1
    last, flow = answers
    assert (last.more, flow.drain, flow.link_credit, flow.delivery_count) == (False, True, 0, 5)


@pytest.mark.parametrize("granted", [0, 5])
def test_a_drain_without_credit_is_answered(connect: Make, granted: int) -> None:
    """go-amqp #255: its DrainCredit sends drain with credit 0, and waits for the answer without a time limit."""
    wire = connect()
    wire.receiver(credit=granted)
    (flow,) = wire.flow(1, 0, drain=True)
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 0)


def test_nothing_is_sent_before_the_first_flow_of_the_link(connect: Make, five_messages: None, writer: Client) -> None:
    """AMQ-5379, rabbitmq-amqp1.0 PR 48: messages were sent before any credit was granted."""
    wire = connect()
    (attach,) = wire.receiver()
    assert isinstance(attach, schema.Attach)
    writer.store("late", body_kind=BodyKind.TEXT)
    assert not wire.replies()
    assert not wire.flow(None, None)  # a flow of the session only
    assert received(wire.flow(1, 9)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("ids", [range(10), [9, 3, 0, 7]])
def test_acknowledgements_grant_no_credit(connect: Make, writer: Client, ids: list[int]) -> None:
    """ARTEMIS-2057: credit was granted repeatedly ("runaway credit"), so memory exceeded its limit."""
    writer.store(*range(30), body_kind=BodyKind.TEXT)
    wire = connect()
    assert len(received(wire.receiver(credit=10))) == 10
    for id in ids:
        assert not wire.dispose(id, Accepted())
    assert received(wire.flow(1, 2, delivery_count=10, next_incoming_id=10)) == [10, 11]


# ---- outcomes


@pytest.mark.parametrize("last", [None, 2, UINT_MAX // 2])
def test_a_disposition_without_a_state_acknowledges_nothing(
    connect: Make, five_messages: None, harness: Harness, last: int | None
) -> None:
    """rabbitmq-amqp1.0 #8: a settled disposition without a state crashed the session. Without an outcome nothing is
    acknowledged."""
    wire = connect()
    wire.receiver(credit=3)
    assert not wire.dispose(0, None, last=last)
    assert wire.flow(None, None, next_incoming_id=3, echo=True)
    wire.vanish()
    assert [body for body, _ in remaining(harness)] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("state", [Modified(undeliverable_here=True), Modified(True, True), Rejected()])
def test_a_rejected_message_is_not_redelivered(
    connect: Make, five_messages: None, harness: Harness, state: Any
) -> None:
    """ARTEMIS-794 (PR 840): undeliverable-here messages were redelivered to the same receiver. AMQ-6464: rejected
    messages, too."""
    wire = connect()
    wire.receiver(credit=1)
    assert not wire.dispose(0, state)
    assert received(wire.flow(1, 9, delivery_count=1, next_incoming_id=1)) == [1, 2, 3, 4]
    assert [body for body, _ in remaining(harness, DLQ)] == ["0"]


@pytest.mark.parametrize("fields", [b"\x45", b"\xc0\x01\x00", b"\xc0\x03\x02\x40\x40", b"\xc0\x04\x03\x42\x40\x40"])
def test_modified_without_flags_does_not_count_as_failed(
    connect: Make, five_messages: None, harness: Harness, fields: bytes
) -> None:
    """AMQ-5890: absent flags caused a NullPointerException. ARTEMIS-794: the delivery counted as failed."""
    wire = connect()
    wire.receiver(credit=1)
    disposition = b"\0\x53\x15\xc0" + bytes((8 + len(fields), 5)) + b"\x41\x43\x40\x41\0\x53\x27" + fields
    wire.receive(frame_of(0, disposition))
    assert not wire.is_closed
    wire.exchange(schema.Detach(1, True))
    assert remaining(harness)[0] == ("0", 0)


def test_redeliveries_of_a_failed_message_are_limited(connect: Make, writer: Client, harness: Harness) -> None:
    """AMQPNetLite #588: a message that failed was redelivered without limit."""
    writer.store("bad", body_kind=BodyKind.TEXT)
    wire = connect()
    wire.receiver()
    counts = []
    for number in range(20):
        found = [
            each for each in wire.exchange(flow_of(1, delivery_count=number, next_incoming_id=number)) if each.payload
        ]
        if not found:
            break
        counts.append((*sections_of(found[0].payload)[0x70], 0, 0, 0, 0)[4])
        wire.dispose(number, Modified(delivery_failed=True))
        harness.wait(10)
        wire.replies()
    assert counts == [0, 1, 2, 3, 4, 5, 6]  # the first delivery, and 6 redeliveries by the policy
    assert [body for body, _ in remaining(harness, DLQ)] == ["bad"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_released_messages_keep_their_order_and_precede_newer_ones(
    connect: Make, five_messages: None, writer: Client, harness: Harness, order: tuple[int, ...]
) -> None:
    """ARTEMIS-2458, -2750: after a rollback or the close of a consumer, the order of messages changed."""
    wire = connect()
    wire.receiver(credit=3)
    writer.store("new", body_kind=BodyKind.TEXT)
    for id in order:
        wire.dispose(id, Released())
    assert [body for body, _ in remaining(harness)] == ["0", "1", "2", "3", "4", "new"]


@pytest.mark.parametrize("end", [schema.Detach(1, True), schema.Detach(1), schema.End(), schema.Close(), None])
def test_unsettled_messages_keep_their_order(
    connect: Make, five_messages: None, writer: Client, harness: Harness, end: schema.Composite | None
) -> None:
    """ARTEMIS-2458: messages of a closed consumer were delivered after newer ones."""
    wire = connect()
    wire.receiver(credit=4)
    wire.dispose(2, Accepted())
    writer.store("new", body_kind=BodyKind.TEXT)
    if end is None:
        wire.vanish()
    else:
        wire.exchange(end)
    assert [body for body, _ in remaining(harness)] == ["0", "1", "3", "4", "new"]


def test_acknowledgements_with_gaps_do_not_cover_the_gaps(connect: Make, five_messages: None, harness: Harness) -> None:
    """AMQ-5467: acknowledgements of deliveries that do not follow each other became one range."""
    wire = connect()
    wire.receiver(credit=5)
    dispositions = [Disposition(role=True, first=id, settled=True, state=Accepted()) for id in (4, 0, 2)]
    assert not wire.exchange(*dispositions)
    wire.vanish()
    assert [body for body, _ in remaining(harness)] == ["1", "3"]


def test_acknowledgements_take_effect_before_their_link_ends(connect: Make, writer: Client, harness: Harness) -> None:
    """ARTEMIS-5215: messages were delivered twice after a link was closed directly after its acknowledgements."""
    writer.store(*range(40), body_kind=BodyKind.TEXT, persistent=True)
    wire = connect()
    wire.receiver(credit=40)
    dispositions = [Disposition(role=True, first=id, settled=False, state=Accepted()) for id in range(40)]
    replies = [each.performative for each in wire.exchange(*dispositions, schema.Detach(1, True), schema.End())]
    assert replies[-1] == schema.End()
    assert schema.Detach(1, True) in replies
    assert sorted(each.first for each in replies if isinstance(each, Disposition) and each.settled) == list(range(40))
    assert remaining(harness) == []


# ---- several links


def test_a_link_without_credit_does_not_delay_others(connect: Make, writer: Client) -> None:
    """rabbitmq-server PR 9953: a slow link delayed the others of its session."""
    writer.store(*range(3), body_kind=BodyKind.TEXT)
    writer.store(*"ab", destination=BILLS, body_kind=BodyKind.TEXT)
    wire = connect()
    wire.receiver("orders", handle=1)
    wire.receiver("bills", handle=2)
    flow = Flow(incoming_window=99, next_outgoing_id=0, outgoing_window=9, handle=2, link_credit=9)
    assert bodies(wire.exchange(flow)) == ["a", "b"]
    assert len(received(wire.flow(1, 1, next_incoming_id=2))) == 1


def test_a_selector_can_test_whether_a_message_is_durable(connect: Make) -> None:
    """rabbitmq-server PR 13918, PR 10568, AMQ-5828: durable was true by default."""
    wire = connect()
    wire.sender()
    for name, head in (("absent", b""), ("empty", header()), ("false", header(durable=False))):
        wire.send(head + value(name))
    wire.send(header(durable=True) + value("true"))
    wire.receiver(filter=selector("JMSDeliveryMode = 'PERSISTENT'"))
    assert bodies(wire.exchange(flow_of(9))) == ["true"]
    wire.receiver(handle=2, filter=selector("JMSDeliveryMode = 'NON_PERSISTENT'"))
    replies = wire.exchange(
        Flow(incoming_window=99, next_incoming_id=1, next_outgoing_id=0, outgoing_window=9, handle=2, link_credit=9)
    )
    assert bodies(replies) == ["absent", "empty", "false"]


def test_credit_after_the_detach_of_the_client_is_ignored(connect: Make, five_messages: None) -> None:
    """go-amqp 1.7: its receiver grants credit after its detach, for which a broker may end the session."""
    wire = connect()
    wire.receiver(credit=2)
    replies = wire.exchange(schema.Detach(1, True), flow_of(2, delivery_count=2, next_incoming_id=2))
    assert [each.performative for each in replies] == [schema.Detach(1, True)]
    assert received(wire.receiver(credit=1)) == [2]
    (end,) = wire.flow(7, 1)
    assert isinstance(end, schema.End)


def test_an_attach_with_an_immediate_detach_leaves_no_consumer(
    connect: Make, five_messages: None, harness: Harness
) -> None:
    """AMQ-5484, ARTEMIS-5800: a detach during the dispatch left a consumer, or lost messages."""
    wire = connect()
    attach = schema.Attach(
        name="r", handle=1, role=True, source=schema.Source(address="orders"), target=schema.Target()
    )
    for _ in range(10):
        wire.arrive(b"".join(frame_of(0, write_composite(each)) for each in (attach, flow_of(3), schema.Detach(1))))
        harness.turn()
        wire.replies()
    assert (harness.figures()["consumers"], harness.figures()["unacknowledged"]) == (0, 0)
    assert [body for body, _ in remaining(harness)] == ["0", "1", "2", "3", "4"]


def test_a_damaged_message_does_not_end_the_connection_of_a_receiver(
    connect: Make, harness: Harness, writer: Client
) -> None:
    """ActiveMQ PR 2136, 2139, 2256: a body that could not be decoded ended the connection of its receiver."""
    writer.store("first", body_kind=BodyKind.TEXT)
    damaged = writer.message("", body_kind=BodyKind.STREAM)
    damaged.body = b"\xff" * 4
    writer.handle(Send(damaged, None, None))
    writer.store("last", body_kind=BodyKind.TEXT)
    wire = connect()
    wire.receiver()
    assert bodies(wire.exchange(flow_of(9))) == ["first", "last"]
    assert not wire.is_closed
    assert harness.figures(DLQ.name)["messages"] == 1
