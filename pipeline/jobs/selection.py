"""Selection of a replay: which messages of journals, or of Parquet made from them, are sent, and why others are not.

A message counts once in its destination, with its newest version: a copy by compaction or an update is not a second
message. A message of a transaction exists from its commit. The order within a destination is that of the journal. A
message of which only a moved copy is left is ordered by the time at which the broker received it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tandemmq.broker.core.names import MQTT_PRIVATE
from tandemmq.broker.core.scheduling.scheduled_message import PENDING
from tandemmq.pipeline import columns
from tandemmq.pipeline.engine import F, Window
from tandemmq.pipeline.jobs.effects import DECLARATIONS, ENDS, TOPICS
from tandemmq.pipeline.sending.request import UNACKNOWLEDGED, ReplayRequest
from tandemmq.pipeline.sending.sends import SENT_KINDS, SENT_TO, destination_of
from tandemmq.store.records.message import SCHEMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Fates of a message.
SEND: Final = "send"
ROLLED_BACK: Final = "rolled_back"
IN_DOUBT: Final = "in_doubt"  # its transaction has no outcome in the files read
SCHEDULED: Final = "scheduled"  # a scheduled message, in the broker's own queue
PRIVATE: Final = "private"  # the broker's own record of MQTT sessions and bridges
ACKNOWLEDGED: Final = "acknowledged"
EXPIRED: Final = "expired"
UNSENDABLE: Final = "unsendable"  # STOMP cannot express it
UNREADABLE: Final = "unreadable"
DAMAGED: Final = "damaged"  # a damaged place of the journal; its content is unknown
MISSING: Final = "missing"  # a missing file of the journal; its content is unknown
WITHOUT_BODY: Final = "without_body"  # the Parquet was made without its body

RECORD_COLUMNS: Final = (*columns.PLACE, "command", *columns.NAME, "transaction", "subscription")
# Commands of the records that are read.
COMMANDS: Final = (*ENDS, *DECLARATIONS)
ACK_COLUMNS: Final = (*columns.PLACE, *columns.NAME, "message_id", "transaction", "subscription")
BATCH_COLUMNS: Final = ("store", "file", "batch", "status")
_COMMITTED, _UNKNOWN, _UNDONE = 2, 1, 0


def selection(
    messages: DataFrame, records: DataFrame | None, acks: DataFrame | None, request: ReplayRequest, now_ms: int
) -> DataFrame:
    """Return a row for each selected message: store, file, offset (of the newest version), destination_type,
    destination, message_id, body_bytes, fate, number. ``number`` counts the messages of a destination that are sent,
    from 1 in their order; null for the others.

    ``records`` and ``acks`` are None for Parquet without them; then no transaction has an outcome. Raises ValueError
    for an invalid name, and for UNACKNOWLEDGED without ``acks``.
    """
    if request.only == UNACKNOWLEDGED and (acks is None or records is None):
        raise ValueError("unacknowledged messages are known from journals, not from Parquet of messages alone")
    found = _messages(_requested(messages, request), records)
    if request.only == UNACKNOWLEDGED:
        assert acks is not None, "checked above"
        assert records is not None, "checked above"
        found = _with_acknowledged(found, records, acks)
    else:
        found = found.withColumn("is_acknowledged", F.lit(False))
    return _numbered(found.withColumn("fate", _fate(request, now_ms)))


def damaged(batches: DataFrame) -> DataFrame:
    """Return store, file, offset, fate of each damaged place. Its content is unknown."""
    return batches.where(F.col("status").isin(columns.BAD_SUM, columns.GAP)).select(
        "store", "file", F.col("batch").alias("offset"), F.lit(DAMAGED).alias("fate")
    )


def _requested(messages: DataFrame, request: ReplayRequest) -> DataFrame:
    taken = F.coalesce("broker_in", "sent")
    if request.destinations:
        named = [destination_of(text) for text in request.destinations]
        is_named = F.lit(False)
        for kind, name in named:
            is_named |= (F.col("destination_type") == SCHEMES[kind]) & (F.col("destination") == name)
        messages = messages.where(is_named)
    if request.since is not None:
        messages = messages.where(taken >= F.lit(request.since))
    if request.until is not None:
        messages = messages.where(taken < F.lit(request.until))
    if request.where is not None:
        messages = messages.where(request.where)
    return messages.select(
        *columns.DESTINATION,
        "file",
        "offset",
        "command",
        "message_id",
        "transaction",
        "body_kind",
        F.unix_millis(taken).alias("taken_ms"),
        F.unix_millis("expires").alias("expires_ms"),
        F.length("body").cast("long").alias("body_bytes"),
    )


def _messages(versions: DataFrame, records: DataFrame | None) -> DataFrame:
    """Return a row for each message: its newest version that counts, whether it counts, and the place where it was
    first stored."""
    is_open = F.col("transaction").isNotNull() & (F.col("command") == columns.ADD_MESSAGE)
    plain = versions.where(~is_open | is_open.isNull()).select(
        *versions.columns, F.lit(_COMMITTED).alias("state"), _place("file", "offset").alias("done")
    )
    settled = plain.unionByName(_settled(versions.where(is_open), records))
    is_add = F.col("command") == columns.ADD_MESSAGE
    newest = F.struct("file", "offset", "body_kind", "taken_ms", "expires_ms", "body_bytes")
    return (
        settled.groupBy(*columns.DESTINATION, "message_id")
        .agg(
            F.max_by(newest, F.struct("state", "file", "offset")).alias("newest"),
            F.max("state").alias("state"),
            F.max(F.when(is_add, _place("file", "offset"))).alias("added"),
            F.max(
                F.when(is_add & (F.col("state") == _COMMITTED), F.struct("done", _place("file", "offset").alias("at")))
            ).alias("taken"),
        )
        .select(*columns.DESTINATION, "message_id", "newest.*", "state", "added", "taken")
    )


def _settled(rows: DataFrame, records: DataFrame | None) -> DataFrame:
    """Return the rows of transactions with ``state``, and with ``done``, the place of the outcome. XA branch ids are
    reused, so the outcome of a row is the first one after it."""
    if records is None:
        return rows.select(*rows.columns, F.lit(_UNKNOWN).alias("state"), _place("file", "offset").alias("done"))
    outcomes = records.where(F.col("command").isin(columns.COMMIT, columns.ROLLBACK)).select(
        F.col("store").alias("_store"),
        F.col("transaction").alias("_transaction"),
        F.struct(F.col("file"), F.col("offset"), F.col("command")).alias("_outcome"),
    )
    is_its_own = (
        (F.col("store") == F.col("_store"))
        & (F.col("transaction") == F.col("_transaction"))
        & (_place("_outcome.file", "_outcome.offset") > _place("file", "offset"))
    )
    first = F.min("_outcome")
    state = F.when(F.col("_first").isNull(), _UNKNOWN).otherwise(
        F.when(F.col("_first.command") == columns.COMMIT, _COMMITTED).otherwise(_UNDONE)
    )
    return (
        rows.join(outcomes, is_its_own, "left")
        .groupBy(*rows.columns)
        .agg(first.alias("_first"))
        .select(*rows.columns, state.alias("state"), _place("_first.file", "_first.offset").alias("done"))
    )


def _place(file: str, offset: str) -> Column:
    return F.struct(F.col(file).alias("file"), F.col(offset).alias("offset"))


def _with_acknowledged(found: DataFrame, records: DataFrame, acks: DataFrame) -> DataFrame:
    """Add ``is_acknowledged``: the message or its destination was removed after its last add. In a topic, each durable
    subscription that still exists and existed when the message was stored must have removed it."""
    without = acks.select(*ACK_COLUMNS).where(F.col("transaction").isNull())
    within = _settled(acks.select(*ACK_COLUMNS).where(F.col("transaction").isNotNull()), records)
    removes = (
        without.unionByName(within.where(F.col("state") == _COMMITTED).select(*ACK_COLUMNS))
        .groupBy(*columns.DESTINATION, "message_id")
        .agg(F.max(_place("file", "offset")).alias("_removed"), F.collect_set("subscription").alias("_by"))
    )
    dropped = (
        records.where(F.col("command") == columns.REMOVE_DESTINATION)
        .groupBy(*columns.DESTINATION)
        .agg(F.max(_place("file", "offset")).alias("_dropped"))
    )
    added = F.coalesce("added", _place("file", "offset"))
    is_removed = (F.col("_removed") > added) | (F.col("added").isNull() & F.col("_removed").isNotNull())
    # A subscription that was made after the message (or its COMMIT) does not get it. A message that a compaction moved
    # is held by all subscriptions that existed at that time, except those for which a removal is written next to the
    # copy. Records of subscriptions may have been moved, too.
    here = _place("file", "offset")
    held = F.when(F.col("taken.done") > here, F.col("taken.done")).otherwise(here)
    waits = F.exists(
        "_subscriptions",
        lambda each: (
            (each.getField("since") < held)
            & ~F.coalesce(F.array_contains("_by", each.getField("subscription")), F.lit(False))
        ),
    )
    is_taken = F.when(F.col("destination_type").isin(*TOPICS), ~F.coalesce(waits, F.lit(False))).otherwise(
        F.coalesce(is_removed, F.lit(False))
    )
    return (
        found.join(removes, [*columns.DESTINATION, "message_id"], "left")
        .join(F.broadcast(dropped), list(columns.DESTINATION), "left")
        .join(F.broadcast(_subscriptions(records)), list(columns.DESTINATION), "left")
        .withColumn("is_acknowledged", is_taken | F.coalesce(F.col("_dropped") > added, F.lit(False)))
        .drop("_removed", "_by", "_dropped", "_subscriptions")
    )


def _subscriptions(records: DataFrame) -> DataFrame:
    """Return store, destination_type, destination, _subscriptions: the existing subscriptions, each with the place
    where it began. A subscription that was deleted and made again does not get earlier messages."""
    ends = records.where(F.col("command").isin(columns.UNSUBSCRIPTION, columns.REMOVE_DESTINATION)).select(
        *(F.col(name).alias(f"_{name}") for name in columns.DESTINATION),
        F.col("subscription").alias("_ended"),
        _place("file", "offset").alias("_end"),
    )
    is_ended = F.col("_end") > _place("file", "offset")
    is_ended &= F.col("_ended").isNull() | (F.col("_ended") == F.col("subscription"))
    for name in columns.DESTINATION:
        is_ended &= F.col(f"_{name}") == F.col(name)
    return (
        records.where(F.col("command") == columns.SUBSCRIPTION)
        .join(F.broadcast(ends), is_ended, "left")
        .where(F.col("_end").isNull())
        .groupBy(*columns.DESTINATION, "subscription")
        .agg(F.min(_place("file", "offset")).alias("since"))
        .groupBy(*columns.DESTINATION)
        .agg(F.collect_list(F.struct("subscription", "since")).alias("_subscriptions"))
    )


def is_private() -> Column:
    """Return whether a destination is private to the broker (broker.core.names.is_private)."""
    return F.coalesce(F.col("destination").rlike(f"^{MQTT_PRIVATE.replace('.', '[.]')}"), F.lit(False))


def _fate(request: ReplayRequest, now_ms: int) -> Column:
    fates: Sequence[tuple[Column, str]] = (
        (F.col("destination") == PENDING.name, SCHEDULED),
        (is_private(), PRIVATE),
        (F.col("state") == _UNDONE, ROLLED_BACK),
        (F.col("state") == _UNKNOWN, IN_DOUBT),
        (F.col("is_acknowledged"), ACKNOWLEDGED),
        (F.col("body_kind").isNull(), UNREADABLE),
        (~F.col("destination_type").isin(*SENT_TO) | ~F.col("body_kind").isin(*SENT_KINDS), UNSENDABLE),
        (F.lit(not request.is_expired_sent) & (F.col("expires_ms") <= now_ms), EXPIRED),
        (F.col("body_bytes").isNull(), WITHOUT_BODY),
    )
    fate = F.lit(SEND)
    for condition, name in reversed(fates):
        fate = F.when(condition, name).otherwise(fate)
    return fate


def _numbered(found: DataFrame) -> DataFrame:
    here = F.struct(_place("file", "offset").alias("done"), _place("file", "offset").alias("at"))
    placed = found.withColumn("place", F.coalesce("taken", here))
    before = (
        Window.partitionBy(*columns.DESTINATION)
        .orderBy("place")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    # The order uses a clock that never goes back, although the clock of a master may have.
    reached = F.max(F.when(F.col("taken").isNotNull(), F.col("taken_ms"))).over(before)
    clock = F.coalesce(F.when(F.col("taken").isNotNull(), reached), "taken_ms", F.lit(0))
    is_sent = F.col("fate") == SEND
    in_order = Window.partitionBy("destination_type", "destination", is_sent).orderBy("clock", "place", "store")
    number = F.when(is_sent, F.row_number().over(in_order)).cast("long").alias("number")
    kept = (*columns.DESTINATION, "file", "offset", "message_id", "body_bytes", "fate")
    return placed.withColumn("clock", clock).select(*kept, number)
