"""Queues whose consumers, or producers, an operator paused."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import AckMode, ClientError, Pull
from tandemmq.broker.core.policies import DestinationPolicy
from tandemmq.broker.core.principal import Principal
from tandemmq.store.records.message import Destination, DestinationKind

BOTH = Destination(DestinationKind.QUEUE, "orders,parked")
ANN = Principal("ann")


def pause(harness, **who):
    harness.engine.pause(ANN, "orders", **who)
    harness.turn()


def test_consumers_get_nothing_until_it_goes_on_and_may_acknowledge_meanwhile(harness):
    client = harness.consumer().store("a")
    pause(harness, consumers=True)
    client.store("b")
    late = harness.consumer()
    client.ack("a", receipt="r").turn()
    assert (client.bodies, late.bodies, client.receipts) == (["a"], [], ["r"])
    assert harness.figures()["consumers"] == 2
    pause(harness, consumers=False)
    client.store("c")
    assert sorted(client.bodies + late.bodies) == ["a", "b", "c"]


def test_an_operator_is_served_from_a_paused_queue(harness):
    harness.client().subscribe()
    pause(harness, consumers=True)
    operator = harness.client().store("a")
    operator.subscribe("o", ack=AckMode.RANGE, prefetch=0, priority=127, takes_paused=True)
    operator.handle(Pull("o", -1))
    assert operator.bodies == ["a"]
    operator.unsubscribe("o", seen=0)
    pause(harness, consumers=False)
    assert harness.figures()["unacknowledged"] == 1


@pytest.mark.parametrize("leaves", [False, True])
def test_a_consumer_that_leaves_a_paused_queue_returns_its_messages(harness, leaves):
    client = harness.consumer().store("a")
    pause(harness, consumers=True)
    client.vanish() if leaves else client.unsubscribe()
    harness.turn()
    assert (harness.figures()["messages"], harness.figures()["unacknowledged"]) == (1, 0)
    assert harness.figures()["consumers"] == 0
    pause(harness, consumers=False)
    assert harness.consumer().bodies == ["a"]


def test_different_consumers_resume_each_with_its_own_messages(harness):
    red, all_of_them = harness.client(), harness.client()
    red.subscribe(selector="colour = 'red'")
    pause(harness, consumers=True)
    all_of_them.subscribe(selector="colour <> 'red'")
    for colour in ("red", "blue", "red"):
        red.send(colour, properties={"colour": colour})
    harness.turn()
    pause(harness, consumers=False)
    assert (red.bodies, all_of_them.bodies) == (["red", "red"], ["blue"])


def test_producers_wait_and_what_they_send_is_in_order(harness):
    client = harness.client().send("a", receipt="a").turn()
    pause(harness, producers=True)
    client.send("b", receipt="b")
    harness.client().send("other", Destination(DestinationKind.QUEUE, "other"), receipt="o")
    client.send("c", receipt="c").turn()
    harness.wait(1)
    assert (client.receipts, harness.engine.flow.blocked()[0]["limit"]) == (["a"], "pause")
    pause(harness, producers=False)
    harness.wait(1)
    assert client.receipts == ["a", "b", "c"]
    client.subscribe().turn()
    assert client.bodies == ["a", "b", "c"]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_message_to_several_and_the_end_of_a_transaction_wait_for_the_queue_that_is_paused(harness, in_transaction):
    client = harness.client().store("first")
    pause(harness, producers=True)
    if in_transaction:
        client.begin().send("x", BOTH, transaction="t").commit(receipt="x").turn()
    else:
        client.send("x", BOTH, receipt="x").turn()
    assert client.receipts == []
    pause(harness, producers=False)
    harness.wait(1)
    assert client.receipts == ["x"]
    assert (harness.figures()["messages"], harness.figures("parked")["messages"]) == (2, 1)


def test_producers_are_refused_without_flow_control(make_harness):
    harness = make_harness(DestinationPolicy(producer_flow_control=False))
    client = harness.client().store("first")
    pause(harness, producers=True)
    client.send("x", receipt="x").turn()
    assert client.errors == ["The producers of queue://orders are paused"]


def test_a_new_term_begins_without_pauses(harness):
    harness.client().send("a").turn()
    pause(harness, consumers=True, producers=True)
    harness.fail_over()
    assert harness.consumer().turn().bodies == ["a"]


def test_there_is_no_such_queue(harness):
    with pytest.raises(ClientError, match="no destination queue://orders"):
        pause(harness, consumers=True)
