"""What listeners are told of messages, consumers and limits, each where a policy asks for it, and nobody else."""

from __future__ import annotations

import itertools

import pytest

from broker.core.commands import AckMode
from broker.core.policies import DestinationPolicy
from broker.protocols.openwire.advisories import Advisories
from store.records.message import Destination, DestinationKind

ORDERS = Destination(DestinationKind.QUEUE, "orders")
PRICES = Destination(DestinationKind.TOPIC, "prices")


def advisor() -> Advisories:
    return Advisories(
        "ID:advisories", lambda: 1_000, itertools.count(1), broker_id="ID:b", broker_name="b", broker_url="tcp://b:1"
    )


def listen(house, name: str):
    listener = house.client()
    listener.subscribe("l", Destination(DestinationKind.TOPIC, f"ActiveMQ.Advisory.{name}"), AckMode.AUTO)
    return listener


def told(listener) -> list[str]:
    """The topics by their last words."""
    return [each.message.destination.name.removeprefix("ActiveMQ.Advisory.") for each in listener.session.delivered]


@pytest.fixture
def build(make_house):
    def build(**policy):
        return make_house(DestinationPolicy(**policy), advisor())

    return build


def test_of_what_expired(build):
    house = build()
    listener = listen(house, "Expired.>")
    client = house.client()
    client.send("old", expiration=1_500)
    house.turn()
    assert told(listener) == []
    house.wait(2)
    assert told(listener) == ["Expired.Queue.orders"]


def test_of_a_dead_letter(build):
    house = build()
    listener = listen(house, "MessageDLQd.>")
    client = house.client()
    client.subscribe()
    client.send("bad")
    house.turn()
    client.nack("bad")
    house.turn()
    assert told(listener) == ["MessageDLQd.Queue.orders"]
    properties = listener.session.delivered[0].message.properties
    assert properties["orignalMessageId"] == client.last("bad").message.message_id


def test_of_what_is_given_and_acknowledged_where_a_policy_asks_for_it(build):
    house = build(advisory_for_delivery=True, advisory_for_consumed=True)
    listener = listen(house, "*.Queue.orders")
    client = house.client()
    client.subscribe()
    client.send("a")
    house.turn()
    assert told(listener)[-1] == "MessageDelivered.Queue.orders"
    client.ack("a")
    assert told(listener)[-1] == "MessageConsumed.Queue.orders"
    client.begin()
    client.send("b")
    house.turn()
    client.ack("b", transaction="t")
    assert told(listener)[-1] == "MessageDelivered.Queue.orders"
    client.commit()
    assert told(listener)[-1] == "MessageConsumed.Queue.orders"
    consumer = listener.session.delivered[-1].message.properties["consumerId"]
    assert consumer.startswith(client.id)


def test_auto_takes_what_it_is_given(build):
    house = build(advisory_for_consumed=True)
    listener = listen(house, "MessageConsumed.>")
    client = house.client()
    client.subscribe("s", ORDERS, AckMode.AUTO)
    client.send("a", persistent=False)
    assert told(listener) == ["MessageConsumed.Queue.orders"]


def test_nothing_is_told_that_no_policy_asks_for(build):
    house = build()
    listener = listen(house, "Message*.>")
    everything = listen(house, "*.*.>")
    client = house.client()
    client.subscribe()
    client.send("a")
    house.turn()
    client.ack("a")
    client.send("b", PRICES, persistent=False)
    assert told(listener) == []
    assert not any(name.startswith(("Message", "NoConsumer")) for name in told(everything))


def test_a_message_that_nobody_listens_to_is_told_whole(build):
    house = build(send_advisory_if_no_consumers=True)
    listener = listen(house, "NoConsumer.Topic.prices")
    client = house.client()
    client.send("lost", PRICES, persistent=False)
    client.send("persistent ones are not", PRICES, persistent=True)
    assert listener.bodies == ["lost"]
    client.subscribe("s", PRICES, AckMode.AUTO)
    client.send("heard", PRICES, persistent=False)
    assert listener.bodies == ["lost"]


def test_a_message_to_a_queue_that_nobody_consumes_is_told_and_waits(build):
    house = build(send_advisory_if_no_consumers=True)
    listener = listen(house, "NoConsumer.Queue.orders")
    client, consumer = house.client(), house.client()
    client.send("waits", persistent=False)
    client.send("persistent ones are not", persistent=True)
    house.turn()
    assert listener.bodies == ["waits"]
    consumer.subscribe()
    client.send("heard", persistent=False)
    house.turn()
    assert listener.bodies == ["waits"]
    assert sorted(consumer.bodies) == ["heard", "persistent ones are not", "waits"]


def test_of_what_a_slow_subscriber_loses(build):
    house = build(advisory_for_discarding_messages=True, pending_message_limit=1)
    listener = listen(house, "MessageDiscarded.>")
    slow = house.client()
    slow.subscribe("s", PRICES, AckMode.AUTO)
    slow.has_room = False
    for body in "abc":
        house.client().send(body, PRICES)
    assert told(listener) == ["MessageDiscarded.Topic.prices"] * 2
    assert [each.message.properties["discardedCount"] for each in listener.session.delivered] == [1, 2]


@pytest.mark.parametrize("asked", [True, False])
def test_of_a_limit_that_is_reached_and_of_who_is_too_fast(build, asked):
    house = build(memory_limit=1_000, advisory_when_full=asked)
    full, fast = listen(house, "FULL.>"), listen(house, "FastProducer.>")
    client = house.client()
    for body in ("x" * 500, "late", "later"):
        client.send(body, persistent=False)
    assert told(full) == ["FULL.orders"] * asked
    assert told(fast) == ["FastProducer.Queue.orders"] * asked
    if asked:
        properties = full.session.delivered[0].message.properties
        assert properties["usageName"] == "memory_limit"
        assert properties["usageCount"] >= 1_000


def test_who_asks_for_the_master_is_told(build):
    house = build()
    assert told(listen(house, "MasterBroker")) == ["MasterBroker"]


def test_of_a_durable_subscription_that_is_deleted(build):
    house = build()
    client = house.client("me")
    client.subscribe("s", PRICES, durable_name="d")
    house.turn()
    client.unsubscribe("s")
    listener = listen(house, "Consumer.>")
    client.unsubscribe(None, durable_name="d")
    house.turn()
    assert told(listener) == ["Consumer.Topic.prices"]
