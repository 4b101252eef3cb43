"""Priorities of queues longer than memory: strictly by priority, and in the order of arrival within each."""

from __future__ import annotations

import random

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.policies import DestinationPolicy, Policies
from tandemmq.store.records.message import Destination, DestinationKind

pytestmark = pytest.mark.promise("priorities-hold")

SMALL = {"window_messages": 10, "page_messages": 4}
ON = DestinationPolicy(prioritized_messages=True)
PRICES = Destination(DestinationKind.TOPIC, "prices")


def mixed(count: int, seed: int = 1) -> list[tuple[str, int]]:
    chance = random.Random(seed)
    return [(f"{number}", chance.choice((4, 4, 9, 0, 7))) for number in range(count)]


def by_priority(messages: list[tuple[str, int]]) -> list[str]:
    return [body for body, priority in sorted(messages, key=lambda each: -each[1])]


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_queue_longer_than_its_window_comes_by_priority(make_harness, fails_over):
    harness = make_harness(ON, **SMALL)
    messages = mixed(300)
    sender = harness.client()
    for body, priority in messages:
        sender.send(body, priority=priority)
    harness.turn()
    assert harness.counts["memory_stored_bytes"] < 22 * 1000
    if fails_over:
        harness.fail_over()

    client = harness.consumer(ack=AckMode.AUTO).turn()

    assert client.bodies == by_priority(messages)
    assert harness.stored() == 0
    assert harness.counts["memory_stored_bytes"] == 0


def test_what_comes_while_a_consumer_takes_one_at_a_time_has_its_turn_at_once(make_harness):
    harness = make_harness(ON, **SMALL)
    sender, client = harness.client(), harness.consumer(prefetch=1)
    waiting: list[tuple[int, int, str]] = []
    taken: list[str] = []
    chance = random.Random(2)
    for number in range(400):
        # More comes than goes, then the other way round.
        for _ in range(chance.choice((0, 1, 3)) if number < 200 else 0):
            priority = chance.choice((4, 4, 9, 0))
            body = f"{number} {len(waiting)}"
            sender.send(body, priority=priority)
            waiting.append((-priority, len(taken) + number * 1000 + len(waiting), body))
        harness.turn()
        if len(client.bodies) > len(taken):
            (body,) = client.bodies[len(taken) :]
            assert body in [each[2] for each in waiting]
            waiting = [each for each in waiting if each[2] != body]
            taken.append(body)
            expected = min(waiting)[2] if waiting else None
            client.ack(body).turn()
            if expected is not None:
                assert client.bodies[-1] == expected
    assert len(taken) > 200


def test_what_comes_back_is_the_first_of_its_priority(make_harness):
    harness = make_harness(ON, **SMALL)
    sender, client = harness.client(), harness.client()
    for body, priority in mixed(60):
        sender.send(body, priority=priority)
    client.subscribe(prefetch=5).turn()
    first = client.bodies
    client.vanish()
    sender.send("late", priority=9)
    other = harness.consumer(ack=AckMode.AUTO).turn()

    assert other.bodies == by_priority([*mixed(60), ("late", 9)])
    assert [each.redelivered for each in other.session.delivered[:5]] == [True] * 5
    assert other.bodies[:5] == first


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_policy_may_be_switched_on_and_off_for_a_queue_that_holds_messages(make_harness, comes_first):
    harness = make_harness(ON if comes_first else DestinationPolicy(), **SMALL)
    messages = mixed(100)
    sender = harness.client()
    for body, priority in messages:
        sender.send(body, priority=priority)
    harness.turn()
    harness.policies = Policies((), DestinationPolicy() if comes_first else ON)
    harness.fail_over()
    client = harness.consumer(ack=AckMode.AUTO).turn()

    assert client.bodies == ([body for body, _ in messages] if comes_first else by_priority(messages))


def test_consumers_with_selectors_get_each_what_they_take_by_priority(make_harness):
    harness = make_harness(ON, **SMALL)
    sender, red, blue = harness.client(), harness.client(), harness.client()
    messages = mixed(200)
    for number, (body, priority) in enumerate(messages):
        sender.send(body, priority=priority, type=("red", "blue")[number % 2])
    harness.turn()
    red.subscribe(ack=AckMode.AUTO, selector="JMSType = 'red'").turn()
    assert red.bodies == by_priority(messages[::2])

    blue.subscribe(ack=AckMode.AUTO, selector="JMSType = 'blue'").turn()
    assert blue.bodies == by_priority(messages[1::2])


def test_a_durable_subscription_longer_than_its_window_comes_by_priority(make_harness):
    harness = make_harness(ON, **SMALL)
    client, sender = harness.consumer("s", PRICES, durable_name="d", client_id="me"), harness.client()
    harness.turn()
    client.vanish()
    messages = mixed(120)
    for body, priority in messages:
        sender.send(body, PRICES, priority=priority)
    harness.turn()
    client = harness.consumer("s", PRICES, AckMode.AUTO, durable_name="d", client_id="me").turn()

    assert client.bodies == by_priority(messages)


def test_messages_that_are_not_stored_have_their_turn_among_those_that_are(make_harness):
    harness = make_harness(ON, **SMALL)
    sender, client = harness.client(), harness.client()
    messages = mixed(100)
    for number, (body, priority) in enumerate(messages):
        sender.send(body, priority=priority, persistent=number % 3 > 0).turn()
    client.subscribe(ack=AckMode.AUTO).turn()

    assert client.bodies == by_priority(messages)
