"""What fills the files, and that every byte has its name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")

from pyspark.sql import functions as F

from tandemmq.pipeline.jobs.composition import balance, composition, destinations, findings, shares
from tandemmq.pipeline.table import Table

pytestmark = pytest.mark.service

NINE = datetime(2026, 11, 3, 9, tzinfo=UTC)
TEN = datetime(2026, 11, 3, 10, tzinfo=UTC)


def at(hour: datetime, minute: int) -> datetime:
    return hour.replace(minute=minute)


@pytest.fixture
def journal(frame: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """One file of 1,000 bytes: two adds an hour apart with an audit behind each, two batches, an end, a gap."""
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
    files = frame("files", {"file": 1, "bytes": 1000})
    return records, batches, files


def test_every_byte_of_a_file_has_its_name(journal: tuple[Any, Any, Any]) -> None:
    found = {row.command: (row.records, row.bytes) for row in shares(composition(*journal[:2])).collect()}
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
    [row] = balance(composition(*journal[:2]), journal[2]).collect()
    assert (row.store, row.file, row.bytes, row.accounted, row.difference) == ("a", 1, 1000, 1000, 0)


def test_a_byte_without_a_name_shows_in_the_balance(journal: tuple[Any, Any, Any]) -> None:
    records, batches, files = journal
    [row] = balance(composition(records.where("command <> 'TRACE'"), batches), files).collect()
    assert row.difference == 50


def test_a_file_of_which_nothing_is_known_does_not_balance(frame: Callable[..., Any]) -> None:
    files = frame("files", {"file": 7, "bytes": 10})
    [row] = balance(composition(frame("records"), frame("batches")), files).collect()
    assert (row.accounted, row.difference) == (0, 10)


def test_the_hour_is_that_of_the_message_before_or_of_the_first_one_behind(journal: tuple[Any, Any, Any]) -> None:
    timed = composition(*journal[:2]).where("hour is not null").withColumn("hour", F.date_format("hour", "HH:mm"))
    assert {(row.command, row.hour): row.bytes for row in timed.collect()} == {
        ("TRACE", "09:00"): 50,
        ("ADD_MESSAGE", "09:00"): 100,
        ("PRODUCER_AUDIT", "09:00"): 200,
        ("ADD_MESSAGE", "10:00"): 110,
        ("PRODUCER_AUDIT", "10:00"): 240,
    }


def test_destinations_are_those_of_records_that_have_one(journal: tuple[Any, Any, Any]) -> None:
    [row] = destinations(composition(*journal[:2])).collect()
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
    first, second = findings(by_command, by_destination, 0)
    assert first.startswith("PRODUCER_AUDIT fills the files: 9 records, 100 B, 90.91%")
    assert "orders" in second
    assert "maxFailoverProducersToTrack" in second


def test_messages_that_fill_the_files_are_no_reason_to_speak_of_the_audit() -> None:
    by_command = Table("", (), [("ADD_MESSAGE", 9, 100, 90.0), ("PRODUCER_AUDIT", 1, 10, 9.0)])
    [only] = findings(by_command, Table("", (), []), 0)
    assert only.startswith("ADD_MESSAGE")


def test_an_empty_journal_has_nothing_to_say() -> None:
    assert findings(Table("", (), []), Table("", (), []), 0) == ()
