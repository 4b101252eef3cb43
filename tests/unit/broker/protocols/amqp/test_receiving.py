"""AMQP receivers: credit, drain, windows and outcomes."""

# proves: amqp-no-outcome-is-no-acknowledgement, amqp-grant-after-a-drain, amqp-drained-grants-end

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import Ack, AckMode, ClientError, Grant, Undeliverable, Unsubscribe
from tandemmq.broker.protocols.amqp import links, schema, termini
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.errors import INVALID_FIELD, RESOURCE_LIMIT
from tandemmq.broker.protocols.amqp.frames import frame_of
from tandemmq.broker.protocols.amqp.opening import AmqpLimits
from tandemmq.broker.protocols.amqp.schema import (
    UINT_MAX,
    Accepted,
    Composite,
    Flow,
    Modified,
    Rejected,
    Released,
    Transfer,
)
from tandemmq.broker.protocols.amqp.session import SENT_FRAMES_MAX
from tandemmq.broker.protocols.amqp.types import Described, Symbol, ULong
from tandemmq.broker.protocols.session import COMMANDS_MAX
from tandemmq.store.records.message import BodyKind, Message
from tests.support.broker.amqp_wire import bodies, body_of, selector
from tests.unit.broker.engine.conftest import DLQ, ORDERS, PRICES, Client, Harness
from tests.unit.broker.protocols.amqp.conftest import Make


@pytest.fixture
def writer(harness: Harness) -> Client:
    return harness.client()


@pytest.fixture
def five_messages(writer: Client) -> None:
    """5 messages in the queue."""
    writer.store(*range(5), body_kind=BodyKind.TEXT)


def received(answers: list[Any]) -> list[int]:
    """Return the delivery ids in these answers."""
    return [each.delivery_id for each in answers if isinstance(each, Transfer)]


def remaining(harness: Harness) -> list[tuple[str, int]]:
    """Return the messages that another consumer receives, each with its number of redeliveries."""
    reader = harness.client().subscribe("all", ORDERS, AckMode.CLIENT).turn()
    return [(each.body, each.redeliveries) for each in reader.session.delivered]


def test_a_client_that_keeps_its_credit_full_gets_each_message_at_once(connect: Make, writer: Client) -> None:
    wire = connect()
    wire.receiver(credit=10)
    for number in range(100):
        writer.store(number, body_kind=BodyKind.TEXT)
        assert received(wire.flow(1, 10, delivery_count=number, next_incoming_id=number)) == [number]


def test_a_client_can_reduce_its_credit(connect: Make, writer: Client) -> None:
    wire = connect()
    wire.receiver(credit=100)
    assert not wire.flow(1, 2, delivery_count=0, next_incoming_id=0)
    writer.store(*range(5), body_kind=BodyKind.TEXT)
    assert received(wire.flow(1, 2, delivery_count=0, next_incoming_id=0)) == [0, 1]
    assert received(wire.flow(1, 3, delivery_count=2, next_incoming_id=2)) == [2, 3, 4]


def test_a_receiver_gets_nothing_before_its_first_flow(connect: Make, five_messages: None) -> None:
    wire = connect()
    (attach,) = wire.receiver()
    assert (attach.role, attach.initial_delivery_count, attach.source.address) == (False, 0, "orders")
    assert received(wire.flow(1, 2)) == [0, 1]
    assert not wire.flow(1, 0)


def test_credit_limits_sent_and_not_unsettled_deliveries(connect: Make, five_messages: None) -> None:
    wire = connect()
    wire.receiver(credit=2)
    assert not wire.dispose(0, Accepted(), last=1)
    assert received(wire.flow(1, 2, delivery_count=2, next_incoming_id=2)) == [2, 3]
    # The client has not counted the last two yet: 1 of its credit of 3 is left.
    assert received(wire.flow(1, 3, delivery_count=2, next_incoming_id=2)) == [4]


def test_each_delivery_has_another_tag(connect: Make, five_messages: None) -> None:
    wire = connect()
    (_, first, second) = wire.receiver(credit=2)
    assert (first.handle, first.delivery_id, first.settled, first.more) == (1, 0, False, False)
    assert first.delivery_tag != second.delivery_tag


def test_a_receiver_can_pipeline_its_frames(connect: Make, five_messages: None) -> None:
    wire = connect()
    attach = schema.Attach(
        name="r", handle=1, role=True, source=schema.Source(address="orders"), target=schema.Target()
    )
    flow = Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=2)
    replies = wire.exchange(attach, flow, schema.Detach(1, True))
    assert [type(each.performative).__name__ for each in replies if not isinstance(each.performative, Transfer)] == [
        "Attach",
        "Detach",
    ]
    assert len(wire.receiver(credit=5)) == 6


# ---- drain and echo


def test_a_drain_is_answered_after_the_messages(connect: Make, five_messages: None) -> None:
    wire = connect()
    wire.receiver()
    *transfers, flow = wire.flow(1, 9, drain=True)
    assert len(transfers) == 5
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 9)
    (again,) = wire.flow(1, 0, delivery_count=9, next_incoming_id=5, drain=True)
    assert (again.drain, again.link_credit, again.delivery_count) == (True, 0, 9)


def test_a_drain_with_credit_for_exactly_all_messages_is_answered(connect: Make, five_messages: None) -> None:
    wire = connect()
    wire.receiver()
    *transfers, flow = wire.flow(1, 5, drain=True)
    assert (len(transfers), flow.drain, flow.delivery_count) == (5, True, 5)


def test_a_drain_with_credit_0_is_answered(connect: Make, five_messages: None) -> None:
    wire = connect()
    wire.receiver()
    (flow,) = wire.flow(1, 0, drain=True)
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 0)


def test_a_drain_uses_up_the_credit(connect: Make, five_messages: None, writer: Client) -> None:
    wire = connect()
    wire.receiver()
    wire.flow(1, 10, drain=True)
    writer.store("late", body_kind=BodyKind.TEXT)
    assert not wire.replies()
    assert received(wire.flow(1, 1, delivery_count=10, next_incoming_id=5)) == [5]


def test_credit_after_a_drain_without_messages_counts(connect: Make, writer: Client) -> None:
    wire = connect()
    wire.receiver()
    wire.flow(1, 10, drain=True)
    for number in range(5):
        writer.store(str(number), body_kind=BodyKind.TEXT)
    assert received(wire.flow(1, 10, delivery_count=10)) == [0, 1, 2, 3, 4]


def test_a_flow_that_ends_a_drain_grants_credit(connect: Make, five_messages: None, writer: Client) -> None:
    wire = connect(window=0)
    wire.receiver()
    wire.flow(1, 9, window=0, drain=True)
    wire.flow(1, 9, window=0)
    writer.store("late", body_kind=BodyKind.TEXT)
    assert received(wire.flow(None, None, window=9)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("address", "counts"), [("queue://orders", (0, 0, 1, 0, 0, 1, 1)), ("topic://prices", (1, 1, 1, 1, 1, 1, 1))]
)
def test_a_flow_that_grants_nothing_new_makes_no_grant(connect: Make, address: str, counts: tuple[int, ...]) -> None:
    wire = connect()
    wire.receiver(address, credit=100)
    for credit, count in zip((100, 120, 99, 100, 128, 10, 100), counts, strict=True):
        flow = Flow(
            next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=credit
        )
        commands = wire.session.receive(frame_of(0, write_composite(flow)))
        assert len([each for each in commands if isinstance(each, Grant)]) == count, credit


def test_an_echo_is_answered(connect: Make, five_messages: None) -> None:
    wire = connect()
    wire.receiver(credit=1)
    (flow,) = wire.flow(None, None, next_incoming_id=1, echo=True)
    assert (flow.handle, flow.next_outgoing_id, flow.incoming_window) == (None, 1, (1 << 31) - 1)
    (flow,) = wire.flow(1, 0, delivery_count=1, next_incoming_id=1, echo=True)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (1, 1, 0)
    wire.sender()
    (flow,) = wire.flow(0, None, echo=True)
    assert (flow.handle, flow.link_credit) == (0, links.CREDIT)


@pytest.mark.parametrize("credit", [0, 3, UINT_MAX])
def test_a_delivery_count_above_that_of_the_broker_does_not_raise_the_credit(
    connect: Make, five_messages: None, credit: int
) -> None:
    wire = connect()
    wire.receiver()
    assert len(received(wire.flow(1, credit, delivery_count=UINT_MAX // 4, echo=True))) == min(credit, 5)
    assert not wire.is_closed


def test_an_echo_is_answered_after_the_attach(connect: Make) -> None:
    wire = connect()
    attach = schema.Attach(name="r", handle=1, role=True, source=schema.Source(address="q"), target=schema.Target())
    flow = Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=2, echo=True)
    answers = [each.performative for each in wire.exchange(attach, flow)]
    assert [type(each).__name__ for each in answers] == ["Attach", "Flow"]
    assert answers[1].link_credit == 2  # type: ignore[union-attr]


# ---- windows and frames


def test_deliveries_wait_for_the_window_in_order(connect: Make, five_messages: None) -> None:
    wire = connect(window=2)
    wire.receiver(credit=None)
    assert received(wire.flow(1, 5, window=2)) == [0, 1]
    assert received(wire.flow(None, None, window=1, next_incoming_id=2)) == [2]
    assert not wire.flow(None, None, window=0, next_incoming_id=3)
    assert received(wire.flow(None, None, window=9, next_incoming_id=3)) == [3, 4]


def test_a_drain_is_answered_after_the_deliveries_that_wait_for_the_window(connect: Make, five_messages: None) -> None:
    wire = connect(window=0)
    wire.receiver()
    assert not wire.flow(1, 5, window=0, drain=True)
    *transfers, flow = wire.flow(None, None, window=9)
    assert (received(transfers), flow.drain, flow.delivery_count) == ([0, 1, 2, 3, 4], True, 5)


def test_a_drain_with_remaining_credit_waits_for_the_window(connect: Make, five_messages: None) -> None:
    wire = connect(window=0)
    wire.receiver()
    assert not wire.flow(1, 9, window=0, drain=True)
    assert received(wire.flow(None, None, window=4)) == [0, 1, 2, 3]
    last, flow = wire.flow(None, None, window=4, next_incoming_id=4)
    assert (last.delivery_id, flow.drain, flow.link_credit, flow.delivery_count) == (4, True, 0, 9)


def test_waiting_deliveries_of_a_detached_link_return_to_the_queue(
    connect: Make, five_messages: None, harness: Harness
) -> None:
    wire = connect(window=1)
    wire.receiver()
    wire.flow(1, 5, window=1)
    (detach,) = wire.exchange(schema.Detach(1, True))
    assert detach.performative == schema.Detach(1, True)
    assert not wire.flow(None, None, window=9, next_incoming_id=1)
    assert [each for each, _ in remaining(harness)] == ["0", "1", "2", "3", "4"]


def test_frames_respect_the_max_frame_size_of_the_client(make: Make, writer: Client) -> None:
    wire = make()
    wire.connect(max_frame_size=512)
    wire.begin()
    writer.store("x" * 2_000, body_kind=BodyKind.TEXT)
    wire.receiver()
    flow = Flow(incoming_window=99, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=1)
    replies = wire.exchange(flow)
    assert len(replies) > 4
    assert [each.performative.more for each in replies] == [True] * (len(replies) - 1) + [False]  # type: ignore[union-attr]
    assert replies[1].performative.delivery_id is None  # type: ignore[union-attr]
    assert body_of(b"".join(each.payload for each in replies)) == "x" * 2_000


def test_frames_of_a_long_message_are_written_in_several_turns(make: Make, writer: Client) -> None:
    wire = make()
    wire.connect(max_frame_size=512)
    wire.begin()
    body = "x" * 500 * SENT_FRAMES_MAX
    writer.store(body, body_kind=BodyKind.TEXT)
    wire.receiver()
    id = next(iter(wire.client.subscriptions))
    wire.session.deliver(id, 1, Message(ORDERS, "ID:x", body.encode(), BodyKind.TEXT), 0, AckMode.RANGE)
    assert wire.session.has_more
    wire.cutter.feed(wire.session.take())
    first = 0
    while wire.cutter.next_frame() is not None:
        first += 1
    assert first == SENT_FRAMES_MAX
    wire.vanish()
    wire = make()
    wire.connect(max_frame_size=512)
    wire.begin()
    wire.receiver()
    flow = Flow(incoming_window=9_999, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=1)
    replies = wire.exchange(flow)
    assert len(replies) > SENT_FRAMES_MAX
    assert body_of(b"".join(each.payload for each in replies)) == body


def test_the_window_counts_frames(make: Make, writer: Client) -> None:
    wire = make()
    wire.connect(max_frame_size=512)
    wire.begin(window=2)
    writer.store("x" * 2_000, body_kind=BodyKind.TEXT)
    wire.receiver()
    assert len(wire.flow(1, 1, window=2)) == 2
    assert len(wire.flow(None, None, window=100, next_incoming_id=2)) > 2


def test_a_client_can_count_a_delivery_at_its_first_frame(make: Make, writer: Client) -> None:
    wire = make()
    wire.connect(max_frame_size=512)
    wire.begin(window=1)
    writer.store("x" * 1_000, "next", body_kind=BodyKind.TEXT)
    wire.receiver()
    assert len(wire.flow(1, 1, window=1)) == 1
    assert received(wire.flow(1, 1, delivery_count=1, window=1, next_incoming_id=1)) == [None]
    assert received(wire.flow(None, None, window=9, next_incoming_id=2)) == [None, 1]


# ---- outcomes


def test_accepted_messages_are_removed(connect: Make, five_messages: None, harness: Harness) -> None:
    wire = connect()
    wire.receiver(credit=5)
    assert not wire.dispose(0, Accepted(), last=1)
    (answer,) = wire.dispose(3, Accepted(), settled=False)
    assert (answer.role, answer.first, answer.settled, answer.state) == (False, 3, True, Accepted())
    assert not wire.dispose(3, Accepted(), settled=True)
    wire.vanish()
    assert [body for body, _ in remaining(harness)] == ["2", "4"]


@pytest.mark.parametrize(
    ("state", "count"),
    [
        (Released(), 0),
        (Modified(), 0),
        (Modified(delivery_failed=True), 1),
        (None, 0),
        (schema.Received(0, 0), 0),
    ],
)
def test_messages_with_other_outcomes_are_redelivered(
    connect: Make, five_messages: None, harness: Harness, state: Any, count: int
) -> None:
    wire = connect()
    wire.receiver(credit=2)
    wire.dispose(0, state)
    wire.exchange(schema.Detach(1, True))
    assert remaining(harness)[0] == ("0", count)


@pytest.mark.parametrize(
    "state", [Rejected(), Rejected(schema.Error("app:bad", "why")), Modified(undeliverable_here=True)]
)
def test_rejected_messages_become_dead_letters(
    connect: Make, five_messages: None, harness: Harness, state: Any
) -> None:
    wire = connect()
    wire.receiver(credit=1)
    (answer,) = wire.dispose(0, state, settled=False)
    assert answer.settled
    assert harness.client().subscribe("d", DLQ, AckMode.CLIENT).turn().bodies == ["0"]
    assert [body for body, _ in remaining(harness)] == ["1", "2", "3", "4"]


def test_the_default_outcome_applies_without_another_one(connect: Make, five_messages: None, harness: Harness) -> None:
    wire = connect()
    wire.receiver(credit=1, default_outcome=Modified(delivery_failed=True))
    wire.dispose(0, None)
    wire.vanish()
    assert remaining(harness)[0] == ("0", 1)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (Accepted(), Accepted()),
        (Released(), Released()),
        (Rejected(schema.Error("app:bad", "why")), Rejected()),
        (Modified(True, False, {Symbol("k"): "v"}), Modified(True, False)),
        (schema.Received(0, 0), None),
    ],
)
def test_a_default_outcome_is_kept_without_annotations_and_error(
    connect: Make, five_messages: None, given: Any, kept: Any
) -> None:
    wire = connect()
    (attach,) = wire.receiver(default_outcome=given)
    assert attach.source.default_outcome == kept


def test_the_default_outcome_rejected_makes_dead_letters(connect: Make, five_messages: None, harness: Harness) -> None:
    wire = connect()
    wire.receiver(credit=1, default_outcome=Rejected(schema.Error("app:bad", "why")))
    wire.dispose(0, None)
    (letter,) = harness.client().subscribe("d", DLQ, AckMode.CLIENT).turn().session.delivered
    properties = letter.message.properties or {}
    assert (letter.body, properties["dlqDeliveryFailureCause"]) == ("0", "rejected by its consumer")


@pytest.mark.parametrize("state", [Accepted(), Rejected(), Released()])
def test_outcomes_are_settled_before_the_end(connect: Make, writer: Client, state: Any) -> None:
    writer.store("a", "b", body_kind=BodyKind.TEXT, persistent=True)
    wire = connect()
    wire.receiver(credit=2)
    disposition = schema.Disposition(role=True, first=0, last=1, settled=False, state=state)
    replies = wire.exchange(disposition, schema.Detach(1, True), schema.End())
    assert sorted(type(each.performative).__name__ for each in replies) == ["Detach", "Disposition", "End"]
    assert replies[-1].performative == schema.End()


def test_one_disposition_can_cover_several_links(connect: Make, five_messages: None, harness: Harness) -> None:
    wire = connect()
    wire.receiver(credit=1)
    wire.receiver(handle=2, credit=1)
    wire.flow(1, 1, delivery_count=1, next_incoming_id=2)
    answers = wire.dispose(0, Accepted(), last=UINT_MAX // 4, settled=False)
    assert sorted(id for each in answers for id in range(each.first, each.last + 1)) == [0, 1, 2]
    wire.vanish()
    assert [body for body, _ in remaining(harness)] == ["3", "4"]


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_range_with_many_gaps_takes_several_turns(
    connect: Make, writer: Client, harness: Harness, is_settled: bool
) -> None:
    count = 10 * COMMANDS_MAX
    writer.store(*range(count), body_kind=BodyKind.TEXT)
    wire = connect()
    wire.receiver(credit=count)
    for id in range(1, count, 2):
        wire.dispose(id, Accepted())
    disposition = schema.Disposition(role=True, first=0, last=UINT_MAX, settled=is_settled, state=Accepted())
    data = b"".join(frame_of(0, write_composite(each)) for each in (disposition, schema.Detach(1, True)))
    commands = list(wire.session.receive(data))
    assert 0 < len(commands) <= COMMANDS_MAX
    while wire.session.has_more:
        more = wire.session.receive(b"")
        assert 0 < len(more) <= COMMANDS_MAX
        commands += more
    assert [type(each) for each in commands] == [Ack] * (count // 2) + [Unsubscribe]
    for command in commands:
        wire.engine.handle(wire, command)
    replies = [each.performative for each in wire.replies()]
    settled = [each.first for each in replies if isinstance(each, schema.Disposition)]
    assert settled == ([] if is_settled else list(range(0, count, 2)))
    assert schema.Detach(1, True) in replies
    assert not remaining(harness)


def test_dispositions_without_an_outcome_or_a_delivery_are_ignored(connect: Make, five_messages: None) -> None:
    wire = connect()
    wire.receiver(credit=2)
    assert not wire.dispose(7, Accepted())
    assert not wire.dispose(9, Accepted(), last=3)
    assert not wire.dispose(0, schema.Received(0, 0), last=1, settled=False)
    assert not wire.dispose(0, None, last=1, settled=False)
    assert not wire.exchange(schema.Disposition(role=False, first=0, settled=True))
    assert not wire.is_closed


def test_unsettled_messages_return_to_the_queue(connect: Make, five_messages: None, harness: Harness) -> None:
    wire = connect()
    wire.receiver(credit=4)
    wire.dispose(1, Accepted())
    wire.exchange(schema.End())
    # The client has settled a delivery after 0, so its application has seen 0.
    assert remaining(harness) == [("0", 1), ("2", 0), ("3", 0), ("4", 0)]


def test_presettled_deliveries_are_removed_when_they_are_written(
    connect: Make, five_messages: None, harness: Harness
) -> None:
    wire = connect()
    (_, *transfers) = wire.receiver(credit=3, mode=1)
    assert [each.settled for each in transfers] == [True] * 3
    wire.vanish()
    assert [body for body, _ in remaining(harness)] == ["3", "4"]


@pytest.mark.parametrize("end", [schema.Detach(1, True), schema.End(), schema.Close()])
def test_presettled_deliveries_stay_removed_after_any_end(
    connect: Make, writer: Client, harness: Harness, end: Composite
) -> None:
    writer.store(*range(60), body_kind=BodyKind.TEXT)
    wire = connect()
    wire.receiver(mode=1)
    flow = Flow(incoming_window=99, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=50)
    assert len(wire.exchange(flow)) == 50
    wire.exchange(end)
    assert [body for body, _ in remaining(harness)] == [str(each) for each in range(50, 60)]


@pytest.mark.parametrize("end", [schema.Detach(1, True), schema.End(), schema.Close(), None])
def test_presettled_deliveries_that_wait_for_the_window_return_to_the_queue(
    connect: Make, five_messages: None, harness: Harness, end: Composite | None
) -> None:
    wire = connect(window=2)
    wire.receiver(mode=1)
    assert received(wire.flow(1, 5, window=2)) == [0, 1]
    if end is None:
        wire.vanish()
    else:
        wire.exchange(end)
    assert [body for body, _ in remaining(harness)] == ["2", "3", "4"]


def test_presettled_deliveries_are_settled_after_the_window_opens(
    connect: Make, five_messages: None, harness: Harness
) -> None:
    wire = connect(window=2)
    wire.receiver(mode=1)
    wire.flow(1, 5, window=2)
    assert received(wire.flow(None, None, window=2, next_incoming_id=2)) == [2, 3]
    wire.vanish()
    assert [body for body, _ in remaining(harness)] == ["4"]


def test_a_presettled_delivery_is_settled_by_its_last_frame(make: Make, writer: Client, harness: Harness) -> None:
    wire = make()
    wire.connect(max_frame_size=512)
    wire.begin(window=2)
    writer.store("x" * 2_000, body_kind=BodyKind.TEXT)
    wire.receiver(mode=1)
    assert len(wire.flow(1, 1, window=2)) == 2
    wire.exchange(schema.Detach(1, True))
    assert [body for body, _ in remaining(harness)] == ["x" * 2_000]


def test_presettled_deliveries_that_wait_are_limited(connect: Make, five_messages: None, harness: Harness) -> None:
    wire = connect(window=0, limits=AmqpLimits("broker", unsettled_max=2))
    wire.receiver(mode=1)
    assert not wire.flow(1, 5, window=0)
    other = harness.client().subscribe("all", ORDERS, AckMode.CLIENT, prefetch=1).turn()
    assert other.bodies == ["2"]
    assert received(wire.flow(None, None, window=9)) == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("drain", [False, True])
def test_a_large_credit_is_granted_in_parts(connect: Make, writer: Client, mode: int, drain: bool) -> None:
    writer.store(*range(300), body_kind=BodyKind.TEXT)
    wire = connect()
    wire.receiver(mode=mode)
    answers = wire.flow(1, 400, drain=drain)
    assert received(answers) == list(range(300))
    if drain:
        assert (answers[-1].drain, answers[-1].delivery_count) == (True, 400)
    else:
        writer.store(*range(200), body_kind=BodyKind.TEXT)
        assert len(wire.replies()) == 100


def test_unsettled_deliveries_are_limited(connect: Make, five_messages: None) -> None:
    wire = connect(limits=AmqpLimits("broker", unsettled_max=2))
    assert received(wire.receiver(credit=1 << 31)) == [0, 1]
    assert not wire.flow(1, 1 << 31, delivery_count=2, next_incoming_id=2)
    assert received(wire.dispose(0, Accepted())) == [2]
    assert received(wire.dispose(1, Accepted(), last=2)) == [3, 4]


def test_a_drain_at_the_limit_of_unsettled_deliveries_is_answered(connect: Make, five_messages: None) -> None:
    wire = connect(limits=AmqpLimits("broker", unsettled_max=2))
    assert received(wire.receiver(credit=2)) == [0, 1]
    (flow,) = wire.flow(1, 9, delivery_count=2, next_incoming_id=2, drain=True)
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 11)
    assert not wire.dispose(0, Accepted(), last=1)
    assert received(wire.flow(1, 9, delivery_count=11, next_incoming_id=2)) == [2, 3]


def test_a_drain_that_reduces_credit_is_answered_after_the_engine_has_the_grant(
    connect: Make, harness: Harness
) -> None:
    wire = connect()
    wire.receiver(credit=5)
    flow = Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=0, drain=True)
    commands = wire.session.receive(frame_of(0, write_composite(flow)))
    harness.client().store("meanwhile", body_kind=BodyKind.TEXT)
    assert received(wire.all_of(Transfer)) == [0]
    for command in commands:
        wire.engine.handle(wire, command)
    (answer,) = wire.all_of(Flow)
    assert (answer.drain, answer.link_credit, answer.delivery_count) == (True, 0, 1)
    harness.client().store("later", body_kind=BodyKind.TEXT)
    assert not wire.replies()


# ---- browsers


def test_a_browser_removes_no_messages(connect: Make, five_messages: None, writer: Client, harness: Harness) -> None:
    wire = connect()
    (attach,) = wire.receiver(distribution_mode="copy")
    assert attach.source.distribution_mode == "copy"
    assert received(wire.flow(1, 2)) == [0, 1]
    for number, state in enumerate((Accepted(), Rejected(), Modified(delivery_failed=True))):
        wire.dispose(number, state)
    writer.store("later", body_kind=BodyKind.TEXT)
    *transfers, flow = wire.flow(1, 9, delivery_count=2, next_incoming_id=2, drain=True)
    assert (received(transfers), flow.drain, flow.delivery_count) == ([2, 3, 4], True, 11)
    (flow,) = wire.flow(1, 5, delivery_count=11, next_incoming_id=5, drain=True)
    assert (flow.drain, flow.delivery_count) == (True, 16)
    wire.exchange(schema.Detach(1, True))
    assert remaining(harness) == [*((str(each), 0) for each in range(5)), ("later", 0)]


def test_a_browser_of_a_topic_is_a_consumer(connect: Make) -> None:
    (attach,) = connect().receiver("topic://prices", distribution_mode="copy")
    assert attach.source.distribution_mode is None


# ---- refusals


@pytest.mark.parametrize(
    ("source", "condition"),
    [
        ({"address": None}, INVALID_FIELD),
        ({"address": ""}, INVALID_FIELD),
        ({"address": 7}, INVALID_FIELD),
        ({"address": "x", "dynamic": True}, INVALID_FIELD),
        ({"address": "topic://t", "durable": 3}, INVALID_FIELD),
        ({"address": "orders", "filter": selector("a ==== b")}, INVALID_FIELD),
        ({"address": "orders", "filter": {Symbol("s"): Described(ULong(0x468C00000004), 7)}}, INVALID_FIELD),
    ],
)
def test_an_unsupported_receiver_is_refused(connect: Make, source: dict[str, Any], condition: str) -> None:
    wire = connect()
    attach, detach = wire.receiver(**source)
    assert attach.source is None
    assert (detach.closed, detach.error.condition) == (True, condition)


@pytest.mark.parametrize("role", [True, False])
def test_the_length_of_a_link_name_is_limited(connect: Make, role: bool) -> None:
    wire = connect()
    for length in (termini.NAME_CHARACTERS_MAX, termini.NAME_CHARACTERS_MAX + 1):
        attach = schema.Attach(
            name="n" * length,
            handle=length % 2,
            role=role,
            source=schema.Source(address="q"),
            target=schema.Target(address="q"),
        )
        detaches = [
            each.performative for each in wire.exchange(attach)[1:] if isinstance(each.performative, schema.Detach)
        ]
    (detach,) = detaches
    assert detach.error.condition == RESOURCE_LIMIT


# ---- topics, filters, errors of the broker


def test_a_selector_filters_messages(connect: Make, writer: Client) -> None:
    for number in range(4):
        writer.store(number, properties={"n": number}, body_kind=BodyKind.TEXT)
    wire = connect()
    (attach,) = wire.receiver(filter={**selector("n > 1"), Symbol("x"): Described(Symbol("unknown:filter"), "y")})
    assert attach.source.filter == selector("n > 1")
    flow = Flow(incoming_window=99, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=9, drain=True)
    assert bodies(wire.exchange(flow)) == ["2", "3"]


def test_no_local_excludes_messages_of_the_same_connection(connect: Make, writer: Client) -> None:
    wire = connect()
    wire.sender("topic://prices")
    (attach,) = wire.receiver(
        "topic://prices", filter={Symbol("nl"): Described(Symbol("apache.org:no-local-filter:list"), [])}
    )
    assert list(attach.source.filter) == ["nl"]
    wire.flow(1, 9)
    wire.send(b"\0\x53\x77\xa1\1m")
    writer.store("theirs", destination=PRICES, body_kind=BodyKind.TEXT)
    assert bodies(wire.replies()) == ["theirs"]


def test_a_detach_of_the_broker_has_the_reason(connect: Make, five_messages: None) -> None:
    wire = connect()
    wire.receiver(credit=1)
    id = next(iter(wire.client.subscriptions))
    wire.session.close_consumer(id, ClientError("too slow"))
    (detach,) = wire.all_of(schema.Detach)
    assert (detach.handle, detach.closed, detach.error.description) == (1, True, "too slow")
    assert not wire.exchange(schema.Detach(1, True))


def test_a_presettled_consumer_that_the_broker_ended_acknowledges_nothing(connect: Make, five_messages: None) -> None:
    wire = connect()
    wire.receiver(mode=1)
    (id,) = wire.client.subscriptions
    wire.session.deliver(id, 1, Message(ORDERS, "ID:x", b"x", BodyKind.TEXT), 0, AckMode.RANGE)
    wire.session.close_consumer(id, ClientError("too slow"))
    assert not wire.session.receive(b"")


def test_a_message_that_cannot_be_delivered_uses_no_credit(connect: Make, five_messages: None) -> None:
    wire = connect(limits=AmqpLimits("broker", message_bytes_max=1 << 20))
    wire.receiver()
    id = next(iter(wire.client.subscriptions))
    damaged = Message(ORDERS, "x", b"\0", BodyKind.STREAM)
    damaged.body = b"\xff"
    with pytest.raises(Undeliverable):
        wire.session.deliver(id, 1, damaged, 0, AckMode.RANGE)
    assert wire.session.has_more


def test_a_message_above_the_max_message_size_becomes_a_dead_letter(
    connect: Make, writer: Client, harness: Harness
) -> None:
    writer.store("a", "long" * 100, "b", "4" * 191, body_kind=BodyKind.TEXT)
    wire = connect()
    source = schema.Source(address="orders")
    wire.exchange(
        schema.Attach(name="r", handle=1, role=True, source=source, target=schema.Target(), max_message_size=300)
    )
    replies = wire.exchange(Flow(incoming_window=99, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=9))
    assert bodies(replies) == ["a", "b", "4" * 191]
    assert harness.client().subscribe("d", DLQ, AckMode.CLIENT).turn().bodies == ["long" * 100]


def test_a_long_message_is_encoded_on_a_thread(connect: Make, writer: Client) -> None:
    writer.store("ä" * (1 << 20), body_kind=BodyKind.TEXT)
    wire = connect(limits=AmqpLimits("broker", message_bytes_max=8 << 20))
    wire.receiver()
    replies = wire.exchange(Flow(incoming_window=99, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=1))
    assert body_of(b"".join(each.payload for each in replies)) == "ä" * (1 << 20)
