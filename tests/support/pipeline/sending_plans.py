"""Plans of a replay as Spark writes them, for tasks that run without Spark."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from tandemmq.client.tls import NO_FILES, TlsFiles
from tandemmq.pipeline.sending.ledger import Ledger, Round, Run, Slice


def row(number: int, destination: str, **others: Any) -> dict[str, Any]:
    return {
        "number": number,
        "destination_type": "queue",
        "destination": destination,
        "message_id": f"ID:p:1:1:{number}",
        "correlation_id": None,
        "reply_to": None,
        "priority": 4,
        "persistent": True,
        "sent_ms": 1_700_000_000_000 + number,
        "expires_ms": None,
        "type": None,
        "group_id": None,
        "group_sequence": 0,
        "properties": [],
        "body_kind": "text",
        "body": f"body {number}".encode(),
        **others,
    }


def plan_of(
    directory: Path, rows: list[dict[str, Any]], to: str, rate: float | None = None, tls: TlsFiles = NO_FILES
) -> Ledger:
    """Write a plan with one slice of these rows, for one task."""
    ledger = Ledger(directory)
    place = ledger.plan / "slice=0"
    place.mkdir(parents=True)
    types = {"properties": pa.map_(pa.string(), pa.string()), "expires_ms": pa.int64()}
    texts = dict.fromkeys(("correlation_id", "reply_to", "type", "group_id"), pa.string())
    schema = pa.schema([(name, {**types, **texts}.get(name) or pa.scalar(rows[0][name]).type) for name in rows[0]])
    parquet.write_table(pa.Table.from_pylist(rows, schema), place / "part-0.parquet")
    own = Slice(0, "queue", rows[0]["destination"], 1, len(rows), 0, "", "")
    ledger.begin(Run(uuid.uuid4().hex, {}, (to,), (own,)))
    ledger.begin_round(Round(to, None, None, rate, None, False, ((0,),), tls))
    return ledger
