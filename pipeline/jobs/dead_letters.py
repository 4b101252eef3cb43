"""Dead letters: their origin, their cause, and groups of similar causes.

A dead letter is recognized by the property with its cause, or by the name of its queue. Causes that differ only in
numbers, ids and addresses have the same fingerprint: the first characters of the SHA-256 of the cause without these
parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tandemmq.pipeline.columns import ADD_MESSAGE, COMMIT, COPY, MARKS, MESSAGES, NAME, PLACE, RECORDS
from tandemmq.pipeline.engine import F, Window
from tandemmq.pipeline.jobs import effects, gaps, lifecycle
from tandemmq.pipeline.jobs.summary import Bars, Summary
from tandemmq.pipeline.jobs.tables import Results, Sources, head, only_row

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CAUSE_PROPERTY: Final = "dlqDeliveryFailureCause"
# ActiveMQ.DLQ, DLQ.orders, ActiveMQ.DLQ.Queue.orders
NAMES: Final = r"^(ActiveMQ\.)?DLQ(\..+)?$"
NO_CAUSE: Final = "no cause was written"
FINGERPRINT_CHARS: Final = 12
# End of a sentence about the effect of gaps in the journal.
UNCERTAIN: Final = "dead letters in them are not listed, and some listed letters may no longer exist"

# Replaced in this order, because an id may contain addresses, and both contain numbers.
_VARYING: Final = (
    (r"ID:[^\s,\])}]+", "ID"),
    (r"(?i)\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"(?i)\b0x[0-9a-f]+\b", "HEX"),
    (r"@[0-9a-f]{5,16}\b", "@HEX"),
    (r"[0-9]+", "N"),
)

MESSAGE_COLUMNS: Final = (
    *(*PLACE, *NAME, "command", "message_id"),
    *("original_destination", "broker_in", "redeliveries", "properties"),
)
_LETTER: Final = (
    "store dlq message_id original_destination cause fingerprint pattern redeliveries died "
    "died_error_ms is_there file offset"
)
_QUEUE: Final = ("store", "destination_type", "destination")


def dead_letters(messages: DataFrame, records: DataFrame, marks: DataFrame, names: str = NAMES) -> DataFrame:
    """Return store, dlq, message_id, original_destination, cause, fingerprint, pattern (the cause without variable
    parts), redeliveries, died (when its queue took it; null: not known), died_error_ms (error bound of died, either
    way; null: not known), is_there (it was not taken out since, and its queue exists), file, offset.

    ``records``, as ``lifecycle`` has them, and ``marks`` are those of the same files; the records are read several
    times. ``names`` is a regular expression for the names of such queues.
    """
    cause = F.element_at("properties", CAUSE_PROPERTY)
    is_letter = F.col("destination").rlike(names) | cause.isNotNull()
    # The first record of each letter: the record that stored it, or if that was deleted with its file, a copy.
    transacted = effects.operations(records, marks)
    left = effects.not_stored(transacted).select(*PLACE)
    stored = messages.where(F.col("command").isin(ADD_MESSAGE, COPY) & is_letter).join(left, list(PLACE), "left_anti")
    same = Window.partitionBy(*_QUEUE, "message_id").orderBy("file", "offset")
    letters = stored.withColumn("_number", F.row_number().over(same)).where(F.col("_number") == 1).drop("_number")
    letters = _with_times(letters, records, transacted)
    there = _there(letters, records, marks).withColumn("_is_there", F.lit(True))
    found = letters.join(there, [*_QUEUE, "message_id"], "left").withColumns(
        {
            "cause": F.coalesce(cause, F.lit(NO_CAUSE)),
            "pattern": _pattern(F.coalesce(cause, F.lit(NO_CAUSE))),
            "is_there": F.col("_is_there").isNotNull(),
        }
    )
    fingerprint = F.substring(F.sha2("pattern", 256), 1, FINGERPRINT_CHARS)
    named = found.withColumn("fingerprint", fingerprint).withColumnsRenamed({"destination": "dlq"})
    return named.select(*_LETTER.split())


def _with_times(letters: DataFrame, records: DataFrame, transacted: DataFrame) -> DataFrame:
    """Add ``died`` and ``died_error_ms``. A letter of this broker has only the time at which its message was sent; it
    was stored between two clocks (lifecycle.moments), or if it moved between stores, at a COMMIT. A letter of ActiveMQ
    has the time at which its queue received it. If only a copy of a letter is left after a compaction, the time is
    unknown."""
    is_add = F.col("command") == ADD_MESSAGE
    committed = transacted.where(is_add & F.col("epoch").isNotNull()).select("store", "at", "ended")
    carried = lifecycle.moments(lifecycle.believed(records)).where(
        (is_add & F.col("is_elsewhere")) | (F.col("command") == COMMIT)
    )
    between = carried.select("store", "at", F.unix_millis("lo").alias("_lo"), F.unix_millis("hi").alias("_hi"))
    middle = F.timestamp_millis(F.floor((F.col("_lo") + F.coalesce("_hi", "_lo")) / 2).cast("long"))
    error = F.ceil((F.col("_hi") - F.col("_lo")) / 2).cast("long")
    is_carried = F.col("_lo").isNotNull()
    return (
        letters.withColumn("at", effects.place())
        .join(committed, ["store", "at"], "left")
        .withColumn("at", F.coalesce("ended", "at"))
        .join(between, ["store", "at"], "left")
        .withColumn("died", F.when(is_add, F.when(is_carried, middle).otherwise(F.col("broker_in"))))
        .withColumn("died_error_ms", F.when(is_add, F.when(is_carried, error).otherwise(F.lit(0).cast("long"))))
        .drop("at", "ended", "_lo", "_hi")
    )


def _there(letters: DataFrame, records: DataFrame, marks: DataFrame) -> DataFrame:
    """Return the messages that are in the queues of the letters at the end: store, type, destination, id."""
    queues = F.broadcast(letters.select(*_QUEUE).distinct())
    of_queues = records.join(queues, list(_QUEUE), "left_semi")
    # Records that end a transaction have no destination.
    chosen = of_queues.unionByName(records.where(F.col("destination").isNull()).select(*of_queues.columns))
    events = effects.events(chosen, effects.operations(chosen, marks), effects.spans(effects.declared(chosen)))
    return effects.live(effects.histories(events)).select(*_QUEUE, "message_id").distinct()


def _pattern(cause: Column) -> Column:
    for varying, word in _VARYING:
        cause = F.regexp_replace(cause, varying, word)
    return F.trim(cause)


def by_cause(letters: DataFrame) -> DataFrame:
    """Return fingerprint, pattern, letters, there, destinations, first, last, ordered by the number of letters."""
    return _counted(
        letters,
        ("fingerprint", "pattern"),
        F.countDistinct("original_destination").alias("destinations"),
        F.min("died").alias("first"),
        F.max("died").alias("last"),
    )


def by_destination(letters: DataFrame) -> DataFrame:
    """Return original_destination, dlq, letters, there, causes, ordered by the number of letters."""
    return _counted(letters, ("original_destination", "dlq"), F.countDistinct("fingerprint").alias("causes"))


def _counted(letters: DataFrame, keys: tuple[str, ...], *others: Column) -> DataFrame:
    counts = (F.count("*").alias("letters"), F.count_if("is_there").alias("there"))
    return letters.groupBy(*keys).agg(*counts, *others).orderBy(F.desc("letters"), *keys)


def run(spark: SparkSession, sources: Sources, out: str) -> Summary:
    """Write ``dead_letters`` below ``out``. The summary is not clean if there are letters, or if data is missing."""
    sources = sources.fixed(spark)
    read = sources.read(spark, RECORDS, lifecycle.RECORD_COLUMNS)
    records = read.where(F.col("command").isin(*lifecycle.COMMANDS)).persist()
    marks = sources.read(spark, MARKS, effects.MARK_COLUMNS)
    results = Results(spark, out)
    try:
        found = dead_letters(sources.read(spark, MESSAGES, MESSAGE_COLUMNS), records, marks)
        letters = results.write(found, "dead_letters")
    finally:
        records.unpersist()
    causes = head(by_cause(letters), "Causes", "fingerprint pattern letters there destinations first last")
    origins = head(by_destination(letters), "Original destinations", "original_destination dlq letters there causes")
    counted = only_row(letters.agg(F.count("*"), F.count_if("is_there"), F.countDistinct("fingerprint")))
    most = [(str(row[1]), row[2]) for row in causes.rows if isinstance(row[2], int)]
    bars = [(str(row[0] or row[1]), row[2]) for row in origins.rows[:20] if isinstance(row[2], int)]
    left_out = gaps.gaps(spark, sources)
    return Summary(
        "dlq",
        (*findings(counted[0], counted[1], counted[2], most), *gaps.remarks(left_out, UNCERTAIN)),
        (causes, origins),
        (Bars("Dead letters by original destination", "letters", bars),),
        is_clean=counted[1] == 0 and left_out.is_certain,
        written=results.written,
        reached=sources.reached,
    )


def findings(letters: int, there: int, causes: int, most: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Return the findings. ``most``: the causes with their numbers of letters, the most frequent first."""
    if not letters:
        return ("There are no dead letters.",)
    pattern, count = most[0]
    return (
        f"{letters:,} dead letters of {causes:,} causes; {there:,} are still there.",
        f"The most frequent cause, of {count:,}: {pattern}",
    )
