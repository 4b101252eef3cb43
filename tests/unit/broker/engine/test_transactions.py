"""BEGIN, COMMIT, ABORT over sends and acknowledgements."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.memory import HELD_BYTES_MIN
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES

pytestmark = pytest.mark.promise("transaction-is-whole")


def test_nothing_of_a_transaction_is_seen_before_its_commit_is_durable(harness):
    sender, client = harness.client(), harness.consumer()
    sender.begin(receipt="1").send("a", transaction="t", receipt="2")
    sender.send("b", transaction="t", persistent=False).turn()
    assert (sender.receipts, client.bodies) == (["1", "2"], [])
    sender.commit(receipt="3")
    assert sender.receipts == ["1", "2"]
    harness.turn()
    assert (sender.receipts, client.bodies) == (["1", "2", "3"], ["a", "b"])


def test_the_end_of_a_connection_is_an_abort(harness):
    client, other = harness.consumer(), harness.client()
    client.store("a")
    client.begin().ack("a", transaction="t").send("b", transaction="t")
    client.vanish().turn()
    other.subscribe()
    assert other.bodies == ["a"]
    assert other.session.delivered[0].redelivered
    assert harness.counts["memory_transactions_bytes"] == 0


def test_an_abort_undoes_acknowledgements_and_they_can_be_made_again(harness):
    client = harness.consumer(ack=AckMode.CLIENT, prefetch=3).store(*"abcd")
    client.begin().ack("b", transaction="t").abort()
    assert client.bodies == ["a", "b", "c", "d"]
    client.ack("c", receipt="r").turn()
    assert (client.errors, client.bodies, harness.stored()) == ([], ["a", "b", "c", "d"], 1)


@pytest.mark.parametrize("commits", [True, False])
def test_an_acknowledgement_that_waits_for_its_commit_outlives_its_subscription(harness, commits):
    client, other = harness.consumer(), harness.client()
    client.store("a").begin().ack("a", transaction="t")
    client.unsubscribe()
    other.subscribe()
    assert other.bodies == []
    client.commit() if commits else client.abort()
    harness.turn()
    assert other.bodies == ([] if commits else ["a"])
    assert harness.stored() == (0 if commits else 1)


def test_a_commit_passes_over_what_a_deleted_durable_subscription_held(harness):
    client = harness.consumer("s", PRICES, durable_name="d", client_id="me")
    client.store("a", destination=PRICES).begin().ack("a", transaction="t")
    client.unsubscribe("s", durable_name="d").commit(receipt="r").turn()
    assert (client.receipts, harness.counts["memory_stored_bytes"]) == (["r"], 0)


def test_a_transaction_beyond_a_bound_can_only_be_rolled_back(make_harness):
    for limit in ("transaction_operations_max", "transaction_bytes_max", "memory_limit"):
        harness = make_harness(**{limit: 2 if limit == "transaction_operations_max" else HELD_BYTES_MIN})
        client = harness.client().begin()
        for body in "abc":
            client.send(body * (HELD_BYTES_MIN // 2 - 1_000), transaction="t")
        assert limit in client.errors[0]
        client.commit(receipt="r").turn()
        assert "was rolled back" in client.errors[1]
        assert (client.receipts, harness.stored(), harness.counts["memory_transactions_bytes"]) == ([], 0, 0)
        assert not client.is_closed


@pytest.mark.parametrize(("limit", "value"), [("transaction_operations_max", 9), ("transaction_bytes_max", 4_000)])
def test_a_message_to_several_destinations_counts_as_several(make_harness, limit, value):
    harness = make_harness(**{limit: value})
    client = harness.client()
    everywhere = Destination(DestinationKind.QUEUE, ",".join("abcde"))
    client.begin().send("x", everywhere, transaction="t")
    assert client.errors == []
    client.send("y", everywhere, transaction="t")
    assert limit in client.errors[0]
    client.abort().turn()
    assert harness.counts["memory_transactions_bytes"] == 0


@pytest.mark.parametrize("delay", [None, 10])
def test_a_large_message_to_very_many_destinations_is_refused(make_harness, delay):
    harness = make_harness(transaction_bytes_max=10_000)
    client = harness.client()
    everywhere = Destination(DestinationKind.QUEUE, ",".join("abcde"))
    properties = None if delay is None else {"AMQ_SCHEDULED_DELAY": delay}
    client.send("x" * 1_500, everywhere, properties=properties)
    client.send("x" * 2_001, everywhere, properties=properties)
    client.send("x" * 20_000, Destination(DestinationKind.QUEUE, "a"), properties=properties).turn()
    (error,) = client.errors
    assert "to 5 destinations is 10" in error
    assert harness.stored() == (6 if delay is None else 2)


def test_an_acknowledgement_beyond_the_bound_is_undone(make_harness):
    harness = make_harness(transaction_operations_max=1)
    client = harness.consumer(ack=AckMode.CLIENT).store(*"ab")
    client.begin().ack("b", transaction="t")
    assert "transaction_operations_max" in client.errors[0]
    client.abort().ack("b").turn()
    assert harness.stored() == 0


def test_begin_commit_and_abort_need_a_right_name_and_a_nack_has_no_place(harness):
    one, two, three = harness.consumer().store("a"), harness.client(), harness.client()
    one.begin().begin().nack("a", transaction="t")
    two.commit("no").abort("no")
    three.send("a", transaction="no")
    assert one.errors == ["Transaction 't' was begun already", "NACK in a transaction is not possible"]
    assert two.errors == 2 * three.errors == 2 * ["Transaction 'no' has not been started."]
    assert not any(each.is_closed for each in (one, two, three))


def test_what_a_later_acknowledgement_covered_may_be_acknowledged_after_it(harness):
    client = harness.consumer(ack=AckMode.CLIENT).store(*"abc")
    client.begin().ack("b", transaction="t", receipt="b").ack("a", transaction="t", receipt="a")
    assert (client.receipts, client.errors) == (["b", "a"], [])
    client.begin("other").ack("a", transaction="other", receipt="x")
    assert len(client.errors) == 1, "it belongs to the first"
    client.commit("t", receipt="c").turn()
    assert (client.receipts, harness.figures()["messages"]) == (["b", "a", "c"], 1)
