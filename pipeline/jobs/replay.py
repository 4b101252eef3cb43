"""Send messages from journals, or from Parquet made of them, to a broker through its failover URL, each exactly once.

    sources -> selection (Parquet: each message, and why it is sent or not) -> plan (Parquet: messages in slices)
            -> tasks, each with a client, send slices -> ledger

If the plan exists, a run with the same ``out`` continues the replay from the plan, and no longer needs the sources.
docs/pipeline.md states the conditions of exactly-once sending.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tandemmq.broker.protocols.stomp.destinations import write_destination
from tandemmq.client.failover_url import FailoverUrl
from tandemmq.pipeline.columns import ACKS, BATCHES, COLUMNS, MESSAGES, NAME, PLACE, RECORDS, ddl
from tandemmq.pipeline.engine import F, is_local
from tandemmq.pipeline.jobs import archive, gaps, selection
from tandemmq.pipeline.jobs.replay_report import SELECTION, dry_summary, summary
from tandemmq.pipeline.jobs.summary import Summary
from tandemmq.pipeline.jobs.tables import Results, Sources
from tandemmq.pipeline.lake import committed
from tandemmq.pipeline.parquet import are_parquet, is_lake
from tandemmq.pipeline.sending.ledger import STATE, Ledger, Round, Run, Slice
from tandemmq.pipeline.sending.request import TASKS_MAX, UNACKNOWLEDGED, ReplayRequest, Target
from tandemmq.pipeline.sending.sends import destination_of
from tandemmq.pipeline.sending.slices import send_tasks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Without order, the messages of a destination are divided into slices of this many messages.
SLICE_MESSAGES: Final = 10_000
# Interval of progress reports on a terminal.
WATCH_SECONDS: Final = 1.0
# A task has one row group of the plan in memory: this many messages, or fewer if they reach Parquet's limit of 128 MiB.
_PLAN_OPTIONS: Final = {"parquet.block.row.count.limit": "2000"}
_PLAN_COLUMNS: Final = (
    *(*NAME, "message_id", "correlation_id", "reply_to", "priority", "persistent", "type"),
    *("group_id", "group_sequence", "properties", "body_kind", "body"),
)


def run(
    spark: SparkSession,
    sources: Sources,
    out: str,
    *,
    request: ReplayRequest,
    target: Target | None = None,
    rate: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Replay the messages of ``request`` to ``target``. Without a target, report what would be sent and how long it
    would take.

    Writes ``replay_selection``, ``replay_ledger``, ``replay_refused`` and the state of the replay below ``out``. The
    summary is clean only if all selected messages are at the broker. Raises ValueError if ``out`` holds another replay,
    InUse if one is running with it.
    """
    out = os.path.abspath(out)
    ledger = Ledger(Path(out) / STATE)
    if target is None:
        if ledger.run() is not None:
            raise ValueError(f"{out} holds a replay that was begun: a dry run needs its own directory")
        return dry_summary(_selected(spark, _fixed(spark, sources), out, request), out, rate)
    with ledger.alone():
        begun = _begun(ledger, sources, request, target)
        if begun is None:
            begun = _planned(spark, _fixed(spark, sources), out, request, target, ledger)
        before = {slice.number: ledger.progress(slice.number) for slice in begun.slices}
        left = [slice for slice in begun.slices if not before[slice.number].is_done(slice)]
        if left:
            _send(spark, ledger, begun, left, request, target, progress)
        return summary(spark, out, ledger, begun, before)


# ---- the selection


def _fixed(spark: SparkSession, sources: Sources) -> Sources:
    return sources if are_parquet(sources.paths) else sources.fixed(spark)


def table(spark: SparkSession, sources: Sources, name: str, columns: Sequence[str] = ()) -> DataFrame | None:
    """Return a table of the sources, with only ``columns`` (empty: all); None if the sources are Parquet without this
    table.

    Raises ValueError if some sources are journals and some are Parquet.
    """
    if not are_parquet(sources.paths):
        found = sources.read(spark, name, columns)
        return _with_bodies(found) if name == MESSAGES else found
    if name != MESSAGES and not all(map(is_lake, sources.paths)):
        return None
    wanted = columns or [column for column, _ in COLUMNS[name]]
    tables = [_parquet(spark, path, name).select(*wanted) for path in sources.paths]
    return reduce(lambda whole, more: whole.unionByName(more), tables)


def _parquet(spark: SparkSession, path: str, name: str) -> DataFrame:
    if not is_lake(path):
        # With an explicit schema, the value of a directory "destination=7" is the text 7.
        found = spark.read.schema(ddl(name)).parquet(path)
        return _with_bodies(found) if "body" in spark.read.parquet(path).columns else found
    if any(commit.parquet.get(name) for commit in committed(path).values()):
        found = archive.read(spark, path, name)
        return _with_bodies(found) if name == MESSAGES else found
    return spark.createDataFrame([], ddl(name))


def _with_bodies(messages: DataFrame) -> DataFrame:
    """Replace null bodies by empty ones, so that they differ from the bodies of Parquet that was made without
    bodies."""
    return messages.withColumn("body", F.coalesce("body", F.lit("").cast("binary")))


def _selected(spark: SparkSession, sources: Sources, out: str, request: ReplayRequest) -> DataFrame:
    messages, records = table(spark, sources, MESSAGES), table(spark, sources, RECORDS, selection.RECORD_COLUMNS)
    assert messages is not None, "all sources have messages"
    if records is not None:
        # These records are few, and are read several times.
        records = records.where(F.col("command").isin(*selection.COMMANDS)).cache()
    acks = table(spark, sources, ACKS, selection.ACK_COLUMNS) if request.only == UNACKNOWLEDGED else None
    found = selection.selection(messages, records, acks, request, time.time_ns() // 1_000_000)
    if not are_parquet(sources.paths):
        found = found.unionByName(selection.damaged(sources.read(spark, BATCHES, selection.BATCH_COLUMNS)), True)
        lost = [
            (store, number, selection.MISSING)
            for store, numbers in gaps.of_files(spark, sources).missing.items()
            for number in numbers
        ]
        found = found.unionByName(spark.createDataFrame(lost, "store STRING, file INT, fate STRING"), True)
    written = Results(spark, out).write(found, SELECTION)
    if records is not None:
        records.unpersist()
    return written


def _asked(sources: Sources, request: ReplayRequest, target: Target) -> dict[str, Any]:
    """Return the options that must be equal to those of the begun replay, in the form in which JSON restores them."""
    paths = [path if "://" in path else os.path.abspath(path) for path in sources.paths]
    files = {"tail": sources.is_tail_wanted, "from_file": sources.first, "to_file": sources.last}
    options = {"sources": paths, **files, **asdict(request), "as": target.destination}
    asked: dict[str, Any] = json.loads(json.dumps(options, default=str))
    return asked


def _begun(ledger: Ledger, sources: Sources, request: ReplayRequest, target: Target) -> Run | None:
    begun = ledger.run()
    if begun is None:
        return None
    asked = _asked(sources, request, target)
    other = sorted(name for name in asked if begun.asked.get(name) != asked[name])
    if other:
        raise ValueError(
            f"{ledger.directory.parent} holds another replay ({', '.join(other)} differ): choose another directory"
        )
    if not set(begun.addresses) & set(_addresses(target)):
        raise ValueError(
            f"{ledger.directory.parent} holds a replay to {', '.join(begun.addresses)}: choose another directory"
        )
    return begun


def _addresses(target: Target) -> tuple[str, ...]:
    return tuple(map(str, FailoverUrl.parse(target.url).addresses))


# ---- the plan


def _planned(
    spark: SparkSession, sources: Sources, out: str, request: ReplayRequest, target: Target, ledger: Ledger
) -> Run:
    chosen = _selected(spark, sources, out, request).where(F.col("fate") == selection.SEND)
    slices = tuple(_slices(chosen, request))
    firsts: dict[tuple[str, str], int] = {}
    for slice in slices:
        firsts.setdefault((slice.destination_type, slice.destination), slice.number)
    queue = ["destination_type", "destination"]
    of_queue = spark.createDataFrame(
        [(*name, number) for name, number in firsts.items()], "destination_type STRING, destination STRING, base INT"
    )
    numbered = chosen.join(F.broadcast(of_queue), queue).select(
        *PLACE, "number", (F.col("base") + _piece(request)).cast("int").alias("slice")
    )
    messages = table(spark, sources, MESSAGES)
    assert messages is not None, "all sources have messages"
    sent, expires = F.unix_millis("sent").alias("sent_ms"), F.unix_millis("expires").alias("expires_ms")
    (
        numbered.join(messages.select(*PLACE, *_PLAN_COLUMNS, sent, expires), list(PLACE))
        .drop(*PLACE)
        .repartition("slice")
        .sortWithinPartitions("slice", "number")
        .write.mode("overwrite")
        .options(**_PLAN_OPTIONS)
        .partitionBy("slice")
        .parquet(f"file:{ledger.plan}")  # independent of the cluster's default file system
    )
    begun = Run(uuid.uuid4().hex, _asked(sources, request, target), _addresses(target), slices)
    ledger.begin(begun)
    return begun


def _slices(chosen: DataFrame, request: ReplayRequest) -> Sequence[Slice]:
    found = (
        chosen.groupBy("destination_type", "destination", _piece(request).alias("piece"))
        .agg(
            F.min("number").alias("first"),
            F.max("number").alias("last"),
            F.sum("body_bytes").alias("bytes"),
            F.min_by("message_id", "number").alias("first_id"),
            F.max_by("message_id", "number").alias("last_id"),
        )
        .orderBy("destination_type", "destination", "piece")
        .drop("piece")
        .collect()
    )
    return [Slice(number, *row) for number, row in enumerate(found)]


def _piece(request: ReplayRequest) -> Column:
    """Return the slice of a message within its destination, by its number: from 0, without gaps."""
    return F.lit(0) if request.is_ordered else F.floor((F.col("number") - 1) / SLICE_MESSAGES)


# ---- sending


def _send(
    spark: SparkSession,
    ledger: Ledger,
    begun: Run,
    left: Sequence[Slice],
    request: ReplayRequest,
    target: Target,
    progress: Callable[[int, int], None] | None,
) -> None:
    tasks = min(target.tasks, TASKS_MAX, _slots(spark), len(left))
    to = None if target.destination is None else write_destination(destination_of(target.destination))
    ledger.begin_round(
        Round(
            target.url,
            target.login,
            None if target.passcode_file is None else os.path.abspath(target.passcode_file),
            None if target.per_second is None else target.per_second / tasks,
            to,
            request.is_expired_sent,
            shared(left, tasks),
            target.tls,
        )
    )
    with _watched(ledger, left, progress):
        if is_local():
            send_tasks(str(ledger.directory), tasks)
        else:
            from tandemmq.pipeline.sending.sink import send

            send(spark, str(ledger.directory), tasks)


@contextmanager
def _watched(ledger: Ledger, slices: Sequence[Slice], progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Call ``progress`` periodically on a thread, and once at the end, with the number of messages of ``slices`` at the
    broker and the number of all."""
    if progress is None:
        yield
        return
    is_over = threading.Event()
    total = sum(slice.messages for slice in slices)

    def tell() -> None:
        progress(sum(ledger.progress(slice.number).sent(slice) for slice in slices), total)

    def watch() -> None:
        while not is_over.wait(WATCH_SECONDS):
            tell()

    watcher = threading.Thread(target=watch, name="tandemmq-replay-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        tell()


def _slots(spark: SparkSession) -> int:
    """Return how many tasks run at once, as Spark reports it. Without Spark, all run at once in one loop."""
    if is_local():
        return TASKS_MAX
    slots: int = spark.range(TASKS_MAX * 10).select(F.spark_partition_id()).distinct().count()
    return slots


def shared(slices: Sequence[Slice], tasks: int) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the slices for each of ``tasks``, so that all tasks send about the same amount."""
    loads = [0] * tasks
    given: list[list[int]] = [[] for _ in range(tasks)]
    for slice in sorted(slices, key=lambda each: each.messages, reverse=True):
        task = loads.index(min(loads))
        loads[task] += slice.messages
        given[task].append(slice.number)
    return tuple(tuple(sorted(numbers)) for numbers in given)
