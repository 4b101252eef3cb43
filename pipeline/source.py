"""The data source "tandemmq", for ``spark.read`` and ``spark.readStream``: ``.format("tandemmq").load(path)``.

A Python process beside the driver plans a read, and the workers carry it out. Both import this package by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandemmq.pipeline import columns
from tandemmq.pipeline.options import BadOption, Options, StreamOptions, table_of
from tandemmq.pipeline.partitions import Closed, Files, Rest, planned, state_of
from tandemmq.pipeline.parts import FileGone, packed, record_batches_of
from tandemmq.pipeline.reach import files_for
from tandemmq.pipeline.stream import JournalStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME: Final = "tandemmq"

log = logging.getLogger(__name__)


class JournalDataSource(DataSource):
    """Data source "tandemmq". Register it with ``pipeline.register``."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return columns.ddl(table_of(self.options))

    def reader(self, schema: StructType) -> JournalReader:
        options = Options.of(self.options)
        _demand_paths(options)
        return JournalReader(options, tuple(_checked(schema, options.table)))

    def streamReader(self, schema: StructType) -> JournalStreamReader:
        options = StreamOptions.of(self.options)
        _demand_paths(options.read)
        return JournalStreamReader(options, tuple(_checked(schema, options.read.table)))


def _demand_paths(options: Options) -> None:
    if not options.paths:
        raise BadOption("load() needs the directory of at least one store")


def _checked(schema: StructType, table: str) -> Iterator[str]:
    """Yield the names of the requested columns. Raises BadOption for a column or type that the table does not have."""
    known = {name: kind.lower().replace(" ", "") for name, kind in columns.COLUMNS[table]}
    for wanted in schema.fields:
        kind = wanted.dataType.simpleString()
        if known.get(wanted.name) != kind:
            raise BadOption(f"{table} has no column {wanted.name} of type {kind}; its schema is: {columns.ddl(table)}")
        yield wanted.name


class JournalReader(DataSourceReader):
    """Plans and reads the files: as they were at planning if the options have an end, otherwise as they are at each
    read."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> list[InputPartition]:
        files = files_for(self._options)
        if self._options.until is not None:
            return [Files(files) for files in packed(files)] or [Files(())]
        closed, rest = planned(files)
        return [*(Closed(files, tuple(map(state_of, files))) for files in packed(closed)), rest]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Files | Closed | Rest), "partitions() returns only these"
        files = partition.files if isinstance(partition, Files) else partition.now(self._options)
        for file in files:
            try:
                yield from record_batches_of(file, self._options, self._names)
            except FileGone:
                if not isinstance(partition, Closed):
                    raise
                log.warning("%s was deleted, and is skipped", file.path)
