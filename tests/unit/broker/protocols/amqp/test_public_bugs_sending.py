"""Senders and their messages: bugs that users reported for other brokers. Sources are in the docstrings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandemmq.broker.core.access import OpenAccess, Operation
from tandemmq.broker.core.commands import AckMode, ErrorKind, refusal
from tandemmq.broker.core.policies import DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.errors import DECODE_ERROR, PRECONDITION_FAILED, TRANSFER_LIMIT, UNAUTHORIZED
from tandemmq.broker.protocols.amqp.frames import frame_of
from tandemmq.broker.protocols.amqp.links import CREDIT
from tandemmq.broker.protocols.amqp.schema import UINT_MAX, Accepted, Disposition, Flow, Rejected, Transfer
from tandemmq.broker.protocols.amqp.types import Symbol, Timestamp, UInt, ULong, Uuid
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind
from tests.support.broker.amqp_wire import AmqpWire, bodies, header, section, sections_of, selector, value
from tests.unit.broker.engine.conftest import ORDERS, Harness
from tests.unit.broker.protocols.amqp.conftest import Make

BILLS = Destination(DestinationKind.QUEUE, "bills")


@pytest.fixture
def sender(connect: Make) -> AmqpWire:
    wire = connect()
    wire.sender()
    return wire


@pytest.fixture
def full(make_harness: Callable[..., Harness]) -> Harness:
    """Return an engine whose memory for queue://orders is full: messages that are not durable wait."""
    policy = replace(DestinationPolicy(), memory_limit=1_000)
    harness = make_harness(Policies([PolicyEntry(DestinationKind.QUEUE, "orders", policy)]))
    harness.client().send("x" * 500, persistent=False)
    return harness


def connected(harness: Harness) -> AmqpWire:
    wire = AmqpWire(harness)
    wire.connect()
    wire.begin()
    return wire


def given(encoded: bytes, wire: AmqpWire) -> bytes:
    """Return the message as an AMQP client of the queue receives it."""
    wire.send(encoded)
    wire.receiver()
    flow = Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=1)
    (transfer,) = wire.exchange(flow)
    return transfer.payload


def transfers(*messages: bytes, **fields: Any) -> bytes:
    """Return the bytes of these messages, the first with the delivery id 0."""
    return b"".join(
        frame_of(0, write_composite(Transfer(handle=0, delivery_id=id, delivery_tag=b"%d" % id, **fields)) + each)
        for id, each in enumerate(messages)
    )


# ---- credit


def test_a_client_that_waits_for_memory_gets_no_more_credit(full: Harness) -> None:
    """AMQ-6498, ARTEMIS-2057: credit was renewed without counting unanswered messages, so memory exceeded its
    limit."""
    wire = connected(full)
    wire.sender()
    wire.receive(transfers(*[value("x" * 100)] * CREDIT))
    assert not wire.replies()
    assert full.counts["sends_waiting"] == CREDIT
    assert not wire.exchange(Transfer(handle=0, delivery_id=CREDIT, delivery_tag=b"t"), payload=value("too many"))
    reader = full.consumer("s", ORDERS, AckMode.AUTO)
    full.wait(5)
    assert len(reader.bodies) == 1 + CREDIT
    *answers, detach = [each.performative for each in wire.replies()]
    assert all(isinstance(each, Disposition) and each.state == Accepted() for each in answers)
    assert isinstance(detach, schema.Detach)
    assert isinstance(detach.error, schema.Error)
    assert detach.error.condition == TRANSFER_LIMIT


def test_a_client_that_waits_for_memory_can_still_acknowledge(full: Harness) -> None:
    """rabbitmq-server PR 9953: the memory alarm did not block AMQP producers, or it blocked their acknowledgements,
    too."""
    full.client().store("bill", "next", destination=BILLS, body_kind=BodyKind.TEXT)
    wire = connected(full)
    wire.sender()
    wire.sender("bills", handle=2)
    wire.receive(transfers(value("x" * 900)))
    assert not wire.replies()
    wire.receiver("bills", credit=2)
    (answer,) = wire.dispose(0, Accepted(), settled=False)
    assert answer.settled
    wire.next_delivery_id = 1
    assert [each.state for each in wire.send(value("y"), handle=2)] == [Accepted()]
    full.consumer("s", ORDERS, AckMode.AUTO)
    full.wait(0.2)
    assert [(each.first, each.state) for each in wire.all_of(Disposition)] == [(0, Accepted())]


def test_refused_messages_release_their_credit(sender: AmqpWire) -> None:
    """ARTEMIS-1898: rejected messages used up the credit. ARTEMIS-823, AMQ-5723: they were not settled."""
    for id in range(2 * CREDIT):
        (answer, *_) = sender.send(b"damaged")
        assert isinstance(answer, Disposition)
        assert (answer.first, answer.settled, answer.state.error.condition) == (id, True, DECODE_ERROR)


def test_presettled_messages_release_their_credit(connect: Make, harness: Harness) -> None:
    """AMQ-5723: the memory of presettled messages was never freed."""
    wire = connect()
    wire.sender("topic://t")
    for _ in range(2 * CREDIT):
        assert all(isinstance(each, Flow) for each in wire.send(value("x"), settled=True))
    (flow,) = wire.flow(0, None, echo=True)
    assert flow.link_credit > 0


@pytest.mark.parametrize("count", [1, 7, 0x7FFFFFFF, 0x80000000, UINT_MAX - 1, UINT_MAX])
def test_the_initial_delivery_count_can_be_any_number(connect: Make, count: int) -> None:
    """rabbitmq-amqp1.0 #9: an initial-delivery-count other than 0 caused a crash."""
    wire = connect()
    attach, flow = wire.sender(initial_delivery_count=count)
    assert attach.target is not None
    assert (flow.delivery_count, flow.link_credit) == (count, CREDIT)
    granted = []
    for _ in range(CREDIT):
        granted += [each for each in wire.send(value("x")) if isinstance(each, Flow)]
    assert granted[0].link_credit == CREDIT
    assert granted[0].delivery_count is not None
    assert (granted[0].delivery_count - count) & UINT_MAX < CREDIT


# ---- transfers


@pytest.mark.parametrize("repeated", [{}, {"delivery_id": 0, "delivery_tag": b"t", "message_format": 0}])
@pytest.mark.parametrize("parts", [2, 3, 50])
def test_later_transfers_of_a_message_can_omit_the_ids(
    harness: Harness, sender: AmqpWire, repeated: dict[str, Any], parts: int
) -> None:
    """AMQPNetLite #231, rabbitmq-amqp1.0-client #11: long messages failed at their second transfer."""
    whole = value("x" * 500)
    size = -(-len(whole) // parts)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    sender.exchange(
        Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, more=True), payload=pieces[0]
    )
    replies = []
    for each in pieces[1:]:
        replies += sender.exchange(Transfer(handle=0, more=each is not pieces[-1], **repeated), payload=each)
    assert [each.performative for each in replies] == [
        Disposition(role=True, first=0, last=0, settled=True, state=Accepted())
    ]
    assert harness.consumer("s", ORDERS, AckMode.AUTO).turn().bodies == ["x" * 500]


def test_a_disposition_covers_only_equal_outcomes(sender: AmqpWire) -> None:
    """AMQ-5467: messages between two accepted ones counted as accepted, too."""
    sender.receive(transfers(value("a"), b"damaged", value("b"), value("c"), b"damaged"))
    found = {}
    for each in sender.all_of(Disposition):
        assert each.last is not None
        for id in range(each.first, each.last + 1):
            assert id not in found
            found[id] = type(each.state)
    assert found == {0: Accepted, 1: Rejected, 2: Accepted, 3: Accepted, 4: Rejected}


# ---- refusals


class Closed(OpenAccess):
    """Access control that allows messages to queue://open only."""

    has_rights = True

    def __init__(self) -> None:
        super().__init__(is_everywhere=True)

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        if operation is Operation.WRITE and destination.name != "open":
            raise refusal(f"no right to write to {destination}", kind=ErrorKind.SECURITY)


def test_a_refused_attach_is_answered_with_an_attach_and_a_detach(connect: Make, harness: Harness) -> None:
    """rabbitmq-server PR 15147: a link was refused by a detach without an attach, or the reason was lost."""
    harness.access = Closed()
    harness.begin_term()
    wire = connect()
    attach, detach = wire.sender("secrets")
    assert isinstance(attach, schema.Attach)
    assert (attach.handle, attach.role, attach.target) == (0, True, None)
    assert (detach.handle, detach.closed, detach.error.condition) == (0, True, UNAUTHORIZED)
    assert detach.error.description == "no right to write to queue://secrets"


INTERNALS = re.compile(r"Traceback|\.py|Error\(|Exception| object at 0x|<class|tandemmq\.")


def test_a_refusal_contains_no_internals(connect: Make, sender: AmqpWire) -> None:
    """rabbitmq-server PR 17392: the client got a stack trace."""
    errors = [sender.send(encoded)[0].state.error for encoded in (b"\xff", value("x")[:-1], section(0x75, 7))]
    for number, found in enumerate((selector("a == 1"), selector("x LIKE 7"), selector("("))):
        errors.append(sender.receiver(handle=5 + number, filter=found)[1].error)
    errors.append(connect("other").receiver("temp-queue://nowhere")[1].error)
    for error in errors:
        assert error.description
        assert not INTERNALS.search(error.description), error.description


def to(address: str | None) -> bytes:
    """Return a message for an address of the anonymous relay."""
    return (b"" if address is None else write_composite(schema.Properties(to=address))) + value(address)


ADDRESSES = (None, "queue://secrets", "queue://open")


def test_the_anonymous_relay_checks_each_message(connect: Make, harness: Harness) -> None:
    """AMQ-5391: a message without ``to`` caused a NullPointerException, or was accepted and dropped. ActiveMQ's
    testAnonymousProducerNotAuthorized: rights were checked for the link, but not for ``to``."""
    harness.access = Closed()
    harness.begin_term()
    wire = connect()
    wire.sender(target=None)
    states = [wire.send(to(address))[0].state for address in ADDRESSES]
    assert [each.error.condition for each in states[:2]] == [PRECONDITION_FAILED, UNAUTHORIZED]
    assert states[2] == Accepted()
    for name in ("secrets", "open"):
        reader = harness.consumer("s", Destination(DestinationKind.QUEUE, name), AckMode.AUTO).turn()
        assert reader.bodies == (["queue://open"] if name == "open" else [])


def test_a_refused_presettled_message_detaches_the_anonymous_relay(connect: Make, harness: Harness) -> None:
    """AMQ-5391: the client was not informed that its presettled messages were dropped."""
    harness.access = Closed()
    harness.begin_term()
    wire = connect()
    for address, condition in zip(ADDRESSES, (PRECONDITION_FAILED, UNAUTHORIZED), strict=False):
        wire.sender(target=None)
        (detach,) = wire.send(to(address), settled=True)
        assert (detach.closed, detach.error.condition) == (True, condition)
        assert not wire.exchange(schema.Detach(0, True))


# ---- messages


@pytest.mark.parametrize(
    ("head", "durable"), [(b"", False), (header(), False), (header(durable=False), False), (header(durable=True), True)]
)
def test_a_message_is_durable_only_if_its_header_says_so(sender: AmqpWire, head: bytes, durable: bool) -> None:
    """rabbitmq-server PR 13918, PR 10568, AMQ-5828: the default was true, or the field was lost."""
    found = sections_of(given(head + value("x"), sender)).get(0x70, [])
    assert ([*found, None][0] is True) is durable


def test_a_ttl_is_unsigned(sender: AmqpWire, harness: Harness) -> None:
    """ARTEMIS-4820: a ttl above 2³¹ was negative, and the message expired at once."""
    sender.send(header(ttl=0xFFFFFFFF) + value("x"))
    harness.wait(60)
    assert harness.consumer("s", ORDERS, AckMode.AUTO).turn().bodies == ["x"]


@pytest.mark.parametrize("expiry", [None, Timestamp(0)])
def test_a_ttl_applies_without_an_expiry_time(sender: AmqpWire, harness: Harness, expiry: Timestamp | None) -> None:
    """ARTEMIS-1090: the ttl was ignored if absolute-expiry-time was 0, which means that it is not set."""
    properties = write_composite(schema.Properties(absolute_expiry_time=expiry))
    sender.send(header(ttl=2_000) + properties + value("short"))
    sender.send(header(ttl=0) + properties + value("long"))
    harness.wait(60)
    assert harness.consumer("s", ORDERS, AckMode.AUTO).turn().bodies == ["long"]


@pytest.mark.parametrize("id", ["text", ULong(7), Uuid(bytes(range(16))), b"\0\xff", "AMQP_ULONG:7"])
def test_a_message_id_keeps_its_type(sender: AmqpWire, id: Any) -> None:
    """AMQ-6263, AMQ-5684: uuids, numbers and binary ids became texts."""
    encoded = write_composite(schema.Properties(message_id=id, correlation_id=id)) + value("x")
    listed = sections_of(given(encoded, sender))[0x73]
    assert (listed[0], type(listed[0])) == (id, type(id))
    assert (listed[5], type(listed[5])) == (id, type(id))


def test_a_footer_keeps_its_symbols(sender: AmqpWire) -> None:
    """AMQ-7274: the keys of a footer became strings."""
    found = sections_of(given(value("x") + section(0x78, {Symbol("crc"): UInt(7)}), sender))[0x78]
    assert [(type(key), key, each) for key, each in found.items()] == [(Symbol, "crc", 7)]


def test_delivery_annotations_can_precede_the_header(sender: AmqpWire) -> None:
    """ARTEMIS-4725: delivery annotations before the header broke the search for the body."""
    encoded = section(0x71, {Symbol("x-opt-d"): 1}) + header(durable=True, priority=7) + value("x")
    found = sections_of(given(encoded, sender))
    assert found[0x77] == "x"
    assert found[0x70][:2] == [True, 7]


def test_messages_with_one_message_id_are_not_duplicates(connect: Make, sender: AmqpWire) -> None:
    """ActiveMQ's audit of message ids: a message of one client must not count as a duplicate of another's."""
    other = connect("other")
    other.sender()
    encoded = header() + write_composite(schema.Properties(message_id="same")) + value("x")
    for wire in (sender, other, sender):
        assert wire.send(encoded)[0].state == Accepted()
    other.receiver()
    flow = Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=9)
    assert bodies(other.exchange(flow)) == ["x", "x", "x"]
