"""Lists of existing objects for operators."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import AddProducer
from tandemmq.broker.core.slices import ITEMS, at_once
from tandemmq.broker.engine.branches import Branch
from tandemmq.broker.engine.dispatch import DELIVERY_SECONDS, SAMPLE_SECONDS
from tandemmq.broker.engine.inventory import NAMED_MAX, ROWS_A_STEP, Query
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import XaTransactionId
from tests.unit.broker.engine.conftest import PRICES


def queue(name):
    return Destination(DestinationKind.QUEUE, name)


def names(found):
    return [row["name"] for row in found.rows]


def test_pages_come_in_order_and_are_all_there_is(harness):
    client = harness.client()
    for number in range(25):
        client.send("x", queue(f"q{number:02}"))
    harness.turn()
    harness.fail_over()  # no client has named any of them since
    harness.client().send("x", queue("q07")).turn()
    inventory = harness.engine.inventory
    seen, after = [], ""
    while True:
        found = at_once(inventory.queues(Query(10, after)))
        assert found.total == 25
        seen += names(found)
        if found.following is None:
            break
        after = found.following
    assert seen == [f"q{number:02}" for number in range(25)]
    assert inventory.destination(queue("q07"))["messages"] == 2
    assert inventory.destination(queue("q08"))["messages"] == 1


def test_a_page_of_very_many_is_made_in_steps(harness):
    client = harness.client()
    for number in range(3 * ITEMS):
        client.send("x", queue(f"q{number:04}"), persistent=False)
    work = harness.engine.inventory.queues(Query(5, "q0200"))
    steps, found = 0, None
    while found is None:
        try:
            next(work)
            steps += 1
        except StopIteration as done:
            found = done.value
    assert names(found) == [f"q{number:04}" for number in range(201, 206)]
    assert found.following == "q0205"
    assert steps >= 3


def test_few_rows_are_made_in_a_step(harness):
    client = harness.client()
    for number in range(10 * ROWS_A_STEP):
        client.send("x", queue(f"q{number:04}"), persistent=False)
    assert sum(1 for _ in harness.engine.inventory.queues(Query(10 * ROWS_A_STEP))) >= 10


def test_a_branch_names_a_limited_number_of_destinations(harness):
    inventory = harness.engine.inventory
    many = frozenset(queue(str(number)) for number in range(2 * NAMED_MAX))
    inventory.branches["b"] = Branch(XaTransactionId(1, b"g", b"b"), None, None, True, adds_to=many, removes_from=many)
    (row,) = at_once(inventory.transactions(Query(10))).rows
    assert (len(row["adds_to"]), len(row["removes_from"])) == (NAMED_MAX, NAMED_MAX)


def test_the_place_of_a_durable_subscription_is_its_own_whatever_its_names_contain(harness):
    parts = [("a", "b:c", "T"), ("a", "b", "c:T"), ("a%3Ab", "c", "T"), ("ID:host-1", "d", "T")]
    for client_id, name, topic in parts:
        destination = Destination(DestinationKind.TOPIC, topic)
        harness.consumer("s", destination, client_id=client_id, durable_name=name).turn().vanish()
    seen, after = [], ""
    while True:
        found = at_once(harness.engine.inventory.subscriptions(Query(1, after)))
        seen += [(row["client_id"], row["name"], row["topic"]) for row in found.rows]
        if found.following is None:
            break
        after = found.following
    assert sorted(seen) == sorted(parts)
    (row,) = at_once(harness.engine.inventory.subscriptions(Query(9, pattern="id:host-1:*"))).rows
    assert row["name"] == "d"


def test_a_pattern_chooses_in_any_case(harness):
    client = harness.client()
    for name in ("Orders.eu", "orders.us", "parked"):
        client.send("x", queue(name))
    harness.turn()
    found = at_once(harness.engine.inventory.queues(Query(10, "", "ORDERS.*")))
    assert (names(found), found.total) == (["Orders.eu", "orders.us"], 2)


def test_clients_and_what_they_have_open(harness):
    client = harness.consumer(selector="a = 1", prefetch=1, client_id="me")
    client.handle(AddProducer("p", queue("orders"))).subscribe("t", PRICES)
    client.begin().send("x", transaction="t", properties={"a": 1})
    inventory = harness.engine.inventory
    (connection,) = at_once(inventory.connections(Query(10))).rows
    assert (connection["client_id"], connection["consumers"], connection["transactions"]) == ("me", 2, 1)
    assert [row["destinations"] for row in at_once(inventory.consumers(Query(10))).rows] == [
        ["queue://orders"],
        ["topic://prices"],
    ]
    (consumer,) = at_once(inventory.consumers(Query(10), queue("orders"))).rows
    assert (consumer["selector"], consumer["slow"]) == ("a = 1", None)
    (producer,) = at_once(inventory.producers(Query(10))).rows
    assert producer["destination"] == "queue://orders"
    assert inventory.destination(queue("orders"))["producers"] == 1
    (transaction,) = at_once(inventory.transactions(Query(10))).rows
    assert (transaction["kind"], transaction["sent"]) == ("local", 1)


def test_it_is_told_why_a_consumer_is_slow(harness):
    client = harness.consumer(prefetch=1).store(*"ab")
    (consumer,) = at_once(harness.engine.inventory.consumers(Query(10))).rows
    assert "acknowledges too slowly: 1 " in consumer["slow"]
    client.has_space = False
    client.ack("a").turn()
    (consumer,) = at_once(harness.engine.inventory.consumers(Query(10))).rows
    assert "reads too slowly" in consumer["slow"]


def test_advisory_topics_are_not_among_the_topics(harness):
    client = harness.consumer(destination=Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.Connection"))
    client.subscribe("t", PRICES)
    assert names(at_once(harness.engine.inventory.topics(Query(10)))) == ["prices"]


def test_a_missing_destination_is_an_error(harness):
    with pytest.raises(KeyError):
        harness.engine.inventory.destination(queue("nothing"))


# ---- from stored to delivered


def seconds(harness):
    """Return the number of measurements, and their sum."""
    found = harness.engine.delivery_seconds
    return sum(found.counts), found.sum


def test_a_stored_message_is_measured_once_until_its_first_consumer_has_it(harness):
    client = harness.client().store("one")
    harness.wait(4.0)
    assert (seconds(harness), client.subscribe().turn().bodies) == ((0, 0.0), ["one"])
    assert seconds(harness) == (1, 4.0)
    client.nack("one").turn().send("not stored", persistent=False).turn()
    assert seconds(harness) == (1, 4.0)


def test_one_message_in_a_while_is_a_sample(harness):
    client = harness.consumer()
    for _ in range(3):
        for _ in range(10):
            client.store("x")
        harness.wait(2 * SAMPLE_SECONDS)
    assert seconds(harness)[0] == 3


def test_a_message_without_a_consumer_counts_beyond_the_last_bucket(harness):
    client = harness.client().store("one")
    harness.wait(DELIVERY_SECONDS[-1] + 2.0)
    assert harness.engine.delivery_seconds.counts[-1] == 1
    client.subscribe().turn()
    assert seconds(harness)[0] == 1
