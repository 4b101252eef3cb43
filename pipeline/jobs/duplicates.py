"""Messages that were stored twice: the same message id, the same number of a producer, the same body.

    same_id        a producer sent a stored message again, and the audit missed it
    same_sequence  a producer gave one number to messages of different ids
    same_body      different messages of one destination have one body; sent twice by an application, or intended

Only additions count: a message that compaction moved, or that was rewritten with its redeliveries, is not a duplicate.
A message of a transaction exists from its commit. A message in several destinations counts once in each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandemmq.pipeline.columns import ADD_MESSAGE, DESTINATION, MARKS, MESSAGES, NAME, PLACE, RECORDS
from tandemmq.pipeline.engine import F, Window
from tandemmq.pipeline.jobs import effects, gaps
from tandemmq.pipeline.jobs.selection import is_private
from tandemmq.pipeline.jobs.summary import Bars, Summary
from tandemmq.pipeline.jobs.tables import Results, Sources, head
from tandemmq.pipeline.table import size

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SAME_ID: Final = "same_id"
SAME_SEQUENCE: Final = "same_sequence"
SAME_BODY: Final = "same_body"

# Maximum number of places that are listed for a group. A periodic message may have the same body a million times.
LOCATIONS_MAX: Final = 20

MESSAGE_COLUMNS: Final = (
    *(*PLACE, *NAME, "command", "message_id"),
    *("producer_id", "producer_sequence", "body"),
)


def duplicates(messages: DataFrame, not_stored: DataFrame) -> DataFrame:
    """Return a row for each group of two or more messages: store, destination_type, destination, kind, message_id (of
    the first message), producer_id, producer_sequence, copies, ids (number of different ids), body_bytes, locations
    (file and offset of the first copies, in order). ``not_stored``: result of ``effects.not_stored``."""
    added = (
        messages.where((F.col("command") == ADD_MESSAGE) & ~is_private())
        .join(not_stored.select(*PLACE), list(PLACE), "left_anti")
        # A digest replaces the body, so that bodies are not sent between workers.
        .select(
            *DESTINATION,
            "file",
            "offset",
            "message_id",
            "producer_id",
            "producer_sequence",
            F.coalesce(F.length("body"), F.lit(0)).cast("long").alias("body_bytes"),
            F.when(F.length("body") > 0, F.sha2("body", 256)).alias("digest"),
        )
    )
    same_id = _groups(added, SAME_ID, ["message_id"], F.col("copies") > 1)
    same_sequence = _groups(added, SAME_SEQUENCE, ["producer_id", "producer_sequence"], F.col("ids") > 1)
    same_body = _groups(added, SAME_BODY, ["digest"], F.col("ids") > 1)
    return same_id.unionByName(same_sequence).unionByName(same_body)


def _groups(added: DataFrame, kind: str, key: list[str], is_meant: Column) -> DataFrame:
    whole = added.dropna(subset=key)
    group = Window.partitionBy(*DESTINATION, *key).orderBy("file", "offset")
    place = F.when(F.col("number") <= LOCATIONS_MAX, F.struct("file", "offset"))
    first = F.min_by(F.struct("message_id", "producer_id", "producer_sequence"), F.struct("file", "offset"))
    return (
        whole.withColumn("number", F.row_number().over(group))
        .groupBy(*DESTINATION, *(F.col(name).alias(f"_{name}") for name in key))
        .agg(
            first.alias("first"),
            F.count("*").alias("copies"),
            F.countDistinct("message_id").alias("ids"),
            F.max("body_bytes").alias("body_bytes"),
            F.sort_array(F.collect_list(place)).alias("locations"),
        )
        .where(is_meant)
        .select(*DESTINATION, F.lit(kind).alias("kind"), "first.*", "copies", "ids", "body_bytes", "locations")
    )


def by_destination(found: DataFrame) -> DataFrame:
    """Return destination_type, destination, kind, groups, extra (copies beyond the first), extra_bytes, ordered by
    ``extra``."""
    keys = ("destination_type", "destination", "kind")
    return _sums(found, *keys).orderBy(F.desc("extra"), *keys)


def _sums(found: DataFrame, *keys: str) -> DataFrame:
    extra = F.col("copies") - 1
    return found.groupBy(*keys).agg(
        F.count("*").alias("groups"),
        F.sum(extra).alias("extra"),
        F.sum(extra * F.coalesce("body_bytes", F.lit(0))).alias("extra_bytes"),
    )


def run(spark: SparkSession, sources: Sources, out: str) -> Summary:
    """Write ``duplicates`` below ``out``. The summary is not clean if an id or a number was stored twice, or if data is
    missing."""
    sources = sources.fixed(spark)
    messages = sources.read(spark, MESSAGES, MESSAGE_COLUMNS)
    transacted = F.col("transaction").isNotNull() & F.col("command").isin(*effects.TRANSACTED)
    records = sources.read(spark, RECORDS, effects.RECORD_COLUMNS).where(transacted)
    marks = sources.read(spark, MARKS, effects.MARK_COLUMNS)
    left = effects.not_stored(effects.operations(records, marks)).persist()
    results = Results(spark, out)
    try:
        found = results.write(duplicates(messages, left), "duplicates")
        undecided = left.where("is_open").count()
    finally:
        left.unpersist()
    counted = head(
        by_destination(found), "By destination", "destination_type destination kind groups extra extra_bytes"
    )
    worst = head(
        found.orderBy(F.desc("copies"), "store", "destination", "kind", "message_id"),
        "Most copies",
        "store destination kind copies ids message_id producer_id producer_sequence",
    )
    kinds = {kind: tuple(sums) for kind, *sums in _sums(found, "kind").collect()}
    bars = [(f"{row[1]}, {row[2]}", row[4]) for row in counted.rows[:20] if isinstance(row[4], int)]
    left_out = gaps.gaps(spark, sources)
    return Summary(
        "duplicates",
        (*findings(kinds, undecided), *gaps.remarks(left_out, "copies in them are not found")),
        (counted, worst),
        (Bars("Copies beyond the first, by destination", "messages", bars),),
        is_clean=SAME_ID not in kinds and SAME_SEQUENCE not in kinds and left_out.is_certain,
        written=results.written,
        reached=sources.reached,
    )


_SAID: Final = {
    SAME_ID: "message ids were stored more than once in one destination",
    SAME_SEQUENCE: "numbers of producers were given to messages of different ids",
    SAME_BODY: "bodies were stored by several messages of one destination",
}


def findings(kinds: dict[str, tuple[int, int, int]], undecided: int = 0) -> tuple[str, ...]:
    """Return the findings of each kind: (groups, copies beyond the first, their bytes). ``undecided``: messages of
    transactions that have no outcome in the files read."""
    found = [
        f"{kinds[kind][0]:,} {text}: {kinds[kind][1]:,} more than expected, {size(kinds[kind][2])} of bodies."
        for kind, text in _SAID.items()
        if kind in kinds
    ]
    if not found:
        found.append("Nothing was stored twice.")
    if undecided:
        found.append(f"{undecided:,} messages of transactions without an outcome in these files do not count.")
    return tuple(found)
