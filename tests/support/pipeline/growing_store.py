"""A store of TandemMQ that grows step by step, and a stream reader that runs without Spark."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import encode_batch
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.records.commands import encode_trace
from tandemmq.store.records.headers import Header, encode_header
from tests.support.pipeline.pipeline_journals import FILE_BYTES, add


class GrowingStore:
    """Batches of one message each, in files of 64 KiB with headers. ``known``: all files that ever existed."""

    def __init__(self, directory: Path, prefix: int = 0) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.ids: list[str] = []
        self.files = JournalFiles(str(directory))
        self.known: list[int] = [1]
        self._number = prefix
        self._epoch = 1
        self.files.prepare("a", FILE_BYTES)
        self._writer = JournalWriter(self.files, "a", self.files.publish("a", 1), file_length_max=FILE_BYTES)
        self._writer.append([self._header("promotion", {})])

    @property
    def file(self) -> int:
        """Return the number of the current file."""
        return self._writer.position[0]

    @property
    def end(self) -> int:
        return self._writer.position[1]

    def add(self, count: int = 1, body: bytes = b"x" * 100) -> None:
        for _ in range(count):
            self._number += 1
            self.ids.append(f"ID:tests-1:1:1:{self._number}")
            self._writer.append([add(self._number, body)])
        self._writer.sync()

    def rotate(self) -> None:
        file, end = self._writer.position
        self.files.prepare("a", FILE_BYTES)
        self.known.append(file + 1)
        self._writer.rotate(self._header("rotation", {file: end}))

    def fence(self) -> None:
        """Publish the next file as another master, without content."""
        self.files.prepare("b", FILE_BYTES)
        self.known.append(self.file + 1)
        os.close(self.files.publish("b", self.file + 1).fd)

    def take_over(self, end: int | None = None) -> None:
        """Write the header of the other master: the previous file ends at ``end`` (default: its real end). It continues
        to write."""
        file, real = self._writer.position
        self._writer.close()
        self._epoch += 1
        self._writer = JournalWriter(self.files, "b", self.files.opened(file + 1), file_length_max=FILE_BYTES)
        self._writer.append([self._header("promotion", {file: real if end is None else end})])

    def write_behind(self, file: int, end: int) -> None:
        """Write the last record of a master that continued in the next file."""
        end_marker, _ = encode_batch([encode_trace('TANDEMMQ-NEXT {"file": 2}')])
        with open(self.files.path(file), "r+b") as opened:
            opened.seek(end)
            opened.write(end_marker)

    def archive(self, file: int) -> None:
        archive = self.directory / "data-archive"
        archive.mkdir(exist_ok=True)
        os.link(self.files.path(file), archive / f"db-{file}.log")
        self.remove(file)

    def remove(self, file: int) -> None:
        os.unlink(self.files.path(file))

    def close(self) -> None:
        self._writer.close()

    def _header(self, reason: str, ends: dict[int, int]) -> bytes:
        return encode_header(Header(self._epoch, "a", reason, ends, tuple(self.known), length=FILE_BYTES))


class Driven:
    """A stream as Spark runs it: offsets are passed as JSON, readers and partitions are pickled.

    A new object with an old ``offsets`` list is a restart with the same checkpoint.
    """

    def __init__(self, offsets: list[dict[str, Any]] | None = None, **options: str) -> None:
        from tandemmq.pipeline import columns
        from tandemmq.pipeline.options import StreamOptions
        from tandemmq.pipeline.source import JournalStreamReader

        self.options = StreamOptions.of(options)
        names = [name for name, _ in columns.COLUMNS[self.options.read.table]]
        self.names = names
        self.reader = JournalStreamReader(self.options, tuple(names))
        self.offsets = [_in_json(self.reader.initialOffset())] if offsets is None else offsets

    def plan(self) -> bool:
        """Plan the offsets of one more batch; return False if there is none."""
        limit = self.reader.getDefaultReadLimit()
        self._look_afresh()
        found = _in_json(self.reader.latestOffset(self.offsets[-1], limit))
        if json.dumps(found) == json.dumps(self.offsets[-1]):
            return False
        self.offsets.append(found)
        return True

    def batch(self, number: int = -1) -> list[dict[str, Any]]:
        """Return the rows of a planned batch, by default of the last one."""
        start, end = self.offsets[number - 1], self.offsets[number]
        partitions = self.reader.partitions(start, end)
        reader = pickle.loads(pickle.dumps(self.reader))
        return [
            row
            for partition in partitions
            for batch in reader.read(pickle.loads(pickle.dumps(partition)))
            for row in batch.to_pylist()
        ]

    def read(self) -> list[dict[str, Any]]:
        """Plan and read all batches that are there now."""
        found = []
        while self.plan():
            found += self.batch()
        return found

    def ids(self) -> list[str]:
        return ids_of(self.read())

    def _look_afresh(self) -> None:
        """Drop cached listings, as after some time."""
        self.reader._stores._fresh_until = 0.0


def ids_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the ids of messages, in their order."""
    return [row["message_id"] for row in rows if row["message_id"]]


def _in_json(offsets: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(json.dumps(offsets))
    assert isinstance(found, dict)
    return found
