"""Reads are planned from manifests; one that does not fit its file is not believed, and that is said."""

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
from tandemmq.pipeline import columns
from tandemmq.pipeline.manifests import mistrusted
from tandemmq.pipeline.places import MOUNTED
from tandemmq.pipeline.rows import rows
from tandemmq.pipeline.stores import journal_files
from tandemmq.store.maintenance.archive import Archive
from tandemmq.store.maintenance.manifest import SUFFIX, decode_manifest, encode_manifest

_opened: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


sys.addaudithook(_note)  # for the rest of the process: nobody can take one away


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


def test_what_is_planned_from_manifests_is_what_the_files_themselves_say(store: Path) -> None:
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
    planned = {(file.store, file.file) for file in journal_files([str(archived)])}
    assert (f"{archived}.1", 1) in planned


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
def test_a_manifest_that_does_not_fit_is_not_believed_and_that_is_said(
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
    assert f"db-2.log{SUFFIX} is not believed" in caplog.text
    assert [list(rows(file, columns.RECORDS)) for file in planned] == before
    (found,) = mistrusted(MOUNTED, str(archive), MOUNTED.entries(str(archive)))
    assert found.path == str(archive / f"db-2.log{SUFFIX}")


def test_a_manifest_without_its_file_is_told_and_else_ignored(archived: Path) -> None:
    archive = archived / "data-archive"
    (archive / "db-2.log").unlink()
    assert [file.file for file in journal_files([str(archived)])][:2] == [1, 3]
    (found,) = mistrusted(MOUNTED, str(archive), MOUNTED.entries(str(archive)))
    assert "its file is not there" in found.why
