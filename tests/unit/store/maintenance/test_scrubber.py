"""The scrubber finds ranges of sealed files that fail verification, and reports repairs."""

# proves: open-file-is-not-scrubbed, damage-of-the-file-that-has-the-name, repair-is-read-again-before-it-counts

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.maintenance.scrubber import Damaged, OwnVolume, Repaired, Scrubber
from tandemmq.store.settings import StoreSettings
from tests.support.store.store_harness import Term
from tests.support.virtual_time import VirtualTime

SETTINGS = StoreSettings(journal_max_file_length=16 << 10, enable_compaction=False)


class Mending(OwnVolume):
    """A journal that has ``written`` for a damaged file."""

    written = b""

    def mend(self, damaged: Damaged) -> Sequence[Repaired]:
        Path(self.files.path(damaged.file)).write_bytes(self.written)
        return [Repaired(start, stop, 1, "n2") for start, stop in damaged.ranges]


@pytest.fixture
def files(tmp_path: Path) -> JournalFiles:
    """A journal of four files and more, the last one open."""
    with Term(str(tmp_path), settings=SETTINGS) as term:
        for _ in range(50):
            term.add_durably(1, body=b"x" * 1000)
    assert len(JournalFiles(str(tmp_path)).list()) >= 4
    return JournalFiles(str(tmp_path))


@contextmanager
def scrubbing(virtual: VirtualTime, journal: OwnVolume, rate: int = 1 << 20) -> Iterator[Scrubber]:
    scrubber = Scrubber(lambda: (journal,), rate=rate, interval=60.0, threads=virtual.threads)
    scrubber.start()
    yield scrubber
    scrubber.end()


def rot(files: JournalFiles, file: int, at: int) -> bytes:
    path = Path(files.path(file))
    good = path.read_bytes()
    with open(path, "r+b") as rotten:
        rotten.seek(at)
        rotten.write(bytes([good[at] ^ 1]))
    return good


def passes(virtual: VirtualTime, scrubber: Scrubber, count: int) -> dict[str, int]:
    virtual.until(lambda: scrubber.figures["scrub_passes_total"] >= count, "a pass is over")
    return dict(scrubber.figures)


def test_a_pass_finds_each_damaged_file_and_tells_of_it_once(
    virtual: VirtualTime, files: JournalFiles, caplog: pytest.LogCaptureFixture
) -> None:
    good = {file: rot(files, file, 3_000) for file in (1, 3)}
    with scrubbing(virtual, OwnVolume(files)) as scrubber:
        assert passes(virtual, scrubber, 1)["damaged_journal_files"] == 2
        before = virtual.threads.monotonic()
        assert passes(virtual, scrubber, 3)["damaged_journal_files"] == 2
        assert virtual.threads.monotonic() - before >= 60, "a pass has its interval"
        Path(files.path(1)).write_bytes(good[1])
        os.unlink(files.path(3))
        assert passes(virtual, scrubber, 5)["damaged_journal_files"] == 0, "one was restored, one is gone"
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert [text.partition(":")[0] for text in told] == ["db-1.log is damaged", "db-3.log is damaged"]


def test_it_reads_no_faster_than_it_may_and_answers_meanwhile(virtual: VirtualTime, files: JournalFiles) -> None:
    sealed = sum(files.size(file) for file in files.list()[:-1])
    with scrubbing(virtual, OwnVolume(files), rate=1_000) as scrubber:
        began = virtual.threads.monotonic()
        asked = scrubber.check(2)
        virtual.threads.wait([asked])
        assert asked.result()
        assert virtual.threads.monotonic() - began < 1
        read = passes(virtual, scrubber, 1)["scrub_bytes_total"]
        assert sealed / 2 < read <= 1_000 * (virtual.threads.monotonic() - began) + 1
    assert scrubber.check(1).cancelled(), "it has ended"


def test_the_open_file_is_left_alone(virtual: VirtualTime, files: JournalFiles) -> None:
    last = files.list()[-1]
    rot(files, last, 2_000)
    with scrubbing(virtual, OwnVolume(files), rate=0) as scrubber:
        found = {file: scrubber.check(file) for file in (last - 1, last)}
        virtual.threads.wait(found.values())
        assert {file: each.result() for file, each in found.items()} == {last - 1: True, last: False}
        assert scrubber.figures["damaged_journal_files"] == 0


@pytest.mark.parametrize("is_mended", [True, False])
def test_a_written_batch_counts_as_repaired_if_it_verifies(
    virtual: VirtualTime, files: JournalFiles, is_mended: bool, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Mending(files)
    good = rot(files, 1, 3_000)
    journal.written = good if is_mended else Path(files.path(1)).read_bytes()
    with scrubbing(virtual, journal) as scrubber:
        figures = passes(virtual, scrubber, 1)
    assert figures["repaired_batches_total"] == is_mended
    assert figures["damaged_journal_files"] == (not is_mended)
    assert ("is repaired from offset" in caplog.text) is is_mended


class Disk:
    """The system's; ``before_read`` is called with each path that is read, and may raise."""

    def __init__(self, before_read: Callable[[str], object]) -> None:
        self._before_read = before_read

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._before_read(os.readlink(f"/proc/self/fd/{fd}"))
        return os.pread(fd, length, offset)


def test_damage_of_another_file_is_not_reported(virtual: VirtualTime, files: JournalFiles) -> None:
    good = rot(files, 1, 3_000)
    replaced: list[str] = []

    def replace(path: str) -> None:
        if path == files.path(1) and not replaced and len(seen) > 1:
            Path(f"{path}.new").write_bytes(good)
            os.replace(f"{path}.new", path)
            replaced.append(path)
        if path == files.path(1):
            seen.append(path)

    seen: list[str] = []
    with scrubbing(virtual, Mending(JournalFiles(files.directory, Disk(replace), virtual.threads.lock))) as scrubber:
        assert passes(virtual, scrubber, 1)["damaged_journal_files"] == 0
    assert replaced
    assert Path(files.path(1)).read_bytes() == good


def test_a_sector_that_cannot_be_read_is_damage(virtual: VirtualTime, files: JournalFiles) -> None:
    def fail(path: str) -> None:
        if path == files.path(2):
            raise OSError(errno.EIO, "bad sector")

    journal = OwnVolume(JournalFiles(files.directory, os, virtual.threads.lock))
    journal.headers.refresh()
    journal.files.disk = Disk(fail)  # type: ignore[assignment]
    with scrubbing(virtual, journal) as scrubber:
        assert passes(virtual, scrubber, 1)["damaged_journal_files"] == 1
