"""``tandemmq top``: the busiest queues of a running broker, refreshed periodically."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import click

from tandemmq.cli.answers import json_option
from tandemmq.cli.api import rows
from tandemmq.cli.status import admin_option, ask
from tandemmq.cli.table import Column, lines, terminal_width

_COLUMNS: Final = (
    Column("queue"),
    Column("messages", is_number=True),
    Column("in/s", is_number=True),
    Column("out/s", is_number=True),
    Column("unacknowledged", is_number=True),
    Column("consumers", is_number=True),
)
_CLEAR: Final = "\x1b[H\x1b[J"


@click.command()
@admin_option("Admin address of the master.")
@click.option("--interval", type=click.FloatRange(0.2), default=2.0, show_default=True, metavar="SECONDS")
@click.option(
    "--count", type=click.IntRange(1), metavar="COUNT", help="End after this number of updates. Default: at Ctrl-C."
)
@click.option("--rows", "height", type=click.IntRange(1), default=20, show_default=True, metavar="COUNT")
@json_option
def top(admin: str, interval: float, count: int | None, height: int, as_json: bool) -> None:
    """Show the busiest queues with their rates. With --json one object in each line."""
    former: dict[str, dict[str, Any]] = {}
    at = time.monotonic()
    looked = 0
    try:
        while True:
            now = time.monotonic()
            found = {row["name"]: row for row in rows(admin, "destinations/queue", None)}
            rates = [_rates(row, former.get(name), now - at) for name, row in found.items()] if looked else []
            if looked:
                _show(admin, rates, height, as_json)
                if looked == count:
                    return
            former, at = found, now
            looked += 1
            time.sleep(interval)
    except KeyboardInterrupt:
        return


def _rates(row: dict[str, Any], former: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
    def rate(name: str) -> float:
        # The counters of a purged queue restart.
        more: int = row[name] - (former or row)[name]
        return round(max(0, more) / seconds, 1)

    return row | {"in_per_second": rate("enqueued"), "out_per_second": rate("dequeued")}


def _show(admin: str, rates: list[dict[str, Any]], height: int, as_json: bool) -> None:
    busiest = sorted(rates, key=lambda row: (-row["in_per_second"] - row["out_per_second"], -row["messages"]))[:height]
    if as_json:
        click.echo(json.dumps({"queues": busiest}))
        return
    status = ask(admin)
    table = [
        (
            row["name"],
            row["messages"],
            row["in_per_second"],
            row["out_per_second"],
            row["unacknowledged"],
            row["consumers"],
        )
        for row in busiest
    ]
    width = terminal_width()
    head = f"{status.get('name', admin)}: {status['role']} of epoch {status['epoch']}, {len(rates)} queues"
    text = "\n".join([head, "", *lines(_COLUMNS, table, width)])
    click.echo(f"{_CLEAR}{text}" if width is not None else f"{text}\n")
