"""Flow control: producers wait for room, are notified of the reason, and lose nothing; no other client waits with
them."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from tandemmq.broker.core.commands import AckMode, Disconnect, ErrorKind
from tandemmq.broker.core.policies import DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.engine import flow_control as flow
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import ORDERS, PRICES, XA

BILLS = Destination(DestinationKind.QUEUE, "bills")
NARROW = DestinationPolicy(memory_limit=1_000)


def narrow(**fields) -> Policies:
    """queue://orders takes one message that is only in memory, and bills have no limit."""
    return Policies([PolicyEntry(DestinationKind.QUEUE, "orders", replace(NARROW, **fields))])


@pytest.fixture
def full(make_harness):
    """A harness whose memory for orders is full."""
    harness = make_harness(narrow())
    harness.client().send("x" * 500, persistent=False)
    return harness


def blocked(harness) -> list[dict]:
    return harness.engine.flow.blocked()


def consume(harness):
    return harness.consumer("s", ORDERS, AckMode.AUTO)


def test_status_tells_who_waits_for_which_limit_and_since_when(full):
    producer = full.client("me").send("late", receipt="r", persistent=False)
    full.wait(2)
    producer.send("later", receipt="s", persistent=False)
    (told,) = blocked(full)
    assert (told["producer"], told["client_id"], told["peer"]) == (producer.id, "me", producer.peer)
    assert (told["destination"], told["limit"], told["of"]) == ("queue://orders", "memory_limit", "queue://orders")
    assert told["since"] == told["limit_reached_since"] == "1970-01-01T00:00:01.000+00:00"
    assert told["sends"] == 2
    counts = full.counts
    assert (counts["blocked_producers"], counts["sends_waiting"], counts["sends_delayed_total"]) == (1, 2, 2)
    assert counts["sends_waiting_bytes"] == told["bytes"] > 0


def test_a_limited_number_of_those_who_wait_is_named(full):
    for name in "abc":
        full.client(name).send("late", persistent=False).turn()
    assert [each["client_id"] for each in full.engine.flow.blocked(2)] == ["a", "b"]
    assert full.counts["blocked_producers"] == 3


@pytest.mark.parametrize(("interval", "warnings"), [(10_000, 3), (0, 0)])
def test_it_is_warned_of_a_producer_as_often_as_its_policy_says(make_harness, caplog, interval, warnings):
    harness = make_harness(narrow(blocked_producer_warning_interval=interval))
    producer = harness.client().send("x" * 500, persistent=False)
    with caplog.at_level(logging.WARNING, "tandemmq.broker.engine.flow_control"):
        producer.send("late", persistent=False)
        harness.wait(25)
    assert len(caplog.records) == warnings
    assert all("memory_limit of queue://orders" in each.getMessage() for each in caplog.records)
    assert all(producer.id in each.getMessage() for each in caplog.records)


def test_a_command_with_room_continues_on_the_same_connection(full):
    producer = full.client().send("late", receipt="r", persistent=False)
    producer.send("elsewhere", BILLS, receipt="1", persistent=False).send("stored", receipt="2")
    producer.send("to a topic", PRICES, receipt="3", persistent=False)
    producer.subscribe("s", BILLS, receipt="4").turn()
    assert (sorted(producer.receipts), producer.bodies) == (["1", "2", "3", "4"], ["elsewhere"])


def test_a_command_with_room_at_one_limit_waits_at_the_next(make_harness):
    harness = make_harness(NARROW)
    other = Destination(DestinationKind.QUEUE, "other")
    for each in (ORDERS, other):
        harness.client().send("x" * 500, each, persistent=False)
    producer = harness.client()
    producer.send("late", Destination(DestinationKind.QUEUE, "orders,other"), receipt="r", persistent=False)
    assert [each["of"] for each in blocked(harness)] == ["queue://orders"]
    consumer = consume(harness)
    harness.wait(0.2)
    assert [each["of"] for each in blocked(harness)] == ["queue://other"]
    assert producer.receipts == []
    harness.client().subscribe("o", other, AckMode.AUTO)
    harness.wait(0.2)
    assert (producer.receipts, consumer.bodies) == (["r"], ["x" * 500, "late"])


def test_first_come_first_served(full):
    one, two = full.client(), full.client()
    one.send("1", persistent=False)
    two.send("2", persistent=False)
    one.send("3", persistent=False)
    consumer = consume(full)
    two.send("4", persistent=False)
    full.wait(1)
    assert consumer.bodies == ["x" * 500, "1", "2", "3", "4"]


def test_a_consumers_window_leaves_room_for_what_is_only_in_memory(make_harness):
    harness = make_harness(DestinationPolicy(memory_limit=10_000))
    producer = harness.client()
    for number in range(20):
        producer.send("x" * 1000, receipt=str(number))
    harness.turn()
    assert len(producer.receipts) == 20
    assert harness.counts["memory_stored_bytes"] < 10_000
    producer.send("volatile", receipt="v", persistent=False)
    assert "v" in producer.receipts


def test_a_durable_subscription_counts_in_the_memory_of_its_topic(make_harness):
    harness = make_harness(NARROW)
    durable = harness.consumer("s", PRICES, durable_name="d", client_id="me").turn().unsubscribe("s")
    producer = harness.client().send("x" * 500, PRICES, persistent=False, receipt="1")
    producer.send("late", PRICES, persistent=False, receipt="2")
    assert producer.receipts == ["1"]
    durable.subscribe("s", PRICES, AckMode.AUTO, durable_name="d")
    harness.wait(1)
    assert (producer.receipts, durable.bodies) == (["1", "2"], ["x" * 500, "late"])


def test_a_client_that_fills_the_memory_leaves_as_much_to_others(make_harness):
    harness = make_harness(memory_limit=10_000)
    producer, other = harness.client(), harness.client()
    sent = 0
    while not blocked(harness):
        producer.send("x" * 500, BILLS, persistent=False, receipt=f"b{sent}")
        sent += 1
    assert len(producer.receipts) == sent - 1 == 5, "half of it"
    for number in range(2):
        other.send("y" * 500, ORDERS, persistent=False, receipt=f"o{number}")
    assert other.receipts == ["o0", "o1"]
    told = blocked(harness)
    assert [(each["limit"], each["destination"]) for each in told] == [("memory_limit", "queue://bills")]
    assert "use all free memory" in told[0]["reason"]
    consumer = harness.consumer("s", BILLS, AckMode.AUTO)
    harness.wait(1)
    assert len(producer.receipts) == len(consumer.bodies) == sent


# ---- sends that fail


@pytest.mark.parametrize("policy", [{"send_fail_if_no_space": True}, {"producer_flow_control": False}], ids=str)
def test_a_send_that_must_not_wait_fails_with_the_limit(make_harness, policy):
    harness = make_harness(narrow(**policy))
    producer = harness.client().send("x" * 500, persistent=False)
    producer.send("refused", receipt="r", persistent=False)
    (error,) = producer.session.errors
    assert (error.kind, error.receipt, error.is_fatal) == (ErrorKind.RESOURCE, "r", False)
    assert "memory_limit is 1000 bytes" in error.detail
    assert blocked(harness) == []


def test_a_send_fails_that_waited_too_long_with_since_when(make_harness):
    harness = make_harness(narrow(send_fail_if_no_space_after_timeout=3_000))
    producer = harness.client().send("x" * 500, persistent=False).send("late", receipt="r", persistent=False)
    harness.wait(2)
    producer.send("later", receipt="s", persistent=False)
    assert producer.errors == []
    harness.wait(1.5)
    (error,) = producer.session.errors
    assert (error.kind, error.receipt) == (ErrorKind.RESOURCE, "r")
    assert "no room since 1970-01-01T00:00:01.000" in error.message
    consumer = consume(harness)
    harness.wait(0.5)
    assert (producer.receipts, consumer.bodies) == (["s"], ["x" * 500, "later"])


def test_beyond_the_bound_of_all_that_waits_a_send_fails(full, monkeypatch):
    monkeypatch.setattr(flow, "BYTES_MAX_OF_ALL", 1_500)
    producer = full.client()
    for number in range(4):
        producer.send(str(number), receipt=str(number), persistent=False)
    assert (len(producer.errors), full.counts["sends_waiting"]) == (2, 2)


# ---- producers that are not read any more


@pytest.mark.parametrize("size", [1, 1 << 18])
def test_a_producer_that_waits_for_nothing_is_not_read_beyond_a_bound(full, monkeypatch, size):
    """Four sends, or as many bytes as a mebibyte."""
    monkeypatch.setattr(flow, "SENDS_MAX", 4 if size == 1 else 100)
    bodies = [str(number) * size for number in range(4)]
    producer = full.client().send_all(bodies[:3], persistent=False)
    assert producer.is_reading
    producer.send(bodies[3], persistent=False)
    assert not producer.is_reading
    assert not blocked(full)[0]["is_read"]
    consumer = consume(full)
    full.wait(1)
    assert producer.is_reading
    assert consumer.bodies == ["x" * 500, *bodies]


# ---- the end of a connection


def test_a_farewell_waits_behind_what_was_sent_before(full):
    producer = full.client().send("late", persistent=False).handle(Disconnect("bye"))
    full.wait(2)
    assert producer.receipts == []
    consumer = consume(full)
    full.wait(1)
    assert (consumer.bodies, producer.receipts) == (["x" * 500, "late"], ["bye"])
    assert producer.is_closed


def test_a_lost_connection_keeps_unanswered_sends_and_drops_those_sent_again(full):
    producer = full.client().send("kept", persistent=False)
    producer.send("sent again", receipt="r", persistent=False).vanish()
    consumer = consume(full)
    full.wait(1)
    assert consumer.bodies == ["x" * 500, "kept"]
    assert full.counts["sends_waiting"] == full.counts["sends_waiting_bytes"] == 0


def test_with_the_term_ends_what_waits(full):
    full.client().send("never", persistent=False).vanish()
    consumer = consume(full)
    full.engine.end()
    full.wait(5)
    assert (consumer.bodies, blocked(full)) == (["x" * 500], [])
    assert full.later == [], "nobody looks any more"


# ---- a full store


@pytest.fixture
def stuffed(harness):
    """A harness whose store takes nothing, until ``bytes_max`` is put back."""
    harness.client().store("stored")
    harness.store.bytes_max = harness.store.bytes
    yield harness
    harness.store.bytes_max = 1 << 20


def give_space(harness) -> None:
    harness.store.bytes_max = 1 << 20
    harness.wait(1)


def test_a_producer_waits_for_a_full_store_but_not_with_what_needs_none(stuffed):
    producer = stuffed.client().send("late", receipt="r")
    producer.send("volatile", persistent=False, receipt="1").send("nobody keeps it", PRICES, receipt="2")
    stuffed.wait(5)
    assert (producer.receipts, producer.errors, stuffed.stored()) == (["1", "2"], [], 1)
    (told,) = blocked(stuffed)
    assert (told["limit"], told["of"]) == ("store", "the broker")
    assert "bytes_max" in told["reason"]
    give_space(stuffed)
    assert (producer.receipts, stuffed.stored()) == (["1", "2", "r"], 2)


def test_a_transaction_waits_in_order_and_holds_up_no_other(stuffed):
    producer = stuffed.client().begin("t").send("a", transaction="t", receipt="1")
    producer.send("b", transaction="t", receipt="2").commit("t", receipt="3")
    producer.begin("other").send("volatile", transaction="other", persistent=False)
    producer.commit("other", receipt="4").turn()
    assert producer.receipts == ["4"]
    give_space(stuffed)
    assert (producer.receipts, stuffed.stored()) == (["4", "1", "2", "3"], 3)


def test_a_transaction_does_not_overtake_what_its_client_sent_before(stuffed):
    producer = stuffed.client().send("first")
    stuffed.store.bytes_max = 1 << 20  # and no check has run yet
    producer.begin().send("second", transaction="t").commit()
    consumer = stuffed.consumer("s", ORDERS, AckMode.AUTO)
    stuffed.wait(1)
    assert consumer.bodies == ["stored", "first", "second"]


def test_a_prepared_branch_is_committed_though_the_store_is_full(harness):
    client = harness.client().begin_branch().send("a", transaction=XA.key).prepare().turn()
    harness.store.bytes_max = 0
    client.commit_branch().turn()
    assert (client.receipts, client.errors) == (["p", "c"], [])


def test_a_transaction_that_waited_too_long_is_rolled_back(make_harness):
    harness = make_harness(DestinationPolicy(send_fail_if_no_space_after_timeout=2_000))
    producer = harness.client().begin("t").send("a", transaction="t")
    harness.store.bytes_max = 0
    producer.commit("t", receipt="r")
    harness.wait(3)
    (error,) = producer.session.errors
    assert (error.kind, error.receipt) == (ErrorKind.ROLLED_BACK, "r")
    harness.store.bytes_max = 1 << 20
    harness.wait(1)
    assert (producer.receipts, harness.stored(), harness.counts["sends_waiting"]) == ([], 0, 0)
    assert harness.counts["memory_transactions_bytes"] == 0
