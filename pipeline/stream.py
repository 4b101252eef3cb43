"""Journals as a stream: ``spark.readStream.format("tandemmq")``. docs/pipeline.md states the guarantees.

The reader plans in a process beside the driver, where it caches the last listing. The workers get a copy with only the
options. The two offsets of a batch determine its rows, so that a repeated read returns the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from tandemmq.pipeline.advance import Advance, DataLost, Limit, advance, newest_of, parts_between, start_of
from tandemmq.pipeline.listing import Listing, Stores, is_border
from tandemmq.pipeline.offsets import Offsets
from tandemmq.pipeline.options import LATEST, BadOption, StreamOptions
from tandemmq.pipeline.partitions import Files
from tandemmq.pipeline.parts import FileGone, packed, record_batches_of
from tandemmq.pipeline.walk import JournalFile, walk

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


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
