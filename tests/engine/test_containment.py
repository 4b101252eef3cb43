"""What goes wrong with one receiver ends that one: who sent the message, and all others who get it, notice nothing."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.commands import AckMode
from store.records.message import Destination, DestinationKind
from tests.engine.test_stomp import Wire

PRICES = Destination(DestinationKind.TOPIC, "prices")
ORDERS = Destination(DestinationKind.QUEUE, "orders")


def fails(*arguments: Any) -> None:
    raise KeyError("a session has forgotten what it asked for")


@pytest.mark.parametrize("destination", [PRICES, ORDERS], ids=str)
def test_a_session_that_fails_is_hung_up_on_alone(house: Any, destination: Destination) -> None:
    broken, good, sender = house.client(), house.client(), house.client()
    for client in (broken, good):
        client.subscribe(destination=destination, ack=AckMode.AUTO if destination.is_topic else AckMode.INDIVIDUAL)
    broken.session.deliver = fails
    for number in range(4):
        sender.send(str(number), destination, receipt=f"r{number}")
        house.turn()
        if broken.is_closed and broken.client.is_open:
            broken.vanish()  # as the transport tells it
            house.turn()
    assert broken.is_closed
    assert sender.receipts == ["r0", "r1", "r2", "r3"]
    assert sorted(good.bodies) == ["0", "1", "2", "3"]
    house.client()  # and logs in


def test_a_refused_deletion_has_closed_the_subscription_it_named(house: Any) -> None:
    """The session forgets it with that frame: it must get nothing more."""
    wire, other = Wire(house, 1), Wire(house, 2)
    for each in (wire, other):
        each.say(f"CONNECT\naccept-version:1.2\nclient-id:c{id(each)}\n\n")
    wire.say("SUBSCRIBE\nid:1\ndestination:/topic/prices\n\n")
    heard = wire.say("UNSUBSCRIBE\nid:1\ndurable-subscription-name:nope\nreceipt:u\n\n")
    assert heard.startswith("ERROR\n")
    assert "No durable subscription exists" in heard
    assert "RECEIPT" in other.say("SEND\ndestination:/topic/prices\nreceipt:s\n\nnews")
    assert wire.heard() == ""
    third = Wire(house, 3)
    assert third.say("CONNECT\naccept-version:1.2\n\n").startswith("CONNECTED")
