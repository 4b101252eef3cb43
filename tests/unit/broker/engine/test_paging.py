"""Queues longer than memory."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import Ack, AckMode
from tandemmq.store.records.message import Destination, DestinationKind

SMALL = {"window_messages": 10, "page_messages": 4}


def test_a_queue_longer_than_its_window_comes_out_whole_and_in_order(make_harness):
    harness = make_harness(**SMALL)
    sender, client = harness.client(), harness.client()
    expected = [f"{number}" for number in range(100)]
    sender.store(*expected[:60])
    assert harness.figures()["messages"] == 60
    assert harness.counts["memory_stored_bytes"] < 12 * 1000

    client.subscribe(prefetch=3)
    for body in expected[60:]:
        sender.store(body)
    acknowledged = 0
    while harness.stored():
        acknowledged += 1
        client.handle(Ack("s", acknowledged)).turn()

    assert client.bodies == expected
    assert harness.counts["memory_stored_bytes"] == 0


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


def test_idle_queues_leave_their_messages_to_the_store_when_memory_is_scarce(make_harness):
    harness = make_harness(memory_limit=10_000)
    client = harness.client()
    client.send_all("abcdefgh")
    client.send("np", persistent=False).turn()

    harness.engine.tick(0)
    assert harness.counts["memory_stored_bytes"] == 0
    client.subscribe(ack=AckMode.AUTO).turn()

    assert sorted(client.bodies) == ["a", "b", "c", "d", "e", "f", "g", "h", "np"]
    assert [body for body in client.bodies if body != "np"] == list("abcdefgh")


def test_a_batch_of_acknowledgements_larger_than_scarce_memory_allows_still_comes(make_harness):
    harness = make_harness(memory_limit=1_000)
    client = harness.client()
    client.store(*range(80))
    client.subscribe(ack=AckMode.CLIENT, prefetch=100).turn()

    assert len(client.bodies) == 80
    client.ack("79").turn()

    assert harness.stored() == 0
