"""Reader of ActiveMQ's page file db.data and its write buffer db.redo (PageFile, Page).

    db.data   header 4096: the same properties twice, 2048 bytes each, padded with spaces     page 0   page 1   ...
    page      type u1 (0 free, 1 part, 2 end), transaction i8, next i8, checksum i4 (always 0), data
    next      of a part: the page that continues it; of an end: the bytes used in this page, header (21 bytes) included
    db.redo   next transaction i8, Adler-32 i8, pages i4; from 4096 on: page id i8, page ...

An object is a chain of parts and one end. ActiveMQ writes pages to db.redo first, syncs it, then writes them to their
places in db.data. So after an unclean stop, a db.redo whose checksum matches has the newer pages; the reader uses them
instead of those in db.data.
"""

from __future__ import annotations

import os
import struct
from zlib import adler32

from tandemmq.disk import Disk, open_regular, read_fully


class KahaIndexDamaged(Exception):
    """db.data is not a valid index of ActiveMQ: truncated, contradictory, or of an unknown version."""


DATA = "db.data"
REDO = "db.redo"
FREE = "db.free"

HEADER_BYTES = 4096
HEADER_COPY_BYTES = HEADER_BYTES // 2
PAGE_BYTES_DEFAULT = 4096
PAGE_HEAD = struct.Struct(">Bqqi")
PAGE_FREE, PAGE_PART, PAGE_END = 0, 1, 2

_REDO_HEAD = struct.Struct(">qqi")
_REDO_HEADER_BYTES = 4096
_PAGE_ID = struct.Struct(">q")
# A file with more pages than this limit is no valid db.redo: ActiveMQ writes at most 10,000 pages at once.
_REDO_PAGES_MAX = 1 << 20


class PageFile:
    """Page file ``<directory>/db.data``, open for reading; the caller closes it. One thread at a time.

    ``was_closed``: ActiveMQ had stopped cleanly. Raises FileNotFoundError without db.data, OSError if the volume fails,
    KahaIndexDamaged if db.data is no page file.
    """

    def __init__(self, directory: str, disk: Disk = os) -> None:
        self._disk = disk
        self.path = os.path.join(directory, DATA)
        self._fd = open_regular(disk, self.path, os.O_RDONLY)
        self._redo_fd: int | None = None
        self._redone: dict[int, int] = {}  # page -> offset of its newer content in db.redo
        try:
            properties = self._read_header()
            self.page_bytes = _number(properties, "pageSize", self.path)
            if self.page_bytes <= PAGE_HEAD.size:
                raise KahaIndexDamaged(f"{self.path}: the page size {self.page_bytes} is invalid")
            self.was_closed = properties.get("cleanShutdown", "").lower() == "true"
            if not self.was_closed:
                self._open_redo(os.path.join(directory, REDO))
            size = disk.fstat(self._fd).st_size
            self.pages = max([(size - HEADER_BYTES) // self.page_bytes, *(page + 1 for page in self._redone)])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._disk.close(self._fd)
        if self._redo_fd is not None:
            self._disk.close(self._redo_fd)

    def read_chain(self, page: int) -> bytes:
        """Return the bytes of the object that begins in ``page``. Raises KahaIndexDamaged if its chain is broken."""
        parts: list[bytes] = []
        while True:
            data = self._read_page(page)
            kind, _, following, _ = PAGE_HEAD.unpack_from(data)
            if kind == PAGE_END:
                if not PAGE_HEAD.size <= following <= self.page_bytes:
                    raise KahaIndexDamaged(f"{self.path}: page {page} states that {following} bytes of it are used")
                parts.append(data[PAGE_HEAD.size : following])
                return b"".join(parts)
            if kind != PAGE_PART:
                what = "is free" if kind == PAGE_FREE else f"is of type {kind}"
                raise KahaIndexDamaged(f"{self.path}: page {page} {what}, but is referred to")
            parts.append(data[PAGE_HEAD.size :])
            if len(parts) > self.pages:
                raise KahaIndexDamaged(f"{self.path}: the chain through page {page} has no end")
            page = following

    def _read_page(self, page: int) -> bytes:
        if not 0 <= page < self.pages:
            raise KahaIndexDamaged(f"{self.path}: page {page} is referred to, but there are only {self.pages} pages")
        redone = self._redone.get(page)
        if redone is not None:
            assert self._redo_fd is not None, "a page that was redone comes from db.redo"
            data = read_fully(self._disk, self._redo_fd, self.page_bytes, redone)
        else:
            data = read_fully(self._disk, self._fd, self.page_bytes, HEADER_BYTES + page * self.page_bytes)
        if len(data) < self.page_bytes:
            raise KahaIndexDamaged(f"{self.path}: the file ends within page {page}")
        return data

    def _read_header(self) -> dict[str, str]:
        data = read_fully(self._disk, self._fd, HEADER_BYTES, 0)
        if len(data) < HEADER_BYTES:
            raise KahaIndexDamaged(f"{self.path}: the file has {len(data)} bytes, less than its header")
        first = _properties(data[:HEADER_COPY_BYTES])
        second = _properties(data[HEADER_COPY_BYTES:])
        # ActiveMQ writes and syncs the first half before the second. So if they differ, the first may be torn.
        found = first if first.get("metaDataTxId") == second.get("metaDataTxId") else second
        if not found:
            raise KahaIndexDamaged(f"{self.path}: its header holds no properties")
        return found

    def _open_redo(self, path: str) -> None:
        try:
            self._redo_fd = open_regular(self._disk, path, os.O_RDONLY)
        except FileNotFoundError:
            return
        head = read_fully(self._disk, self._redo_fd, _REDO_HEAD.size, 0)
        if len(head) < _REDO_HEAD.size:
            return
        _, expected, count = _REDO_HEAD.unpack(head)
        if not 0 < count <= _REDO_PAGES_MAX:
            return
        found: dict[int, int] = {}
        checksum = 1
        at = _REDO_HEADER_BYTES
        for _ in range(count):
            entry = read_fully(self._disk, self._redo_fd, _PAGE_ID.size + self.page_bytes, at)
            if len(entry) < _PAGE_ID.size + self.page_bytes:
                return  # db.redo is torn, so the pages in db.data were not written yet and are good
            (page,) = _PAGE_ID.unpack_from(entry)
            if page < 0:
                return
            checksum = adler32(memoryview(entry)[_PAGE_ID.size :], checksum)
            found[page] = at + _PAGE_ID.size
            at += len(entry)
        if checksum == expected:
            self._redone = found


def _properties(data: bytes) -> dict[str, str]:
    """Parse java.util.Properties, as far as this header uses them."""
    found: dict[str, str] = {}
    for line in data.decode("latin-1").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            found[key.strip()] = value.strip()
    return found


def _number(properties: dict[str, str], key: str, path: str) -> int:
    try:
        return int(properties[key])
    except (KeyError, ValueError):
        raise KahaIndexDamaged(f"{path}: its header has no number {key}") from None
