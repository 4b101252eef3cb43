"""Sources of a job's tables, and the output of its results. An import of this module does not import Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandemmq.pipeline.columns import COLUMNS
from tandemmq.pipeline.places import Access, access_of, is_remote
from tandemmq.pipeline.reach import Reach, offsets_of, reaches, read_files
from tandemmq.pipeline.table import Cell, Table
from tandemmq.pipeline.walk import JournalFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

# Maximum number of rows of a table in a report. The Parquet has all rows.
ROWS_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class Sources:
    """Directories of stores and archives, and the chosen files.

    ``is_tail_wanted``: includes the newest file up to its last complete batch, which may not be synced yet. ``first``
    and ``last``: limits of the file numbers. ``access``: settings to reach remote paths, if the session has none.
    ``reached`` and ``there`` are set by ``fixed``: how far each store is read, and the files at that time, by store and
    number.
    """

    paths: tuple[str, ...]
    is_tail_wanted: bool = True
    first: int | None = None
    last: int | None = None
    access: Access = field(default=(), repr=False)
    reached: tuple[Reach, ...] | None = None
    there: frozenset[tuple[str, int]] | None = field(default=None, repr=False)

    def takes(self, file: int) -> bool:
        """Return whether files of this number are chosen."""
        return (self.first or 0) <= file and (self.last is None or file <= self.last)

    def whole(self) -> Sources:
        """Return the sources with the newest file of each store. Raises ValueError if files are left out."""
        if self.first is not None or self.last is not None:
            raise ValueError("this job must read all files: it takes no --from-file and no --to-file")
        return replace(self, is_tail_wanted=True)

    def files(self, access: Access) -> list[JournalFile]:
        """Return the chosen journal files. Raises NoJournal."""
        return read_files(
            self.paths,
            is_tail_wanted=self.is_tail_wanted,
            until=None if self.reached is None else offsets_of(self.reached),
            first=self.first,
            last=self.last,
            access=access,
        )

    def fixed(self, spark: SparkSession) -> Sources:
        """Return the sources fixed at their present end. Later writes are not read, so that all tables of a job have
        the same data. Raises NoJournal."""
        if self.reached is not None:
            return self
        files = self.files(self.access_in(spark))
        return replace(self, reached=reaches(files), there=frozenset((file.store, file.file) for file in files))

    def access_in(self, spark: SparkSession) -> Access:
        """Return the settings to reach remote paths: those of the session, overridden by ``access``. Empty if all paths
        are mounted."""
        if not any(map(is_remote, self.paths)):
            return ()
        return access_of(dict(access_of(spark.conf.getAll)) | dict(self.access))

    def read(self, spark: SparkSession, table: str, names: Sequence[str] = (), *, payload: bool = False) -> DataFrame:
        """Return the table, including damage. ``names``: only these columns, which is faster; empty: all. ``payload``:
        messages have their frames.

        The data source must be registered in ``spark`` (``pipeline.register``).
        """
        wanted = {"table": table, "follow": "tail" if self.is_tail_wanted else "closed"}
        if payload:
            wanted["payload"] = "true"
        if self.reached is not None:
            wanted["endingOffsets"] = json.dumps(offsets_of(self.reached).as_json())
        if self.first is not None:
            wanted["fromFile"] = str(self.first)
        if self.last is not None:
            wanted["toFile"] = str(self.last)
        wanted |= dict(self.access_in(spark))
        schema = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS[table] if not names or name in names)
        return spark.read.format("tandemmq").schema(schema).options(**wanted).load(list(self.paths))


class Results:
    """Tables that a job writes below ``out`` as Parquet. ``written``: the path of each table, by name."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark = spark
        self._out = out.rstrip("/")
        self.written: dict[str, str] = {}

    def write(self, frame: DataFrame, name: str) -> DataFrame:
        """Write ``frame``; an earlier result is replaced. The returned frame reads the written result, not the
        journals."""
        target = self.written[name] = f"{self._out}/{name}"
        frame.write.mode("overwrite").parquet(target)
        return self._spark.read.parquet(target)


def only_row(sums: DataFrame) -> Row:
    """Return the row of an aggregate without groups."""
    row = sums.first()
    assert row is not None, "an aggregate without groups has one row"
    return row


def refuse_store(out: str, sources: Sources) -> None:
    """Raise ValueError if ``out`` is in one of the ``sources`` or contains a journal: jobs never write into a store."""
    target = Path(out).resolve()
    for source in sources.paths:
        place = Path(source).resolve()
        if target == place or place in target.parents:
            raise ValueError(f"the results would be in {source}, which is only read: choose another directory")
    if target.is_dir() and next(target.glob("db-*.log"), None) is not None:
        raise ValueError(f"{out} contains a journal: choose another directory")


def refuse_unwritable(out: str) -> None:
    """Raise ValueError if ``out`` is not writable, as far as this can be checked. Creates nothing."""
    target = Path(out).absolute()
    there = next(place for place in (target, *target.parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"the results cannot be written to {out}: {there} is no directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"the results cannot be written to {out}: no permission to write in {there}")


def head(frame: DataFrame, title: str, columns: str) -> Table:
    """Return the first rows of an ordered ``frame``, with these ``columns``. If there are more rows, the note states
    this."""
    names = tuple(columns.split())
    found = frame.select(*names).take(ROWS_SHOWN + 1)
    rows: list[list[Cell]] = [list(row) for row in found[:ROWS_SHOWN]]
    note = f"the first {ROWS_SHOWN}; the Parquet has all" if len(found) > ROWS_SHOWN else None
    return Table(title, names, rows, note)
