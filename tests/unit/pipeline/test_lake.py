"""The lake's ledger: each file once, whenever the process that adds is killed."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tandemmq.pipeline.lake import BY_DATE, LEDGER, Archived, Commit, Lake, LakeError, Layout, commit_name, committed
from tandemmq.pipeline.lost import Seen, ranges_of

ROWS = {"messages": 2, "acks": 1, "records": 3}


def file(number: int, *, store: str = "/data/a", modified: int | None = None) -> Archived:
    return Archived(store, number, 1 << 16, 5_000 + number, f"{number:064x}", 0, modified)


def add(lake: Lake, number: int) -> Commit:
    """Add one file: its number stands in each of its Parquet files."""
    files = (file(number),)
    staged = lake.staging(files)
    for name in ("messages/date=2026-11-22/destination=a", "messages/date=2026-11-22/destination=b", "acks/date=x"):
        (staged / name).mkdir(parents=True)
        (staged / name / f"part-0000-{random.random()}.snappy.parquet").write_text(str(number))
    (staged / "acks/_SUCCESS").touch()
    (staged / "messages/date=2026-11-22/destination=a/.part.crc").touch()
    return lake.commit(files, ROWS)


def held(path: Path) -> list[int]:
    """The numbers of the files that a reader of the directories finds in messages to a."""
    return sorted(int(found.read_text()) for found in path.glob("messages/*/destination=a/*"))


def test_added_files_are_in_their_place_with_the_name_of_their_commit(tmp_path: Path) -> None:
    with Lake(str(tmp_path / "lake"), Layout()) as lake:
        made = add(lake, 7)
        assert made.name == commit_name([file(7)])
        assert lake.has(file(7).identity)
        assert not lake.has(file(8).identity)
        assert lake.at("/data/a", 7) == file(7)
    name = f"{made.name}-0.parquet"
    assert made.parquet == {
        "messages": tuple(f"messages/date=2026-11-22/destination={each}/{name}" for each in "ab"),
        "acks": (f"acks/date=x/{name}",),
        "records": (),
    }
    assert all((tmp_path / "lake" / path).read_text() == "7" for paths in made.parquet.values() for path in paths)
    assert committed(str(tmp_path / "lake")) == {made.name: made}
    assert not list((tmp_path / "lake" / LEDGER / "staging").iterdir())


def test_a_file_is_known_again_by_the_next_process_wherever_it_lies_then(tmp_path: Path) -> None:
    with Lake(str(tmp_path), Layout()) as lake:
        add(lake, 7)
    with Lake(str(tmp_path), Layout()) as lake:
        assert lake.has(file(7, store="/archive/a").identity)
        assert lake.files_of("/data/a") == {7}


def test_of_two_processes_one_may_add(tmp_path: Path) -> None:
    with Lake(str(tmp_path), Layout()), pytest.raises(LakeError, match="another process"):
        Lake(str(tmp_path), Layout())
    Lake(str(tmp_path), Layout()).close()


@pytest.mark.parametrize("other", [Layout(by=BY_DATE), Layout(destinations=("orders",)), Layout(raw=True)])
def test_a_lake_stays_as_it_was_laid_out(tmp_path: Path, other: Layout) -> None:
    Lake(str(tmp_path), Layout()).close()
    with pytest.raises(LakeError, match="was made with"):
        Lake(str(tmp_path), other)
    Lake(str(tmp_path), Layout()).close()


def test_wherever_a_process_ends_the_file_is_in_the_lake_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each rename and each sync, a process ends at this call. Then another one adds the same file."""

    class Ended(BaseException):
        pass

    calls = 0
    ends_at = 0
    reals = {name: getattr(os, name) for name in ("replace", "fsync")}

    def counted(name: str):  # type: ignore[no-untyped-def]
        def call(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if calls == ends_at:
                raise Ended
            return reals[name](*arguments)

        return call

    for name in reals:
        monkeypatch.setattr(os, name, counted(name))
    decided = 0
    while True:
        ends_at += 1
        calls = -1_000_000
        lake_path = tmp_path / str(ends_at)
        with Lake(str(lake_path), Layout()) as lake:
            add(lake, 1)
            calls = 0
            try:
                add(lake, 2)
            except Ended:
                pass
            else:
                break
        seen = {
            path for commit in committed(str(lake_path)).values() for paths in commit.parquet.values() for path in paths
        }
        assert all((lake_path / path).exists() for path in seen), "a reader of the ledger sees all of a commit"
        calls = -1_000_000
        with Lake(str(lake_path), Layout()) as lake:
            decided += lake.has(file(2).identity)
            if not lake.has(file(2).identity):
                assert held(lake_path) == [1], "what was not decided is not there"
                add(lake, 2)
        assert held(lake_path) == [1, 2], f"ended at call {ends_at}"
        assert not list((lake_path / LEDGER / "pending").glob("*.json"))
    assert ends_at > 10
    assert 0 < decided < ends_at


def test_a_damaged_ledger_is_told_with_its_name(tmp_path: Path) -> None:
    with Lake(str(tmp_path), Layout()) as lake:
        made = add(lake, 1)
    (tmp_path / LEDGER / "commits" / f"{made.name}.json").write_text(json.dumps({"files": 3}))
    with pytest.raises(LakeError, match=made.name):
        Lake(str(tmp_path), Layout())


def test_files_deleted_before_they_were_added_are_reported_until_they_are_skipped(tmp_path: Path) -> None:
    with Lake(str(tmp_path), Layout()) as lake:
        seen = Seen.of(lake)
        seen.note_present({"/data/a": {4, 5, 9}})
        assert seen.lost({"/data/a": {4, 5, 9}}) == {}, "what went before the first look nobody knows"
        seen.note_archived("/data/a", 4)
    with Lake(str(tmp_path), Layout()) as lake:
        add(lake, 4)
        seen = Seen.of(lake)
        present = {"/data/a": {9, 12}}
        seen.note_present(present)
        assert seen.lost(present) == {"/data/a": [5, 10, 11]}, "10 and 11 came and went between two looks"
        assert seen.lost({"/data/a": {5, 9, 10, 11, 12}}) == {}, "found again: in the archive"
        seen.skip(seen.lost(present))
        assert seen.lost(present) == {}
    with Lake(str(tmp_path), Layout()) as lake:
        assert Seen.of(lake).lost({"/data/a": {9, 12}}) == {}
    assert ranges_of([5, 10, 11]) == "db-5.log, db-10.log to db-11.log"
