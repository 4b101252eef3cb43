"""Records of the time: written at intervals together with other records, and never alone."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.operations import AddMessage, Atomic, RemoveMessage
from tandemmq.store.records.commands import encode_add, encode_commit, encode_remove
from tandemmq.store.records.marks import clock_of, encode_clock
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.threads import OsThreads
from tandemmq.store.tools.inspect import Seen, describe, read_headers, walk
from tests.support.store.several_harness import A, B, SeveralTerm
from tests.support.store.store_harness import KIB, Q, Term

SETTINGS = StoreSettings(
    journal_max_file_length=64 * KIB,
    checkpoint_interval=3600.0,
    cleanup_interval=0.0,
    fence_check_interval=0.01,
    clock_mark_interval=10.0,
)
START_MS = 1_700_000_000_000


class ManualThreads(OsThreads):
    """The operating system's, with clocks that are moved by hand."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:  # type: ignore[override]
        return 1000.0 + self.passed

    def wall(self) -> float:  # type: ignore[override]
        return START_MS / 1000 + self.passed


@pytest.fixture
def threads() -> ManualThreads:
    return ManualThreads()


def begun(directory: str, threads: ManualThreads, settings: StoreSettings = SETTINGS) -> Term:
    return Term.of(Standby(directory, f"{directory}/index", "a", settings, threads=threads))


def batches(directory: str) -> list[list[Seen]]:
    files = JournalFiles(directory)
    epoch_history = read_headers(files)
    records = (item for file in files.list() for item in walk(files, epoch_history, file) if isinstance(item, Seen))
    return [list(batch) for _, batch in groupby(records, lambda seen: (seen.file, seen.batch))]


def time_of(seen: Seen) -> int | None:
    return clock_of(seen.text or "")


def times(directory: str) -> list[int]:
    """Seconds since the start, of each mark."""
    shown = (time_of(seen) for batch in batches(directory) for seen in batch)
    return [(time - START_MS) // 1000 for time in shown if time is not None]


def test_a_batch_begins_with_a_mark_when_the_last_one_is_old_enough(directory: str, threads: ManualThreads) -> None:
    term = begun(directory, threads)
    for _ in range(8):
        term.add_durably(2)
        threads.passed += 4
    term.close()
    assert times(directory) == [0, 12, 24]
    marked = [[seen.kind for seen in batch] for batch in batches(directory) if any(map(time_of, batch))]
    assert marked == [["mark", "add", "add"]] * 3


def test_the_first_batch_of_every_file_begins_with_one(directory: str, threads: ManualThreads) -> None:
    term = begun(directory, threads)
    for _ in range(12):
        term.add_durably(10, body=b"x" * 1000)
    term.close()
    of_file = {file: list(found) for file, found in groupby(batches(directory), lambda batch: batch[0].file)}
    assert len(of_file) > 2
    for header, first, *others in of_file.values():
        assert [seen.kind for seen in header] == ["header"]
        assert time_of(first[0]) == START_MS
        assert not any(time_of(seen) for batch in others for seen in batch)


def test_an_idle_broker_writes_no_clock_marks(directory: str, threads: ManualThreads) -> None:
    """A quiet broker's checkpoints leave the journal as it is (AMQ-3833)."""
    term = begun(directory, threads)
    term.add_durably(1)
    before = term.store.figures.bytes_written
    for _ in range(3):
        threads.passed += 3600
        (asked,) = term.store.checkpoint()
        term.wait(asked.done)
    assert term.store.figures.bytes_written == before
    term.close()
    assert times(directory) == [0]


def test_records_of_the_store_itself_have_no_clock_mark(directory: str, threads: ManualThreads) -> None:
    term = begun(directory, threads)
    for _ in range(4):
        term.take(term.add_durably(30, body=b"x" * 2000)[1:])
    threads.passed += 3600
    written = term.store.figures.files_reclaimed
    asked = term.store.compact()

    def is_done() -> bool:
        threads.passed += 60  # the rate of copying goes by the clock
        return asked.done()

    term.wait(is_done, 20)
    assert term.store.figures.files_reclaimed > written, "a mark holds no file"
    term.close()
    kinds = [[seen.kind for seen in batch] for batch in batches(directory)]
    assert any(batch[0] == "copy" for batch in kinds)
    assert set(times(directory)) <= {0}


@pytest.mark.parametrize("is_crash", [True, False])
def test_operations_after_a_clock_mark_are_at_their_known_places(
    directory: str, threads: ManualThreads, is_crash: bool
) -> None:
    """With a mark in every batch, the state, the index and a replay have the same content."""
    settings = replace(SETTINGS, clock_mark_interval=0.0)
    term = begun(directory, threads, settings)
    queue = term.store.queue(Q)
    plain, gone = (term.add_durably(1)[0] for _ in range(2))
    transaction = LocalTransactionId("ID:t", 7)
    messages = [term.message() for _ in range(2)]
    parts = [AddMessage(each, (queue,), encode_add(each, encode_message(each), transaction)) for each in messages]
    removal = RemoveMessage(
        queue,
        gone.order_key,
        gone.location,
        gone.message.message_id,
        encode_remove(Q, gone.message.message_id, transaction),
        size=gone.size,
    )
    term.do(Atomic([*parts, removal], encode_commit(transaction)))
    expected = [each.body for each in (plain.message, *messages)]
    assert term.bodies() == expected
    term.crash() if is_crash else term.close()
    assert len(times(directory)) == 3
    at = {seen.file << 32 | seen.offset: seen.message_id for batch in batches(directory) for seen in batch}
    assert [at[each.location] for each in (plain, *parts)] == [each.message.message_id for each in (plain, *parts)]
    again = begun(directory, threads, settings)
    assert again.bodies() == expected
    again.close()


def test_there_are_no_clock_marks_if_they_are_off(directory: str, threads: ManualThreads) -> None:
    term = begun(directory, threads, replace(SETTINGS, clock_mark_interval=math.inf))
    for _ in range(12):
        threads.passed += 3600
        term.add_durably(10, body=b"x" * 1000)
    term.close()
    assert times(directory) == []


def test_a_clock_that_was_set_back_asks_for_no_more_marks(directory: str) -> None:
    """The interval is counted by a clock that cannot be set; the shown time is of the other clock."""

    class SetBack(ManualThreads):
        def wall(self) -> float:  # type: ignore[override]
            return START_MS / 1000 - self.passed

    threads = SetBack()
    term = begun(directory, threads)
    for _ in range(4):
        term.add_durably(1)
        threads.passed += 5
    term.close()
    assert times(directory) == [0, -10]


def test_each_of_several_stores_marks_its_own_journal(tmp_path: Path) -> None:
    with SeveralTerm(str(tmp_path)) as term:
        term.add_durably(1, A)
        term.add_durably(1, B)
    journals = [str(path.parent) for path in tmp_path.rglob("db-1.log")]
    written = [[[seen.kind for seen in batch] for batch in batches(journal)] for journal in journals]
    assert len([found for found in written if ["mark", "add"] in found]) == 2


@pytest.mark.parametrize(
    ("milliseconds", "says"),
    [
        (START_MS + 123, "the clock showed 2023-11-14 22:13:20.123 UTC"),
        (253_402_300_799_999, "the clock showed 9999-12-31 23:59:59.999 UTC"),
        (253_402_300_800_000, None),
    ],
)
def test_a_mark_is_told_with_its_time(milliseconds: int, says: str | None) -> None:
    seen = describe(1, 28, 0, encode_clock(milliseconds))
    assert (seen.kind, seen.says) == ("mark", says)
