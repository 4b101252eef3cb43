"""``tandemmq pipeline at``: the contents of queues and durable subscriptions at a given time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from tandemmq.cli.pipeline.common_options import answer, common_options, moment, whole_stores


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
