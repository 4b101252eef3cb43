"""A master's journal, batch by batch, for tests of followers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

from tandemmq.broker.replication.copy import JournalCopy
from tandemmq.broker.replication.quorum import Lineage, Position
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import scan
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.records.commands import Trace, decode, encode_trace
from tandemmq.store.records.headers import MARK, Header, SetHeader, encode_header

LENGTH = 1 << 12
SET = "5e" * 16
VOTERS = tuple(f"{number:032x}" for number in (1, 2, 3))


class SourceJournal:
    """A journal of one epoch in a separate directory. ``former``: a journal that it continues from ``common``."""

    opened: ClassVar[list[SourceJournal]] = []

    def __init__(
        self,
        directory: Path,
        epoch: int = 1,
        *,
        former: SourceJournal | None = None,
        common: tuple[int, int] = (0, 0),
        is_of_set: bool = True,
        voters: tuple[str, ...] = VOTERS,
    ) -> None:
        SourceJournal.opened.append(self)
        directory.mkdir()
        self.epoch = epoch
        self.files = files = JournalFiles(str(directory))
        self.batches: list[tuple[int, int, bytes, int]] = []  # file, offset, bytes with the end record, end
        lineage: Lineage = ()
        if former is not None:
            for file in former.files.list():
                if file <= common[0]:
                    shutil.copy(former.files.path(file), directory)
            copy = Path(files.path(common[0]))
            content = copy.read_bytes()
            copy.write_bytes(content[: common[1]].ljust(len(content), b"\0"))
            lineage = (*former.set.lineage, (former.epoch if former.is_of_set else 0, *common))
        self.set = SetHeader(SET, voters, {}, lineage)
        self.is_of_set = is_of_set
        files.prepare("m", LENGTH)
        own = files.publish("m", epoch)
        self.writer = JournalWriter(files, "m", own, file_length_max=LENGTH, on_written=self._wrote)
        ends = {common[0]: common[1]} if former is not None else {}
        self.writer.append([self._header("promotion", ends)])

    def _wrote(self, file: int, offset: int, data: bytes | bytearray, end: int) -> None:
        self.batches.append((file, offset, bytes(data), end))

    def _header(self, reason: str, ends: dict[int, int], *following: int) -> bytes:
        here = (*self.files.list(), *following)
        set_header = self.set if self.is_of_set else None
        return encode_header(Header(self.epoch, "m", reason, ends, here, length=LENGTH, set=set_header))

    @property
    def place(self) -> tuple[int, int]:
        return self.writer.position

    @property
    def lineage(self) -> Lineage:
        return (*self.set.lineage, (self.epoch, *self.place))

    def write(self, *texts: str) -> tuple[int, int]:
        """Write a batch for each text; return the end of the last one."""
        for text in texts:
            self.writer.append([encode_trace(text)])
        return self.place

    def rotate(self) -> tuple[int, int]:
        file, end = self.place
        self.writer.rotate(self._header("rotation", {file: end}, file + 1))
        return self.place

    def send(self, copy: JournalCopy, start: tuple[int, int] = (0, 0)) -> None:
        """Send all batches after ``start``."""
        for file, offset, data, end in self.batches:
            if (file, end) > start:
                copy.write(file, offset, data, end, LENGTH)

    def close(self) -> None:
        self.writer.close()


def texts_of(files: JournalFiles, position: Position | None = None) -> list[str]:
    """Return the texts in the files up to a position, without headers."""
    found = []
    for file in files.list():
        for batch in scan(files, file, is_live=True):
            if position is not None and (file, batch.end) > position[1:]:
                return found
            for _, payload in batch.records:
                command = decode(payload)
                if isinstance(command, Trace) and not (command.message or "").startswith(MARK):
                    found.append(command.message or "")
    return found
