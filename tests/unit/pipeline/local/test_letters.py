"""When a dead letter came. By DuckDB."""

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


def at(seconds: float) -> datetime:
    return START.replace(tzinfo=UTC) + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("epoch", "command", "transaction", "behind", "died", "error_ms"),
    [
        (1, "ADD_MESSAGE", None, 12, 11.0, 1000),  # between the marks of this broker
        (1, "ADD_MESSAGE", None, None, 10.0, None),  # nothing stands behind it
        (1, "ADD_MESSAGE", "XID:[1]", 12, 11.0, 1000),  # from one of several stores to another
        (None, "ADD_MESSAGE", None, 12, 1.0, 0),  # ActiveMQ's shows when its queue took it
        (None, "ADD_MESSAGE", "XID:[1]", 12, 1.0, 0),
        (1, "COPY", None, 12, None, None),
    ],
)
def test_a_letter_came_between_the_clocks_around_it(
    tmp_path: Path,
    epoch: int | None,
    command: str,
    transaction: str | None,
    behind: int | None,
    died: float | None,
    error_ms: int | None,
) -> None:
    """It shows when its message was sent: a second after the start."""
    queue = {"destination_type": "queue", "destination": "orders"}
    where = {"file": 1, "offset": 400, "transaction": transaction, **DEAD}
    letter = {"command": command, "message_id": "m", "broker_in": at(1), **where}
    rows: list[dict[str, Any]] = [
        {"offset": 100, "command": "CLOCK", "broker_in": at(10), "batch": 0},
        {**letter, "batch": 300},
        {"offset": 500, "command": "REMOVE_MESSAGE", "message_id": "m", "batch": 300, **queue},
    ]
    if transaction is not None:
        rows[2:] = [{"offset": 500, "command": "COMMIT", "transaction": transaction, "batch": 300}]
    if behind is not None:
        rows.append({"offset": 900, "command": "CLOCK", "broker_in": at(behind), "batch": 800})
    with LocalSession(tmp_path) as session:
        frame = frames_of(session)
        records = frame("records", *({"file": 1, "epoch": epoch, "length": 10, **row} for row in rows))
        messages = frame("messages", {**letter, "properties": {CAUSE_PROPERTY: "poison"}})
        [found] = dead_letters(messages, records, frame("marks")).collect()
    expected = None if died is None else START + timedelta(seconds=died)
    assert (found.died, found.died_error_ms) == (expected, error_ms)
