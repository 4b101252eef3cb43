"""Queues longer than memory: in order, or strictly by priority if a policy requires it."""

from __future__ import annotations

import random

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.policies import DestinationPolicy, Policies
from tandemmq.store.operations import Page
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES

SMALL = {"window_messages": 10, "page_messages": 4}
ON, OFF = DestinationPolicy(prioritized_messages=True), DestinationPolicy()


def send_mixed(harness, count, **fields):
    """Messages of several priorities; those that come first by priority first, and in the order of arrival."""
    chance, sender = random.Random(1), harness.client()
    messages = [(f"{number}", chance.choice((4, 4, 9, 0, 7))) for number in range(count)]
    for body, priority in messages:
        sender.send(body, priority=priority, **fields)
    harness.turn()
    return [body for body, _ in messages], [body for body, _ in sorted(messages, key=lambda each: -each[1])]


@pytest.mark.promise("priorities-hold")
@pytest.mark.parametrize(
    ("before", "after"), [(ON, None), (ON, ON), (ON, OFF), (OFF, None), (OFF, OFF), (OFF, ON)],
)  # fmt: skip
def test_a_queue_longer_than_its_window_comes_whole_and_by_its_policy(make_harness, before, after):
    """``after``: the policy of the next term, where the messages are read."""
    harness = make_harness(before, **SMALL)
    by_arrival, by_priority = send_mixed(harness, 300)
    assert harness.counts["memory_stored_bytes"] < 22 * 1000
    if after is not None:
        harness.policies = Policies((), after)
        harness.fail_over()
    client = harness.consumer(ack=AckMode.AUTO).turn()
    assert client.bodies == (by_priority if (after or before) is ON else by_arrival)
    assert (harness.stored(), harness.counts["memory_stored_bytes"]) == (0, 0)


@pytest.mark.promise("priorities-hold")
def test_a_durable_subscription_longer_than_its_window_comes_by_priority(make_harness):
    harness = make_harness(ON, **SMALL)
    terms = {"destination": PRICES, "durable_name": "d", "client_id": "me"}
    harness.consumer("s", **terms).turn().vanish()
    _, by_priority = send_mixed(harness, 120, destination=PRICES)
    assert harness.consumer("s", ack=AckMode.AUTO, **terms).turn().bodies == by_priority


def test_with_memory_exhausted_by_others_a_queue_still_moves(make_harness):
    harness = make_harness(memory_limit=5_000)
    hog = harness.consumer("h", prefetch=100)
    for number in range(20):
        hog.send(f"{number}" * 500)
    other = Destination(DestinationKind.QUEUE, "other")
    hog.turn().store(*range(60), destination=other)
    assert harness.consumer("s", other, AckMode.AUTO).turn().bodies == [f"{number}" for number in range(60)]


def test_a_batch_of_acknowledgements_larger_than_scarce_memory_allows_still_comes(make_harness):
    harness = make_harness(memory_limit=1_000)
    client = harness.client().store(*range(80)).subscribe(ack=AckMode.CLIENT, prefetch=100).turn()
    assert len(client.bodies) == 80
    client.ack("79").turn()
    assert harness.stored() == 0


def test_the_browsers_of_a_client_read_one_page_at_a_time(make_harness):
    # proves: browsers-read-one-by-one
    harness = make_harness(**SMALL)
    harness.client().store(*range(6)).turn()
    client = harness.client()
    harness.store.appended = []
    for id in "ab":
        client.subscribe(id, ack=AckMode.AUTO, is_browser=True)
    assert sum(isinstance(each, Page) for each in harness.store.appended) == 1
    harness.turn()
    harness.wait(1)
    assert sorted(client.bodies) == sorted([str(number) for number in range(6)] * 2)
    assert not harness.counts["memory_browsed_bytes"]


def test_a_browser_waits_while_its_client_holds_the_free_memory(make_harness):
    harness = make_harness(**SMALL)
    harness.client().store(*range(6)).turn()
    client = harness.client()
    client.subscribe("a", ack=AckMode.INDIVIDUAL, prefetch=1, is_browser=True).turn()
    limit, harness.engine.memory.limit = harness.engine.memory.limit, 1
    client.subscribe("b", ack=AckMode.AUTO, is_browser=True).turn()
    harness.wait(1)
    assert client.bodies == ["0"]
    harness.engine.memory.limit = limit
    harness.wait(1)
    assert client.bodies == ["0", *[str(number) for number in range(6)]]
