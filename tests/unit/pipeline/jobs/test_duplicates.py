"""What was stored twice is found, and what only looks so is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")

from tandemmq.pipeline.jobs.duplicates import LOCATIONS_MAX, by_destination, duplicates, findings

pytestmark = pytest.mark.service


def stored(number: int, offset: int, **others: Any) -> dict[str, Any]:
    """The message ``number`` of a producer, in the queue orders, with a body of its own."""
    return {
        "file": 1,
        "offset": offset,
        "command": "ADD_MESSAGE",
        "destination_type": "queue",
        "destination": "orders",
        "message_id": f"ID:p:{number}",
        "producer_id": "ID:p",
        "producer_sequence": number,
        "body": f"body {number}".encode(),
        **others,
    }


def test_each_kind_is_told_apart(frame: Callable[..., Any]) -> None:
    messages = frame(
        "messages",
        stored(1, 100),
        stored(1, 200),
        stored(2, 300),
        stored(2, 400, message_id="ID:q:2", body=b"another"),
        stored(3, 500, body=b"same"),
        stored(4, 600, body=b"same"),
        stored(5, 700),
    )
    found = {row.kind: row for row in duplicates(messages, frame("records")).collect()}
    assert {kind: (row.message_id, row.copies, row.ids) for kind, row in found.items()} == {
        "same_id": ("ID:p:1", 2, 1),
        "same_sequence": ("ID:p:2", 2, 2),
        "same_body": ("ID:p:3", 2, 2),
    }
    assert [(place.file, place.offset) for place in found["same_id"].locations] == [(1, 100), (1, 200)]


def test_what_only_looks_stored_twice_is_not_told(frame: Callable[..., Any]) -> None:
    messages = frame(
        "messages",
        stored(1, 100),
        stored(1, 200, command="COPY"),
        stored(1, 300, command="UPDATE_MESSAGE"),
        stored(1, 400, destination="audit"),
        stored(1, 500, store="b"),
        stored(1, 600, transaction="local:7"),
        stored(2, 700, body=b""),
        stored(3, 800, body=b""),
        stored(4, 900, body=None, producer_sequence=None),
        stored(5, 950, body=None, producer_sequence=None),
    )
    records = frame("records", {"file": 1, "offset": 650, "command": "ROLLBACK", "transaction": "local:7"})
    assert duplicates(messages, records).collect() == []


def test_the_places_of_a_habit_are_bounded(frame: Callable[..., Any]) -> None:
    copies = LOCATIONS_MAX + 10
    messages = frame("messages", *(stored(number, number, body=b"alive") for number in range(copies)))
    found = duplicates(messages, frame("records"))
    [row] = found.collect()
    assert (row.copies, row.ids) == (copies, copies)
    assert [place.offset for place in row.locations] == list(range(LOCATIONS_MAX))
    [counted] = by_destination(found).collect()
    assert (counted.groups, counted.extra, counted.extra_bytes) == (1, copies - 1, (copies - 1) * 5)


def test_findings_say_the_worst_first() -> None:
    assert findings({}) == ("Nothing was stored twice.",)
    first, second = findings({"same_body": (1, 2, 2048), "same_id": (3, 4, 10)})
    assert first.startswith("3 message ids were stored more than once in one destination: 4 more than there should be")
    assert "2.0 KiB" in second
