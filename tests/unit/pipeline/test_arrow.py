"""Record batches hold the rows as they are, in the types that Spark gives the table, and no more than they may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandemmq.pipeline import columns
from tandemmq.pipeline.rows import rows
from tandemmq.pipeline.stores import journal_files
from tandemmq.pipeline.walk import JournalFile
from tandemmq.store.records.commands import encode_commit
from tandemmq.store.records.transactions import LocalTransactionId
from tests.support.pipeline.pipeline_journals import add, write_foreign

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def record_batches(file: JournalFile, table: str, *names: list[str], **bounds: int) -> list[Any]:
    from tandemmq.pipeline.arrow import record_batches

    return list(record_batches(file, table, *names, **bounds))


def plain(value: object) -> object:
    """A value of Arrow as rows have it."""
    return int(value.timestamp() * 1_000_000) if hasattr(value, "timestamp") else value


@pytest.mark.parametrize("table", columns.TABLES)
def test_batches_hold_the_rows(store: Path, table: str) -> None:
    for file in journal_files([str(store)], is_tail_wanted=True):
        found = pa.Table.from_batches(record_batches(file, table, rows_max=7))
        assert found.schema == columns.arrow_schema(table)
        assert [tuple(map(plain, row.values())) for row in found.to_pylist()] == list(rows(file, table))


def test_batches_are_bounded_in_rows_and_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    sizes = [100] * 9 + [5000, 100]
    write_foreign(path, [[add(number, b"z" * size)] for number, size in enumerate(sizes, start=1)])
    file = JournalFile(str(path), "s", 1, path.stat().st_size)
    assert [b.num_rows for b in record_batches(file, columns.RECORDS, rows_max=4)] == [4, 4, 3]
    # a text counts twice: as bytes and as text
    assert [b.num_rows for b in record_batches(file, columns.MESSAGES, bytes_max=850)] == [4, 4, 1, 1, 1]


def test_only_the_columns_that_are_wanted_are_made(store: Path) -> None:
    file = journal_files([str(store)])[0]
    (found,) = record_batches(file, columns.RECORDS, ["command", "offset"])
    assert found.schema.names == ["command", "offset"]
    (counted,) = record_batches(file, columns.RECORDS, [])
    assert (counted.num_rows, counted.num_columns) == (found.num_rows, 0)


def test_half_a_character_does_not_stop_a_read(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    halves = {"half\ud83d": "other\ude00"}
    transaction = LocalTransactionId("c\ud83d", 1)
    write_foreign(path, [[add(1, properties=halves, correlation_id="\ud83d"), encode_commit(transaction)]])
    file = JournalFile(str(path), "s", 1, path.stat().st_size)
    (messages,) = record_batches(file, columns.MESSAGES)
    assert messages.column("properties").to_pylist() == [[("half?", "other?")]]
    assert messages.column("correlation_id").to_pylist() == ["?"]
    (records,) = record_batches(file, columns.RECORDS)
    assert records.column("transaction").to_pylist() == [None, "TX:c?:1"]
