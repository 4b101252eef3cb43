"""Content of the files: every byte belongs to a category."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tandemmq.broker.engine.dead_letters import CAUSE_PROPERTY as CAUSE_PROPERTY_OF_THE_BROKER
from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs import composition, dead_letters, duplicates, effects
from tandemmq.pipeline.table import Table

# Tests that compute with Spark have mark.service.

NINE = datetime(2026, 11, 3, 9, tzinfo=UTC)
TEN = datetime(2026, 11, 3, 10, tzinfo=UTC)


def at(hour: datetime, minute: int) -> datetime:
    return hour.replace(minute=minute)


@pytest.fixture
def journal(frame: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """Write one file of 1,000 bytes: two adds one hour apart, each followed by an audit, two batches, an end, a gap."""
    orders = {"file": 1, "command": "ADD_MESSAGE", "destination_type": "queue", "destination": "orders"}
    audit = {"file": 1, "command": "PRODUCER_AUDIT"}
    records = frame(
        "records",
        {"file": 1, "offset": 28, "length": 50, "command": "TRACE"},
        {**orders, "offset": 78, "length": 100, "broker_in": at(NINE, 5)},
        {**audit, "offset": 178, "length": 200},
        {**orders, "offset": 406, "length": 110, "broker_in": at(TEN, 59)},
        {**audit, "offset": 516, "length": 240},
    )
    batches = frame(
        "batches",
        {"file": 1, "batch": 0, "length": 378, "records": 3, "status": "ok"},
        {"file": 1, "batch": 378, "length": 378, "records": 2, "status": "ok"},
        {"file": 1, "batch": 756, "length": 44, "status": "gap"},
        {"file": 1, "batch": 800, "length": 5, "status": "end"},
        {"file": 1, "batch": 805, "length": 195, "status": "padding"},
    )
    return records, batches, frame("files", {"file": 1, "bytes": 1000})


def test_every_byte_of_a_file_has_its_name(journal: tuple[Any, Any, Any]) -> None:
    found = {
        row.command: (row.records, row.bytes)
        for row in composition.shares(composition.composition(*journal[:2])).collect()
    }
    assert found == {
        "PRODUCER_AUDIT": (2, 440),
        "ADD_MESSAGE": (2, 210),
        "TRACE": (1, 50),
        "PADDING": (1, 195),
        "BATCH_HEADER": (2, 56),
        "DAMAGED": (1, 44),
        "END_MARK": (1, 5),
    }
    assert list(found)[:3] == ["PRODUCER_AUDIT", "ADD_MESSAGE", "TRACE"], "what was written comes before what was not"
    [row] = composition.balance(composition.composition(*journal[:2]), journal[2]).collect()
    assert (row.store, row.file, row.bytes, row.accounted, row.difference) == ("a", 1, 1000, 1000, 0)


def test_a_byte_without_a_name_shows_in_the_balance(journal: tuple[Any, Any, Any]) -> None:
    records, batches, files = journal
    [row] = composition.balance(composition.composition(records.where("command <> 'TRACE'"), batches), files).collect()
    assert row.difference == 50


def test_a_file_of_which_nothing_is_known_does_not_balance(frame: Callable[..., Any]) -> None:
    files = frame("files", {"file": 7, "bytes": 10})
    [row] = composition.balance(composition.composition(frame("records"), frame("batches")), files).collect()
    assert (row.accounted, row.difference) == (0, 10)


def test_the_hour_is_that_of_the_message_before_or_of_the_first_one_behind(journal: tuple[Any, Any, Any]) -> None:
    timed = (
        composition.composition(*journal[:2])
        .where("hour is not null")
        .withColumn("hour", F.date_format("hour", "HH:mm"))
    )
    assert {(row.command, row.hour): row.bytes for row in timed.collect()} == {
        ("TRACE", "09:00"): 50,
        ("ADD_MESSAGE", "09:00"): 100,
        ("PRODUCER_AUDIT", "09:00"): 200,
        ("ADD_MESSAGE", "10:00"): 110,
        ("PRODUCER_AUDIT", "10:00"): 240,
    }


def test_destinations_are_those_of_records_that_have_one(journal: tuple[Any, Any, Any]) -> None:
    [row] = composition.destinations(composition.composition(*journal[:2])).collect()
    assert (row.destination_type, row.destination, row.records, row.bytes, row.percent) == (
        "queue",
        "orders",
        2,
        210,
        100,
    )


def test_an_audit_that_fills_the_files_is_named_with_what_to_do() -> None:
    by_command = Table(
        "", (), [("PADDING", 1, 900, 89.1), ("PRODUCER_AUDIT", 9, 100, 9.9), ("ADD_MESSAGE", 1, 10, 1.0)]
    )
    by_destination = Table("", (), [("queue", "orders", 1, 10, 100.0)])
    first, second = composition.findings(by_command, by_destination, 0)
    assert first.startswith("PRODUCER_AUDIT fills the files: 9 records, 100 B, 90.91%")
    assert "orders" in second
    assert "maxFailoverProducersToTrack" in second


def test_messages_that_fill_the_files_are_no_reason_to_speak_of_the_audit() -> None:
    by_command = Table("", (), [("ADD_MESSAGE", 9, 100, 90.0), ("PRODUCER_AUDIT", 1, 10, 9.0)])
    [only] = composition.findings(by_command, Table("", (), []), 0)
    assert only.startswith("ADD_MESSAGE")


def test_an_empty_journal_has_nothing_to_say() -> None:
    assert composition.findings(Table("", (), []), Table("", (), []), 0) == ()


# ---- What was stored twice is found, and what only looks so is not


def stored(number: int, offset: int, **others: Any) -> dict[str, Any]:
    """The message ``number`` of a producer, in the queue orders, with a unique body."""
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


OPEN = {"transaction": "local:9"}


def settled(frame: Callable[..., Any], messages: Any = None, *ends: dict[str, Any], marks: Any = None) -> Any:
    """Return the messages that transactions of ``messages`` did not store, with the records that end them."""
    kept = ("store", "file", "offset", "command", "destination_type", "destination", "message_id", "transaction")
    own = [] if messages is None else [{name: getattr(row, name) for name in kept} for row in messages.collect()]
    records = frame("records", *own, *ends)
    return effects.not_stored(effects.operations(records, frame("marks") if marks is None else marks))


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
    found = {row.kind: row for row in duplicates.duplicates(messages, settled(frame)).collect()}
    assert {kind: (row.message_id, row.copies, row.ids) for kind, row in found.items()} == {
        "same_id": ("ID:p:1", 2, 1),
        "same_sequence": ("ID:p:2", 2, 2),
        "same_body": ("ID:p:3", 2, 2),
    }
    assert [(place["file"], place["offset"]) for place in found["same_id"].locations] == [(1, 100), (1, 200)]


def test_different_messages_that_look_alike_are_not_reported(frame: Callable[..., Any]) -> None:
    messages = frame(
        "messages",
        stored(1, 100),
        stored(1, 200, command="COPY"),
        stored(1, 300, command="UPDATE_MESSAGE"),
        stored(1, 400, destination="audit"),
        stored(1, 500, store="b"),
        stored(1, 600, transaction="local:7"),
        stored(6, 660, destination="ActiveMQ.MQTT.Session.c", body=b"{}"),
        stored(7, 670, destination="ActiveMQ.MQTT.Session.c", body=b"{}"),
        stored(2, 700, body=b""),
        stored(3, 800, body=b""),
        stored(4, 900, body=None, producer_sequence=None),
        stored(5, 950, body=None, producer_sequence=None),
    )
    # XID:8 was prepared, and a compaction moved what it had added; then another transaction took the same number.
    xid = {"transaction": "XID:8"}
    messages = messages.unionByName(frame("messages", stored(8, 1000, **xid), stored(8, 100, file=2, **xid)))
    messages = messages.unionByName(frame("messages", stored(8, 300, file=2, **xid), stored(1, 400, file=2, **OPEN)))
    ends = (
        {"file": 1, "offset": 650, "command": "ROLLBACK", "transaction": "local:7"},
        {"file": 2, "offset": 200, "command": "COMMIT", **xid},
        {"file": 2, "offset": 350, "command": "ROLLBACK", **xid},
    )
    moved = frame(
        "marks", {"file": 2, "offset": 100, "command": "ADD_MESSAGE", "moved_from_file": 1, "moved_from_offset": 1000}
    )
    left = settled(frame, messages, *ends, marks=moved)
    assert duplicates.duplicates(messages, left).collect() == []
    assert left.where("is_open").count() == 1


def test_the_places_of_a_habit_are_bounded(frame: Callable[..., Any]) -> None:
    copies = duplicates.LOCATIONS_MAX + 10
    messages = frame("messages", *(stored(number, number, body=b"alive") for number in range(copies)))
    found = duplicates.duplicates(messages, settled(frame))
    [row] = found.collect()
    assert (row.copies, row.ids) == (copies, copies)
    assert [place["offset"] for place in row.locations] == list(range(duplicates.LOCATIONS_MAX))
    [counted] = duplicates.by_destination(found).collect()
    assert (counted.groups, counted.extra, counted.extra_bytes) == (1, copies - 1, (copies - 1) * 5)


def test_findings_say_the_worst_first() -> None:
    assert duplicates.findings({}) == ("Nothing was stored twice.",)
    first, second = duplicates.findings({"same_body": (1, 2, 2048), "same_id": (3, 4, 10)})
    assert first.startswith("3 message ids were stored more than once in one destination: 4 more than expected")
    assert "2.0 KiB" in second


# ---- Dead letters are found by their cause and by their queue, and causes that are alike are one


def record(
    number: int, at: int, command: str, destination: str | None = "ActiveMQ.DLQ", **others: Any
) -> dict[str, Any]:
    named = {"destination_type": "queue", "destination": destination, "message_id": f"ID:p:{number}"}
    return {"file": at // 1000, "offset": at % 1000, "command": command, **named, **others}


def letter(number: int, cause: str | None, destination: str = "ActiveMQ.DLQ", **others: Any) -> dict[str, Any]:
    return {
        **record(number, 1000 + 10 * number, "ADD_MESSAGE", destination),
        "original_destination": "queue://orders",
        "properties": {} if cause is None else {dead_letters.CAUSE_PROPERTY: cause},
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
        letter(10, None, "DLQ.rolled_back", transaction="XID:3"),
    )
    kept = ("file", "offset", "command", "destination_type", "destination", "message_id", "transaction")
    xid = {"transaction": "XID:1"}
    records = frame(
        "records",
        *({name: getattr(row, name) for name in kept} for row in messages.collect()),
        record(2, 1500, "REMOVE_MESSAGE"),
        record(2, 2000, "REMOVE_MESSAGE"),
        record(1, 1501, "REMOVE_MESSAGE", "orders"),
        record(0, 2100, "REMOVE_DESTINATION", "DLQ.removed", message_id=None),
        record(9, 2200, "REMOVE_MESSAGE", "DLQ.taken_in_a_transaction", **xid),
        record(4, 2201, "REMOVE_MESSAGE", "DLQ.orders", transaction="XID:2"),
        record(0, 2203, "ROLLBACK", None, destination_type=None, message_id=None, transaction="XID:3"),
        record(0, 2202, "COMMIT", None, destination_type=None, message_id=None, **xid),
    )
    return dead_letters.dead_letters(messages, records, frame("marks"))


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
    causes = dead_letters.by_cause(letters).collect()
    assert {row.pattern: (row.letters, row.there) for row in causes} == {
        "Exceeds redelivery policy limit N, cause: order N of ID": (2, 1),
        "Message has expired": (1, 1),
        dead_letters.NO_CAUSE: (5, 3),
    }
    assert causes[0].pattern == dead_letters.NO_CAUSE, "the most frequent first"


def test_offenders_are_named(letters: Any) -> None:
    first = dead_letters.by_destination(letters).first()
    assert (first.original_destination, first.dlq, first.letters) == ("queue://orders", "ActiveMQ.DLQ", 2)


def test_the_cause_stands_where_the_broker_writes_it() -> None:
    assert dead_letters.CAUSE_PROPERTY == CAUSE_PROPERTY_OF_THE_BROKER


def test_findings_name_the_most_frequent_cause() -> None:
    assert dead_letters.findings(0, 0, 0, []) == ("There are no dead letters.",)
    assert dead_letters.findings(3, 2, 1, [("expired", 3)])[1] == "The most frequent cause, of 3: expired"
