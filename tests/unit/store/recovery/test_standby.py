"""A standby that follows: it soon has the state of the master, and writes only its index."""

# proves: index-batch, index-of-this-epoch, journal-reading, promotion
# proves: number-again-is-looked-up

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.index import Index
from tandemmq.journal.files import JournalFiles
from tandemmq.store.recovery.index_directory import set_aside
from tandemmq.store.recovery.index_trust import IndexNotOfThisJournal, judge
from tandemmq.store.recovery.promotion import FIRST_FILE_BYTES
from tandemmq.store.settings import StoreSettings
from tests.support.store.standbys import begin, standby_of
from tests.support.store.store_harness import KIB, SMALL, Term

pytestmark = pytest.mark.promise("takeover-is-independent-of-size")


def test_a_standby_that_followed_replays_next_to_nothing_when_promoted(directory: str) -> None:
    master = Term(directory, "a")
    follower = standby_of(directory)
    for _ in range(5):
        master.add_durably(40)
        follower.follow()
    assert follower.has_caught_up
    assert follower.messages >= 160
    master.crash()
    follower.close()
    with Term(directory, "b") as successor:
        assert successor.store.records_replayed <= 240
        assert len(successor.bodies()) == 200


def test_a_standby_follows_across_rotations_and_reclaimed_files(directory: str) -> None:
    settings = StoreSettings(
        journal_max_file_length=64 * KIB, checkpoint_records=30, cleanup_interval=0.0, fence_check_interval=0.01
    )
    master = Term(directory, "a", settings)
    follower = standby_of(directory, settings=settings)
    for round_number in range(30):
        added = master.add_durably(10, body=b"x" * 2000)
        master.take(added[1:])
        if round_number % 10 == 0:  # it looks seldom: files come and go between two looks
            follower.follow()
    follower.follow()
    expected = master.bodies()
    assert len(expected) == 30
    master.crash()
    follower.close()
    with Term(directory, "b", settings) as successor:
        assert successor.bodies() == expected


def test_a_standby_writes_nothing_but_its_own_index(directory: str) -> None:
    master = Term(directory, "a")
    master.add_durably(50)
    master.wait(lambda: master.store.figures.checkpoints > 0)

    def shared() -> dict[str, tuple[int, int]]:
        found = {}
        for root, _, names in os.walk(directory):
            if root.endswith("/index/b"):
                continue
            for name in names:
                status = os.stat(os.path.join(root, name))
                found[os.path.join(root, name)] = (status.st_size, status.st_mtime_ns)
        return found

    before = shared()
    follower = standby_of(directory)
    follower.follow()
    assert shared() == before
    follower.close()
    master.close()


def test_a_broker_without_an_index_begins_with_a_copy_of_its_neighbours(
    directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    master = Term(directory, "a", StoreSettings(checkpoint_records=50, fence_check_interval=0.01))
    master.add_durably(200)
    master.wait(lambda: master.store.figures.checkpoints > 0)
    with caplog.at_level(logging.INFO, "tandemmq.store.recovery.index_directory"):
        follower = standby_of(directory)
    assert "copy of" in caplog.text
    assert follower.messages >= 50
    follower.follow()
    follower.close()
    master.close()


def test_an_index_directory_that_is_a_link_is_not_used(
    directory: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Term(directory, "a") as master:
        bodies = [operation.message.body for operation in master.add_durably(3)]
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "index"
    own = Path(directory, "index", "a")
    own.rename(elsewhere)
    own.symlink_to(elsewhere)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in elsewhere.iterdir()}
    with Term(directory, "a") as again:
        assert again.bodies() == bodies
        assert set(os.listdir(f"{directory}/index")) >= {"a", "a-2"}
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in elsewhere.iterdir()} == before
    own.unlink()


def test_an_index_that_tells_of_another_journal_is_set_aside(directory: str, tmp_path: Path) -> None:
    with Term(directory, "a") as master:
        master.add_durably(20)
    (tmp_path / "elsewhere").mkdir()
    with Term(str(tmp_path / "elsewhere"), "b") as other:
        other.add_durably(3)
    (tmp_path / "elsewhere" / "db-1.log").replace(Path(directory, "db-1.log"))
    with Term(directory, "a") as again:
        assert len(again.bodies()) == 3
        assert any(".aside-" in name for name in os.listdir(f"{directory}/index"))


# proves: set-aside-under-the-lock
def test_an_index_that_another_process_opened_is_not_set_aside(tmp_path: Path) -> None:
    """Between the check and the rename another process can make the directory again."""
    path = str(tmp_path / "a")
    with Index.open(path):
        assert set_aside(path, "a doubt about what had this name") is None
        assert os.path.isdir(path)
    assert set_aside(path, "a doubt") is not None


def test_an_index_that_holds_what_a_later_header_cut_off_is_set_aside(directory: str) -> None:
    """A zombie writes between its successor's read and header; a third broker follows, and keeps the records."""
    zombie = Term(directory, "a", replace(SMALL, fence_check_interval=3600.0))
    zombie.add_durably(2)
    successor = standby_of(directory, "b")
    successor.fence(lambda: True)
    successor.read()
    zombie.write_late(3)
    third = standby_of(directory, "c")
    third.follow()
    third.follower.checkpoint()
    assert third.messages == 4, "the last batch is only seen; of the two before it cannot know"
    begin(successor).drop()
    zombie.crash()
    third.close()
    with Term(directory, "c") as again:
        assert len(again.bodies()) == 2


class Meanwhile:
    """The system's disk. ``act`` is called before a file is opened for so many times."""

    def __init__(self, path: str, times: int, act: Callable[[], object]) -> None:
        self._path = path
        self.acts = [act, *[lambda: None] * (times - 1)]

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def open(self, path: str, *how: int) -> int:
        if path == self._path and self.acts:
            self.acts.pop()()
        return os.open(path, *how)


# proves: gone-on-may-name-the-end
@pytest.mark.parametrize("times", [1, 2, 3, 4, 5])
def test_records_cut_off_by_a_header_during_the_read_are_not_read(directory: str, times: int) -> None:
    """The standby has seen the fence without the header, and sees the header before it reads the file before."""
    zombie = Term(directory, "a", replace(SMALL, fence_check_interval=3600.0))
    zombie.add_durably(2)
    successor = standby_of(directory, "b")
    successor.fence(lambda: True)
    successor.read()
    zombie.write_late(3)
    fence = JournalFiles(directory).list()[-1]
    disk = Meanwhile(f"{directory}/db-{fence}.log", times, lambda: begin(successor).drop())
    third = standby_of(directory, "c", disk=disk)
    for _ in range(times):  # how often one call opens the file depends on the time that it takes
        third.follow()
    assert not disk.acts
    assert third.messages == 2
    third.close()
    zombie.crash()


def test_an_index_of_another_epoch_is_set_aside_though_its_last_batch_reads_the_same(directory: str) -> None:
    """A backup was restored, and another broker wrote the same batch to the same place."""
    with Term(directory, "a") as master:
        master.add_durably(3)
        follower = standby_of(directory)
        follower.follow()
    follower.follow()
    known = follower.follower
    known.checkpoint()
    ids = known.read_headers()
    assert judge(known.files, ids, known.epoch_history, follower.state, lambda _: True) is None
    follower.state.epoch += 1
    with pytest.raises(IndexNotOfThisJournal, match="it was made in epoch 2"):
        judge(known.files, ids, known.epoch_history, follower.state, lambda _: True)
    follower.close()


def test_an_index_whose_last_batch_reads_differently_is_set_aside(tmp_path: Path) -> None:
    """Another journal has the same length to the byte. Only the content of the batch differs."""
    for name, body in (("one", b"one"), ("two", b"two")):
        (tmp_path / name).mkdir()
        with Term(str(tmp_path / name), "a", replace(SMALL, clock_mark_interval=math.inf)) as term:
            term.add_durably(1, body=body)
    shutil.rmtree(tmp_path / "two" / "index")
    shutil.copytree(tmp_path / "one" / "index", tmp_path / "two" / "index")
    with Term(str(tmp_path / "two"), "a") as term:
        assert term.bodies() == [b"two"]
    assert any(".aside-" in name for name in os.listdir(tmp_path / "two" / "index"))


def test_a_promotion_leaves_a_short_file() -> None:
    """A promotion that fails repeatedly must not fill the disk."""
    assert FIRST_FILE_BYTES <= 64 * KIB
