"""``tandemmq pipeline archive``: add journals to a message lake, once or continuously."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tandemmq.cli.pipeline.common_options import answer, common_options, journals_there, whole_seconds
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.lake import BY_DATE, BY_DESTINATION, LEDGER, Layout
from tandemmq.pipeline.stopping import Stopped, stop_on_sigterm


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
        raise click.UsageError("the lake takes closed files only: --tail is not for it")
    own = {
        "every": every,
        "layout": Layout(by, tuple(sorted(set(destinations))), raw),
        "is_lost_skipped": skip_lost,
        "report": lambda text: click.echo(text, err=True),
    }
    out: Path = common["out"]
    stop_on_sigterm()  # it may end anywhere: the lake is always complete
    try:
        answer("archive", own, check=_check_of(every), report_in=out / LEDGER, **common)
    except Stopped:
        click.echo("stopped before it began", err=True)


def _check_of(every: int | None) -> Callable[[Sources], int | None]:
    """Return the check of the sources. With --every, the job may begin before its stores exist."""
    return journals_there if every is None else lambda sources: None
