"""Move of an operator: the message is always in exactly one of the two queues."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import AckMode, Move
from tandemmq.store.operations import Atomic
from tandemmq.store.records.altered import altered
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES

pytestmark = pytest.mark.promise("moved-once")

PARKED = Destination(DestinationKind.QUEUE, "parked")


def move(operator, body, target, receipt="moved"):
    found = operator.last(body)
    operator.handle(Move(found.subscription, found.tag, altered(found.message, destination=target), receipt))


def test_a_message_is_added_there_and_removed_here_by_one_operation(harness):
    operator = harness.client()
    harness.client().send("a").turn()
    operator.subscribe(ack=AckMode.RANGE)
    harness.store.appended = appended = []
    move(operator, "a", PARKED)
    assert operator.receipts == [], "not before it is durable"
    harness.turn()
    assert operator.receipts == ["moved"]
    assert [type(each) for each in appended] == [Atomic]
    assert len(appended[0].operations) == 2
    assert (harness.figures("orders")["messages"], harness.figures("parked")["messages"]) == (0, 1)
    assert harness.stored() == 1
    harness.fail_over()
    reader = harness.consumer(destination=PARKED).turn()
    assert reader.bodies == ["a"]
    assert not reader.session.delivered[0].redelivered


@pytest.mark.parametrize(("persistent", "target"), [(False, PARKED), (True, PRICES)], ids=str)
def test_a_message_that_is_not_stored_can_be_moved_also_to_a_topic_without_subscribers(harness, persistent, target):
    operator = harness.consumer().store("a", persistent=persistent)
    move(operator, "a", target)
    harness.turn()
    assert (operator.receipts, harness.figures()["messages"], harness.stored()) == (["moved"], 0, 0)
    assert target is PRICES or harness.figures("parked")["messages"] == 1


def test_a_message_that_cannot_be_moved_returns_and_does_not_count_as_delivered(make_harness):
    harness = make_harness(destinations_max=1)
    operator = harness.client().store("a").subscribe(ack=AckMode.RANGE, prefetch=1)
    move(operator, "a", PARKED)
    harness.turn()
    assert "More than 1 destinations" in operator.errors[0]
    assert (operator.receipts, harness.figures()["messages"]) == ([], 1)
    operator.unsubscribe(seen=0)
    other = harness.consumer().turn()
    assert [each.redelivered for each in other.session.delivered] == [False]


def test_a_full_store_refuses_it(make_harness):
    harness = make_harness()
    operator = harness.client().store("a").subscribe()
    harness.store.bytes_max = 1
    move(operator, "a", PARKED)
    harness.turn()
    assert (len(operator.errors), harness.figures()["messages"]) == (1, 1)


def test_a_delivery_moves_once(harness):
    operator = harness.client().store("a").subscribe()
    move(operator, "a", PARKED)
    move(operator, "a", PARKED, "again")
    harness.turn()
    assert operator.receipts == ["moved"]
    assert "There is no delivery 1" in operator.errors[0]
    assert harness.stored() == 1
