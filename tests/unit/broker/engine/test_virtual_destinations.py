"""Forwarded messages: composite destinations, mirrored queues, and selector-aware virtual topics."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.policies import DestinationPolicy
from tandemmq.broker.core.selector import compile_selector
from tandemmq.broker.core.virtual_destinations import Composite, Forward, Mirrored, VirtualDestinations, VirtualTopic
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import ORDERS

pytestmark = pytest.mark.promise("composite-and-wildcards")

QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC
BILLING, NOTED = Destination(QUEUE, "billing"), Destination(TOPIC, "noted")
RED = compile_selector("colour = 'red'")


def make(make_harness: Any, *composites: Composite, **virtual: Any) -> Any:
    return make_harness(virtual_destinations=VirtualDestinations(composites, **virtual))


@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_composite_sends_on_what_its_selectors_take(
    make_harness: Any, is_persistent: bool, is_committed: bool
) -> None:
    harness = make(make_harness, Composite(QUEUE, "orders", (Forward(BILLING), Forward(NOTED, RED))))
    client, sender = harness.consumer("b", BILLING), harness.client()
    client.subscribe("n", NOTED, AckMode.AUTO).subscribe("o", ORDERS)
    transaction = "t" if is_committed else None
    if is_committed:
        sender.begin()
    for colour in ("red", "blue"):
        sender.send(
            colour, persistent=is_persistent, properties={"colour": colour}, receipt=colour, transaction=transaction
        )
    if is_committed:
        sender.commit()
    harness.turn()
    assert sorted((each.subscription, each.body) for each in client.session.delivered) == [
        ("b", "blue"), ("b", "red"), ("n", "red"),
    ]  # fmt: skip
    assert {each.message.original_destination for each in client.session.delivered} == {ORDERS}
    assert sender.receipts == ["red", "blue"]


@pytest.mark.parametrize(
    ("forward_only", "when_not_matched", "red", "blue"),
    [(True, False, 0, 0), (True, True, 0, 1), (False, False, 1, 1), (False, True, 0, 1)],
)
def test_a_composite_keeps_what_it_is_said_to(make_harness: Any, forward_only, when_not_matched, red, blue) -> None:
    """``red``, which its selector takes, and ``blue``: how many of them stay where they were sent to."""
    composite = Composite(QUEUE, "orders", (Forward(BILLING, RED),), forward_only, when_not_matched)
    client = make(make_harness, composite).consumer("b", BILLING).subscribe("o", ORDERS)
    for colour in ("red", "blue"):
        client.store(colour, properties={"colour": colour}, receipt=colour)
    assert (client.receipts, client.bodies.count("red"), client.bodies.count("blue")) == (
        ["red", "blue"],
        1 + red,
        blue,
    )


def test_composites_send_on_to_each_other_but_not_in_a_circle(make_harness: Any) -> None:
    harness = make(
        make_harness,
        Composite(QUEUE, "orders", (Forward(Destination(QUEUE, "second")),)),
        Composite(QUEUE, "second", (Forward(BILLING),)),
        Composite(QUEUE, "round", (Forward(Destination(QUEUE, "round")),)),
    )
    client = harness.consumer("b", BILLING).send("a")
    client.send("b", Destination(QUEUE, "round"), receipt="r").turn()
    assert client.bodies == ["a"]
    assert "forward to each other" in client.errors[0]
    assert client.receipts == []


@pytest.mark.parametrize("is_persistent", [True, False])
def test_a_mirrored_queue_keeps_its_messages_and_tells_a_topic(make_harness: Any, is_persistent: bool) -> None:
    harness = make(make_harness, mirrored=[Mirrored("orders", "mirror.")])
    client, sender = harness.consumer("o", ORDERS), harness.client()
    client.subscribe("m", Destination(TOPIC, "mirror.orders"), AckMode.AUTO)
    sender.store(*"ab", persistent=is_persistent)
    assert sorted((each.subscription, each.body) for each in client.session.delivered) == [
        ("m", "a"), ("m", "b"), ("o", "a"), ("o", "b"),
    ]  # fmt: skip


def test_a_mirror_may_feed_queues_as_a_virtual_topic(make_harness: Any) -> None:
    harness = make(make_harness, mirrored=[Mirrored(">")])
    client, sender = harness.client(), harness.client()
    client.subscribe("v", Destination(QUEUE, "Consumer.a.VirtualTopic.Mirror.orders"))
    sender.store("a")
    assert (client.bodies, harness.figures()["messages"]) == (["a"], 1)


def test_a_selector_aware_virtual_topic_feeds_queues_what_consumers_take(make_harness: Any) -> None:
    harness = make(make_harness, virtual_topics=[VirtualTopic(is_selector_aware=True)])
    topic = Destination(TOPIC, "VirtualTopic.news")
    client, sender = harness.client(), harness.client()
    for name, selector in (("a", "colour = 'red'"), ("b", None)):
        client.subscribe(name, Destination(QUEUE, f"Consumer.{name}.VirtualTopic.news"), selector=selector)
    for colour in ("red", "blue"):
        sender.send(colour, topic, properties={"colour": colour})
    harness.turn()
    assert sorted((each.subscription, each.body) for each in client.session.delivered) == [
        ("a", "red"), ("b", "blue"), ("b", "red"),
    ]  # fmt: skip
    assert harness.figures("Consumer.a.VirtualTopic.news")["messages"] == 1


def test_forwarded_messages_wait_for_room_at_their_target(make_harness: Any) -> None:
    virtual = VirtualDestinations([Composite(QUEUE, "orders", (Forward(BILLING),))])
    harness = make_harness(DestinationPolicy(memory_limit=1_000), virtual_destinations=virtual)
    sender, consumer = harness.client(), harness.client()
    for body in ("x" * 500, "late", "later"):
        sender.send(body, persistent=False, receipt=body)
    harness.turn()
    (blocked,) = harness.engine.flow.blocked()
    assert blocked["of"] == "queue://billing"
    assert sender.receipts != ["x" * 500, "late", "later"]
    consumer.subscribe("b", BILLING, AckMode.AUTO)
    harness.wait(1)
    assert consumer.bodies == sender.receipts == ["x" * 500, "late", "later"]
