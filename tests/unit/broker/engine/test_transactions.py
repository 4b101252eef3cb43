"""BEGIN, COMMIT, ABORT over sends and acknowledgements."""

# proves: enlisted-is-held, kept-copy-dooms

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import Ack, AckMode, AckOfNothing, GiveUp, Move, Nack, ProtocolFailure, Send, refusal
from tandemmq.broker.core.memory import HELD_BYTES_MIN
from tandemmq.broker.core.slices import at_once
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES

pytestmark = pytest.mark.promise("transaction-is-whole")


PRIVATE = Destination(DestinationKind.QUEUE, "ActiveMQ.MQTT.Session.x")
PRICES_QUEUE = Destination(DestinationKind.QUEUE, "prices")


def test_no_part_of_a_transaction_is_visible_before_its_commit_is_durable(harness):
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
    doomed = "Transaction 't' can only be aborted: NACK in a transaction is not possible"
    assert one.errors == ["Transaction 't' has already begun", doomed]
    assert two.errors == 2 * three.errors == 2 * ["Transaction 'no' has not been started."]
    assert not any(each.is_closed for each in (one, two, three))


def _acknowledged(harness, client):
    client.ack("a")


def _refused(harness, client):
    client.nack("a")


def _given_up(harness, client):
    client.handle(GiveUp("s", 1, 1, "poison"))


def _expired(harness, client):
    harness.now += 10_000
    client.handle(GiveUp("s", 1, 1, "late", is_expired=True))


def _moved(harness, client):
    client.handle(Move("s", 1, client.message("a", PRICES)))


def _of_another_transaction(harness, client):
    client.begin("other")
    client.ack("a", transaction="other")


def _closed(harness, client):
    client.unsubscribe()


def _in_mode_auto(harness, client):
    client.unsubscribe()
    client.subscribe(ack=AckMode.AUTO)


LEFT = [_acknowledged, _refused, _given_up, _expired, _moved, _of_another_transaction, _closed, _in_mode_auto]


@pytest.mark.parametrize("mode", [AckMode.CLIENT, AckMode.INDIVIDUAL, AckMode.RANGE])
@pytest.mark.parametrize("leave", LEFT, ids=lambda function: function.__name__[1:])
def test_a_transaction_that_acknowledges_a_missing_delivery_can_only_be_rolled_back(harness, mode, leave):
    client = harness.consumer(ack=mode)
    client.store("a", expiration=5_000)
    client.store("b")
    client.begin()
    client.send("c", PRICES_QUEUE, transaction="t")
    leave(harness, client)
    harness.turn()
    before = harness.counts["acknowledgements_unmatched_total"]

    client.handle(Ack("s", 1, "t", "r", first=1, count=1))
    client.commit(receipt="c")
    harness.turn()

    assert harness.counts["acknowledgements_unmatched_total"] == before + 1
    assert "can only be aborted" in client.errors[-2]
    assert "was rolled back" in client.errors[-1]
    assert client.receipts == []
    assert not client.is_closed
    assert "prices" not in {each["name"] for each in at_once(harness.engine.statistics())["queues"]}


def test_a_range_counts_what_its_transaction_acknowledged_before(harness):
    client = harness.consumer(ack=AckMode.RANGE)
    client.store(*"abc")
    client.begin()
    client.handle(Ack("s", 1, "t", "1", first=1, count=1))
    client.handle(Ack("s", 3, "t", "2", first=1, count=3))
    client.commit(receipt="c")
    harness.turn()
    assert (client.receipts, client.errors, harness.stored()) == (["1", "2", "c"], [], 0)


def test_a_message_lost_by_a_plain_topic_subscription_dooms_no_transaction(harness):
    client = harness.client()
    client.subscribe("s", PRICES, AckMode.RANGE)
    client.begin()
    client.handle(Ack("s", 7, "t", "1", first=7))
    client.commit(receipt="c")
    assert (client.receipts, client.errors) == (["1", "c"], [])


def test_a_receipt_answers_what_acknowledges_nothing_outside_of_a_transaction(harness):
    client = harness.consumer(ack=AckMode.RANGE)
    client.handle(Ack("s", 7, None, "1", first=7))
    client.handle(AckOfNothing(refusal("gone"), None, "2"))
    client.handle(GiveUp("s", 7, 7, "poison", receipt="3"))
    assert (client.receipts, client.errors) == (["1", "2", "3"], [])
    assert harness.counts["acknowledgements_unmatched_total"] == 3


def test_a_refusal_in_a_transaction_dooms_it(harness):
    client = harness.consumer()
    client.store("a")
    for refused in (
        Nack("s", 1, "t"),
        AckOfNothing(refusal("not here"), "t"),
        ProtocolFailure(refusal("not here"), "t"),
        Send(client.message("x", reply_to=PRIVATE), "t"),
        Send(client.message("x", PRIVATE), "t"),
    ):
        client.begin()
        client.handle(refused)
        client.commit(receipt="c")
        assert "was rolled back" in client.errors[-1]
    assert len(client.errors) == 10
    assert client.receipts == []
    assert not client.is_closed


def test_a_delivery_covered_by_a_later_acknowledgement_may_be_acknowledged_after_it(harness):
    client = harness.consumer(ack=AckMode.CLIENT).store(*"abc")
    client.begin().ack("b", transaction="t", receipt="b").ack("a", transaction="t", receipt="a")
    assert (client.receipts, client.errors) == (["b", "a"], [])
    client.begin("other").ack("a", transaction="other", receipt="x")
    assert len(client.errors) == 1, "it belongs to the first"
    client.commit("t", receipt="c").turn()
    assert (client.receipts, harness.figures()["messages"]) == (["b", "a", "c"], 1)
