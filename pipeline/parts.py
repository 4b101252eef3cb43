"""Reads of a task: journal files or parts of them. A task searches for a file that was moved after the planning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from tandemmq.pipeline.options import Options
from tandemmq.pipeline.stores import NoJournal, journal_files
from tandemmq.pipeline.walk import JournalFile

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")


def groups(
    items: Iterable[T], size_of: Callable[[T], int], size_max: int, count_max: int | None = None
) -> Iterator[list[T]]:
    """Yield groups of at most ``count_max`` items whose sizes sum to at most ``size_max``, unless one item alone is
    larger. Groups are not empty."""
    together: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if together and (total + size > size_max or len(together) == count_max):
            yield together
            together, total = [], 0
        together.append(item)
        total += size
    if together:
        yield together


# Maximum and minimum of the limit of the bytes in a partition with several files. If the files have few bytes together,
# the limit is smaller, so that there are several partitions.
PARTITION_BYTES: Final = 128 << 20
PARTITION_BYTES_MIN: Final = 4 << 20
PARTITIONS_WANTED: Final = 8


class FileGone(Exception):
    """A file that a task must read was deleted."""


def packed(files: Sequence[JournalFile]) -> Iterator[tuple[JournalFile, ...]]:
    """Group files in order into partitions that are large enough for a task. Files are not split."""
    total = sum(file.size for file in files)
    most = min(PARTITION_BYTES, max(PARTITION_BYTES_MIN, total // PARTITIONS_WANTED))
    return map(tuple, groups(files, lambda file: file.size, most))


def record_batches_of(file: JournalFile, options: Options, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, also if it was moved into the archive. Raises FileGone before the first row."""
    from tandemmq.pipeline.arrow import record_batches

    def batches(file: JournalFile) -> Iterator[pa.RecordBatch]:
        return record_batches(file, options.table, names, options.mode, payload=options.payload)

    try:
        yield from batches(file)
        return
    except FileNotFoundError as error:
        moved = _moved(file, options)
        gone = FileGone(
            f"{file.path} was deleted after this read was planned, as a broker does with files that it no longer "
            "needs: read again, or archive instead of deleting (archive_data_logs)"
        )
        if moved is None:
            raise gone from error
    try:
        yield from batches(moved)
    except FileNotFoundError as error:
        raise gone from error


def _moved(file: JournalFile, options: Options) -> JournalFile | None:
    """Return the same file under another path if a broker moved it into its archive; None: it was not found."""
    try:
        found = journal_files(
            options.paths, is_tail_wanted=True, first=file.file, last=file.file, access=options.access
        )
    except NoJournal:
        return None
    return next((replace(file, path=other.path) for other in found if other.store == file.store), None)
