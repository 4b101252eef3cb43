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


def record(
    number: int, at: int, command: str, destination: str | None = "ActiveMQ.DLQ", **others: Any
) -> dict[str, Any]:
    named = {"destination_type": "queue", "destination": destination, "message_id": f"ID:p:{number}"}
    return {"file": at // 1000, "offset": at % 1000, "command": command, **named, **others}


def letter(number: int, cause: str | None, destination: str = "ActiveMQ.DLQ", **others: Any) -> dict[str, Any]:
    return {
        **record(number, 1000 + 10 * number, "ADD_MESSAGE", destination),
        "original_destination": "queue://orders",
        "properties": {} if cause is None else {CAUSE_PROPERTY: cause},
        **others,
    }


@pytest.fixture
def letters(frame: Callable[..., Any]) -> Any:
    messages = frame(
        "messages",
        letter(1, "Exceeds redelivery policy limit 6, cause: order 4711 of ID:host-61616-17:1"),
        letter(2, "Exceeds redelivery policy limit 6, cause: order 12 of ID:other-61616-9:4"),
        letter(3, "Message has expired", "lost", original_destination="queue://prices"),
        letter(4, None, "DLQ.orders"),
        letter(5, None, "orders.DLQ.not"),
        letter(6, None, "DLQ.removed"),
        letter(7, None, "DLQ.removed", file=2, offset=700),
        letter(8, None, "DLQ.compacted", command="COPY"),
        letter(8, None, "DLQ.compacted", command="COPY", file=2, offset=800),
        letter(9, None, "DLQ.taken_in_a_transaction"),
    )
    kept = ("file", "offset", "command", "destination_type", "destination", "message_id")
    xid = {"transaction": "XID:1"}
    records = frame(
        "records",
        *({name: row[name] for name in kept} for row in messages.collect()),
        record(2, 1500, "REMOVE_MESSAGE"),
        record(2, 2000, "REMOVE_MESSAGE"),
        record(1, 1501, "REMOVE_MESSAGE", "orders"),
        record(0, 2100, "REMOVE_DESTINATION", "DLQ.removed", message_id=None),
        record(9, 2200, "REMOVE_MESSAGE", "DLQ.taken_in_a_transaction", **xid),
        record(4, 2201, "REMOVE_MESSAGE", "DLQ.orders", transaction="XID:2"),
        record(0, 2202, "COMMIT", None, destination_type=None, message_id=None, **xid),
    )
    return dead_letters(messages, records, frame("marks"))


def test_letters_are_known_by_cause_or_queue(letters: Any) -> None:
    found = {row.message_id: (row.dlq, row.is_there) for row in letters.collect()}
    assert found == {
        "ID:p:1": ("ActiveMQ.DLQ", True),
        "ID:p:2": ("ActiveMQ.DLQ", False),
        "ID:p:3": ("lost", True),
        "ID:p:4": ("DLQ.orders", True),
        "ID:p:6": ("DLQ.removed", False),
        "ID:p:7": ("DLQ.removed", True),
        "ID:p:8": ("DLQ.compacted", True),
        "ID:p:9": ("DLQ.taken_in_a_transaction", False),
    }


def test_causes_that_differ_in_numbers_and_ids_are_one(letters: Any) -> None:
    causes = by_cause(letters).collect()
    assert {row.pattern: (row.letters, row.there) for row in causes} == {
        "Exceeds redelivery policy limit N, cause: order N of ID": (2, 1),
        "Message has expired": (1, 1),
        NO_CAUSE: (5, 3),
    }
    assert causes[0].pattern == NO_CAUSE, "the most frequent first"


def test_offenders_are_named(letters: Any) -> None:
    first = by_destination(letters).first()
    assert (first.original_destination, first.dlq, first.letters) == ("queue://orders", "ActiveMQ.DLQ", 2)


def test_the_cause_stands_where_the_broker_writes_it() -> None:
    assert CAUSE_PROPERTY == CAUSE_PROPERTY_OF_THE_BROKER


def test_findings_name_the_most_frequent_cause() -> None:
    assert findings(0, 0, 0, []) == ("There are no dead letters.",)
    assert findings(3, 2, 1, [("expired", 3)])[1] == "The most frequent cause, of 3: expired"
