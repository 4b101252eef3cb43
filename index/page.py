"""A page of db.data.

    | checksum u32 | kind u8 | flags u8 | entries u16 | page u32 | prefix u16 | zero u16
    | generation u64 | incarnation u64 | body, zeros |

Little-endian. The checksum is zlib.crc32 of all bytes of the page after the checksum. The pointer to a page repeats its
page number, generation and checksum. So a page that was not written, was written to another place, or is older than its
pointer is detected.

Pure: no I/O. Keys and values in the body: index/node.py.
"""

import struct
from typing import NamedTuple
from zlib import crc32

from tandemmq.index.errors import IndexDamaged

PAGE_SIZE_DEFAULT = 8192
PAGE_SIZE_MIN = 256
PAGE_SIZE_MAX = 32768

LEAF = 1
BRANCH = 2

CHECKSUM = struct.Struct("<I")
HEAD = struct.Struct("<BBHIHHQQ")  # the header after the checksum
HEADER_BYTES = CHECKSUM.size + HEAD.size


class Pointer(NamedTuple):
    """Page number, with the values that identify the content of the page."""

    page: int
    generation: int
    checksum: int


class Header(NamedTuple):
    """Verified header of a page."""

    kind: int
    flags: int
    entries: int
    page: int
    prefix_bytes: int
    zero: int
    generation: int
    incarnation: int


def seal(header: Header, body: bytes, page_size: int) -> tuple[bytes, int]:
    """Return the bytes of a page, and their checksum for the pointer to the page."""
    room = page_size - HEADER_BYTES - len(body)
    assert room >= 0, "a node was cut larger than a page"
    rest = b"".join((HEAD.pack(*header), body, bytes(room)))
    checksum = crc32(rest)
    return CHECKSUM.pack(checksum) + rest, checksum


def verify(data: bytes, pointer: Pointer, page_size: int) -> Header:
    """Return the header of the page in `data`. Raises IndexDamaged if it is not the page to which `pointer` points."""
    if len(data) != page_size:
        raise IndexDamaged(f"page {pointer.page} is beyond the end of the file")
    checksum = crc32(memoryview(data)[CHECKSUM.size :])
    if checksum != CHECKSUM.unpack_from(data)[0]:
        raise IndexDamaged(f"page {pointer.page} does not match its checksum")
    header = Header._make(HEAD.unpack_from(data, CHECKSUM.size))
    is_there = header.page == pointer.page and header.generation == pointer.generation
    if not is_there or checksum != pointer.checksum:  # prove: page-of-its-pointer " or checksum != pointer.checksum"
        raise IndexDamaged(
            f"page {pointer.page} of generation {pointer.generation} was expected, "
            f"page {header.page} of generation {header.generation} with other contents was found"
        )
    return header
