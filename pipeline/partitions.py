"""Partitions of a read: each is the input of one Spark task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from tandemmq.pipeline.options import Options
from tandemmq.pipeline.places import is_remote
from tandemmq.pipeline.reach import files_for
from tandemmq.pipeline.walk import JournalFile

# Key: store and number of a file. FileState: its path, size and modification time, which do not change after it is
# closed.
Key = tuple[str, int]
FileState = tuple[str, int, int | None]


@dataclass
class Files(InputPartition):
    """Journal files that one task reads, as planned."""

    files: tuple[JournalFile, ...] = field(default_factory=tuple)


@dataclass
class Closed(InputPartition):
    """Closed files that one task reads if they still exist (see ``Rest``). ``states``: their states at planning."""

    files: tuple[JournalFile, ...]
    states: tuple[FileState | None, ...]

    def now(self, options: Options) -> Iterator[JournalFile]:
        """Yield the files that exist now."""
        states = [state_of(file) for file in self.files]
        if states == list(self.states):
            yield from self.files
            return
        # Some files were archived, changed after their end or deleted, or the path is another store now.
        wanted = {(file.store, file.file) for file in self.files}
        yield from (file for file in files_for(options) if (file.store, file.file) in wanted)


@dataclass
class Rest(InputPartition):
    """All files except those in ``closed``, listed when the task reads them.

    Spark plans a DataFrame or a view once, and reuses the plan. So other tasks read the files that were closed at
    planning, which do not change but may be deleted; and one task lists and reads all files that were added later.
    """

    closed: frozenset[Key]

    def now(self, options: Options) -> Iterator[JournalFile]:
        yield from (file for file in files_for(options) if (file.store, file.file) not in self.closed)


def state_of(file: JournalFile) -> FileState | None:
    """Return the state of a file; None: it does not exist. The modification time of remote files is not read."""
    if is_remote(file.path):
        return file.path, file.size, None
    try:
        found = os.stat(file.path)
    except OSError:
        return None
    return file.path, found.st_size, found.st_mtime_ns


def planned(files: Iterable[JournalFile]) -> tuple[list[JournalFile], Rest]:
    """Return the closed files, and the partition for all others."""
    closed = [file for file in files if file.cut is None and not file.is_current]
    return closed, Rest(frozenset((file.store, file.file) for file in closed))
