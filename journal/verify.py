"""Search for damage in a sealed journal file, by the checksums of its batches.

Only control records are decoded. The disk may damage bytes after this search, so a reader of records compares them
again (checked.py).
"""

from __future__ import annotations

from zlib import adler32

from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import CONTROL, CONTROL_MARK, CONTROL_SIZE, decode_records
from tandemmq.journal.scan import FileSource, Scan, Source

# Bytes read at a time: they stay in the processor's cache while their checksums are calculated.
CHUNK_BYTES = 256 * 1024

# Damaged ranges as (first byte, byte after the last), ascending
Ranges = tuple[tuple[int, int], ...]


def damage_in(files: JournalFiles, file: int, end: int | None) -> Ranges:
    """Return the damaged ranges of ``file``; empty if there is no damage.

    ``end`` is the end of the file that a later header states: all bytes before it must be good. None (a file that
    ActiveMQ wrote): the file is checked up to its last good batch, because a torn tail is no damage. Batches without a
    checksum (ActiveMQ before 5.9) count as good. Raises JournalMissing if the file is missing, OSError if the volume
    fails.
    """
    source = FileSource(files, file)
    try:
        return damage_of(source, file, end)
    finally:
        source.close()


def damage_of(source: Source, file: int, end: int | None, chunk_bytes: int = CHUNK_BYTES) -> Ranges:
    """Return the damaged ranges as ``damage_in`` does, for a file that the caller has opened. ``chunk_bytes`` are read
    at a time."""
    limit = source.size() if end is None else end
    good = _good_until(source, limit, chunk_bytes)
    if good >= limit:
        return ()
    # A rare case: a bad batch or the end is at `good`. The scan distinguishes them, and finds later damage.
    found: list[tuple[int, int]] = []

    def note(damage: JournalCorrupt) -> None:
        found.append((damage.start, damage.stop))

    for _ in Scan(lambda: Borrowed(source), file, good, end, on_corrupt=note):
        pass
    return tuple(found)


def batch_length(head: bytes) -> int:
    """Return the length in bytes of the batch that begins with ``head``, its control record included. 0: no batch with
    a checksum begins there."""
    if len(head) < CONTROL_SIZE:
        return 0
    mark, length, checksum = CONTROL.unpack_from(head)
    return CONTROL_SIZE + int(length) if mark == CONTROL_MARK and length > 0 and checksum > 0 else 0


def is_sound_batch(data: bytes) -> bool:
    """Return whether ``data`` is exactly one batch that has a checksum and matches it."""
    length = batch_length(data)
    if not length or length != len(data):
        return False
    checksum = int(CONTROL.unpack_from(data)[2])
    is_summed = adler32(memoryview(data)[CONTROL_SIZE:]) == checksum
    return is_summed and decode_records(data, CONTROL_SIZE, length, 0) is not None


def good_bytes(data: bytes, limit: int) -> int:
    """Return the number of leading bytes of ``data`` that are complete good batches and end at or before ``limit``.
    Batches without a checksum count as good."""
    unpack = CONTROL.unpack_from
    view = memoryview(data)
    limit = min(limit, len(data))
    at = 0
    while at + CONTROL_SIZE <= limit:
        mark, length, checksum = unpack(data, at)
        first = at + CONTROL_SIZE
        stop = first + length
        if mark != CONTROL_MARK or length <= 0 or stop > limit:
            break
        if checksum > 0 and adler32(view[first:stop]) != checksum:
            break
        at = stop
    return at


def _good_until(source: Source, limit: int, chunk_bytes: int) -> int:
    """Return the start of the first batch that is incomplete or damaged, or the end of the last batch if there is
    none."""
    position = 0  # of the next batch in the file
    while position + CONTROL_SIZE <= limit:
        buffer = source.read(position, chunk_bytes)
        good = good_bytes(buffer, limit - position)
        if not good:  # a batch that is longer than the chunk, a bad batch, or the end of the file
            if len(buffer) < CONTROL_SIZE:
                return position
            mark, length, _ = CONTROL.unpack_from(buffer)
            good = CONTROL_SIZE + int(length)
            is_long = mark == CONTROL_MARK and len(buffer) < good <= limit - position
            if not is_long or not _is_long_batch_good(source, position, chunk_bytes):
                return position
        position += good
    return position


def _is_long_batch_good(source: Source, position: int, chunk_bytes: int) -> bool:
    _, length, checksum = CONTROL.unpack(source.read(position, CONTROL_SIZE))
    sum_so_far = 1
    at, stop = position + CONTROL_SIZE, position + CONTROL_SIZE + length
    while at < stop:
        piece = source.read(at, min(chunk_bytes, stop - at))
        if not piece:
            return False
        sum_so_far = adler32(piece, sum_so_far)
        at += len(piece)
    return bool(checksum <= 0 or sum_so_far == checksum)


class Borrowed:
    """Source whose ``close`` does nothing: its owner closes it."""

    __slots__ = ("_source",)

    def __init__(self, source: Source) -> None:
        self._source = source

    def read(self, offset: int, length: int) -> bytes:
        return self._source.read(offset, length)

    def data_from(self, offset: int) -> int:
        return self._source.data_from(offset)

    def size(self) -> int:
        return self._source.size()

    def close(self) -> None:
        pass
