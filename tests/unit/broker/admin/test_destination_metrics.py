"""Which destinations have metrics of their own, and that their number is bounded."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandemmq.broker.admin.destination_metrics import DestinationMetrics
from tandemmq.broker.core.slices import ITEMS, at_once


def queue(name: str, messages: int = 0) -> dict[str, Any]:
    return {"name": name, "messages": messages, "unacknowledged": 0, "consumers": 1} | dict.fromkeys(
        ("enqueued", "dequeued", "dispatched"), 3
    )


TOPIC = {"name": "A.T", "consumers": 2, "durable_subscriptions": 1, "enqueued": 5, "dispatched": 4, "dropped": 1}
DURABLE = queue("mine", 7) | {"client_id": 'c"1', "topic": "A.T"}
STATUS: dict[str, Any] = {
    "queues": [queue("A.Q", 2), queue("B", 3), queue("A.P", 4)],
    "topics": [TOPIC, TOPIC | {"name": "B.T"}],
    "subscriptions": [DURABLE],
}


def samples(status: dict[str, Any], *patterns: str, most: int = 10) -> dict[tuple[str, ...], float]:
    """By name and labels."""
    text = at_once(DestinationMetrics(patterns, most).text(status)).decode()
    families = list(text_string_to_metric_families(text))
    found = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    assert len(found) == sum(len(family.samples) for family in families), "none twice"
    return found


def test_queues_topics_and_subscriptions_that_match_are_shown() -> None:
    found = samples(STATUS, "A.>")
    assert found["tandemmq_destination_messages", "queue", "A.Q"] == 2
    assert found["tandemmq_destination_messages", "queue", "A.P"] == 4
    assert found["tandemmq_destination_dropped_total", "topic", "A.T"] == 1
    assert found["tandemmq_destination_messages", "subscription", "A.T", 'c"1:mine'] == 7
    assert found["tandemmq_destinations_left_out",] == 0
    assert not any("B" in key or "B.T" in key for key in found)
    assert ("tandemmq_destination_messages", "topic", "A.T") not in found, "a topic keeps none"


def test_beyond_the_bound_they_are_counted() -> None:
    found = samples(STATUS, ">", most=2)
    assert {key[2] for key in found if len(key) > 1} == {"A.Q", "B"}, "those that were known first"
    assert found["tandemmq_destinations_left_out",] == 4


@pytest.mark.parametrize(("status", "patterns"), [(STATUS, ()), ({}, (">",))], ids=["not asked for", "no master"])
def test_nothing_is_shown_where_nothing_is_asked_for_or_known(status: dict[str, Any], patterns: tuple[str]) -> None:
    assert samples(status, *patterns) == {}


def test_very_many_are_told_in_steps() -> None:
    count = ITEMS * 8
    status = {"queues": [queue(str(number)) for number in range(count)], "topics": [], "subscriptions": []}
    steps = DestinationMetrics((">",), count).text(status)
    assert sum(1 for _ in steps) >= 8 * 2
