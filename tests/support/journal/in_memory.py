"""Contents of journal files: scans of bytes in memory, and the payloads of files."""

from __future__ import annotations

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import END_RECORD, encode_batch
from tandemmq.journal.scan import Scan, scan


class MemorySource:
    """The bytes of a journal file in memory."""

    __slots__ = ("_content",)

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]

    def data_from(self, offset: int) -> int:
        return offset

    def size(self) -> int:
        return len(self._content)

    def close(self) -> None:
        pass


def scan_bytes(content: bytes, file: int = 0, start: int = 0, end: int | None = None) -> Scan:
    """Scan the bytes of a journal file in memory. See Scan."""
    return Scan(lambda: MemorySource(content), file, start, end)


def batch_of(*payloads: bytes) -> bytes:
    """Return a batch without the end record after it."""
    return bytes(encode_batch(payloads)[0][: -len(END_RECORD)])


def contents(files: JournalFiles, file: int, end: int | None = None) -> list[list[bytes]]:
    """Return the payloads of each batch of a file."""
    return [[payload for _, payload in batch.records] for batch in scan(files, file, end=end)]
