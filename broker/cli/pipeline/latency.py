"""``tandemmq pipeline latency``: how long messages waited, and how many wait."""

from __future__ import annotations

from typing import Any

import click

from broker.cli.pipeline.asked import answer, asked
from config.units import milliseconds

WINDOW_MS_MIN = 1000


def _window(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """In seconds, as the job wants it."""
    length = _time(context, parameter, value)
    assert length is not None, "there is a default"
    if length < WINDOW_MS_MIN or length % 1000:
        raise click.BadParameter(f"whole seconds, one at least, not {value!r}")
    return length // 1000


def _time(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return milliseconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, not {value!r}") from None


@click.command
@asked
@click.option("--window", metavar="TIME", default="1h", show_default=True, callback=_window, help="Figures for each.")
@click.option(
    "--mark-interval",
    metavar="TIME",
    callback=_time,
    help="The brokers' clock_mark_interval, if it was the same for all of SOURCES. Narrows the times of "
    "acknowledgements where little happened; too short a one makes them wrong.",
)
def latency(window: int, mark_interval: int | None, **common: Any) -> None:
    """How long messages of SOURCES waited from when they were stored to when they were acknowledged, and how many
    wait, by destination and hour; with how far each figure may be from the truth.

    Times are known from clock marks, which this broker writes; without, from the messages around.
    """
    answer("latency", {"window_seconds": window, "mark_interval_ms": mark_interval}, **common)
