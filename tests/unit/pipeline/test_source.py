"""The data source through a real Spark."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tandemmq.pipeline import columns, session
from tandemmq.pipeline.rows import rows
from tandemmq.pipeline.session import NoSpark
from tandemmq.pipeline.stores import journal_files
from tandemmq.pipeline.walk import JournalFile
from tests.support.pipeline.pipeline_journals import add, write_foreign, write_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

service = pytest.mark.service


def load(spark: SparkSession, *paths: Path, **options: str) -> DataFrame:
    return spark.read.format("tandemmq").options(**options).load([str(path) for path in paths])


@service
@pytest.mark.parametrize("table", columns.TABLES)
def test_a_table_has_the_rows_of_its_files(spark: SparkSession, store: Path, table: str) -> None:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.testing import assertDataFrameEqual

    from tandemmq.pipeline.blocks import array

    schema = columns.arrow_schema(table)
    for follow in ("closed", "tail"):
        found = load(spark, store, table=table, follow=follow)
        assert to_arrow_schema(found.schema, timezone="UTC") == schema
        files = journal_files([str(store)], is_tail_wanted=follow == "tail")
        one_by_one = [row for file in files for row in rows(file, table)]
        assert one_by_one
        arrays = [array([row[i] for row in one_by_one], field.type) for i, field in enumerate(schema)]
        assertDataFrameEqual(found, spark.createDataFrame(pa.table(arrays, schema)))


@service
def test_messages_come_with_their_bodies_and_times(spark: SparkSession, tmp_path: Path) -> None:
    write_foreign(tmp_path / "db-1.log", [[add(1, b"hello", properties={"a": 1})]])
    write_foreign(tmp_path / "db-2.log", [[add(2)]])
    (row,) = (
        load(spark, tmp_path, table="messages", payload="true", follow="closed")
        .selectExpr("text", "body", "properties", "raw is not null as has_raw", "cast(sent as string) as sent")
        .collect()
    )
    assert row.asDict() == {
        "text": "hello",
        "body": b"hello",
        "properties": {"a": "1"},
        "has_raw": True,
        "sent": "2023-11-14 22:13:20.001",
    }


@service
def test_a_part_of_the_columns_may_be_asked_for(spark: SparkSession, store: Path) -> None:
    found = spark.read.format("tandemmq").schema("command STRING, file INT").load(str(store))
    assert found.columns == ["command", "file"]
    commands = {row.command for row in found.filter("file = 2").collect()}
    assert commands == {"HEADER", "ADD_MESSAGE", "REMOVE_MESSAGE"}
    with pytest.raises(Exception, match="records has no column command of type int"):
        spark.read.format("tandemmq").schema("command INT").load(str(store)).collect()


@service
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tabel": "files"}, "unknown options: tabel; there are: .*table"),
        ({"table": "rows"}, "table is one of records, messages"),
        ({"follow": "live"}, "follow is one of closed, tail, not 'live'"),
        ({"fromFile": "-1"}, "fromFile is the number of a journal file"),
        ({"payload": "ture"}, "payload is one of true, false"),
        ({"mode": "loud"}, "mode is one of PERMISSIVE"),
    ],
)
def test_an_unknown_option_is_refused(spark: SparkSession, store: Path, options: dict[str, str], told: str) -> None:
    with pytest.raises(Exception, match=told):
        load(spark, store, **options).count()


def test_a_file_that_is_deleted_meanwhile_is_told(store: Path) -> None:
    """The end is fixed, so the rows of several reads must be of one moment."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from tandemmq.pipeline.options import Options
    from tandemmq.pipeline.parts import FileGone
    from tandemmq.pipeline.source import JournalReader

    ends = json.dumps({"version": 1, "stores": {str(store): {"file": 3, "offset": 0}}})
    reader = JournalReader(Options.of({"path": str(store), "endingOffsets": ends}), ("offset",))
    (partition,) = reader.partitions()
    (store / "db-2.log").unlink()
    with pytest.raises(FileGone, match=r"db-2\.log was deleted after this read was planned"):
        list(reader.read(partition))


def counted_by_files(store: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for file in journal_files([str(store)], is_tail_wanted=True):
        found[file.file] = sum(1 for _ in rows(file, "records"))
    return found


def changes(store: Path) -> Iterator[None]:
    """Change a store between two listings."""
    kept = store.with_name("kept")
    yield None
    store.rename(kept)
    write_store(store, 500)  # of the same name, with more files
    yield None
    (store / "db-1.log").unlink()  # nothing needed it any more
    yield None
    archive = store / "data-archive"
    archive.mkdir()
    (store / "db-2.log").rename(archive / "db-2.log")
    yield None
    shutil.rmtree(store)
    kept.rename(store)
    yield None


def test_a_frame_planned_once_reads_the_present_files(store: Path) -> None:
    """Spark plans a DataFrame once, however often it is used."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from tandemmq.pipeline.options import Options
    from tandemmq.pipeline.source import JournalReader

    reader = JournalReader(Options.of({"path": str(store)}), ("file",))
    source = reader.partitions()
    for _ in changes(store):
        found = Counter(file for each in source for batch in reader.read(each) for file in batch[0].to_pylist())
        assert found == counted_by_files(store)


def test_a_closed_file_deleted_without_notice_is_omitted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case occurs in an object store, whose listing has no times."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from tandemmq.pipeline import source
    from tandemmq.pipeline.options import Options
    from tandemmq.pipeline.source import JournalReader

    monkeypatch.setattr(source, "state_of", lambda file: (file.path, file.size, None))
    monkeypatch.setattr("tandemmq.pipeline.source.state_of", source.state_of)
    reader = JournalReader(Options.of({"path": str(store)}), ("file",))
    planned = reader.partitions()
    (store / "db-1.log").unlink()
    found = Counter(file for each in planned for batch in reader.read(each) for file in batch[0].to_pylist())
    assert found == counted_by_files(store)


@service
def test_a_reused_frame_or_view_reads_the_present_files(spark: SparkSession, store: Path) -> None:
    found = load(spark, store)
    found.createOrReplaceTempView("again")
    for _ in changes(store):
        count = sum(counted_by_files(store).values())
        assert (len(found.collect()), found.count()) == (count, count)
        assert spark.sql("SELECT count(*) FROM again").collect()[0][0] == count
    spark.catalog.dropTempView("again")


@service
def test_a_read_changes_no_store(spark: SparkSession, store: Path) -> None:
    def look() -> list[tuple[str, int, bytes]]:
        return [(path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(store.iterdir())]

    before = look()
    for table in columns.TABLES:
        load(spark, store, table=table, follow="tail").count()
    assert look() == before


@service
def test_an_active_session_keeps_its_master(spark: SparkSession) -> None:
    assert session.session() is spark
    with pytest.raises(NoSpark, match="has its master"):
        session.session("local[1]")


def listeners(pid: int) -> set[str]:
    """The addresses, as /proc writes them, on which a process listens for TCP."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().split("\n")
    ]
    is_listening = "0A"
    return {line[1].split(":")[0] for line in lines if len(line) > 9 and line[3] == is_listening and line[9] in inodes}


@service
def test_a_local_session_listens_on_the_loopback_only(spark: SparkSession) -> None:
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    found = listeners(spark.sparkContext._gateway.proc.pid)
    assert found
    assert found <= loopback


def test_small_files_share_a_task_and_large_ones_do_not() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from tandemmq.pipeline.parts import packed

    def sizes(*sizes: int) -> list[list[int]]:
        files = [JournalFile("p", "s", number, size) for number, size in enumerate(sizes)]
        return [[file.size for file in together] for together in packed(files)]

    mib = 1 << 20
    assert sizes() == []
    assert sizes(*[mib] * 6) == [[mib] * 4, [mib] * 2]
    assert sizes(*[32 * mib] * 4) == [[32 * mib]] * 4
    assert sizes(*[32 * mib] * 64) == [[32 * mib] * 4] * 16
    assert sizes(*[500 * mib] * 2) == [[500 * mib]] * 2
