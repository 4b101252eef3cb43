"""Partitions that Spark gives to a task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from tandemmq.pipeline.options import Options
from tandemmq.pipeline.places import is_remote
from tandemmq.pipeline.reach import files_for
from tandemmq.pipeline.walk import JournalFile

# Key: a store and the number of a file. Look: its path, size and time, which a closed file keeps.
Key = tuple[str, int]
Look = tuple[str, int, int | None]


@dataclass
class Files(InputPartition):
    """Journal files that one task reads, as they were planned."""

    files: tuple[JournalFile, ...] = field(default_factory=tuple)


@dataclass
class Closed(InputPartition):
    """Closed files that one task reads if they still exist: see ``Rest``. ``looks`` are their states."""

    files: tuple[JournalFile, ...]
    looks: tuple[Look | None, ...]

    def now(self, options: Options) -> Iterator[JournalFile]:
        """Yield those that exist now."""
        looks = [look(file) for file in self.files]
        if looks == list(self.looks):
            yield from self.files
            return
        # Some were archived, changed after their end, or deleted; or the store is another one.
        wanted = {(file.store, file.file) for file in self.files}
        yield from (file for file in files_for(options) if (file.store, file.file) in wanted)


@dataclass
class Rest(InputPartition):
    """All files except those in ``closed``, listed when the task reads them.

    Spark plans a DataFrame or a view once, and reuses that plan. So one task lists the files that exist when it runs,
    beside the tasks for the files that were closed at planning; those do not change, but may be deleted.
    """

    closed: frozenset[Key]

    def now(self, options: Options) -> Iterator[JournalFile]:
        yield from (file for file in files_for(options) if (file.store, file.file) not in self.closed)


def look(file: JournalFile) -> Look | None:
    """Return the state of a file, or None if it is gone. The time of remote files is not fetched."""
    if is_remote(file.path):
        return file.path, file.size, None
    try:
        found = os.stat(file.path)
    except OSError:
        return None
    return file.path, found.st_size, found.st_mtime_ns


def planned(files: Iterable[JournalFile]) -> tuple[list[JournalFile], Rest]:
    """Return the closed ones of ``files``, and a partition for the rest."""
    closed = [file for file in files if file.cut is None and not file.is_current]
    return closed, Rest(frozenset((file.store, file.file) for file in closed))
