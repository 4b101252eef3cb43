"""Contents of queues and durable subscriptions at a moment, read from journals and archives.

A message exists at the moment if the record that stored it took effect before, and no record that removed it did. The
moment is an exact place in the journal, or a time. For a time, the journal is read up to the first clock after it
(clocks.shown). Records between the last clock before the time and this clock are assumed to be before the time, and
their number is reported.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from tandemmq.pipeline import columns
from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs import effects
from tandemmq.pipeline.jobs.clocks import shown
from tandemmq.pipeline.jobs.gaps import missing, named, traces
from tandemmq.pipeline.jobs.lifecycle import RECORD_COLUMNS, believed
from tandemmq.pipeline.jobs.summary import Bars, Summary
from tandemmq.pipeline.jobs.tables import Results, Sources, head, only_row
from tandemmq.pipeline.table import size

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ORDER_COLUMNS: Final = ("order_file", "order_offset", "order_number")
BODY_COLUMNS: Final = ("body", "text")
# Columns taken from the table ``messages``.
MESSAGE_COLUMNS: Final = tuple(
    name
    for name, _ in columns.COLUMNS[columns.MESSAGES]
    if name
    not in ("store", "file", "offset", "command", "destination_type", "destination", "message_id", "transaction")
    and name not in (*BODY_COLUMNS, "raw")
)
HOLDER: Final = ("store", "destination_type", "destination", "subscription")
_HELD: Final = " ".join(HOLDER)
PLOTTED: Final = 20


@dataclass(frozen=True, slots=True)
class Cut:
    """End of the read in the journal of ``store``: before the place ``at``; None: the whole journal is read.

    ``before``: the last time shown before that place; ``behind``: the first time shown after it. ``open``: number of
    removes and commits between these two, which may have been before or after the requested time.
    """

    store: str
    at: int | None
    before: datetime | None
    behind: datetime | None
    open: int


def cuts(records: DataFrame, time: datetime | None = None, at: int | None = None) -> list[Cut]:
    """Return the cut of each store, at ``time`` (with its zone) or at the place ``at``. Reads the records twice."""
    when = F.unix_micros(shown())
    is_late = when > _micros(time) if time is not None else (effects.place() >= at)
    ends = records.groupBy("store").agg(F.min(F.when(is_late, effects.place())).alias("_cut"))
    is_in = F.col("_cut").isNull() | (effects.place() < F.col("_cut"))
    joined = records.join(F.broadcast(ends), "store").withColumns({"_shown": when, "_at": effects.place()})
    sums = joined.groupBy("store", "_cut").agg(
        F.max(F.when(is_in, F.col("_shown"))).alias("before"),
        F.min_by("_shown", F.when(~is_in & F.col("_shown").isNotNull(), F.col("_at"))).alias("behind"),
        F.max(F.when(is_in & F.col("_shown").isNotNull(), F.col("_at"))).alias("_last"),
    )
    undated = joined.where(is_in & F.col("command").isin(columns.REMOVE_MESSAGE, columns.COMMIT)).select("store", "_at")
    open_ones = (
        undated.join(F.broadcast(sums), "store")
        .where(F.col("_at") > F.coalesce("_last", F.lit(-1)))
        .groupBy("store")
        .agg(F.count("*").alias("open"))
    )
    rows = sums.join(open_ones, "store", "left").orderBy("store").collect()
    return [Cut(row.store, row._cut, _time(row.before), _time(row.behind), row.open or 0) for row in rows]


def _micros(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000)


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1_000_000, UTC)


def contents(
    records: DataFrame, marks: DataFrame, messages: DataFrame, cuts: Iterable[Cut], moment: datetime | None = None
) -> DataFrame:
    """Return the messages that exist at the cuts, one row for each message of each queue or subscription:

    ``store, destination_type, destination, subscription, message_id, file, offset`` (of its newest record), ``length``
    of that, ``order_file, order_offset, order_number`` (its place in the order of arrival), ``is_in_doubt`` (a
    transaction without an outcome yet removes it), ``is_expired`` (at ``moment``, else at the last time shown), and the
    columns of ``messages`` that it has.
    """
    spark = records.sparkSession
    own = (*HOLDER, "message_id")
    schema = "`store` STRING, `_cut` BIGINT, `_moment` BIGINT"
    rows = [(cut.store, cut.at, None if (at := moment or cut.before) is None else _micros(at)) for cut in cuts]
    ends = F.broadcast(spark.createDataFrame(rows, schema))
    cut_off = records.join(ends, "store").where(F.col("_cut").isNull() | (effects.place() < F.col("_cut")))
    cut_off = cut_off.select(*records.columns)
    transacted = effects.operations(cut_off, marks)
    there = effects.live(
        effects.histories(effects.events(cut_off, transacted, effects.spans(effects.declared(cut_off))))
    )
    copies = marks.where(F.col("command") == columns.COPY).select(
        "store", effects.place().alias("_moved"), *(F.col(name).alias(f"_{name}") for name in ORDER_COLUMNS)
    )
    doubts = transacted.where(
        (F.col("command") == columns.REMOVE_MESSAGE) & F.col("ended").isNull() & F.col("replaced").isNull()
    ).select(*(F.col(name).alias(f"_{name}") for name in own))
    is_doubted = reduce(and_, (F.col(name).eqNullSafe(F.col(f"_{name}")) for name in own))
    ordered = there.withColumn("_moved", F.col("since.effect")).join(copies, ["store", "_moved"], "left")
    placed = ordered.join(doubts.distinct(), is_doubted, "left").select(
        *(there[name] for name in own),
        effects.file_of("stands.at").alias("file"),
        F.col("stands.at").bitwiseAND(F.lit(0xFFFFFFFF)).alias("offset"),
        F.col("stands.length").alias("length"),
        F.coalesce("_order_file", effects.file_of("since.effect")).alias("order_file"),
        F.coalesce("_order_offset", F.col("since.effect").bitwiseAND(F.lit(0xFFFFFFFF))).alias("order_offset"),
        F.coalesce(F.col("_order_number").cast("long"), F.col("since.turn")).alias("order_number"),
        F.col("_message_id").isNotNull().alias("is_in_doubt"),
    )
    kept = [name for name in messages.columns if name in _KEPT]
    lines = messages.select("store", "file", "offset", *kept)
    is_expired = F.coalesce(F.unix_micros("expires") <= F.col("_moment"), F.lit(False))
    return (
        placed.join(lines, ["store", "file", "offset"], "left")
        .join(ends, "store")
        .withColumn("is_expired", is_expired)
        .select(*placed.columns, "is_expired", *kept)
    )


_KEPT: Final = frozenset((*MESSAGE_COLUMNS, *BODY_COLUMNS))


def in_order(contents: DataFrame, *, is_prioritized: bool = False) -> DataFrame:
    """Sort the rows by queue or subscription, then by arrival. ``is_prioritized``: by priority before arrival, the
    highest first, like ``prioritizedMessages``."""
    priority: tuple[Column, ...] = (F.desc("priority"),) if is_prioritized else ()
    return contents.orderBy(*HOLDER, *priority, *ORDER_COLUMNS)


def totals(contents: DataFrame) -> DataFrame:
    """Return store, destination_type, destination, subscription, messages, bytes (of their records), oldest, expired,
    in_doubt."""
    return contents.groupBy(*HOLDER).agg(
        F.count("*").alias("messages"),
        F.sum(F.col("length").cast("long")).alias("bytes"),
        F.min("broker_in").alias("oldest"),
        F.count_if("is_expired").alias("expired"),
        F.count_if("is_in_doubt").alias("in_doubt"),
    )


# ---- uncertainty


def findings(
    moment: str,
    messages: int,
    bytes: int,
    holders: int,
    cuts: Sequence[Cut],
    lost: dict[str, list[int]],
    *,
    is_timed: bool,
    unheaded: Sequence[str] = (),
    damaged: int = 0,
) -> tuple[str, ...]:
    """Return sentences about the contents and their certainty. ``unheaded``: stores that ActiveMQ wrote last, and whose
    journal may lack files."""
    lines = [f"At {moment} {messages:,} messages were in {holders:,} queues and subscriptions, {size(bytes)}."]
    several = len(cuts) > 1
    for cut in cuts:
        where = f"{cut.store}: " if several else ""
        if not is_timed:
            continue
        if cut.before is None:
            lines.append(f"{where}no time is shown before that moment: the available journal begins later.")
        elif cut.behind is None:
            lines.append(
                f"{where}the last time in the journal, {_exact(cut.before)}, is before that moment: all records count."
            )
        else:
            lines.append(
                f"{where}the journal shows {_exact(cut.before)} before that moment and {_exact(cut.behind)} after it; "
                f"{cut.open:,} removes and commits between them are assumed to be done."
            )
    for store, files in lost.items():
        where = f"{store}: " if several else ""
        lines.append(
            f"{where}{len(files):,} files that existed then are missing here ({named(files)}): their content is "
            "unknown. An archive (archive_data_logs) has them."
        )
    if unheaded:
        lines.append(
            f"It is not known whether {', '.join(unheaded)} had more files then: ActiveMQ removes files that "
            "are not needed, without a record of it."
        )
    if damaged:
        lines.append(f"{size(damaged)} are damaged, and their content is unknown: see `tandemmq pipeline verify`.")
    return tuple(lines)


def _exact(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


# ---- the job


def run(
    spark: SparkSession,
    sources: Sources,
    out: str,
    *,
    time: datetime | None = None,
    file: int | None = None,
    offset: int = 0,
    destinations: Sequence[str] = (),
    with_bodies: bool = False,
    is_prioritized: bool = False,
) -> Summary:
    """Write ``contents`` and ``totals`` below ``out``: at ``time`` (UTC if it has no zone), or before the record at
    ``offset`` of ``file``. ``destinations``: names; empty: all.

    The newest file of each store is always read. The summary is not clean if files that existed then are missing, or if
    the journal is damaged. Raises ValueError for an invalid moment.
    """
    if (time is None) == (file is None):
        raise ValueError("a moment is a time, or a file and an offset")
    if time is not None and time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    whole = sources.whole().fixed(spark)
    files = whole.files(whole.access_in(spark))
    if file is not None and len({each.store for each in files}) > 1:
        raise ValueError("a place belongs to one store, but there are several: name one store, or give a time")
    read = whole.read(spark, columns.RECORDS, RECORD_COLUMNS).where(
        F.col("command").isin(*effects.COMMANDS, columns.CLOCK)
    )
    records = believed(read).persist()
    marks = whole.read(spark, columns.MARKS, (*effects.MARK_COLUMNS, *ORDER_COLUMNS))
    results = Results(spark, out)
    try:
        found = cuts(records, time, None if file is None else file << 32 | offset)
        chosen = records
        if destinations:
            chosen = records.where(F.col("destination").isNull() | F.col("destination").isin(*destinations))
        names = (*MESSAGE_COLUMNS, *(BODY_COLUMNS if with_bodies else ()))
        messages = whole.read(spark, columns.MESSAGES, ("store", "file", "offset", *names))
        there = in_order(contents(chosen, marks, messages, found, time), is_prioritized=is_prioritized)
        stood = results.write(there, "contents")
    finally:
        records.unpersist()
    by_holder = results.write(totals(stood), "totals").orderBy(F.desc("messages"), *HOLDER)
    lost, unheaded = {}, []
    for cut in found:
        at_hand = {each.file: each for each in files if each.store == cut.store}
        lines, is_foreign = traces(at_hand, cut.at)
        gone = missing(lines, at_hand, cut.at)
        if is_foreign and (gone or min(at_hand) > 1):
            unheaded.append(posixpath.basename(cut.store))
        elif gone:
            lost[cut.store] = gone
    sums = only_row(by_holder.agg(F.sum("messages"), F.sum("bytes"), F.count("*")))
    damaged = effects.damaged_bytes(whole.read(spark, columns.BATCHES, ("length", "status")))
    moment = f"{time:%Y-%m-%d %H:%M:%S}" if time is not None else f"{offset:,} of db-{file}.log"
    table = head(by_holder, "Contents", f"{_HELD} messages bytes oldest expired in_doubt")
    first = f"{_HELD} message_id broker_in priority is_expired file offset"
    order = in_order(stood, is_prioritized=is_prioritized)
    several = len({each.store for each in files}) > 1
    bars = []
    for store, _, name, subscription, count, *_ in table.rows[:PLOTTED]:
        if isinstance(count, int):
            label = (store if several else None, name, subscription)
            bars.append((" ".join(str(part) for part in label if part), count))
    return Summary(
        "at",
        findings(
            moment,
            sums[0] or 0,
            sums[1] or 0,
            sums[2],
            found,
            lost,
            is_timed=time is not None,
            unheaded=unheaded,
            damaged=damaged,
        ),
        (table, head(order, "First messages", first)),
        (Bars("Messages by destination", "messages", bars),),
        is_clean=not lost and not damaged,
        written=results.written,
        reached=whole.reached,
    )
