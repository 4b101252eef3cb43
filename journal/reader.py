"""Reader of single records by their location, for any thread.

A single record has no checksum; only its batch has one, which a scan checks. This module checks that a user record of
the right size begins at the given place. The owner of the files calls ``forget`` before it removes some.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tandemmq.disk import open_regular, read_fully
from tandemmq.journal.errors import JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import (
    OFFSET_MASK,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    USER_RECORD,
    Location,
    file_of,
    offset_of,
)

DESCRIPTORS_MAX = 64
# First read of a record of unknown size. Most records are shorter; a second read gets the rest of a longer one.
FIRST_READ_BYTES = 4096
# Maximum gap between two records that are read together, and maximum size of one read, unless one record is longer.
GAP_BYTES_MAX = 16 * 1024
SPAN_BYTES_MAX = 1024 * 1024


@dataclass(slots=True, eq=False)
class _Descriptor:
    fd: int
    pins: int = 0
    is_forgotten: bool = False


class JournalReader:
    """Reader with at most ``descriptors_max`` open files, or one for each thread that reads, if that is more."""

    __slots__ = ("_descriptors", "_descriptors_max", "_files", "_lock")

    def __init__(self, files: JournalFiles, descriptors_max: int = DESCRIPTORS_MAX) -> None:
        self._files = files
        self._descriptors_max = descriptors_max
        self._lock = files.make_lock()
        self._descriptors: dict[int, _Descriptor] = {}  # least recently used first

    def read(self, location: Location, size: int = 0) -> bytes:
        """Return the payload of the record at ``location``. ``size``: of the whole record in bytes, with its header;
        0: unknown.

        Raises JournalMissing if the file is missing, JournalCorrupt if no such record is there.
        """
        file, offset = file_of(location), offset_of(location)
        with self._open(file, offset) as fd:
            data = read_fully(self._files.disk, fd, size or FIRST_READ_BYTES, offset)
            actual = record_size(data, 0, file, offset, size)
            if actual > len(data):
                data += read_fully(self._files.disk, fd, actual - len(data), offset + len(data))
        if actual > len(data):
            raise JournalCorrupt(file, offset, offset + actual, "the file ends within this record")
        return data[RECORD_HEADER_SIZE:actual]

    def read_many(self, wanted: Sequence[tuple[Location, int]]) -> list[bytes]:
        """Return the payloads of several records, given as (location, size of the whole record) in ascending order.

        Records that are close to each other are read together. Raises the same exceptions as ``read``.
        """
        payloads: list[bytes] = []
        for file, start, stop, records in neighbours(wanted):
            with self._open(file, start) as fd:
                data = read_fully(self._files.disk, fd, stop - start, start)
            for location, size in records:
                offset = location & OFFSET_MASK
                at = offset - start
                end = at + record_size(data, at, file, offset, size)
                if end > len(data):
                    raise JournalCorrupt(file, offset, start + end, "the file ends within this record")
                payloads.append(data[at + RECORD_HEADER_SIZE : end])
        return payloads

    def read_bytes(self, file: int, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of a file, fewer only at its end. Raises JournalMissing."""
        with self._open(file, offset) as fd:
            return read_fully(self._files.disk, fd, length, offset)

    def forget(self, files: Iterable[int]) -> None:
        """Close these files, which will be removed. A read in progress can finish."""
        with self._lock:
            for file in files:
                descriptor = self._descriptors.pop(file, None)
                if descriptor is not None:
                    self._retire(descriptor)

    def close(self) -> None:
        self.forget(list(self._descriptors))

    @contextmanager
    def _open(self, file: int, offset: int) -> Iterator[int]:
        with self._lock:
            descriptor = self._descriptors.pop(file, None)
            if descriptor is None:
                try:
                    fd = open_regular(self._files.disk, self._files.path(file), os.O_RDONLY)
                except FileNotFoundError as error:
                    raise JournalMissing(file, offset) from error
                descriptor = _Descriptor(fd)
                self._evict()
            self._descriptors[file] = descriptor
            descriptor.pins += 1
        try:
            yield descriptor.fd
        finally:
            with self._lock:
                descriptor.pins -= 1
                if descriptor.is_forgotten and not descriptor.pins:
                    self._files.disk.close(descriptor.fd)

    def _evict(self) -> None:
        while len(self._descriptors) >= self._descriptors_max:
            oldest = next((file for file, known in self._descriptors.items() if not known.pins), None)
            if oldest is None:
                return
            self._retire(self._descriptors.pop(oldest))

    def _retire(self, descriptor: _Descriptor) -> None:
        descriptor.is_forgotten = True
        if not descriptor.pins:
            self._files.disk.close(descriptor.fd)


def neighbours(
    wanted: Sequence[tuple[Location, int]],
) -> Iterator[tuple[int, int, int, Sequence[tuple[Location, int]]]]:
    """Group records that are close to each other, and yield one read for each group.

    ``wanted`` has (location, size of the whole record) in ascending order. A read is (file, offset of its first byte,
    offset after its last byte, its part of ``wanted``).
    """
    count = len(wanted)
    index = 0
    while index < count:
        location, size = wanted[index]
        file, start = file_of(location), offset_of(location)
        stop = start + size
        following = index + 1
        while following < count:
            location, size = wanted[following]
            offset = location & OFFSET_MASK
            if file_of(location) != file or offset - stop > GAP_BYTES_MAX or offset + size - start > SPAN_BYTES_MAX:
                break
            stop = max(stop, offset + size)
            following += 1
        yield file, start, stop, wanted[index:following]
        index = following


def record_size(data: bytes, at: int, file: int, offset: int, expected: int) -> int:
    """Return the size in the record header at ``data[at]``. Raises JournalCorrupt if it is invalid, or is not
    ``expected`` (0: unknown)."""
    if len(data) - at < RECORD_HEADER_SIZE:
        raise JournalCorrupt(file, offset, offset + RECORD_HEADER_SIZE, "the file ends before this record")
    size, kind = RECORD_HEADER.unpack_from(data, at)
    if kind != USER_RECORD or size < RECORD_HEADER_SIZE:
        raise JournalCorrupt(file, offset, offset + RECORD_HEADER_SIZE, "no record begins here")
    if expected and size != expected:
        raise JournalCorrupt(file, offset, offset + expected, f"a record of {size} bytes instead of {expected}")
    return int(size)
