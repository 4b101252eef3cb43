"""Queues longer than memory."""

from __future__ import annotations

from broker.core.commands import Ack, AckMode
from store.records.message import Destination, DestinationKind

SMALL = {"window_messages": 10, "page_messages": 4}


def test_a_queue_longer_than_its_window_comes_out_whole_and_in_order(make_house):
    house = make_house(**SMALL)
    sender, client = house.client(), house.client()
    expected = [f"{number}" for number in range(100)]
    for body in expected[:60]:
        sender.send(body)
    house.turn()
    assert house.figures()["messages"] == 60
    assert house.counts["memory_stored_bytes"] < 12 * 1000

    client.subscribe(prefetch=3)
    for body in expected[60:]:
        sender.send(body)
        house.turn()
    acknowledged = 0
    while house.stored():
        acknowledged += 1
        client.handle(Ack("s", acknowledged))
        house.turn()

    assert client.bodies == expected
    assert house.counts["memory_stored_bytes"] == 0


def test_an_auto_consumer_drains_a_long_queue(make_house):
    house = make_house(**SMALL)
    sender, client = house.client(), house.client()
    expected = [f"{number}" for number in range(100)]
    for body in expected:
        sender.send(body)
    house.turn()

    client.subscribe(ack=AckMode.AUTO)
    house.turn()

    assert client.bodies == expected
    assert house.stored() == 0


def test_after_a_failover_a_long_queue_comes_out_whole(make_house):
    house = make_house(**SMALL)
    expected = [f"{number}" for number in range(50)]
    sender = house.client()
    for body in expected:
        sender.send(body)
    house.fail_over()
    client = house.client()
    client.subscribe(ack=AckMode.AUTO)
    house.turn()

    assert client.bodies == expected


def test_with_memory_exhausted_by_others_a_queue_still_moves(make_house):
    house = make_house(memory_limit=5_000)
    hog, client = house.client(), house.client()
    hog.subscribe("h", prefetch=100)
    for number in range(20):
        hog.send(f"{number}" * 500)
    house.turn()
    other = Destination(DestinationKind.QUEUE, "other")
    expected = [f"{number}" for number in range(60)]
    for body in expected:
        hog.send(body, other)
    house.turn()

    client.subscribe("s", other, AckMode.AUTO)
    house.turn()

    assert client.bodies == expected


def test_idle_queues_leave_their_messages_to_the_store_when_memory_is_scarce(make_house):
    house = make_house(memory_limit=10_000)
    client = house.client()
    for body in "abcdefgh":
        client.send(body)
    client.send("np", persistent=False)
    house.turn()

    house.engine.tick(0)
    assert house.counts["memory_stored_bytes"] == 0
    client.subscribe(ack=AckMode.AUTO)
    house.turn()

    assert sorted(client.bodies) == ["a", "b", "c", "d", "e", "f", "g", "h", "np"]
    assert [body for body in client.bodies if body != "np"] == list("abcdefgh")


def test_a_batch_of_acknowledgements_larger_than_scarce_memory_allows_still_comes(make_house):
    house = make_house(memory_limit=1_000)
    client = house.client()
    for number in range(80):
        client.send(f"{number}")
    house.turn()
    client.subscribe(ack=AckMode.CLIENT, prefetch=100)
    house.turn()

    assert len(client.bodies) == 80
    client.ack("79")
    house.turn()

    assert house.stored() == 0
