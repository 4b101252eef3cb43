"""Journals that the store itself wrote, over several terms of office."""

from __future__ import annotations

from pathlib import Path

from tandemmq.pipeline import columns
from tandemmq.pipeline.rows import FAILFAST, rows
from tandemmq.pipeline.stores import journal_files
from tandemmq.store.tools.check import check
from tests.support.store.store_harness import KIB, Term


def read(directory: Path, table: str) -> list[dict[str, object]]:
    names = [name for name, _ in columns.COLUMNS[table]]
    files = journal_files([str(directory)], is_tail_wanted=True)
    return [dict(zip(names, row, strict=True)) for file in files for row in rows(file, table, FAILFAST)]


def test_what_two_masters_stored_is_read_with_their_epochs(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    first = Term(str(directory), "a")
    kept = [added.message.message_id for _ in range(6) for added in first.add_durably(20, body=b"k" * KIB)]
    before = first.store.epoch
    first.crash()
    with Term(str(directory), "b") as second:
        more = second.add_durably(20)
        second.take(more[:10])
        now = second.store.epoch
    assert check(str(directory)).is_clean
    assert now > before

    records, files = read(directory, columns.RECORDS), read(directory, columns.FILES)
    epochs = {row["message_id"]: row["epoch"] for row in records if row["command"] == columns.ADD_MESSAGE}
    assert epochs == dict.fromkeys(kept, before) | {added.message.message_id: now for added in more}
    assert len(read(directory, columns.MESSAGES)) == 140
    assert [row["message_id"] for row in read(directory, columns.ACKS)] == [a.message.message_id for a in more[:10]]
    assert all(row["is_sound"] for row in records)
    assert {row["command"] for row in records} >= {columns.HEADER, columns.MARK}
    on_disk = {str(path): path.stat().st_size for path in directory.glob("db-*.log")}
    assert len(on_disk) > 2
    assert {row["path"]: row["bytes"] for row in files} == on_disk
    for row in files:
        lengths = sum(r["length"] for r in records if r["file"] == row["file"])  # type: ignore[misc]
        assert lengths + row["batch_header_bytes"] + row["padding_bytes"] + row["damaged_bytes"] == row["bytes"]
