"""Time span of each record: between the last time shown before it and the first time shown after it in the journal.

Only two kinds of records show when they were written. A stored message has the time at which the broker received it,
and a CLOCK has the time at which its batch was made. A COPY only has the old time of the message that it moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandemmq.pipeline.columns import ADD_MESSAGE, CLOCK
from tandemmq.pipeline.engine import F, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns that ``clocked`` requires; the records may have other columns of their table.
COLUMNS: Final = ("store", "file", "offset", "command", "transaction", "broker_in")

_CARRIED: Final = "`store` STRING, `file` INT, `_before` BIGINT, `_behind` BIGINT"


def shown() -> Column:
    """Return the time that a record itself shows; null for most records."""
    return F.when(F.col("command").isin(CLOCK, ADD_MESSAGE), F.col("broker_in"))


def clocked(records: DataFrame) -> DataFrame:
    """Return ``records`` with two more columns. ``clock_lo TIMESTAMP``: the greatest time shown at or before the
    record. ``clock_hi TIMESTAMP``: the first time shown after it. Both are of the same store and may be in other files.
    The record was written between the two. Null: no such time is shown.

    The times never decrease: if a later clock shows an earlier time, for example of another master, the former time is
    used until the clock has reached it. A message of a transaction was received before it was written, so it is no
    upper bound for records before it.

    One call reads the records once to find the first and last time of each file. No window spans two files.
    """
    in_order = Window.partitionBy("store", "file").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    # The order is reversed, because a window from each row to the end would be computed again for each row.
    turned = Window.partitionBy("store", "file").orderBy(F.desc("offset")).rowsBetween(Window.unboundedPreceding, -1)
    marked = records.withColumn("_shown", F.unix_micros(shown())).withColumn("_past", F.max("_shown").over(in_order))
    is_bound = F.col("transaction").isNull() & (F.col("_shown") >= F.coalesce("_past", "_shown"))
    behind = F.last(F.when(is_bound, F.col("_shown")), ignorenulls=True).over(turned)
    low = F.greatest("_before", "_past", "_shown")
    return (
        marked.withColumn("_next", behind)
        .join(F.broadcast(_carried(records)), ["store", "file"])
        .withColumn("clock_lo", F.timestamp_micros(low))
        .withColumn("clock_hi", F.timestamp_micros(_not_before(low, F.coalesce("_next", "_behind"))))
        .select(*records.columns, "clock_lo", "clock_hi")
    )


def _not_before(low: Column, high: Column) -> Column:
    return F.when(high.isNotNull(), F.greatest(low, high))


def _carried(records: DataFrame) -> DataFrame:
    """Return store, file, the greatest time before the file, and the first time after it, in microseconds."""
    time = F.unix_micros(shown())
    bound = F.when(F.col("transaction").isNull(), time)
    rows = (
        records.groupBy("store", "file")
        .agg(F.max(time).alias("last"), F.min_by(bound, F.when(bound.isNotNull(), F.col("offset"))).alias("first"))
        .orderBy("store", "file")
        .collect()
    )
    before = _carry([(row.store, row.file, row.last) for row in rows])
    behind = _carry([(row.store, row.file, row.first) for row in reversed(rows)], is_greatest_kept=False)
    carried = [(row.store, row.file, before[row.store, row.file], behind[row.store, row.file]) for row in rows]
    return records.sparkSession.createDataFrame(carried, _CARRIED)


Carried = dict[tuple[str, int], int | None]


def _carry(files: list[tuple[str, int, int | None]], *, is_greatest_kept: bool = True) -> Carried:
    """Return for each file the greatest value of the files before it in the list, or the nearest one."""
    carried: Carried = {}
    kept: dict[str, int] = {}
    for store, file, value in files:
        carried[store, file] = kept.get(store)
        if value is not None:
            kept[store] = max(kept.get(store, value), value) if is_greatest_kept else value
    return carried
