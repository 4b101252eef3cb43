"""The end of the journal, as the storage thread writes it: one write, one sync, one fence check, in this order."""

# proves: journal-end

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.errors import Deposed, JournalFailed
from tandemmq.journal.files import JournalFiles
from tandemmq.store.authority import SharedVolume
from tandemmq.store.tools.inspect import read_headers
from tandemmq.store.writer.journal_end import NoProof
from tests.support.store.standbys import publish_next, standby_of
from tests.support.store.store_harness import SMALL, Term
from tests.support.store.unstarted_master import Master

pytestmark = pytest.mark.fence


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Callable[[str], Master]]:
    """``notes_authority``: the calls of its authority are recorded among the calls of the disk."""
    made: list[Master] = []

    def make(strategy: str = "always", notes_authority: bool = False, **options: Any) -> Master:
        made.append(Master(str(tmp_path), replace(SMALL, journal_disk_sync_strategy=strategy, **options)))
        if notes_authority:
            made[-1].authority.steps = made[-1].disk.steps
        return made[-1]

    yield make
    for each in made:
        each.store.drop()


@pytest.mark.parametrize("strategy", ["periodic", "never"])
def test_a_batch_that_must_be_durable_is_synced_with_any_strategy(master: Callable[..., Master], strategy: str) -> None:
    made = master(strategy, journal_disk_sync_interval=3600.0)
    assert made.write() == ["write 1", "look for 2"]
    assert made.write(must_sync=True) == ["write 1", "sync 1", "look for 2"]


def test_a_periodic_sync_comes_when_its_time_is_over(master: Callable[..., Master]) -> None:
    made = master("periodic", journal_disk_sync_interval=0.0)
    assert made.write() == ["write 1", "sync 1", "look for 2"]


def test_an_idle_master_syncs_what_lies_around_when_its_time_is_over(master: Callable[..., Master]) -> None:
    made = master("periodic", journal_disk_sync_interval=60.0)
    made.end._clock = made.threads.boottime
    made.write(must_sync=True)
    assert made.write() == ["write 1", "look for 2"]
    for passes, steps in ((59.0, ["look for 2"]), (1.0, ["look for 2", "sync 1"]), (60.0, ["look for 2"])):
        made.threads.now += passes
        made.disk.steps.clear()
        made.end.check_fence()
        assert made.disk.steps == steps


@pytest.mark.parametrize("strategy", ["always", "never"])
def test_the_bytes_of_a_batch_are_counted_as_they_are_in_the_file(master: Callable[..., Master], strategy: str) -> None:
    made = master(strategy)
    figures, writer = made.store.figures, made.end.writer
    start, before = writer.offset, figures.bytes_written
    made.write()
    assert figures.bytes_written - before == writer.offset - start > 0


def test_a_look_is_as_old_as_its_beginning(master: Callable[..., Master]) -> None:
    """If the volume hangs during a request, its answer is old."""
    made = master()

    def hang() -> None:
        made.threads.now += 60.0

    made.disk.on_stat = hang
    before = made.threads.now
    made.end.check_fence()
    assert made.store.figures.last_fence_check == before
    assert made.threads.now > before
    assert not made.store.may_speak()
    made.disk.on_stat = lambda: None
    made.end.check_fence()
    assert made.store.may_speak()


def test_a_broker_with_an_old_fence_check_does_not_answer(master: Callable[..., Master]) -> None:
    made = master()
    made.end.check_fence()
    assert made.store.may_speak()
    made.threads.now += 3600.0
    assert not made.store.may_speak()


def test_without_a_proof_nothing_is_reported_and_no_fence_is_checked(master: Callable[..., Master]) -> None:
    made = master()
    made.end.check_fence()
    checked_at = made.store.figures.last_fence_check
    made.threads.now += 0.001
    made.has_proof = False
    assert not made.store.may_speak()
    with pytest.raises(NoProof):
        made.write()
    with pytest.raises(NoProof):
        made.end.check_fence()
    assert made.store.figures.last_fence_check == checked_at


def test_a_batch_after_a_successors_fence_is_reported_to_nobody(master: Callable[..., Master], tmp_path: Path) -> None:
    made = master()
    publish_next(str(tmp_path))
    with pytest.raises(Deposed):
        made.write()
    with pytest.raises(Deposed):
        made.end.check_fence()


# ---- calls of the authority


def test_a_batch_is_told_before_it_is_synced_and_settled_after_the_fence_check(master: Callable[..., Master]) -> None:
    """Others sync it while this broker does; and a fence that is found ends all."""
    made = master(notes_authority=True)
    steps = ["write 1", "told 1", "sync 1", "synced 1", "look for 2", "confirmed 1"]
    assert made.write() == steps
    assert made.authority.settled[-1] == (*made.end.writer.position, False)


def test_batches_without_a_sync_are_passed_on_and_settled_too(master: Callable[..., Master]) -> None:
    made = master("never", notes_authority=True)
    assert made.write() == ["write 1", "told 1", "look for 2", "confirmed 1"]


def test_settled_batches_are_final(master: Callable[..., Master]) -> None:
    made = master("never", notes_authority=True)
    made.write()
    made.disk.steps.clear()
    made.end.settle()
    assert made.disk.steps == ["sync 1", "synced 1", "look for 2", "final 1"]
    made.disk.steps.clear()
    made.end.settle()
    assert made.disk.steps == ["final 1"], "it was synced before, and confirmed; that is not final yet"
    assert made.authority.settled[-1] == (*made.end.writer.position, True)


def test_a_failed_sync_is_reported_to_nobody(master: Callable[..., Master], monkeypatch: pytest.MonkeyPatch) -> None:
    made = master(notes_authority=True)

    def fail(fd: int) -> None:
        raise OSError(5, "the disk is broken")

    monkeypatch.setattr(made.disk, "fdatasync", fail)
    with pytest.raises(JournalFailed):
        made.write()
    assert made.disk.steps == ["write 1", "told 1"]


def test_unconfirmed_batches_do_not_count(master: Callable[..., Master]) -> None:
    made = master()
    position = made.store._state.position

    def fail() -> None:
        raise NoProof("nobody answers")

    made.authority.on_settle = fail
    with pytest.raises(NoProof):
        made.write()
    assert made.store._state.position == position
    assert not made.store.figures.batches


def test_a_rotation_seals_the_file_and_tells_of_the_header(master: Callable[..., Master]) -> None:
    made = master(notes_authority=True)
    file, end = made.end.writer.position
    made.disk.steps.clear()
    made.end.rotate()
    steps = [step for step in made.disk.steps if not step.startswith("look") and step != "sync names"]
    end_marker = ["write 1", "sync 1"]  # which is reported to no part
    assert steps == ["sealed 1", "write 2", "told 2", "sync 2", *end_marker, "synced 2"]
    assert made.authority.ends == {file: end}


class Waiting(SharedVolume):
    """Authority that confirms nothing until the test permits it; then everything."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.is_over = threading.Event()
        self.is_over.set()

    def settle(self, file: int, end: int, *, must_be_final: bool = False, alive: Callable[[], object]) -> None:
        while not self.is_over.wait(0.001):
            alive()
            self.asked.set()


def test_a_thread_that_waits_for_others_shows_life(tmp_path: Path) -> None:
    authority = Waiting()
    standby = standby_of(str(tmp_path), authority=authority)
    assert standby.seen_busy() == -math.inf
    term = Term.of(standby)
    authority.is_over.clear()
    term.add()
    term.end_turn()
    for _ in range(3):
        authority.asked.clear()
        before = term.store.figures.last_seen_alive
        term.wait(lambda before=before: authority.asked.is_set() and term.store.figures.last_seen_alive > before)
    assert not term.durable_operations
    authority.is_over.set()
    term.wait_durable(1)
    term.close()


def test_a_promotion_that_waits_for_others_is_seen_alive(tmp_path: Path) -> None:
    authority = Waiting()
    authority.is_over.clear()
    standby = standby_of(str(tmp_path), authority=authority)
    made: list[Term] = []
    thread = threading.Thread(target=lambda: made.append(Term.of(standby)))
    thread.start()
    authority.asked.wait()
    assert standby.seen_busy() > -math.inf
    assert not made
    authority.is_over.set()
    thread.join()
    made[0].close()


def test_a_dropped_store_does_not_wait(tmp_path: Path) -> None:
    authority = Waiting()
    term = Term.of(standby_of(str(tmp_path), authority=authority))
    authority.is_over.clear()
    term.add()
    term.end_turn()
    authority.asked.wait()
    term.crash()
    assert not term.durable_operations
    assert term.lost is None


# ---- rotation


def test_a_rotation_names_the_end_and_is_synced_before_anything_follows(
    master: Callable[..., Master], tmp_path: Path
) -> None:
    made = master()
    end = made.end.writer.position
    made.disk.steps.clear()
    made.end.rotate()
    assert read_headers(JournalFiles(str(tmp_path))).ends == {1: end[1]}
    assert made.disk.steps[:2] == ["look for 2", "look for 2"], "once with the proof, once before the link"
    header = made.disk.steps.index("write 2")
    assert made.disk.steps[header + 1] == "sync 2"


def test_a_broker_without_a_proof_makes_no_file(master: Callable[..., Master], tmp_path: Path) -> None:
    made = master()
    made.has_proof = False
    with pytest.raises(NoProof):
        made.end.rotate()
    assert JournalFiles(str(tmp_path)).list() == [1]
