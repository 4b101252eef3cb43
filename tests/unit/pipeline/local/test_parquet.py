"""Parquet files that are written and read without Spark have the form that Spark uses."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

import pyarrow as pa
import pyarrow.parquet as pq

from tandemmq.pipeline.local import parquet
from tandemmq.pipeline.local.parquet import Form, directory_name, files_of, form_of
from tandemmq.pipeline.local.session import LocalSession
from tests.support.prove import SEED

NAMES = ("orders", "17", "a/b=c %:*?[x]", "größe", "2023-01-01", "%41", "a+b", 'it\'s "q"', " ", None)


def test_directories_have_the_names_of_spark_and_are_read_back(tmp_path: Path) -> None:
    rows = [(name, number) for name in NAMES for number in range(3)]
    with LocalSession(tmp_path / "session") as session:
        frame = session.createDataFrame(rows, "name STRING, n INT").orderBy("name")
        frame.write.mode("overwrite").partitionBy("name").parquet(f"file:{tmp_path}/[out]")
        made = {path.parent.name for path in (tmp_path / "[out]").rglob("*.parquet")}
        assert {"name=a%2Fb%3Dc %25%3A%2A%3F%5Bx%5D", "name=%2541", "name=a+b"} < made
        assert "name=__HIVE_DEFAULT_PARTITION__" in made
        read = session.read.schema("`name` STRING, `n` INT, `other` BINARY").parquet(f"{tmp_path}/[out]")
        assert sorted(map(tuple, read.collect()), key=repr) == sorted(((*row, None) for row in rows), key=repr)


def test_a_schema_says_the_types(tmp_path: Path) -> None:
    """Spark writes times as nanoseconds without a zone, and a directory may be a date."""
    place = tmp_path / "table" / "date=2023-11-15"
    place.mkdir(parents=True)
    moment = datetime(2023, 11, 15, 1, 2, 3, 456_000)
    table = pa.table(
        {
            "n": pa.array([7], pa.int32()),
            "sent": [moment],
            "more": pa.array([[("a", "b")]], pa.map_("string", "string")),
        }
    )
    pq.write_table(table, place / "x.parquet", use_deprecated_int96_timestamps=True)
    (place / "_half.parquet").write_bytes(b"is not read")
    with LocalSession(tmp_path / "session") as session:
        schema = "`n` BIGINT, `sent` TIMESTAMP, `more` MAP<STRING, STRING>, `date` DATE"
        read = session.read.schema(schema).option("basePath", "/").parquet(str(tmp_path / "table"))
        assert list(map(tuple, read.collect())) == [(7, moment, [("a", "b")], date(2023, 11, 15))]
        copied = read.orderBy("date")
        copied.write.mode("overwrite").partitionBy("date").option("compression", "zstd").parquet(f"{tmp_path}/copy")
    [file] = files_of([str(tmp_path / "copy")])
    with pq.ParquetFile(file) as written:
        assert written.metadata.row_group(0).column(0).compression == "ZSTD"
        [row] = written.read().to_pylist()
    assert (row["n"], row["sent"].astimezone(UTC).replace(tzinfo=None), row["more"]) == (7, moment, [("a", "b")])


def test_files_and_row_groups_are_bounded_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    monkeypatch.setattr(parquet, "GROUP_BYTES", 4096)
    rows = sorted(
        (chance.randrange(4), chance.randrange(4), chance.randbytes(chance.randrange(300))) for _ in range(900)
    )
    table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], ["a", "b", "body"])
    assert all(form_of({"maxRecordsPerFile": each}, ("a", "b")).rows_per_file is None for each in ("0", "-1"))
    options = {"maxRecordsPerFile": "40", "parquet.block.row.count.limit": "17"}
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=23))
    parquet.write(reader, tmp_path, form_of(options, ("a", "b")))
    found = []
    for file in files_of([str(tmp_path)]):
        with pq.ParquetFile(file) as written:
            groups = [written.metadata.row_group(number).num_rows for number in range(written.num_row_groups)]
            assert sum(groups) <= 40
            assert max(groups) <= 17
            a, b = (int(part.partition("=")[2]) for part in Path(file).parent.relative_to(tmp_path).parts)
            found += [(a, b, row["body"]) for row in written.read().to_pylist()]
    assert sorted(found) == rows


def test_an_empty_table_makes_no_file(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.int32())])
    parquet.write(pa.RecordBatchReader.from_batches(schema, []), tmp_path, Form(("a",)))
    assert not list(tmp_path.iterdir())
    assert directory_name("a", "") == directory_name("a", None) == "a=__HIVE_DEFAULT_PARTITION__"
