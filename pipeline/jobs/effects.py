"""Effects of a journal's records on messages, as tables, by the rules of the broker's replay (store.state.replay).

    a record of a transaction takes effect at its COMMIT, and never after a ROLLBACK
    an ADD_MESSAGE with a message id that the queue or subscription already holds does not count
    a COPY and an UPDATE_MESSAGE move a message to another place, or store it if it is not known
    a topic's message is held by each durable subscription that exists when it takes effect
    a REMOVE_DESTINATION, and an UNSUBSCRIPTION, remove all messages held

Brokers do not write UPDATE_MESSAGE for topics; if there is one, it is treated as a COPY.

A *place* is a file number and an offset in one number: file << 32 | offset. No window spans more than one transaction,
or one message of one queue or subscription.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tandemmq.pipeline import columns
from tandemmq.pipeline.engine import F, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

# Columns of the tables ``records`` and ``marks`` that are read.
RECORD_COLUMNS: Final = (
    *(*columns.PLACE, "length", "command", *columns.NAME),
    *("message_id", "transaction", "subscription", "broker_in"),
)
MARK_COLUMNS: Final = ("store", "file", "offset", "command", "text", "moved_from_file")
TOPICS: Final = ("topic", "temp-topic")

DECLARATIONS: Final = (columns.SUBSCRIPTION, columns.UNSUBSCRIPTION, columns.REMOVE_DESTINATION)
ENDS: Final = (columns.COMMIT, columns.ROLLBACK)
_PARTS: Final = (columns.ADD_MESSAGE, columns.REMOVE_MESSAGE, columns.PREPARE)  # of transactions
# Commands of transactions: their parts and their ends.
TRANSACTED: Final = (*_PARTS, *ENDS)
# Commands to keep when a job caches the records for several passes.
COMMANDS: Final = (*_PARTS, *ENDS, columns.COPY, columns.UPDATE_MESSAGE, *DECLARATIONS)
_SPANS: Final = (
    "`store` STRING, `destination_type` STRING, `destination` STRING, `subscription` STRING, "
    "`begin` BIGINT, `end` BIGINT"
)


def place() -> Column:
    """Return the place of a record as one number; places have the order of the journal."""
    return F.shiftleft(F.col("file").cast("long"), 32).bitwiseOR(F.col("offset"))


def file_of(at: str | Column) -> Column:
    """Return the file number of a place."""
    return F.shiftright(at, 32).cast("int")


# ---- transactions


def operations(records: DataFrame, marks: DataFrame) -> DataFrame:
    """Return the parts of transactions: their adds, removes and PREPAREs, with the columns of ``records`` and

    ``at``: its place. ``ended``, ``end_command``: place and command of the COMMIT or ROLLBACK that ends its
    transaction; null: the transaction is open. ``turn``: its position in the transaction. ``replaced``: the place to
    which a compaction moved it, or the place of a later PREPARE; null for records that count.
    """
    is_part = F.col("command").isin(*_PARTS)
    moved = marks.where(F.col("moved_from_file").isNotNull() & (F.col("command") != columns.COPY))
    own = records.where(F.col("transaction").isNotNull() & (is_part | F.col("command").isin(*ENDS)))
    behind = Window.partitionBy("store", "transaction").orderBy(F.desc("at")).rowsBetween(Window.unboundedPreceding, -1)
    end = F.when(F.col("command").isin(*ENDS), F.struct("at", "command"))
    same = Window.partitionBy(
        "store", "transaction", "ended", "command", "destination_type", "destination", "subscription", "message_id"
    ).orderBy("at")
    moved = moved.select("store", "file", "offset", F.lit(True).alias("is_moved"))
    replaces = F.coalesce("is_moved", F.lit(False)) | (F.col("command") == columns.PREPARE)
    return (
        own.withColumn("at", place())
        .withColumn("_end", F.last(end, ignorenulls=True).over(behind))
        .where(is_part)
        .withColumn("ended", F.col("_end.at"))
        .withColumn("end_command", F.col("_end.command"))
        .join(moved, ["store", "file", "offset"], "left")
        .withColumn("_replaces", replaces)
        .withColumn("turn", F.min("at").over(same.rowsBetween(Window.unboundedPreceding, 0)))
        .withColumn("replaced", F.when(F.lead("_replaces").over(same), F.lead("at").over(same)))
        .drop("_end", "is_moved", "_replaces")
    )


def not_stored(transacted: DataFrame) -> DataFrame:
    """Return store, file, offset, is_open of those ADD_MESSAGEs in ``operations`` that do not store a message at their
    place: their transaction was rolled back or has no outcome here (``is_open``), or a compaction moved them."""
    is_stored = (F.col("end_command") == columns.COMMIT) & F.col("replaced").isNull()
    return transacted.where((F.col("command") == columns.ADD_MESSAGE) & ~F.coalesce(is_stored, F.lit(False))).select(
        "store", "file", "offset", (F.col("ended").isNull() & F.col("replaced").isNull()).alias("is_open")
    )


# ---- queues and subscriptions


@dataclass(frozen=True, slots=True)
class Declared:
    """A SUBSCRIPTION, UNSUBSCRIPTION or REMOVE_DESTINATION at place ``at``."""

    store: str
    at: int
    command: str
    destination_type: str
    destination: str
    subscription: str | None

    @property
    def where(self) -> tuple[str, str, str]:
        return self.store, self.destination_type, self.destination

    @property
    def is_topic(self) -> bool:
        return self.destination_type in TOPICS


def declared(records: DataFrame) -> list[Declared]:
    """Return the declarations in ``records``, in order; there are few for each subscription and destination. Reads the
    records."""
    names = ("store", "at", "command", "destination_type", "destination", "subscription")
    found = records.where(F.col("command").isin(*DECLARATIONS)).withColumn("at", place()).select(*names)
    return [Declared(*row) for row in found.orderBy("store", "at").collect()]


Span = tuple[str, str, str, str | None, int, int | None]  # the columns of _SPANS


def spans(declarations: Iterable[Declared]) -> list[Span]:
    """Return when queues and subscriptions existed: (store, type, destination, subscription, begin, end). ``end`` None:
    it still exists.

    Only removed queues are included, from the beginning of the journal; all others are taken to exist always.
    """
    found: list[Span] = []
    began: dict[tuple[str, str, str], dict[str | None, int]] = {}
    for declaration in declarations:
        where = declaration.where
        there = began.setdefault(where, {} if declaration.is_topic else {None: 0})
        if declaration.command == columns.SUBSCRIPTION:
            there.setdefault(declaration.subscription, declaration.at)
            continue
        ending = (
            set(there) if declaration.command == columns.REMOVE_DESTINATION else {declaration.subscription} & set(there)
        )
        found += [(*where, subscription, there.pop(subscription), declaration.at) for subscription in ending]
        if not declaration.is_topic:
            there[None] = declaration.at
    return found + [(*where, *each, None) for where, there in began.items() for each in there.items()]


# ---- messages


def events(records: DataFrame, transacted: DataFrame, spans: Iterable[Span]) -> DataFrame:
    """Return a row for each message that is stored, moved or removed, and each queue or subscription concerned:

    ``store, destination_type, destination, subscription, begin, end`` (as in ``spans``; null: always), ``message_id,
    command, effect`` (the place where it took effect), ``turn`` (its order there), ``at, length, broker_in`` of the
    record. ``transacted`` is the result of ``operations``.
    """
    is_alone = F.col("transaction").isNull() & F.col("command").isin(columns.ADD_MESSAGE, columns.REMOVE_MESSAGE)
    plain = records.where(is_alone | F.col("command").isin(columns.COPY, columns.UPDATE_MESSAGE)).withColumn(
        "at", place()
    )
    plain = plain.withColumns({"effect": F.col("at"), "turn": F.col("at")})
    committed = transacted.where(
        (F.col("end_command") == columns.COMMIT) & F.col("replaced").isNull() & (F.col("command") != columns.PREPARE)
    ).withColumn("effect", F.col("ended"))
    own = ("message_id", "command", "effect", "turn", "at", "length", "broker_in")
    kept = (*columns.DESTINATION, "subscription", *own)
    all_of_them = plain.select(*kept).unionByName(committed.select(*kept))
    known = F.broadcast(records.sparkSession.createDataFrame(list(spans), _SPANS).alias("span"))
    within = (F.col("effect") > F.col("span.begin")) & (F.col("effect") < F.coalesce("span.end", F.lit((1 << 63) - 1)))
    for name in columns.DESTINATION:
        within = within & (F.col(f"event.{name}") == F.col(f"span.{name}"))
    declaration = all_of_them.alias("event")
    is_topic = F.col("event.destination_type").isin(*TOPICS)
    is_store = F.col("command") != columns.REMOVE_MESSAGE
    of_queues = declaration.where(~is_topic & (is_store | F.col("event.subscription").isNull())).join(
        known, within & F.col("span.subscription").isNull(), "left"
    )
    of_topics = declaration.where(is_topic).join(
        known,
        within
        & F.col("span.subscription").isNotNull()
        & (is_store | (F.col("event.subscription") == F.col("span.subscription"))),
    )
    chosen = (*(f"event.{name}" for name in columns.DESTINATION), "span.subscription", "span.begin", "span.end", *own)
    return of_queues.select(*chosen).unionByName(of_topics.select(*chosen))


def histories(events: DataFrame) -> DataFrame:
    """Return ``events`` with the change that each made:

    ``was_held``, ``is_held``: the message existed before, after the event. ``stood STRUCT<at, length, broker_in>``: its
    record before the event; ``stands``: its record after the event. ``since STRUCT<effect, turn>``: the event that
    first stored it, which gives its position in the order. ``next``: the place where its next event takes effect.
    """
    message = Window.partitionBy(*columns.DESTINATION, "subscription", "begin", "message_id").orderBy(
        "effect", "turn", "at"
    )
    before = message.rowsBetween(Window.unboundedPreceding, -1)
    upto = message.rowsBetween(Window.unboundedPreceding, 0)
    command = F.col("command")
    was_held = F.coalesce(F.lag("command").over(message) != columns.REMOVE_MESSAGE, F.lit(False))
    stores = command.isin(columns.COPY, columns.UPDATE_MESSAGE) | (
        (command == columns.ADD_MESSAGE) & ~F.col("was_held")
    )
    here = F.when(F.col("_stores"), F.struct("at", "length", "broker_in"))
    appears = F.when(F.col("_stores") & ~F.col("was_held"), F.struct("effect", "turn"))
    return (
        events.withColumn("was_held", was_held)
        .withColumn("_stores", stores)
        .withColumn("stood", F.last(here, ignorenulls=True).over(before))
        .withColumn("stands", F.last(here, ignorenulls=True).over(upto))
        .withColumn("since", F.last(appears, ignorenulls=True).over(upto))
        .withColumn("is_held", command != columns.REMOVE_MESSAGE)
        .withColumn("next", F.lead("effect").over(message))
        .drop("_stores")
    )


def live(histories: DataFrame) -> DataFrame:
    """Return from ``histories`` the last event of each message that exists at the end."""
    return histories.where(F.col("is_held") & F.col("next").isNull() & F.col("end").isNull())


def texts(marks: DataFrame, *commands: str) -> list[Row]:
    """Return (store, file, offset, text) of the traces with these commands, in order. Reads the marks."""
    found = marks.where(F.col("command").isin(*commands) & F.col("text").isNotNull())
    rows: list[Row] = found.select("store", "file", "offset", "text").orderBy("store", "file", "offset").collect()
    return rows


def damaged_bytes(batches: DataFrame) -> int:
    """Return the number of damaged bytes whose batches were confirmed to clients. Reads the batches."""
    row = batches.where(F.col("status").isin(columns.BAD_SUM, columns.GAP)).agg(F.sum("length")).first()
    return (row[0] or 0) if row is not None else 0
