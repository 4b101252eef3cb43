"""Lifecycle of each message in each queue or durable subscription: when it was stored, and when it was acknowledged.

The record of a message has a time; a message of a transaction exists from its COMMIT. The record of an acknowledgement
has no time: it was written between two known times (jobs.clocks). To make this span shorter, a master of TandemMQ
writes clock marks: after each mark interval, one before the next batch.

    CLOCK 10:00:00.000 | ack      written then: the mark was made with the batch
    ack without a mark            less than the interval after the last mark, or there would be another

The time of a message is the time at which the broker received it. But in this broker's journals it may be a time that
the sender set. So it is used only if it agrees with the marks before and after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandemmq.pipeline import columns
from tandemmq.pipeline.engine import F, Window
from tandemmq.pipeline.jobs import clocks, effects
from tandemmq.pipeline.jobs.effects import Declared, Span, file_of, place

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns of the tables ``records`` and ``acks`` that are read, and the commands of the records. Of ``marks``, those in
# ``effects`` are read.
RECORD_COLUMNS: Final = (*effects.RECORD_COLUMNS, "batch", "epoch")
ACK_COLUMNS: Final = ("store", "file", "offset", "ack_kind")
COMMANDS: Final = (*effects.COMMANDS, columns.CLOCK, columns.REWRITTEN)

# Values of ``state``. Only ACKED messages were consumed.
LIVE: Final = "live"
ACKED: Final = "acked"
EXPIRED: Final = "expired"
POISON: Final = "poison"  # not delivered again; moved to a dead letter queue if the policy has one
REMOVED: Final = (
    "removed"  # by the broker: expired, moved, purged or not delivered again; the record does not state which
)
DELETED: Final = "deleted"  # with its queue or subscription
UNMATCHED_ACK: Final = "unmatched_ack"  # the record that stored the message was deleted or not read
ENDED: Final = (ACKED, EXPIRED, POISON, REMOVED, DELETED)

_ENDING: Final = (columns.REMOVE_DESTINATION, columns.UNSUBSCRIPTION)
_BY_KIND: Final = (EXPIRED, POISON, REMOVED)  # values of acks.ack_kind; all other kinds are of consumers
_UNMATCHED_KIND: Final = "unmatched"
# Usual limit of the time for which a message waits until the previous batch is written.
WAITED_MS_MAX: Final = 1000
# Ids of dead letters of several durable subscriptions (broker.engine.dead_letters).
LETTER_IDS: Final = "^ID:dead-letter-"
# Rounding error of a mark, which has whole milliseconds.
_ROUNDED_MS: Final = 1


def lifecycle(
    records: DataFrame, marks: DataFrame, acks: DataFrame, *, mark_interval_ms: int | None = None
) -> DataFrame:
    """Return a row for each message in each queue or durable subscription:

    ``store, destination_type, destination, subscription, message_id, added_lo, added_hi, ack_lo, ack_hi, add_file,
    ack_file, state``. The message was stored between the first two times, which are equal outside of transactions, and
    was acknowledged or removed between the other two; no ``ack_hi``: there is no later clock. A message that is stored
    again after it was gone has another life.

    A message that a compaction moved has one life, which begins when it was first stored. Parts of a transaction count
    if it was committed. A message that did not match the selector of a subscription has no row for it.

    ``records`` is the result of ``believed``, and is read several times, so ``persist`` it. ``mark_interval_ms``: the
    brokers' ``clock_mark_interval``; None: use the shortest time between two marks in the files of an epoch, because
    the interval is not longer.
    """
    when = moments(records, mark_interval_ms)
    at_effect = when.select(
        "store", F.col("at").alias("effect"), F.col("lo").alias("_lo"), F.col("hi").alias("_hi"), "batch", "is_moved",
        "is_elsewhere", "is_rewritten",
    )  # fmt: skip
    timed = (
        effects.events(records, effects.operations(records, marks), _spans(records))
        .join(at_effect, ["store", "effect"], "left")
        .join(acks.select("store", place().alias("at"), "ack_kind"), ["store", "at"], "left")
    )
    return _with_states(_lives(timed), when)


def believed(records: DataFrame, mark_interval_ms: int | None = None) -> DataFrame:
    """Return ``records`` without the times of messages that contradict the marks: times later than their batch can have
    been written, or more than WAITED_MS_MAX before the last mark. Without marks, all times are kept."""
    shown = F.unix_millis("broker_in")
    least, most = F.unix_millis("_mark.broker_in") - WAITED_MS_MAX, F.unix_millis(_latest())
    is_contradicted = (F.col("command") == columns.ADD_MESSAGE) & ((shown < least) | (shown > F.coalesce(most, shown)))
    return (
        _marked(records, mark_interval_ms)
        .withColumn("broker_in", F.when(~F.coalesce(is_contradicted, F.lit(False)), F.col("broker_in")))
        .select(*records.columns)
    )


def moments(records: DataFrame, mark_interval_ms: int | None = None) -> DataFrame:
    """Return ``store, at, command, batch, lo, hi, is_moved, is_rewritten, is_elsewhere``: the times between which the
    records at those places were written; whether a compaction of this broker wrote them, or one of ActiveMQ (records
    that it forwards are older, and have no ``lo``); and whether their batch moves the same message from one place to
    another: a dead letter, a message whose time came, or one that an operator moved. ``records`` is the result of
    ``believed``."""
    high = F.least("clock_hi", _latest())
    command, destination = F.col("command"), F.col("destination")
    of_message = Window.partitionBy("store", "file", "batch", "message_id")

    def is_elsewhere(other: str) -> Column:
        there = F.when((command == other) & F.col("transaction").isNull(), destination)
        return (F.min(there).over(of_message) != destination) | (F.max(there).over(of_message) != destination)

    carried = F.when(command == columns.REMOVE_MESSAGE, is_elsewhere(columns.ADD_MESSAGE)).when(
        # A message that ActiveMQ moved has the time at which it was received again.
        (command == columns.ADD_MESSAGE) & F.col("epoch").isNotNull(),
        is_elsewhere(columns.REMOVE_MESSAGE) | F.col("message_id").rlike(LETTER_IDS),
    )
    return (
        _marked(clocks.clocked(records), mark_interval_ms)
        .withColumn("is_elsewhere", F.coalesce(carried, F.lit(False)))
        .withColumn(
            "is_moved", F.max(F.col("command") == columns.COPY).over(Window.partitionBy("store", "file", "batch"))
        )
        .withColumn(
            "is_rewritten", F.max(F.col("command") == columns.REWRITTEN).over(Window.partitionBy("store", "file"))
        )
        .where(F.col("command").isin(columns.ADD_MESSAGE, columns.REMOVE_MESSAGE, columns.COMMIT, *_ENDING))
        .select(
            "store",
            place().alias("at"),
            "command",
            "batch",
            F.when(~F.col("is_rewritten"), F.col("clock_lo")).alias("lo"),
            F.when(high.isNotNull(), F.greatest("clock_lo", high)).alias("hi"),
            "is_moved",
            "is_rewritten",
            "is_elsewhere",
        )
    )


def _marked(records: DataFrame, mark_interval_ms: int | None) -> DataFrame:
    """Return the records with ``_mark STRUCT<batch, broker_in>``, the last mark of the file before or at each record,
    and ``_interval``."""
    in_order = Window.partitionBy("store", "file").orderBy("offset").rowsBetween(Window.unboundedPreceding, 0)
    mark = F.when(F.col("command") == columns.CLOCK, F.struct("batch", "broker_in"))
    marked = records.withColumn("_mark", F.last(mark, ignorenulls=True).over(in_order))
    if mark_interval_ms is not None:
        return marked.withColumn("_interval", F.lit(mark_interval_ms))
    return marked.join(F.broadcast(_intervals(records)), ["store", "epoch"], "left")


def _latest() -> Column:
    """Return the latest time at which the record's batch can have been written, by the last mark in its file; null:
    unknown."""
    shown = F.col("_mark.broker_in")
    later = F.timestamp_millis(F.unix_millis(shown) + F.col("_interval") + _ROUNDED_MS)
    return F.when(F.col("_mark.batch") == F.col("batch"), shown).otherwise(later)


def _intervals(records: DataFrame) -> DataFrame:
    """Return store, epoch, and the shortest time in milliseconds between two clock marks of the epoch."""
    in_order = Window.partitionBy("store", "file").orderBy("offset")
    passed = F.unix_millis("broker_in") - F.unix_millis(F.lag("broker_in").over(in_order))
    return (
        records.where(F.col("command") == columns.CLOCK)
        .withColumn("_passed", passed)
        .where(F.col("_passed") > 0)
        .groupBy("store", "epoch")
        .agg(F.min("_passed").alias("_interval"))
    )


def _spans(records: DataFrame) -> list[Span]:
    """Return when queues and subscriptions existed (``effects.spans``). A subscription with an acknowledgement before
    its first record existed before that record: the record may have been moved to a newer file, an older one may not
    have been read, or the record ends the subscription."""
    declarations = effects.declared(records)
    acknowledged = {
        tuple(row[:4]): row[4]
        for row in records.where((F.col("command") == columns.REMOVE_MESSAGE) & F.col("subscription").isNotNull())
        .groupBy(*columns.DESTINATION, "subscription")
        .agg(F.min(place()))
        .collect()
    }
    first: dict[
        tuple[tuple[str, str, str], str | None], Declared
    ] = {}  # subscription None: all subscriptions of a topic
    for declared in declarations:
        first.setdefault((declared.where, declared.subscription), declared)
    begins: set[tuple[object, ...]] = set()
    early: list[Span] = []
    for (store, kind, name, subscription), at in acknowledged.items():
        where = store, kind, name
        known = (first.get((where, subscription)), first.get((where, None)))
        next_one = min((each for each in known if each is not None), key=lambda each: each.at, default=None)
        if next_one is None:
            early.append((*where, subscription, 0, None))
        elif at < next_one.at and next_one.command == columns.SUBSCRIPTION:
            begins.add((*where, subscription, next_one.at))
        elif at < next_one.at:
            early.append((*where, subscription, 0, next_one.at))
    return early + [(*span[:4], 0, span[5]) if span[:5] in begins else span for span in effects.spans(declarations)]


def _lives(timed: DataFrame) -> DataFrame:
    """Return one row for each life: from the event that stores a message to the event that removes it."""
    message = Window.partitionBy(*columns.DESTINATION, "subscription", "begin", "message_id").orderBy(
        "effect", "turn", "at"
    )
    upto = message.rowsBetween(Window.unboundedPreceding, 0)
    command, before = F.col("command"), F.lag("command").over(message)
    is_removal = command == columns.REMOVE_MESSAGE
    begins = ~is_removal & (before.isNull() | (before == columns.REMOVE_MESSAGE))
    # A record in a transaction has the time of its COMMIT. A message that a broker moved to another destination has the
    # time at which it was first sent. Any other message has its own time.
    is_own_time = ~is_removal & (F.col("at") == F.col("effect")) & ~F.coalesce("is_elsewhere", F.lit(False))
    low, high = (F.when(is_own_time, F.coalesce("broker_in", name)).otherwise(F.col(name)) for name in ("_lo", "_hi"))
    low = F.coalesce(low, F.when(~is_removal, F.col("broker_in")))  # a compaction moved its COMMIT at an unknown time
    flags = ("is_moved", "is_rewritten", "is_elsewhere")
    declared = F.struct("effect", "turn", "at", "batch", low.alias("lo"), high.alias("hi"), *flags, "ack_kind")
    return (
        timed.withColumn("_begins", begins)
        .withColumn("_life", F.sum(F.col("_begins").cast("int")).over(upto))
        .withColumn("_said", declared)
        .groupBy(*columns.DESTINATION, "subscription", "begin", "end", "message_id", "_life")
        .agg(
            F.min(F.when(F.col("_begins"), F.col("_said"))).alias("added"),
            F.min(F.when(is_removal, F.col("_said"))).alias("removed"),
        )
    )


def _with_states(lives: DataFrame, when: DataFrame) -> DataFrame:
    ended = when.where(F.col("command").isin(*_ENDING)).select(
        "store", F.col("at").alias("end"), F.col("lo").alias("_end_lo"), F.col("hi").alias("_end_hi")
    )
    is_removed = F.col("removed").isNotNull()
    kind = F.col("removed.ack_kind")
    state = (
        F.when(F.col("added").isNull(), UNMATCHED_ACK)
        .when(kind.isin(*_BY_KIND), kind)
        .when(kind.isNull() & F.col("removed.is_elsewhere"), REMOVED)
        .when(is_removed, ACKED)
        .when(F.col("end").isNotNull(), DELETED)
        .otherwise(LIVE)
    )
    # This broker delivers a message after it is stored, so its consumers acknowledge in a later batch. Acknowledgements
    # of ActiveMQ's consumers may be in the same batch as the message, and have a kind.
    is_at_once = kind.isNull() & (
        (F.col("removed.effect") == F.col("added.effect"))
        | ((F.col("removed.batch") == F.col("added.batch")) & (file_of("removed.effect") == file_of("added.effect")))
    )
    # With a copy, a compaction records the subscriptions that do not have the message.
    is_passed_over = F.col("subscription").isNotNull() & (
        (kind == _UNMATCHED_KIND) | is_at_once | F.col("removed.is_moved")
    )
    gone_lo = F.when(is_removed, F.col("removed.lo")).otherwise(F.col("_end_lo"))
    gone_hi = F.when(is_removed, F.col("removed.hi")).otherwise(F.col("_end_hi"))
    low = F.greatest(gone_lo, "added.lo")
    is_gone = F.col("state").isin(*ENDED, UNMATCHED_ACK)
    return (
        lives.where(F.col("added").isNotNull() | (is_removed & ~F.coalesce("removed.is_rewritten", F.lit(False))))
        .where(~F.coalesce(is_passed_over, F.lit(False)))
        .join(F.broadcast(ended), ["store", "end"], "left")
        .withColumn("state", state)
        .select(
            *columns.DESTINATION,
            "subscription",
            "message_id",
            F.col("added.lo").alias("added_lo"),
            F.col("added.hi").alias("added_hi"),
            F.when(is_gone, low).alias("ack_lo"),
            F.when(is_gone & gone_hi.isNotNull(), F.greatest(low, gone_hi)).alias("ack_hi"),
            file_of("added.at").alias("add_file"),
            F.when(is_removed, file_of("removed.at")).alias("ack_file"),
            "state",
        )
    )
