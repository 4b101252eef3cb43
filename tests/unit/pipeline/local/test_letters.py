"""Times of dead letters. By DuckDB."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

from tandemmq.pipeline.jobs.dead_letters import CAUSE_PROPERTY, dead_letters
from tandemmq.pipeline.local.session import LocalSession
from tests.support.pipeline.frames import frames_of

START = datetime(2026, 11, 3, 9)
DEAD = {"destination_type": "queue", "destination": "ActiveMQ.DLQ"}
ORDERS = {"destination_type": "queue", "destination": "orders"}


def at(seconds: float) -> datetime:
    return START.replace(tzinfo=UTC) + timedelta(seconds=seconds)


# By store: epoch, command and transaction of the letter, the clock behind it; when it died, and the error in ms.
CASES: dict[str, tuple[int | None, str, str | None, float | None, float | None, int | None]] = {
    "between the marks of this broker": (1, "ADD_MESSAGE", None, 12, 11.0, 1000),
    "nothing stands behind it": (1, "ADD_MESSAGE", None, None, 10.0, None),
    "from one of several stores to another": (1, "ADD_MESSAGE", "XID:[1]", 12, 11.0, 1000),
    "ActiveMQ's shows when its queue took it": (None, "ADD_MESSAGE", None, 12, 1.0, 0),
    "and so in a transaction": (None, "ADD_MESSAGE", "XID:[1]", 12, 1.0, 0),
    "a copy alone": (1, "COPY", None, 12, None, None),
}


def test_a_letter_came_between_the_clocks_around_it(tmp_path: Path) -> None:
    """The letter shows when its message was sent: one second after the start."""
    letters: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for store, (epoch, command, transaction, behind, _, _) in CASES.items():
        letter = {"command": command, "transaction": transaction, "message_id": "m", "broker_in": at(1), **DEAD}
        place = {"store": store, "file": 1, "offset": 400}
        letters.append({**place, **letter, "properties": {CAUSE_PROPERTY: "poison"}})
        beside: dict[str, Any] = {"command": "COMMIT", "transaction": transaction}
        if transaction is None:
            beside = {"command": "REMOVE_MESSAGE", "message_id": "m", **ORDERS}
        written = [
            {"offset": 100, "command": "CLOCK", "broker_in": at(10), "batch": 0},
            {**letter, "batch": 300},
            {**beside, "offset": 500, "batch": 300},
        ]
        if behind is not None:
            written.append({"offset": 900, "command": "CLOCK", "broker_in": at(behind), "batch": 800})
        rows += ({**place, "epoch": epoch, "length": 10, **row} for row in written)
    with LocalSession(tmp_path) as session:
        frame = frames_of(session)
        records = frame("records", *rows)
        found = dead_letters(frame("messages", *letters), records, frame("marks")).collect()
    wanted = {store: (died, error_ms) for store, (*_, died, error_ms) in CASES.items()}
    assert {row.store: (row.died and (row.died - START).total_seconds(), row.died_error_ms) for row in found} == wanted
