"""Contents of the journal files: bytes by command, destination, file and hour.

    records of each command + BATCH_HEADER + END_MARK + PADDING + DAMAGED = size of the file

for each file; ``balance`` checks this. The hour of a record is that of the newest message before it in its file, or of
the first message after it if there is none before; null in a file without messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandemmq.journal.format import CONTROL_SIZE
from tandemmq.pipeline.columns import BATCHES, END, FILES, NAME, OK, PLACE, PRODUCER_AUDIT, RECORDS, UNSUMMED
from tandemmq.pipeline.columns import PADDING as PADDING_STATUS
from tandemmq.pipeline.engine import F, Window
from tandemmq.pipeline.jobs import gaps
from tandemmq.pipeline.jobs.summary import Bars, Stacks, Summary
from tandemmq.pipeline.jobs.tables import Results, Sources, head
from tandemmq.pipeline.table import Table, size

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BATCH_HEADER: Final = "BATCH_HEADER"
END_MARK: Final = "END_MARK"
PADDING: Final = "PADDING"
DAMAGED: Final = "DAMAGED"  # all batches that do not count: damaged, torn, or after the end of their file
_NOT_WRITTEN: Final = (BATCH_HEADER, END_MARK, PADDING, DAMAGED)

# The findings name a command with at least this share of the written bytes.
FILLING_SHARE: Final = 0.5
FILES_PLOTTED: Final = 60
# Columns of the table ``records`` that are read.
RECORD_COLUMNS: Final = (*PLACE, "length", "command", *NAME, "broker_in")
# Number of destinations that the advice names.
DESTINATIONS_NAMED: Final = 5


def composition(records: DataFrame, batches: DataFrame) -> DataFrame:
    """Return store, file, hour, command, destination_type, destination, records, bytes. Each of the last four terms of
    the sum above is a row whose command is the name of the term, without destination and hour."""
    by_record = (
        records.withColumn("hour", F.date_trunc("hour", _clock()))
        .groupBy("store", "file", "hour", "command", "destination_type", "destination")
        .agg(F.count("*").alias("records"), F.sum(F.col("length").cast("long")).alias("bytes"))
    )
    status = F.col("status")
    is_whole = status.isin(OK, UNSUMMED)
    by_stretch = (
        batches.select(
            "store",
            "file",
            F.when(is_whole, BATCH_HEADER)
            .when(status == END, END_MARK)
            .when(status == PADDING_STATUS, PADDING)
            .otherwise(DAMAGED)
            .alias("command"),
            F.when(is_whole, CONTROL_SIZE).otherwise(F.col("length")).cast("long").alias("length"),
        )
        .groupBy("store", "file", "command")
        .agg(F.count("*").alias("records"), F.sum("length").alias("bytes"))
    )
    return by_record.unionByName(by_stretch, allowMissingColumns=True)


def _clock() -> Column:
    """Return the time shown near a record. Each file has its own window, because a window over the whole journal would
    be too large."""
    file = Window.partitionBy("store", "file").orderBy("offset")
    before = file.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # The first time in the whole file is the first one after the record if there is none before. A window that begins
    # at each row would be computed again for each row.
    whole = file.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    return F.coalesce(F.max("broker_in").over(before), F.first("broker_in", ignorenulls=True).over(whole))


def balance(composed: DataFrame, files: DataFrame) -> DataFrame:
    """Return store, file, bytes, accounted, difference. A difference of 0 means that all bytes of the file are
    accounted for."""
    accounted = composed.groupBy("store", "file").agg(F.sum("bytes").alias("accounted"))
    return files.join(accounted, ["store", "file"], "left").select(
        "store",
        "file",
        "bytes",
        F.coalesce("accounted", F.lit(0)).alias("accounted"),
        (F.col("bytes") - F.coalesce("accounted", F.lit(0))).alias("difference"),
    )


def shares(composed: DataFrame) -> DataFrame:
    """Return command, records, bytes, percent of all bytes: first the written commands, then the other terms, each
    ordered by size."""
    return _percent(composed, ["command"]).orderBy(F.col("command").isin(*_NOT_WRITTEN), F.desc("bytes"), "command")


def destinations(composed: DataFrame) -> DataFrame:
    """Return destination_type, destination, records, bytes, percent of the bytes with a destination; the largest
    first."""
    return _percent(composed.where(F.col("destination").isNotNull()), ["destination_type", "destination"])


def _percent(composed: DataFrame, keys: list[str]) -> DataFrame:
    sums = composed.groupBy(*keys).agg(F.sum("records").alias("records"), F.sum("bytes").alias("bytes"))
    total = sums.agg(F.sum("bytes").alias("total"))
    percent = F.col("bytes") * 100.0 / F.greatest("total", F.lit(1))
    return (
        sums.crossJoin(F.broadcast(total))
        .select(*keys, "records", "bytes", percent.alias("percent"))
        .orderBy(F.desc("bytes"), *keys)
    )


def findings(by_command: Table, by_destination: Table, unbalanced: int) -> tuple[str, ...]:
    """Return sentences about the contents of the files, made from the results of ``shares`` and ``destinations``."""
    written = [row for row in by_command.rows if row[0] not in _NOT_WRITTEN]
    total = sum(_number(row[2]) for row in written)
    found = []
    for command, count, length, _ in written[:1]:
        share = _number(length) / total
        if share >= FILLING_SHARE:
            found.append(
                f"{command} fills the files: {_number(count):,} records, {size(_number(length))}, "
                f"{share:.2%} of what was written."
            )
        if share >= FILLING_SHARE and command == PRODUCER_AUDIT:
            names = [str(row[1]) for row in by_destination.rows[:DESTINATIONS_NAMED]]
            found.append(
                "Each checkpoint wrote the whole audit of producers, and little else was written: consume or expire "
                f"the messages that hold the files ({', '.join(names) or 'none is left'}), make the audit smaller "
                "(maxFailoverProducersToTrack, failoverProducersAuditDepth), or write it only when it changed, as "
                "TandemMQ does."
            )
    damaged = sum(_number(row[2]) for row in by_command.rows if row[0] == DAMAGED)
    if damaged:
        found.append(
            f"{size(damaged)} do not count, because they are damaged, torn or after an end: "
            "`tandemmq pipeline verify` shows where."
        )
    if unbalanced:
        found.append(f"{unbalanced} files do not add up to their size: see the table of the balance.")
    return tuple(found)


def _number(cell: object) -> int:
    assert isinstance(cell, int)
    return cell


def run(spark: SparkSession, sources: Sources, out: str) -> Summary:
    """Write ``composition`` and ``balance`` below ``out``. The summary is not clean if a file does not balance, or is
    missing."""
    sources = sources.fixed(spark)
    batches = sources.read(spark, BATCHES, ("store", "file", "length", "status"))
    records = sources.read(spark, RECORDS, RECORD_COLUMNS)
    results = Results(spark, out)
    composed = results.write(composition(records, batches), "composition")
    files = sources.read(spark, FILES, ("store", "file", "bytes"))
    balanced = results.write(balance(composed, files), "balance")
    unbalanced = balanced.where(F.col("difference") != 0)
    by_command = head(shares(composed), "Bytes by command", "command records bytes percent")
    by_destination = head(
        destinations(composed), "Bytes by destination", "destination_type destination records bytes percent"
    )
    off = head(unbalanced.orderBy("store", "file"), "Files that do not add up", "store file bytes difference")
    tables = (by_command, by_destination, *((off,) if off.rows else ()))
    plots = (
        Bars("Bytes by command", "bytes", [(str(row[0]), _number(row[2])) for row in by_command.rows]),
        _by_file(composed),
        Bars("Bytes by destination", "bytes", [(str(row[1]), _number(row[3])) for row in by_destination.rows[:20]]),
    )
    left_out = gaps.of_files(spark, sources)
    return Summary(
        "composition",
        (
            *findings(by_command, by_destination, unbalanced.count()),
            *gaps.remarks(left_out, "their content is not counted"),
        ),
        tables,
        plots,
        is_clean=not off.rows and left_out.is_certain,
        written=results.written,
        reached=sources.reached,
    )


def _by_file(composed: DataFrame) -> Stacks:
    """Return the newest files, each divided by command."""
    newest = composed.select("store", "file").distinct().orderBy(F.desc("file"), "store").limit(FILES_PLOTTED)
    rows = (
        composed.join(F.broadcast(newest), ["store", "file"])
        .groupBy("store", "file", "command")
        .agg(F.sum("bytes").alias("bytes"))
        .orderBy("store", "file")
        .collect()
    )
    totals: dict[str, int] = {}
    bars: dict[tuple[str, int], dict[str, int]] = {}
    for row in rows:
        totals[row.command] = totals.get(row.command, 0) + row.bytes
        bars.setdefault((row.store, row.file), {})[row.command] = row.bytes
    parts = tuple(sorted(totals, key=lambda command: (-totals[command], command)))
    several = len({store for store, _ in bars}) > 1
    return Stacks(
        "Bytes by file" if len(bars) < FILES_PLOTTED else f"Bytes by file, the newest {FILES_PLOTTED}",
        "bytes",
        parts,
        [
            (f"{store} db-{file}.log" if several else f"db-{file}.log", [by_command.get(part, 0) for part in parts])
            for (store, file), by_command in bars.items()
        ],
    )
