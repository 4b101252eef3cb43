"""The next consumer of a client that closed one after few messages gets few at first, and the others soon after."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import AckMode, Pull, SetPrefetch
from tandemmq.broker.engine.subscribe import FIRST_DELIVERIES_MIN, WITHHELD_SECONDS
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import Client, Harness

MESSAGES = 40


@pytest.fixture
def client(harness: Harness) -> Client:
    """A client that took one message, and closed its consumer."""
    harness.client().store(*range(MESSAGES))
    client = harness.consumer(prefetch=1000)
    assert client.bodies == [str(number) for number in range(MESSAGES)], "the first consumer gets all at once"
    client.ack("0").unsubscribe().turn()
    client.session.delivered.clear()
    return client


def bodies(first: int, count: int) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def test_the_next_consumer_gets_few_and_later_the_others_in_their_order(harness: Harness, client: Client) -> None:
    client.subscribe(prefetch=1000).turn()
    for count in (8, 16, 24, 32, MESSAGES - 1):
        assert client.bodies == bodies(1, count)
        harness.wait(WITHHELD_SECONDS)


def test_a_first_delivery_acknowledged_meanwhile_is_replaced(harness: Harness, client: Client) -> None:
    client.subscribe(prefetch=1000).turn()
    client.ack("1").turn()
    assert client.bodies == bodies(1, FIRST_DELIVERIES_MIN + 1)


def test_the_consumer_after_one_that_took_many_gets_twice_as_many(harness: Harness, client: Client) -> None:
    client.subscribe(prefetch=1000).turn()
    for number in range(1, 11):
        client.ack(str(number)).turn()
    client.unsubscribe().turn()
    client.session.delivered.clear()
    client.subscribe(prefetch=1000).turn()
    assert client.bodies == bodies(11, 20)


def test_the_prefetch_is_never_exceeded(harness: Harness, client: Client) -> None:
    client.subscribe(prefetch=FIRST_DELIVERIES_MIN + 2).turn()
    harness.wait(WITHHELD_SECONDS)
    assert client.bodies == bodies(1, FIRST_DELIVERIES_MIN + 2)


def test_a_consumer_that_closed_meanwhile_gets_nothing(harness: Harness, client: Client) -> None:
    client.subscribe(prefetch=1000).turn()
    client.unsubscribe().turn()
    harness.wait(WITHHELD_SECONDS)
    assert client.bodies == bodies(1, FIRST_DELIVERIES_MIN)


@pytest.mark.parametrize("prefetch", [FIRST_DELIVERIES_MIN + 2, 0])
def test_a_prefetch_that_the_client_changes_meanwhile_holds(harness: Harness, client: Client, prefetch: int) -> None:
    client.subscribe(prefetch=1000).turn()
    client.handle(SetPrefetch("s", prefetch)).turn()
    harness.wait(WITHHELD_SECONDS)
    assert client.bodies == bodies(1, prefetch or FIRST_DELIVERIES_MIN)
    if not prefetch:
        client.handle(Pull("s", 0)).turn()
        assert client.bodies == bodies(1, FIRST_DELIVERIES_MIN + 1)


def test_a_consumer_without_acknowledgements_gets_all_at_once(harness: Harness, client: Client) -> None:
    client.subscribe(ack=AckMode.AUTO).turn()
    assert client.bodies == bodies(1, MESSAGES - 1)


def test_another_client_gets_all_at_once(harness: Harness, client: Client) -> None:
    assert harness.consumer(prefetch=1000).bodies == bodies(1, MESSAGES - 1)


def test_only_the_next_consumer_gets_few(harness: Harness, client: Client) -> None:
    client.subscribe("first", prefetch=1000).turn()
    client.subscribe("second", prefetch=1000).turn()
    assert len(client.bodies) == MESSAGES - 1, "the second one gets all others at once"


def test_a_consumer_without_deliveries_does_not_change_the_next_first_delivery(harness: Harness) -> None:
    client = harness.consumer(prefetch=1000)
    client.unsubscribe().turn()
    harness.client().store(*range(MESSAGES))
    client.subscribe(prefetch=1000).turn()
    assert client.bodies == bodies(0, MESSAGES)


def test_a_consumer_of_several_queues_gets_all_at_once(harness: Harness, client: Client) -> None:
    """The rule also applies if the consumer has only one queue when it begins."""
    client.subscribe(destination=Destination(DestinationKind.QUEUE, ">"), prefetch=1000).turn()
    assert client.bodies == bodies(1, MESSAGES - 1)
