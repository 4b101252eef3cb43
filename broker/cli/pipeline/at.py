"""``tandemmq pipeline at``: what stood in queues and durable subscriptions at a moment."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click

from broker.cli.pipeline.asked import answer, asked, journals_there
from broker.pipeline.jobs.tables import Sources


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """A time as ISO 8601 has it, such as 2026-11-20T02:14:00Z; UTC where it says no zone."""
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no time such as 2026-11-20T02:14:00Z", ctx, param) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def whole_stores(sources: Sources) -> None:
    """Raises ValueError where files are left out, and as journals_there does."""
    if sources.first is not None or sources.last is not None:
        raise ValueError("a message may stand in any file: `at` takes no --from-file and no --to-file")
    journals_there(replace(sources, is_tail_wanted=True))


@click.command
@asked
@click.option("--time", callback=moment, metavar="TIME", help="The moment, such as 2026-11-20T02:14:00Z.")
@click.option("--file", "file", type=click.IntRange(1), metavar="N", help="Before what stands in db-N.log: exact.")
@click.option("--offset", type=click.IntRange(0), default=0, metavar="BYTES", help="With --file: before this offset.")
@click.option("--destination", "destinations", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option("--bodies", "with_bodies", is_flag=True, help="The bodies of the messages, too.")
@click.option("--prioritized", "is_prioritized", is_flag=True, help="The highest priority first (prioritizedMessages).")
def at(time: datetime | None, file: int | None, **common: Any) -> None:
    """What stood in the queues and durable subscriptions of SOURCES at a moment: a time, or a place in the journal.

    The newest file of each store is read, too, whatever --tail says. Exit code 1 when files are missing that were
    there then, or a journal is damaged: then something is not known.
    """
    if (time is None) == (file is None):
        raise click.UsageError("name the moment: either --time, or --file and --offset")
    own = {name: common.pop(name) for name in ("offset", "destinations", "with_bodies", "is_prioritized")}
    answer("at", {"time": time, "file": file, **own}, check=whole_stores, **common)
