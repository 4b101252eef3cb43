"""One memory budget: memory counts as long and as often as it is held, and a client that holds too much is held
back."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.store.records.message import Destination, DestinationKind

from .conftest import ORDERS, PRICES

pytestmark = pytest.mark.promise("memory-is-counted")

LARGE = "x" * 10_000
MANY = 400


@pytest.fixture
def harness(make_harness):
    return make_harness(memory_limit=1_000_000)


def used(harness):
    return harness.engine.memory.used


def test_a_consumer_that_acknowledges_nothing_is_held_back_and_leaves_room(harness):
    greedy, sender, modest = harness.client(), harness.client(), harness.client()
    greedy.subscribe("g", ack=AckMode.CLIENT, prefetch=MANY)
    for _ in range(MANY):
        sender.send(LARGE).turn()
    held = len(greedy.bodies)
    assert 40 < held < 60, "half of the budget"
    assert used(harness) < 1_000_000
    other = Destination(DestinationKind.QUEUE, "other")
    modest.subscribe("m", other, AckMode.INDIVIDUAL)
    for number in range(20):
        sender.store(number, destination=other)
        modest.ack(f"{number}")
    harness.turn()
    assert len(modest.bodies) == 20
    (told,) = harness.engine.memory_holders.held_back()
    assert (told["connection"], told["delivered"] > 400_000) == (greedy.id, True)
    while len(greedy.bodies) < MANY:
        before = len(greedy.bodies)
        greedy.ack(LARGE)
        harness.wait(1)
        assert len(greedy.bodies) > before
    greedy.ack(LARGE)
    harness.wait(1)
    assert (used(harness), harness.engine.memory_holders.held_back(), harness.stored()) == (0, [], 0)


def test_a_consumer_that_is_held_back_continues_when_others_release_memory(harness):
    first, second, sender = harness.client(), harness.client(), harness.client()
    other = Destination(DestinationKind.QUEUE, "other")
    first.subscribe("f", ack=AckMode.CLIENT, prefetch=MANY)
    second.subscribe("s", other, AckMode.CLIENT, prefetch=MANY)
    for _ in range(100):
        sender.send(LARGE).send(LARGE, other).turn()
    before = len(second.bodies)
    assert before < 50
    first.vanish()
    harness.wait(2)
    assert len(second.bodies) > before


def test_a_returned_delivery_is_left_to_the_store_and_counts_as_delivered(make_harness):
    harness = make_harness(memory_limit=100_000)
    first = harness.consumer(ack=AckMode.CLIENT)
    for number in range(9):
        first.send(f"{number}" * 8_000)
    harness.turn()
    count = len(first.bodies)
    assert 0 < count < 9
    first.vanish()
    harness.wait(2)
    assert used(harness) < 10_000
    second = harness.consumer(ack=AckMode.AUTO).turn()
    assert [body[0] for body in second.bodies] == list("012345678")
    assert [each.redelivered for each in second.session.delivered] == [True] * count + [False] * (9 - count)


def test_of_a_topic_too(harness):
    greedy, sender = harness.consumer("g", PRICES, AckMode.CLIENT, prefetch=MANY), harness.client()
    for _ in range(MANY):
        sender.send(LARGE, PRICES, persistent=False)
    harness.turn()
    assert 40 < len(greedy.bodies) < 60
    assert used(harness) < 1_000_000
    greedy.vanish().turn()
    assert used(harness) == 0


@pytest.mark.parametrize("persistent", [True, False])
def test_a_message_with_several_holders_counts_once(harness, persistent):
    sender, reader = harness.client(), harness.client()
    for number in range(20):
        away = harness.consumer("d", PRICES, AckMode.CLIENT, durable_name="d", client_id=f"c{number}").turn()
        away.vanish()
    reader.subscribe("r", PRICES, AckMode.CLIENT)
    for _ in range(10):
        sender.send(LARGE, PRICES, persistent=persistent)
    harness.turn()
    assert 100_000 < used(harness) < 200_000
    reader.vanish().turn()
    assert 100_000 < used(harness) < 200_000
    for number in range(20):
        back = harness.consumer("d", PRICES, AckMode.AUTO, durable_name="d", client_id=f"c{number}").turn()
        assert len(back.bodies) == 10
    assert used(harness) == 0


def test_parts_of_a_composite_share_their_body(harness):
    client = harness.client()
    names = [f"part{number}" for number in range(50)]
    client.send(LARGE, Destination(DestinationKind.QUEUE, ",".join(names)), persistent=False)
    assert len(LARGE) < used(harness) < 5 * len(LARGE)
    for name in names:
        client.subscribe(name, Destination(DestinationKind.QUEUE, name), AckMode.AUTO)
    harness.turn()
    assert (client.bodies, used(harness)) == ([LARGE] * 50, 0)


def test_a_message_acknowledged_in_a_transaction_is_held_until_its_end(harness):
    client, sender = harness.consumer("s", PRICES, AckMode.CLIENT), harness.client()
    client.subscribe("q", ORDERS, AckMode.CLIENT)
    for destination in (PRICES, ORDERS):
        sender.send(LARGE + str(destination), destination, persistent=False)
    harness.turn()
    held = used(harness)
    client.begin()
    for each in list(client.session.delivered):
        client.ack(each.body, transaction="t")
    assert used(harness) == held
    client.abort()
    assert used(harness) == held
    client.begin()
    for each in list(client.session.delivered):
        client.ack(each.body, transaction="t")
    client.commit().turn()
    assert (used(harness), client.client.holder.bytes) == (0, 0)


def test_connections_subscriptions_and_destinations_count(make_harness, monkeypatch):
    monkeypatch.undo()
    harness = make_harness(memory_limit=400_000)
    harness.client()
    before = used(harness)
    client = harness.client()
    assert used(harness) > before
    count = 0
    while not client.errors:
        client.send("x", Destination(DestinationKind.TOPIC, f"t{count}"), persistent=False)
        count += 1
    assert "Destinations, subscriptions and connections use all of their memory" in client.errors[0]
    assert used(harness) < 300_000
    count = len(client.errors)
    for number in range(200):
        client.subscribe(f"s{number}", Destination(DestinationKind.TOPIC, "t0"))
    assert "Subscriptions use all free memory" in client.errors[count]
    client.vanish().turn()
    assert harness.engine.memory.by_kind["state"] < 250_000


def test_subscriptions_of_topics_have_no_memory_for_messages_until_one_waits(harness):
    idle, behind = harness.client(), harness.client()
    for client in (idle, behind):
        client.subscribe("s", PRICES, prefetch=1)
    first, second = (client.client.subscriptions["s"] for client in (idle, behind))
    assert first.pending is first.unsifted is second.pending is second.unsifted
    idle.unsubscribe("s").turn()
    harness.client().send_all("abc", PRICES, persistent=False)
    harness.turn()
    assert [entry.message.body for entry in second.pending] == [b"b", b"c"]
    assert not first.pending
    assert not second.unsifted


def test_deliveries_of_a_deleted_queue_are_held_for_no_client(harness):
    client = harness.consumer("s", Destination(DestinationKind.QUEUE, "o.>"), AckMode.CLIENT)
    target = Destination(DestinationKind.QUEUE, "o.one")
    for persistent in (True, False):
        client.send(LARGE, target, persistent=persistent)
    harness.turn()
    assert client.holder.bytes > 2 * len(LARGE)
    harness.destinations.remove(harness.destinations.queue(target))
    harness.turn()
    assert (client.holder.bytes, used(harness)) == (0, 0)


def test_waiting_messages_of_a_subscription_are_released_after_its_topic_ended(harness):
    client = harness.consumer("s", Destination(DestinationKind.TOPIC, "p.>"), AckMode.CLIENT, prefetch=1)
    target = Destination(DestinationKind.TOPIC, "p.one")
    for _ in range(3):
        client.send(LARGE, target, persistent=False)
    harness.turn()
    harness.destinations.remove(harness.destinations.topic(target, None))
    harness.turn()
    client.unsubscribe("s").turn()
    assert (client.holder.bytes, used(harness)) == (0, 0)


def test_a_message_that_can_never_have_room_is_refused_and_logged(
    make_harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness = make_harness(memory_limit=20_000)
    client = harness.client().send("x" * 30_000, persistent=False, receipt="r")
    assert client.receipts == []
    assert "30000 bytes" in client.errors[0]
    assert "is larger than the memory" in client.errors[0]
    assert "is larger than the memory" in caplog.text
    assert client.is_connected
    assert harness.engine.flow.blocked() == []
