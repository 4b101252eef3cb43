"""The bench of the pipeline writes the journals that it means to, and each way of reading them reads all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tandemmq.bench.journals import write_mixed_journal
from tandemmq.pipeline import columns
from tandemmq.pipeline.rows import FAILFAST, rows
from tandemmq.pipeline.stores import journal_files

FILE_BYTES = 256 << 10


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    write_mixed_journal(tmp_path / "journal", 1 << 20, FILE_BYTES)
    return tmp_path / "journal"


def test_the_same_mixed_journal_is_written_each_time(journal: Path, tmp_path: Path) -> None:
    write_mixed_journal(tmp_path / "again", 1 << 20, FILE_BYTES)
    files = sorted(path.name for path in journal.glob("db-*.log"))
    assert len(files) > 3
    assert all((journal / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in files)


def test_a_mixed_journal_has_adds_removes_and_commits(journal: Path) -> None:
    names = [name for name, _ in columns.COLUMNS[columns.RECORDS]]
    found = [
        dict(zip(names, row, strict=True))
        for file in journal_files([str(journal)], is_tail_wanted=True)
        for row in rows(file, columns.RECORDS, FAILFAST)
    ]
    commands = Counter(row["command"] for row in found)
    assert {"HEADER", "ADD_MESSAGE", "REMOVE_MESSAGE", "COMMIT"} <= commands.keys()
    assert commands["COMMIT"] == sum(
        row["command"] == "ADD_MESSAGE" and row["transaction"] is not None for row in found
    )
    assert len({row["destination"] for row in found}) > 10


def test_each_way_reads_all_of_it(journal: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from tandemmq.bench.pipeline import RECORDS, BufferFile, closed_files, decode_in_processes
    from tandemmq.pipeline.arrow import record_batches

    files = closed_files(journal)
    expected = sum(len(list(rows(file, RECORDS))) for file in files)
    for processes in (1, 2):
        assert sum(each.rows for each in decode_in_processes(files, RECORDS, processes)) == expected
    content = BufferFile(pa.py_buffer(b"0123456789"))
    assert (content.read(2, 3), content.read(8, 5), content.read(12, 1)) == (b"234", b"89", b"")
    assert sum(batch.num_rows for file in files for batch in record_batches(file, RECORDS, [])) == expected
