"""Transactions of AMQP clients: control links, transfers and outcomes in a transaction, commit and rollback."""

# proves: amqp-outcomes-are-counted, amqp-outcomes-are-kept-short
# proves: amqp-control-link-rolls-back, amqp-refused-send-fails-the-commit, amqp-runs-have-no-gaps
# proves: amqp-runs-have-no-gaps-2

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, ClientError
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.control_links import CONTROL_BYTES_MAX, COORDINATOR
from tandemmq.broker.protocols.amqp.errors import (
    DECODE_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LIMIT,
    ROLLED_BACK,
    UNKNOWN_TRANSACTION,
)
from tandemmq.broker.protocols.amqp.frames import frame_of
from tandemmq.broker.protocols.amqp.links import CREDIT
from tandemmq.broker.protocols.amqp.schema import (
    UINT_MAX,
    Accepted,
    Attach,
    Begin,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    End,
    Flow,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from tandemmq.broker.protocols.amqp.transactions import RETIRED_MAX
from tandemmq.broker.protocols.amqp.types import Decimal, Described, Symbol, UInt, ULong, encode, encode_list
from tandemmq.store.records.message import BodyKind
from tests.support.broker.amqp_wire import AmqpWire, Pieces, bodies, header, section, value
from tests.unit.broker.engine.conftest import DLQ, ORDERS, PRICES, Client, Harness, make_harness
from tests.unit.broker.protocols.amqp.conftest import Make

__all__ = ["make_harness"]

CONTROL = 9
SENDER, RECEIVER = 0, 1


class Controller(AmqpWire):
    """An AMQP client with methods for transactions."""

    def control(self, *, handle: int = CONTROL, channel: int = 0, **source: Any) -> list[Any]:
        return self.sender(
            handle=handle, channel=channel, target=schema.Coordinator(("amqp:local-transactions",)), **source
        )

    def request(
        self, request: schema.Composite, *, handle: int = CONTROL, channel: int = 0, **fields: Any
    ) -> list[Any]:
        """Send a request to the coordinator; return the replies."""
        return self.send(b"\0\x53\x77" + write_composite(request), handle=handle, channel=channel, **fields)

    def declare(self, *, handle: int = CONTROL, channel: int = 0) -> bytes:
        """Declare a transaction; return its id."""
        *_, answer = self.request(Declare(), handle=handle, channel=channel)
        assert (answer.role, answer.settled, type(answer.state)) == (True, True, Declared)
        found: bytes = answer.state.txn_id
        return found

    def discharge(self, id: bytes, *, fail: bool = False, **fields: Any) -> Any:
        """Discharge a transaction; return the outcome."""
        sent = self.next_delivery_id
        answers = self.request(Discharge(id, fail), **fields)
        (outcome,) = [each.state for each in answers if isinstance(each, Disposition) and each.first == sent]
        return outcome

    def commit(self, id: bytes, **fields: Any) -> None:
        assert self.discharge(id, **fields) == Accepted()

    def roll_back(self, id: bytes) -> None:
        assert self.discharge(id, fail=True) == Accepted()

    def send_in(self, id: bytes, encoded: bytes, **fields: Any) -> list[Any]:
        return self.send(encoded, state=TransactionalState(id), **fields)

    def retire(self, id: bytes, first: int, outcome: Any, **fields: Any) -> list[Any]:
        return self.dispose(first, TransactionalState(id, outcome), **fields)


@pytest.fixture
def connect(harness: Harness) -> Make:
    def connect(container: str = "me", **options: Any) -> Controller:
        wire = Controller(harness, **options)
        wire.connect(container)
        wire.begin()
        wire.control()
        return wire

    return connect


@pytest.fixture
def wire(connect: Make) -> Any:
    """Return a client with a control link and a sender."""
    wire = connect()
    wire.sender()
    return wire


@pytest.fixture
def five_messages(harness: Harness) -> None:
    """5 messages in the queue."""
    harness.client().store(*range(5), body_kind=BodyKind.TEXT)


def stored(harness: Harness, *, destination: Any = ORDERS) -> list[tuple[str, int]]:
    """Return the messages that another consumer would receive now, each with its number of redeliveries."""
    reader = harness.client().subscribe("all", destination, AckMode.CLIENT).turn()
    found = [(each.body, each.redeliveries) for each in reader.session.delivered]
    reader.unsubscribe("all", seen=0).turn()
    return found


def texts(harness: Harness) -> list[str]:
    return [body for body, _ in stored(harness)]


def conditions(answers: list[Any]) -> list[str]:
    """Return the conditions of the errors in these answers, including errors in outcomes."""
    found = []
    for each in answers:
        state = getattr(each, "state", each)
        state = state.outcome if isinstance(state, TransactionalState) else state
        error = getattr(state, "error", None)
        if error is not None:
            found.append(error.condition)
    return found


# ---- control links


def test_a_control_link_gets_credit(harness: Harness) -> None:
    wire = Controller(harness)
    wire.connect()
    wire.begin()
    attach, flow = wire.control()
    assert (attach.role, attach.target, attach.max_message_size) == (True, COORDINATOR, CONTROL_BYTES_MAX)
    assert flow.link_credit == CREDIT


def test_each_declare_begins_another_transaction(wire: Controller) -> None:
    assert len({wire.declare() for _ in range(3)}) == 3


def test_a_control_link_gets_new_credit(wire: Controller) -> None:
    for _ in range(CREDIT):
        wire.commit(wire.declare())


@pytest.mark.parametrize("pieces", Pieces)
def test_requests_can_be_pipelined(harness: Harness, connect: Make, pieces: Pieces) -> None:
    wire = connect(pieces=pieces)
    wire.sender()
    id = wire.declare()
    frames = [(SENDER, header(durable=True) + value(str(number)), TransactionalState(id)) for number in range(3)]
    frames.append((CONTROL, b"\0\x53\x77" + write_composite(Discharge(id)), None))
    wire.receive(
        b"".join(
            frame_of(0, write_composite(Transfer(handle=handle, delivery_id=1 + place, state=state)) + body)
            for place, (handle, body, state) in enumerate(frames)
        )
    )
    answers = [(each.last or each.first, each.state) for each in wire.all_of(Disposition)]
    assert answers[-2:] == [(3, TransactionalState(id, Accepted())), (4, Accepted())]
    assert texts(harness) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("command", "condition"),
    [
        (Declare(b"global"), NOT_IMPLEMENTED),
        (Discharge(b"\0" * 8), UNKNOWN_TRANSACTION),
        (Discharge(b"x" * 100, fail=True), UNKNOWN_TRANSACTION),
        (Accepted(), DECODE_ERROR),
    ],
)
def test_a_refused_request_does_not_detach_the_link(
    wire: Controller, command: schema.Composite, condition: str
) -> None:
    (answer,) = wire.request(command)
    assert (answer.role, answer.settled) == (True, True)
    assert answer.state.error.condition == condition
    wire.commit(wire.declare())


@pytest.mark.parametrize(
    ("encoded", "condition"),
    [
        (b"", DECODE_ERROR),
        (b"\0\x53\x77\x40", DECODE_ERROR),
        (section(0x75, b"data"), DECODE_ERROR),
        (b"\0\x53\x77\0\x53\x32\x45", INVALID_FIELD),  # a discharge without an id
        (b"garbage", DECODE_ERROR),
    ],
)
def test_an_invalid_request_is_rejected(wire: Controller, encoded: bytes, condition: str) -> None:
    assert conditions(wire.send(encoded, handle=CONTROL)) == [condition]
    wire.commit(wire.declare())


def test_the_length_of_a_request_is_limited(wire: Controller) -> None:
    (detach,) = wire.send(bytes(CONTROL_BYTES_MAX + 1), handle=CONTROL)
    assert (detach.closed, detach.error.condition) == (True, MESSAGE_SIZE)


def test_a_settled_declare_detaches_the_link(wire: Controller) -> None:
    (detach,) = wire.request(Declare(), settled=True)
    assert detach.error.condition == NOT_ALLOWED


def test_a_settled_discharge_has_no_answer(harness: Harness, wire: Controller) -> None:
    id = wire.declare()
    wire.send_in(id, value("a"))
    assert not wire.request(Discharge(id), settled=True)
    assert texts(harness) == ["a"]


@pytest.mark.parametrize("settled", [True, False])
def test_a_refused_discharge_without_a_possible_outcome_detaches_the_link(harness: Harness, settled: bool) -> None:
    wire = Controller(harness)
    wire.connect()
    wire.begin()
    outcomes = ("amqp:accepted:list",) if not settled else ("amqp:accepted:list", "amqp:rejected:list")
    attach = Attach(
        name="c",
        handle=CONTROL,
        role=False,
        source=Source(outcomes=outcomes),
        target=schema.Coordinator(),
        initial_delivery_count=0,
    )
    wire.exchange(attach)
    wire.sender()
    id = wire.declare()
    wire.send_in(id, value("a") + b"trailing")
    (detach,) = wire.request(Discharge(id), settled=settled)
    assert (detach.handle, detach.closed, detach.error.condition) == (CONTROL, True, ROLLED_BACK)


def test_a_coordinator_as_the_target_of_a_receiver_is_refused(wire: Controller) -> None:
    attach = Attach(name="r", handle=5, role=True, source=Source(address="orders"), target=schema.Coordinator())
    answer, detach = (each.performative for each in wire.exchange(attach))
    assert isinstance(answer, Attach)
    assert isinstance(detach, Detach)
    assert answer.source is None
    assert detach.error.condition == INVALID_FIELD


# ---- messages of the client


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_is_available_after_the_commit(harness: Harness, wire: Controller, durable: bool) -> None:
    id = wire.declare()
    assert wire.send_in(id, header(durable=durable) + value("a")) == [
        Disposition(role=True, first=1, last=1, settled=True, state=TransactionalState(id, Accepted()))
    ]
    assert texts(harness) == []
    wire.commit(id)
    assert texts(harness) == ["a"]


def test_a_commit_is_accepted_when_it_is_durable(wire: Controller) -> None:
    id = wire.declare()
    wire.send_in(id, header(durable=True) + value("a"))
    transfer = Transfer(handle=CONTROL, delivery_id=2, delivery_tag=b"t")
    request = b"\0\x53\x77" + write_composite(Discharge(id))
    for command in wire.session.receive(frame_of(0, write_composite(transfer) + request)):
        wire.engine.handle(wire, command)
    assert wire.session.take() == b""
    assert [each.state for each in wire.all_of(Disposition)] == [Accepted()]


def test_a_rollback_discards_messages(harness: Harness, wire: Controller) -> None:
    id = wire.declare()
    wire.send_in(id, header(durable=True) + value("a"))
    wire.roll_back(id)
    assert texts(harness) == []


def test_the_last_frame_can_have_the_state(harness: Harness, wire: Controller) -> None:
    id = wire.declare()
    wire.exchange(Transfer(handle=0, delivery_id=1, delivery_tag=b"t", more=True), payload=value("ab")[:-1])
    wire.exchange(Transfer(handle=0, state=TransactionalState(id)), payload=b"b")
    wire.next_delivery_id = 2
    assert texts(harness) == []
    wire.commit(id)
    assert texts(harness) == ["ab"]


def test_transactions_are_independent(harness: Harness, wire: Controller) -> None:
    first, second = wire.declare(), wire.declare()
    wire.send_in(first, value("a"))
    wire.send_in(second, value("b"))
    wire.send(value("c"))
    wire.commit(second)
    assert texts(harness) == ["c", "b"]
    wire.roll_back(first)
    assert texts(harness) == ["c", "b"]


def test_a_transaction_can_cover_several_sessions(harness: Harness, wire: Controller) -> None:
    wire.begin(3)
    wire.sender(channel=3)
    id = wire.declare()
    wire.send_in(id, value("a"))
    wire.send_in(id, value("b"), channel=3)
    wire.commit(id)
    assert texts(harness) == ["a", "b"]


def test_a_message_of_an_unknown_transaction_is_rejected(harness: Harness, wire: Controller) -> None:
    (answer,) = wire.send_in(b"none", value("a"))
    assert (answer.settled, answer.state.error.condition) == (True, UNKNOWN_TRANSACTION)
    assert texts(harness) == []
    wire.commit(wire.declare())


def test_a_presettled_message_of_an_unknown_transaction_detaches_its_link(wire: Controller) -> None:
    (detach,) = wire.send_in(b"none", value("a"), settled=True)
    assert (detach.handle, detach.error.condition) == (SENDER, UNKNOWN_TRANSACTION)
    wire.commit(wire.declare())


def test_a_transaction_cannot_be_discharged_twice(wire: Controller) -> None:
    id = wire.declare()
    wire.commit(id)
    assert wire.discharge(id).error.condition == UNKNOWN_TRANSACTION
    assert conditions(wire.send_in(id, value("a"))) == [UNKNOWN_TRANSACTION]


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize(
    ("encoded", "condition"), [(value("a") + b"trailing", DECODE_ERROR), (value("no address"), PRECONDITION_FAILED)]
)
def test_a_refused_message_fails_the_commit(
    harness: Harness, wire: Controller, encoded: bytes, condition: str, settled: bool
) -> None:
    wire.sender(handle=2, target=Target())
    id = wire.declare()
    wire.send_in(id, value("before"))
    assert conditions(wire.send_in(id, encoded, handle=2, settled=settled)) == [condition]
    assert wire.discharge(id).error.condition == ROLLED_BACK
    assert texts(harness) == []


def test_a_message_that_the_broker_refuses_fails_the_commit(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness(transaction_operations_max=2)
    wire = Controller(harness)
    wire.connect()
    wire.begin()
    wire.control()
    wire.sender()
    id = wire.declare()
    answers = [wire.send_in(id, value("x"))[-1] for _ in range(3)]
    assert [type(each.state.outcome) for each in answers] == [Accepted, Accepted, Rejected]
    assert conditions(answers) == [RESOURCE_LIMIT]
    assert wire.discharge(id).error.condition == ROLLED_BACK
    assert texts(harness) == []


def test_open_transactions_are_limited(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness(transactions_max=2)
    wire = Controller(harness)
    wire.connect()
    wire.begin()
    wire.control()
    first, _ = wire.declare(), wire.declare()
    assert conditions(wire.request(Declare())) == [RESOURCE_LIMIT]
    wire.roll_back(first)
    wire.declare()


# ---- deliveries to the client


def test_an_accepted_delivery_is_removed_by_the_commit(harness: Harness, wire: Controller, five_messages: None) -> None:
    wire.receiver(credit=2)
    id = wire.declare()
    assert not wire.retire(id, 0, Accepted(), last=1)
    assert texts(harness) == ["2", "3", "4"]
    wire.commit(id)
    wire.exchange(Detach(RECEIVER, True))
    assert texts(harness) == ["2", "3", "4"]


def test_settled_deliveries_are_redelivered_after_a_rollback(
    harness: Harness, wire: Controller, five_messages: None
) -> None:
    wire.receiver(credit=3)
    id = wire.declare()
    wire.retire(id, 0, Accepted())
    wire.retire(id, 1, Accepted())
    wire.roll_back(id)
    assert stored(harness) == [("0", 1), ("1", 1), ("3", 0), ("4", 0)]


def test_rolled_back_deliveries_keep_their_order(wire: Controller, five_messages: None) -> None:
    wire.receiver(credit=3)
    id = wire.declare()
    wire.retire(id, 0, Accepted(), last=2)
    wire.roll_back(id)
    transfers = wire.exchange(
        Flow(
            next_incoming_id=3,
            incoming_window=9,
            next_outgoing_id=0,
            outgoing_window=9,
            handle=RECEIVER,
            delivery_count=3,
            link_credit=9,
        )
    )
    assert bodies(transfers) == ["0", "1", "2", "3", "4"]


def test_deliveries_that_are_rolled_back_too_often_become_dead_letters(
    harness: Harness, wire: Controller, five_messages: None
) -> None:
    wire.receiver(credit=1)
    for round in range(7):
        id = wire.declare()
        wire.retire(id, round, Accepted())
        wire.roll_back(id)
        wire.flow(RECEIVER, 1, delivery_count=round + 1, next_incoming_id=round + 1)
    assert stored(harness, destination=DLQ) == [("0", 0)]


def test_unsettled_deliveries_stay_with_the_client_after_a_rollback(
    harness: Harness, wire: Controller, five_messages: None
) -> None:
    wire.receiver(credit=3)
    id = wire.declare()
    (answer,) = wire.retire(id, 0, Accepted(), last=1, settled=False)
    assert answer == Disposition(role=False, first=0, last=1, state=TransactionalState(id, Accepted()))
    wire.roll_back(id)
    assert texts(harness) == ["3", "4"]
    again = wire.declare()
    wire.retire(again, 0, Accepted(), settled=False)
    wire.commit(again)
    wire.dispose(0, Released(), last=2)
    assert stored(harness) == [("1", 0), ("2", 0), ("3", 0), ("4", 0)]


def test_a_range_settles_no_delivery_of_a_transaction(harness: Harness, wire: Controller, five_messages: None) -> None:
    wire.receiver(credit=3)
    id = wire.declare()
    wire.retire(id, 1, Accepted(), settled=False)
    answers = wire.dispose(0, Accepted(), last=UINT_MAX, settled=False)
    assert [(each.first, each.last, each.settled) for each in answers] == [(0, 0, True), (2, 2, True)]
    wire.roll_back(id)
    wire.dispose(1, Released())
    assert stored(harness) == [("1", 0), ("3", 0), ("4", 0)]


def test_the_answer_of_a_transaction_covers_only_its_deliveries(wire: Controller, five_messages: None) -> None:
    wire.receiver(credit=3)
    id = wire.declare()
    wire.dispose(1, Accepted())
    answers = wire.retire(id, 0, Accepted(), last=9, settled=False)
    assert [(each.first, each.last, each.settled) for each in answers] == [(0, 0, False), (2, 2, False)]


def test_a_refused_outcome_does_not_affect_others_of_its_range(wire: Controller, five_messages: None) -> None:
    wire.receiver(credit=3)
    wire.dispose(1, Accepted())
    disposition = Disposition(role=True, first=0, last=2, state=Accepted())
    first, last = wire.session.receive(frame_of(0, write_composite(disposition)))
    wire.session.fail(ClientError("refused", receipt=first.receipt))  # type: ignore[attr-defined]
    wire.session.receipt(last.receipt)  # type: ignore[attr-defined]
    assert [(each.first, each.last) for each in wire.all_of(Disposition)] == [(2, 2)]


def test_a_commit_settles_unsettled_deliveries(wire: Controller, five_messages: None) -> None:
    wire.receiver(credit=2)
    id = wire.declare()
    wire.retire(id, 0, Accepted(), last=1, settled=False)
    *settled, answer = wire.request(Discharge(id))
    assert settled == [Disposition(role=False, first=0, last=1, settled=True, state=Accepted())]
    assert answer.state == Accepted()


@pytest.mark.parametrize(
    ("outcome", "left", "dead"),
    [
        (Released(), [("0", 0)], []),
        (Modified(), [("0", 0)], []),
        (Modified(delivery_failed=True), [("0", 1)], []),
        (Modified(undeliverable_here=True), [], [("0", 0)]),
        (Rejected(), [], [("0", 0)]),
    ],
)
@pytest.mark.parametrize("settled", [True, False])
def test_other_outcomes_take_effect_at_the_commit(
    harness: Harness, wire: Controller, outcome: Any, left: list[Any], dead: list[Any], settled: bool
) -> None:
    harness.client().store(0)
    wire.receiver(credit=1)
    id = wire.declare()
    wire.retire(id, 0, outcome, settled=settled)
    assert (stored(harness), stored(harness, destination=DLQ)) == ([], [])
    wire.commit(id)
    assert (stored(harness), stored(harness, destination=DLQ)) == (left, dead)


def test_a_rollback_discards_other_outcomes(harness: Harness, wire: Controller, five_messages: None) -> None:
    wire.receiver(credit=2)
    id = wire.declare()
    wire.retire(id, 0, Rejected())
    wire.retire(id, 1, Rejected(), settled=False)
    wire.roll_back(id)
    assert stored(harness, destination=DLQ) == []
    assert stored(harness)[0] == ("0", 1)
    wire.dispose(1, Released())
    assert stored(harness)[1] == ("1", 0)


def test_a_settled_delivery_without_an_outcome_gets_the_default_outcome(
    harness: Harness, wire: Controller, five_messages: None
) -> None:
    wire.receiver(credit=2, default_outcome=Accepted())
    id = wire.declare()
    assert not wire.retire(id, 0, None, settled=False)
    wire.retire(id, 1, None)
    wire.commit(id)
    wire.exchange(Detach(RECEIVER, True))
    assert texts(harness) == ["0", "2", "3", "4"]


def test_a_range_excludes_deliveries_in_a_transaction(harness: Harness, wire: Controller, five_messages: None) -> None:
    wire.receiver(credit=3)
    id = wire.declare()
    wire.retire(id, 1, Released())
    wire.dispose(0, Accepted(), last=2)
    wire.commit(id)
    assert texts(harness) == ["1", "3", "4"]


def test_a_range_can_cover_two_links(harness: Harness, wire: Controller) -> None:
    writer = harness.client()
    wire.receiver(credit=9)
    wire.receiver("topic://prices", handle=2, credit=9)
    for number in range(3):
        writer.store(number, body_kind=BodyKind.TEXT).store(number, destination=PRICES, body_kind=BodyKind.TEXT)
    id = wire.declare()
    wire.retire(id, 0, Accepted(), last=5, settled=False)
    wire.roll_back(id)
    wire.dispose(0, Accepted(), last=3)
    wire.exchange(Detach(RECEIVER, True))
    assert texts(harness) == ["2"]


def test_an_outcome_in_an_unknown_transaction_ends_the_session(
    harness: Harness, wire: Controller, five_messages: None
) -> None:
    wire.receiver(credit=1)
    end, *_ = wire.retire(b"none", 0, Accepted())
    assert isinstance(end, End)
    assert end.error.condition == UNKNOWN_TRANSACTION
    wire.exchange(End())
    assert isinstance(wire.begin(), Begin)
    assert len(texts(harness)) == 5


def test_a_delivery_that_the_broker_no_longer_has_fails_the_commit(
    harness: Harness, wire: Controller, five_messages: None
) -> None:
    wire.receiver(credit=1)
    id = wire.declare()
    (subscription,) = wire.client.subscriptions.values()
    subscription.take_one(1)  # as an operator can do
    wire.retire(id, 0, Accepted())
    wire.send_in(id, value("a"))
    assert wire.discharge(id).error.condition == ROLLED_BACK
    assert "a" not in texts(harness)


def test_deliveries_of_a_failed_commit_are_redelivered(harness: Harness, wire: Controller, five_messages: None) -> None:
    wire.receiver(credit=3)
    id = wire.declare()
    wire.retire(id, 0, Accepted())
    wire.retire(id, 1, Accepted(), settled=False)
    wire.send_in(id, value("a") + b"trailing")
    assert wire.discharge(id).error.condition == ROLLED_BACK
    assert stored(harness) == [("0", 1), ("3", 0), ("4", 0)]
    wire.dispose(1, Accepted())
    wire.exchange(Detach(RECEIVER, True))
    assert texts(harness) == ["0", "2", "3", "4"]


def test_a_failed_transaction_keeps_its_deliveries_until_its_end(
    harness: Harness, wire: Controller, five_messages: None
) -> None:
    wire.receiver(credit=4)
    id = wire.declare()
    wire.retire(id, 0, Accepted())
    wire.send_in(id, b"damaged")
    assert not wire.retire(id, 1, Accepted())
    assert len(wire.retire(id, 2, Accepted(), settled=False)) == 1
    assert texts(harness) == ["4"]
    assert wire.discharge(id).error.condition == ROLLED_BACK
    assert stored(harness) == [("0", 1), ("1", 1), ("4", 0)]
    wire.dispose(2, Released(), last=3)
    assert stored(harness) == [("0", 1), ("1", 1), ("2", 0), ("3", 0), ("4", 0)]


def test_a_message_of_a_topic_is_redelivered_after_a_rollback(harness: Harness, wire: Controller) -> None:
    wire.receiver("topic://prices", credit=9)
    other = harness.client().subscribe("other", PRICES, AckMode.CLIENT)
    harness.client().store(1, 2, destination=PRICES, body_kind=BodyKind.TEXT)
    wire.replies()
    id = wire.declare()
    wire.retire(id, 0, Accepted())
    wire.receive(
        frame_of(
            0,
            write_composite(Transfer(handle=CONTROL, delivery_id=1, delivery_tag=b"t"))
            + b"\0\x53\x77"
            + write_composite(Discharge(id, True)),
        )
    )
    replies = wire.replies()
    assert bodies(replies) == ["1"]
    (payload,) = [each.payload for each in replies if isinstance(each.performative, Transfer)]
    assert header(durable=True, delivery_count=1) in payload
    assert [each.redeliveries for each in other.turn().session.delivered] == [0, 0]


def test_the_outcomes_of_a_transaction_are_limited(harness: Harness, wire: Controller) -> None:
    harness.client().store(*range(RETIRED_MAX + 1))
    wire.receiver()
    id = wire.declare()
    given = 0
    while given <= RETIRED_MAX:
        found = wire.flow(RECEIVER, 1_000, delivery_count=given, next_incoming_id=given)
        count = sum(isinstance(each, Transfer) for each in found)
        wire.retire(id, given, Released(), last=given + count - 1)
        given += count
    assert wire.discharge(id).error.condition == ROLLED_BACK
    assert {redeliveries for _, redeliveries in stored(harness)} == {1}


def test_outcomes_in_a_transaction_are_kept_short_and_counted(harness: Harness, wire: Controller) -> None:
    harness.client().store(*range(400))
    wire.receiver()
    before = wire.holder.by_kind[Kind.STATE]
    id = wire.declare()
    seen = 0
    while seen < 400:
        seen += sum(
            isinstance(each, Transfer)
            for each in wire.flow(RECEIVER, 400 - seen, delivery_count=seen, next_incoming_id=seen)
        )
    error = schema.Error("app:bad", "why" * 1_000, {Symbol("k"): "v" * 1_000})
    for first in range(400):
        (answer,) = wire.retire(id, first, Rejected(error), settled=False)
        assert answer.state.outcome == Rejected(schema.Error("app:bad", ("why" * 1_000)[:500]))
    counted = wire.holder.by_kind[Kind.STATE] - before
    assert 400 * 2_000 < counted < 400 * 4_000
    wire.request(Discharge(id))
    id = wire.declare()
    harness.client().store("a")
    wire.flow(RECEIVER, 1, delivery_count=seen, next_incoming_id=seen)
    wire.retire(id, 400, Released())
    assert wire.holder.by_kind[Kind.STATE] - before <= counted  # it uses the memory of the first transaction


@pytest.mark.parametrize("found", [[[1]], [None], [{}], [Decimal(bytes(4))], [Described(ULong(1), 1)]])
def test_annotations_of_an_outcome_are_not_repeated(harness: Harness, wire: Controller, found: list[Any]) -> None:
    harness.client().store("a", "b")
    wire.receiver(credit=2)
    annotations = _with_an_array(found)
    disposed = frame_of(0, b"\0\x53\x15" + encode_list([b"\x41", b"\x43", b"\x43", b"\x42", annotations]))
    wire.receive(disposed)
    assert wire.all_of(Disposition)[-1].state == Modified()
    id = wire.declare()
    state = b"\0\x53\x34" + encode_list([encode(id), annotations])
    wire.receive(frame_of(0, b"\0\x53\x15" + encode_list([b"\x41", encode(UInt(1)), encode(UInt(1)), b"\x42", state])))
    assert wire.all_of(Disposition)[-1].state == TransactionalState(id, Modified())
    assert Accepted() in [each.state for each in wire.request(Discharge(id))]


def _with_an_array(items: list[Any]) -> bytes:
    """Return an outcome whose annotations have an array that this broker can decode, but not encode."""
    (item,) = items
    encoded = encode(item)  # constructor and value
    array = b"\xe0" + bytes((1 + len(encoded), 1)) + encoded
    return b"\0\x53\x27" + encode_list([b"\x42", b"\x42", b"\xc1" + bytes((4 + len(array), 2)) + b"\xa3\x01k" + array])


def test_a_rollback_of_many_unsettled_deliveries_is_fast(harness: Harness, wire: Controller) -> None:
    harness.client().store(*range(2_000))
    wire.receiver()
    wire.receiver("other", handle=2)
    seen = 0
    while seen < 2_000:
        seen += len(wire.flow(RECEIVER, 1_000, delivery_count=seen, next_incoming_id=seen))
    id = wire.declare()
    for first in range(0, 2_000, 2):  # each delivery is a separate run
        wire.retire(id, first, Released(), settled=False)
    before = time.process_time()
    wire.roll_back(id)
    assert time.process_time() - before < 0.5
    wire.dispose(0, Accepted(), last=1_999)
    wire.exchange(Detach(RECEIVER, True))
    assert texts(harness) == []


def test_acquisition_in_a_transaction_is_refused(wire: Controller) -> None:
    wire.receiver()
    (detach,) = wire.flow(RECEIVER, 1, properties={schema.Symbol("txn-id"): wire.declare()})
    assert (detach.handle, detach.error.condition) == (RECEIVER, NOT_IMPLEMENTED)


# ---- ends of links, sessions and connections


@pytest.mark.parametrize("closed", [True, False])
def test_a_control_link_that_ends_rolls_back(
    harness: Harness, wire: Controller, five_messages: None, closed: bool
) -> None:
    wire.receiver(credit=2)
    id, other = wire.declare(), wire.declare()
    wire.send_in(id, value("a"))
    wire.retire(id, 0, Accepted())
    wire.retire(other, 1, Accepted(), settled=False)
    replies = [each.performative for each in wire.exchange(Detach(CONTROL, closed))]
    assert replies == [Detach(CONTROL, closed)]
    assert stored(harness) == [("0", 1), ("2", 0), ("3", 0), ("4", 0)]
    assert conditions(wire.send_in(id, value("b"))) == [UNKNOWN_TRANSACTION]


def test_a_control_link_that_ends_rolls_back_only_its_own_transactions(harness: Harness, wire: Controller) -> None:
    wire.control(handle=8)
    id = wire.declare()
    wire.declare(handle=8)
    wire.send_in(id, value("a"))
    wire.exchange(Detach(8, True))
    wire.commit(id)
    assert texts(harness) == ["a"]


def test_another_control_link_can_discharge_a_transaction(harness: Harness, wire: Controller) -> None:
    wire.begin(3)
    wire.control(channel=3)
    id = wire.declare()
    wire.send_in(id, value("a"))
    wire.commit(id, channel=3)
    assert texts(harness) == ["a"]


def test_a_session_that_ends_rolls_back_its_transactions(
    harness: Harness, wire: Controller, five_messages: None
) -> None:
    wire.begin(3)
    wire.control(channel=3)
    wire.receiver(credit=1)
    id = wire.declare(channel=3)
    wire.send_in(id, value("a"))
    wire.retire(id, 0, Accepted())
    (end,) = wire.exchange(End(), channel=3)
    assert end.performative == End()
    assert stored(harness)[0] == ("0", 1)
    assert "a" not in texts(harness)


def test_a_lost_connection_rolls_back(harness: Harness, wire: Controller, five_messages: None) -> None:
    wire.receiver(credit=2)
    id = wire.declare()
    wire.send_in(id, header(durable=True) + value("a"))
    wire.retire(id, 0, Accepted())
    wire.retire(id, 1, Rejected())
    wire.vanish()
    harness.make_steps()
    assert stored(harness) == [("0", 1), ("1", 1), ("2", 0), ("3", 0), ("4", 0)]
    assert stored(harness, destination=DLQ) == []


def test_a_close_rolls_back(harness: Harness, wire: Controller) -> None:
    id = wire.declare()
    wire.send_in(id, header(durable=True) + value("a"))
    wire.exchange(schema.Close())
    harness.make_steps()
    assert texts(harness) == []


def test_a_link_that_ends_discards_outcomes_other_than_accepted(
    harness: Harness, wire: Controller, five_messages: None
) -> None:
    wire.receiver(credit=3)
    id = wire.declare()
    wire.retire(id, 0, Accepted())
    wire.retire(id, 1, Rejected())
    wire.retire(id, 2, Accepted(), settled=False)
    wire.exchange(Detach(RECEIVER, True))
    assert texts(harness) == ["1", "3", "4"]
    wire.commit(id)
    assert texts(harness) == ["1", "3", "4"]
    assert stored(harness, destination=DLQ) == []


def test_a_transaction_can_be_rolled_back_after_its_link_has_ended(
    harness: Harness, wire: Controller, five_messages: None
) -> None:
    wire.receiver(credit=2)
    id = wire.declare()
    wire.retire(id, 0, Accepted())
    wire.retire(id, 1, Accepted(), settled=False)
    wire.exchange(Detach(RECEIVER, True))
    wire.roll_back(id)
    assert [body for body, _ in stored(harness)] == ["0", "1", "2", "3", "4"]


def test_other_protocols_see_a_transaction_only_after_its_commit(
    harness: Harness, wire: Controller, five_messages: None, other: Client
) -> None:
    wire.receiver(credit=1)
    id = wire.declare()
    wire.retire(id, 0, Accepted())
    wire.send_in(id, value("answer"))
    other.subscribe("s", ORDERS, AckMode.CLIENT).turn()
    assert other.bodies == ["1", "2", "3", "4"]
    wire.commit(id)
    assert other.turn().bodies == ["1", "2", "3", "4", "answer"]


@pytest.fixture
def other(harness: Harness) -> Client:
    return harness.client()
