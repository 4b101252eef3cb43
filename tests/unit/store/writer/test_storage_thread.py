"""Checks of the storage thread before it reports, and its reaction to their results."""

# proves: journal-end

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tandemmq.disk import Disk
from tandemmq.index.errors import IndexInUse
from tandemmq.index.lock import lock_directory
from tandemmq.journal.errors import Deposed
from tandemmq.store.operations import Page
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store
from tandemmq.store.threads import OsThreads, Thread
from tandemmq.store.tools.check import check
from tests.support.store.noting_disk import NotingDisk
from tests.support.store.standbys import publish_next, standby_of
from tests.support.store.store_harness import SMALL, Q, Term

# The store does not check its fence at intervals.
ASLEEP = replace(SMALL, fence_check_interval=3600.0)


class Overtaken(Standby):
    """Promotion that is suspended when it has begun its epoch; a successor comes before it serves."""

    def promote(self, **options: Any) -> Store:
        store = super().promote(**options)
        publish_next(self.directory)
        return store


def test_a_broker_suspended_before_it_served_is_deposed_before_it_reads_a_page(directory: str) -> None:
    with Term(directory, "a") as first:
        first.add_durably(3)
    term = Term.of(Overtaken(directory, f"{directory}/index", "a", ASLEEP))
    page = Page(term.store.queue(Q), 0, 10, 1 << 30)
    term.store.append(page)
    assert isinstance(term.wait_lost(), Deposed)
    assert page not in term.durable_operations
    term.crash()


def test_a_master_with_nothing_to_do_finds_its_successor(directory: str) -> None:
    term = Term(directory, "a")
    publish_next(directory)
    assert isinstance(term.wait_lost(), Deposed)
    term.crash()


class Lingering(OsThreads):
    """The storage thread is there for a while after its work has ended, as each is for a moment."""

    def __init__(self) -> None:
        self.has_worked = threading.Event()
        self.may_end = threading.Event()

    def thread(self, target: Callable[[], object], name: str) -> Thread:
        def linger() -> None:
            target()
            self.has_worked.set()
            self.may_end.wait()

        return super().thread(linger if name == "tandemmq-storage" else target, name)


def test_a_request_to_a_thread_that_has_ended_does_not_wait_forever(directory: str) -> None:
    threads = Lingering()
    term = Term.of(standby_of(directory, "a", threads=threads))
    publish_next(directory)
    assert threads.has_worked.wait(30)
    answer = term.store.ask(lambda state: None)
    threads.may_end.set()
    assert answer.cancelled()
    term.crash()


class RemovedInTime(NotingDisk):
    """A successor comes, and removes db-1.log, right before it is opened: after the look, that is."""

    is_armed = False

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        if self.is_armed and os.path.basename(path) == "db-1.log":
            self.is_armed = False
            publish_next(os.path.dirname(path))
            os.unlink(path)
        return super().open(path, flags, mode)


def test_a_file_that_a_successor_removed_is_no_damage(tmp_path: Path) -> None:
    with Term(str(tmp_path), "a", ASLEEP) as first:
        added = first.add_durably(20, body=b"x" * 2000)
        first.take(added[:15])
    disk = RemovedInTime()
    term = Term(str(tmp_path), "a", ASLEEP, disk=cast(Disk, disk))
    disk.is_armed = True
    term.store.compact()
    assert isinstance(term.wait_lost(), Deposed)
    term.crash()


def test_a_halted_store_reports_no_completed_operation(directory: str) -> None:
    term = Term(directory, "a", ASLEEP)
    term.add_durably(1)
    before = term.store.figures.confirmed
    term.store.halt()
    term.store._storage._report([Page(1, 0, 10, 1 << 30)])
    assert term.store.figures.confirmed == before
    term.crash()


# ---- A store that is dropped while its storage thread hangs in the volume


class HangingDisk:
    """The real disk; its syncs hang while ``goes_on`` is not set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.hangs = threading.Event()

    def _wait(self) -> None:
        if not self.goes_on.is_set():
            self.hangs.set()
            self.goes_on.wait(30)

    def fdatasync(self, descriptor: int) -> None:
        self._wait()
        os.fdatasync(descriptor)

    def fsync(self, descriptor: int) -> None:
        self._wait()
        os.fsync(descriptor)

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


def is_locked(index: str) -> bool:
    try:
        os.close(lock_directory(os, index))
    except IndexInUse:
        return True
    return False


def test_it_lets_go_of_everything_when_it_wakes_up(tmp_path: Path) -> None:
    """Otherwise each such demotion costs the process one more index directory, until it ends."""
    disk = HangingDisk()
    term = Term(str(tmp_path), "a", disk=disk)
    term.add_durably(3)
    index = f"{tmp_path}/index/a"
    disk.goes_on.clear()
    term.add()
    term.end_turn()
    assert disk.hangs.wait(10), "the sync is asked for"
    dropping = threading.Thread(target=term.store.drop)
    dropping.start()
    dropping.join(0.2)
    assert dropping.is_alive(), "it waits for the thread that hangs"
    assert is_locked(index)
    disk.goes_on.set()
    dropping.join(10)
    assert not dropping.is_alive()
    assert not is_locked(index)
    assert check(str(tmp_path)).is_clean


def test_a_store_that_is_closed_is_never_silent(tmp_path: Path) -> None:
    """If several stores are being closed, the first closed one is not taken for hung."""
    term = Term(str(tmp_path), "a")
    term.add_durably(3)
    term.store.close()
    closed = time.monotonic()
    time.sleep(0.05)
    assert term.store.seen_alive() > closed
