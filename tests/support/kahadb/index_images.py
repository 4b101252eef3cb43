"""Builds db.data and db.redo byte by byte, in each version's layout, for tests."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import adler32

PAGE_BYTES = 4096
HEADER_BYTES = 4096


def utf(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def place(file: int, offset: int, size: int | None = None) -> bytes:
    return struct.pack(">ii", file, offset) + (b"" if size is None else struct.pack(">i", size))


def optional(where: tuple[int, int] | None) -> bytes:
    return b"\0" if where is None else b"\1" + place(*where)


def leaf(entries: list[tuple[bytes, bytes]], following: int = -1) -> bytes:
    keys = b"".join(key for key, _ in entries)
    values = b"".join(value for _, value in entries)
    return struct.pack(">h", len(entries)) + keys + b"\0" + values + struct.pack(">q", following)


def branch(keys: list[bytes], children: list[int]) -> bytes:
    return struct.pack(">h", len(keys)) + b"".join(keys) + b"\1" + b"".join(struct.pack(">q", c) for c in children)


def list_node(entries: list[tuple[bytes, bytes]], following: int = -1) -> bytes:
    body = b"".join(key + value for key, value in entries)
    return struct.pack(">qh", following, len(entries)) + body


def numbers(*ranges: tuple[int, int]) -> bytes:
    parts = [struct.pack(">?qq", True, *r) if r[0] != r[1] else struct.pack(">?q", False, r[0]) for r in ranges]
    return struct.pack(">i", len(ranges)) + b"".join(parts)


def messages(
    ids: list[tuple[int, str]], file: int = 1, *, version: int = 7, following: int = -1, offset: int = 100
) -> bytes:
    """Return a leaf of an order index: (sequence, message id); message n is at offset n * 100 + ``offset``."""
    size = 90 if version >= 6 else None
    return leaf([(struct.pack(">q", n), utf(name) + place(file, n * 100 + offset, size)) for n, name in ids], following)


class Image:
    """The pages of an index. ``put`` stores an object in a page, or in a chain of pages if it is longer."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.next_page = 2  # 0 is the metadata, 1 the destinations

    def put(self, content: bytes, page: int | None = None) -> int:
        first = page = self._take() if page is None else page
        room = PAGE_BYTES - 21
        while len(content) > room:
            following = self._take()
            self.pages[page] = struct.pack(">Bqqi", 1, 1, following, 0) + content[:room]
            content = content[room:]
            page = following
        head = struct.pack(">Bqqi", 2, 1, 21 + len(content), 0)
        self.pages[page] = (head + content).ljust(PAGE_BYTES, b"\0")
        return first

    def _take(self) -> int:
        self.next_page += 1
        return self.next_page - 1

    def metadata(
        self,
        *,
        version: int = 7,
        last_update: tuple[int, int] | None = (1, 5000),
        in_progress: tuple[int, int] | None = None,
        audit: tuple[int, int] | None = None,
        ack_map: tuple[int, int] | None = None,
        openwire: int = 11,
    ) -> None:
        body = struct.pack(">iq", 2, 1) + optional(last_update) + optional(in_progress) + optional(audit)
        if version >= 2:
            body += struct.pack(">i", version)
        if version >= 5:
            body += optional(ack_map) + struct.pack(">i", openwire)
        self.put(body, 0)

    def bytes(self, *, was_closed: bool = True, second_header: bytes | None = None) -> bytes:
        first = header(was_closed)
        data = bytearray(first + (first if second_header is None else second_header))
        for number in range(max(self.pages, default=-1) + 1):
            data += self.pages.get(number, bytes(PAGE_BYTES))
        return bytes(data)

    def write(self, directory: Path, *, was_closed: bool = True) -> None:
        (directory / "db.data").write_bytes(self.bytes(was_closed=was_closed))


def header(was_closed: bool, transaction: int = 7) -> bytes:
    text = (
        "#\n#Sat Nov 21 12:00:00 UTC 2026\nfileType=org.apache.activemq.store.kahadb.disk.page.PageFile\n"
        f"fileTypeVersion=1\npageSize={PAGE_BYTES}\ncleanShutdown={'true' if was_closed else 'false'}\n"
        f"lastTxId=2\nfreePages=0\nmetaDataTxId={transaction}\n"
    )
    return text.encode().ljust(HEADER_BYTES // 2)


def redo(pages: dict[int, bytes], checksum: int | None = None) -> bytes:
    """Return the content of db.redo; ``checksum`` None: the correct one."""
    images = b"".join(pages.values())
    head = struct.pack(">qqi", 9, adler32(images) if checksum is None else checksum, len(pages))
    body = b"".join(struct.pack(">q", number) + image for number, image in pages.items())
    return head.ljust(HEADER_BYTES, b"\0") + body
