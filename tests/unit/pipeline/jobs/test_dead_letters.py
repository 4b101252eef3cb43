"""Dead letters are found by their cause and by their queue, and causes that are alike are one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")

from tandemmq.broker.core.dead_letters import CAUSE_PROPERTY as CAUSE_PROPERTY_OF_THE_BROKER
from tandemmq.pipeline.jobs.dead_letters import (
    CAUSE_PROPERTY,
    NO_CAUSE,
    by_cause,
    by_destination,
    dead_letters,
    findings,
)

pytestmark = pytest.mark.service


def letter(number: int, cause: str | None, **others: Any) -> dict[str, Any]:
    return {
        "file": 1,
        "offset": 100 * number,
        "command": "ADD_MESSAGE",
        "destination_type": "queue",
        "destination": "ActiveMQ.DLQ",
        "original_destination": "queue://orders",
        "message_id": f"ID:p:{number}",
        "properties": {} if cause is None else {CAUSE_PROPERTY: cause},
        **others,
    }


@pytest.fixture
def letters(frame: Callable[..., Any]) -> Any:
    messages = frame(
        "messages",
        letter(1, "Exceeds redelivery policy limit 6, cause: order 4711 of ID:host-61616-17:1"),
        letter(2, "Exceeds redelivery policy limit 6, cause: order 12 of ID:other-61616-9:4"),
        letter(3, "Message has expired", destination="lost", original_destination="queue://prices"),
        letter(4, None, destination="DLQ.orders"),
        letter(5, None, destination="orders.DLQ.not"),
        letter(6, "moved by compaction", command="COPY"),
    )
    acks = frame(
        "acks",
        {"file": 1, "destination_type": "queue", "destination": "ActiveMQ.DLQ", "message_id": "ID:p:2"},
        {"file": 2, "destination_type": "queue", "destination": "ActiveMQ.DLQ", "message_id": "ID:p:2"},
        {"file": 1, "destination_type": "queue", "destination": "orders", "message_id": "ID:p:1"},
    )
    return dead_letters(messages, acks)


def test_letters_are_known_by_cause_or_queue(letters: Any) -> None:
    found = {row.message_id: (row.dlq, row.is_there) for row in letters.collect()}
    assert found == {
        "ID:p:1": ("ActiveMQ.DLQ", True),
        "ID:p:2": ("ActiveMQ.DLQ", False),
        "ID:p:3": ("lost", True),
        "ID:p:4": ("DLQ.orders", True),
    }


def test_causes_that_differ_in_numbers_and_ids_are_one(letters: Any) -> None:
    most, *others = by_cause(letters).collect()
    assert (most.pattern, most.letters, most.there) == (
        "Exceeds redelivery policy limit N, cause: order N of ID",
        2,
        1,
    )
    assert {row.pattern for row in others} == {"Message has expired", NO_CAUSE}


def test_offenders_are_named(letters: Any) -> None:
    first = by_destination(letters).first()
    assert (first.original_destination, first.dlq, first.letters) == ("queue://orders", "ActiveMQ.DLQ", 2)


def test_the_cause_stands_where_the_broker_writes_it() -> None:
    assert CAUSE_PROPERTY == CAUSE_PROPERTY_OF_THE_BROKER


def test_findings_name_the_most_frequent_cause() -> None:
    assert findings(0, 0, 0, []) == ("There are no dead letters.",)
    assert findings(3, 2, 1, [("expired", 3)])[1] == "The most frequent cause, of 3: expired"
