"""Scan of a journal file, batch by batch. It distinguishes a clean end, a torn tail and corruption.

    good batch, good batch, end mark              clean: the mark is the end record, zeros, or the end of the file
    good batch, bad bytes, no good batch          torn: a write without a receipt; ignored
    good batch, bad bytes, good batch             corrupt: confirmed bytes are damaged; always reported
    good batch, end mark, good batch              corrupt: a write was lost in the middle
    an end before the end in a later header       corrupt: the writer of that header read more batches

Bytes inside a record are never taken for a batch, whatever a client wrote into its message. Memory: one chunk, or one
batch if it is longer.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Protocol

from tandemmq.disk import data_from, has_name, open_regular, read_fully
from tandemmq.journal.errors import JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import (
    CONTROL,
    CONTROL_MARK,
    CONTROL_MARK_SIZE,
    CONTROL_SIZE,
    END_RECORD,
    END_RECORD_SIZE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    decode_records,
    is_sound,
)

CHUNK_BYTES = 4 * 1024 * 1024
# The first read is short, later reads grow: a standby that polls a live file usually finds only one new batch.
FIRST_CHUNK_BYTES = 64 * 1024
GROWTH = 4
# Bytes that are searched at a time. A small buffer stays in the processor's cache.
SEARCH_BYTES = 256 * 1024
_NO_CONTROL = (b"", 0, 0)


class EndingKind(enum.Enum):
    END_RECORD = "end record"
    ZEROS = "zeros"
    FILE_END = "end of the file"
    BOUND = "the requested end"
    TORN = "torn"


@dataclass(frozen=True, slots=True, repr=False)
class Ending:
    """Offset after the last good batch, where the next batch may be written, and what was found there."""

    offset: int
    kind: EndingKind

    @property
    def is_torn(self) -> bool:
        return self.kind is EndingKind.TORN

    def __repr__(self) -> str:
        return f"Ending({self.offset}, {self.kind.value})"


@dataclass(slots=True, eq=False)
class Batch:
    """Batch with a correct checksum. ``records`` are its user records as (offset of the header in the file, payload).
    ``offset`` and ``end``: of its first byte, and after its last record."""

    file: int
    offset: int
    end: int
    checksum: int
    records: Sequence[tuple[int, bytes]]


class Source(Protocol):
    """Source of the bytes of a journal file."""

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes, fewer only at the end of the file. Each call reads the present content."""

    def data_from(self, offset: int) -> int:
        """Return the end of the hole at ``offset``, or ``offset`` if no hole is known there. No content is read."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class FileSource:
    """Source that opens a journal file. On NFS, opening drops this host's cache of the file if the file has changed."""

    __slots__ = ("_disk", "_fd")

    def __init__(self, files: JournalFiles, file: int, drop_cache: bool = False) -> None:
        self._disk = files.disk
        try:
            self._fd = open_regular(self._disk, files.path(file), os.O_RDONLY)
        except FileNotFoundError as error:
            raise JournalMissing(file, 0) from error
        if drop_cache:
            self._disk.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)  # prove: cache-dropped

    def read(self, offset: int, length: int) -> bytes:
        return read_fully(self._disk, self._fd, length, offset)

    def data_from(self, offset: int) -> int:
        return data_from(self._disk, self._fd, offset)

    def size(self) -> int:
        return self._disk.fstat(self._fd).st_size

    def read_nothing_ahead(self) -> None:
        """Disable read-ahead, which would delay syncs in the queue of the disk."""
        self._disk.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def drop_cache(self, offset: int, length: int) -> None:
        """Drop this host's cache of these bytes: the next read goes to the disk."""
        self._disk.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)

    @property
    def status(self) -> os.stat_result:
        """Status of the opened file, even if another file has its name now."""
        return self._disk.fstat(self._fd)

    def has_name(self, path: str) -> bool:
        """Return whether ``path`` is a name of this file."""
        return has_name(self._disk, self._fd, path)

    def close(self) -> None:
        self._disk.close(self._fd)


@dataclass(eq=False)
class Scan:
    """Scan of a journal file. Iteration yields its good batches; after the last one, ``ending`` is set.

    ``end``: the end of the file that a later header states. Bytes after it do not count, and all bytes before it must
    be good. ``is_live``: another process writes the file; then an incomplete batch is the present end, and nothing is
    searched after it. ``on_corrupt`` is called for each corruption, which is then skipped; without it JournalCorrupt is
    raised. ``decode`` returns the records of a batch (``decode_records`` or ``locate_records``).
    """

    open_source: Callable[[], Source]
    file: int
    start: int = 0
    end: int | None = None
    _: KW_ONLY
    is_live: bool = False
    on_corrupt: Callable[[JournalCorrupt], None] | None = None
    chunk_bytes: int = CHUNK_BYTES
    decode: Callable[[bytes, int, int, int], Sequence[tuple[int, bytes]] | None] = decode_records

    def __post_init__(self) -> None:
        self.chunk_bytes = max(self.chunk_bytes, CONTROL_SIZE)
        self.ending = Ending(self.start, EndingKind.BOUND)

    def __iter__(self) -> Iterator[Batch]:
        source = self.open_source()
        try:
            yield from self._batches(source)
        finally:
            source.close()

    def _batches(self, source: Source) -> Iterator[Batch]:
        file, unpack, decode = self.file, CONTROL.unpack_from, self.decode
        chunk_bytes = min(FIRST_CHUNK_BYTES, self.chunk_bytes)
        limit = source.size() if self.end is None else self.end
        position = self.start  # offset of the next batch in the file
        good_end = position
        buffer, base, at = b"", position, 0  # the buffer holds the file from base on; at = position - base
        while position < limit:
            if len(buffer) - at < CONTROL_SIZE:
                buffer, base, at = source.read(position, chunk_bytes), position, 0
                chunk_bytes = min(chunk_bytes * GROWTH, self.chunk_bytes)
            mark, length, checksum = unpack(buffer, at) if len(buffer) - at >= CONTROL_SIZE else _NO_CONTROL
            if mark == CONTROL_MARK and 0 < length <= limit - position - CONTROL_SIZE:
                first = at + CONTROL_SIZE
                stop = first + length
                if stop > len(buffer):
                    buffer = source.read(position, max(chunk_bytes, CONTROL_SIZE + length))
                    chunk_bytes = min(chunk_bytes * GROWTH, self.chunk_bytes)
                    base, first, stop = position, CONTROL_SIZE, CONTROL_SIZE + length
                if stop <= len(buffer) and is_sound(buffer, first, stop, checksum):
                    records = decode(buffer, first, stop, base)
                    if records is not None:
                        end = base + stop
                        yield Batch(file, position, end, checksum, records)
                        position = good_end = end
                        at = stop
                        continue
            resumption = self._resume(source, position, limit)
            if resumption is None:
                self.ending = Ending(good_end, self._kind(source, position))
                return
            position = resumption
            buffer, base, at = b"", position, 0
        kind = EndingKind.FILE_END if self.end is None else EndingKind.BOUND
        self.ending = Ending(good_end, kind)

    def _resume(self, source: Source, position: int, limit: int) -> int | None:
        """Return where to continue if no good batch is at ``position``; None: the scan ends here."""
        if self.is_live:
            return None
        following = self._next_good(source, self._chain_end(source, position, limit), limit)
        if following is not None:
            # The writer completed this batch before it wrote the next one. So if this batch was incomplete when it was
            # read, it is complete now.
            if self._is_good(source, position, limit):
                return position
            self._corrupt(position, following, self._reason(source, position, limit))
            return following
        if self.end is not None:
            reason = self._reason(source, position, limit)
            self._corrupt(position, limit, f"a later header states that this file ends at {limit}, but {reason}")
        elif position == 0 and not _may_be_torn_start(source.read(0, CONTROL_MARK_SIZE)):
            self._corrupt(0, limit, "it does not begin as a journal file does")
        return None

    def _corrupt(self, start: int, stop: int, reason: str) -> None:
        corruption = JournalCorrupt(self.file, start, stop, reason)
        if self.on_corrupt is None:
            raise corruption
        self.on_corrupt(corruption)

    @staticmethod
    def _kind(source: Source, position: int) -> EndingKind:
        mark = source.read(position, END_RECORD_SIZE)
        if not mark:
            return EndingKind.FILE_END
        if mark == END_RECORD:
            return EndingKind.END_RECORD
        return EndingKind.TORN if any(mark) else EndingKind.ZEROS

    @staticmethod
    def _is_good(source: Source, position: int, limit: int) -> bool:
        control = source.read(position, CONTROL_SIZE)
        if len(control) < CONTROL_SIZE:
            return False
        mark, length, checksum = CONTROL.unpack(control)
        if mark != CONTROL_MARK or not 0 < length <= limit - position - CONTROL_SIZE:
            return False
        body = source.read(position + CONTROL_SIZE, length)
        return (
            len(body) == length
            and is_sound(body, 0, length, checksum)
            and decode_records(body, 0, length, position) is not None
        )

    @staticmethod
    def _chain_end(source: Source, position: int, limit: int) -> int:
        """Return the offset after the valid records of the bad batch at ``position``. The search for the next good
        batch begins there.

        Valid records are not searched: if a client sent a journal file as a message, its batches must not be taken for
        batches of this file.
        """
        control = source.read(position, CONTROL_SIZE)
        if len(control) < CONTROL_SIZE or not control.startswith(CONTROL_MARK):
            return position + 1
        stop = min(limit, position + CONTROL_SIZE + int(CONTROL.unpack(control)[1]))
        at = position + CONTROL_SIZE
        while at < stop:
            start = source.read(at, CONTROL_MARK_SIZE)
            if len(start) < RECORD_HEADER_SIZE or start == CONTROL_MARK:
                break  # a batch begins here, not a record: the length of the bad batch is damaged
            size = int(RECORD_HEADER.unpack_from(start)[0])
            if size < RECORD_HEADER_SIZE or at + size > stop:
                break
            at += size
        return at

    def _next_good(self, source: Source, start: int, limit: int) -> int | None:
        """Return the offset of the first good batch that begins at ``start`` or later, or None. Holes in the file are
        not read."""
        search_bytes = min(SEARCH_BYTES, self.chunk_bytes)
        overlap = CONTROL_MARK_SIZE - 1
        zeros = bytes(search_bytes + overlap)
        while start < limit:
            chunk = source.read(start, min(search_bytes + overlap, limit - start))
            if not chunk:
                return None  # the file ends before ``limit``
            if chunk == (zeros if len(chunk) == len(zeros) else bytes(len(chunk))):
                # A control record begins with zero bytes, which may be the last bytes of a hole.
                start = max(start + search_bytes, source.data_from(start + len(chunk)) - overlap)
                continue
            found = chunk.find(CONTROL_MARK)
            while found >= 0:
                if self._is_good(source, start + found, limit):
                    return start + found
                found = chunk.find(CONTROL_MARK, found + 1)
            start += search_bytes
        return None

    @staticmethod
    def _reason(source: Source, position: int, limit: int) -> str:
        """Return a text for the operator: the defect of the batch at ``position``."""
        control = source.read(position, CONTROL_SIZE)
        if len(control) < CONTROL_SIZE:
            return "it ends before that"
        if control.startswith(END_RECORD) or not any(control[:END_RECORD_SIZE]):
            return "an end mark stands before further batches"
        mark, length, checksum = CONTROL.unpack(control)
        if mark != CONTROL_MARK:
            return "no batch begins here"
        if not 0 < length <= limit - position - CONTROL_SIZE:
            return f"the control record states that the records are {length} bytes long"
        if not is_sound(source.read(position + CONTROL_SIZE, length), 0, length, checksum):
            return "the checksum of the batch does not match"
        return "the records of the batch do not add up to its length"


def _may_be_torn_start(start: bytes) -> bool:
    """Return whether these may be the first bytes of a journal file whose first write was torn: each byte is that of
    the prepared file, that of a batch, or 0."""
    old = END_RECORD.ljust(CONTROL_MARK_SIZE, b"\0")
    return all(byte in (0, old[i], CONTROL_MARK[i]) for i, byte in enumerate(start))


def scan(
    files: JournalFiles,
    file: int,
    start: int = 0,
    end: int | None = None,
    *,
    is_live: bool = False,
    drop_cache: bool = False,
    on_corrupt: Callable[[JournalCorrupt], None] | None = None,
) -> Scan:
    """Return a Scan of a journal file from ``start``, which must be the offset of a batch.

    The file is opened when iteration begins, and closed when it ends. With ``drop_cache`` the bytes are read from the
    disk, not from this host's page cache. Iteration raises JournalMissing if the file does not exist.
    """
    open_source = partial(FileSource, files, file, drop_cache)  # prove: scan-drops-cache ", drop_cache"
    return Scan(open_source, file, start, end, is_live=is_live, on_corrupt=on_corrupt)


def scanned_end(files: JournalFiles, file: int, *, on_corrupt: Callable[[JournalCorrupt], None] | None = None) -> int:
    """Return the end of the last good batch of a journal file; 0: it has none. ``on_corrupt``: see ``Scan``. Raises
    JournalMissing if the file does not exist."""
    end = 0
    for batch in scan(files, file, on_corrupt=on_corrupt):
        end = batch.end
    return end
