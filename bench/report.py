"""Figures as lines for people, and a report's description of the machine."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tandemmq.bench.backlog import BacklogResult
from tandemmq.bench.load import LoadResult
from tandemmq.bench.outage import OutageResult

MEBIBYTE = 1024 * 1024


def as_json(figures: Mapping[str, object], report: Path | None) -> str:
    """Return the figures as JSON; also write them to the file ``report`` if given."""
    text = json.dumps(figures, indent=2)
    if report is not None:
        report.write_text(text + "\n")
    return text


def machine() -> dict[str, object]:
    """Return the properties of the machine that affect the figures."""
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def commit() -> str | None:
    """Return the commit of this tree; None if it is no checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=Path(__file__).resolve().parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() or None


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as aligned columns. A row shorter than the first one is a sentence, and widens no column."""
    heads = rows[0]
    widths = [max(len(row[place]) for row in rows if len(row) == len(heads)) for place in range(len(heads))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]


def load_lines(result: LoadResult) -> list[str]:
    """Return the figures of a load, one a line."""
    handled = max(result.confirmed, result.received, 1)
    lines = []
    if result.sent:
        lines += [
            f"sent              {result.sent_per_second:12,.0f} msg/s   {result.confirmed:,} of {result.sent:,}",
            f"send to receipt   {_latency(result.receipt_p50_ms, result.receipt_p99_ms)}",
        ]
    if result.received:
        lines.append(f"received          {result.received_per_second:12,.0f} msg/s   {result.received:,} messages")
    if result.sent and result.received:
        lines.append(f"send to receive   {_latency(result.receive_p50_ms, result.receive_p99_ms)}")
    lines.append(f"driver CPU        {_cpu(result.driver_cpu_seconds, handled)}")
    if result.server_cpu_seconds is not None:
        lines.append(f"server CPU        {_cpu(result.server_cpu_seconds, handled)}")
    if result.server_peak_memory_bytes is not None:
        lines.append(f"server peak memory{result.server_peak_memory_bytes / MEBIBYTE:12,.1f} MiB")
    if result.messages_per_sync is not None:
        lines.append(f"messages per sync {result.messages_per_sync:12,.1f}         {result.syncs:,} syncs")
    if result.order is not None:
        order = result.order
        lines.append(
            f"order             {order.seen:12,} seen, {order.skipped:,} skipped, {order.late:,} late or repeated"
        )
    return lines


def backlog_lines(result: BacklogResult) -> list[str]:
    """Return the figures of filling and draining."""
    start, end = result.sent_per_second_at_start, result.sent_per_second_at_end
    verdict = "every message came out once, in order" if result.is_complete else "MESSAGES MISSING OR OUT OF ORDER"
    return [
        f"send rate         {start:12,.0f} msg/s at the start, {end:,.0f} at the end"
        + (f" ({end / start:.0%})" if start else ""),
        "filling:",
        *("  " + line for line in load_lines(result.fill)),
        "draining:",
        *("  " + line for line in load_lines(result.drain)),
        verdict,
    ]


def outage_lines(result: OutageResult) -> list[str]:
    """Return the figures of an outage."""
    return [
        f"outage            {result.outage_seconds:12.3f} s   last receipt before the kill to first receipt after it",
        f"until connected   {result.until_connected_seconds:12.3f} s   {result.attempts:,} attempts",
        f"taken over by     {result.survivor}",
        f"receipts          {result.confirmed_before:12,}     before, {result.confirmed_after:,} after",
    ]


def _cpu(seconds: float, messages: int) -> str:
    return f"{seconds:12,.2f} s       {seconds / messages * 1e6:.1f} us a message"


def _latency(median: float | None, tail: float | None) -> str:
    if median is None or tail is None:
        return "           –"
    return f"{median:12,.2f} ms p50  {tail:,.2f} ms p99"
