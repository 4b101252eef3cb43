"""A resent message gets its receipt again, and is delivered to no consumer twice."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import AckMode, Send
from tandemmq.broker.core.policies import DestinationPolicy
from tandemmq.store.records.message import Destination, Message
from tests.unit.broker.engine.conftest import ORDERS, PRICES

pytestmark = pytest.mark.promise("sent-again-stored-once")


def numbered(number: int, body: str, destination: Destination = ORDERS, *, made_by_broker: bool = False) -> Message:
    session = -1 if made_by_broker else 1
    return Message(destination, f"ID:loader:{session}:1:{number}", body.encode(), persistent=True)


def test_a_message_sent_again_after_a_failover_is_stored_once(harness):
    client = harness.client()
    for number in (1, 2, 3):
        client.handle(Send(numbered(number, f"m{number}"), None, f"r{number}"))
    harness.fail_over()
    client = harness.consumer(ack=AckMode.INDIVIDUAL)
    for number in (2, 3, 4):
        client.handle(Send(numbered(number, f"m{number}"), None, f"r{number}"))
    harness.turn()
    assert (client.receipts, client.bodies) == (["r2", "r3", "r4"], ["m1", "m2", "m3", "m4"])
    assert (harness.stored(), harness.counts["duplicates_total"]) == (4, 2)


def test_two_copies_in_one_turn_are_one_message_and_none_comes_back_once_it_was_acknowledged(harness):
    client = harness.consumer()
    client.handle(Send(numbered(1, "m"), None, "first")).handle(Send(numbered(1, "m"), None, "second")).turn()
    assert (client.receipts, client.bodies, harness.stored()) == (["first", "second"], ["m"], 1)
    client.ack("m").handle(Send(numbered(1, "m"), None, "again")).turn()
    assert (client.receipts[2:], client.bodies, harness.stored()) == (["again"], ["m"], 0)


def test_a_message_that_was_refused_may_come_again(make_harness):
    harness = make_harness(DestinationPolicy(send_fail_if_no_space=True))
    client = harness.client()
    harness.store.bytes_max = 10
    client.handle(Send(numbered(1, "m"), None, "refused"))
    harness.store.bytes_max = 1 << 20
    client.handle(Send(numbered(1, "m"), None, "taken")).turn()
    assert (client.receipts, len(client.errors), harness.stored()) == (["taken"], 1, 1)


def test_a_commit_that_is_sent_again_stores_nothing_twice(harness):
    for receipt in ("first", "again"):
        client = harness.client().begin()
        for number in (1, 2):
            client.handle(Send(numbered(number, f"m{number}"), "t"))
        client.commit(receipt=receipt).turn()
        assert (client.receipts, harness.stored()) == ([receipt], 2)
        harness.fail_over()
    client = harness.consumer().turn()
    assert client.bodies == ["m1", "m2"]


def test_a_commit_takes_what_is_new_in_it_message_by_message(harness):
    client = harness.consumer(ack=AckMode.INDIVIDUAL).handle(Send(numbered(2, "two")))
    client.begin()
    for number, body in ((1, "one"), (2, "two"), (3, "three")):
        client.handle(Send(numbered(number, body), "t"))
    client.commit(receipt="r").turn()
    assert client.bodies == ["two", "one", "three"]
    assert (client.receipts, harness.counts["duplicates_total"]) == (["r"], 1)


def test_a_transaction_that_was_rolled_back_may_be_sent_again(harness):
    client = harness.client()
    for verb in (client.abort, client.commit):
        client.begin().handle(Send(numbered(1, "m"), "t"))
        verb()
    harness.turn()
    assert (harness.stored(), harness.counts["duplicates_total"]) == (1, 0)


def test_subscribers_of_a_topic_get_a_stored_message_once(harness):
    durable = harness.consumer("d", PRICES, durable_name="n", client_id="c")
    plain, sender = harness.consumer("p", PRICES, AckMode.AUTO), harness.client()
    harness.turn()
    for receipt in ("first", "again"):
        sender.handle(Send(numbered(1, "m", PRICES), None, receipt)).turn()
    assert durable.bodies == plain.bodies == ["m"]
    assert sender.receipts == ["first", "again"]


def test_ids_that_the_broker_made_are_not_compared(harness):
    """Such ids are never made again; if they were audited, they would push out the producers that number their
    messages."""
    client = harness.client()
    for _ in range(2):
        client.handle(Send(numbered(1, "m", made_by_broker=True)))
    harness.turn()
    assert harness.stored() == 2
