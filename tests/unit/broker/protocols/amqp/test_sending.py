"""AMQP senders: credit, transfers, and outcomes of messages."""

# proves: amqp-accepts-after-the-store, amqp-detach-waits-for-outcomes

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.access import OpenAccess, Operation
from tandemmq.broker.core.commands import AckMode, ErrorKind, refusal
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.errors import (
    DECODE_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    TRANSFER_LIMIT,
    UNAUTHORIZED,
)
from tandemmq.broker.protocols.amqp.frames import frame_of
from tandemmq.broker.protocols.amqp.links import CREDIT
from tandemmq.broker.protocols.amqp.schema import Accepted, Disposition, Rejected, Transfer
from tandemmq.broker.protocols.amqp.types import UByte, UInt
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.properties import Long
from tests.support.broker.amqp_wire import LIMITS, AmqpWire, Pieces, header, section, value
from tests.unit.broker.engine.conftest import ORDERS, Harness
from tests.unit.broker.protocols.amqp.conftest import Make

ACCEPTED = Accepted()


@pytest.fixture
def sender(connect: Make) -> AmqpWire:
    wire = connect()
    wire.sender()
    return wire


def stored(harness: Harness, destination: Destination = ORDERS) -> list[str]:
    """Return the messages that a consumer of the queue receives."""
    return harness.client().subscribe("all", destination, AckMode.CLIENT).turn().bodies


def test_a_sender_gets_credit(connect: Make) -> None:
    attach, flow = connect().sender(initial_delivery_count=0xFFFFFFFE)
    assert (attach.role, attach.target.address, attach.max_message_size) == (True, "orders", 1 << 20)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 0xFFFFFFFE, CREDIT)


def test_a_message_is_accepted_when_it_is_stored(harness: Harness, sender: AmqpWire) -> None:
    assert sender.send(header(durable=True) + value("a")) == [
        Disposition(role=True, first=0, last=0, settled=True, state=ACCEPTED)
    ]
    assert stored(harness) == ["a"]


def test_a_durable_message_is_not_accepted_before_it_is_stored(harness: Harness, sender: AmqpWire) -> None:
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"t")
    for command in sender.session.receive(frame_of(0, write_composite(transfer) + header(durable=True) + value("x"))):
        sender.engine.handle(sender, command)
    assert sender.session.take() == b""
    assert [each.state for each in sender.all_of(Disposition)] == [ACCEPTED]


@pytest.mark.parametrize("pieces", Pieces)
def test_accepted_messages_share_a_disposition(connect: Make, harness: Harness, pieces: Pieces) -> None:
    wire = connect(pieces=pieces)
    wire.sender()
    wire.sender("topic://t", handle=1)
    wire.receive(
        b"".join(
            frame_of(0, write_composite(Transfer(handle=id % 2, delivery_id=id, delivery_tag=b"t")) + value(str(id)))
            for id in range(20)
        )
    )
    settled = [(each.first, each.last) for each in wire.all_of(Disposition)]
    assert settled[0][0] == 0
    assert settled[-1][1] == 19
    assert [first for first, _ in settled[1:]] == [last + 1 for _, last in settled[:-1]]
    if pieces is Pieces.WHOLE:
        assert len(settled) == 1
    assert stored(harness) == [str(id) for id in range(0, 20, 2)]


def test_a_message_can_have_many_transfers(harness: Harness, sender: AmqpWire) -> None:
    whole = value("x" * 100)
    first = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    assert not sender.exchange(first, payload=whole[:10])
    for each in whole[10:-1]:
        assert not sender.exchange(Transfer(handle=0, more=True), payload=bytes((each,)))
    assert sender.session.unfinished_bytes == len(whole) - 1
    (answer,) = sender.exchange(Transfer(handle=0, settled=False), payload=whole[-1:])
    assert answer.performative.state == ACCEPTED  # type: ignore[union-attr]
    assert sender.session.unfinished_bytes == 0
    assert stored(harness) == ["x" * 100]


def test_messages_of_two_links_can_interleave(harness: Harness, sender: AmqpWire) -> None:
    sender.sender(handle=1)
    for handle in (0, 1):
        sender.exchange(
            Transfer(handle=handle, delivery_id=handle, delivery_tag=b"t", more=True), payload=value("ab")[:-1]
        )
    for handle in (1, 0):
        sender.exchange(Transfer(handle=handle), payload=b"%d" % handle)
    assert stored(harness) == ["a1", "a0"]


@pytest.mark.parametrize(
    "other",
    [
        Transfer(handle=0, delivery_id=1),
        Transfer(handle=0, delivery_tag=b"u"),
        Transfer(handle=0, message_format=1),
        Transfer(handle=0, delivery_id=1, aborted=True),
    ],
)
def test_a_transfer_of_another_delivery_cannot_continue_an_incomplete_one(
    harness: Harness, sender: AmqpWire, other: Transfer
) -> None:
    first = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True)
    assert not sender.exchange(first, payload=value("ab")[:-1])
    more = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    assert not sender.exchange(more)
    (end,) = sender.exchange(other, payload=b"2")
    assert end.performative.error.condition == INVALID_FIELD  # type: ignore[union-attr]
    assert sender.session.unfinished_bytes == 0
    assert not stored(harness)


def test_an_aborted_message_leaves_nothing(harness: Harness, sender: AmqpWire) -> None:
    sender.exchange(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), payload=b"anything")
    assert not sender.exchange(Transfer(handle=0, aborted=True), payload=b"more")
    assert sender.session.unfinished_bytes == 0
    sender.next_delivery_id = 1
    (answer,) = sender.send(value("next"))
    assert (answer.first, answer.state) == (1, ACCEPTED)
    assert stored(harness) == ["next"]


def test_a_presettled_message_has_no_answer(harness: Harness, sender: AmqpWire) -> None:
    assert not sender.send(value("a"), settled=True)
    sender.exchange(Transfer(handle=0, delivery_id=1, delivery_tag=b"t", more=True), payload=value("b")[:2])
    assert not sender.exchange(Transfer(handle=0, settled=True), payload=value("b")[2:])
    assert stored(harness) == ["a", "b"]


def test_credit_is_renewed_within_its_limit(harness: Harness, sender: AmqpWire) -> None:
    granted = CREDIT
    for id in range(CREDIT + 300):
        for answer in sender.send(value("x")):
            if isinstance(answer, schema.Flow):
                granted = answer.link_credit or 0
                assert answer.delivery_count is not None
                assert answer.delivery_count + granted > id
    assert granted == CREDIT


def test_a_message_without_credit_ends_the_link(connect: Make) -> None:
    wire = connect()
    attach = schema.Attach(
        name="s", handle=0, role=False, source=schema.Source(), target=schema.Target(address="orders")
    )
    early = Transfer(handle=0, delivery_id=0, delivery_tag=b"t")
    wire.receive(frame_of(0, write_composite(attach)) + frame_of(0, write_composite(early) + value("x")))
    (detach,) = wire.all_of(schema.Detach)
    assert (detach.closed, detach.error.condition) == (True, TRANSFER_LIMIT)
    assert not wire.send(value("y"))  # the client may have sent it before it got the detach
    wire.exchange(schema.Detach(0, True))
    assert len(wire.sender()) == 2


def test_a_message_that_is_too_long_ends_the_link(harness: Harness, sender: AmqpWire) -> None:
    first = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True)
    sender.exchange(first, payload=bytes(100_000))
    replies = [
        each for _ in range(11) for each in sender.exchange(Transfer(handle=0, more=True), payload=bytes(100_000))
    ]
    (detach,) = replies
    assert detach.performative.error.condition == MESSAGE_SIZE  # type: ignore[union-attr]
    assert sender.session.unfinished_bytes == 0


@pytest.mark.parametrize(
    ("encoded", "condition"),
    [
        (b"", None),
        (b"nonsense", DECODE_ERROR),
        (value("x")[:-1], DECODE_ERROR),
        (value("x") + b"\0", DECODE_ERROR),
        (value("x") + value("y"), DECODE_ERROR),
        (section(0x79, "x"), DECODE_ERROR),
        (b"\0\x53\x77\xa1\1\xff", None),  # a body is not decoded
        (b"\0\x53\x75\xa1\1x", DECODE_ERROR),
        (b"\0\x53\x76\xa1\1x", DECODE_ERROR),
        (section(0x74, {1: 2}) + value("x"), DECODE_ERROR),
        (section(0x74, {str(each): 1 for each in range(1_001)}) + value("x"), RESOURCE_LIMIT),
        (section(0x72, {schema.Symbol("x-opt-delivery-cron"): 5}) + value("x"), DECODE_ERROR),
    ],
)
def test_only_the_damaged_message_is_rejected(sender: AmqpWire, encoded: bytes, condition: str | None) -> None:
    (answer,) = sender.send(encoded)
    assert (answer.first, answer.last, answer.settled) == (0, 0, True)
    if condition is None:
        assert answer.state == ACCEPTED
    else:
        assert isinstance(answer.state, Rejected)
        assert answer.state.error.condition == condition
    (answer,) = sender.send(value("sound"))
    assert answer.state == ACCEPTED


def test_a_message_can_be_sent_repeatedly(harness: Harness, sender: AmqpWire) -> None:
    annotations = {schema.Symbol(f"x-opt-delivery-{name}"): ms for name, ms in SCHEDULE.items()}
    sender.send(section(0x72, annotations) + value("x"))
    reader = harness.client().subscribe("all", ORDERS, AckMode.AUTO)
    seen = []
    for _ in range(8):
        harness.tick(harness.now + 100)
        seen.append(len(reader.turn().bodies))
    assert seen == [0, 0, 1, 2, 3, 3, 3, 3]


SCHEDULE = {"delay": Long(300), "period": UInt(100), "repeat": UByte(2)}


def test_a_damaged_presettled_message_ends_the_link(sender: AmqpWire) -> None:
    (detach,) = sender.send(b"nonsense", settled=True)
    assert detach.error.condition == DECODE_ERROR


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"target": schema.Target(address="x", dynamic=True)}, INVALID_FIELD),
        ({"target": schema.Source(address="x")}, INVALID_FIELD),
        ({"address": "queue://"}, INVALID_FIELD),
        ({"address": "a?consumer.priority=1"}, NOT_IMPLEMENTED),
    ],
)
def test_an_unsupported_sender_is_refused(connect: Make, fields: dict[str, Any], condition: str) -> None:
    wire = connect()
    attach, detach = wire.sender(**fields)
    assert attach.target is None
    assert (detach.closed, detach.error.condition) == (True, condition)
    assert detach.error.description
    assert not wire.exchange(schema.Detach(0, True))
    assert wire.sender()[0].target is not None


class Closed(OpenAccess):
    """Access control that allows no messages while ``is_closed``."""

    has_rights = True

    def __init__(self) -> None:
        super().__init__(is_everywhere=True)
        self.is_closed = True

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        if self.is_closed and operation is Operation.WRITE:
            raise refusal("not for you", kind=ErrorKind.SECURITY)


def test_a_link_without_the_right_is_refused(connect: Callable[..., AmqpWire], harness: Harness) -> None:
    access = harness.access = Closed()
    harness.begin_term()
    wire = connect()
    attach, detach = wire.sender()
    assert (attach.target, detach.error.condition, detach.error.description) == (None, UNAUTHORIZED, "not for you")
    access.is_closed = False
    wire.exchange(schema.Detach(0, True))
    assert wire.sender()[0].target is not None


@pytest.mark.parametrize("target", [None, schema.Target(), schema.Target(address="")])
def test_messages_of_the_anonymous_relay_name_their_destination(
    connect: Make, harness: Harness, target: schema.Target | None
) -> None:
    access = harness.access = Closed()
    harness.begin_term()
    wire = connect()
    assert wire.sender(target=target)[0].target == schema.Target()
    named = [write_composite(schema.Properties(to=to)) + value("x") for to in ("queue://orders", "orders", "", 7)]
    conditions = []
    for encoded in (named[0], *named[2:], value("x")):
        (answer,) = wire.send(encoded)
        conditions.append(answer.state.error.condition)
    assert conditions == [UNAUTHORIZED, INVALID_FIELD, INVALID_FIELD, "amqp:precondition-failed"]
    access.is_closed = False
    for encoded in named[:2]:
        (answer,) = wire.send(encoded)
        assert answer.state == ACCEPTED
    assert stored(harness) == ["x", "x"]


def test_a_refused_presettled_message_detaches_its_link_once(connect: Make, harness: Harness) -> None:
    access = harness.access = Closed()
    harness.begin_term()
    wire = connect()
    wire.sender(target=schema.Target())
    encoded = write_composite(schema.Properties(to="queue://orders")) + value("x")
    transfers = (Transfer(handle=0, delivery_id=each, delivery_tag=b"t", settled=True) for each in range(2))
    (detach,) = [each.performative for each in wire.exchange(*transfers, payload=encoded)]
    assert isinstance(detach, schema.Detach)
    assert (detach.closed, detach.error.condition, detach.error.description) == (True, UNAUTHORIZED, "not for you")
    assert not wire.send(encoded, settled=True)  # the client may have sent it before it got the detach
    assert not wire.exchange(schema.Detach(0, True))
    access.is_closed = False
    wire.sender()
    assert not wire.send(value("y"), settled=True)
    assert stored(harness) == ["y"]


def test_a_scheme_or_a_capability_selects_a_topic(connect: Make, harness: Harness) -> None:
    wire = connect()
    wire.sender("topic://a")
    wire.sender(handle=1, target=schema.Target(address="b", capabilities=(schema.Symbol("topic"),)))
    topics = [Destination(DestinationKind.TOPIC, name) for name in "ab"]
    reader = harness.client()
    for topic in topics:
        reader.subscribe(topic.name, topic, AckMode.AUTO)
    reader.turn()
    wire.send(value("to a"))
    wire.send(value("to b"), handle=1)
    harness.turn()
    assert reader.bodies == ["to a", "to b"]


def test_an_attach_is_answered_before_the_detach_that_follows_it(connect: Make) -> None:
    wire = connect()
    attach = schema.Attach(
        name="s", handle=0, role=False, source=schema.Source(), target=schema.Target(address="orders")
    )
    replies = wire.exchange(attach, schema.Detach(0, True), schema.End())
    assert [type(each.performative).__name__ for each in replies] == ["Attach", "Detach", "End"]


def test_a_detach_is_answered_after_the_outcomes(connect: Make) -> None:
    wire = connect(limits=LIMITS)
    wire.sender()
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"t")
    wire.receive(
        frame_of(0, write_composite(transfer) + header(durable=True) + value("x"))
        + frame_of(0, write_composite(schema.Detach(0, True)))
    )
    assert [type(each.performative).__name__ for each in wire.replies()] == ["Disposition", "Detach"]
    assert len(wire.sender()) == 2


def test_incomplete_messages_have_a_common_limit(sender: AmqpWire) -> None:
    sender.sender(handle=1)
    for handle in (0, 1):
        first = Transfer(handle=handle, delivery_id=handle, delivery_tag=b"t", more=True)
        sender.exchange(first, payload=bytes(100_000))
    replies = [
        each
        for _ in range(5)
        for handle in (0, 1)
        for each in sender.exchange(Transfer(handle=handle, more=True), payload=bytes(100_000))
    ]
    (detach,) = replies
    assert detach.performative.error.condition == RESOURCE_LIMIT  # type: ignore[union-attr]
