"""Records that a promotion counts are on the disk: it syncs the files that it read, and trusts no header that is only
in memory."""

# proves: cache-dropped, journal-reading, promotion, scan-drops-cache

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any, cast

import pytest

from tandemmq.disk import Disk
from tandemmq.index.roots import PAGES_AT
from tandemmq.journal.errors import JournalFailed
from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.inspect import read_headers
from tests.support.store.standbys import fence_and_die, standby_of
from tests.support.store.store_harness import KIB, SMALL, Term

pytestmark = [pytest.mark.fence, pytest.mark.promise("one-master-counts")]


class WatchedDisk:
    """The system's disk; notes which journal file is read, written, synced, or forgotten by this host's memory."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self._files: dict[int, int] = {}

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def _step(self, verb: str, fd: int) -> None:
        if fd in self._files:
            self.steps.append((verb, self._files[fd]))

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        fd = os.open(path, flags, mode)
        self._files.pop(fd, None)
        number = file_id(os.path.basename(path))
        if number is not None:
            self._files[fd] = number
        return fd

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        self._step("read", fd)
        return os.pread(fd, length, offset)

    def pwrite(self, fd: int, data: bytes, offset: int, /) -> int:
        self._step("write", fd)
        return os.pwrite(fd, data, offset)

    def fsync(self, fd: int, /) -> None:
        self._step("sync", fd)
        os.fsync(fd)

    def fdatasync(self, fd: int, /) -> None:
        self._step("sync", fd)
        os.fdatasync(fd)

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int, /) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        self._step("forget", fd)
        os.posix_fadvise(fd, offset, length, advice)


@pytest.mark.parametrize("fences", [0, 1, 3])
def test_records_that_a_promotion_counts_are_synced_before_and_after_the_read(directory: str, fences: int) -> None:
    """Late writes of a deposed master count now, also if the last file is a fence without a header. A checkpoint may
    come in the middle of the reading, and a page whose sync failed is only in a host's memory."""
    first = Term(directory, "a")
    first.add_durably(5)
    first.crash()
    for number in range(fences):
        fence_and_die(directory, f"b{number}")
    disk = WatchedDisk()
    with Term(directory, "c", disk=cast(Disk, disk)) as third:
        assert len(third.bodies()) == 5
    own = 2 + fences
    assert read_headers(JournalFiles(directory)).headers[own].ends.keys() == set(range(1, own))
    steps = disk.steps[: disk.steps.index(("write", own))]
    for file in range(1, own):
        verbs = "".join(verb[0] for verb, number in steps if number == file)
        assert re.search("sfr+sfr+s", verbs), f"db-{file}.log: {verbs}"
        if file == 1:
            # Header, then all of it: each time what is dirty goes to the disk, then what is remembered is dropped.
            assert re.fullmatch("sfr+sfr+s+", verbs[verbs.index("s") :]), verbs


class ForgetfulDisk(WatchedDisk):
    """A host whose disk refuses to write one file: a sync fails once, then what was written is in memory only, and
    is gone when that is dropped."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self.has_failed = False
        self._was: bytes | None = None  # what the disk has of the file

    def pwrite(self, fd: int, data: bytes, offset: int, /) -> int:
        if self._files.get(fd) == self._file and self._was is None:
            self._was = os.pread(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY), 1 << 20, 0)
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int, /) -> None:
        if self._files.get(fd) == self._file and not self.has_failed:
            self.has_failed = True
            raise OSError(5, os.strerror(5))
        super().fdatasync(fd)

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int, /) -> None:
        if self._files.get(fd) == self._file and self._was is not None:
            writable = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
            os.pwrite(writable, self._was, 0)
            os.close(writable)
        super().posix_fadvise(fd, offset, length, advice)


@pytest.mark.parametrize("fences", [0, 2])
@pytest.mark.parametrize("follows", [False, True])
def test_a_header_whose_sync_failed_names_no_end(directory: str, fences: int, follows: bool) -> None:
    """A master, a promotion that fails at the sync of its header, then one that ends what the first header ended."""
    first = Term(directory, "a")
    first.add_durably(5)
    disk = ForgetfulDisk(2)
    with pytest.raises(JournalFailed):
        Term(directory, "b", disk=cast(Disk, disk))
    assert disk.has_failed
    assert read_headers(JournalFiles(directory)).headers[2].ends, "in memory it is there"
    first.crash()
    for number in range(fences):
        fence_and_die(directory, f"c{number}")
    late = standby_of(directory, "d", disk=disk)
    if follows:
        late.follow()
        late.follow()
    with Term.of(late) as third:
        assert len(third.bodies()) == 5
    named = read_headers(JournalFiles(directory))
    assert 2 not in named.headers, "the disk never had it"
    assert named.ends[1] > 0, "and its end is named by one that the disk has"
    assert named.ends[2] == 0


def test_an_index_that_went_on_by_a_header_which_the_disk_never_had_is_set_aside(directory: str) -> None:
    """The bytes that the first master wrote after that end count for brokers that never saw the header, and so for
    all."""
    first = Term(directory, "a", replace(SMALL, fence_check_interval=3600.0))
    first.add_durably(5)
    disk = ForgetfulDisk(2)
    with pytest.raises(JournalFailed):
        Term(directory, "b", disk=cast(Disk, disk))
    first.write_late()
    follower = standby_of(directory, "c", disk=disk)
    follower.follow()
    follower.follow()
    first.crash()
    with Term.of(follower) as third:
        assert len(third.bodies()) == 6
    with Term(directory, "d") as other:
        assert len(other.bodies()) == 6


class RootsToo(WatchedDisk):
    """Notes when a root of an index is written, too."""

    def __init__(self) -> None:
        super().__init__()
        self._data: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        fd = super().open(path, flags, mode)
        self._data.discard(fd)
        if os.path.basename(path).startswith("db.data"):
            self._data.add(fd)
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int, /) -> int:
        if fd in self._data and offset < PAGES_AT:
            self.steps.append(("root", 1))
        return super().pwrite(fd, data, offset)


def test_a_checkpoint_while_a_promotion_reads_covers_what_is_on_disk(directory: str) -> None:
    few = StoreSettings(journal_max_file_length=64 * KIB, checkpoint_records=5, checkpoint_interval=3600.0)
    first = Term(directory, "a")
    for _ in range(8):
        first.add_durably(10)
    first.crash()
    disk = RootsToo()
    with Term(directory, "b", few, disk=cast(Disk, disk)) as second:
        assert len(second.bodies()) == 80
    steps = disk.steps[: disk.steps.index(("write", 2))]
    verbs = "".join("P" if verb == "root" else verb[0] for verb, number in steps if number == 1)
    assert re.search("r+s+P", verbs), verbs
    assert not re.search("rP", verbs), verbs
