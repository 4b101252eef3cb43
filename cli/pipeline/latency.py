"""``tandemmq pipeline latency``: how long messages waited, and how many wait."""

from __future__ import annotations

from typing import Any

import click

from tandemmq.cli.pipeline.common_options import answer, common_options, time_ms, whole_seconds


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
    help="The brokers' clock_mark_interval, if it was the same for all of SOURCES. Narrows the times of "
    "acknowledgements where little happened; too short a one makes them wrong.",
)
def latency(window: int | None, mark_interval: int | None, **common: Any) -> None:
    """Show how long messages of SOURCES waited between storing and acknowledgement, and how many wait, by destination
    and window of time, with the error bound of each figure.

    Times come from the clock marks that this broker writes; without marks, from the messages around.
    """
    answer("latency", {"window_seconds": window, "mark_interval_ms": mark_interval}, **common)
