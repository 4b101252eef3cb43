"""Consumers that grant each delivery, and give deliveries back: Grant and GiveBack; a login before the connect."""

# proves: released-does-not-count, topics-take-deliveries-back
# proves: what-returns-to-an-ended-subscription-is-released

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core import slices
from tandemmq.broker.core.commands import Ack, AckMode, Connect, GiveBack, Grant, LogIn
from tandemmq.broker.core.policies import DestinationPolicy, RedeliveryPolicy
from tests.unit.broker.engine.conftest import DLQ, ORDERS, PRICES, Client, Harness

GRANTED = {"ack": AckMode.RANGE, "prefetch": 0}
MANY, STEP = 40, 4


@pytest.fixture
def reader(harness: Harness) -> Client:
    """A consumer without a grant, beside 5 messages."""
    harness.client("writer").store(*range(5))
    return harness.client("reader").subscribe("s", **GRANTED).turn()


def test_a_grant_is_a_limit_of_deliveries(reader: Client) -> None:
    assert reader.bodies == []
    reader.handle(Grant("s", 2, receipt="g")).turn()
    assert (reader.bodies, reader.receipts) == (["0", "1"], ["g"])
    reader.handle(Ack("s", 2, first=1)).turn()
    assert reader.bodies == ["0", "1"]  # an acknowledgement grants nothing
    reader.handle(Grant("s", 2)).turn()
    assert reader.bodies == ["0", "1"]
    reader.handle(Grant("s", 3)).turn()
    assert reader.bodies == ["0", "1", "2"]
    reader.handle(Grant("s", 1)).turn()  # less than it had
    assert reader.bodies == ["0", "1", "2"]
    assert reader.session.nothings == []


def test_a_grant_holds_when_its_receipt_comes(reader: Client) -> None:
    subscription = reader.client.subscriptions["s"]
    credits: list[int] = []
    reader.session.receipt = lambda receipt: credits.append(subscription.credit)  # type: ignore[method-assign]
    reader.handle(Grant("s", 3, receipt="more")).turn()
    reader.handle(Grant("s", 3, receipt="no more")).turn()
    reader.handle(Grant("unknown", 3, receipt="nothing")).turn()
    assert credits == [3, 0, 0]
    assert reader.bodies == ["0", "1", "2"]


def test_a_grant_waits_for_messages(harness: Harness, reader: Client) -> None:
    reader.handle(Grant("s", 7)).turn()
    harness.client("more").store("a", "b", "c")
    assert reader.bodies == ["0", "1", "2", "3", "4", "a", "b"]


def test_a_drain_ends_the_grant(harness: Harness, reader: Client) -> None:
    reader.handle(Grant("s", 9, is_drain=True)).turn()
    assert (reader.bodies, reader.session.nothings) == (["0", "1", "2", "3", "4"], ["s"])
    assert reader.session.events[-1] == ("nothing", "s")
    harness.client("more").store("late")
    assert len(reader.bodies) == 5


def test_a_drain_that_is_used_up_has_no_end(reader: Client) -> None:
    reader.handle(Grant("s", 5, is_drain=True)).turn()
    assert (len(reader.bodies), reader.session.nothings) == (5, [])


def test_a_drain_waits_for_output(harness: Harness, reader: Client) -> None:
    reader.has_space = False
    reader.handle(Grant("s", 9, is_drain=True))
    harness.turn()
    assert (reader.bodies, reader.session.nothings) == ([], [])
    reader.regain_space()
    harness.wait(10_000)
    assert (len(reader.bodies), reader.session.nothings) == (5, ["s"])


def test_a_later_grant_replaces_a_drain(harness: Harness, reader: Client) -> None:
    reader.has_space = False
    reader.handle(Grant("s", 9, is_drain=True)).handle(Grant("s", 9))
    reader.regain_space()
    harness.wait(10_000)
    assert (len(reader.bodies), reader.session.nothings) == (5, [])


def test_a_drain_of_a_topic_has_what_waits(harness: Harness) -> None:
    reader = harness.client("reader").subscribe("t", PRICES, **GRANTED).turn()
    harness.client("writer").store("a", "b", destination=PRICES)
    assert reader.bodies == []
    reader.handle(Grant("t", 3, is_drain=True)).turn()
    assert (reader.bodies, reader.session.nothings) == (["a", "b"], ["t"])


def test_a_grant_for_no_subscription_is_ignored(reader: Client) -> None:
    reader.handle(Grant("other", 2, receipt="g")).turn()
    assert (reader.receipts, reader.errors) == (["g"], [])


# ---- given back


def test_a_returned_delivery_is_delivered_again_at_its_place(harness: Harness, reader: Client) -> None:
    reader.handle(Grant("s", 3)).turn()
    other = harness.client("other").subscribe("o", **GRANTED).turn()
    reader.handle(GiveBack("s", 1, 2, receipt="b")).turn()
    other.handle(Grant("o", 9)).turn()
    assert other.bodies == ["0", "1", "3", "4"]
    assert [each.redeliveries for each in other.session.delivered] == [0, 0, 0, 0]
    assert reader.receipts == ["b"]


def test_a_refused_delivery_counts_and_becomes_a_dead_letter(make_harness: Callable[..., Harness]) -> None:
    policy = DestinationPolicy(redelivery=RedeliveryPolicy(2))
    harness = make_harness(policy)
    harness.client("writer").store("x")
    reader = harness.client("reader").subscribe("s", **GRANTED).turn()
    for tag in range(1, 4):
        reader.handle(Grant("s", tag)).turn()
        reader.handle(GiveBack("s", tag, tag, is_failed=True, receipt=f"b{tag}")).turn()
    assert [each.redeliveries for each in reader.session.delivered] == [0, 1, 2]
    assert reader.receipts == ["b1", "b2", "b3"]
    reader.handle(Grant("s", 9)).turn()
    assert len(reader.bodies) == 3
    dead = harness.client("dead").subscribe("d", DLQ, AckMode.AUTO).turn()
    assert dead.bodies == ["x"]


def test_a_dead_letter_that_failed_stays_a_dead_letter(harness: Harness) -> None:
    harness.client("writer").store("x", destination=DLQ)
    reader = harness.client("reader").subscribe("s", DLQ, **GRANTED).turn()
    for tag in range(1, 12):
        reader.handle(Grant("s", tag)).turn()
        reader.handle(GiveBack("s", tag, tag, is_failed=True)).turn()
        harness.wait(60_000)
    assert len(reader.bodies) == 11


@pytest.mark.parametrize("is_failed", [True, False])
def test_given_back_to_a_topic_its_subscription_gets_it_again(harness: Harness, is_failed: bool) -> None:
    reader = harness.client("reader").subscribe("t", PRICES, **GRANTED).handle(Grant("t", 3)).turn()
    other = harness.client("other").subscribe("o", PRICES, **GRANTED).turn()
    harness.client("writer").store("a", "b", "c", "d", destination=PRICES)
    reader.handle(GiveBack("t", 1, 2, is_failed=is_failed, receipt="b")).handle(GiveBack("none", 1, 1, receipt="n"))
    assert (reader.turn().bodies, reader.receipts) == (["a", "b", "c"], ["b", "n"])
    reader.handle(Grant("t", 9)).turn()
    other.handle(Grant("o", 9)).turn()
    again = [(each.body, each.redeliveries) for each in reader.session.delivered[3:]]
    assert again == [("a", int(is_failed)), ("b", int(is_failed)), ("d", 0)]
    assert [each.redeliveries for each in other.session.delivered] == [0, 0, 0, 0]
    reader.handle(Ack("t", 6, first=0)).turn()
    other.handle(Ack("o", 4, first=0)).turn()
    assert reader.holder.bytes == other.holder.bytes == 0


def test_given_back_to_a_topic_too_often_it_ends(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness(DestinationPolicy(redelivery=RedeliveryPolicy(2)))
    reader = harness.client("reader").subscribe("t", PRICES, **GRANTED).handle(Grant("t", 9)).turn()
    harness.client("writer").store("a", destination=PRICES)
    for tag in range(1, 4):
        reader.handle(GiveBack("t", tag, tag, is_failed=True, receipt=f"b{tag}")).turn()
    assert [each.redeliveries for each in reader.session.delivered] == [0, 1, 2]
    assert reader.receipts == ["b1", "b2", "b3"]


@pytest.fixture
def holding(harness: Harness) -> Client:
    """A client with MANY unacknowledged deliveries of a topic, where a step has STEP of them."""
    harness.patch.setattr(slices, "ITEMS", STEP)
    reader = harness.client("reader").subscribe("t", PRICES, **GRANTED).handle(Grant("t", MANY)).turn()
    harness.client("writer").store(*["x"] * MANY, destination=PRICES)
    assert len(reader.bodies) == MANY
    return reader


def test_many_deliveries_are_given_back_to_a_topic_in_steps(harness: Harness, holding: Client) -> None:
    held = holding.holder.bytes
    holding.handle(GiveBack("t", 1, MANY, receipt="b"))
    assert harness.most(lambda: holding.holder.bytes) <= held // MANY * STEP
    assert holding.holder.bytes == held, "the same messages wait"
    subscription = holding.client.subscriptions["t"]
    assert subscription.pending_bytes == held
    holding.handle(Grant("t", 2 * MANY)).turn()
    assert len(holding.bodies) == 2 * MANY
    assert subscription.pending_bytes == 0


def test_what_returns_to_a_client_that_left_is_released(harness: Harness, holding: Client) -> None:
    holding.handle(GiveBack("t", 1, MANY))
    harness.step()
    assert holding.holder.bytes > 0
    holding.lose_socket()
    harness.turn()
    assert holding.holder.bytes == harness.engine.memory.used == 0


def test_a_deleted_queue_takes_no_message_back(reader: Client) -> None:
    reader.handle(Grant("s", 2)).turn()
    reader.vanish()
    reader.handle(GiveBack("s", 1, 2, receipt="b")).turn()
    assert reader.errors == []


# ---- a login before the connect


def test_a_client_logs_in_before_it_connects(harness: Harness) -> None:
    client: Any = Client(harness, "one").handle(LogIn("joe", "word", "in")).turn()
    assert (client.receipts, client.is_connected) == (["in"], False)
    client.handle(Connect("me", "joe", is_logged_in=True)).subscribe("s", ORDERS).turn()
    assert client.is_connected
    assert client.client.principal.name == "joe"
    second = Client(harness, "two").handle(LogIn(None, None)).handle(Connect("me", is_logged_in=True)).turn()
    assert "connected already" in second.errors[0]
    assert second.is_closed
