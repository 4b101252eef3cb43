"""What keeps the files of a journal, counted file by file in Spark and judged by the broker's own rules (store.why).

The journal alone is read, as ``store why`` does where there is no index. No file goes whose records change what the
others say of the messages; but an index may remember one reason more: that something in a file was moved or killed
for a subscription whose older record is gone. Such a file goes later than it has to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from broker.pipeline.columns import COPY, HEADER, MARK, PREPARE, REMOVE_MESSAGE, SUBSCRIPTION, UPDATE_MESSAGE
from broker.pipeline.jobs.effects import (
    TOPICS,
    Declared,
    declared,
    events,
    file_of,
    histories,
    live,
    operations,
    spans,
    texts,
)
from broker.pipeline.walk import JournalFile
from store.damage import decode_lost
from store.headers import Chronicle, decode_header, read_chronicle
from store.marks import decode_gone
from store.records.commands import encode_remove_destination, encode_subscription, encode_trace, encode_unsubscribe
from store.records.message import SCHEMES, Destination
from store.replay import Replay
from store.state import State
from store.why.facts import Facts, FileFacts, OwnerFacts, TransactionFacts, facts_of

# What is counted.
MESSAGE: Final = "message"  # live messages of a holder in a file
ACKS_OF: Final = "acks_of"  # records of a file that killed or moved something in ``ref_file``
TRANSACTION: Final = "transaction"  # operations of an open transaction in a file
PREPARED: Final = "prepared"  # its PREPARE
LIVE_BYTES: Final = "live_bytes"  # of a topic's messages, each counted once

KINDS = {scheme: kind for kind, scheme in SCHEMES.items()}

_OWNER: Final = ("destination_type", "destination", "subscription")
_COUNTED: Final = ("kind", "store", "file", "ref_file", *_OWNER, "transaction", "items", "bytes", "oldest")


class Counted(NamedTuple):
    """A line of ``counted``, in its order; ``oldest`` is in microseconds since 1970."""

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
    """The lines that say what stands in each file, and which file killed what in which: see Counted. Their number is
    that of files and of pairs of files, for each destination, and not that of messages."""
    of_messages = _of_messages(histories)
    within = transacted.withColumn("_file", F.col("file"))
    nothing = F.lit(None)
    open_ones = within.where(F.col("ended").isNull() & F.col("replaced").isNull()).select(
        F.when(F.col("command") == PREPARE, PREPARED).otherwise(TRANSACTION).alias("kind"),
        "store",
        "file",
        nothing.cast("int").alias("ref_file"),
        *(nothing.cast("string").alias(name) for name in _OWNER),
        "transaction",
        nothing.cast("long").alias("length"),
        nothing.cast("long").alias("time"),
    )
    killer = F.coalesce("replaced", "ended")
    over = within.where(killer.isNotNull() & (file_of(killer) != F.col("file"))).select(
        F.lit(ACKS_OF).alias("kind"),
        "store",
        file_of(killer).alias("file"),
        F.col("_file").alias("ref_file"),
        *(nothing.cast("string").alias(name) for name in _OWNER),
        "transaction",
        nothing.cast("long").alias("length"),
        nothing.cast("long").alias("time"),
    )
    return _sums(of_messages.unionByName(open_ones).unionByName(over)).unionByName(_live_bytes(histories))


def _of_messages(histories: DataFrame) -> DataFrame:
    """One row for each message that is there, and for each that a record in another file killed or moved."""
    is_last = F.col("is_held") & F.col("next").isNull()
    kills = F.col("was_held") & F.col("command").isin(COPY, UPDATE_MESSAGE, REMOVE_MESSAGE)

    def row(kind: str, file: str, ref: str | None) -> tuple[object, ...]:
        is_message = kind == MESSAGE
        return (
            F.lit(kind).alias("kind"),
            file_of(file).alias("file"),
            (F.lit(None).cast("int") if ref is None else file_of(ref)).alias("ref_file"),
            (F.col("stands.length") if is_message else F.lit(None)).cast("long").alias("length"),
            (F.unix_micros("stands.broker_in") if is_message else F.lit(None)).cast("long").alias("time"),
        )

    said = F.array(
        F.when(is_last & F.col("end").isNull(), F.struct(*row(MESSAGE, "stands.at", None))),
        F.when(kills & (file_of("effect") != file_of("stood.at")), F.struct(*row(ACKS_OF, "effect", "stood.at"))),
        F.when(is_last & (file_of("end") != file_of("stands.at")), F.struct(*row(ACKS_OF, "end", "stands.at"))),
    )
    rows = histories.select("store", *_OWNER, F.explode(said).alias("said")).where(F.col("said").isNotNull())
    return rows.select("said.*", "store", *_OWNER).withColumn("transaction", F.lit(None).cast("string"))


def _sums(rows: DataFrame) -> DataFrame:
    return rows.groupBy("kind", "store", "file", "ref_file", *_OWNER, "transaction").agg(
        F.count("*").alias("items"), F.sum("length").alias("bytes"), F.min("time").alias("oldest")
    )


def _live_bytes(histories: DataFrame) -> DataFrame:
    """A record of a topic lies on the disk once, however many subscriptions hold it."""
    once = live(histories.where(F.col("destination_type").isin(*TOPICS))).groupBy("store", "stands.at")
    rows = once.agg(F.first("stands.length").cast("long").alias("length"), F.count("*").alias("holders"))
    sums = rows.groupBy("store", file_of("at").alias("file")).agg(
        F.count("*").alias("items"), F.sum("length").alias("bytes")
    )
    return sums.select(
        F.lit(LIVE_BYTES).alias("kind"),
        "store",
        "file",
        F.lit(None).cast("int").alias("ref_file"),
        *(F.lit(None).cast("string").alias(name) for name in (*_OWNER, "transaction")),
        "items",
        "bytes",
        F.lit(None).cast("long").alias("oldest"),
    )


# ---- the few records that declare something, replayed by the broker's own code


class _NoIndex:
    """An index that holds nothing."""

    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


def _declare(said: Sequence[Declared], marks: Sequence[tuple[int, bytes]], held_at: set[tuple[str, ...]]) -> State:
    """The state of one store after its declarations and marks. ``held_at`` names the subscriptions that held something
    where a record of theirs was written anew: (type, destination, subscription, place)."""
    state = State(_NoIndex(), b"")
    replay = Replay(state)
    steps = [(each.at, _payload(each), each) for each in said]
    for at, payload, declaration in sorted([*steps, *((at, mark, None) for at, mark in marks)], key=lambda s: s[0]):
        if declaration is not None and declaration.command == SUBSCRIPTION:
            _count(state, declaration, held_at)
        if (lost := decode_lost(payload) if declaration is None else None) is not None:
            state.pin(at >> 32, lost[0])
        replay.apply(at, payload)
    return state


def _count(state: State, said: Declared, held_at: set[tuple[str, ...]]) -> None:
    """Its messages are not replayed; how a record that is written anew counts depends on whether there are any."""
    destination = Destination(KINDS[said.destination_type], said.destination)
    owner = state.subscriptions.get((destination, said.subscription or ""))
    if owner is not None:
        key = (said.destination_type, said.destination, said.subscription or "", str(said.at))
        state.owners[owner].count = int(key in held_at)


def _payload(said: Declared) -> bytes:
    destination = Destination(KINDS[said.destination_type], said.destination)
    client, _, name = (said.subscription or "").partition(":")
    if said.command == SUBSCRIPTION:
        return encode_subscription(destination, client, name)
    if said.subscription is not None:
        return encode_unsubscribe(destination, client, name)
    return encode_remove_destination(destination)


def _held_at(said: Sequence[Declared], histories: DataFrame) -> set[tuple[str, ...]]:
    """(store, type, destination, subscription, place) of the records of subscriptions that were written anew while
    something was held."""
    known: set[tuple[str, ...]] = set()
    anew = []
    for each in said:
        if each.command == SUBSCRIPTION and each.subscription is not None:
            name = (each.store, each.destination_type, each.destination, each.subscription)
            if name in known:
                anew.append((*name, each.at))
            known.add(name)
    if not anew:
        return set()
    keys = ("store", *_OWNER)
    schema = ", ".join(f"`{key}` STRING" for key in keys) + ", `written` BIGINT"
    places = F.broadcast(histories.sparkSession.createDataFrame(anew, schema))
    upto = F.coalesce("next", "end", F.lit((1 << 63) - 1))
    kept = histories.where(F.col("is_held")).select(*keys, "effect", upto.alias("upto"))
    is_within = (F.col("effect") < F.col("written")) & (F.col("written") < F.col("upto"))
    meets = kept.join(places, list(keys)).where(is_within)
    return {(*row[:4], str(row[4])) for row in meets.select(*keys, "written").distinct().collect()}


# ---- the facts


@dataclass(slots=True)
class Journal:
    """One store. ``holders`` are the lines MESSAGE and ``kills`` the lines ACKS_OF, by file; owners are numbered as in
    ``facts``."""

    store: str
    chronicle: Chronicle
    facts: Facts
    numbers: dict[tuple[str, str, str | None], int] = field(default_factory=dict)
    holders: dict[int, list[Counted]] = field(default_factory=dict)
    kills: dict[int, list[Counted]] = field(default_factory=dict)


def journals(records: DataFrame, marks: DataFrame, files: Iterable[JournalFile]) -> list[Journal]:
    """What keeps ``files``, for each store; ``records`` and ``marks`` are theirs. Reads both, the records several
    times. The newest file is taken for one that is written to."""
    said = declared(records)
    traces = texts(marks, HEADER, MARK)
    transacted = operations(records, marks)
    found = histories(events(records, transacted, spans(said)))
    held_at = _held_at(said, found)
    lines = [Counted(*row) for row in counted(transacted, found).select(*_COUNTED).collect()]
    sizes: dict[str, dict[int, int]] = {}
    for file in files:
        sizes.setdefault(file.store, {})[file.file] = file.size
    return [
        _journal(
            store,
            of_store,
            [each for each in said if each.store == store],
            [(row.file << 32 | row.offset, encode_trace(row.text)) for row in traces if row.store == store],
            {key[1:] for key in held_at if key[0] == store},
            [line for line in lines if line.store == store],
        )
        for store, of_store in sorted(sizes.items())
    ]


def _journal(
    store: str,
    sizes: Mapping[int, int],
    said: Sequence[Declared],
    traces: Sequence[tuple[int, bytes]],
    held_at: set[tuple[str, ...]],
    lines: Sequence[Counted],
) -> Journal:
    headers = {at >> 32: header for at, payload in traces if (header := decode_header(payload)) is not None}
    chronicle = read_chronicle(sizes, headers.get)
    state = _declare(said, traces, held_at)
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
    journal = Journal(store, chronicle, Facts(files, owners, [], 0, set()), numbers)
    for file, held in state.files.items():
        if file in files:
            files[file].pins |= held.pins
    transactions: dict[str, TransactionFacts] = {}
    for line in lines:
        _enter(line, journal, transactions)
    for known in files.values():
        known.pins = {pin for pin in known.pins if pin in files and files[pin].is_known}
    tail = max(sizes)
    journal.facts = facts_of(files, owners, list(transactions.values()), tail, chronicle.first_of_epoch)
    return journal


def _enter(line: Counted, journal: Journal, transactions: dict[str, TransactionFacts]) -> None:
    files = journal.facts.files
    if line.file not in files:
        return  # it went while we read
    known = files[line.file]
    match line.kind:
        case "message":
            owner = _number(line, journal)
            known.holders[owner] = (line.items, line.bytes or 0)
            known.live += line.items
            if line.destination_type not in TOPICS:
                known.live_bytes += line.bytes or 0
            journal.holders.setdefault(line.file, []).append(line)
        case "live_bytes":
            known.live_bytes += line.bytes or 0
        case "acks_of":
            assert line.ref_file is not None, "they are of a file"
            known.pins.add(line.ref_file)
            journal.kills.setdefault(line.file, []).append(line)
        case _:
            assert line.transaction is not None, "the other kinds are of transactions"
            of = transactions.setdefault(line.transaction, TransactionFacts(line.transaction, False, 0, {}, None))
            if line.kind == PREPARED:
                of.is_prepared, of.prepared_in = True, line.file
            else:
                of.operations[line.file] = line.items


def _number(line: Counted, journal: Journal) -> int:
    assert line.destination_type is not None, "somebody holds it"
    assert line.destination is not None, "somebody holds it"
    key = (line.destination_type, line.destination, line.subscription)
    number = journal.numbers.get(key)
    if number is None:
        number = journal.numbers[key] = max(journal.numbers.values(), default=0) + 1
        name = str(Destination(KINDS[line.destination_type], line.destination))
        journal.facts.owners[number] = OwnerFacts(name, None, None, set())
    return number
