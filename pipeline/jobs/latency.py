"""Time of messages between storing and acknowledgement, and the backlog, over time.

Acknowledgements have no time: they were written between two clocks (jobs.lifecycle). Each latency is the middle between
the values for the earliest and the latest possible time; ``interval_error_ms`` is its error bound in both directions.
Percentiles are Spark's ``percentile_approx``: exact up to ACCURACY values; beyond that, the error of the rank is at
most 1 / ACCURACY.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from tandemmq.pipeline.columns import ACKS, CLOCK, MARKS, RECORDS
from tandemmq.pipeline.engine import F, Window
from tandemmq.pipeline.jobs import effects, gaps, lifecycle
from tandemmq.pipeline.jobs.selection import is_private
from tandemmq.pipeline.jobs.summary import Lines, Plot, Summary
from tandemmq.pipeline.jobs.tables import Results, Sources, head, only_row
from tandemmq.pipeline.table import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

WINDOW_SECONDS: Final = 3600
# Lengths of windows in seconds. The shortest one that gives at most WINDOWS_WANTED windows is used.
WINDOWS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800)
WINDOWS_WANTED: Final = 100
ACCURACY: Final = 10_000
DESTINATIONS_LISTED: Final = 5
DESTINATIONS_PLOTTED: Final = 7
LATENCIES_PLOTTED: Final = 3
# Maximum number of windows in a plot, the newest ones.
WINDOWS_PLOTTED: Final = 500

# End of a sentence about the effect of gaps in the journal.
UNCERTAIN: Final = (
    "messages and acknowledgements in them are not counted: some waiting messages may no longer exist, others may be "
    "missing, and acknowledgements without a message may belong to messages in them"
)

_DESTINATION: Final = ("store", "destination_type", "destination")
_PERCENTILES: Final = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}
_COUNTED: Final = ("enqueued", "acked", "gone")
_MEASURED: Final = (*_PERCENTILES, "interval_error_ms", "unbounded")
_SLOWEST: Final = "store destination window_start p99_ms interval_error_ms acked backlog_end p50_ms p95_ms max_ms"
# Ordered by importance, because a terminal shows only the columns that fit.
_TOTALS: Final = (
    "store destination backlog p99_ms interval_error_ms acked enqueued gone p50_ms p95_ms max_ms oldest unbounded "
    "unmatched destination_type"
)


def destination_stats(lives: DataFrame, window_seconds: int = WINDOW_SECONDS) -> DataFrame:
    """Return the figures of each window with events of a destination:

    ``store, destination_type, destination, window_start, window_end, enqueued, acked, gone, backlog_end, p50_ms,
    p95_ms, p99_ms, max_ms, interval_error_ms, unbounded``. ``gone`` messages expired, were dead-lettered or removed
    with their queue; ``backlog_end`` is the backlog at the end of the window, of messages stored in the files that were
    read. Latencies are those of messages acknowledged in the window, without the ``unbounded`` ones, whose latest time
    is unknown. ``lives`` is the result of ``lifecycle``; messages without any time are in no window.
    """
    timed = lives.where(F.col("added_lo").isNotNull())
    entered = timed.withColumn("_at", F.col("added_lo")).withColumn("_enters", F.lit(1))
    left = (
        timed.where(F.col("state").isin(*lifecycle.ENDED))
        .withColumn("_at", F.col("ack_lo"))
        .withColumn("_enters", F.lit(0))
    )
    start = F.floor(F.unix_seconds("_at") / window_seconds) * window_seconds
    is_left = F.col("_enters") == 0
    so_far = Window.partitionBy(*_DESTINATION).orderBy("_start").rowsBetween(Window.unboundedPreceding, 0)
    return (
        entered.unionByName(left)
        .withColumn("_start", start)
        .groupBy(*_DESTINATION, "_start")
        .agg(F.sum("_enters").alias("enqueued"), *_measures(is_left))
        .withColumn("backlog_end", F.sum(F.col("enqueued") - F.col("acked") - F.col("gone")).over(so_far))
        .select(
            *_DESTINATION,
            F.timestamp_seconds("_start").alias("window_start"),
            F.timestamp_seconds(F.col("_start") + window_seconds).alias("window_end"),
            *_COUNTED,
            "backlog_end",
            *_spread(),
            "unbounded",
        )
    )


def totals(lives: DataFrame) -> DataFrame:
    """Return a row for each destination of a store, with the columns of ``destination_stats`` except those of the
    window, and

    ``backlog``: messages that exist at the end; ``oldest``: when the oldest of them was stored; ``unmatched``:
    acknowledgements of messages that are in none of the files read. Ordered by backlog, the longest first.
    """
    is_live = F.col("state") == lifecycle.LIVE
    return (
        lives.groupBy(*_DESTINATION)
        .agg(
            F.count_if(F.col("state") != lifecycle.UNMATCHED_ACK).alias("enqueued"),
            F.count_if(is_live).alias("backlog"),
            F.min(F.when(is_live, F.col("added_lo"))).alias("oldest"),
            F.count_if(F.col("state") == lifecycle.UNMATCHED_ACK).alias("unmatched"),
            *_measures(F.lit(True)),
        )
        .select(*_DESTINATION, *_COUNTED, "backlog", "oldest", *_spread(), "unbounded", "unmatched")
        .orderBy(F.desc("backlog"), F.desc("acked"), *_DESTINATION)
    )


def _measures(is_meant: Column) -> list[Column]:
    """Return the columns acked, gone, unbounded, and the percentiles for the earliest (``_lo``) and latest (``_hi``)
    possible times."""
    is_acked = is_meant & (F.col("state") == lifecycle.ACKED)
    is_bounded = is_acked & F.col("ack_hi").isNotNull() & F.col("added_lo").isNotNull()
    least = F.greatest(F.lit(0), F.unix_millis("ack_lo") - F.unix_millis("added_hi"))
    most = F.unix_millis("ack_hi") - F.unix_millis("added_lo")
    shares = list(_PERCENTILES.values())
    return [
        F.count_if(is_acked).alias("acked"),
        F.count_if(is_meant & F.col("state").isin(*lifecycle.ENDED) & (F.col("state") != lifecycle.ACKED)).alias(
            "gone"
        ),
        F.count_if(is_acked & ~is_bounded).alias("unbounded"),
        *(
            F.percentile_approx(F.when(is_bounded, value), shares, ACCURACY).alias(name)
            for name, value in (("_lo", least), ("_hi", most))
        ),
    ]


def _spread() -> list[Column]:
    low, high = ([F.col(name)[number] for number in range(len(_PERCENTILES))] for name in ("_lo", "_hi"))
    between = [
        F.floor((a + b) / 2).cast("long").alias(name) for name, a, b in zip(_PERCENTILES, low, high, strict=True)
    ]
    errors = [F.ceil((b - a) / 2).cast("long") for a, b in zip(low, high, strict=True)]
    return [*between, F.greatest(*errors).alias("interval_error_ms")]


class Point(NamedTuple):
    """A window of ``destination_stats``."""

    start: datetime
    backlog: int
    p50_ms: int | None
    p95_ms: int | None
    p99_ms: int | None


# windows in order, by (store, destination_type, destination)
Series = dict[tuple[str, str, str], list[Point]]


def run(
    spark: SparkSession,
    sources: Sources,
    out: str,
    *,
    window_seconds: int | None = None,
    mark_interval_ms: int | None = None,
) -> Summary:
    """Write ``lifecycle``, ``destination_stats`` and ``destinations`` below ``out``. The summary is not clean if data
    is missing, because the figures are then uncertain; a high latency is not an error. Without ``window_seconds``, the
    time span of the messages determines the length of a window.
    """
    sources = sources.fixed(spark)
    read = sources.read(spark, RECORDS, lifecycle.RECORD_COLUMNS).where(F.col("command").isin(*lifecycle.COMMANDS))
    records = lifecycle.believed(read, mark_interval_ms).persist()
    results = Results(spark, out)
    try:
        marks, acks = (
            sources.read(spark, MARKS, effects.MARK_COLUMNS),
            sources.read(spark, ACKS, lifecycle.ACK_COLUMNS),
        )
        lived = lifecycle.lifecycle(records, marks, acks, mark_interval_ms=mark_interval_ms)
        lives = results.write(lived.where(~is_private()), "lifecycle")
        has_marks = bool(records.where(F.col("command") == CLOCK).take(1))
    finally:
        records.unpersist()
    if window_seconds is None:
        window_seconds = window_of(lives)
    stats = results.write(destination_stats(lives, window_seconds), "destination_stats")
    destinations = results.write(totals(lives), "destinations")
    ordered = destinations.orderBy(F.desc("backlog"), F.desc("acked"), *_DESTINATION)
    by_destination = head(_readable(ordered, "oldest"), "By destination", _TOTALS)
    slowest = stats.where(F.col("p99_ms").isNotNull()).orderBy(F.desc("p99_ms"), "window_start", *_DESTINATION)
    sums = only_row(ordered.agg(F.sum("unmatched"), F.sum("unbounded")))
    keys = [tuple(row) for row in ordered.select(*_DESTINATION).take(DESTINATIONS_PLOTTED)]
    series = _series(stats, [key for key in keys if len(key) == len(_DESTINATION)])
    lines = remarks(sums[0] or 0, sums[1] or 0, has_marks=has_marks, is_tail_read=sources.is_tail_wanted)
    left_out = gaps.gaps(spark, sources)
    return Summary(
        "latency",
        (*findings(by_destination, series), *gaps.remarks(left_out, UNCERTAIN), *lines),
        (by_destination, head(_readable(slowest, "window_start"), "Slowest windows", _SLOWEST)),
        plots(series, timedelta(seconds=window_seconds)),
        is_clean=left_out.is_certain,
        written=results.written,
        reached=sources.reached,
    )


def window_of(lives: DataFrame) -> int:
    """Return the length of a window in seconds. It depends on the time from the first to the last event of a message.
    Reads ``lives``."""
    came, went = F.unix_seconds("added_lo"), F.unix_seconds("ack_lo")
    stored = lives.where(F.col("added_lo").isNotNull())
    first, last = only_row(stored.agg(F.min(came), F.max(F.greatest(came, F.coalesce(went, came)))))
    span = 0 if first is None else last - first
    return next((length for length in WINDOWS if span <= length * WINDOWS_WANTED), WINDOWS[-1])


def _readable(frame: DataFrame, time: str) -> DataFrame:
    """Return the frame with the column ``time`` as text in the session's time zone. (A collected time would be in the
    driver's zone.)"""
    return frame.withColumn(time, F.date_format(time, "yyyy-MM-dd HH:mm:ss"))


def _series(stats: DataFrame, keys: Sequence[tuple[str, str, str]]) -> Series:
    """Return the newest windows of the destinations ``keys``."""
    series: Series = {key: [] for key in keys}
    if not keys:
        return series
    chosen = stats.sparkSession.createDataFrame(keys, ", ".join(f"`{name}` STRING" for name in _DESTINATION))
    newest = Window.partitionBy(*_DESTINATION).orderBy(F.desc("window_start"))
    rows = (
        stats.join(F.broadcast(chosen), list(_DESTINATION))
        .withColumn("_number", F.row_number().over(newest))
        .where(F.col("_number") <= WINDOWS_PLOTTED)
        .withColumn("start", F.unix_seconds("window_start"))
        .select(*_DESTINATION, "start", "backlog_end", "p50_ms", "p95_ms", "p99_ms")
        .orderBy("start")
        .collect()
    )
    for row in rows:
        start = datetime.fromtimestamp(row[3], UTC)
        series[row[0], row[1], row[2]].append(Point(start, *row[4:]))
    return series


def findings(by_destination: Table, series: Series) -> tuple[str, ...]:
    """Return sentences about the destinations with the longest backlog, from the result of ``totals``. Destinations
    with a known latency come first."""
    rows = [dict(zip(by_destination.columns, cells, strict=True)) for cells in by_destination.rows]
    rows.sort(key=lambda row: row["p99_ms"] is None)
    found = []
    for row in rows[:DESTINATIONS_LISTED]:
        p99, error, backlog = row["p99_ms"], row["interval_error_ms"], row["backlog"]
        if isinstance(p99, int) and isinstance(error, int):
            latency = f"p99 {duration(p99)} \N{PLUS-MINUS SIGN}{duration(error)}"
        else:
            latency = "no latency is known"
        points = series.get((str(row["store"]), str(row["destination_type"]), str(row["destination"])), [])
        growth = " and growing" if is_growing(points) else ""
        there = f"backlog {backlog:,} at the end{growth}" if backlog else "nothing is left"
        found.append(f"{row['destination']}: {latency}, {there}.")
    return tuple(found) or ("No message was stored in the files read.",)


def is_growing(points: Sequence[Point]) -> bool:
    """Return whether the backlog at the end is larger than in the middle of the time."""
    if len(points) < 2:
        return False
    first, last = points[0], points[-1]
    half_way = [point for point in points if point.start <= first.start + (last.start - first.start) / 2]
    return last.backlog > half_way[-1].backlog


def remarks(unmatched: int, unbounded: int, *, has_marks: bool, is_tail_read: bool) -> tuple[str, ...]:
    """Return notes on the interpretation of the figures."""
    lines = []
    if unmatched:
        lines.append(
            f"{unmatched:,} acknowledgements are of messages that are in none of these files: they have no latency."
        )
    if unbounded:
        lines.append(f"{unbounded:,} acknowledgements have no clock mark after them: their latency is not counted.")
    if not has_marks:
        lines.append(
            "No clock is marked in these journals (ActiveMQ's, or clock_mark_interval = 0): acknowledgements are timed "
            "by the messages around them."
        )
    if not is_tail_read:
        lines.append(
            "The newest file of each store was not read (--closed): what it acknowledges counts as backlog here."
        )
    return tuple(lines)


def duration(milliseconds: int) -> str:
    """Format a duration: 2300 -> "2.3 s"."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds >= length:
            return f"{milliseconds / length:.1f} {unit}"
    return f"{milliseconds} ms"


def plots(series: Series, window: timedelta) -> tuple[Plot, ...]:
    """Return plots of the backlog of these destinations over time, and of their latencies where known."""
    starts = [point.start for points in series.values() for point in points]
    if not starts:
        return ()
    first, last = min(starts), max(starts)
    count = min((last - first) // window + 1, WINDOWS_PLOTTED)
    windows = [last - window * back for back in reversed(range(count))]
    pattern = "%Y-%m-%d %H:%M" if window >= timedelta(minutes=1) else "%Y-%m-%d %H:%M:%S"
    labels = [start.strftime(pattern) for start in windows]
    named = _names(series)
    drawn: list[Plot] = [
        Lines(
            f"Backlog at the end of each window of {duration(1000 * int(window.total_seconds()))}",
            "messages",
            labels,
            [(named[key], _backlog(points, windows)) for key, points in series.items()],
        )
    ]
    measured = [key for key, points in series.items() if any(point.p99_ms is not None for point in points)]
    for key in measured[:LATENCIES_PLOTTED]:
        at = {point.start: point for point in series[key]}
        shown = [at.get(start) for start in windows]
        drawn.append(
            Lines(
                f"From stored to acknowledged: {named[key]}",
                "ms",
                labels,
                [(name, [point and getattr(point, f"{name}_ms") for point in shown]) for name in ("p50", "p95", "p99")],
            )
        )
    return tuple(drawn)


def _names(series: Series) -> dict[tuple[str, str, str], str]:
    """Return the names of the destinations, with the stores if there are several."""
    several = len({store for store, _, _ in series}) > 1
    return {key: f"{key[2]} ({key[0]})" if several else key[2] for key in series}


def _backlog(points: Sequence[Point], windows: Sequence[datetime]) -> list[float | None]:
    """Return the backlog of each window. A window without events has the backlog of the window before it."""
    found: list[float | None] = []
    waiting = list(reversed(points))
    backlog: int | None = None
    for start in windows:
        while waiting and waiting[-1].start <= start:
            backlog = waiting.pop().backlog
        found.append(None if backlog is None else max(0, backlog))
    return found
