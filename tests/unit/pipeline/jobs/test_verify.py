"""Damage is found, told from what nobody was promised, and the messages it concerns are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")

from tandemmq.pipeline.jobs.verify import checked, damage, findings, unreadable

pytestmark = pytest.mark.service


@pytest.fixture
def batches(frame: Callable[..., Any]) -> Any:
    return frame(
        "batches",
        {"file": 2, "batch": 0, "length": 300, "records": 2, "status": "unsummed"},
        {"file": 1, "batch": 500, "length": 44, "status": "gap", "detail": "no batch header"},
        {"file": 1, "batch": 0, "length": 400, "records": 3, "status": "ok"},
        {"file": 1, "batch": 400, "length": 100, "records": 1, "status": "bad_sum"},
        {"file": 2, "batch": 300, "length": 70, "status": "torn", "detail": "not finished"},
        {"file": 2, "batch": 370, "length": 630, "status": "padding"},
    )


def test_damage_is_listed_in_its_place_and_a_torn_tail_is_none(batches: Any) -> None:
    found = [(row.file, row.start, row.stop, row.status, row.is_damage) for row in damage(batches).collect()]
    assert found == [
        (1, 400, 500, "bad_sum", True),
        (1, 500, 544, "gap", True),
        (2, 300, 370, "torn", False),
    ]


def test_what_was_checked_is_counted(batches: Any) -> None:
    [row] = checked(batches).collect()
    assert row.asDict() == {
        "store": "a",
        "files": 2,
        "batches": 3,
        "sound": 1,
        "unsummed": 1,
        "damaged": 2,
        "damaged_bytes": 144,
    }


def test_records_that_cannot_be_decoded_are_told(frame: Callable[..., Any]) -> None:
    add = {"file": 1, "command": "ADD_MESSAGE", "destination": "orders"}
    records = frame(
        "records",
        {**add, "offset": 28, "message_id": "ID:a:1", "is_sound": True},
        {"file": 1, "offset": 428, "command": "UNREADABLE", "is_sound": False},
    )
    assert [(row.offset, row.command) for row in unreadable(records).collect()] == [(428, "UNREADABLE")]


def test_findings_speak_of_damage_first() -> None:
    assert findings(3, 0, 0, 0) == ("No damage: 3 batches were checked.",)
    assert findings(3, 1, 2, 144)[0] == "2 places are damaged, 144 B in all."
    assert "no checksum" in findings(3, 1, 2, 144)[1]
