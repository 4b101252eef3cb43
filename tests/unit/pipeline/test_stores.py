"""Files that a broker moves into its archive while a read of them is planned."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.pipeline import columns, stores
from tandemmq.pipeline.manifests import mistrusted
from tandemmq.pipeline.places import MOUNTED, Access, Entry, Opened, Place
from tandemmq.pipeline.rows import FAILFAST, Malformed, rows
from tandemmq.pipeline.stores import NoJournal, journal_files
from tandemmq.pipeline.walk import JournalFile, walk
from tandemmq.store.maintenance.archive import Archive
from tandemmq.store.maintenance.manifest import SUFFIX, decode_manifest, encode_manifest
from tandemmq.store.records.commands import UpdateMessage, decode, encode, encode_add, encode_remove, encode_trace
from tandemmq.store.records.hints import with_copy_hint, with_operation_hint
from tandemmq.store.records.marks import encode_clock, encode_gone
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.tools.check import check
from tests.support.pipeline.pipeline_journals import QUEUE, add, message, write_foreign
from tests.support.store.store_harness import KIB, Term


def test_a_file_that_was_seen_in_the_store_is_found_in_the_archive(store: Path) -> None:
    path = str(store / "db-2.log")
    (before,) = journal_files([path])
    archive = store / "data-archive"
    archive.mkdir()
    (store / "db-2.log").rename(archive / "db-2.log")
    (after,) = journal_files([path])
    assert (after.path, after.store, after.end) == (str(archive / "db-2.log"), str(store), before.end)
    (archive / "db-2.log").unlink()
    with pytest.raises(NoJournal, match=r"db-2\.log"):
        journal_files([path])


class _Moving:
    """The mounted file systems, and a broker that archives a file between two looks of the planner."""

    is_remote = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, directory: str) -> list[Entry]:
        return MOUNTED.entries(directory)

    def open(self, path: str) -> Opened:
        if self.path.exists():
            self.path.rename(self.path.parent / "data-archive" / self.path.name)
        return MOUNTED.open(path)


def test_a_file_that_moves_while_it_is_planned_is_not_left_out(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = journal_files([str(store)], is_tail_wanted=True)
    (store / "data-archive").mkdir()
    moving: Place = _Moving(store / "db-1.log")

    def place_of(path: str, access: Access) -> Place:
        return moving

    monkeypatch.setattr(stores, "place_of", place_of)
    after = journal_files([str(store)], is_tail_wanted=True)
    assert after[0].path == str(store / "data-archive" / "db-1.log")
    assert [(file.file, file.end, file.epoch) for file in after] == [
        (file.file, file.end, file.epoch) for file in before
    ]
    assert list(walk(after[0]))


# ---- Reads are planned from manifests; a manifest that does not fit its file is not trusted, and is reported


_opened: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


sys.addaudithook(_note)  # for the rest of the process: a hook cannot be removed


@pytest.fixture
def opened() -> Iterator[Callable[[], list[str]]]:
    """The journal files that were opened since it was last asked."""
    global _opened
    _opened = []

    def since() -> list[str]:
        assert _opened is not None, "until the test ends"
        found = [path for path in _opened if path.rpartition("/")[2].startswith("db-") and SUFFIX not in path]
        _opened.clear()
        return found

    yield since
    _opened = None


@pytest.fixture
def archived(store: Path) -> Path:
    """The store, whose first three files are in its archive with manifests."""
    Archive(JournalFiles(str(store)), str(store / "data-archive")).remove([1, 2, 3])
    return store


def test_a_read_is_planned_without_opening_files_that_have_a_manifest(
    archived: Path, opened: Callable[[], list[str]]
) -> None:
    planned = journal_files([str(archived)])
    assert {path.rpartition("/")[0] for path in opened()} == {str(archived)}, "those that are not archived yet"
    assert [file.file for file in planned][:3] == [1, 2, 3]


def test_a_plan_from_manifests_equals_one_from_the_files(store: Path) -> None:
    def told() -> list[object]:
        return [replace(file, path="") for file in journal_files([str(store)])]

    from_files = told()
    Archive(JournalFiles(str(store)), str(store / "data-archive")).remove([1, 2, 3])
    assert told() == from_files


def test_an_archive_elsewhere_is_read_to_its_last_file(archived: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(archived / "data-archive", kept)
    planned = journal_files([str(kept)])
    assert [(file.file, file.is_current) for file in planned] == [(1, False), (2, False), (3, False)]
    assert all(file.end is not None for file in planned), "the last one's end is told by its manifest"
    assert len(journal_files([str(kept / "db-3.log")])) == 1
    for path in kept.glob(f"*{SUFFIX}"):
        path.unlink()
    assert [file.file for file in journal_files([str(kept)])] == [1, 2], "a directory like any other"


def test_a_second_store_in_one_archive_has_manifests_of_its_own(archived: Path) -> None:
    archive = archived / "data-archive"
    shutil.copy(archived / "db-4.log", archived / "db-1.log")  # of another life
    Archive(JournalFiles(str(archived)), str(archive)).remove([1])
    assert (archive / f"db-1.log.1{SUFFIX}").exists()
    assert (f"{archived}.1", 1) in {(file.store, file.file) for file in journal_files([str(archived)])}


def wrong_size(manifest: Path, file: Path) -> None:
    with open(file, "ab") as written:
        written.write(b"\0")


def other_name(manifest: Path, file: Path) -> None:
    told = decode_manifest(manifest.read_bytes())
    assert told is not None
    manifest.write_bytes(encode_manifest(replace(told, name="db-9.log")))


def torn(manifest: Path, file: Path) -> None:
    manifest.write_bytes(manifest.read_bytes()[:100])


def endless(manifest: Path, file: Path) -> None:
    os.truncate(manifest, 1 << 30)


@pytest.mark.parametrize("break_it", [wrong_size, other_name, torn, endless])
def test_a_manifest_that_does_not_match_is_ignored_and_reported(
    archived: Path,
    break_it: Callable[[Path, Path], None],
    opened: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    archive = archived / "data-archive"
    before = [list(rows(file, columns.RECORDS)) for file in journal_files([str(archived)])]
    break_it(archive / f"db-2.log{SUFFIX}", archive / "db-2.log")
    opened()
    with caplog.at_level(logging.WARNING):
        planned = journal_files([str(archived)])
    assert str(archive / "db-2.log") in opened()
    assert f"db-2.log{SUFFIX} is not trusted" in caplog.text
    assert [list(rows(file, columns.RECORDS)) for file in planned] == before
    (found,) = mistrusted(MOUNTED, str(archive), MOUNTED.entries(str(archive)))
    assert found.path == str(archive / f"db-2.log{SUFFIX}")


def test_a_manifest_without_its_file_is_told_and_else_ignored(archived: Path) -> None:
    archive = archived / "data-archive"
    (archive / "db-2.log").unlink()
    assert [file.file for file in journal_files([str(archived)])][:2] == [1, 3]
    (found,) = mistrusted(MOUNTED, str(archive), MOUNTED.entries(str(archive)))
    assert "its file does not exist" in found.why


# ---- Journals that the store itself wrote, over several terms of office


def read(directory: Path, table: str) -> list[dict[str, object]]:
    names = [name for name, _ in columns.COLUMNS[table]]
    files = journal_files([str(directory)], is_tail_wanted=True)
    return [dict(zip(names, row, strict=True)) for file in files for row in rows(file, table, FAILFAST)]


def test_records_of_two_masters_are_read_with_their_epochs(tmp_path: Path) -> None:
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


# ---- What a broker writes for itself is a table: traces with their text, copies with the places that they name


NAMES = [name for name, _ in columns.COLUMNS[columns.MARKS]]


def marks(path: Path) -> list[dict[str, object]]:
    file = JournalFile(str(path), "s", 7, path.stat().st_size, openwire=11)
    return [dict(zip(NAMES, row, strict=True)) for row in rows(file, columns.MARKS, FAILFAST)]


def test_traces_have_their_text_and_copies_the_places_that_they_name(tmp_path: Path) -> None:
    stored = message(1)
    transaction = LocalTransactionId("c", 1)
    update = encode(UpdateMessage(decode(add(1))))  # type: ignore[arg-type]
    copy = with_copy_hint(update, (3 << 32 | 400) << 32 | 5, 4 << 32 | 600)
    moved = with_operation_hint(encode_add(stored, encode_message(stored), transaction), 2 << 32 | 300)
    plain = [add(2), encode_remove(QUEUE, "ID:1"), encode_remove(QUEUE, "ID:1", transaction), update]
    path = tmp_path / "db-7.log"
    write_foreign(path, [[encode_trace("hello"), encode_clock(5), *plain], [copy, moved, encode_gone([1, 2])]])

    found = marks(path)

    nowhere: dict[str, object] = dict.fromkeys(NAMES[5:])
    assert [{name: row[name] for name in NAMES[3:]} for row in found] == [
        {**nowhere, "command": "TRACE", "text": "hello"},
        {**nowhere, "command": "CLOCK", "text": "TANDEMMQ-CLOCK 5"},
        {
            "command": "COPY",
            "text": None,
            "moved_from_file": 4,
            "moved_from_offset": 600,
            "order_file": 3,
            "order_offset": 400,
            "order_number": 5,
        },
        {**nowhere, "command": "ADD_MESSAGE", "text": None, "moved_from_file": 2, "moved_from_offset": 300},
        {**nowhere, "command": "MARK", "text": 'TANDEMMQ-GONE {"files":[[1,2]]}'},
    ]
    assert {row["store"] for row in found} == {"s"}
    assert {row["file"] for row in found} == {7}


def test_a_trace_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "db-7.log"
    write_foreign(path, [[bytes((0, 9, 0x0A, 0x50))]])
    with pytest.raises(Malformed, match=r"db-7\.log at"):
        marks(path)
