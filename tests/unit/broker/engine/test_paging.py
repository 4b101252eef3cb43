"""Queues longer than memory."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.store.records.message import Destination, DestinationKind

SMALL = {"window_messages": 10, "page_messages": 4}


@pytest.mark.parametrize("fails_over", [False, True])
def test_an_auto_consumer_drains_a_long_queue(make_harness, fails_over):
    harness = make_harness(**SMALL)
    expected = [f"{number}" for number in range(100)]
    harness.client().store(*expected)
    if fails_over:
        harness.fail_over()

    client = harness.consumer(ack=AckMode.AUTO).turn()

    assert client.bodies == expected
    assert harness.stored() == 0


def test_with_memory_exhausted_by_others_a_queue_still_moves(make_harness):
    harness = make_harness(memory_limit=5_000)
    hog, client = harness.consumer("h", prefetch=100), harness.client()
    for number in range(20):
        hog.send(f"{number}" * 500)
    harness.turn()
    other = Destination(DestinationKind.QUEUE, "other")
    expected = [f"{number}" for number in range(60)]
    hog.store(*expected, destination=other)

    client.subscribe("s", other, AckMode.AUTO).turn()

    assert client.bodies == expected


def test_a_batch_of_acknowledgements_larger_than_scarce_memory_allows_still_comes(make_harness):
    harness = make_harness(memory_limit=1_000)
    client = harness.client()
    client.store(*range(80))
    client.subscribe(ack=AckMode.CLIENT, prefetch=100).turn()

    assert len(client.bodies) == 80
    client.ack("79").turn()

    assert harness.stored() == 0
