"""``python -m tandemmq.bench.store``: cost of the store, and speed of its recovery. Each scenario prints JSON.

starts      time to serve after kill -9 under load, over stores of several sizes
reading     a journal without an index: TandemMQ's start and ``store check`` beside ActiveMQ's start
checkpoint  the same load with and without checkpoints over a million live messages
compaction  one message that no consumer takes in each file of 2 GB
backlog     ten million small messages: memory, disk, start
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tandemmq.bench.driver.load import run_load
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.process import end_in_order_at_sigterm, peak_bytes
from tandemmq.bench.journals import write_journal
from tandemmq.bench.peers.brokers import ActiveMQ
from tandemmq.bench.peers.server import TREE, Server, TandemMQ
from tandemmq.bench.report import as_json, head

Figures = dict[str, Any]

START_SECONDS_MAX = 1_800.0
MESSAGE_BYTES = 1_024
RECORD_BYTES = 1_290  # of a message of MESSAGE_BYTES in the journal
LOAD_SECONDS = 8.0
# So rare that none occurs within a run.
NO_CHECKPOINTS = (
    "store.checkpoint_interval=1h",
    "store.checkpoint_records=1000000000",
    "store.checkpoint_bytes=1000gb",
    "store.recovery_budget=10h",
)


@contextmanager
def serving(server: Server) -> Iterator[float]:
    """Run a server during the block; yield the seconds from its start until it answered."""
    server.start_timeout_seconds = START_SECONDS_MAX
    started = time.monotonic()
    try:
        server.start()
        server.wait_until_it_serves()
        yield time.monotonic() - started
    finally:
        server.discard()


def plan(server: Server, **changes: Any) -> LoadPlan:
    usual = LoadPlan(server.endpoint, seconds=LOAD_SECONDS, server_pid=server.pid, admin_url=server.admin_url)
    return replace(usual, **changes)


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def starts(work: Path, sizes: Sequence[float]) -> Figures:
    """Fill, serve once to build an index, load, kill -9, start: measure the effect of the size."""
    rows = []
    for size in sizes:
        data = work / f"{size:g}"
        messages = int(size * 1e9 / RECORD_BYTES)
        written = write_journal(data, messages, MESSAGE_BYTES)
        with serving(with_index := TandemMQ(data=data)) as first:
            loaded = run_load(plan(with_index)).figures()
            with_index.kill()
        with serving(again := TandemMQ(data=data)) as seconds:
            status = again.status()
        with serving(TandemMQ()) as alone:
            pass
        rows.append(
            {
                "journal_bytes": written,
                "messages": messages,
                "journal_alone_seconds": round(first, 2),
                "load_per_second": loaded["sent_per_second"],
                "after_kill_seconds": round(seconds, 3),
                "empty_store_seconds": round(alone, 3),
                "recovery": status["recovery"],
                "index_bytes": disk_bytes(data / "index"),
            }
        )
        shutil.rmtree(data)
    return {"starts": rows}


def reading(work: Path, messages: int) -> Figures:
    """Measure both brokers with the same journal, without an index."""
    rows: Figures = {}
    ours, theirs = work / "ours", work / "theirs"
    written = write_journal(ours, messages, 200)
    shutil.copytree(ours, theirs / "kahadb")
    with serving(broker := TandemMQ(data=ours)):
        recovery = broker.status()["recovery"]
    rows["recovery_seconds"] = recovery["seconds"]
    rows["records_per_second"] = round(recovery["records"] / recovery["seconds"])
    rows["megabytes_per_second"] = round(written / 1e6 / recovery["seconds"], 1)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tandemmq", "store", "check", str(ours), "--json"],
        cwd=TREE,
        capture_output=True,
        check=True,
    )
    check = json.loads(done.stdout)
    rows["check_seconds"] = check["seconds"]
    rows["check_command_seconds"] = round(time.monotonic() - started, 2)
    rows["check_records_per_second"] = round(check["records"] / check["seconds"])
    with serving(ActiveMQ(data=theirs)) as seconds:
        rows["activemq_start_seconds"] = round(seconds, 2)
    with serving(ActiveMQ()) as seconds:
        rows["activemq_start_empty_seconds"] = round(seconds, 2)
    replayed = rows["activemq_start_seconds"] - rows["activemq_start_empty_seconds"]
    rows["ratio_recovery"] = round(replayed / rows["recovery_seconds"], 2)
    rows["ratio_check"] = round(replayed / rows["check_seconds"], 2)
    return {"messages": messages, "journal_bytes": written, **rows}


def checkpoint(work: Path, messages: int, rounds: int) -> Figures:
    """Measure the full load over many live messages, with checkpoints and without, in turn."""
    data = work / "data"
    write_journal(data, messages, MESSAGE_BYTES)
    rows: list[Figures] = []
    for number in range(rounds):
        kinds = [("with", ()), ("without", NO_CHECKPOINTS)]
        for kind, settings in kinds if number % 2 == 0 else reversed(kinds):
            with serving(broker := TandemMQ(data=data, settings=settings)):
                before = broker.status()["counts"]
                began = time.monotonic()
                load = run_load(plan(broker, seconds=15.0)).figures()
                seconds = time.monotonic() - began
                counts = broker.status()["counts"]
            rows.append(
                {
                    "checkpoints": kind,
                    "sent_per_second": load["sent_per_second"],
                    "receipt_p50_ms": load["receipt_p50_ms"],
                    "receipt_p99_ms": load["receipt_p99_ms"],
                    "checkpoints_made": counts["checkpoints_total"] - before["checkpoints_total"],
                    "checkpoint_share": round(
                        (counts["checkpoint_seconds_total"] - before["checkpoint_seconds_total"]) / seconds, 3
                    ),
                    "loop_pause_max_ms": counts["loop_pause_max_ms"],
                }
            )

    def mean(kind: str) -> float:
        total: float = sum(row["receipt_p99_ms"] for row in rows if row["checkpoints"] == kind)
        return total / rounds

    return {
        "messages": messages,
        "runs": rows,
        "p99_ratio": round(mean("with") / mean("without"), 2),
        "index_bytes_per_million": round(disk_bytes(data / "index") / messages * 1e6),
    }


def compaction(work: Path) -> Figures:
    """Measure compaction with one message in each file that no consumer takes."""
    data = work / "data"
    per_file = (32 << 20) // (RECORD_BYTES + 70)
    written = write_journal(data, per_file * 64, MESSAGE_BYTES, live_every=per_file)
    with serving(broker := TandemMQ(data=data)) as first:
        began = time.monotonic()
        load = run_load(plan(broker, seconds=10.0)).figures()
        seconds = time.monotonic() - began
        status = broker.status()
        after = sum(path.stat().st_size for path in data.glob("db-*.log"))
    return {
        "journal_bytes_before": written,
        "journal_bytes_after": after,
        "start_seconds": round(first, 2),
        "within_seconds": round(seconds, 2),
        "compaction_bytes": status["counts"]["compaction_bytes_total"],
        "sent_per_second_meanwhile": load["sent_per_second"],
        "receipt_p99_ms_meanwhile": load["receipt_p99_ms"],
    }


def backlog(work: Path, messages: int) -> Figures:
    """Measure the cost of many small messages: memory, disk, start."""
    data = work / "data"
    written = write_journal(data, messages, 40)
    with serving(broker := TandemMQ(data=data)) as first:
        recovery = broker.status()["recovery"]
        peak_first = peak_bytes(broker.pid)
        broker.kill()
    with serving(again := TandemMQ(data=data)) as second:
        peak = peak_bytes(again.pid)
    return {
        "messages": messages,
        "journal_bytes": written,
        "index_bytes": disk_bytes(data / "index"),
        "journal_alone_seconds": round(first, 2),
        "records_per_second": round(recovery["records"] / recovery["seconds"]),
        "peak_bytes_while_building_the_index": peak_first,
        "start_seconds": round(second, 3),
        "peak_bytes": peak,
    }


SCENARIOS: dict[str, Callable[[Path, float], Figures]] = {
    "starts": lambda work, scale: starts(work, [0.1 * scale, 1.0 * scale, 10.0 * scale]),
    "reading": lambda work, scale: reading(work, int(1_000_000 * scale)),
    "checkpoint": lambda work, scale: checkpoint(work, int(1_000_000 * scale), 2),
    "compaction": lambda work, scale: compaction(work),
    "backlog": lambda work, scale: backlog(work, int(10_000_000 * scale)),
}


@click.command()
@click.argument("scenario", type=click.Choice(list(SCENARIOS)))
@click.option("--scale", type=click.FloatRange(0.001), default=1.0, show_default=True, help="Smaller for a trial.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), help="A directory with enough space.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file, too.")
def main(scenario: str, scale: float, directory: Path | None, report: Path | None) -> None:
    """Measure the store on this machine. Starts and stops all servers, in a temporary directory."""
    end_in_order_at_sigterm()
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=directory, ignore_cleanup_errors=True) as work:
        figures = {**head(scenario), **SCENARIOS[scenario](Path(work), scale)}
    click.echo(as_json(figures, report))


if __name__ == "__main__":
    main()
