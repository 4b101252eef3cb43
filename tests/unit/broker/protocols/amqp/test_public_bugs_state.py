"""Transactions and subscriptions: bugs that users reported for other brokers. Sources are in the docstrings."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.errors import ROLLED_BACK, UNKNOWN_TRANSACTION
from tandemmq.broker.protocols.amqp.links import CREDIT
from tandemmq.broker.protocols.amqp.schema import NEVER, Accepted, Detach, Flow
from tandemmq.store.records.message import BodyKind
from tests.support.broker.amqp_wire import AmqpWire, bodies, header, value
from tests.unit.broker.engine.conftest import ORDERS, PRICES, Harness
from tests.unit.broker.protocols.amqp.conftest import Make
from tests.unit.broker.protocols.amqp.test_transactions import Controller

TOPIC = {"capabilities": ("topic",)}


@pytest.fixture
def wire(harness: Harness) -> Controller:
    """Return a client with a control link and a sender."""
    wire = Controller(harness)
    wire.connect()
    wire.begin()
    wire.control()
    wire.sender()
    return wire


def credit(count: int, delivery_count: int = 0) -> Flow:
    return Flow(
        next_incoming_id=delivery_count, incoming_window=99, next_outgoing_id=0, outgoing_window=9, handle=1,
        delivery_count=delivery_count, link_credit=count,
    )  # fmt: skip


def subscribed(wire: AmqpWire, address: str, **source: Any) -> list[Any]:
    """Attach the link ``sub`` to a durable subscription."""
    return wire.receiver(address, name="sub", durable=2, expiry_policy=NEVER, **source)


def published(harness: Harness, *texts: str) -> None:
    harness.client().store(*texts, destination=PRICES, body_kind=BodyKind.TEXT).vanish()


# ---- transactions


def test_a_control_link_never_runs_out_of_credit(wire: Controller) -> None:
    """AMQ-5763, ARTEMIS-1039: after some transactions the control link had no credit, and its client waited."""
    for number in range(CREDIT):
        id = wire.declare()
        assert wire.discharge(id, fail=number % 2 == 0) == Accepted()


def test_a_refused_message_fails_its_transaction(wire: Controller, harness: Harness) -> None:
    """ARTEMIS-5106: a send of a transaction failed, its client did not wait, and the commit succeeded without it."""
    id = wire.declare()
    wire.send_in(id, header(durable=True) + value("one"))
    wire.send_in(id, b"damaged")
    wire.send_in(id, header(durable=True) + value("three"))
    assert wire.discharge(id).error.condition == ROLLED_BACK
    assert harness.consumer("s", ORDERS, AckMode.AUTO).turn().bodies == []


def test_messages_accepted_in_a_transaction_leave_their_queue(wire: Controller, harness: Harness) -> None:
    """ARTEMIS-655: messages that were accepted in a transaction stayed in the queue."""
    harness.client().store(*range(4), body_kind=BodyKind.TEXT)
    wire.receiver(credit=3)
    id = wire.declare()
    wire.retire(id, 0, Accepted())
    wire.retire(id, 2, Accepted())
    wire.commit(id)
    wire.vanish()
    assert harness.stored() == 2
    assert harness.consumer("s", ORDERS, AckMode.AUTO).turn().bodies == ["1", "3"]


def test_rolled_back_messages_precede_newer_ones(wire: Controller, harness: Harness) -> None:
    """ARTEMIS-2458, -2750: after a rollback, messages were delivered out of order, and after newer ones."""
    harness.client().store(*range(3), body_kind=BodyKind.TEXT)
    wire.receiver(credit=3)
    id = wire.declare()
    for number in (1, 0, 2):
        wire.retire(id, number, Accepted())
    harness.client().store("new", body_kind=BodyKind.TEXT)
    wire.roll_back(id)
    assert bodies(wire.exchange(credit(9, 3))) == ["0", "1", "2", "new"]


def test_an_unknown_transaction_does_not_end_the_connection(wire: Controller) -> None:
    """ActiveMQ answers an unknown transaction with a NullPointerException, and ends the connection."""
    (answer,) = wire.send_in(b"unknown", value("x"))
    assert answer.state.error.condition == UNKNOWN_TRANSACTION
    assert wire.discharge(b"unknown").error.condition == UNKNOWN_TRANSACTION
    wire.commit(wire.declare())


# ---- subscriptions


@pytest.mark.parametrize(("first", "then"), [("prices", "topic://prices"), ("topic://prices", "prices")])
def test_a_durable_subscription_is_the_same_with_and_without_a_scheme(
    connect: Make, harness: Harness, first: str, then: str
) -> None:
    """ARTEMIS-3357: a new attach compared the addresses with and without prefix, and deleted the subscription."""
    wire = connect()
    subscribed(wire, first, **TOPIC)
    wire.exchange(Detach(1, False))
    published(harness, "a", "b")
    wire = connect()
    subscribed(wire, then, **TOPIC)
    assert bodies(wire.exchange(credit(9))) == ["a", "b"]


def test_a_refused_unsubscription_is_reported(connect: Make, harness: Harness) -> None:
    """ARTEMIS-6184: a subscription could not be deleted, and the client got a detach without an error."""
    wire, other = connect(), connect()
    subscribed(wire, "topic://prices")
    other.exchange(schema.Attach(name="sub", handle=8, role=True, target=schema.Target()))
    (detach,) = other.exchange(Detach(8, True))
    assert isinstance(detach.performative, Detach)
    assert detach.performative.error is not None
    published(harness, "a")
    assert bodies(wire.exchange(credit(9))) == ["a"]


def test_the_close_of_a_durable_subscription_deletes_no_queue(connect: Make, harness: Harness) -> None:
    """ARTEMIS-3374: a durable subscriber deleted a queue of the administrator by closing its link."""
    harness.client().store("kept", body_kind=BodyKind.TEXT)
    wire = connect()
    subscribed(wire, "orders")
    wire.exchange(Detach(1, True))
    assert harness.consumer("s", ORDERS, AckMode.AUTO).turn().bodies == ["kept"]


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("capabilities", [(), ("shared",), ("shared", "global")])
def test_a_subscription_that_is_not_durable_ends_with_its_link(
    connect: Make, harness: Harness, is_closed: bool, capabilities: tuple[str, ...]
) -> None:
    """ARTEMIS-1034: subscriptions that were not durable outlived their links, and collected messages."""
    wire = connect()
    wire.receiver("topic://prices", name="sub", capabilities=("topic", *capabilities))
    wire.exchange(Detach(1, is_closed))
    published(harness, "a", "b")
    assert harness.stored() == 0
    wire.receiver("topic://prices", name="sub", capabilities=("topic", *capabilities))
    assert bodies(wire.exchange(credit(9))) == []


def test_a_global_subscription_ends_when_it_is_unsubscribed(connect: Make, harness: Harness) -> None:
    """ARTEMIS-2973: a shared subscription without a client id was not deleted. ARTEMIS-1205: names of shared
    subscriptions conflicted."""
    wire = connect()
    shared = ("topic", "shared", "global")
    for handle, name in ((1, "sub|global"), (2, "other|global")):
        wire.receiver("topic://prices", name=name, handle=handle, durable=2, capabilities=shared)
        wire.exchange(Detach(handle, False))
    published(harness, "a")
    assert harness.stored() == 2
    look_up = schema.Attach(
        name="sub|global", handle=8, role=True, target=schema.Target(), desired_capabilities=("shared", "global")
    )
    wire.exchange(look_up, Detach(8, True))
    assert harness.stored() == 1
    wire.receiver("topic://prices", name="other|global", durable=2, capabilities=shared)
    assert bodies(wire.exchange(credit(9))) == ["a"]
