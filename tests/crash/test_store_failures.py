"""Each write, sync, link and unlink of a store's life fails once; then it is opened again and held to its word."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(__file__)), "store"))

from failing_disk import FailingDisk
from store_harness import Q, Term

from index.errors import IndexTrouble
from journal.errors import JournalError
from store.check import check
from store.operations import AddMessage, RemoveMessage
from store.settings import StoreSettings

SETTINGS = StoreSettings(
    journal_max_file_length=16 * 1024, checkpoint_records=25, cleanup_interval=0.0, look_interval=0.01
)
ROUNDS = 6


class Promises:
    """What a broker's clients were told."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.acknowledging: set[str] = set()
        self.acknowledged: set[str] = set()

    def note(self, term: Term) -> None:
        for operation in term.durable_operations:
            if isinstance(operation, AddMessage):
                self.stored.add(operation.message.message_id)
            elif isinstance(operation, RemoveMessage):
                self.acknowledged.add(operation.message_id)

    def hold(self, found: list[str]) -> None:
        assert len(found) == len(set(found)), "a message is there twice"
        lost = self.stored - self.acknowledging - set(found)
        assert not lost, f"lost: {lost}"
        undone = self.acknowledged & set(found)
        assert not undone, f"acknowledged, and there again: {undone}"


def live(directory: str, disk: FailingDisk, promises: Promises) -> None:
    """A short life: messages in, most of them acknowledged, rotations, checkpoints, a file or two reclaimed."""
    term = Term(directory, settings=SETTINGS, disk=disk)
    try:
        owner = term.store.queue(Q)
        for _ in range(ROUNDS):
            before = len(term.durable_operations)
            added = term.add_durably(8, body=b"x" * 700)
            for operation in added[1:]:
                promises.acknowledging.add(operation.message.message_id)
                term.remove(operation, owner)
            term.wait_durable(before + 15)
        term.close()
    except BaseException:
        term.crash()
        raise
    finally:
        promises.note(term)


def ids(term: Term) -> list[str]:
    page = term.page(term.store.queue(Q))
    return [paged.message.message_id for paged in page.messages]


def count_changes(directory: Path) -> int:
    directory.mkdir()
    disk = FailingDisk(0)
    live(str(directory), disk, Promises())
    return disk.count


@pytest.mark.prove
@pytest.mark.timeout(280)
def test_whatever_fails_what_was_promised_holds(tmp_path: Path) -> None:
    total = count_changes(tmp_path / "count")
    assert total > 60
    failed: set[str] = set()
    for fail_at in range(1, total + 1):
        directory = tmp_path / str(fail_at)
        directory.mkdir()
        disk = FailingDisk(fail_at)
        promises = Promises()
        try:
            live(str(directory), disk, promises)
        except (OSError, JournalError, IndexTrouble, AssertionError):
            pass
        failed.add(disk.failed or "nothing")
        report = check(str(directory))
        assert report.is_clean, (fail_at, disk.failed, report.problems)
        again = Term(str(directory), "b", settings=SETTINGS)
        promises.hold(ids(again))
        again.close()
        report = check(str(directory))
        assert report.is_clean, (fail_at, disk.failed, report.problems)
    assert {"pwrite", "fdatasync", "fsync", "link", "unlink"} <= failed
