"""Reader of single records that compares all bytes with checksums after each read.

    file     | batch | batch | batch |          each batch is compared with its own checksum, once
    blocks   |    |    |    |    |    |         4 KiB each: their checksums are then kept in memory
    read     whole blocks around the record     compared with the block checksums in memory

A batch may have a thousand records, and each message of a queue may be in another batch. To read a whole batch for each
record would be slow. So a batch is verified once, and later reads verify only the blocks of the record. This also finds
damage of the disk or of the page cache that happened after the first read.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from zlib import adler32

from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import (
    CONTROL,
    CONTROL_MARK,
    CONTROL_SIZE,
    RECORD_HEADER_SIZE,
    Location,
    file_of,
    offset_of,
)
from tandemmq.journal.reader import JournalReader, neighbours, record_size
from tandemmq.journal.scan import FileSource, Scan
from tandemmq.journal.verify import CHUNK_BYTES, good_bytes

BLOCK_BYTES = 4096
# Limit of the block checksums in memory, for all files together; 4 bytes each, enough for 16 GiB of journal.
BLOCKS_MAX = 4 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Known:
    """Checked part of a file: the bytes before ``upto``, where a batch begins or the file ends.

    ``damage``: the ranges that do not match their checksums, as (first byte, byte after the last). ``blocks``: the
    checksums of the whole blocks before ``upto``. ``rest``: the checksum of the bytes between them and ``upto``.
    """

    upto: int = 0
    damage: list[tuple[int, int]] = field(default_factory=list)
    blocks: array[int] = field(default_factory=lambda: array("I"))
    rest: int = 1

    def add(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            piece = data[at : at + BLOCK_BYTES - self.upto % BLOCK_BYTES]
            self.rest = adler32(piece, self.rest)
            at += len(piece)
            self.upto += len(piece)
            if self.upto % BLOCK_BYTES == 0:
                self.blocks.append(self.rest)
                self.rest = 1

    def matches(self, data: bytes, first: int) -> bool:
        """Return whether ``data`` has the same checksums as when it was checked. It begins with the block ``first``,
        and ends at the end of a block or at ``upto``."""
        view = memoryview(data)
        expected = self.blocks[first : first + -(-len(data) // BLOCK_BYTES)]
        if len(expected) * BLOCK_BYTES < len(data):
            expected.append(self.rest)
        starts = range(0, len(data), BLOCK_BYTES)
        return all(adler32(view[at : at + BLOCK_BYTES]) == each for at, each in zip(starts, expected, strict=True))


class CheckedReader:
    """Reader of records by location, for one thread.

    ``end_of`` returns the end of a file that a later header states, or None if no header states it. The reads raise
    JournalMissing if the file is missing, JournalCorrupt if bytes do not match their checksum.
    """

    def __init__(self, files: JournalFiles, end_of: Callable[[int], int | None], blocks_max: int = BLOCKS_MAX) -> None:
        self._files = files
        self._end_of = end_of
        self._reader = JournalReader(files)
        self._known: dict[int, _Known] = {}  # the least recently used first
        self._blocks_max = blocks_max
        self.blocks = 0  # number of remembered block checksums

    def read(self, location: Location, size: int = 0) -> bytes:
        """Return the payload of the record at ``location``. ``size``: of the whole record in bytes; 0: unknown."""
        if size:
            return self.read_many([(location, size)])[0]
        file, offset = file_of(location), offset_of(location)
        header = self._verified(file, offset, offset + RECORD_HEADER_SIZE)
        return self.read_many([(location, record_size(header, 0, file, offset, 0))])[0]

    def read_many(self, wanted: Sequence[tuple[Location, int]]) -> list[bytes]:
        """Return the payloads of several records, given as (location, size of the whole record) in ascending order.
        Records that are close to each other are read together."""
        payloads: list[bytes] = []
        for file, start, stop, records in neighbours(wanted):
            data = self._verified(file, start, stop)
            for location, size in records:
                offset = offset_of(location)
                at = offset - start
                payloads.append(data[at + RECORD_HEADER_SIZE : at + record_size(data, at, file, offset, size)])
        return payloads

    def forget(self, files: Iterable[int]) -> None:
        """Close these files, which will be removed, and drop their block checksums."""
        gone = tuple(files)
        self._reader.forget(gone)
        for file in gone:
            self._forget(file)

    def close(self) -> None:
        self._reader.close()

    def _verified(self, file: int, start: int, stop: int) -> bytes:
        known = self._through(file, stop)
        if any(first < stop and start < last for first, last in known.damage):  # prove: damaged-batch-is-kept-back
            raise JournalCorrupt(file, start, stop, "its batch does not verify")
        block = start // BLOCK_BYTES
        begin = block * BLOCK_BYTES
        end = min(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, known.upto)
        data = self._reader.read_bytes(file, begin, end - begin)
        if len(data) < end - begin or not known.matches(data, block):  # prove: block-is-compared
            raise JournalCorrupt(file, start, stop, "it is not what was verified before")
        return data[start - begin : stop - begin]

    def _through(self, file: int, target: int) -> _Known:
        """Check the file up to ``target`` or further, and return its checked part."""
        known = self._known.pop(file, None) or _Known()
        self._known[file] = known
        if known.upto < target:
            before = len(known.blocks)
            try:
                while known.upto < target:
                    self._verify_next(file, known, target)
            finally:
                self.blocks += len(known.blocks) - before
            while self.blocks > self._blocks_max and len(self._known) > 1:
                self._forget(next(iter(self._known)))
        return known

    def _verify_next(self, file: int, known: _Known, target: int) -> None:
        start, end = known.upto, self._end_of(file)
        data = self._reader.read_bytes(file, start, CHUNK_BYTES)
        good = good_bytes(data, len(data) if end is None else end - start)
        if good:
            known.add(memoryview(data)[:good])
            return
        if len(data) == CHUNK_BYTES and self._verify_long_batch(file, known, data):
            return
        following = self._next_good(file, start, end)
        if following is None:
            raise JournalCorrupt(file, start, target, "its batch does not verify")
        known.damage.append((start, following))
        while known.upto < following:
            known.add(memoryview(self._reader.read_bytes(file, known.upto, min(CHUNK_BYTES, following - known.upto))))

    def _verify_long_batch(self, file: int, known: _Known, head: bytes) -> bool:
        """Return whether a good batch that is longer than a chunk begins at ``upto``. If so, ``upto`` is then its
        end."""
        mark, length, checksum = CONTROL.unpack_from(head)
        upto, blocks, rest = known.upto, len(known.blocks), known.rest
        stop = upto + CONTROL_SIZE + length
        if mark != CONTROL_MARK or stop <= upto + len(head):
            return False
        piece = memoryview(head)
        summed = adler32(piece[CONTROL_SIZE:])
        while piece:
            known.add(piece)
            piece = memoryview(self._reader.read_bytes(file, known.upto, min(CHUNK_BYTES, stop - known.upto)))
            summed = adler32(piece, summed)
        # prove: long-batch-is-verified "summed == checksum" -> "True"
        if known.upto == stop and (checksum <= 0 or summed == checksum):
            return True
        known.upto, known.rest = upto, rest
        del known.blocks[blocks:]
        return False

    def _next_good(self, file: int, start: int, end: int | None) -> int | None:
        """Return the start of the first good batch after the bad batch at ``start``, or None if there is none."""
        skipped: list[JournalCorrupt] = []
        for found in Scan(lambda: FileSource(self._files, file), file, start, end, on_corrupt=skipped.append):
            return found.offset
        return None

    def _forget(self, file: int) -> None:
        known = self._known.pop(file, None)
        if known is not None:
            self.blocks -= len(known.blocks)
