"""The message lake: every message of every closed file once, whatever happens to files and processes."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import encode_batch
from tandemmq.pipeline import columns
from tandemmq.pipeline.jobs.summary import Summary
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.lake import BY_DATE, LakeError, Layout, committed
from tandemmq.pipeline.rows import rows
from tandemmq.pipeline.stores import journal_files
from tandemmq.store.maintenance.archive import Archive
from tandemmq.store.records.commands import encode_remove
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.pipeline.pipeline_journals import add
from tests.support.store.store_harness import KIB, SMALL, Term

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.service

DAY_MS = 86_400_000
FIRST_DAY_MS = 1_700_006_400_000  # 2023-11-15T00:00:00Z


def keys(paths: list[str], table: str, **asked: int) -> Counter[tuple[int, int]]:
    """(file, offset) of each row in closed files, as the decoder alone finds them."""
    return Counter((row[1], row[2]) for file in journal_files(paths, **asked) for row in rows(file, table))


def in_lake(spark: SparkSession, lake: Path, table: str) -> Counter[tuple[int, int]]:
    """Return the messages that a reader of the directories finds."""
    return Counter((row.file, row.offset) for row in spark.read.parquet(f"{lake}/{table}").collect())


def run(spark: SparkSession, source: Path | Sources, lake: Path, **options: Any) -> Summary:
    from tandemmq.pipeline.jobs import archive

    return archive.run(spark, Sources((str(source),)) if isinstance(source, Path) else source, str(lake), **options)


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*.parquet")}


def write_days(directory: Path, destinations: tuple[str, ...], *, first_file: int = 1) -> None:
    """Two closed files and an open one, as ActiveMQ leaves them: each of two days has a message in each destination."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in range(first_file, first_file + 3):
        payloads = []
        for at, name in enumerate(destinations):
            for day in (0, 1):
                queue = Destination(DestinationKind.QUEUE, name)
                number = file * 1000 + at * 10 + day
                sent = FIRST_DAY_MS + day * DAY_MS + at
                body = f"{name} {number}".encode()
                payloads.append(add(number, body, queue, timestamp=sent, properties={"day": day}))
            payloads.append(encode_remove(queue, f"ID:tests-1:1:1:{file * 1000 + at * 10}"))
        (directory / f"db-{file}.log").write_bytes(bytes(encode_batch(payloads)[0]).ljust(1 << 16, b"\0"))


@pytest.mark.prove
@pytest.mark.proof_only
def test_the_lake_has_what_closed_files_have_and_only_new_ones_are_added(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    """The first file goes to the archive between two runs; the file that was open is closed by then."""
    lake = tmp_path / "lake"
    newest = max(file.file for file in journal_files([str(store)], is_tail_wanted=True))
    hidden = store / f"db-{newest}.log"
    away = tmp_path / hidden.name
    hidden.rename(away)  # so the one before it is open
    first = run(spark, store, lake)
    assert first.is_clean
    assert f"{newest - 2} journal files" in first.findings[0]
    for table in (columns.MESSAGES, columns.ACKS, columns.RECORDS):
        assert in_lake(spark, lake, table) == keys([str(store)], table)
    before = names(lake)

    away.rename(hidden)
    Archive(JournalFiles(str(store)), str(store / "data-archive")).remove([1, 2])
    second = run(spark, store, lake)
    assert "1 journal files" in second.findings[0], "a file that was moved to the archive is the same one"
    for table in (columns.MESSAGES, columns.ACKS, columns.RECORDS):
        assert in_lake(spark, lake, table) == keys([str(store)], table)
    assert before < names(lake)

    unchanged = names(lake)
    with open(store / "db-3.log", "r+b") as written:  # by a master that does not know yet that it was deposed
        written.seek(-1, os.SEEK_END)
        written.write(b"x")
    third = run(spark, Sources((str(store), str(store / "data-archive"))), lake)
    assert third.findings == ("Nothing was new: the lake has every closed file.",)
    assert names(lake) == unchanged

    elsewhere = tmp_path / "copy"
    shutil.copytree(store / "data-archive", elsewhere)
    assert run(spark, elsewhere, lake).findings == third.findings, "a copy of the archive is no second store"
    counted = [commit.rows["messages"] for commit in committed(str(lake)).values()]
    assert sum(counted) == sum(keys([str(store)], columns.MESSAGES).values())


def test_directories_are_dates_and_destinations_whatever_these_are_called(spark: SparkSession, tmp_path: Path) -> None:
    from tandemmq.pipeline.jobs import archive

    called = ("orders", "17", "a/b=c %:*", "größe", "2023-01-01")
    write_days(tmp_path / "store", called)
    lake = tmp_path / "lake"
    run(spark, tmp_path / "store", lake, layout=Layout(raw=True))
    messages = archive.read(spark, str(lake), "messages").collect()
    assert Counter((row.date, row.destination) for row in messages) == Counter(
        {(date(2023, 11, 15 + day), name): 2 for day in (0, 1) for name in called}
    )
    for row in messages:
        number = row.message_id.rpartition(":")[2]
        found = (row.text, row.properties["day"], row.raw is not None)
        assert found == (f"{row.destination} {number}", number[-1], True)
    folders = {path.parent.relative_to(lake / "messages") for path in (lake / "messages").rglob("*.parquet")}
    assert Path("date=2023-11-15/destination=orders") in folders
    assert len(folders) == 2 * len(called)
    assert {path.parent.name for path in (lake / "acks").rglob("*.parquet")} == {"date=2023-11-15"}


def test_a_part_of_the_destinations_by_date_only(spark: SparkSession, tmp_path: Path) -> None:
    write_days(tmp_path / "store", ("orders", "bills", "x" * 240))
    lake = tmp_path / "lake"
    run(spark, tmp_path / "store", lake, layout=Layout(BY_DATE, ("orders", "x" * 240)))
    found = spark.read.parquet(f"{lake}/messages").groupBy("destination").count().collect()
    assert {(row.destination, row["count"]) for row in found} == {("orders", 4), ("x" * 240, 4)}
    with pytest.raises(LakeError, match="was made with"):
        run(spark, tmp_path / "store", lake)
    with pytest.raises(LakeError, match="too long for a directory"):
        run(spark, tmp_path / "store", tmp_path / "other")
    assert not (tmp_path / "other/messages").exists()


def test_files_deleted_before_they_were_archived_are_reported_and_the_rest_is_added(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    from tandemmq.pipeline.jobs.archive import FilesLost

    lake = tmp_path / "lake"
    newest = max(file.file for file in journal_files([str(store)], is_tail_wanted=True))
    later = [store / f"db-{number}.log" for number in (newest - 1, newest)]
    for path in later:
        path.rename(tmp_path / path.name)
    run(spark, store, lake)
    for path in later:
        (tmp_path / path.name).rename(path)
    (store / f"db-{newest - 2}.log").unlink()  # it was open, and is not there any more
    with pytest.raises(FilesLost, match=rf"db-{newest - 2}\.log"):
        run(spark, store, lake)
    assert newest - 1 in {file for file, _ in in_lake(spark, lake, "messages")}
    output = run(spark, store, lake, is_lost_skipped=True)
    assert not output.is_clean
    assert "skipped" in output.findings[-1]
    assert run(spark, store, lake).is_clean, "and asked for no more"


def test_messages_of_successive_masters_are_archived_once(spark: SparkSession, tmp_path: Path) -> None:
    """The first crashes with a file half full; the second fences it off, goes on, and reclaims into its archive."""
    directory, lake = tmp_path / "data", tmp_path / "lake"
    directory.mkdir()
    settings = replace(SMALL, checkpoint_interval=0.05, cleanup_interval=0.0, archive_data_logs=True)
    stored: list[str] = []
    for broker in ("a", "b"):
        term = Term(str(directory), broker, settings)
        for _ in range(8):
            added = term.add_durably(10, body=b"x" * 4 * KIB)
            stored += [operation.message.message_id for operation in added]
            term.take(added)
        run(spark, directory, lake)
        if broker == "a":
            term.crash()
        else:
            term.close()
    run(spark, directory, lake)
    found = [row.message_id for row in spark.read.parquet(f"{lake}/messages").collect()]
    newest = [file for file in journal_files([str(directory)], is_tail_wanted=True) if file.is_current]
    left = [row[6] for file in newest for row in rows(file, columns.MESSAGES)]
    assert Counter(found) + Counter(left) == Counter(stored)
    assert any((directory / "data-archive").iterdir())


def test_damage_is_told_and_a_copy_of_a_store_adds_nothing(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    content = bytearray((store / "db-2.log").read_bytes())
    content[5_000] ^= 1
    (store / "db-2.log").write_bytes(content)
    copy, lake = tmp_path / "copy", tmp_path / "lake"
    shutil.copytree(store, copy)
    found = run(spark, Sources((str(store), str(copy)), first=2, last=3), lake)
    assert not found.is_clean
    assert found.findings[-1].endswith(f"{min(store, copy)}: db-2.log.")
    assert in_lake(spark, lake, "messages") == keys([str(store)], "messages", first=2, last=3)
    (store / "db-1.log").unlink()  # without a request
    assert run(spark, Sources((str(store), str(copy)), first=2, last=3), lake).is_clean
