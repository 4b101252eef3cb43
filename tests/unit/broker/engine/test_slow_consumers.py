"""Slow consumers: when a consumer counts as slow, the notifications, and when the consumer is ended."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.client import Event
from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.policies import AbortSlow, DestinationPolicy
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES, advisor


@pytest.fixture
def build(make_harness):
    def build(advisor=None, **fields):
        return make_harness(DestinationPolicy(abort_slow=AbortSlow(**fields)), advisor)

    return build


def fill(harness, count: int = 3):
    harness.client().store(*range(count))


def test_a_consumer_that_is_slow_for_too_long_is_closed_and_others_get_what_it_held(build):
    harness = build(max_slow_duration=5_000)
    slow, other = harness.consumer("s", prefetch=1), harness.client()
    fill(harness)
    harness.wait(5.5)
    assert (slow.session.errors, harness.counts["slow_consumers"]) == ([], 1)
    harness.wait(2)
    assert ("closed", "s") in slow.session.events
    assert "max_slow_duration 5000 ms" in slow.errors[0]
    assert not slow.is_closed
    other.subscribe("t")
    assert (other.bodies, harness.counts["slow_consumers_aborted_total"]) == (["0", "1", "2"], 1)


def test_a_consumer_whose_client_often_waits_is_closed_too(build):
    """The time in which its client waits for the broker does not count; the time before and after it does."""
    harness = build(max_slow_duration=5_000)
    slow = harness.consumer("s", prefetch=1)
    fill(harness)
    for _ in range(8):
        harness.wait(2)
        slow.client.move(Event.ASK)
        harness.wait(1)
        slow.client.move(Event.ANSWER)
    assert harness.counts["slow_consumers_aborted_total"] == 1


@pytest.mark.parametrize(("prefetch", "messages"), [(1, 20), (3, 3)])
def test_a_consumer_that_takes_messages_or_has_all_is_not_slow(build, prefetch, messages):
    harness = build(max_slow_duration=3_000)
    client = harness.consumer("s", prefetch=prefetch)
    fill(harness, messages)
    for number in range(10):
        harness.wait(2)
        if prefetch == 1:
            client.ack(str(number))
    assert client.turn().errors == []


def test_a_consumer_that_is_slow_too_often_is_closed(build):
    harness = build(max_slow_duration=None, max_slow_count=3)
    client = harness.consumer("s", prefetch=1)
    fill(harness, 20)
    harness.wait(3)
    for number in range(2):
        assert client.errors == []
        client.ack(str(number))
        harness.wait(3)
    assert "max_slow_count 3" in client.errors[0]


def test_the_connection_ends_where_the_policy_says_so(build):
    harness = build(max_slow_duration=2_000, abort_connection=True)
    client = harness.consumer("s", prefetch=1)
    fill(harness)
    harness.wait(5)
    assert client.is_closed
    assert client.session.errors[0].is_fatal
    assert harness.figures()["unacknowledged"] == 0


@pytest.mark.parametrize("ignore", [True, False])
def test_a_consumer_that_acknowledges_nothing_is_slow_although_it_has_room(build, ignore):
    harness = build(max_slow_duration=1_000, max_time_since_last_ack=5_000, ignore_idle_consumers=ignore)
    client, idle = harness.consumer("s", prefetch=100), harness.client()
    idle.subscribe("s", Destination(DestinationKind.QUEUE, "nothing"))
    fill(harness)
    harness.wait(4)
    client.ack("0")
    harness.wait(5)
    assert client.errors == []
    harness.wait(4)
    assert len(client.errors) == 1
    assert len(idle.errors) == (0 if ignore else 1)


def test_a_topic_subscriber_whose_socket_is_full_is_slow(build):
    harness = build(max_slow_duration=2_000)
    client, sender = harness.consumer("s", PRICES, AckMode.AUTO), harness.client()
    client.has_space = False
    sender.send("a", PRICES)
    harness.wait(5)
    assert len(client.errors) == 1


def test_listeners_are_told_once_of_each_time(make_harness):
    harness = make_harness(DestinationPolicy(advisory_for_slow_consumers=True), advisor())
    listener, client = harness.client(), harness.client()
    listener.subscribe("l", Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.SlowConsumer.>"), AckMode.AUTO)
    client.subscribe("s", prefetch=1)
    fill(harness)
    harness.wait(10)
    (told,) = listener.session.delivered
    assert told.message.destination.name == "ActiveMQ.Advisory.SlowConsumer.Queue.orders"
    assert told.message.properties["consumerId"].startswith(client.id)
    assert client.errors == []


def test_no_consumer_is_slow_without_a_policy(harness):
    client = harness.consumer("s", prefetch=1)
    fill(harness)
    harness.wait(100)
    assert (client.errors, harness.counts["slow_consumers"]) == ([], 0)
