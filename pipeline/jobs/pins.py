"""Reasons why each journal file is kept: the result of ``tandemmq store why``, with the same code (store.tools.why).

    current        the newest file, which is written to
    message        it has live messages
    subscription   it has the record of a durable subscription
    transaction    it has operations of an open or prepared transaction
    acks_of        its acknowledgements, copies and deletions concern messages in ``ref_file``, which stays
    fence          it began an epoch, and ``ref_file``, which is older, stays

A file without any of these is deleted at the next checkpoint.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from tandemmq.pipeline.columns import BATCHES, MARKS, NAME, RECORDS
from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs import gaps
from tandemmq.pipeline.jobs.effects import COMMANDS, MARK_COLUMNS, RECORD_COLUMNS, damaged_bytes
from tandemmq.pipeline.jobs.holding import ACKS_OF, KINDS, MESSAGE, TRANSACTION, Counted, Journal, journals
from tandemmq.pipeline.jobs.summary import Bars, Stacks, Summary
from tandemmq.pipeline.jobs.tables import Results, Sources, head
from tandemmq.pipeline.lost import ranges_of
from tandemmq.pipeline.table import size
from tandemmq.pipeline.walk import JournalFile
from tandemmq.store.records.message import Destination
from tandemmq.store.tools.why.report import HELD, RECLAIMABLE, TAIL
from tandemmq.store.tools.why.verdict import Graph, verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CURRENT: Final = "current"
SUBSCRIPTION: Final = "subscription"
FENCE: Final = "fence"
REASONS: Final = (CURRENT, MESSAGE, SUBSCRIPTION, TRANSACTION, ACKS_OF, FENCE)
NOTHING: Final = "nothing"

# Source of the result.
BASIS: Final = "journal"

# Maximum number of destinations for which the releasable files are computed (those in the most files), and the number
# that is listed.
DRAINED_MAX: Final = 100
DRAINED_LISTED: Final = 10
FILES_PLOTTED: Final = 60

PINS: Final = (
    "`store` STRING, `file` INT, `reason` STRING, `destination_type` STRING, `destination` STRING, "
    "`subscription` STRING, `transaction` STRING, `ref_file` INT, `items` BIGINT, `bytes` BIGINT, `oldest` TIMESTAMP, "
    "`basis` STRING"
)
VERDICTS: Final = (
    "`store` STRING, `file` INT, `bytes` BIGINT, `state` STRING, `is_held` BOOLEAN, `reasons` ARRAY<STRING>, "
    "`live_messages` BIGINT, `live_bytes` BIGINT, `amplification` DOUBLE, `chained_from` INT"
)


class Pin(NamedTuple):
    """Row of the table ``pins``."""

    store: str
    file: int
    reason: str
    destination_type: str | None = None
    destination: str | None = None
    subscription: str | None = None
    transaction: str | None = None
    ref_file: int | None = None
    items: int | None = None
    bytes: int | None = None
    oldest: datetime | None = None
    basis: str = BASIS


class Verdict(NamedTuple):
    """Row of ``file_verdicts``. ``state``: as in ``store why``. ``chained_from``: for a file without live messages, the
    oldest file with live messages that keeps it."""

    store: str
    file: int
    bytes: int
    state: str
    is_held: bool
    reasons: list[str]
    live_messages: int
    live_bytes: int
    amplification: float | None
    chained_from: int | None


@dataclass(frozen=True, slots=True)
class Drained:
    """Files that would be released if a destination had no messages. ``freed``: their numbers in ``store``; ``bytes``:
    their size. ``items``: number of the destination's messages outside of the newest file."""

    store: str
    destination: str
    items: int
    oldest: datetime | None
    freed: tuple[int, ...]
    bytes: int


def judged(journal: Journal) -> tuple[list[Pin], list[Verdict]]:
    """Return the pins of each file of a store, and the verdicts."""
    facts, epoch_history = journal.facts, journal.epoch_history
    graph = Graph(facts, epoch_history)
    own = facts.held_by_own()
    found: list[Pin] = []
    verdicts: list[Verdict] = []
    for file, known in sorted(facts.files.items()):
        why = verdict(facts, graph, epoch_history, file)
        pins: list[Pin] = []
        if why.state in (TAIL, HELD):
            pins = [*_standing(journal, file, is_current=why.state == TAIL), *_waiting(journal, file, why.pins)]
            if why.fences_before and why.state == HELD:
                pins.append(
                    Pin(journal.store, file, FENCE, ref_file=why.fences_before[0], items=len(why.fences_before))
                )
        found += pins
        verdicts.append(
            Verdict(
                journal.store,
                file,
                known.size,
                why.state,
                bool(pins),
                [reason for reason in REASONS if any(pin.reason == reason for pin in pins)],
                known.live,
                known.live_bytes,
                known.size / known.live_bytes if known.live_bytes else None,
                why.roots[0] if why.roots and file not in own else None,
            )
        )
    return found, verdicts


def _standing(journal: Journal, file: int, *, is_current: bool) -> Iterator[Pin]:
    """Yield the pins of a file that its own records cause."""
    store, facts = journal.store, journal.facts
    if is_current:
        yield Pin(store, file, CURRENT)
    for line in journal.holders.get(file, ()):
        yield _of_line(line, MESSAGE)
    for (kind, name, subscription), number in journal.numbers.items():
        if file in facts.owners[number].records:
            yield Pin(store, file, SUBSCRIPTION, kind, name, subscription, items=1)
    for transaction in facts.transactions:
        if file in transaction.files:
            yield Pin(store, file, TRANSACTION, transaction=transaction.key, items=transaction.operations.get(file, 0))


def _waiting(journal: Journal, file: int, pins: Sequence[int]) -> Iterator[Pin]:
    """Yield the pins of a file that other kept files cause. Pins of declarations have no row in ``counted``."""
    lines = [line for line in journal.removals.get(file, ()) if line.ref_file in pins]
    for line in lines:
        yield _of_line(line, ACKS_OF)
    for pin in sorted(set(pins) - {line.ref_file for line in lines}):
        yield Pin(journal.store, file, ACKS_OF, ref_file=pin)


def _of_line(line: Counted, reason: str) -> Pin:
    of = (line.ref_file, line.items, line.bytes, _time(line.oldest))
    return Pin(line.store, line.file, reason, *line[4:8], *of)


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1_000_000, UTC)


def drained(journal: Journal) -> list[Drained]:
    """Return the files that each destination alone keeps, ordered by their bytes. Destinations that would release no
    file are left out."""
    facts = journal.facts
    held: dict[tuple[str, str], list[Counted]] = {}
    for file, lines in journal.holders.items():
        for line in lines if file < facts.tail else ():
            held.setdefault((line.destination_type or "", line.destination or ""), []).append(line)
    most = sorted(held, key=lambda name: (-len({line.file for line in held[name]}), name))[:DRAINED_MAX]
    found = []
    for name in most:
        owners = {number for key, number in journal.numbers.items() if key[:2] == name}
        freed = facts.reclaimable_without(owners, journal.epoch_history.first_of_epoch) - facts.reclaimable
        if freed:
            oldest = min((line.oldest for line in held[name] if line.oldest is not None), default=None)
            found.append(
                Drained(
                    journal.store,
                    str(Destination(KINDS[name[0]], name[1])),
                    sum(line.items for line in held[name]),
                    _time(oldest),
                    tuple(sorted(freed)),
                    sum(facts.files[file].size for file in freed),
                )
            )
    return sorted(found, key=lambda drain: (-drain.bytes, drain.destination))


# ---- findings


def findings(verdicts: Sequence[Verdict], drains: Sequence[Drained], *, archived: int, damaged: int) -> tuple[str, ...]:
    """Return the findings, ordered by size. ``archived``: number of archived files, which were left out. ``damaged``:
    bytes."""
    held = [file for file in verdicts if file.is_held]
    going = [file for file in verdicts if file.state == RECLAIMABLE]
    lines = [
        f"{len(held):,} of {len(verdicts):,} files are held, {size(sum(file.bytes for file in held))}, "
        f"for {size(sum(file.live_bytes for file in verdicts))} of live messages."
    ]
    several = len({file.store for file in verdicts}) > 1
    for drain in drains[:DRAINED_LISTED]:
        where = f"{drain.store}: " if several else ""
        oldest = "" if drain.oldest is None else f" (the oldest of {drain.oldest:%Y-%m-%d %H:%M})"
        count = f"{drain.items:,} message{'' if drain.items == 1 else 's'}"
        lines.append(
            f"{where}{ranges_of(drain.freed)} {'is' if len(drain.freed) == 1 else 'are'} held by {count} of "
            f"{drain.destination}{oldest}. If {'it is' if drain.items == 1 else 'they are'} consumed, "
            f"{size(drain.bytes)} can be removed."
        )
    if going:
        lines.append(
            f"Nothing needs {len(going):,} files, {size(sum(file.bytes for file in going))}: "
            "the next checkpoint of a broker removes them."
        )
    if damaged:
        lines.append(
            f"{size(damaged)} are damaged, and their references to other files are unknown: "
            "`tandemmq pipeline verify` shows where."
        )
    if archived:
        lines.append(f"{archived:,} files of archives were left out: no broker needs them.")
    return tuple(lines)


def _by_file(verdicts: Sequence[Verdict]) -> Stacks:
    """Return the plot of the oldest files, each in the colour of its first reason."""
    shown = verdicts[:FILES_PLOTTED]
    several = len({file.store for file in shown}) > 1
    parts = (*REASONS, NOTHING)
    bars = []
    for file in shown:
        reason = file.reasons[0] if file.reasons else NOTHING
        label = f"{file.store} db-{file.file}.log" if several else f"db-{file.file}.log"
        bars.append((label, [file.bytes if part == reason else 0 for part in parts]))
    title = "Bytes by file, and what holds it" + (f": the oldest {FILES_PLOTTED}" if len(verdicts) > len(shown) else "")
    return Stacks(title, "bytes", parts, bars)


# ---- the job


def pins(
    spark: SparkSession, records: DataFrame, marks: DataFrame, files: Iterable[JournalFile]
) -> tuple[DataFrame, DataFrame, list[Drained]]:
    """Return the tables ``pins`` and ``file_verdicts`` for the stores of ``files``, and the result of ``drained``.
    ``records`` and ``marks`` must be of all files, including the newest one."""
    found: list[Pin] = []
    verdicts: list[Verdict] = []
    drains: list[Drained] = []
    for journal in journals(records, marks, files):
        of_store, files_of_store = judged(journal)
        found += of_store
        verdicts += files_of_store
        drains += drained(journal)
    drains.sort(key=lambda drain: (-drain.bytes, drain.store, drain.destination))
    return spark.createDataFrame(found, PINS), spark.createDataFrame(verdicts, VERDICTS), drains


def run(spark: SparkSession, sources: Sources, out: str) -> Summary:
    """Write ``pins`` and ``file_verdicts`` below ``out``. The summary is not clean if the journal is damaged or a file
    is missing, because the result is then incomplete. The newest file of each store is always read. Raises ValueError
    if ``sources`` leave out files.
    """
    sources = sources.whole().fixed(spark)
    planned = sources.files(sources.access_in(spark))
    files = [file for file in planned if posixpath.dirname(file.path) == file.store]
    if not files:
        raise ValueError("there are only archived files, which no broker needs")
    paths = sources.paths if len(files) == len(planned) else tuple(file.path for file in files)
    whole = replace(sources, paths=paths)
    records = whole.read(spark, RECORDS, RECORD_COLUMNS).where(F.col("command").isin(*COMMANDS)).persist()
    try:
        found, verdicts, drains = pins(spark, records, whole.read(spark, MARKS, MARK_COLUMNS), files)
    finally:
        records.unpersist()
    results = Results(spark, out)
    found, verdicts = results.write(found, "pins"), results.write(verdicts, "file_verdicts")
    damaged = damaged_bytes(whole.read(spark, BATCHES, ("length", "status")))
    left_out = gaps.of_files(spark, sources)
    judgements = [Verdict(*row) for row in verdicts.orderBy("store", "file").collect()]
    standing = found.where(F.col("reason").isin(MESSAGE, SUBSCRIPTION, TRANSACTION))
    tables = (
        head(
            verdicts.withColumn("why", F.array_join("reasons", ", ")).orderBy("store", "file"),
            "Files",
            "store file bytes state why live_messages live_bytes amplification chained_from",
        ),
        head(
            standing.orderBy(F.desc("bytes"), "store", "file", "reason", *NAME, "subscription", "transaction"),
            "Holders",
            "store file reason destination items bytes oldest subscription transaction destination_type",
        ),
    )
    several = len({file.store for file in judgements}) > 1
    bars = [
        (f"{drain.store} {drain.destination}" if several else drain.destination, drain.bytes) for drain in drains[:20]
    ]
    return Summary(
        "pins",
        (
            *findings(judgements, drains, archived=len(planned) - len(files), damaged=damaged),
            *gaps.remarks(left_out, "their references to other files are unknown"),
        ),
        tables,
        (_by_file(judgements), Bars("Bytes that would be freed if the destination were empty", "bytes", bars)),
        is_clean=not damaged and left_out.is_certain,
        written=results.written,
        reached=sources.reached,
    )
