"""Format of a journal file, in KahaDB's layout. Pure: no I/O. Payloads are opaque.

    file     | batch | batch | ... | end record | former content |

    batch    | control record (28) | record | record | ... |
    control  | size = 28  i4 | type = 2  u1 | "WRITE BATCH"  11 | length of the records  i4 | Adler-32 of them  i8 |
    record   | size, these 5 bytes included  i4 | type = 1  u1 | payload |
    end      | 2D 71 4D 61 34 |

All numbers are big-endian. The next batch is written over the end record. A batch counts only if its checksum matches
(or is 0, as ActiveMQ before 5.9 wrote), and if the sizes of its records add up to exactly the length in its control
record. Records of another type are skipped. (KahaDB: Journal, DataFileAppender; docs/formats/journal.md.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, overload
from zlib import adler32

# file << 32 | offset of the record's header
Location = int

RECORD_HEADER: Final = struct.Struct(">iB")
RECORD_HEADER_SIZE = RECORD_HEADER.size
USER_RECORD: Final = 1
BATCH_RECORD: Final = 2

_SEAL: Final = struct.Struct(">iq")
CONTROL_MARK_SIZE: Final = RECORD_HEADER_SIZE + len(b"WRITE BATCH")
CONTROL_SIZE: Final = CONTROL_MARK_SIZE + _SEAL.size
CONTROL_MARK: Final = RECORD_HEADER.pack(CONTROL_SIZE, BATCH_RECORD) + b"WRITE BATCH"
CONTROL: Final = struct.Struct(f">{CONTROL_MARK_SIZE}siq")
_UNSEALED_CONTROL: Final = CONTROL_MARK.ljust(CONTROL_SIZE, b"\0")

END_RECORD: Final = b"-qMa4"
END_RECORD_SIZE: Final = len(END_RECORD)

# KahaDB's default of journalMaxFileLength, which is a soft limit
FILE_LENGTH_DEFAULT: Final = 32 * 1024 * 1024
# KahaDB keeps the length of a file in a signed 32-bit number
FILE_LENGTH_LIMIT: Final = 2**31 - 1
FILE_ID_LIMIT: Final = 2**31 - 1
OFFSET_MASK: Final = 2**32 - 1


def location(file: int, offset: int) -> Location:
    return file << 32 | offset


def file_of(location: Location) -> int:
    return location >> 32


def offset_of(location: Location) -> int:
    return location & OFFSET_MASK


def encode_batch(payloads: Iterable[bytes], origin: int = 0) -> tuple[bytearray, list[int]]:
    """Return (bytes of a batch with an end record after it, ``origin`` + the offset of each record in the batch).

    If ``origin`` is the location of the batch, the second value has the locations of the records. At least one payload
    is needed: a reader takes a batch without records for the end of the file (as KahaDB does).
    """
    pack = RECORD_HEADER.pack
    parts = [_UNSEALED_CONTROL]
    add = parts.append
    starts = []
    start = origin + CONTROL_SIZE
    for payload in payloads:
        starts.append(start)
        size = RECORD_HEADER_SIZE + len(payload)
        add(pack(size, USER_RECORD))
        add(payload)
        start += size
    add(END_RECORD)
    length = start - origin - CONTROL_SIZE
    assert length, "a batch has at least one record"
    batch = bytearray().join(parts)
    checksum = adler32(memoryview(batch)[CONTROL_SIZE:-END_RECORD_SIZE])
    _SEAL.pack_into(batch, CONTROL_MARK_SIZE, length, checksum)
    return batch, starts


def batch_checksum(batch: bytes | bytearray) -> int:
    """Return the checksum of an encoded batch."""
    checksum: int = _SEAL.unpack_from(batch, CONTROL_MARK_SIZE)[1]
    return checksum


def is_sound(buffer: bytes, start: int, stop: int, checksum: int) -> bool:
    """Return whether the bytes of the records, ``buffer[start:stop]``, match the checksum of their batch. As in KahaDB,
    0 or less means that the batch has no checksum."""
    return checksum <= 0 or adler32(memoryview(buffer)[start:stop]) == checksum


def decode_records(buffer: bytes, start: int, stop: int, base: int) -> list[tuple[int, bytes]] | None:
    """Return the user records between ``start`` and ``stop`` as (``base`` + offset of the header, payload).

    None when the sizes do not add up to exactly ``stop``.
    """
    unpack = RECORD_HEADER.unpack_from
    records = []
    last = stop - RECORD_HEADER_SIZE
    at = start
    while at <= last:
        size, kind = unpack(buffer, at)
        following = at + size
        if size < RECORD_HEADER_SIZE or following > stop:
            return None
        if kind == USER_RECORD:
            records.append((base + at, buffer[at + RECORD_HEADER_SIZE : following]))
        at = following
    return records if at == stop else None


class Records(Sequence[tuple[int, bytes]]):
    """User records of a batch: the same items as from ``decode_records``, but a payload is copied only when its item is
    requested.

    Record ``i`` is ``buffer[starts[i]:stops[i]]``, its header included.
    """

    __slots__ = ("base", "buffer", "starts", "stops")

    def __init__(self, buffer: bytes, base: int, starts: list[int], stops: list[int]) -> None:
        self.buffer = buffer
        self.base = base
        self.starts = starts
        self.stops = stops

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> tuple[int, bytes]: ...

    @overload
    def __getitem__(self, index: slice) -> Records: ...

    def __getitem__(self, index: int | slice) -> tuple[int, bytes] | Records:
        if isinstance(index, slice):
            return Records(self.buffer, self.base, self.starts[index], self.stops[index])
        start = self.starts[index]
        return self.base + start, self.buffer[start + RECORD_HEADER_SIZE : self.stops[index]]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Records) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        buffer, base = self.buffer, self.base
        for start, stop in zip(self.starts, self.stops, strict=True):
            yield base + start, buffer[start + RECORD_HEADER_SIZE : stop]


def locate_records(buffer: bytes, start: int, stop: int, base: int) -> Records | None:
    """Return the user records between ``start`` and ``stop`` like ``decode_records``, without copying payloads."""
    unpack = RECORD_HEADER.unpack_from
    starts: list[int] = []
    add = starts.append
    others = []
    last = stop - RECORD_HEADER_SIZE
    at = start
    while at <= last:
        size, kind = unpack(buffer, at)
        if kind != USER_RECORD:
            others.append(len(starts))
        add(at)
        at += size
        if size < RECORD_HEADER_SIZE:
            return None
    if at != stop:  # the last record is too short or too long
        return None
    stops = [*starts[1:], stop] if starts else []
    for index in reversed(others):
        del starts[index], stops[index]
    return Records(buffer, base, starts, stops)
