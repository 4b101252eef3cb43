"""A standby with a horizon: it reads the journal only up to the horizon, and removes the files that were given up."""

# proves: behind-the-horizon-is-not-listed, index-waits-for-final, journal-reading, needed-by-the-index-stays
# proves: own-unlinks-are-synced-each, read-up-to-the-horizon

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tandemmq.disk import Disk
from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.journal.scan import scan
from tandemmq.store.authority import SHARED_VOLUME, SharedVolume
from tandemmq.store.recovery.index_trust import places_of_indexes
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.tools.check import check
from tests.support.store.noted_authority import NotedAuthority
from tests.support.store.noting_disk import NotingDisk
from tests.support.store.standbys import standby_of
from tests.support.store.store_harness import KIB, SMALL, Q, Term

SETTINGS = replace(SMALL, journal_max_file_length=16 * KIB, enable_compaction=False)
BODY = b"x" * KIB


class UpTo(SharedVolume):
    """A horizon that a test moves."""

    def __init__(self, horizon: tuple[int, int] | None) -> None:
        self.horizon = horizon  # type: ignore[assignment]


class KeepingDisk(NotingDisk):
    """Disk whose master removes no journal file."""

    def unlink(self, path: str, /) -> None:
        if file_id(os.path.basename(path)) is None:
            super().unlink(path)


def standby(directory: str, horizon: tuple[int, int] | None, settings: StoreSettings = SETTINGS, **others: Any) -> Any:
    """Return a standby whose horizon is ``authority.horizon``."""
    made: Any = Standby(directory, f"{directory}/index", "b", settings, authority=UpTo(horizon), **others)
    made.authority = made._authority
    return made


def place_of(term: Term) -> tuple[int, int]:
    return term.store._storage._end.writer.position  # also of a term that has ended


def read_to(standby: Standby) -> tuple[int, int] | None:
    position = standby.state.position
    return None if position is None else (position.file, position.offset)


def fill(term: Term, count: int = 8) -> list[tuple[int, int]]:
    """Batches of five messages; where each of them ends."""
    ends = []
    for _ in range(count):
        term.add_durably(5, body=BODY)
        ends.append(place_of(term))
    return ends


def test_all_up_to_the_horizon_is_settled_at_once_and_nothing_behind_it(tmp_path: Path) -> None:
    directory = str(tmp_path)
    term = Term(directory, settings=SETTINGS)
    ends = fill(term)
    assert ends[-1][0] > 2
    follower = standby(directory, ends[0])
    for number, end in enumerate(ends):
        follower.authority.horizon = end
        follower.follow()
        assert read_to(follower) == end
        assert follower.messages == 5 * (number + 1)
        assert follower.follower._headers.listed == list(range(1, end[0] + 1))
        assert follower.has_caught_up
        assert (follower.lag.bytes, follower.lag.records) == (0, 0)
    follower.close()
    term.close()


def test_a_file_that_was_behind_the_horizon_may_be_another_one_later(tmp_path: Path) -> None:
    """The file was written by a deposed master, and another one took its place."""
    directory, elsewhere = str(tmp_path / "one"), str(tmp_path / "two")
    os.mkdir(directory)
    former = Term(directory, settings=SETTINGS)
    former.add_durably(5, body=BODY)
    final = place_of(former)
    former.crash()
    shutil.copytree(directory, elsewhere)
    for where, count in ((directory, 3), (elsewhere, 6)):
        later = Term(where, "c", SETTINGS)
        later.add_durably(count, body=b"later")
        end = place_of(later)
        later.crash()
    follower = standby(directory, final)
    follower.follow()
    assert read_to(follower) == final
    os.replace(f"{elsewhere}/db-2.log", f"{directory}/db-2.log")
    follower.authority.horizon = end
    follower.follow()
    assert read_to(follower) == end
    assert follower.messages == 11
    follower.close()


def test_while_the_horizon_is_behind_the_index_nothing_is_read_and_the_index_stays(tmp_path: Path) -> None:
    """After a start the final position is not known yet; an index goes no further than that."""
    directory = str(tmp_path)
    term = Term(directory, settings=SETTINGS)
    ends = fill(term)
    follower = standby(directory, ends[-1])
    follower.follow()
    follower.follower.checkpoint()
    follower.close()
    for horizon in ((0, 0), ends[0], (ends[-1][0], ends[-1][1] - 1)):
        follower = standby(directory, horizon)
        follower.follow()
        assert read_to(follower) == ends[-1]
        assert not follower.has_caught_up
        assert follower.follower._headers.listed == ()
        follower.close()
    term.add_durably(1)
    follower = standby(directory, (0, 0))
    follower.follow()
    follower.authority.horizon = place_of(term)
    follower.follow()
    assert follower.messages == 41
    follower.close()
    term.close()
    assert check(directory).is_clean


def test_an_index_behind_removed_files_continues_when_the_horizon_is_known(tmp_path: Path) -> None:
    directory = str(tmp_path)
    term = Term(directory, settings=SETTINGS)
    follower = standby(directory, fill(term, 1)[-1])
    follower.follow()
    follower.follower.checkpoint()
    follower.close()
    fill(term)
    owner = term.store.queue(Q)
    for paged in term.page(owner).messages[:25]:
        term.remove(paged, owner)
    fill(term, 3)
    term.close()
    assert 1 not in JournalFiles(directory).list()
    follower = standby(directory, (0, 0))
    follower.follow()
    follower.authority.horizon = place_of(term)
    follower.follow()
    assert follower.messages == 35
    follower.close()


def test_a_promotion_reads_what_is_behind_the_horizon(tmp_path: Path) -> None:
    directory = str(tmp_path)
    term = Term(directory, settings=SETTINGS)
    ends = fill(term)
    follower = standby(directory, ends[2])
    follower.follow()
    term.crash()
    with Term.of(follower) as later:
        assert len(later.bodies()) == 40
    assert check(directory).is_clean


@pytest.mark.parametrize("is_known", [False, True])
def test_no_index_goes_beyond_the_horizon_while_a_promotion_reads(tmp_path: Path, is_known: bool) -> None:
    """The promotion may fail, and the records that it read may be cut."""
    directory = str(tmp_path)
    settings = replace(SETTINGS, checkpoint_records=2)
    term = Term(directory, settings=SETTINGS)
    ends = fill(term)
    follower = standby(directory, ends[1], settings)
    follower.follow()
    follower.follower.checkpoint()
    term.crash()
    if is_known:
        follower.authority.horizon = ends[-1]
    follower.fence(lambda: True)
    follower.read()
    place = dict(places_of_indexes(f"{directory}/index"))[f"{directory}/index/b"]
    assert ((place.file, place.offset) > ends[1]) is is_known
    assert len(follower.state.owners) == 1
    assert follower.messages == 40
    follower.close()


@pytest.fixture
def given_up(tmp_path: Path) -> tuple[str, tuple[int, int], list[int]]:
    """A journal whose master recorded files as given up, and ended before their removal: (directory, end, files)."""
    directory = str(tmp_path)
    with Term.of(Standby(directory, f"{directory}/index", "a", SETTINGS, disk=cast(Disk, KeepingDisk()))) as term:
        fill(term, 6)
        owner = term.store.queue(Q)
        for paged in term.page(owner).messages[:25]:
            term.remove(paged, owner)
        fill(term, 4)
    files = JournalFiles(directory).list()
    gone = sorted(set(files) - term.store._state.files.keys())
    assert len(gone) > 1
    shutil.rmtree(f"{directory}/index/a")  # or it would be copied
    return directory, place_of(term), gone


GivenUp = tuple[str, tuple[int, int], list[int]]


def test_files_that_were_given_up_are_removed_oldest_first_and_durably(given_up: GivenUp) -> None:
    directory, end, gone = given_up
    disk = NotingDisk()
    follower = standby(directory, end, disk=cast(Disk, disk))
    follower.follow()
    assert not [step for step in disk.steps if "remove" in step], "its index does not go so far yet"
    follower.follower.checkpoint()
    disk.steps.clear()
    follower.follow()
    assert [step for step in disk.steps if "look" not in step] == [
        step for file in gone for step in (f"remove {file}", "sync names")
    ]
    follower.follow()
    assert not set(gone) & follower.state.files.keys()
    assert follower.messages == 25
    follower.close()
    assert check(directory).is_clean


def test_files_that_were_given_up_are_removed_without_further_records(given_up: GivenUp) -> None:
    """A header and the mark of what is given up change no message, yet the index has to go beyond them."""
    directory, end, gone = given_up
    follower = standby(directory, end, replace(SETTINGS, checkpoint_interval=0.0))
    follower.follower.advance()
    follower.follower.checkpoint()
    follower.follower._checkpoint.covered = follower.follower._checkpoint.covered._replace(file=gone[0])
    assert not follower.state.tail.has_changes
    follower.follow()
    follower.follow()
    assert not set(gone) & set(JournalFiles(directory).list())
    assert not follower.follower.could_remove_more, "nothing waits any more: no checkpoint begins for it"
    follower.close()


def test_files_that_the_index_needs_stay(given_up: GivenUp) -> None:
    """After a crash, the index reads the journal again from these files on."""
    directory, end, gone = given_up
    found = JournalFiles(directory)
    follower = standby(directory, (gone[-1], [batch.end for batch in scan(found, gone[-1])][1]))
    follower.follow()
    follower.follower.checkpoint()
    assert follower.follower._checkpoint.covered.file == gone[-1]
    follower.authority.horizon = end
    follower.follow()
    assert found.list()[0] == gone[-1], "what the index stands in is there"
    follower.follower.checkpoint()
    follower.follow()
    assert found.list()[0] > gone[-1]
    follower.close()


@pytest.mark.parametrize("is_halted", [True, False], ids=["halted", "without a horizon"])
def test_a_halted_standby_or_one_without_a_horizon_removes_nothing(given_up: GivenUp, is_halted: bool) -> None:
    directory, end, gone = given_up
    follower = standby(directory, end if is_halted else None)
    follower.follow()
    follower.follower.checkpoint()
    if is_halted:
        follower.halt()
    follower.follow()
    assert set(gone) <= set(JournalFiles(directory).list())
    follower.close()


# ---- A promotion that finds damage asks its authority whether others have what is damaged here


# proves: promotion
def test_damage_is_told_by_file_before_it_ends_a_promotion(tmp_path: Path) -> None:
    with Term(str(tmp_path)) as term:
        for _ in range(5):
            term.add_durably(1, body=b"x" * 2_000)
    shutil.rmtree(tmp_path / "index")
    with open(tmp_path / "db-1.log", "r+b") as file:
        file.seek(5_000)
        file.write(b"rotten")
    authority = NotedAuthority(SHARED_VOLUME, [])
    standby = standby_of(str(tmp_path), authority=authority)
    standby.fence(lambda: True)
    with pytest.raises(JournalCorrupt):
        standby.read()
    assert "damaged [1]" in authority.steps
    standby.close()
