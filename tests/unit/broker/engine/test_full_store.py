"""A store in memory that is full, and producers that do not wait (send_fail_if_no_space)."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.policies import DestinationPolicy
from tests.unit.broker.engine.conftest import DLQ, PRICES


@pytest.fixture
def harness(make_harness):
    made = make_harness(DestinationPolicy(send_fail_if_no_space=True))
    yield made
    made.turn()


@pytest.fixture
def full(harness):
    """A harness whose store holds one message and is full. The message is delivered to the client."""
    client = harness.consumer().store("stored")
    harness.store.bytes_max = harness.store.bytes
    assert harness.store.is_full
    return harness, client


def refused(harness) -> int:
    return harness.counts["sends_refused_store_full_total"]


def test_a_refused_producer_gets_the_reason_and_the_advice_and_sends_when_there_is_room(full):
    harness, client = full
    client.send("refused", receipt="r")
    error = client.session.errors[0]
    assert "bytes_max" in error.message
    assert "Nothing was stored. Send it later" in error.detail
    assert (error.receipt, error.is_fatal, client.is_closed) == ("r", False, False)
    assert (client.receipts, refused(harness)) == ([], 1)
    client.ack("stored").turn().send("taken", receipt="s").turn()
    assert client.receipts == ["s"]


def test_a_send_in_a_transaction_dooms_it(full):
    harness, client = full
    client.begin().send("refused", transaction="t")
    assert "can only be aborted: the store in memory holds bytes_max" in client.errors[0]
    assert refused(harness) == 1
    client.ack("stored", transaction="t").commit().turn()
    assert "rolled back: the store in memory holds bytes_max" in client.errors[1]
    assert harness.stored() == 1, "its acknowledgement was rolled back with it"
    assert not client.is_closed
    client.ack("stored").turn()
    assert harness.stored() == 0


def test_a_transaction_that_was_open_before_is_rolled_back_at_commit_if_it_stores(full):
    harness, client = full
    bytes_max, harness.store.bytes_max = harness.store.bytes_max, 1 << 20
    client.begin().send("later refused", transaction="t").ack("stored", transaction="t")
    harness.store.bytes_max = bytes_max
    client.commit(receipt="r").turn()
    assert "Transaction 't' was rolled back: the store in memory" in client.errors[0]
    assert (client.receipts, harness.stored(), refused(harness)) == ([], 1, 1)


def test_a_transaction_that_only_acknowledges_is_committed(full):
    harness, client = full
    client.begin().ack("stored", transaction="t").commit(receipt="r").turn()
    assert (client.receipts, harness.stored()) == (["r"], 0)


def test_messages_that_are_not_stored_are_accepted_in_transactions_too(full):
    _, client = full
    client.send("volatile", persistent=False).send("nobody keeps it", PRICES)
    client.begin().send("volatile too", transaction="t", persistent=False)
    client.send("nobody keeps it either", PRICES, transaction="t").commit(receipt="r").turn()
    assert (client.errors, client.receipts) == ([], ["r"])
    assert client.bodies == ["stored", "volatile", "volatile too"]


def test_dead_letters_go_on(full):
    harness, client = full
    client.nack("stored", receipt="r").turn()
    assert (client.receipts, harness.figures(DLQ.name)["messages"]) == (["r"], 1)


def test_a_durable_subscription_ends_and_gives_its_room_back(full):
    harness, client = full
    harness.store.bytes_max = 1 << 20
    durable = harness.consumer("d", PRICES, durable_name="n", client_id="c").unsubscribe("d")
    client.store("kept", destination=PRICES)
    harness.store.bytes_max = harness.store.bytes
    client.send("refused", PRICES)
    assert len(client.errors) == 1
    durable.unsubscribe(None, durable_name="n", receipt="r").turn()
    assert durable.receipts == ["r"]
    assert not harness.store.is_full
