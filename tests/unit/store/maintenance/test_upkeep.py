"""Unneeded files are removed one after the other, each durably; a failure on the way is final."""

# proves: copied-message-is-removed-again, live-files, pins, upkeep

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any, cast

import pytest

from tandemmq.disk import Disk
from tandemmq.index.errors import IndexFailed
from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.store.operations import AddMessage, EndTransaction, PrepareTransaction, RemoveMessage
from tandemmq.store.records.commands import encode_commit, encode_prepare, encode_remove
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import XaTransactionId
from tandemmq.store.standby import Standby
from tandemmq.store.threads import OsThreads, Threads
from tests.support.store.noting_disk import NotingDisk
from tests.support.store.store_harness import KIB, SMALL, Q, Term
from tests.support.store.unstarted_master import Master

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
    master.store._storage._upkeep._unlink((7, 8, 9))
    assert master.disk.steps == [f"{step}" for file in (7, 8, 9) for step in (f"remove {file}", "sync names")]


def test_a_halted_store_removes_no_more_files(master: Master, tmp_path: Path) -> None:
    make(tmp_path, (7, 8))
    master.store.halt()
    master.store._storage._upkeep._unlink((7, 8))
    assert (tmp_path / "db-7.log").exists()
    assert (tmp_path / "db-8.log").exists()


def test_files_that_were_closed_without_a_change_go(tmp_path: Path) -> None:
    settings = replace(SMALL, cleanup_interval=0.0)
    with Term.of(Standby(str(tmp_path), f"{tmp_path}/index", "a", settings)) as term:
        for _ in range(3):
            term.store.rotate().result(WAIT_SECONDS_MAX)
        last = term.position.file
        term.wait(lambda: [path.name for path in tmp_path.glob("db-*.log")] == [f"db-{last}.log"])


def test_files_left_by_a_former_term_are_removed_with_rare_syncs_and_without_writes(tmp_path: Path) -> None:
    settings = replace(
        SMALL,
        journal_disk_sync_strategy="periodic",
        checkpoint_records=10_000,
        cleanup_interval=0.0,
        cleanup_on_stop=False,
    )
    with Term(str(tmp_path), settings=settings) as former:
        former.take(former.add_durably(20, body=b"x" * 4000))
    assert len(list(tmp_path.glob("db-*.log"))) > 2
    with Term(str(tmp_path), settings=settings) as term:
        last = term.position.file
        term.wait(lambda: [path.name for path in tmp_path.glob("db-*.log")] == [f"db-{last}.log"])


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
    """Says what the storage thread waits for, or waited for."""

    def __init__(self) -> None:
        self.futures: set[Future[Any]] = set()

    def wait(self, futures: Iterable[Future[Any]], timeout: float | None = None) -> bool:
        waited = list(futures)
        if threading.current_thread().name == "tandemmq-storage":
            self.futures.update(waited)
        return super().wait(waited, timeout)


def test_the_next_files_stay_until_those_before_are_gone(tmp_path: Path) -> None:
    disk, threads = HangingRemoval(), WaitedFor()
    settings = replace(SMALL, checkpoint_records=20, cleanup_interval=0.0, enable_compaction=False)
    term = Term.of(
        Standby(
            str(tmp_path), f"{tmp_path}/index", "a", settings, disk=cast(Disk, disk), threads=cast(Threads, threads)
        )
    )
    owner = term.store.queue(Q)

    def fill() -> None:
        for operation in term.add_durably(10, body=b"x" * 2000):
            term.remove(operation, owner)

    while not disk.is_hanging.is_set():
        fill()
    first = min(file for file in range(1, 100) if (tmp_path / f"db-{file}.log").exists())
    upkeep, added = term.store._storage._upkeep, []
    while upkeep._unlinking not in threads.futures and (tmp_path / f"db-{first + 1}.log").exists():
        added.append(term.add(body=b"x" * 2000))
        term.end_turn()
        time.sleep(0.001)
        # One that is durable only later is removed later: any that stays keeps its file.
        while added and added[0] in term.durable_operations:
            term.remove(added.pop(0), owner)
        while not term.loop.empty():
            term.loop.get()()
    assert (tmp_path / f"db-{first}.log").exists()
    assert (tmp_path / f"db-{first + 1}.log").exists()
    disk.may_go_on.set()
    term.close()


class NoMorePages(NotingDisk):
    """Disk on which writes to db.data fail once ``is_full`` is set."""

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
    term = Term(str(tmp_path), "a", replace(SMALL, fence_check_interval=3600.0), disk=cast(Disk, disk))
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
    """A pin of a file that still exists must stay: the term must not continue as if the file were removed."""
    disk = StubbornNames()
    settings = replace(SMALL, checkpoint_records=20, cleanup_interval=0.0, fence_check_interval=3600.0)
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


# ---- A committed removal stays, whichever files are removed; checked with an index made from the journal


XID = XaTransactionId(5, b"global", b"branch")
OTHER = Destination(DestinationKind.QUEUE, "OTHER")
# Files are moved or removed only on request.
STILL = replace(SMALL, cleanup_interval=0.0, enable_compaction=False)


def rotate(term: Term) -> None:
    term.store.rotate().result(10)


def checkpoint(term: Term) -> None:
    """Twice: a file that goes in one is known to be gone in the next."""
    for _ in range(2):
        for each in term.store.checkpoint():
            each.result(10)


def prepare_removal(term: Term, taken: AddMessage) -> None:
    message = taken.message
    payload = encode_remove(message.destination, message.message_id, XID)
    removal = RemoveMessage(
        term.store.queue(Q), taken.order_key, taken.location, message.message_id, payload, size=taken.size
    )
    term.do(PrepareTransaction(XID, [removal], encode_prepare(XID)))


def commit(term: Term) -> None:
    assert len(term.do(EndTransaction(XID, True, encode_commit(XID))).removed) == 1


def compact(term: Term) -> None:
    term.wait(term.store.compact().done)


def by_the_journal_alone(directory: str) -> list[bytes]:
    shutil.rmtree(f"{directory}/index")
    term = Term(directory, "another", STILL)
    try:
        return term.bodies(Q)
    finally:
        term.close()


def test_the_file_of_a_committed_removal_stays_as_long_as_that_of_its_message(directory: str) -> None:
    term = Term(directory, settings=STILL)
    _, taken = term.add_durably(1, Q, b"kept"), *term.add_durably(1, Q, b"taken")
    rotate(term)
    prepare_removal(term, taken)
    rotate(term)
    commit(term)
    rotate(term)
    term.add_durably(1, OTHER)
    checkpoint(term)
    term.close()
    assert JournalFiles(directory).list()[:3] == [1, 2, 3]

    assert by_the_journal_alone(directory) == [b"kept"]


def test_a_message_that_was_copied_behind_its_prepared_removal_stays_taken(directory: str) -> None:
    """The copy stands in a later file than the removal, which goes with its file; the Commit alone takes nothing."""
    term = Term(directory, settings=STILL)
    kept = term.add_durably(9, Q, b"k" * 6 * KIB)
    (taken,) = term.add_durably(1, Q, b"taken")
    prepare_removal(term, taken)
    rotate(term)
    for added in kept[:3]:
        term.remove(added, term.store.queue(Q))
    filling = term.add_durably(5, OTHER, b"f" * 6 * KIB)
    # To here the transaction is copied; what it removes does not fit behind it.
    compact(term)
    file_of_removal = 2
    commit(term)
    for added in filling:
        term.remove(added, term.store.queue(OTHER))
    rotate(term)
    term.add_durably(1, OTHER)
    checkpoint(term)
    term.close()
    assert file_of_removal not in JournalFiles(directory).list(), "nothing needs it, and it would be no proof"

    assert by_the_journal_alone(directory) == [b"k" * 6 * KIB] * 6
