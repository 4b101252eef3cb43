"""Sending to and receiving from queues."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import Ack, AckMode, AddDestination, Connect, ErrorKind, Nack
from tandemmq.broker.core.policies import DestinationPolicy
from tandemmq.store.records.message import Destination, DestinationKind


def test_a_persistent_message_is_told_and_delivered_only_when_durable(harness):
    client = harness.consumer(receipt="sub").send("a", receipt="r")
    assert client.session.events[1:] == [("receipt", "sub")]
    harness.turn()
    assert (client.session.events[2:], harness.stored()) == ([("receipt", "r"), ("message", "a")], 1)


def test_a_mixed_cumulative_acknowledgement_is_told_when_its_stored_part_is_durable(harness):
    client = harness.consumer(ack=AckMode.CLIENT).store("a").send("b", persistent=False).ack("b", receipt="r")
    assert client.receipts == []
    harness.turn()
    assert (client.receipts, harness.stored()) == (["r"], 0)


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize(("verb", "word"), [(Ack, "ACK"), (Nack, "NACK")])
def test_an_unknown_acknowledgement_is_an_error_and_closes_where_errors_are_strict(make_harness, verb, word, is_strict):
    client = make_harness(stomp_strict_errors=is_strict).consumer().handle(verb("s", 7, None, "r"))
    assert client.errors == [f"Unexpected {word} received for delivery 7 of subscription 's'"]
    assert client.session.errors[0].receipt == "r"
    assert client.is_closed is is_strict


def test_the_receipt_of_disconnect_follows_all_others_and_then_the_connection_ends(harness):
    client = harness.client().send("a", receipt="1").disconnect("2").send("b", receipt="3")
    assert client.receipts == []
    harness.turn()
    assert client.receipts == ["1", "2"]
    assert client.is_closed
    assert harness.stored() == 1


def test_non_persistent_messages_over_the_limit_are_refused_by_its_name(make_harness):
    harness = make_harness(DestinationPolicy(producer_flow_control=False), memory_limit=2000)
    client = harness.client().send("x" * 600, persistent=False, receipt="1")
    client.send("x" * 600, persistent=False, receipt="2")
    assert client.receipts == ["1"]
    assert "memory_limit of the broker is 2000 bytes" in client.session.errors[0].detail
    assert not client.is_closed


def test_a_subscription_id_is_used_once(harness):
    client = harness.consumer("s").subscribe("s")
    assert client.errors == ["Subscription 's' exists already"]
    assert client.is_connected


def test_a_client_id_belongs_to_one_connection(harness):
    harness.client("me")
    second = harness.client("me")
    assert second.errors == ["Client id 'me' is connected already from ID:test-1-1:1"]
    assert second.is_closed


def test_a_client_id_may_be_taken_over_where_the_connector_says_so(harness):
    first = harness.client("me")
    second = harness.client().handle(Connect("me", steals_client_id=True)).turn()
    assert first.is_closed
    assert [error.kind for error in first.session.errors] == [ErrorKind.TAKEN_OVER]
    assert first.errors == [f"Client id 'me' connected again from {second.peer}"]
    assert first.is_flushed
    assert second.errors == []
    assert not second.is_closed
    assert harness.client("me").errors != []  # the others still may not


def test_messages_to_a_temporary_queue_are_not_stored(harness):
    client = harness.client().handle(AddDestination(Destination(DestinationKind.TEMP_QUEUE, "t:1")))
    client.send("a", Destination(DestinationKind.TEMP_QUEUE, "t:1"), receipt="r").turn()
    assert (client.receipts, harness.stored(), harness.figures("t:1")["messages"]) == (["r"], 0, 1)
