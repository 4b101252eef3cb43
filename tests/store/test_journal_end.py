"""The end of the journal, as the storage thread writes it: one write, one sync, one look, in this order."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from store_harness import SMALL
from unstarted_master import Master

from journal.errors import Deposed
from journal.files import JournalFiles
from store.inspect import read_headers
from store.journal_end import NoProof


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Callable[[str], Master]]:
    made: list[Master] = []

    def make(strategy: str = "always", **said: Any) -> Master:
        made.append(Master(str(tmp_path), replace(SMALL, journal_disk_sync_strategy=strategy, **said)))
        return made[-1]

    yield make
    for each in made:
        each.store.drop()


def test_a_batch_is_synced_before_it_is_looked_at(master: Callable[..., Master]) -> None:
    """A successor that is not there at the look reads after it, and so after the sync."""
    assert master().write() == ["write 1", "sync 1", "look for 2"]


@pytest.mark.parametrize("strategy", ["periodic", "never"])
def test_what_must_be_on_the_disk_is_synced_whatever_the_strategy(master: Callable[..., Master], strategy: str) -> None:
    made = master(strategy, journal_disk_sync_interval=3600.0)
    assert made.write() == ["write 1", "look for 2"]
    assert made.write(must_sync=True) == ["write 1", "sync 1", "look for 2"]


def test_what_is_settled_is_synced_and_then_looked_at(master: Callable[..., Master]) -> None:
    made = master("never")
    made.write()
    made.disk.steps.clear()
    made.end.settle()
    assert made.disk.steps == ["sync 1", "look for 2"]
    made.end.settle()
    assert made.disk.steps == ["sync 1", "look for 2"], "nothing was written since"


def test_a_periodic_sync_comes_when_its_time_is_over(master: Callable[..., Master]) -> None:
    made = master("periodic", journal_disk_sync_interval=0.0)
    assert made.write() == ["write 1", "sync 1", "look for 2"]


def test_a_look_is_as_old_as_its_beginning(master: Callable[..., Master]) -> None:
    """A volume that hangs while it is asked makes what it answers old."""
    made = master()

    def hang() -> None:
        made.threads.now += 60.0

    made.disk.looking = hang
    before = made.threads.now
    made.end.look()
    assert made.store.figures.last_look == before
    assert made.threads.now > before
    assert not made.store.may_speak()
    made.disk.looking = lambda: None
    made.end.look()
    assert made.store.may_speak()


def test_a_broker_whose_last_look_is_old_says_nothing(master: Callable[..., Master]) -> None:
    made = master()
    made.end.look()
    assert made.store.may_speak()
    made.threads.now += 3600.0
    assert not made.store.may_speak()


def test_without_a_proof_nothing_is_said_and_nothing_was_looked_at(master: Callable[..., Master]) -> None:
    made = master()
    made.end.look()
    looked_at = made.store.figures.last_look
    made.threads.now += 0.001
    made.has_proof = False
    assert not made.store.may_speak()
    with pytest.raises(NoProof):
        made.write()
    with pytest.raises(NoProof):
        made.end.look()
    assert made.store.figures.last_look == looked_at


def test_a_batch_that_meets_a_successor_is_answered_to_nobody(master: Callable[..., Master], tmp_path: Path) -> None:
    made = master()
    files = JournalFiles(str(tmp_path))
    files.prepare("b", 4096)
    files.publish("b", 2)
    with pytest.raises(Deposed):
        made.write()
    with pytest.raises(Deposed):
        made.end.look()


def test_a_rotation_names_where_its_file_ends_and_is_on_the_disk_before_anything_follows(
    master: Callable[..., Master], tmp_path: Path
) -> None:
    made = master()
    end = made.end.writer.position
    made.disk.steps.clear()
    made.end._rotate()
    assert read_headers(JournalFiles(str(tmp_path))).ends == {1: end[1]}
    assert made.disk.steps[:2] == ["look for 2", "look for 2"], "once with the proof, once before the link"
    header = made.disk.steps.index("write 2")
    assert made.disk.steps[header + 1] == "sync 2"


def test_who_lost_its_proof_makes_no_file(master: Callable[..., Master], tmp_path: Path) -> None:
    made = master()
    made.has_proof = False
    with pytest.raises(NoProof):
        made.end._rotate()
    assert JournalFiles(str(tmp_path)).list() == [1]
