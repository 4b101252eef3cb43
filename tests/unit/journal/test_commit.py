"""``JournalWriter.commit`` and ``serve``, compared with the calls that they replace."""

# proves: native-checksum-counts-places, native-failed-fence-check-is-no-answer, native-failed-sync-is-seen
# proves: native-own-file-is-no-link, native-own-file-is-regular, native-step-in-its-own-file

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandemmq.journal.errors import Deposed, JournalFailed
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.threads import OS_THREADS
from tests.support.journal import journal_native

native = journal_native.native
pytestmark = pytest.mark.usefixtures("native")

Commit = Callable[[JournalWriter, Sequence[bytes]], tuple[list[int], float]]


def in_one_step(writer: JournalWriter, payloads: Sequence[bytes]) -> tuple[list[int], float]:
    assert writer.is_one_step
    return writer.commit(payloads)


def by_a_queue(writer: JournalWriter, payloads: Sequence[bytes]) -> tuple[list[int], float]:
    queue = writer.commit_queue()
    assert queue is not None
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(writer.serve, queue, 1 << 20, 1, 10.0)
        while not (at := queue.reserve(payloads)) and not serving.done():
            pass
        if at:
            queue.submit()
        served = serving.result()
    assert (served.batches, served.steps) == (1, 1)
    assert queue.completed() == (1, served.checked_at)
    locations = [at + sum(len(each) + 5 for each in payloads[:number]) for number in range(len(payloads))]
    return locations, served.checked_at


WAYS = (in_one_step, by_a_queue)


def call_by_call(writer: JournalWriter, payloads: Sequence[bytes]) -> tuple[list[int], float]:
    locations = writer.append(payloads)
    writer.sync()
    began = OS_THREADS.boottime()
    writer.check_fence()
    return locations, began


@pytest.fixture(params=[*WAYS, call_by_call])
def commit(request: pytest.FixtureRequest) -> Commit:
    return request.param


def make(directory: Path) -> JournalWriter:
    directory.mkdir()
    files = JournalFiles(str(directory))
    files.prepare("a", 1 << 16)
    return JournalWriter(files, "a", files.publish("a", 1))


BATCHES = st.lists(st.lists(st.binary(max_size=7_000), min_size=1, max_size=5), min_size=1, max_size=6)


@pytest.mark.parametrize("way", WAYS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(batches=BATCHES)
def test_both_write_the_same_and_say_the_same(
    tmp_path_factory: pytest.TempPathFactory, way: Commit, batches: list[list[bytes]]
) -> None:
    root = tmp_path_factory.mktemp("twins")
    twins = make(root / "one"), make(root / "other")
    for payloads in batches:
        before = OS_THREADS.boottime()
        (locations, began), (theirs, _) = way(twins[0], payloads), call_by_call(twins[1], payloads)
        assert locations == theirs
        assert before <= began <= OS_THREADS.boottime()
        assert len({(each.offset, each.checksum) for each in twins}) == 1
    assert (root / "one" / "db-1.log").read_bytes() == (root / "other" / "db-1.log").read_bytes()
    for each in twins:
        each.close()


def test_no_sum_of_the_largest_bytes_overflows(tmp_path: Path) -> None:
    twins = make(tmp_path / "one"), make(tmp_path / "other")
    for length in (*range(40), *range(5_500, 5_600, 7), 11_104, 40_000):
        for way, writer in zip((in_one_step, call_by_call), twins, strict=True):
            way(writer, [b"\xff" * length])
        assert twins[0].checksum == twins[1].checksum, length
    for each in twins:
        each.close()


def is_gone(directory: Path) -> None:
    (directory / "db-1.log").unlink()


def is_replaced(directory: Path) -> None:
    (directory / "db-1.log").rename(directory / "elsewhere")
    (directory / "db-1.log").write_bytes(b"")


def has_a_successor(directory: Path) -> None:
    (directory / "db-2.log").write_bytes(b"")


@pytest.mark.parametrize("happens", [is_gone, is_replaced, has_a_successor])
def test_a_deposed_writer_confirms_nothing(tmp_path: Path, commit: Commit, happens: Callable[[Path], None]) -> None:
    writer = make(tmp_path / "journal")
    commit(writer, [b"before"])
    happens(tmp_path / "journal")
    for _ in range(2):  # for good
        with pytest.raises(Deposed):
            commit(writer, [b"after"])
    writer.close()


def is_a_link(directory: Path) -> None:
    (directory / "db-1.log").rename(directory / "elsewhere")
    (directory / "db-1.log").symlink_to(directory / "elsewhere")


def is_a_fifo(directory: Path) -> None:
    is_gone(directory)
    os.mkfifo(directory / "db-1.log")


def is_a_directory(directory: Path) -> None:
    is_gone(directory)
    (directory / "db-1.log").mkdir()


def writes_into(device: str, writer: JournalWriter) -> None:
    descriptor = os.open(device, os.O_WRONLY)
    os.dup2(descriptor, writer._fd)
    os.close(descriptor)


def writes_nowhere(writer: JournalWriter) -> None:
    writes_into("/dev/full", writer)


def syncs_nothing(writer: JournalWriter) -> None:
    writes_into("/dev/null", writer)


def asks_for_no_name(writer: JournalWriter) -> None:
    writer._next_path = "x" * 5_000


def asks_for_no_name_of_its_own(writer: JournalWriter) -> None:
    writer._own_path = "x" * 5_000


@pytest.mark.parametrize(
    "fails", [writes_nowhere, syncs_nothing, asks_for_no_name, is_a_link, is_a_fifo, is_a_directory]
)
def test_each_failure_is_the_same_and_final(tmp_path: Path, fails: Callable[[JournalWriter | Path], None]) -> None:
    """A call of the disk fails, or the name of the file belongs to no regular file."""
    said = set()
    for number, commit in enumerate((*WAYS, call_by_call)):
        directory = tmp_path / f"journal {number}"
        writer = make(directory)
        fails(directory if fails in (is_a_link, is_a_fifo, is_a_directory) else writer)
        with pytest.raises(JournalFailed) as first:
            commit(writer, [b"x"])
        with pytest.raises(JournalFailed) as second:
            commit(writer, [b"y"])
        assert str(first.value) == str(second.value)
        said.add((str(first.value).replace(str(directory), "..."), first.value.errno))
        writer.close()
    assert len(said) == 1, said


def test_a_failure_is_final_when_its_cause_is_gone(tmp_path: Path, commit: Commit) -> None:
    writer = make(tmp_path / "journal")
    real = os.dup(writer._fd)
    syncs_nothing(writer)
    with pytest.raises(JournalFailed):
        commit(writer, [b"x"])
    os.dup2(real, writer._fd)
    os.close(real)
    with pytest.raises(JournalFailed, match="sync"):
        commit(writer, [b"y"])
    writer.close()


def test_its_own_file_that_cannot_be_looked_at_is_no_answer(tmp_path: Path) -> None:
    writer = make(tmp_path / "journal")
    asks_for_no_name_of_its_own(writer)
    with pytest.raises(JournalFailed, match="its own file"):
        writer.commit([b"x"])
    writer.close()


def test_an_empty_and_a_too_large_batch_are_refused(native: ModuleType) -> None:
    with pytest.raises(ValueError, match="at least one record"):
        native.commit(-1, [], 0, 0, "a", "b")
    with pytest.raises(ValueError, match="2 GiB"):
        native.commit(-1, [b"x"], 2**31 - 38, 0, "a", "b")
    with pytest.raises(TypeError):
        native.commit(-1, ["text"], 0, 0, "a", "b")


def test_a_callback_for_written_batches_is_called_before_the_sync(tmp_path: Path) -> None:
    """With such a callback the write is not one step."""
    make(tmp_path / "journal").close()
    files = JournalFiles(str(tmp_path / "journal"))
    writer = JournalWriter(files, "a", files.opened(1), on_written=lambda *batch: None)
    assert not writer.is_one_step
    writer.close()
