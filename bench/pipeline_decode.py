"""Decoders for the pipeline's figures: of journals in plain processes, and of bytes in memory."""

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tandemmq.bench.driver.process import peak_bytes
from tandemmq.pipeline import columns, walk
from tandemmq.pipeline.arrow import record_batches
from tandemmq.pipeline.stores import journal_files
from tandemmq.pipeline.walk import JournalFile

KEYS = ("command", "destination")
RECORDS = columns.RECORDS
MESSAGES = columns.MESSAGES


class Decoded(NamedTuple):
    """Work of a process between ``start`` and ``stop``, seconds of the machine's clock."""

    start: float
    stop: float
    cpu_seconds: float
    rows: int
    peak_bytes: int


def chosen(directory: Path, last: int | None = None) -> list[JournalFile]:
    """Return the closed files, up to the number ``last``."""
    return journal_files([str(directory)], last=last)


def in_processes(files: Sequence[JournalFile], table: str, processes: int) -> list[Decoded]:
    """Decode ``files`` in this many processes, which all begin at once when each has warmed up."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    ends, started = [], []
    for number in range(processes):
        end, far_end = context.Pipe(duplex=False)
        process = context.Process(target=_decode, args=(files[number::processes], table, barrier, far_end))
        process.start()
        far_end.close()  # so that the early end of a process is noticed
        ends.append(end)
        started.append(process)
    found = [end.recv() for end in ends]
    for process in started:
        process.join()
    return found


def _decode(files: Sequence[JournalFile], table: str, barrier: Barrier, end: Connection) -> None:
    read = counted if table == RECORDS else gone_through
    read(files[:1])
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    rows = read(files)
    end.send(Decoded(start, time.monotonic(), time.process_time() - cpu, rows, peak_bytes(os.getpid())))


def counted(files: Sequence[JournalFile]) -> int:
    """Count records by command and destination, as the query for Spark does. Return the total."""
    sums: pa.Table | None = None
    for file in files:
        parts = [] if sums is None else [sums]
        for batch in record_batches(file, RECORDS, KEYS):
            grouped = pa.Table.from_batches([batch]).group_by(list(KEYS)).aggregate([([], "count_all")])
            parts.append(grouped.rename_columns([*KEYS, "count"]))
        sums = pa.concat_tables(parts).group_by(list(KEYS)).aggregate([("count", "sum")])
        sums = sums.rename_columns([*KEYS, "count"])
    return 0 if sums is None else sum(sums.column("count").to_pylist())


def gone_through(files: Sequence[JournalFile]) -> int:
    """Read all columns of all messages, bodies included, and discard them. Return the number of messages."""
    return sum(batch.num_rows for file in files for batch in record_batches(file, MESSAGES))


class Held:
    """A journal file whose bytes came from Spark: the pipeline opens it as if it were on a disk."""

    def __init__(self, content: pa.Buffer) -> None:
        self._content = content

    def read(self, offset: int, length: int) -> bytes:
        start = min(offset, self._content.size)
        found: bytes = self._content.slice(start, min(length, self._content.size - start)).to_pybytes()
        return found

    def data_from(self, offset: int) -> int:
        return offset

    def size(self) -> int:
        size: int = self._content.size
        return size

    def close(self) -> None:
        pass

    def release(self) -> None:
        pass


def decode_held(file: JournalFile, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Decode the same columns with the same decoder from bytes in memory."""
    setattr(walk, "open_file", lambda path, access=(): Held(content))  # noqa: B010 - a name that the module imports
    yield from record_batches(file, RECORDS, KEYS)
