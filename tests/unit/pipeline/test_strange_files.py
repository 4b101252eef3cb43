"""Names that are not regular files, and files with holes, in the pipeline."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tandemmq.disk import NotRegular
from tandemmq.journal.format import END_RECORD
from tandemmq.pipeline import columns
from tandemmq.pipeline.listing import Stores
from tandemmq.pipeline.places import open_file
from tandemmq.pipeline.rows import rows
from tandemmq.pipeline.stores import NoJournal, journal_files
from tandemmq.pipeline.walk import JournalFile, walk
from tandemmq.store.maintenance.manifest import SUFFIX
from tests.support.pipeline.pipeline_journals import add, write_foreign
from tests.support.strange_files import STRANGE, is_untouched, put

# What waits for a FIFO waits for ever.
pytestmark = pytest.mark.timeout(60)
HOLE_BYTES = 1 << 40


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ["db-2.log", "db-9.log"])
def test_it_is_left_out_and_told_once(store: Path, name: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    before = journal_files([str(store)], is_tail_wanted=True)
    reason = put(kind, store / name)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            found = journal_files([str(store)], is_tail_wanted=True)
    assert [file.file for file in found] == [file.file for file in before if Path(file.path).name != name]
    assert [record.getMessage() for record in caplog.records] == [f"{reason}: left out"]
    assert is_untouched(store)
    with pytest.raises(NoJournal, match=name):
        journal_files([str(store / name)])
    with pytest.raises(NotRegular, match=STRANGE[kind][1]):
        open_file(str(store / name))


@pytest.mark.parametrize("kind", STRANGE)
def test_a_stream_goes_on_where_the_next_name_is_no_file(store: Path, kind: str) -> None:
    before = Stores([str(store)]).now_to_the_end()[str(store)]
    put(kind, store / f"db-{before.newest + 1}.log")
    assert Stores([str(store)]).now_to_the_end()[str(store)] == before


@pytest.mark.parametrize("kind", STRANGE)
def test_an_irregular_manifest_is_ignored(store: Path, kind: str) -> None:
    archive = store / "data-archive"
    archive.mkdir()
    (store / "db-1.log").rename(archive / "db-1.log")
    before = journal_files([str(store)])
    put(kind, archive / f"db-1.log{SUFFIX}")
    assert journal_files([str(store)]) == before


def test_directories_may_be_links_where_they_are_named(store: Path, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to(store)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "below").symlink_to(store)
    numbers = [file.file for file in journal_files([str(store)])]
    assert [file.file for file in journal_files([str(tmp_path / "named")])] == numbers
    with pytest.raises(NoJournal):
        journal_files([str(tmp_path / "lake")])


@pytest.mark.parametrize("is_current", [False, True])
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_hole_is_what_zeros_are(tmp_path: Path, is_torn: bool, is_current: bool) -> None:
    path = tmp_path / "db-1.log"
    write_foreign(path, [[add(1)], [add(2)]], size=0)
    content = path.read_bytes()
    if is_torn:
        content = content.removesuffix(END_RECORD) + b"half a write"
    size = 32 << 20
    outcomes = []
    for is_sparse in (False, True):
        path.write_bytes(content if is_sparse else content.ljust(size, b"\0"))
        os.truncate(path, size)
        file = JournalFile(str(path), "s", 1, size, is_current=is_current)
        lines = list(rows(file, columns.RECORDS))
        seen = [(each.start, each.stop, each.status, list(each.records), each.detail) for each in walk(file)]
        outcomes.append((seen, lines))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("is_filled_behind", [False, True])
def test_a_hole_of_a_terabyte_takes_no_time(tmp_path: Path, is_filled_behind: bool) -> None:
    path = tmp_path / "db-1.log"
    write_foreign(path, [[add(1)], [add(2)]], size=0)
    path.write_bytes(path.read_bytes().removesuffix(END_RECORD) + b"half a write")
    os.truncate(path, HOLE_BYTES)
    if is_filled_behind:
        with open(path, "r+b") as file:
            file.seek(HOLE_BYTES // 2)
            file.write(b"what nobody can read")
    journal = JournalFile(str(path), "s", 1, HOLE_BYTES)
    found = [(stretch.status, stretch.stop - stretch.start) for stretch in walk(journal)]
    assert sum(length for _, length in found) == HOLE_BYTES
    assert [status for status, _ in found] == [columns.OK, columns.OK, columns.TORN, columns.PADDING]
