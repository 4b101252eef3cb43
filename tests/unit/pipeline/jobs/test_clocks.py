"""Each record is between a clock before it and a clock after it, also across files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs.clocks import clocked

# Tests that compute with Spark have mark.service.

START = 1_700_000_000


def row(file: int, offset: int, command: str, second: int | None = None, **others: Any) -> dict[str, Any]:
    time = None if second is None else datetime.fromtimestamp(START + second, UTC)
    return {"file": file, "offset": offset, "command": command, "broker_in": time, **others}


def bounds(records: Any) -> dict[tuple[str, int, int], tuple[int | None, int | None]]:
    """Seconds behind START, by place."""
    found = clocked(records).select(
        "store", "file", "offset", *(F.unix_seconds(name).alias(name) for name in ("clock_lo", "clock_hi"))
    )
    return {
        (row.store, row.file, row.offset): tuple(  # type: ignore[misc]
            None if second is None else second - START for second in (row.clock_lo, row.clock_hi)
        )
        for row in found.collect()
    }


def test_times_are_carried_over_the_borders_of_files_and_not_of_stores(frame: Callable[..., Any]) -> None:
    records = frame(
        "records",
        row(1, 10, "REMOVE_MESSAGE"),
        row(1, 20, "ADD_MESSAGE", 5),
        row(1, 30, "REMOVE_MESSAGE"),
        row(2, 10, "REMOVE_MESSAGE"),  # a file without a time
        row(4, 10, "REMOVE_MESSAGE"),
        row(4, 20, "CLOCK", 9),
        row(4, 30, "REMOVE_MESSAGE"),
        row(2, 10, "REMOVE_MESSAGE", store="b"),
    )

    assert bounds(records) == {
        ("a", 1, 10): (None, 5),
        ("a", 1, 20): (5, 9),
        ("a", 1, 30): (5, 9),
        ("a", 2, 10): (5, 9),
        ("a", 4, 10): (5, 9),
        ("a", 4, 20): (9, None),
        ("a", 4, 30): (9, None),
        ("b", 2, 10): (None, None),
    }


def test_a_time_long_before_the_write_bounds_no_clock(frame: Callable[..., Any]) -> None:
    records = frame(
        "records",
        row(1, 10, "CLOCK", 10),
        row(1, 20, "REMOVE_MESSAGE"),
        row(1, 30, "COPY", 1),
        row(1, 40, "ADD_MESSAGE", 11, transaction="TX:1"),
        row(1, 50, "ADD_MESSAGE", 8),
        row(1, 60, "CLOCK", 12),
        row(2, 10, "ADD_MESSAGE", 11, transaction="TX:2"),
        row(2, 20, "CLOCK", 15),
    )

    found = bounds(records)

    assert found["a", 1, 20] == (10, 12)
    assert found["a", 1, 40] == (11, 12), "what the message of a transaction shows is past"
    assert (found["a", 1, 50], found["a", 1, 60]) == ((11, 12), (12, 15))
    assert found["a", 2, 10] == (12, 15)


def test_time_stands_still_while_a_later_master_s_clock_catches_up(frame: Callable[..., Any]) -> None:
    records = frame(
        "records",
        row(1, 10, "CLOCK", 20),
        row(2, 10, "CLOCK", 15),
        row(2, 20, "REMOVE_MESSAGE"),
        row(2, 30, "CLOCK", 19),
        row(3, 10, "CLOCK", 25),
    )

    assert bounds(records) == {
        ("a", 1, 10): (20, 20),
        ("a", 2, 10): (20, 20),
        ("a", 2, 20): (20, 20),
        ("a", 2, 30): (20, 25),
        ("a", 3, 10): (25, None),
    }
