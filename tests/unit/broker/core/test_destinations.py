"""Existing queues, and the events that create one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.destinations import Destinations
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import at_once
from tandemmq.broker.core.statistics import statistics
from tandemmq.store.operations import Owner
from tandemmq.store.records.message import Destination, DestinationKind


def queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


def destinations_of(*owners: Owner, destinations_max: int = 100) -> Destinations:
    ids = itertools.count(100)
    settings = EngineSettings(destinations_max=destinations_max)
    made = Destinations(settings, Memory(1 << 20), lambda destination: next(ids))
    at_once(made.take_over(owners))
    return made


def figures(destinations: Destinations) -> dict[str, Any]:
    return at_once(statistics(destinations, Memory(1 << 20), {}))


def test_a_queue_of_the_store_keeps_its_owner_and_what_it_holds_whether_it_is_named_or_not() -> None:
    destinations = destinations_of(Owner(7, queue("a"), 12), Owner(8, queue("b"), 3))
    found = destinations.queue(queue("a"))
    assert (found.owner, found.count, found.is_paged) == (7, 12, True)
    assert destinations.queue(queue("a")) is found
    assert destinations.by_owner == {7: found}
    named, asleep = figures(destinations)["queues"]
    assert {each["name"]: each["messages"] for each in (named, asleep)} == {"a": 12, "b": 3}
    assert named.keys() == asleep.keys()
    assert figures(destinations)["counts"]["messages"] == 15
    assert [owner.id for owner in destinations.asleep()] == [8]
    assert destinations.dead_letter_queue(queue("b"), None).owner == 8
    assert not destinations.asleep()


def test_queues_that_nobody_named_yet_count_for_the_bound() -> None:
    destinations = destinations_of(Owner(7, queue("a"), 12), Owner(8, queue("b"), 3), destinations_max=2)
    with pytest.raises(ClientError, match="More than 2 destinations"):
        destinations.begin_queue(queue("c"), None)
    assert destinations.queue(queue("b")).count == 3
