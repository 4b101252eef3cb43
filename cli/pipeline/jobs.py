"""The jobs of ``tandemmq pipeline`` that read: composition, verify, duplicates, dlq, pins, latency, at and archive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from tandemmq.cli.pipeline.common import (
    answer,
    common_options,
    journals_there,
    moment,
    time_ms,
    whole_seconds,
    whole_stores,
)
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.lake import BY_DATE, BY_DESTINATION, LEDGER, Layout
from tandemmq.pipeline.stopping import Stopped, stop_on_sigterm


@click.command
@common_options
def composition(**common: Any) -> None:
    """Show what fills the files of SOURCES: bytes by command, destination, file and hour.

    Exit code 1 if the parts of a file do not add up to its size.
    """
    answer("composition", **common)


@click.command
@common_options
def verify(**common: Any) -> None:
    """Verify all checksums in SOURCES; show damage and the messages concerned.

    Exit code 1 if there is damage.
    """
    answer("verify", **common)


@click.command
@common_options
def duplicates(**common: Any) -> None:
    """Find messages that were stored twice: the same id, the same number of a producer, the same body.

    Exit code 1 for the first two; equal bodies may be intended.
    """
    answer("duplicates", **common)


@click.command
@common_options
def dlq(**common: Any) -> None:
    """Show dead letters with origin and cause, grouped by cause.

    Exit code 1 if dead letters are still in their queues.
    """
    answer("dlq", **common)


@click.command
@common_options
def pins(**common: Any) -> None:
    """Show why each file of the stores in SOURCES is kept: `tandemmq store why` for many stores.

    It always reads the newest file of each store. Exit code 1 if a journal is damaged, because the result is then
    incomplete.
    """
    answer("pins", check=whole_stores, **common)


@click.command
@common_options
@click.option(
    "--window",
    metavar="TIME",
    callback=whole_seconds,
    help="Length of a window.  [default: depends on the time that the messages span]",
)
@click.option(
    "--mark-interval",
    metavar="TIME",
    callback=time_ms,
    help="The brokers' clock_mark_interval, if it was the same for all SOURCES. It reduces errors at times with few "
    "records; with a value that is too short, the errors are wrong.",
)
def latency(window: int | None, mark_interval: int | None, **common: Any) -> None:
    """Show how long messages of SOURCES waited from store to acknowledgement, and how many wait, by destination and
    window, with the possible error of each figure.

    Times come from the clock marks of TandemMQ, else from the messages around.
    """
    answer("latency", {"window_seconds": window, "mark_interval_ms": mark_interval}, **common)


@click.command
@common_options
@click.option("--time", callback=moment, metavar="TIME", help="The moment: 2026-11-20T02:14:00Z.")
@click.option(
    "--file", "file", type=click.IntRange(1), metavar="N", help="Instead of --time: number N of db-N.log, exact."
)
@click.option("--offset", type=click.IntRange(0), default=0, metavar="BYTES", help="With --file: before this offset.")
@click.option("--destination", "destinations", multiple=True, metavar="NAME", help="Only this destination; repeatable.")
@click.option("--bodies", "with_bodies", is_flag=True, help="Include bodies.")
@click.option("--prioritized", "is_prioritized", is_flag=True, help="Order by priority (prioritizedMessages).")
def at(time: datetime | None, file: int | None, **common: Any) -> None:
    """Show what was in the queues and durable subscriptions of SOURCES at a time, or at a place in the journal.

    It always reads the newest file of each store. Exit code 1 if files of that moment are missing, or a journal is
    damaged.
    """
    if (time is None) == (file is None):
        raise click.UsageError("name the moment: either --time, or --file and --offset")
    own = {name: common.pop(name) for name in ("offset", "destinations", "with_bodies", "is_prioritized")}
    answer("at", {"time": time, "file": file, **own}, check=whole_stores, **common)


@click.command
@common_options
@click.option("--every", callback=whole_seconds, metavar="10s", help="Repeat at this interval until SIGTERM.")
@click.option("--destination", "destinations", multiple=True, metavar="NAME", help="Only this destination; repeatable.")
@click.option(
    "--by",
    type=click.Choice([BY_DESTINATION, BY_DATE]),
    default=BY_DESTINATION,
    help="Directories by date and destination, or by date only (for thousands of destinations).",
)
@click.option("--raw", is_flag=True, help="Include the OpenWire frames of messages.")
@click.option("--skip-lost", is_flag=True, help="Continue if files were deleted before they were added.")
def archive(
    every: int | None, destinations: tuple[str, ...], by: str, raw: bool, skip_lost: bool, **common: Any
) -> None:
    """Add the closed files of SOURCES to the message lake --out as Parquet, each file once.

    You can kill it at any time. Exit code 1 if files were deleted before they were added.
    """
    if common["tail"]:
        raise click.UsageError("--tail is not possible here: the lake has only closed files")
    own = {
        "every": every,
        "layout": Layout(by, tuple(sorted(set(destinations))), raw),
        "is_lost_skipped": skip_lost,
        "report": lambda text: click.echo(text, err=True),
    }
    # With --every, the job may begin before its stores exist.
    check: Callable[[Sources], int | None] = journals_there if every is None else lambda sources: None
    out: Path = common["out"]
    stop_on_sigterm()  # it may end anywhere: the lake is always complete
    try:
        answer("archive", own, check=check, report_in=out / LEDGER, **common)
    except Stopped:
        click.echo("stopped before it began", err=True)
