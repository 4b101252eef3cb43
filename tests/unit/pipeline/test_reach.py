"""Extent of a read of a store while a broker writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.pipeline import columns
from tandemmq.pipeline.reach import describe, offsets_of, reaches, read_files
from tandemmq.pipeline.rows import rows
from tandemmq.pipeline.walk import JournalFile
from tests.support.pipeline.growing_store import GrowingStore
from tests.support.pipeline.pipeline_journals import add, write_foreign

_COLUMNS = {table: [name for name, _ in columns.COLUMNS[table]] for table in columns.TABLES}


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[GrowingStore]:
    made = GrowingStore(tmp_path / "store")
    yield made
    made.close()


def ids(files: list[JournalFile]) -> list[str]:
    at = _COLUMNS[columns.MESSAGES].index("message_id")
    return [row[at] for file in files for row in rows(file, columns.MESSAGES)]


def planned(store: GrowingStore, **options: object) -> list[JournalFile]:
    return read_files([str(store.directory)], **options)  # type: ignore[arg-type]


def test_a_store_whose_only_file_is_open_is_read_up_to_its_last_batch(growing: GrowingStore) -> None:
    growing.add(3)
    files = planned(growing)
    assert ids(files) == growing.ids
    [reach] = reaches(files)
    assert (reach.file, reach.offset, reach.is_growing) == (1, growing.end, True)
    [line] = describe([reach])
    assert f"up to {growing.end:,} of db-1.log" in line
    assert "may not be synced" in line
    assert planned(growing, is_tail_wanted=False) == []


def test_records_written_after_the_plan_are_not_read(growing: GrowingStore) -> None:
    """Nor in another one up to the same place, whichever files came since."""
    growing.add(3)
    files = planned(growing)
    until = offsets_of(reaches(files))
    before = list(growing.ids)
    growing.add(2)
    growing.rotate()
    growing.add(1)
    assert ids(files) == before
    assert ids(planned(growing, until=until)) == before
    assert ids(planned(growing)) == growing.ids
    assert {row[_COLUMNS[columns.FILES].index("state")] for row in rows(files[0], columns.FILES)} == {"current"}


def test_records_of_a_deposed_master_after_the_plan_are_not_read(growing: GrowingStore) -> None:
    growing.add(3)
    end, before = growing.end, list(growing.ids)
    files = planned(growing)
    growing.fence()
    growing.add(2)  # the deposed one, which does not know it yet
    growing.take_over(end)
    growing.add(1)
    assert ids(files) == before, "of the plan that was made before"
    assert ids(planned(growing)) == [*before, growing.ids[-1]], "of a new one"


def test_every_byte_of_a_growing_file_has_its_name(growing: GrowingStore) -> None:
    growing.add(3)
    [file] = planned(growing)
    growing.add(2)
    [row] = rows(file, columns.FILES)
    lengths = [batch[3] for batch in rows(file, columns.BATCHES)]
    assert sum(lengths) == row[_COLUMNS[columns.FILES].index("bytes")] == file.size


def test_damage_in_the_newest_file_hides_nothing_behind_it(growing: GrowingStore) -> None:
    growing.add(1)
    start = growing.end
    growing.add(3)
    path = growing.directory / "db-1.log"
    content = bytearray(path.read_bytes())
    content[start + 40] ^= 1
    path.write_bytes(content)
    files = planned(growing)
    assert ids(files) == [growing.ids[0], *growing.ids[2:]]
    assert [batch[6] for batch in rows(files[0], columns.BATCHES)].count(columns.BAD_SUM) == 1


def test_a_file_that_activemq_prepared_hides_nothing_of_the_one_before(tmp_path: Path) -> None:
    write_foreign(tmp_path / "db-1.log", [[add(1)]])
    write_foreign(tmp_path / "db-2.log", [[add(2)]])
    write_foreign(tmp_path / "db-3.log", [])
    files = read_files([str(tmp_path)])
    assert [file.file for file in files] == [1, 2]
    assert len(ids(files)) == 2
    assert [reach.is_growing for reach in reaches(files)] == [True]
    assert [file.file for file in read_files([str(tmp_path)], is_tail_wanted=False)] == [1]


def test_an_archive_and_closed_files_are_read_whole(growing: GrowingStore) -> None:
    growing.add(2)
    growing.rotate()
    growing.archive(1)
    growing.add(1)
    files = planned(growing, is_tail_wanted=False)
    assert ids(files) == growing.ids[:2]
    [reach] = reaches(files)
    assert not reach.is_growing
    assert describe([reach]) == ("Read up to the end of db-1.log, which is closed.",)
    assert ids(planned(growing, until=offsets_of([reach]))) == growing.ids[:2]
    assert ids(planned(growing, first=2)) == growing.ids[2:]
    assert ids(planned(growing, last=1)) == growing.ids[:2]
