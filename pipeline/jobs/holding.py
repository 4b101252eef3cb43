"""Reasons why the files of a journal are kept: counted for each file in Spark, and evaluated by the code of the broker
(store.tools.why).

Only the journal is read, as ``store why`` does without an index. A file whose records change the meaning of other
records is never reported as releasable. Only an index can show that a record in the file was moved or removed for a
subscription whose older record was deleted. Without the index, such a file is kept longer than necessary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tandemmq.pipeline.columns import COPY, HEADER, MARK, PREPARE, REMOVE_MESSAGE, SUBSCRIPTION, UPDATE_MESSAGE
from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs import effects
from tandemmq.pipeline.walk import JournalFile
from tandemmq.store.damage.report import decode_lost
from tandemmq.store.records.commands import (
    encode_remove_destination,
    encode_subscription,
    encode_trace,
    encode_unsubscribe,
)
from tandemmq.store.records.headers import EpochHistory, decode_header, read_epoch_history
from tandemmq.store.records.marks import decode_gone
from tandemmq.store.records.message import SCHEMES, Destination
from tandemmq.store.state.replay import Replay
from tandemmq.store.state.state import State
from tandemmq.store.tools.why.facts import Facts, FileFacts, OwnerFacts, TransactionFacts, facts_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Values of ``Counted.kind``.
MESSAGE: Final = "message"  # live messages of an owner in a file
ACKS_OF: Final = "acks_of"  # records of a file that removed or moved messages in ``ref_file``
TRANSACTION: Final = "transaction"  # operations of an open transaction in a file
PREPARED: Final = "prepared"  # the PREPARE of an open transaction
LIVE_BYTES: Final = "live_bytes"  # bytes of a topic's live messages, each counted once

KINDS = {scheme: kind for kind, scheme in SCHEMES.items()}

_OWNER: Final = ("destination_type", "destination", "subscription")


class Counted(NamedTuple):
    """A row of ``counted``, with its columns in order. ``oldest`` is in microseconds since 1970."""

    kind: str
    store: str
    file: int
    ref_file: int | None
    destination_type: str | None
    destination: str | None
    subscription: str | None
    transaction: str | None
    items: int
    bytes: int | None
    oldest: int | None


def counted(transacted: DataFrame, histories: DataFrame) -> DataFrame:
    """Return rows (see Counted) about each file, and about each pair of files where one removed messages in the other.
    The number of rows depends on the numbers of files, pairs and destinations, not of messages."""
    within = transacted.withColumn("_file", F.col("file"))
    open_ones = within.where(F.col("ended").isNull() & F.col("replaced").isNull()).select(
        F.when(F.col("command") == PREPARE, PREPARED).otherwise(TRANSACTION).alias("kind"),
        *("store", "file", "transaction"),
    )
    ended_at = F.coalesce("replaced", "ended")
    over = within.where(ended_at.isNotNull() & (effects.file_of(ended_at) != F.col("file"))).select(
        F.lit(ACKS_OF).alias("kind"),
        "store",
        effects.file_of(ended_at).alias("file"),
        F.col("_file").alias("ref_file"),
        "transaction",
    )
    rows = _of_messages(histories).unionByName(open_ones, True).unionByName(over, True)
    return (
        rows.unionByName(_topics_once(histories), True)
        .groupBy("kind", "store", "file", "ref_file", *_OWNER, "transaction")
        .agg(F.count("*").alias("items"), F.sum("length").alias("bytes"), F.min("time").alias("oldest"))
    )


def _of_messages(histories: DataFrame) -> DataFrame:
    """Return a row for each existing message, and for each message that a record in another file removed or moved."""
    is_last = F.col("is_held") & F.col("next").isNull()
    command, own = F.col("command"), effects.file_of("at")
    removals = F.col("was_held") & command.isin(COPY, UPDATE_MESSAGE, REMOVE_MESSAGE)

    def row(kind: str, file: str, ref: str | None) -> tuple[object, ...]:
        is_message = kind == MESSAGE
        return (
            F.lit(kind).alias("kind"),
            effects.file_of(file).alias("file"),
            (F.lit(None).cast("int") if ref is None else effects.file_of(ref)).alias("ref_file"),
            (F.col("stands.length") if is_message else F.lit(None)).cast("long").alias("length"),
            (F.unix_micros("stands.broker_in") if is_message else F.lit(None)).cast("long").alias("time"),
        )

    declaration = F.array(
        F.when(is_last & F.col("end").isNull(), F.struct(*row(MESSAGE, "stands.at", None))),
        F.when(
            removals & (effects.file_of("effect") != effects.file_of("stood.at")),
            F.struct(*row(ACKS_OF, "effect", "stood.at")),
        ),
        # A remove record whose COMMIT is in a later file: without this record, the COMMIT has no effect.
        F.when(
            removals
            & (command == REMOVE_MESSAGE)
            & (own != effects.file_of("effect"))
            & (own > effects.file_of("stood.at")),
            F.struct(*row(ACKS_OF, "at", "stood.at")),
        ),
        F.when(
            is_last & (effects.file_of("end") != effects.file_of("stands.at")),
            F.struct(*row(ACKS_OF, "end", "stands.at")),
        ),
    )
    rows = histories.select("store", *_OWNER, F.explode(declaration).alias("said")).where(F.col("said").isNotNull())
    return rows.select("said.*", "store", *_OWNER)


def _topics_once(histories: DataFrame) -> DataFrame:
    """Return the live bytes of topics. A record is counted once, even if several subscriptions hold it."""
    held = effects.live(histories.where(F.col("destination_type").isin(*effects.TOPICS)))
    once = held.groupBy("store", F.col("stands.at").alias("at")).agg(
        F.first("stands.length").cast("long").alias("length")
    )
    return once.select(F.lit(LIVE_BYTES).alias("kind"), "store", effects.file_of("at").alias("file"), "length")


# ---- declarations, replayed by the broker's own code


class _NoIndex:
    """An empty index."""

    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


def _declare(
    commands: Sequence[effects.Declared], marks: Sequence[tuple[int, bytes]], held_at: set[tuple[str, ...]]
) -> State:
    """Return the state of one store after its declarations and marks. ``held_at``: (type, destination, subscription,
    place) of subscriptions that held messages when their record at that place was rewritten."""
    state = State(_NoIndex(), b"")
    replay = Replay(state)
    steps = [(each.at, _payload(each), each) for each in commands]
    for at, payload, declaration in sorted([*steps, *((at, mark, None) for at, mark in marks)], key=lambda s: s[0]):
        if declaration is not None and declaration.command == SUBSCRIPTION:
            _count(state, declaration, held_at)
        if (lost := decode_lost(payload) if declaration is None else None) is not None:
            state.pin(at >> 32, lost[0])
        replay.apply(at, payload)
    return state


def _count(state: State, declaration: effects.Declared, held_at: set[tuple[str, ...]]) -> None:
    """Set whether the owner holds messages. Messages are not replayed, but the effect of a rewritten record depends on
    this."""
    destination = Destination(KINDS[declaration.destination_type], declaration.destination)
    owner = state.subscriptions.get((destination, declaration.subscription or ""))
    if owner is not None:
        key = (*declaration.where[1:], declaration.subscription or "", str(declaration.at))
        state.owners[owner].count = int(key in held_at)


def _payload(declaration: effects.Declared) -> bytes:
    destination = Destination(KINDS[declaration.destination_type], declaration.destination)
    client, _, name = (declaration.subscription or "").partition(":")
    if declaration.command == SUBSCRIPTION:
        return encode_subscription(destination, client, name)
    if declaration.subscription is not None:
        return encode_unsubscribe(destination, client, name)
    return encode_remove_destination(destination)


def _held_at(declaration: Sequence[effects.Declared], histories: DataFrame) -> set[tuple[str, ...]]:
    """Return (store, type, destination, subscription, place) of the subscriptions' records that were rewritten while
    the subscription held messages."""
    known: set[tuple[str, ...]] = set()
    rewritten = []
    for each in declaration:
        if each.command == SUBSCRIPTION and each.subscription is not None:
            name = (*each.where, each.subscription)
            if name in known:
                rewritten.append((*name, each.at))
            known.add(name)
    if not rewritten:
        return set()
    keys = ("store", *_OWNER)
    schema = ", ".join(f"`{key}` STRING" for key in keys) + ", `written` BIGINT"
    places = F.broadcast(histories.sparkSession.createDataFrame(rewritten, schema))
    upto = F.coalesce("next", "end", F.lit((1 << 63) - 1))
    kept = histories.where(F.col("is_held")).select(*keys, "effect", upto.alias("upto"))
    is_within = (F.col("effect") < F.col("written")) & (F.col("written") < F.col("upto"))
    meets = kept.join(places, list(keys)).where(is_within)
    return {(*row[:4], str(row[4])) for row in meets.select(*keys, "written").distinct().collect()}


# ---- facts for store.tools.why


@dataclass(slots=True)
class Journal:
    """Facts of one store. ``holders``: the rows MESSAGE; ``removals``: the rows ACKS_OF, both by file. ``numbers``:
    numbers of the owners in ``facts``."""

    store: str
    epoch_history: EpochHistory
    facts: Facts
    numbers: dict[tuple[str, str, str | None], int] = field(default_factory=dict)
    holders: dict[int, list[Counted]] = field(default_factory=dict)
    removals: dict[int, list[Counted]] = field(default_factory=dict)


def journals(records: DataFrame, marks: DataFrame, files: Iterable[JournalFile]) -> list[Journal]:
    """Return the facts for each store of ``files``. ``records`` and ``marks`` must be of the same files; both are read,
    the records several times. The newest file is treated as the file being written."""
    declaration = effects.declared(records)
    traces = effects.texts(marks, HEADER, MARK)
    transacted = effects.operations(records, marks)
    found = effects.histories(effects.events(records, transacted, effects.spans(declaration)))
    held_at = _held_at(declaration, found)
    lines = [Counted(*row) for row in counted(transacted, found).select(*Counted._fields).collect()]
    sizes: dict[str, dict[int, int]] = {}
    for file in files:
        sizes.setdefault(file.store, {})[file.file] = file.size
    return [
        _journal(
            store,
            of_store,
            [each for each in declaration if each.store == store],
            [(row.file << 32 | row.offset, encode_trace(row.text)) for row in traces if row.store == store],
            {key[1:] for key in held_at if key[0] == store},
            [line for line in lines if line.store == store],
        )
        for store, of_store in sorted(sizes.items())
    ]


def _journal(
    store: str,
    sizes: Mapping[int, int],
    declaration: Sequence[effects.Declared],
    traces: Sequence[tuple[int, bytes]],
    held_at: set[tuple[str, ...]],
    lines: Sequence[Counted],
) -> Journal:
    headers = {at >> 32: header for at, payload in traces if (header := decode_header(payload)) is not None}
    epoch_history = read_epoch_history(sizes, headers.get)
    state = _declare(declaration, traces, held_at)
    gone = {file for _, payload in traces for file in decode_gone(payload)}
    files = {file: FileFacts(size, 0, 0, {}, set(), is_known=file not in gone) for file, size in sizes.items()}
    owners: dict[int, OwnerFacts] = {}
    numbers: dict[tuple[str, str, str | None], int] = {}
    for owner in state.owners.values():
        if owner.subscription_name is not None:
            key = (SCHEMES[owner.destination.kind], owner.destination.name, owner.key)
            numbers[key] = owner.id
            records = {owner.record_location >> 32, owner.latest_record >> 32}
            owners[owner.id] = OwnerFacts(str(owner.destination), owner.client_id, owner.subscription_name, records)
    journal = Journal(store, epoch_history, Facts(files, owners, [], 0, set()), numbers)
    for file, held in state.files.items():
        if file in files:
            files[file].pins |= held.pins
    transactions: dict[str, TransactionFacts] = {}
    for line in lines:
        _enter(line, journal, transactions)
    for known in files.values():
        known.pins = {pin for pin in known.pins if pin in files and files[pin].is_known}
    tail = max(sizes)
    journal.facts = facts_of(files, owners, list(transactions.values()), tail, epoch_history.first_of_epoch)
    return journal


def _enter(line: Counted, journal: Journal, transactions: dict[str, TransactionFacts]) -> None:
    files = journal.facts.files
    if line.file not in files:
        return  # deleted during the read
    known = files[line.file]
    match line.kind:
        case "message":
            owner = _number(line, journal)
            known.holders[owner] = (line.items, line.bytes or 0)
            known.live += line.items
            if line.destination_type not in effects.TOPICS:
                known.live_bytes += line.bytes or 0
            journal.holders.setdefault(line.file, []).append(line)
        case "live_bytes":
            known.live_bytes += line.bytes or 0
        case "acks_of":
            assert line.ref_file is not None, "ACKS_OF has a file"
            known.pins.add(line.ref_file)
            journal.removals.setdefault(line.file, []).append(line)
        case _:
            assert line.transaction is not None, "the other kinds are of transactions"
            of = transactions.setdefault(line.transaction, TransactionFacts(line.transaction, False, 0, {}, None))
            if line.kind == PREPARED:
                of.is_prepared, of.prepared_in = True, line.file
            else:
                of.operations[line.file] = line.items


def _number(line: Counted, journal: Journal) -> int:
    assert line.destination_type is not None, "a holder has a destination"
    assert line.destination is not None, "a holder has a destination"
    key = (line.destination_type, line.destination, line.subscription)
    number = journal.numbers.get(key)
    if number is None:
        number = journal.numbers[key] = max(journal.numbers.values(), default=0) + 1
        name = str(Destination(KINDS[line.destination_type], line.destination))
        journal.facts.owners[number] = OwnerFacts(name, None, None, set())
    return number
