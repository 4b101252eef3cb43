"""A message to very many subscribers goes out in slices: in order, to who was there, and its sender waits."""

from __future__ import annotations

from typing import Any

import pytest

import broker.fan_out
from store.records.message import Destination, DestinationKind
from tests.engine.conftest import PRICES, Client, House

OTHERS = Destination(DestinationKind.TOPIC, "others")


@pytest.fixture
def house(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(broker.fan_out, "ITEMS", 2)
    return house


def step(house: House) -> None:
    """One turn of the loop."""
    house._soon.popleft()()


def crowd(house: House, count: int = 5) -> list[Client]:
    clients = [house.client() for _ in range(count)]
    for client in clients:
        client.subscribe(destination=PRICES)
    house.turn()
    return clients


def test_all_get_all_in_order_and_who_sent_waits(house: House) -> None:
    clients, sender = crowd(house), house.client()
    for body in "abc":
        sender.send(body, PRICES, persistent=False, receipt=body)
    assert sender.receipts == ["a"], "what follows is not looked at"
    assert not sender.is_reading
    assert [client.bodies for client in clients] == [[]] * 5
    step(house)
    assert [client.bodies for client in clients] == [["a"], ["a"], [], [], []]
    house.turn()
    assert [client.bodies for client in clients] == [["a", "b", "c"]] * 5
    assert sender.receipts == ["a", "b", "c"]
    assert sender.is_reading


def test_others_go_on_meanwhile_in_their_order(house: House) -> None:
    clients, one, other = crowd(house), house.client(), house.client()
    clients[0].subscribe("o", OTHERS)
    one.send("1", PRICES, persistent=False)
    other.send("aside", OTHERS, persistent=False)
    assert clients[0].bodies == ["aside"]
    assert other.is_reading
    other.send("2", PRICES, persistent=False)
    assert not other.is_reading
    house.turn()
    assert [client.bodies for client in clients] == [["aside", "1", "2"]] + [["1", "2"]] * 4


def test_stored_ones_too(house: House) -> None:
    clients, sender = crowd(house), house.client()
    sender.subscribe(destination=PRICES)
    for body in "ab":
        sender.send(body, PRICES, receipt=body)
    house.turn()
    assert [client.bodies for client in (*clients, sender)] == [["a", "b"]] * 6


def test_who_leaves_gets_no_more_and_who_comes_gets_what_is_sent_from_then_on(house: House) -> None:
    clients, sender = crowd(house), house.client()
    sender.send("a", PRICES, persistent=False)
    clients[3].unsubscribe()
    clients[4].vanish()
    late = house.client()
    late.subscribe(destination=PRICES)
    house.turn()
    sender.send("b", PRICES, persistent=False)
    house.turn()
    assert [client.bodies for client in (*clients, late)] == [["a", "b"]] * 3 + [[], []] + [["b"]]


def test_a_sender_who_leaves_is_no_matter(house: House) -> None:
    clients, sender = crowd(house), house.client()
    sender.send("a", PRICES, persistent=False)
    sender.vanish()
    house.turn()
    assert [client.bodies for client in clients] == [["a"]] * 5
    assert not house.engine._fan_out.origins


def test_what_goes_out_has_a_bound(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.fan_out, "WAITING_MAX", 3)
    clients, sender = crowd(house), house.client()
    sender.begin()
    for body in "abcdef":
        sender.send(body, PRICES, persistent=False, transaction="t")
    sender.commit(receipt="r")
    assert clients[0].bodies == ["a", "b", "c"], "nobody had a turn until no more than the bound were left"
    house.turn()
    assert [client.bodies for client in clients] == [list("abcdef")] * 5
    assert sender.receipts == ["r"]


@pytest.mark.contains_errors
def test_a_session_that_fails_ends_alone(house: House) -> None:
    clients, sender = crowd(house), house.client()

    def fail(*_: Any) -> None:
        raise RuntimeError("of this session")

    clients[0].session.deliver = fail  # type: ignore[method-assign]
    sender.send("a", PRICES, persistent=False)
    house.turn()
    assert clients[0].is_closed
    assert [client.bodies for client in clients[1:]] == [["a"]] * 4
    assert sender.is_reading
