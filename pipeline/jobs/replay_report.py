"""Report of a replay: messages that it sent or would send, refused messages, and messages that are not sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs import selection
from tandemmq.pipeline.jobs.summary import Summary
from tandemmq.pipeline.jobs.tables import ROWS_SHOWN, Results
from tandemmq.pipeline.sending.ledger import Ledger, Progress, Run
from tandemmq.pipeline.table import Cell, Table, size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SELECTION: Final = "replay_selection"
LEDGER: Final = "replay_ledger"
REFUSED: Final = "replay_refused"


def dry_summary(chosen: DataFrame, out: str, rate: float | None) -> Summary:
    queue = ("destination_type", "destination")
    counted = (
        chosen.where(F.col("fate") == selection.SEND)
        .groupBy(*queue)
        .agg(
            F.count("*").alias("messages"),
            F.sum("body_bytes").alias("bytes"),
            F.min_by("message_id", "number").alias("first"),
            F.max_by("message_id", "number").alias("last"),
        )
        .orderBy(*queue)
        .collect()
    )
    messages, length = sum(row.messages for row in counted), sum(row.bytes for row in counted)
    findings = [f"{messages:,} messages, {size(length)} of bodies, would be sent; nothing was."]
    if rate is not None:
        findings.append(f"At {rate:g} a second that takes {messages / rate:,.0f} seconds.")
    told = _shown(
        "Messages that would be sent",
        ("destination_type", "destination", "messages", "bytes", "first", "last"),
        [list(row) for row in counted],
    )
    left, sentences, is_clean = _left_out(chosen)
    return Summary(
        "replay", (*findings, *sentences), (told, left), is_clean=is_clean, written={SELECTION: f"{out}/{SELECTION}"}
    )


# Reasons why selected messages were not sent.
_FAILED: Final = {
    selection.IN_DOUBT: "of transactions that have no outcome in the files read",
    selection.UNSENDABLE: "with a body or a destination that STOMP cannot send",
    selection.UNREADABLE: "that cannot be read",
    selection.WITHOUT_BODY: "without a body in this Parquet",
    selection.DAMAGED: "damaged places of the journal, with unknown content",
    selection.MISSING: "files of the journal that are missing, with unknown content",
}
_EXCLUDED: Final = {
    selection.EXPIRED: "that have expired",
    selection.ACKNOWLEDGED: "that were acknowledged",
    selection.ROLLED_BACK: "that were rolled back",
    selection.PRIVATE: "that the broker keeps for itself, of MQTT sessions and bridges",
    selection.SCHEDULED: "that wait in the broker's own queue until they are due",
}


def _left_out(chosen: DataFrame) -> tuple[Table, list[str], bool]:
    """Return a table of the messages that are not sent, by destination and reason; sentences about them; and whether
    all selected messages are sent."""
    found = (
        chosen.where(F.col("fate") != selection.SEND)
        .groupBy("destination_type", "destination", "fate")
        .agg(F.count("*").alias("messages"))
        .orderBy("destination_type", "destination", "fate")
        .collect()
    )
    counts: dict[str, int] = {}
    for row in found:
        counts[row.fate] = counts.get(row.fate, 0) + row.messages
    sentences = [
        f"Not sent: {counts[fate]:,} {text}." for fate, text in (_FAILED | _EXCLUDED).items() if fate in counts
    ]
    columns = ("destination_type", "destination", "reason", "messages")
    return _shown("Left out", columns, [list(row) for row in found]), sentences, not set(_FAILED) & set(counts)


def _shown(title: str, columns: tuple[str, ...], rows: list[list[Cell]]) -> Table:
    note = f"the first {ROWS_SHOWN} of {len(rows):,}" if len(rows) > ROWS_SHOWN else None
    return Table(title, columns, rows[:ROWS_SHOWN], note)


_LEDGER_SCHEMA: Final = (
    "run_id STRING, slice INT, destination_type STRING, destination STRING, first_number BIGINT, last_number BIGINT, "
    "first_id STRING, last_id STRING, messages BIGINT, sent BIGINT, refused BIGINT, attempts INT, noted TIMESTAMP"
)
_REFUSED_SCHEMA: Final = "destination_type STRING, destination STRING, number BIGINT, reason STRING"


def summary(spark: SparkSession, out: str, ledger: Ledger, begun: Run, before: dict[int, Progress]) -> Summary:
    after = {slice.number: ledger.progress(slice.number) for slice in begun.slices}
    chosen = spark.read.parquet(f"{out}/{SELECTION}")
    results = Results(spark, out)
    results.write(spark.createDataFrame(_ledger_rows(begun, after), _LEDGER_SCHEMA), LEDGER)
    turned_away = results.write(_refused(spark, begun, after, chosen), REFUSED)
    queues: dict[tuple[str, str], list[int]] = {}
    for slice in begun.slices:
        now, earlier = after[slice.number], before[slice.number].sent(slice)
        sent, refused = now.sent(slice) - earlier, len(now.refused)
        figures = (slice.messages, sent, earlier, refused, slice.messages - now.sent(slice) - refused)
        sums = queues.setdefault((slice.destination_type, slice.destination), [0] * len(figures))
        sums[:] = map(sum, zip(sums, figures, strict=True))
    messages, sent, earlier, refused, missing = (sum(each[n] for each in queues.values()) for n in range(5))
    findings = [f"{sent:,} messages were sent, and the broker confirmed each."]
    if earlier:
        findings.append(f"{earlier:,} were there already, from earlier runs.")
    if refused:
        findings.append(f"{refused:,} were refused: remove the cause, then run the command again.")
    if missing:
        findings.append(f"{missing:,} of {messages:,} are still to be sent: run the command again.")
    told = _shown(
        "By destination",
        ("destination_type", "destination", "messages", "sent", "earlier", "refused", "to_send"),
        [[*name, *figures] for name, figures in queues.items()],
    )
    why = [list(row) for row in turned_away.orderBy("destination", "number").take(ROWS_SHOWN)]
    reasons = Table("Refused", ("destination_type", "destination", "number", "message_id", "reason"), why)
    left, sentences, is_clean = _left_out(chosen)
    return Summary(
        "replay",
        (*findings, *sentences),
        (told, left, reasons) if refused else (told, left),
        is_clean=is_clean and not refused and not missing,
        written={SELECTION: f"{out}/{SELECTION}", **results.written},
    )


def _ledger_rows(begun: Run, after: dict[int, Progress]) -> list[tuple[Any, ...]]:
    rows = []
    for slice in begun.slices:
        now = after[slice.number]
        noted = datetime.fromtimestamp(now.noted_ms / 1000, UTC) if now.noted_ms else None
        own = (slice.number, slice.destination_type, slice.destination, slice.first, slice.last)
        ids = (slice.first_id, slice.last_id, slice.messages)
        rows.append((begun.run_id, *own, *ids, now.sent(slice), len(now.refused), now.attempts, noted))
    return rows


def _refused(spark: SparkSession, begun: Run, after: dict[int, Progress], chosen: DataFrame) -> DataFrame:
    rows = [
        (slice.destination_type, slice.destination, number, why)
        for slice in begun.slices
        for number, why in after[slice.number].refused.items()
    ]
    key = ["destination_type", "destination", "number"]
    found = spark.createDataFrame(rows, _REFUSED_SCHEMA).join(chosen.select(*key, "message_id"), key)
    return found.select(*key, "message_id", "reason")
