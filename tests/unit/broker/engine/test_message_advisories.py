"""Advisories about messages, consumers and limits: each is sent where a policy enables it, and only to its
listeners."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.policies import DestinationPolicy
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import ORDERS, PRICES, advisor

pytestmark = pytest.mark.promise("advisories")


def listen(harness, name: str):
    return harness.consumer("l", Destination(DestinationKind.TOPIC, f"ActiveMQ.Advisory.{name}"), AckMode.AUTO)


def advisories_of(listener) -> list[str]:
    """The topics by their last words."""
    return [each.message.destination.name.removeprefix("ActiveMQ.Advisory.") for each in listener.session.delivered]


@pytest.fixture
def build(make_harness):
    def build(**policy):
        return make_harness(DestinationPolicy(**policy), advisor())

    return build


def test_of_what_expired(build):
    harness = build()
    listener = listen(harness, "Expired.>")
    harness.client().send("old", expiration=1_500).turn()
    assert advisories_of(listener) == []
    harness.wait(2)
    assert advisories_of(listener) == ["Expired.Queue.orders"]


def test_of_a_dead_letter(build):
    harness = build()
    listener = listen(harness, "MessageDLQd.>")
    client = harness.consumer().store("bad").nack("bad").turn()
    assert advisories_of(listener) == ["MessageDLQd.Queue.orders"]
    properties = listener.session.delivered[0].message.properties
    assert properties["orignalMessageId"] == client.last("bad").message.message_id


def test_advisories_of_deliveries_and_acknowledgements_need_a_policy(build):
    harness = build(advisory_for_dispatched=True, advisory_for_consumed=True)
    listener = listen(harness, "*.Queue.orders")
    client = harness.consumer().store("a")
    assert advisories_of(listener)[-1] == "MessageDispatched.Queue.orders"
    client.ack("a")
    assert advisories_of(listener)[-1] == "MessageConsumed.Queue.orders"
    client.begin().store("b").ack("b", transaction="t")
    assert advisories_of(listener)[-1] == "MessageDispatched.Queue.orders"
    client.commit()
    assert advisories_of(listener)[-1] == "MessageConsumed.Queue.orders"
    consumer = listener.session.delivered[-1].message.properties["consumerId"]
    assert consumer.startswith(client.id)


VIRTUAL = Destination(DestinationKind.TOPIC, "VirtualTopic.news")


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize("has_durable", [True, False])
def test_of_each_message_that_arrives_also_in_the_virtual_topic_itself(build, is_persistent, is_committed, has_durable):
    harness = build(advisory_for_delivery=True)
    listener = listen(harness, "MessageDelivered.>")
    client = harness.consumer("v", Destination(DestinationKind.QUEUE, "Consumer.a.VirtualTopic.news"), client_id="me")
    if has_durable:
        client.subscribe("d", VIRTUAL, durable_name="d")
    harness.turn()
    transaction = "t" if is_committed else None
    if is_committed:
        client.begin()
    client.send("a", persistent=is_persistent, transaction=transaction)
    client.send("b", VIRTUAL, persistent=is_persistent, transaction=transaction)
    if is_committed:
        client.commit()
    harness.turn()
    assert sorted(advisories_of(listener)) == [
        "MessageDelivered.Queue.Consumer.a.VirtualTopic.news",
        "MessageDelivered.Queue.orders",
        "MessageDelivered.Topic.VirtualTopic.news",
    ]


def test_a_delivery_to_an_auto_subscription_is_consumed(build):
    harness = build(advisory_for_consumed=True)
    listener = listen(harness, "MessageConsumed.>")
    harness.consumer("s", ORDERS, AckMode.AUTO).send("a", persistent=False)
    assert advisories_of(listener) == ["MessageConsumed.Queue.orders"]


def test_no_advisory_without_a_policy(build):
    harness = build()
    everything = listen(harness, "*.*.>")
    harness.consumer().store("a").ack("a").send("b", PRICES, persistent=False)
    assert not any(name.startswith(("Message", "NoConsumer")) for name in advisories_of(everything))


@pytest.mark.parametrize("destination", [PRICES, ORDERS], ids=str)
def test_an_advisory_of_a_message_without_a_consumer_contains_all_of_it(build, destination):
    """A message of a queue waits instead."""
    harness = build(send_advisory_if_no_consumers=True)
    listener = listen(harness, f"NoConsumer.{'Topic' if destination.is_topic else 'Queue'}.{destination.name}")
    client = harness.client().send("alone", destination, persistent=False)
    client.send("persistent ones are not", destination, persistent=True).turn()
    assert listener.bodies == ["alone"]
    consumer = harness.consumer("s", destination)
    client.send("heard", destination, persistent=False).turn()
    assert listener.bodies == ["alone"]
    waited = [] if destination.is_topic else ["alone", "persistent ones are not"]
    assert sorted(consumer.bodies) == sorted(["heard", *waited])


def test_of_what_a_slow_subscriber_loses(build):
    harness = build(advisory_for_discarding_messages=True, pending_message_limit=1)
    listener = listen(harness, "MessageDiscarded.>")
    slow = harness.consumer("s", PRICES, AckMode.AUTO)
    slow.has_space = False
    for body in "abc":
        harness.client().send(body, PRICES)
    assert advisories_of(listener) == ["MessageDiscarded.Topic.prices"] * 2
    assert [each.message.properties["discardedCount"] for each in listener.session.delivered] == [1, 2]


def test_a_message_lost_by_a_slow_subscriber_is_one_dead_letter_and_an_advisory(build):
    harness = build(pending_message_limit=1)
    listener = listen(harness, "MessageDLQd.>")
    for _ in range(2):
        slow = harness.consumer("s", PRICES, AckMode.AUTO)
        slow.has_space = False
    sender = harness.client().send_all("abc", PRICES).send("gone for good", PRICES, persistent=False)
    sender.store("last", destination=PRICES)
    assert advisories_of(listener) == ["MessageDLQd.Topic.prices"] * 3
    letters = harness.consumer("d", Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ.Topic.prices"))
    assert letters.bodies == ["a", "b", "c"]


@pytest.mark.parametrize("has_policy", [True, False])
def test_a_lost_message_without_a_policy_or_with_a_full_store_is_no_dead_letter(make_harness, build, has_policy):
    harness = build(pending_message_limit=1) if has_policy else make_harness(topic_pending_messages=1)
    slow = harness.consumer("s", PRICES, AckMode.AUTO)
    slow.has_space = False
    if has_policy:
        harness.store.bytes_max = 0
    harness.client().store(*"abc", destination=PRICES)
    assert harness.counts["dead_letters_total"] == 0


@pytest.mark.parametrize("asked", [True, False])
def test_of_a_limit_that_is_reached_and_of_who_is_too_fast(build, asked):
    harness = build(memory_limit=1_000, advisory_when_full=asked)
    full, fast = listen(harness, "FULL.>"), listen(harness, "FastProducer.>")
    harness.client().send_all(("x" * 500, "late", "later"), persistent=False)
    assert advisories_of(full) == ["FULL.orders"] * asked
    assert advisories_of(fast) == ["FastProducer.Queue.orders"] * asked
    if asked:
        properties = full.session.delivered[0].message.properties
        assert properties["usageName"] == "memory_limit"
        assert properties["usageCount"] >= 1_000


def test_of_a_durable_subscription_that_is_deleted(build):
    harness = build()
    client = harness.consumer("s", PRICES, durable_name="d", client_id="me").turn().unsubscribe("s")
    listener = listen(harness, "Consumer.>")
    client.unsubscribe(None, durable_name="d").turn()
    assert advisories_of(listener) == ["Consumer.Topic.prices"]
