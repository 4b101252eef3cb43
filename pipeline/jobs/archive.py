"""Archive journals in a message lake: Parquet by date and destination. Each closed file is added once, even if the job
is killed.

    LAKE/messages   the table messages; ``date`` is the day on which the broker received the message
    LAKE/acks       the table acks, and
    LAKE/records    the table records: everything else about the fate of messages. ``date`` is the first day of
                    the journal file, since records carry no time

Dates are in UTC. ``pipeline.lake`` explains why no file is added twice. docs/pipeline.md states the guarantees.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from tandemmq.pipeline.columns import ACKS, COLUMNS, MESSAGES, RECORDS, REMOVE_DESTINATION
from tandemmq.pipeline.engine import F, scope
from tandemmq.pipeline.failures import cause, of_engines
from tandemmq.pipeline.jobs import gaps
from tandemmq.pipeline.jobs.summary import Summary
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.lake import BY_DESTINATION, TABLES, Archived, Identity, Lake, LakeError, Layout, committed
from tandemmq.pipeline.listing import Listing, Stores
from tandemmq.pipeline.local.parquet import SPECIAL
from tandemmq.pipeline.lost import Seen, ranges_of
from tandemmq.pipeline.manifests import manifest_of
from tandemmq.pipeline.parts import FileGone, groups
from tandemmq.pipeline.places import is_remote, place_of
from tandemmq.pipeline.stopping import Stopped
from tandemmq.pipeline.stores import NoJournal, journal_files
from tandemmq.pipeline.table import Table, size
from tandemmq.pipeline.walk import JournalFile
from tandemmq.store.maintenance.manifest import Manifest, describe

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

# Limit of the journal files that are added together. It bounds the disk space for staging, and the work to repeat after
# a kill.
GROUP_BYTES: Final = 512 << 20
ROWS_PER_FILE: Final = 2_000_000
# Maximum number of consecutive rounds that may fail, for example during a failover.
FAILURES_MAX: Final = 5
RETRY_SECONDS: Final = 1.0
# Limit of a directory's name; file systems permit 255 bytes.
DESTINATION_BYTES_MAX: Final = 200
_DAY_MICROSECONDS: Final = 86_400_000_000


class FilesLost(ValueError):
    """Journal files were deleted before they were archived."""


# Path, size and time of a file
_FileStamp = tuple[str, int, int | None]


@dataclass(slots=True)
class Progress:
    """Results of a run: the files by store and the rows by table that were added to the lake. ``is_stopped``: a stop
    was requested."""

    files: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    bytes: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    lost: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    damaged: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    is_stopped: bool = False

    def note(self, added: Sequence[New], rows: dict[str, int]) -> None:
        for new in added:
            store = new.file.store
            self.files[store].append(new.file.file)
            self.bytes[store] += new.manifest.bytes
            if new.manifest.damaged:
                self.damaged[store].append(new.file.file)
        self.rows.update(rows)


@dataclass(frozen=True, slots=True)
class New:
    """A closed file that is not in the lake, with its manifest and its entry for the lake."""

    file: JournalFile
    manifest: Manifest
    archived: Archived


def run(
    spark: SparkSession,
    sources: Sources,
    out: str,
    *,
    every: float | None = None,
    layout: Layout | None = None,
    is_lost_skipped: bool = False,
    wait: Callable[[float], object] | None = None,
    report: Callable[[str], object] = log.info,
) -> Summary:
    """Add the closed files of ``sources`` that are not in the lake ``out``. With ``every``, repeat this after that many
    seconds until Stopped.

    ``report`` is called with a sentence about each addition. If files were deleted before they were archived, the
    existing files are added, and then FilesLost is raised, unless ``is_lost_skipped``. Raises LakeError, NoJournal.
    """
    passing: tuple[type[Exception], ...] = (OSError, FileGone, *of_engines())
    progress = Progress()
    pause = wait or threading.Event().wait
    missing: dict[str, list[int]] = {}
    with Lake(out, layout or Layout()) as lake:
        archive = Archive(spark, sources, lake, is_lost_skipped, progress, report)
        try:
            failures, is_told = 0, False
            while True:
                try:
                    archive.round()
                    failures = 0
                except NoJournal as error:
                    if every is None:
                        raise LakeError(str(error)) from error
                    report(f"waiting: {error}")  # the store does not exist yet, or the share is not mounted
                except passing as error:
                    # A file may have been moved or deleted during the read.
                    failures += 1
                    if failures >= FAILURES_MAX:
                        raise
                    report(f"trying again after a failure: {cause(error)}")
                else:
                    if every is None:
                        break
                    if not is_told:
                        report(f"repeated every {every:g} s, until SIGTERM or Ctrl-C")
                        is_told = True
                pause(RETRY_SECONDS if every is None else every)
            missing = _missing(spark, sources, lake, progress.lost)
        except Stopped:
            progress.is_stopped = True
    return _summary(progress, out, missing)


@dataclass
class Archive:
    """Rounds that add new files. For one thread."""

    spark: SparkSession
    sources: Sources
    lake: Lake
    is_lost_skipped: bool
    progress: Progress
    report: Callable[[str], object]
    _known: set[_FileStamp] = field(default_factory=set)  # files that need no check, because the lake has their content

    def __post_init__(self) -> None:
        self._stores = Stores(self.sources.paths, self.sources.access_in(self.spark))
        self._seen = Seen.of(self.lake)

    def round(self) -> None:
        """List the sources once, and add all new files. Raises FilesLost, and errors of the engine and of volumes."""
        listings = self._stores.now()
        present = {store: self._wanted(listing) for store, listing in listings.items()}
        self._seen.note_present(present)
        for group in groups(self._new(listings), lambda new: new.manifest.bytes, GROUP_BYTES):
            with scope(self.spark):
                rows = self._add(group)
            self.progress.note(group, rows)
            total = sum(new.manifest.bytes for new in group)
            self.report(f"added {len(group)} files, {size(total)}: {rows[MESSAGES]:,} messages, {rows[ACKS]:,} acks")
        lost = self._seen.lost(present)
        if lost:
            names = _named(lost)
            for store, files in lost.items():
                self.progress.lost[store] += files
            if not self.is_lost_skipped:
                raise FilesLost(
                    f"journal files were deleted before they were archived: {names}. "
                    "The existing files were added. --skip-lost continues without the lost files; "
                    "archive_data_logs keeps files"
                )
            self.report(f"lost, and skipped: {names}")
            self._seen.skip(lost)

    def _wanted(self, listing: Listing) -> list[int]:
        first, last = self.sources.first or 0, self.sources.last
        return [number for number in listing.files if number >= first and (last is None or number <= last)]

    def _new(self, listings: Mapping[str, Listing]) -> Iterator[New]:
        given: set[Identity] = set()  # a copy of a store may also be a source
        for store in sorted(listings):
            listing = listings[store]
            for number in self._wanted(listing):
                new = self._if_new_now(listing.files[number]) if listing.is_closed(number) else None
                if new is not None and new.archived.identity not in given:
                    given.add(new.archived.identity)
                    yield new

    def _if_new_now(self, file: JournalFile) -> New | None:
        """Call ``_if_new`` for a file that a broker may have moved into its archive since the listing."""
        try:
            return self._if_new(file)
        except FileNotFoundError:
            for moved in journal_files([file.path], access=file.access):
                return self._if_new(moved)
            raise

    def _if_new(self, file: JournalFile) -> New | None:
        """Return the file with its entry; None if the lake has the file, under any path. Raises FileNotFoundError if it
        was deleted meanwhile."""
        modified = None if is_remote(file.path) else os.stat(file.path).st_mtime_ns
        stamp = (file.path, file.size, modified)
        before = self.lake.at(file.store, file.file)
        if before is not None and modified is not None and (before.bytes, before.modified) == (file.size, modified):
            return None
        if stamp in self._known:
            return None
        manifest = _manifest(file)
        counted = (manifest.bytes, manifest.counted, manifest.counted_sha256, manifest.damaged)
        new = New(file, manifest, Archived(file.store, file.file, *counted, modified))
        if not self.lake.has(new.archived.identity):
            return new
        self._known.add(stamp)
        self._seen.note_archived(file.store, file.file)
        return None

    def _add(self, group: Sequence[New]) -> dict[str, int]:
        files = tuple(new.archived for new in group)
        staging = self.lake.staging(files)
        for table in (RECORDS, ACKS, MESSAGES):
            if "destination" in self._partitions(table) and _rows(staging / RECORDS):
                _refuse_long(self.spark.read.parquet(_url(staging / RECORDS)))
            _write(self._frame(table, group), staging / table, self._partitions(table))
        rows = {table: _rows(staging / table) for table in TABLES}
        self._check(group, rows)
        self.lake.commit(files, rows)
        for new in group:
            self._seen.note_archived(new.file.store, new.file.file)
        return rows

    def _partitions(self, table: str) -> tuple[str, ...]:
        by_destination = table == MESSAGES and self.lake.layout.by == BY_DESTINATION
        return ("date", "destination") if by_destination else ("date",)

    def _frame(self, table: str, group: Sequence[New]) -> DataFrame:
        layout = self.lake.layout
        read = Sources(tuple(new.file.path for new in group), False, access=self.sources.access)
        frame = read.read(self.spark, table, payload=layout.raw and table == MESSAGES)
        if layout.destinations:
            wanted = F.col("destination").isin(*layout.destinations)
            frame = frame.where(wanted | F.col("destination").isNull() if table == RECORDS else wanted)
        times = [(new.file.store, new.file.file, new.manifest.first_time) for new in group]
        days = self.spark.createDataFrame(times, "store STRING, file INT, first_time BIGINT")
        time = F.col("first_time") * 1000
        if table == MESSAGES:
            time = F.coalesce(F.unix_micros("broker_in"), F.unix_micros("sent"), time)
        return frame.join(F.broadcast(days), ["store", "file"]).withColumn("date", _date(time)).drop("first_time")

    def _check(self, group: Sequence[New], rows: dict[str, int]) -> None:
        """Raise OSError unless the number of written records is the number counted at the listing: a file may have
        changed meanwhile."""
        if self.lake.layout.destinations:
            return
        counted = sum(new.manifest.records for new in group)
        # Each file may have an end marker after its end, which is read but not counted.
        if not counted <= rows[RECORDS] <= counted + len(group):
            names = ", ".join(new.file.path for new in group)
            raise OSError(f"{rows[RECORDS]} records were read, and there are {counted}: {names}")


def read(spark: SparkSession, lake: str, table: str) -> DataFrame:
    """Return a table of the lake, with all or no rows of each commit. Raises LakeError if the lake has no such table.

    ``destination`` is text, even if all names are numbers: Spark would derive a number type from the directories.
    """
    found = [file for commit in committed(lake).values() for file in commit.parquet.get(table, ())]
    if not found:
        raise LakeError(f"{lake} has no {table}")
    schema = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS[table]) + ", `date` DATE"
    root = os.path.abspath(lake)
    return (
        spark.read.schema(schema).option("basePath", f"{root}/{table}").parquet(*(f"{root}/{file}" for file in found))
    )


def _manifest(file: JournalFile) -> Manifest:
    """Return the manifest in the archive, or make one by reading the file."""
    place = place_of(file.path, file.access)
    found = manifest_of(place, file.path, file.size)
    if found is not None:
        return found
    source = place.open(file.path)
    try:
        name = file.path.rpartition("/")[2]
        return describe(source, name=name, file=file.file, directory=file.store, end=file.end, openwire=file.openwire)
    finally:
        source.release()


def _write(frame: DataFrame, directory: Path, partitions: tuple[str, ...]) -> None:
    """Write a frame sorted by its partitions, so that a task has only one Parquet file open at a time."""
    (
        frame.hint("rebalance", *partitions)
        .sortWithinPartitions(*partitions, "store", "file", "offset")
        .write.partitionBy(*partitions)
        .option("compression", "zstd")
        .option("maxRecordsPerFile", ROWS_PER_FILE)
        .mode("overwrite")
        .parquet(_url(directory))
    )


def _url(directory: Path) -> str:
    return f"file:{directory}"  # independent of the cluster's default file system


def _refuse_long(records: DataFrame) -> None:
    """Raise LakeError if a destination's name is too long for a directory. Special characters take three bytes in a
    directory's name."""
    escaped = F.octet_length(F.regexp_replace("destination", SPECIAL, "%00"))
    found = records.where((F.col("command") != REMOVE_DESTINATION) & (escaped > DESTINATION_BYTES_MAX)).first()
    if found is not None:
        raise LakeError(f"the name is too long for a directory: {found.destination}; make the lake with --by date")


def _rows(directory: Path) -> int:
    return sum(int(pq.read_metadata(path).num_rows) for path in directory.rglob("[!._]*.parquet"))


def _date(microseconds: Column) -> Column:
    """Return the day in UTC, independent of the session's time zone."""
    day = F.floor(microseconds / F.lit(_DAY_MICROSECONDS)).cast("int")
    return F.date_add(F.lit("1970-01-01").cast("date"), day)


def _missing(
    spark: SparkSession, sources: Sources, lake: Lake, reported: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    """Return files that are neither in the sources nor in the lake and that no broker removed, except those in
    ``reported``."""
    missing = gaps.of_files(spark, sources.fixed(spark)).missing
    left = {
        store: sorted(set(files) - lake.files_of(store) - set(reported.get(store, ())))
        for store, files in missing.items()
    }
    return {store: files for store, files in left.items() if files}


def _named(files: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(f"{store}: {ranges_of(numbers)}" for store, numbers in sorted(files.items()))


def _summary(progress: Progress, out: str, missing: Mapping[str, Sequence[int]]) -> Summary:
    count = sum(len(files) for files in progress.files.values())
    findings = [
        "Stopped; nothing was added." if progress.is_stopped else "Nothing was new: the lake has every closed file."
    ]
    if count:
        findings = [
            f"{count:,} journal files, {size(sum(progress.bytes.values()))}, were added: "
            f"{progress.rows[MESSAGES]:,} messages, {progress.rows[ACKS]:,} acknowledgements."
        ]
    if progress.lost:
        findings.append(f"Deleted before they were archived, and skipped: {_named(progress.lost)}.")
    if progress.damaged:
        findings.append(
            f"Damaged, added as far as they can be read (`verify` has the places): {_named(progress.damaged)}."
        )
    if missing:
        findings.append(f"Missing, and not removed by a broker; the lake lacks their content: {_named(missing)}.")
    added = Table(
        "Added",
        ("store", "files", "first", "last", "bytes"),
        [
            [store, len(files), min(files), max(files), progress.bytes[store]]
            for store, files in sorted(progress.files.items())
        ],
    )
    rows = Table("Rows", ("table", "rows"), [[table, progress.rows[table]] for table in TABLES])
    lake = os.path.abspath(out)
    return Summary(
        "archive",
        tuple(findings),
        (added, rows) if count else (),
        is_clean=not (progress.lost or progress.damaged),
        written={table: f"{lake}/{table}" for table in TABLES},
    )
