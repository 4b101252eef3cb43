"""Masters that resume after another broker became master: their writes do not count, and the other's are not lost."""

# proves: headers, journal-end, journal-reading, live-files, promotion

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.errors import Deposed
from tandemmq.journal.files import JournalFiles
from tandemmq.store.migration.reading import _is_foreign
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.check import check
from tandemmq.store.tools.inspect import read_headers
from tandemmq.store.writer.journal_end import NoProof
from tests.support.store.standbys import fence_and_die, standby_of
from tests.support.store.store_harness import KIB, Q, Term

pytestmark = [pytest.mark.fence, pytest.mark.promise("one-master-counts")]

SMALL_FILES = StoreSettings(
    journal_max_file_length=64 * KIB, checkpoint_records=30, cleanup_interval=0.0, fence_check_interval=3600.0
)

# A file with a live message is kept: no message is moved out of it.
UNMOVED = replace(SMALL_FILES, enable_compaction=False)
# The store makes no checkpoint, and does not check its fence at intervals.
ASLEEP = replace(UNMOVED, checkpoint_records=10_000, checkpoint_interval=3600.0)


def rule(term: Term, files: int) -> None:
    """Take messages in and acknowledge them, over so many files; most of them are reclaimed."""
    first = term.position.file
    while term.position.file < first + files:
        term.take(term.add_durably(10, body=b"x" * 2000))


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


def test_late_writes_of_a_zombie_lie_behind_the_end_for_ever(directory: str) -> None:
    """The zombie's batch reaches the disk after its successor has read: it never counts."""
    zombie = Term(directory, "a", SMALL_FILES)
    zombie.add_durably(2)
    successor = Term(directory, "b", SMALL_FILES)
    zombie.write_late()
    zombie.crash()
    successor.add_durably(1)
    successor.crash()
    with Term(directory, "c", SMALL_FILES) as third:
        assert len(third.bodies()) == 3


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
    with Term(directory, "b", SMALL_FILES) as second:
        assert sum(owner.count for owner in second.owners) == len(kept)
        rule(second, 3)
        second.wait(lambda: hole not in sleeper.list())


@pytest.mark.parametrize("fences", [1, 2])
@pytest.mark.parametrize("does", ["sends", "acknowledges"])
def test_a_fence_without_a_header_deposes_who_sleeps_before_it(directory: str, fences: int, does: str) -> None:
    """Promotions die before their header; a successor rules, and reclaims what it can; then the first master wakes."""
    sleeper = Term(directory, "a", ASLEEP)
    kept = sleeper.add_durably(5)
    for number in range(fences):
        fence_and_die(directory, f"b{number}")
    successor = Term(directory, "c", UNMOVED)
    rule(successor, 6)
    # The oldest files are removed first: when this one is removed, all removable files are.
    successor.wait(lambda: not os.path.exists(f"{directory}/db-{3 + fences}.log"))
    assert os.path.exists(f"{directory}/db-1.log"), "what it wrote is needed"
    before = len(sleeper.durable_operations)
    if does == "sends":
        sleeper.add(body=b"late")
    else:
        sleeper.remove(kept[0], sleeper.store.queue(Q))
    assert isinstance(sleeper.wait_lost(), Deposed)
    assert len(sleeper.durable_operations) == before, "no receipt"
    sleeper.crash()
    assert successor.bodies() == [operation.message.body for operation in kept]
    successor.close()


def test_a_fence_without_a_header_goes_when_nobody_can_sleep_before_it(directory: str) -> None:
    first = Term(directory, "a", UNMOVED)
    kept = first.add_durably(1)
    first.crash()
    fence_and_die(directory, "b")
    third = Term(directory, "c", UNMOVED)
    rule(third, 3)
    assert os.path.exists(f"{directory}/db-2.log"), "a message stands before it"
    owner = third.store.queue(Q)
    third.take(third.page(owner).messages[: len(kept)], owner)

    def is_gone() -> bool:
        rule(third, 1)
        return not os.path.exists(f"{directory}/db-2.log")

    third.wait(is_gone)
    assert not os.path.exists(f"{directory}/db-1.log"), "it went first"
    third.close()


def test_the_check_recognises_a_fence_and_reports_one_that_was_removed_too_early(tmp_path: Path) -> None:
    directory = str(tmp_path)
    first = Term(directory, "a", SMALL_FILES)
    first.add_durably(1)
    first.crash()
    fence_and_die(directory, "b")
    third = Term(directory, "c", SMALL_FILES)
    third.close()
    report = check(directory)
    assert report.is_clean
    assert any("db-2.log has no valid header" in note for note in report.notes)
    os.unlink(f"{directory}/db-2.log")
    assert any("db-2.log, a fence without header, is missing" in problem for problem in check(directory).problems)


@pytest.mark.parametrize("has_index", [True, False], ids=["with its index", "from the journal alone"])
def test_a_fence_without_a_header_that_is_gone_is_no_damage(directory: str, has_index: bool) -> None:
    """A deposed master that was suspended while it removed files removes one whose name another broker has used
    since."""
    first = Term(directory, "a", SMALL_FILES)

    def are_gone() -> bool:
        rule(first, 1)
        return not any(os.path.exists(f"{directory}/db-{file}.log") for file in (1, 2))

    first.wait(are_gone)
    first.crash()
    sleeper = JournalFiles(directory)
    sleeper.prepare("b", 4 * KIB)
    sleeper.publish("b", 1)
    second = Term(directory, "a", SMALL_FILES)
    second.crash()
    assert read_headers(sleeper).ends[1] == 0
    os.unlink(f"{directory}/db-1.log")
    if not has_index:
        shutil.rmtree(f"{directory}/index")
    third = Term(directory, "c", SMALL_FILES)
    third.close()


def test_a_late_fence_in_place_of_a_removed_file_makes_no_file_missing(
    directory: str,
) -> None:
    """The former promotion hung before its link. It finds that it is deposed, and its file stays."""
    Term(directory, "a", SMALL_FILES).crash()
    with Term(directory, "b", SMALL_FILES) as second:
        rule(second, 2)
    fence_and_die(directory, "c")
    fourth = Term(directory, "d", UNMOVED)
    last = JournalFiles(directory).list()[-1]
    fourth.add_durably(1)  # keeps its first file, whose header found the fence
    files = JournalFiles(directory)

    def is_first() -> bool:
        rule(fourth, 1)
        return files.list()[0] == last

    fourth.wait(is_first)
    fourth.close()
    files.prepare("late", 64)
    files.publish("late", 1)


def test_a_standby_follows_past_a_headerless_fence_and_a_missing_file(directory: str) -> None:
    """The missing file named the end of the file at which the standby is: its writer continued nevertheless."""
    first = Term(directory, "a", UNMOVED)
    kept = first.add_durably(1)
    standby = standby_of(directory, "c", UNMOVED)
    standby.follow()
    rule(first, 2)
    first.crash()
    fence_and_die(directory, "b")
    number = JournalFiles(directory).list()[-1]
    second = Term(directory, "d", UNMOVED)
    rule(second, 2)
    second.wait(lambda: JournalFiles(directory).list()[:2] == [1, number])  # the first, and the fence that it keeps
    standby.follow()
    position = standby.state.position
    assert position is not None
    assert position.file > number
    standby.close()
    assert second.bodies() == [operation.message.body for operation in kept]
    second.close()


def test_a_fence_that_is_the_last_file_is_nobody_elses(directory: str) -> None:
    """A reader of the directory does not take it for a file of ActiveMQ."""
    first = Term(directory, "a", SMALL_FILES)
    first.add_durably(2)
    first.crash()
    fence_and_die(directory, "b")
    assert not _is_foreign(JournalFiles(directory))


class HangsBeforeItsLink:
    """The disk of a promotion that sleeps for long right before link(2): ``meanwhile`` happens."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def listdir(self, path: str, /) -> list[str]:
        self._meanwhile()
        return os.listdir(path)


def test_a_broker_that_lost_the_lock_before_its_fence_does_not_depose_the_master(directory: str) -> None:
    proofs = [True]
    rightful = Term(directory, "a", SMALL_FILES)
    rightful.add_durably(2)
    late = standby_of(directory, settings=SMALL_FILES, disk=HangsBeforeItsLink(lambda: proofs.clear()))
    with pytest.raises(NoProof):
        late.fence(lambda: bool(proofs))
    late.close()
    assert JournalFiles(directory).list() == [1], "no fence"
    rightful.add_durably(2)
    assert len(rightful.bodies()) == 4
    rightful.close()


def test_a_broker_that_loses_the_lock_after_its_fence_continues_until_its_first_fence_check(directory: str) -> None:
    """After the link the holder of the lock does not matter: the fenced-off master is deposed, and one broker must
    follow."""
    first = Term(directory, "a", SMALL_FILES)
    first.add_durably(2)
    late = standby_of(directory, settings=SMALL_FILES)
    answers = [True]
    late.fence(lambda: answers.pop())
    late.read()
    assert sum(owner.count for owner in late.state.owners.values()) == 2
    late.close()
    first.crash()
