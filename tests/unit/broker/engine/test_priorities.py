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
