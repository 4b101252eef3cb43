"""A message to very many subscribers is delivered in slices: in order, to those of that time, and the sender waits."""

from __future__ import annotations

import pytest

import tandemmq.broker.engine.fan_out
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES, Client, Harness

OTHERS = Destination(DestinationKind.TOPIC, "others")


@pytest.fixture
def harness(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setattr(tandemmq.broker.engine.fan_out, "ITEMS", 2)
    return harness


def crowd(harness: Harness, count: int = 5) -> list[Client]:
    return [harness.consumer(destination=PRICES).turn() for _ in range(count)]


def test_all_get_all_in_order_and_who_sent_waits(harness: Harness) -> None:
    clients, sender = crowd(harness), harness.client()
    for body in "abc":
        sender.send(body, PRICES, persistent=False, receipt=body)
    assert sender.receipts == ["a"], "what follows is not looked at"
    assert not sender.is_reading
    assert [client.bodies for client in clients] == [[]] * 5
    harness.turn(1)
    assert [client.bodies for client in clients] == [["a"], ["a"], [], [], []]
    harness.turn()
    assert [client.bodies for client in clients] == [["a", "b", "c"]] * 5
    assert sender.receipts == ["a", "b", "c"]
    assert sender.is_reading


def test_others_go_on_meanwhile_in_their_order(harness: Harness) -> None:
    clients, one, other = crowd(harness), harness.client(), harness.client()
    clients[0].subscribe("o", OTHERS)
    one.send("1", PRICES, persistent=False)
    other.send("aside", OTHERS, persistent=False)
    assert clients[0].bodies == ["aside"]
    assert other.is_reading
    other.send("2", PRICES, persistent=False)
    assert not other.is_reading
    harness.turn()
    assert [client.bodies for client in clients] == [["aside", "1", "2"]] + [["1", "2"]] * 4


def test_a_subscriber_that_leaves_gets_no_more_and_a_new_one_gets_later_messages(harness: Harness) -> None:
    clients, sender = crowd(harness), harness.client()
    sender.send("a", PRICES, persistent=False)
    clients[3].unsubscribe()
    clients[4].vanish()
    late = harness.consumer(destination=PRICES).turn()
    sender.send("b", PRICES, persistent=False).turn()
    assert [client.bodies for client in (*clients, late)] == [["a", "b"]] * 3 + [[], []] + [["b"]]


def test_a_sender_who_leaves_is_no_matter(harness: Harness) -> None:
    clients, sender = crowd(harness), harness.client()
    sender.send("a", PRICES, persistent=False).vanish().turn()
    assert [client.bodies for client in clients] == [["a"]] * 5
    assert not harness.engine._dispatcher.fan_out.origins


def test_the_messages_going_out_are_bounded(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tandemmq.broker.engine.fan_out, "WAITING_MAX", 3)
    clients, sender = crowd(harness), harness.client()
    sender.begin().send_all("abcdef", PRICES, persistent=False, transaction="t").commit(receipt="r")
    assert clients[0].bodies == ["a", "b", "c"], "nobody had a turn until no more than the bound were left"
    harness.turn()
    assert [client.bodies for client in clients] == [list("abcdef")] * 5
    assert sender.receipts == ["r"]
