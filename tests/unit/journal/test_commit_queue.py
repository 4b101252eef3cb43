"""Batches that one thread submits and another writes: order, bounds, and how it ends."""

# proves: native-failed-step-is-not-told, native-halted-begins-nothing, native-place-is-waited-for
# proves: native-place-only-while-served, native-place-within-the-file
# proves: native-interrupted-takes-no-more, native-proof-is-passed-on, native-serves-so-long

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tandemmq.journal.errors import Deposed
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import location
from tandemmq.journal.scan import scan
from tandemmq.journal.writer import JournalWriter, Served
from tests.support.journal import journal_native

if TYPE_CHECKING:
    from tandemmq.journal.native import CommitQueue

native = journal_native.native
pytestmark = pytest.mark.usefixtures("native")

FILE_BYTES = 4_096
LONG = 30.0


class Serving:
    """A writer that serves on a separate thread."""

    def __init__(self, directory: Path) -> None:
        files = JournalFiles(str(directory))
        files.prepare("a", FILE_BYTES)
        self.writer = JournalWriter(files, "a", files.publish("a", 1), file_length_max=FILE_BYTES)
        queue = self.writer.commit_queue((0.0, LONG), (1.0, 2.0))
        assert queue is not None
        self.queue: CommitQueue = queue
        self._pool = ThreadPoolExecutor(1)

    def serve(self, *, bytes_max: int = 1_000, batches_max: int = 100, seconds: float = LONG) -> Future[Served]:
        return self._pool.submit(self.writer.serve, self.queue, bytes_max, batches_max, seconds)

    def reserve(self, *payloads: bytes) -> int:
        """Reserve a place as soon as the other thread serves."""
        deadline = time.monotonic() + LONG
        while not (at := self.queue.reserve(payloads)):
            assert time.monotonic() < deadline
        return at

    def submit(self, *payloads: bytes) -> int:
        at = self.reserve(*payloads)
        self.queue.submit()
        return at

    def close(self) -> None:
        self.queue.halt()
        self._pool.shutdown()
        self.writer.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path)
    yield serving
    serving.close()


def found(directory: Path) -> list[tuple[int, bytes]]:
    """Place and payload of all records."""
    batches = scan(JournalFiles(str(directory)), 1)
    return [(location(1, offset), payload) for batch in batches for offset, payload in batch.records]


def test_each_record_stands_where_it_was_said_before(serving: Serving, tmp_path: Path) -> None:
    doing = serving.serve(bytes_max=10_000)  # however slowly they come: for all of them
    places = [(serving.submit(b"%d" % number, b"more"), b"%d" % number) for number in range(40)]
    serving.queue.interrupt()
    assert serving.queue.reserve([b"late"]) == 0, "what was put meanwhile comes first"
    served = doing.result()
    assert served.batches == 40
    assert 1 <= served.steps <= 40
    assert [record for record in found(tmp_path) if record[1] != b"more"] == places
    assert serving.writer.offset == served.bytes_written
    assert served.start == (places[-1][0] & 0xFFFFFFFF) - 28


def test_the_loop_is_woken_by_what_is_done_and_by_that_alone(serving: Serving) -> None:
    doing = serving.serve()
    at = serving.reserve(b"x")
    assert at
    assert select.select([serving.queue.fileno()], [], [], 0.05)[0] == []
    serving.queue.submit()
    assert select.select([serving.queue.fileno()], [], [], LONG)[0]
    batches, checked_at = serving.queue.completed()
    assert batches == 1
    assert checked_at > 0
    assert serving.queue.completed()[0] == 0
    assert select.select([serving.queue.fileno()], [], [], 0)[0] == []
    serving.queue.interrupt()
    assert doing.result().batches == 1


def test_no_batch_gets_a_place_while_the_queue_is_not_served(serving: Serving) -> None:
    assert serving.queue.reserve([b"x"]) == 0
    serving.queue.interrupt()
    assert serving.serve().result() == Served(0, 0, 0, 0, 0, 0.0), "told before, it returns at once"
    serving.queue.interrupt()
    serving.queue.clear()
    doing = serving.serve()
    serving.submit(b"after an interrupt that is cleared")
    serving.queue.interrupt()
    assert doing.result().batches == 1
    assert serving.queue.reserve([b"x"]) == 0
    with pytest.raises(ValueError, match="nothing is reserved"):
        serving.queue.submit()


def test_a_batch_with_a_place_is_written_before_serve_returns(serving: Serving, tmp_path: Path) -> None:
    doing = serving.serve()
    at = serving.reserve(b"x")
    serving.queue.interrupt()
    assert serving.queue.reserve([b"y"]) == 0
    time.sleep(0.02)
    assert not doing.done()
    serving.queue.submit()
    assert doing.result().batches == 1
    assert found(tmp_path) == [(at, b"x")]


def test_its_time_and_what_was_written_end_it(serving: Serving) -> None:
    assert serving.serve(seconds=0.01).result().batches == 0
    doing = serving.serve(batches_max=1)
    serving.submit(b"x")
    assert doing.result(LONG / 2).batches == 1
    doing = serving.serve()
    serving.submit(b"x" * 500)
    serving.submit(b"x" * 500)
    assert doing.result(LONG / 2).batches == 2, "a batch's worth: the other thread is to give the memory back"


def test_a_batch_that_does_not_fit_gets_no_place(serving: Serving) -> None:
    doing = serving.serve()
    serving.submit(b"x")
    assert serving.queue.reserve([b"x" * 996]) == 0, "longer than a batch may be"
    serving.queue.interrupt()
    assert doing.result().batches == 1
    doing = serving.serve(bytes_max=10_000)
    for _ in range(4):
        serving.submit(b"x" * 900)
    assert serving.queue.reserve([b"x" * 900]) == 0, "a file of 4 KiB"
    serving.queue.interrupt()
    assert doing.result().batches == 4
    assert serving.writer.offset < FILE_BYTES
    assert serving.writer.is_full(905)


def test_halted_it_begins_nothing(serving: Serving, tmp_path: Path) -> None:
    doing = serving.serve()
    serving.reserve(b"x")
    serving.queue.halt()
    assert doing.result(LONG / 2).batches == 0
    serving.queue.submit()
    assert serving.serve().result(LONG / 2).batches == 0
    assert found(tmp_path) == []


def test_a_failed_step_is_reported_to_nobody(serving: Serving, tmp_path: Path) -> None:
    doing = serving.serve()
    serving.submit(b"x")
    assert select.select([serving.queue.fileno()], [], [], LONG)[0]
    serving.queue.completed()
    (tmp_path / "db-2.log").write_bytes(b"")
    serving.submit(b"y")
    with pytest.raises(Deposed):
        doing.result()
    assert serving.queue.completed()[0] == 0
    with pytest.raises(Deposed):
        serving.serve().result()


def test_each_step_is_measured(serving: Serving) -> None:
    """The sync took some time, and the records are counted."""
    for payloads in ((b"x",), (b"x", b"y"), (b"x", b"y", b"z")):
        doing = serving.serve(batches_max=1)
        serving.submit(*payloads)
        doing.result()
    (syncs, seconds), (steps, records) = serving.queue.measured()
    assert syncs == [0, 3, 0]
    assert 0 < seconds < 3 * LONG
    assert (steps, records) == ([1, 1, 1], 6)


def test_invalid_bytes_are_refused(serving: Serving, native: ModuleType) -> None:
    with pytest.raises(ValueError, match="at least one record"):
        serving.queue.reserve([])
    with pytest.raises(TypeError, match="bytes"):
        serving.queue.reserve(["text"])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        native.CommitQueue(1)
    with pytest.raises(TypeError):
        native.CommitQueue((), ("a",))
    with pytest.raises(ValueError, match="too many"):
        native.CommitQueue((), (1.0,) * 33)
    with pytest.raises(ValueError, match="2 GiB"):
        native.CommitQueue((), ()).serve(0, 0, 0, 2**31 - 1, 1, 1, 1.0, "a", "b", 0, 0)
