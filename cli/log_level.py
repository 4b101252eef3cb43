"""``tandemmq log-level``: show or set the log levels of a running broker."""

from __future__ import annotations

from typing import Final

import click

from tandemmq.broker.process.log import DEFAULT, LEVELS
from tandemmq.cli.admin_call import answer_understood, call
from tandemmq.cli.answers import json_option, tell
from tandemmq.cli.status import admin_option
from tandemmq.cli.table import Column, print_table

_SECONDS_MAX: Final = 10.0


@click.command()
@admin_option("Admin address of the broker.")
@click.argument("logger", required=False)
@click.argument("level", required=False, type=click.Choice([*LEVELS, DEFAULT]))
@json_option
def log_level(admin: str, logger: str | None, level: str | None, as_json: bool) -> None:
    """Set the LEVEL of a LOGGER and all below it, or show the levels that are set.

    LOGGER is a package or module of the broker, such as store or broker.net, or tandemmq for all of it. The level lasts
    until the broker reads its settings again (SIGHUP) or ends; "default" returns to the settings.
    """
    if (logger is None) != (level is None):
        raise click.UsageError("a LOGGER and a LEVEL, or neither")
    query = {"logger": logger, "level": level}
    found = call(admin, "log-level", query, method="GET" if logger is None else "POST", seconds_max=_SECONDS_MAX)
    if as_json:
        tell(as_json, found)
        return
    with answer_understood(admin):
        print_table([Column("logger"), Column("level")], sorted(found["levels"].items()))
