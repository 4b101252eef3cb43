"""The data source "tandemmq", for ``spark.read`` and ``spark.readStream``: ``.format("tandemmq").load(path)``.

A Python process beside the driver plans a read, and the workers carry it out. Both import this package by its name.

A partition of a read is the input of one Spark task.

Journals as a stream: ``spark.readStream.format("tandemmq")``. docs/pipeline.md states the guarantees.

The reader plans in a process beside the driver, where it caches the last listing. The workers get a copy with only the
options. The two offsets of a batch determine its rows, so that a repeated read returns the same rows.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from tandemmq.pipeline import columns
from tandemmq.pipeline.advance import Advance, DataLost, Limit, advance, newest_of, parts_between, start_of
from tandemmq.pipeline.listing import Listing, Stores, is_border
from tandemmq.pipeline.offsets import Offsets
from tandemmq.pipeline.options import LATEST, BadOption, Options, StreamOptions, table_of
from tandemmq.pipeline.parts import FileGone, packed, record_batches_of
from tandemmq.pipeline.places import is_remote
from tandemmq.pipeline.reach import files_for
from tandemmq.pipeline.walk import JournalFile, walk

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME: Final = "tandemmq"

log = logging.getLogger(__name__)


if TYPE_CHECKING:
    import pyarrow as pa


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of a stream. Raises DataLost if the next records were deleted, unless the options
    permit this."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._stores = Stores(options.read.paths, options.read.access)
        self._frozen: Mapping[str, Listing] | None = None
        self._quiet: tuple[Mapping[str, Listing], Offsets] | None = None
        self._reached: Offsets | None = None

    def __getstate__(self) -> tuple[StreamOptions, tuple[str, ...]]:
        return self._options, self._names

    def __setstate__(self, state: tuple[StreamOptions, tuple[str, ...]]) -> None:
        JournalStreamReader.__init__(self, *state)

    # ---- beside the driver

    def initialOffset(self) -> dict[str, Any]:
        starting = self._options.starting
        is_end_wanted = starting == LATEST and self._options.read.is_tail_wanted
        stores = self._stores.now_to_the_end() if is_end_wanted else self._stores.now()
        if isinstance(starting, Offsets):
            _check(starting, stores)
            starts = starting.stores
        else:
            starts = {}
        begin = newest_of if starting == LATEST else start_of
        positions = {store: begin(listing) for store, listing in stores.items()}
        return Offsets({**positions, **starts}).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.files_max is not None:
            return ReadMaxFiles(self._options.files_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        is_tail_wanted = self._options.read.is_tail_wanted
        self._frozen = self._stores.now_to_the_end() if is_tail_wanted else self._stores.now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offsets = Offsets.of(start)
        stores = self._frozen or self._stores.lately()
        if self._quiet is not None and self._quiet[0] is stores and self._quiet[1] == offsets:
            return start
        result = self._advanced(offsets, stores, limit)
        if self._frozen is None and (result.fatal or result.losses):
            stores = self._stores.now()
            result = self._advanced(offsets, stores, limit)
        if result.fatal:
            raise DataLost(result.fatal[0])
        _warn(result.losses)
        self._reached = result.offsets
        self._quiet = (stores, offsets) if result.offsets == offsets else None
        return result.offsets.as_json()

    def _advanced(self, start: Offsets, stores: Mapping[str, Listing], limit: ReadLimit) -> Advance:
        options = self._options
        return advance(
            start,
            stores,
            is_tail_wanted=options.read.is_tail_wanted,
            is_loss_fatal=options.is_loss_fatal,
            limit=_limit(limit),
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._reached is None:
            return None
        stores = self._frozen or self._stores.lately()
        return self._advanced(self._reached, stores, ReadAllAvailable()).offsets.as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        since, until = Offsets.of(start), Offsets.of(end)
        if since == until:
            return []
        table = self._options.read.table
        found, losses = parts_between(since, until, self._stores.lately(), table)
        if losses:  # the files may only have been moved since the last listing, so list again
            found, losses = parts_between(since, until, self._stores.now(), table)
        if losses and self._options.is_loss_fatal:
            raise DataLost(losses[0])
        _warn(losses)
        return [Files(files) for files in packed(found)]

    # ---- in the workers

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Files), "partitions made them"
        for file in partition.files:
            try:
                yield from record_batches_of(self._checked(file), self._options.read, self._names)
            except FileGone as error:
                if self._options.is_loss_fatal:
                    raise DataLost(f"{error}. To continue without it: failOnDataLoss=false") from error
                _warn([str(error)])

    def _checked(self, file: JournalFile) -> JournalFile:
        """Check that a planned part of a growing file still has complete batches. A power failure may have removed
        unsynced ones: this is reported as a loss."""
        if file.stop is None or file.stop == file.end:
            return file  # a closed file: invalid bytes in it are damage
        edge = file.start
        try:
            for stretch in walk(file):
                if not stretch.is_batch or stretch.stop > file.stop:
                    break
                edge = stretch.stop
        except FileNotFoundError:
            return file  # the read reports it, or finds it under another path
        if edge == file.stop:
            return file
        lost = f"{file.path} was read up to {file.stop} when this batch was planned, but is good only up to {edge}"
        if self._options.is_loss_fatal:
            raise DataLost(f"{lost}. To continue with the existing data: failOnDataLoss=false")
        _warn([lost])
        return replace(file, stop=edge)


def _limit(limit: ReadLimit) -> Limit:
    if isinstance(limit, ReadMaxFiles):
        return Limit(files=limit.max_files)
    if isinstance(limit, ReadMaxBytes):
        return Limit(bytes=limit.max_bytes)
    assert isinstance(limit, ReadAllAvailable), f"{limit} is not a limit that getDefaultReadLimit returns"
    return Limit()


def _check(starting: Offsets, stores: Mapping[str, Listing]) -> None:
    """Raise BadOption if a store does not exist, or if no batch begins at an offset."""
    for store, position in starting.stores.items():
        if store not in stores:
            raise BadOption(f"startingOffsets: there is no store {store}, but {', '.join(sorted(stores))}")
        file = stores[store].files.get(position.file)
        if file is not None and not is_border(file, position.offset):
            raise BadOption(f"startingOffsets: no batch of {file.path} begins at {position.offset}")


def _warn(losses: Iterable[str]) -> None:
    for loss in losses:
        log.warning("skipped: %s", loss)


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
