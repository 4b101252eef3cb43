"""The data source "tandemmq": ``spark.read.format("tandemmq").option("table", ...).load(path)``.

Planned in one Python process beside the driver, read in the workers; both import this package by its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from broker.pipeline import columns
from broker.pipeline.places import Access, access_of, is_access
from broker.pipeline.rows import MODES, PERMISSIVE
from broker.pipeline.stores import journal_files
from broker.pipeline.walk import JournalFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME: Final = "tandemmq"

# Small files share a partition up to the first of these; with few bytes in all there are at least so many partitions.
PARTITION_BYTES: Final = 128 << 20
PARTITION_BYTES_MIN: Final = 4 << 20
PARTITIONS_WANTED: Final = 8


class BadOption(ValueError):
    """An option that the source does not know, or a value that it does not take."""


class FileGone(Exception):
    """A file that was to be read is not there any more."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a read asks for. Names as in docs/pipeline.md; Spark writes them in small letters."""

    paths: tuple[str, ...]
    table: str = columns.RECORDS
    mode: str = PERMISSIVE
    is_tail_wanted: bool = False
    first: int | None = None
    last: int | None = None
    payload: bool = False
    access: Access = field(default=(), repr=False)

    @classmethod
    def of(cls, said: Mapping[str, str]) -> Options:
        """Raises BadOption."""
        given = {name.lower(): value for name, value in said.items()}
        unknown = sorted(name for name in given if name not in _KNOWN and not is_access(name))
        if unknown:
            raise BadOption(f"unknown options: {', '.join(unknown)}; there are: {', '.join(_NAMES)}")
        paths: list[str] = [given["path"]] if given.get("path") else []
        if "paths" in given:
            paths += json.loads(given["paths"])
        return cls(
            tuple(paths),
            _one_of(given, "table", columns.TABLES, columns.RECORDS),
            _one_of({"mode": given.get("mode", PERMISSIVE).upper()}, "mode", MODES, PERMISSIVE),
            _one_of(given, "follow", ("closed", "tail"), "closed") == "tail",
            _number(given, "fromFile"),
            _number(given, "toFile"),
            _one_of(given, "payload", ("true", "false"), "false") == "true",
            access_of(given),
        )


_NAMES: Final = ("path", "paths", "table", "mode", "follow", "fromFile", "toFile", "payload")
_KNOWN: Final = frozenset(name.lower() for name in _NAMES)


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = given.get(name, default)
    if value not in allowed:
        raise BadOption(f"{name} is one of {', '.join(allowed)}, not {value!r}")
    return value


def _number(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name.lower())
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise BadOption(f"{name} is the number of a journal file, not {value!r}")
    return int(value)


class JournalDataSource(DataSource):
    """Register it with ``broker.pipeline.register``."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return columns.ddl(Options.of(self.options).table)

    def reader(self, schema: StructType) -> JournalReader:
        return JournalReader(Options.of(self.options), tuple(_checked(schema, Options.of(self.options).table)))


def _checked(schema: StructType, table: str) -> Iterator[str]:
    """The names of the columns that are wanted: a part of the table, each with its own type."""
    known = {name: kind.lower().replace(" ", "") for name, kind in columns.COLUMNS[table]}
    for wanted in schema.fields:
        kind = wanted.dataType.simpleString()
        if known.get(wanted.name) != kind:
            raise BadOption(f"{table} has no column {wanted.name} of type {kind}; its schema is: {columns.ddl(table)}")
        yield wanted.name


@dataclass
class Files(InputPartition):
    """Journal files that one task reads."""

    files: tuple[JournalFile, ...] = field(default_factory=tuple)


class JournalReader(DataSourceReader):
    """Plans the files and reads them, as they were when it was asked to plan."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> list[InputPartition]:
        options = self._options
        if not options.paths:
            raise BadOption("load() takes the directory of a store, or several")
        found = journal_files(
            options.paths,
            is_tail_wanted=options.is_tail_wanted,
            first=options.first,
            last=options.last,
            access=options.access,
        )
        return [Files(files) for files in packed(found)] or [Files(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from broker.pipeline.arrow import record_batches

        assert isinstance(partition, Files), "partitions made them"
        options = self._options
        for file in partition.files:
            try:
                yield from record_batches(file, options.table, self._names, options.mode, payload=options.payload)
            except FileNotFoundError as error:
                raise FileGone(
                    f"{file.path} was deleted after this read was planned, as a broker does with files that it needs "
                    "no more: read again, or archive instead of deleting (archive_data_logs)"
                ) from error


def packed(files: list[JournalFile]) -> Iterator[tuple[JournalFile, ...]]:
    """Files in order, as many together as make a task worth its start. No file is split."""
    total = sum(file.size for file in files)
    most = min(PARTITION_BYTES, max(PARTITION_BYTES_MIN, total // PARTITIONS_WANTED))
    together: list[JournalFile] = []
    size = 0
    for file in files:
        if together and size + file.size > most:
            yield tuple(together)
            together, size = [], 0
        together.append(file)
        size += file.size
    if together:
        yield tuple(together)
