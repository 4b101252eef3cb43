"""Files that nobody needs go one after the other, each for good; and what fails on the way is final."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any, cast

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from noting_disk import NotingDisk
from store_harness import SMALL, Q, Term
from unstarted_master import Master

from index.errors import IndexFailed
from journal.files import file_id
from store.standby import Disk, Standby
from store.threads import OsThreads, Threads

WAIT_SECONDS_MAX = 20.0


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    made = Master(str(tmp_path), SMALL)
    yield made
    made.store.drop()


def make(directory: Path, files: Iterable[int]) -> None:
    for file in files:
        (directory / f"db-{file}.log").touch()


def test_each_file_is_gone_for_good_before_the_next(master: Master, tmp_path: Path) -> None:
    """A removed acknowledgement must not be gone while a power loss brings the message back that it killed."""
    make(tmp_path, (7, 8, 9))
    master.disk.steps.clear()
    master.store._thread._upkeep._unlink((7, 8, 9))
    assert master.disk.steps == [f"{step}" for file in (7, 8, 9) for step in (f"remove {file}", "sync names")]


def test_who_was_told_to_stop_removes_nothing_more(master: Master, tmp_path: Path) -> None:
    make(tmp_path, (7, 8))
    master.store.halt()
    master.store._thread._upkeep._unlink((7, 8))
    assert (tmp_path / "db-7.log").exists()
    assert (tmp_path / "db-8.log").exists()


class HangingRemoval(NotingDisk):
    """The first removal of a journal file hangs in the volume."""

    def __init__(self) -> None:
        super().__init__()
        self.is_hanging = threading.Event()
        self.may_go_on = threading.Event()

    def unlink(self, path: str, /) -> None:
        if file_id(os.path.basename(path)) is not None and not self.is_hanging.is_set():
            self.is_hanging.set()
            assert self.may_go_on.wait(WAIT_SECONDS_MAX)
        super().unlink(path)


class WaitedFor(OsThreads):
    """Says when the storage thread waits for something."""

    def __init__(self) -> None:
        self.is_waiting = threading.Event()

    def wait(self, futures: Iterable[Future[Any]], timeout: float | None = None) -> bool:
        waited = list(futures)
        if waited and threading.current_thread().name == "tandemmq-storage":
            self.is_waiting.set()
        return super().wait(waited, timeout)


def test_the_next_files_stay_until_those_before_are_gone(tmp_path: Path) -> None:
    disk, threads = HangingRemoval(), WaitedFor()
    settings = replace(SMALL, checkpoint_records=20, cleanup_interval=0.0, enable_compaction=False)
    term = Term.of(
        Standby(
            str(tmp_path),
            f"{tmp_path}/index",
            "a",
            settings,
            disk=cast(Disk, disk),
            threads=cast(Threads, threads),
        )
    )
    owner = term.store.queue(Q)

    def fill() -> None:
        for operation in term.add_durably(10, body=b"x" * 2000):
            term.remove(operation, owner)

    while not disk.is_hanging.is_set():
        fill()
    first = min(file for file in range(1, 100) if (tmp_path / f"db-{file}.log").exists())
    threads.is_waiting.clear()
    while not threads.is_waiting.is_set() and (tmp_path / f"db-{first + 1}.log").exists():
        added = term.add(body=b"x" * 2000)
        term.end_turn()
        threads.is_waiting.wait(0.01)
        if added in term.durable_operations:
            term.remove(added, owner)
        while not term.loop.empty():
            term.loop.get()()
        if threads.is_waiting.is_set() and term.store._thread._upkeep._unlinking is None:
            threads.is_waiting.clear()
    assert (tmp_path / f"db-{first}.log").exists()
    assert (tmp_path / f"db-{first + 1}.log").exists()
    disk.may_go_on.set()
    term.close()


class NoMorePages(NotingDisk):
    """From a moment on db.data takes no bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self._data: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        fd = super().open(path, flags, mode)
        self._data.discard(fd)
        if os.path.basename(path).startswith("db.data"):
            self._data.add(fd)
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int, /) -> int:
        if fd in self._data and self.is_full:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pwrite(fd, data, offset)


def test_a_checkpoint_that_failed_is_the_end_of_the_term(tmp_path: Path) -> None:
    disk = NoMorePages()
    term = Term(str(tmp_path), "a", replace(SMALL, look_interval=3600.0), disk=cast(Disk, disk))
    term.add_durably(5)
    disk.is_full = True
    term.store.checkpoint()
    assert isinstance(term.wait_lost(), IndexFailed)
    term.crash()


class StubbornNames(NotingDisk):
    """No journal file can be removed."""

    def __init__(self) -> None:
        super().__init__()
        self.has_refused = False

    def unlink(self, path: str, /) -> None:
        if file_id(os.path.basename(path)) is not None:
            self.has_refused = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().unlink(path)


def test_a_removal_that_failed_is_the_end_of_the_term_though_nothing_follows(tmp_path: Path) -> None:
    """What pins a file that is still there must stay: nobody may go on as if it had gone."""
    disk = StubbornNames()
    settings = replace(SMALL, checkpoint_records=20, cleanup_interval=0.0, look_interval=3600.0)
    term = Term(str(tmp_path), "a", settings, disk=cast(Disk, disk))
    owner = term.store.queue(Q)
    while not disk.has_refused:
        added = term.add(body=b"x" * 2000)
        while not disk.has_refused and added not in term.durable_operations:
            term.end_turn()
            with suppress(Empty):
                term.loop.get(timeout=0.05)()
        if not disk.has_refused:
            term.remove(added, owner)
    assert isinstance(term.wait_lost(), OSError)
    term.crash()
