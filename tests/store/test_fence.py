"""Masters that sleep, and wake when others rule: their writes do not count, and nothing of the others' is lost."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from store_harness import KIB, Q, Term

from journal.errors import Deposed
from journal.files import JournalFiles
from store.check import check
from store.settings import StoreSettings

SMALL_FILES = StoreSettings(
    journal_max_file_length=64 * KIB, checkpoint_records=30, cleanup_interval=0.0, look_interval=3600.0
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    report = check(str(tmp_path))
    assert report.is_clean, report.problems


def rule(term: Term, files: int) -> None:
    """Take messages in and acknowledge them, over so many files; most of them are reclaimed."""
    owner = term.store.queue(Q)
    first = term.store._thread._end.writer.file
    while term.store._thread._end.writer.file < first + files:
        before = len(term.durable_operations)
        for operation in term.add_durably(10, body=b"x" * 2000):
            term.remove(operation, owner)
        term.wait_durable(before + 20)


@pytest.mark.parametrize("files", [0, 3, 8], ids=["at once", "after rotations", "after reclaiming"])
def test_a_zombie_finds_itself_deposed_whatever_its_successor_did_meanwhile(directory: str, files: int) -> None:
    zombie = Term(directory, "a", SMALL_FILES)
    kept = zombie.add_durably(5)
    successor = Term(directory, "b", SMALL_FILES)
    rule(successor, files)
    before = len(zombie.durable_operations)
    zombie.add(body=b"late")
    assert isinstance(zombie.wait_lost(), Deposed)
    assert len(zombie.durable_operations) == before
    zombie.crash()
    assert successor.bodies() == [operation.message.body for operation in kept]
    successor.close()


def test_a_deposed_broker_becomes_master_again_with_all_that_happened_meanwhile(directory: str) -> None:
    first = Term(directory, "a", SMALL_FILES)
    first.add_durably(3)
    second = Term(directory, "b", SMALL_FILES)
    second.add_durably(3)
    first.add(body=b"late")
    first.wait_lost()
    first.crash()
    again = Term(directory, "a", SMALL_FILES)
    again.add_durably(3)
    second.add(body=b"late, too")
    second.wait_lost()
    second.crash()
    assert again.bodies() == [b"body 1", b"body 2", b"body 3"] * 3
    again.close()


def test_late_writes_of_a_zombie_lie_behind_the_end_for_ever(directory: str) -> None:
    """The zombie's batch reaches the disk after its successor has read: nobody ever counts it."""
    zombie = Term(directory, "a", SMALL_FILES)
    zombie.add_durably(2)
    zombie.wait(lambda: zombie.store.figures.checkpoints > 0)  # from here on it sleeps
    successor = Term(directory, "b", SMALL_FILES)
    zombie.store._thread._end.writer.append([b"\x01 this would be a message"])
    zombie.store._thread._end.writer._files.disk.fsync(zombie.store._thread._end.writer._fd)
    zombie.crash()
    successor.add_durably(1)
    successor.crash()
    third = Term(directory, "c", SMALL_FILES)
    assert len(third.bodies()) == 3
    third.close()


def test_of_two_that_hold_the_lock_at_once_one_gets_the_epoch(directory: str) -> None:
    """Both were granted the lock; link(2) decides."""
    terms = [Term(directory, name, SMALL_FILES) for name in ("a", "b")]
    assert terms[0].store.epoch != terms[1].store.epoch
    terms[1].add_durably(1)
    terms[0].add()
    terms[0].wait_lost()
    terms[0].crash()
    terms[1].close()


def test_a_zombie_whose_successors_first_file_came_and_went_finds_its_own_gone(directory: str) -> None:
    """It slept through the fence, the rotations and the reclaiming: the name after its own is free again."""
    zombie = Term(directory, "a", SMALL_FILES)
    zombie.add_durably(3)
    successor = Term(directory, "b", SMALL_FILES)
    owner = successor.store.queue(Q)
    before = len(successor.durable_operations)
    for paged in successor.page(owner).messages:
        successor.remove(paged, owner)
    successor.wait_durable(before + 4)

    def are_gone() -> bool:
        rule(successor, 1)
        return not any(os.path.exists(f"{directory}/db-{file}.log") for file in (1, 2))

    successor.wait(are_gone)
    reported = len(zombie.durable_operations)
    zombie.add(body=b"late")
    assert isinstance(zombie.wait_lost(), Deposed)
    assert len(zombie.durable_operations) == reported
    zombie.crash()
    assert successor.bodies() == []
    successor.close()


@pytest.mark.parametrize("has_index", [True, False], ids=["with its index", "from the journal alone"])
def test_a_fence_put_up_where_a_file_came_and_went_is_no_damage(directory: str, has_index: bool) -> None:
    """A broker lists the files and falls asleep; rotations and reclaiming make a hole there, and it links into it."""
    first = Term(directory, "a", SMALL_FILES)
    sleeper = JournalFiles(directory)
    sleeper.prepare("b", 4 * KIB)
    hole = sleeper.list()[-1] + 1
    rule(first, 3)
    kept = first.add_durably(5)
    first.wait(lambda: hole not in sleeper.list())
    rule(first, 3)
    sleeper.publish("b", hole)
    rule(first, 1)
    first.crash()
    if not has_index:
        shutil.rmtree(f"{directory}/index")
    second = Term(directory, "b", SMALL_FILES)
    assert sum(owner.count for owner in second.owners) == len(kept)
    rule(second, 3)
    second.wait(lambda: hole not in sleeper.list())
    second.close()
