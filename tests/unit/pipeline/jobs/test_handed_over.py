"""Archived files are held against their manifests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.store.maintenance.archive import Archive
from tandemmq.store.maintenance.manifest import SUFFIX, decode_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.service


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_what_is_not_as_it_was_handed_over_is_told(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """Of four files one has a flipped bit in a message, one behind its end, one has grown, and one is as it was."""
    from tandemmq.pipeline.jobs import verify

    archive = store / "data-archive"
    Archive(JournalFiles(str(store)), str(archive)).remove([1, 2, 3, 4])
    sound = verify.run(spark, Sources((str(store),)), str(tmp_path / "before"))
    assert sound.is_clean
    assert "4 archived files are what was handed over." in sound.findings

    manifest = decode_manifest((archive / f"db-2.log{SUFFIX}").read_bytes())
    assert manifest is not None
    flip(archive / "db-1.log", 5_000)
    flip(archive / "db-2.log", manifest.bytes - 1)
    with open(archive / "db-3.log", "ab") as grown:
        grown.write(b"more")
    found = verify.run(spark, Sources((str(store),)), str(tmp_path / "after"))
    assert not found.is_clean
    assert "2 archived files are not what was handed over." in found.findings
    rows = spark.read.parquet(found.written["manifests"]).collect()
    assert {(Path(row.path).name, row.status, row.is_damage) for row in rows} == {
        ("db-1.log", "changed", True),
        ("db-2.log", "changed_behind_the_end", False),
        (f"db-3.log{SUFFIX}", "mistrusted", True),
        ("db-4.log", "as_handed_over", False),
    }
