from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.errors import JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import RECORD_HEADER_SIZE, encode_batch, location
from tandemmq.journal.reader import FIRST_READ_BYTES, GAP_BYTES_MAX, JournalReader
from tandemmq.journal.writer import JournalWriter
from tests.support.prove import SEED


def write(files: JournalFiles, file: int, payloads: list[bytes]) -> list[tuple[int, int]]:
    """A file of one batch; where the records are, and their sizes."""
    batch, locations = encode_batch(payloads, location(file, 0))
    Path(files.path(file)).write_bytes(batch)
    return [(where, RECORD_HEADER_SIZE + len(payload)) for where, payload in zip(locations, payloads, strict=True)]


def many(files: JournalFiles, where: int, size: int) -> list[bytes]:
    return JournalReader(files).read_many([(where, size)])


PAYLOADS = [b"", b"one", b"x" * FIRST_READ_BYTES, b"y" * 100_000, b"last"]


@pytest.mark.parametrize("is_size_known", [True, False])
def test_a_record_is_read_by_its_location(files: JournalFiles, is_size_known: bool) -> None:
    wanted = write(files, 3, PAYLOADS)
    reader = JournalReader(files)
    assert [reader.read(where, size if is_size_known else 0) for where, size in wanted] == PAYLOADS


def test_many_records_are_read_in_the_order_asked(files: JournalFiles) -> None:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    randomly = random.Random(SEED)
    payloads = [randomly.randbytes(randomly.choice([3, 900, GAP_BYTES_MAX + 1, 600_000])) for _ in range(30)]
    wanted = write(files, 1, payloads) + write(files, 2, payloads)
    chosen = sorted(randomly.sample(range(60), 25))
    found = JournalReader(files).read_many([wanted[i] for i in chosen])
    assert found == [payloads[i % 30] for i in chosen]
    assert JournalReader(files).read_many([]) == []


def test_neighbours_are_read_at_once(files: JournalFiles, watched_disk: Any) -> None:
    wanted = write(files, 1, [b"m" * 100] * 500)
    disk = watched_disk()
    JournalReader(JournalFiles(files.directory, disk)).read_many(wanted[::3])
    assert disk.verbs() == ["open", "fstat", "pread"]


def test_a_just_appended_record_can_be_read(new_writer: Callable[..., JournalWriter], files: JournalFiles) -> None:
    writer, reader = new_writer(), JournalReader(files)
    for number in range(20):
        payload = b"number %d" % number
        assert reader.read(writer.append([payload])[0]) == payload


def test_a_missing_file_is_named(files: JournalFiles) -> None:
    for read in (lambda: JournalReader(files).read(location(9, 77)), lambda: many(files, location(9, 77), 10)):
        with pytest.raises(JournalMissing, match=r"db-9\.log is missing \(asked for offset 77\)"):
            read()


@pytest.mark.parametrize(
    ("offset", "size", "reason"),
    [
        (29, 8, "no record begins here"),
        (0, 28, "no record begins here"),  # a control record is not for users
        (28, 9, "a record of 8 bytes instead of 9"),
        (10_000, 8, "the file ends before this record"),
    ],
)
def test_a_bad_record_is_named(files: JournalFiles, offset: int, size: int, reason: str) -> None:
    write(files, 1, [b"one"])
    for read in (JournalReader(files).read, lambda where, size: many(files, where, size)):
        with pytest.raises(JournalCorrupt, match=reason) as caught:
            read(location(1, offset), size)
        assert (caught.value.file, caught.value.start) == (1, offset)


def test_a_record_that_the_file_cuts_short_is_corrupt(files: JournalFiles) -> None:
    [(where, size)] = write(files, 1, [b"z" * 5000])
    content = Path(files.path(1)).read_bytes()
    Path(files.path(1)).write_bytes(content[:3000])
    for read in (lambda: JournalReader(files).read(where), lambda: many(files, where, size)):
        with pytest.raises(JournalCorrupt, match="the file ends within this record"):
            read()


def test_open_files_are_bounded_and_closed(files: JournalFiles, watched_disk: Any) -> None:
    wanted = [write(files, file, [b"p%d" % file])[0] for file in range(1, 21)]
    disk = watched_disk()
    reader = JournalReader(JournalFiles(files.directory, disk), descriptors_max=4)
    for where, size in wanted * 2:
        reader.read(where, size)
        assert disk.verbs().count("open") - disk.verbs().count("close") <= 4
    reader.close()
    assert disk.verbs().count("open") == disk.verbs().count("close")


def test_a_forgotten_file_is_opened_anew(files: JournalFiles) -> None:
    [(where, _)] = write(files, 1, [b"before"])
    reader = JournalReader(files)
    assert reader.read(where) == b"before"
    reader.forget([1, 2])
    files.remove([1])
    with pytest.raises(JournalMissing):
        reader.read(where)


def test_a_read_under_way_outlives_forgetting(files: JournalFiles, watched_disk: Any) -> None:
    [(where, size)] = write(files, 1, [b"still there"])

    class Forgetting(watched_disk):  # type: ignore[misc]
        def pread(self, fd: int, length: int, offset: int) -> bytes:
            reader.forget([1])
            files.remove([1])
            return super().__getattr__("pread")(fd, length, offset)  # type: ignore[no-any-return]

    disk = Forgetting()
    reader = JournalReader(JournalFiles(files.directory, disk))
    assert reader.read(where, size) == b"still there"
    assert disk.verbs() == ["open", "fstat", "pread", "close"]


def test_threads_may_read_while_files_come_and_go(files: JournalFiles) -> None:
    wanted = [write(files, file, [b"p%d" % file * 50])[0] for file in range(1, 9)]
    reader = JournalReader(files, descriptors_max=2)
    wrong: list[object] = []

    def read(shift: int) -> None:
        for turn in range(200):
            file = (turn + shift) % 8
            try:
                if reader.read(*wanted[file]) != b"p%d" % (file + 1) * 50:
                    wrong.append(file)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(shift,)) for shift in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(200):
        reader.forget([turn % 8 + 1])
    for thread in threads:
        thread.join()
    assert wrong == []
