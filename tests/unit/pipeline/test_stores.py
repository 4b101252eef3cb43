"""Files that a broker moves into its archive while a read of them is planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.pipeline import stores
from tandemmq.pipeline.places import MOUNTED, Access, Entry, Opened, Place
from tandemmq.pipeline.stores import NoJournal, journal_files
from tandemmq.pipeline.walk import walk


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
