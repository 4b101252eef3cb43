"""A policy that changes the prefetch applies to present consumers whose clients chose no prefetch."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core import slices
from tandemmq.broker.core.commands import AckMode, Pull, SetPrefetch
from tandemmq.broker.core.policies import DestinationPolicy, Policies, PolicyEntry
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import ORDERS, PRICES, Harness


def policies(orders: int = 2, others: int = 3) -> Policies:
    entry = PolicyEntry(DestinationKind.QUEUE, "orders", DestinationPolicy(queue_prefetch=orders))
    return Policies([entry], DestinationPolicy(queue_prefetch=others, topic_prefetch=others, durable_topic_prefetch=2))


@pytest.fixture
def harness(make_harness: Any) -> Harness:
    harness: Harness = make_harness(policies())
    harness.client().store(*range(9))
    return harness


def change(harness: Harness, to: Policies) -> None:
    harness.policies.take_prefetches(to)
    harness.engine.take_prefetches()
    harness.turn()


@pytest.mark.parametrize("asked", [None, 1000])
def test_more_is_given_at_once_and_the_client_is_told(harness: Harness, asked: int | None) -> None:
    client = harness.consumer(prefetch=asked)
    assert client.bodies == ["0", "1"]
    client.session.prefetches.clear()
    change(harness, policies(orders=5))
    assert (client.bodies, client.session.prefetches) == (["0", "1", "2", "3", "4"], [("s", 5)])


def test_with_less_nothing_is_given_before_enough_is_acknowledged(harness: Harness) -> None:
    client = harness.consumer(prefetch=1000)
    change(harness, policies(orders=1))
    client.ack("0").turn()
    assert client.bodies == ["0", "1"]
    client.ack("1").turn()
    assert client.bodies == ["0", "1", "2"]


def test_a_changed_prefetch_switches_between_pulling_and_pushing(harness: Harness) -> None:
    client = harness.consumer(prefetch=1000)
    change(harness, policies(orders=0))
    for body in ("0", "1"):
        client.ack(body)
    harness.turn()
    assert client.bodies == ["0", "1"]
    client.handle(Pull("s", 0)).turn()
    assert client.bodies == ["0", "1", "2"]
    change(harness, policies(orders=3))
    assert client.bodies == ["0", "1", "2", "3", "4"]


def test_a_client_that_cannot_pull_is_not_notified_and_has_a_prefetch_of_at_least_one(harness: Harness) -> None:
    client = harness.client()
    client.session.can_pull = False
    client.subscribe()
    change(harness, policies(orders=0))
    for body in ("0", "1"):
        client.ack(body)
    harness.turn()
    assert (client.bodies, client.session.prefetches) == (["0", "1", "2"], [])


@pytest.mark.parametrize("how", ["at subscribe", "later"])
def test_a_prefetch_that_the_client_chose_stays(harness: Harness, how: str) -> None:
    client = harness.consumer(prefetch=4 if how == "at subscribe" else None)
    if how == "later":
        client.handle(SetPrefetch("s", 4))
    harness.turn()
    change(harness, policies(orders=7))
    assert (client.bodies, client.session.prefetches) == (["0", "1", "2", "3"], [])


def test_an_entry_missing_at_the_start_changes_nothing(harness: Harness) -> None:
    client = harness.consumer()
    change(harness, Policies((), DestinationPolicy(queue_prefetch=9)))
    assert client.bodies == ["0", "1"]
    other = Destination(DestinationKind.QUEUE, "other")
    client.subscribe("o", other)
    assert next(each.prefetch for each in client.client.subscriptions.values() if each.id == "o") == 9


def test_topics_durable_ones_and_browsers_change_as_well(make_harness: Any) -> None:
    harness: Harness = make_harness(policies())
    client = harness.client("c").subscribe("t", PRICES).subscribe("d", PRICES, durable_name="d")
    client.subscribe("b", ORDERS, is_browser=True).turn()
    assert [each.prefetch for each in client.client.subscriptions.values()] == [3, 2, 500]
    harness.client().store(*range(9), destination=PRICES)
    assert [each.subscription for each in client.session.delivered].count("t") == 3
    new = DestinationPolicy(topic_prefetch=5, durable_topic_prefetch=6)
    browsers = PolicyEntry(DestinationKind.QUEUE, "orders", DestinationPolicy(queue_browser_prefetch=7))
    change(harness, Policies([browsers], new))
    assert client.session.prefetches == [("t", 5), ("d", 6), ("b", 7)]
    given = [each.subscription for each in client.session.delivered]
    assert (given.count("t"), given.count("d")) == (5, 6)


def test_very_many_consumers_are_told_in_steps(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "ITEMS", 8)
    client = harness.client()
    for number in range(40):
        client.subscribe(str(number), Destination(DestinationKind.QUEUE, "other"), AckMode.AUTO)
    harness.turn()
    harness.policies.take_prefetches(policies(others=4))
    harness.engine.take_prefetches()
    told = client.session.prefetches
    before = len(told)
    assert 0 < before <= 8
    while harness.works:
        harness.step()
        assert len(told) - before <= 8
        before = len(told)
    assert len(told) == 40
