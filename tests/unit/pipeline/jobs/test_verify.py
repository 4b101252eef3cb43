"""Damage is found and distinguished from data that was never confirmed, and the affected messages are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.jobs.verify import checked, damage, findings, unreadable
from tandemmq.store.maintenance.archive import Archive
from tandemmq.store.maintenance.manifest import SUFFIX, decode_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    assert found == [(1, 400, 500, "bad_sum", True), (1, 500, 544, "gap", True), (2, 300, 370, "torn", False)]


def test_checked_batches_are_counted(batches: Any) -> None:
    found = checked(batches)
    [row] = found.collect()
    assert dict(zip(found.columns, row, strict=True)) == {
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


# ---- Archived files are held against their manifests


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.service
def test_files_that_differ_from_their_manifests_are_reported(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """Four files: a flipped bit in a message, a flipped bit after the end, a file that has grown, an unchanged file."""
    from tandemmq.pipeline.jobs import verify

    archive = store / "data-archive"
    Archive(JournalFiles(str(store)), str(archive)).remove([1, 2, 3, 4])
    sound = verify.run(spark, Sources((str(store),)), str(tmp_path / "before"))
    assert sound.is_clean
    assert "4 archived files match their manifests." in sound.findings

    manifest = decode_manifest((archive / f"db-2.log{SUFFIX}").read_bytes())
    assert manifest is not None
    flip(archive / "db-1.log", 5_000)
    flip(archive / "db-2.log", manifest.bytes - 1)
    with open(archive / "db-3.log", "ab") as grown:
        grown.write(b"more")
    found = verify.run(spark, Sources((str(store),)), str(tmp_path / "after"))
    assert not found.is_clean
    assert "2 archived files differ from their manifests." in found.findings
    rows = spark.read.parquet(found.written["manifests"]).collect()
    assert {(Path(row.path).name, row.status, row.is_damage) for row in rows} == {
        ("db-1.log", "changed", True),
        ("db-2.log", "changed_behind_the_end", False),
        (f"db-3.log{SUFFIX}", "mistrusted", True),
        ("db-4.log", "as_handed_over", False),
    }
