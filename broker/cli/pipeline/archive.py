"""``tandemmq pipeline archive``: journals into a message lake, once or for ever."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from broker.cli.pipeline.asked import answer, asked, journals_there
from broker.pipeline.jobs.tables import Sources
from broker.pipeline.lake import BY_DATE, BY_DESTINATION, LEDGER, Layout
from broker.pipeline.stopping import Stopped, stop_on_sigterm

_UNITS = {"s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(\d+)([smh])")


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds, written as 10s, 5m or 1h."""
    if value is None:
        return None
    matched = _DURATION.fullmatch(value)
    if matched is None or not int(matched[1]):
        raise click.BadParameter(f"{value!r} is no duration such as 10s, 5m or 1h", ctx, param)
    return float(int(matched[1]) * _UNITS[matched[2]])


@click.command
@asked
@click.option("--every", callback=duration, metavar="10s", help="Go on until SIGTERM, and look so often.")
@click.option("--destination", "destinations", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option(
    "--by",
    type=click.Choice([BY_DESTINATION, BY_DATE]),
    default=BY_DESTINATION,
    show_default=True,
    help="Directories of messages: by date and destination, or by date only, for thousands of destinations.",
)
@click.option("--raw", is_flag=True, help="With the OpenWire frames of messages, as they were stored.")
@click.option("--skip-lost", is_flag=True, help="Go on without files that were deleted before their turn.")
def archive(
    every: float | None, destinations: tuple[str, ...], by: str, raw: bool, skip_lost: bool, **common: Any
) -> None:
    """Add the closed files of SOURCES to the message lake --out: Parquet, each file once, also when it is killed.

    Exit code 1 when files were deleted before they were added.
    """
    if common["tail"]:
        raise click.UsageError("the lake takes closed files only: --tail is not for it")
    own = {
        "every": every,
        "layout": Layout(by, tuple(sorted(set(destinations))), raw),
        "is_lost_skipped": skip_lost,
        "said": lambda text: click.echo(text, err=True),
    }
    out: Path = common["out"]
    stop_on_sigterm()  # it may end anywhere: the lake is whole at each moment
    try:
        answer("archive", own, check=_check_of(every), report_in=out / LEDGER, **common)
    except Stopped:
        click.echo("stopped before it began", err=True)


def _check_of(every: float | None) -> Callable[[Sources], None]:
    """Who goes on for ever may begin before its stores do."""
    return journals_there if every is None else lambda sources: None
