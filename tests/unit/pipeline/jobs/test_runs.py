"""Jobs from journal files to the tables, findings and pages that a person gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")

from pyspark.sql import SparkSession

from tandemmq.cli import main
from tandemmq.pipeline.jobs import composition, duplicates, verify
from tandemmq.pipeline.jobs.tables import Sources
from tests.support.pipeline.growing_store import GrowingStore

pytestmark = pytest.mark.service


def rows(table: Any) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_the_audit_of_an_old_activemq_is_named_as_what_fills_the_files(
    spark: SparkSession, audited: Path, tmp_path: Path
) -> None:
    summary = composition.run(spark, Sources((str(audited),), is_tail_wanted=True), str(tmp_path / "out"))
    by_command = {row["command"]: row for row in rows(summary.tables[0])}
    assert "PRODUCER_AUDIT fills the files" in summary.findings[0]
    assert "orders" in summary.findings[1]
    assert by_command["PRODUCER_AUDIT"]["bytes"] > 50 * by_command["ADD_MESSAGE"]["bytes"]
    assert summary.is_clean, "every byte has its name"
    assert sum(row["bytes"] for row in by_command.values()) == sum(path.stat().st_size for path in audited.iterdir())


def test_damage_and_an_unfinished_write_are_part_of_the_balance(
    spark: SparkSession, audited: Path, store: Path, tmp_path: Path
) -> None:
    """Of this broker's store and of ActiveMQ's at once; the file in the middle is hit, the one before it cut off."""
    hit = audited / "db-2.log"
    content = bytearray(hit.read_bytes())
    content[1000:1100] = b"?" * 100
    hit.write_bytes(content)
    cut = audited / "db-1.log"
    cut.write_bytes(cut.read_bytes()[:150_001])
    sources = Sources((str(audited), str(store)), is_tail_wanted=True)
    summary = composition.run(spark, sources, str(tmp_path / "out"))
    assert summary.is_clean, "every byte has its name"
    by_command = {row["command"]: row for row in rows(summary.tables[0])}
    assert by_command["DAMAGED"]["bytes"] > 100
    files = [*audited.glob("db-*.log"), *store.glob("db-*.log")]
    assert sum(row["bytes"] for row in by_command.values()) == sum(path.stat().st_size for path in files)


def test_damage_is_found_where_it_was_done_and_its_messages_are_named(
    spark: SparkSession, audited: Path, tmp_path: Path
) -> None:
    broken = audited / "db-2.log"
    content = bytearray(broken.read_bytes())
    place = content.index(b"ID:tests-1:1:1:") + 1000  # in the body of a message: its batch stays readable
    content[place] ^= 0xFF
    broken.write_bytes(content)
    summary = verify.run(spark, Sources((str(audited),)), str(tmp_path / "out"))
    assert not summary.is_clean
    [damage] = rows(summary.tables[1])
    assert (damage["file"], damage["status"]) == (2, "bad_sum")
    assert damage["start"] < place < damage["stop"]
    [message] = rows(summary.tables[2])
    assert (message["command"], message["destination"]) == ("ADD_MESSAGE", "orders")
    assert message["message_id"].startswith("ID:tests-1:1:1:")


def test_a_message_in_two_files_was_stored_twice(spark: SparkSession, audited: Path, tmp_path: Path) -> None:
    (audited / "db-3.log").write_bytes((audited / "db-1.log").read_bytes())
    summary = duplicates.run(spark, Sources((str(audited),), is_tail_wanted=True), str(tmp_path / "out"))
    assert {"same_id", "same_body"} == {row["kind"] for row in rows(summary.tables[0])}
    assert not summary.is_clean


def test_the_command_prints_and_leaves_a_page(spark: SparkSession, audited: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["pipeline", "dlq", str(audited), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["findings"] == ["There are no dead letters."]
    assert "There are no dead letters." in Path(figures["report"]).read_text()
    assert json.loads((out / "dlq.json").read_text()) == figures
    assert (out / "dead_letters").is_dir()


def test_a_store_whose_only_file_is_open_is_read_and_the_report_says_up_to_where(
    spark: SparkSession, tmp_path: Path
) -> None:
    growing = GrowingStore(tmp_path / "store")
    growing.add(3)
    out = tmp_path / "out"
    command = ["pipeline", "composition", str(growing.directory), "--out", str(out)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    line = f"Read up to {growing.end:,} of db-1.log"
    assert line in done.stdout
    assert line in (out / "composition.html").read_text()
    figures = json.loads((out / "composition.json").read_text())
    store = str(growing.directory)
    assert figures["read"] == [{"store": store, "file": 1, "offset": growing.end, "is_growing": True}]
    growing.close()


def test_all_tables_of_a_job_are_of_the_same_moment(spark: SparkSession, tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "store")
    growing.add(3)
    sources = Sources((str(growing.directory),)).fixed(spark)
    growing.add(2)
    growing.rotate()
    growing.add(1)
    growing.close()
    summary = composition.run(spark, sources, str(tmp_path / "out"))
    assert summary.is_clean
    assert {row["command"]: row["records"] for row in rows(summary.tables[0])}["ADD_MESSAGE"] == 3
