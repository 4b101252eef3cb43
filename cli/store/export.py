"""``tandemmq store export``: write a new directory with all live messages, for ActiveMQ or for TandemMQ."""

from __future__ import annotations

import os
import sys
import tempfile

import click

from tandemmq.cli.output import json_option, progress
from tandemmq.cli.store.directory import DIRECTORY, demand_journal, demand_unheld, failures_told, locked
from tandemmq.cli.store.transfers import show
from tandemmq.store.kahadb.minimal import write_minimal
from tandemmq.store.migration.transfer import carry_over, selecting
from tandemmq.store.records.loose import OPENWIRE_VERSION


@click.command("export")
@click.argument("directory", type=DIRECTORY)
@click.option("--to", "target", metavar="TARGET", required=True, type=click.Path(file_okay=False))
@click.option(
    "--destination", metavar="PATTERN", help="Only these destinations: queue://ORDERS.*, topic://>, NEWS.> ..."
)
@click.option("--scratch", type=DIRECTORY, help="Directory of temporary indexes. Default: that of the system.")
@json_option
def export(directory: str, target: str, destination: str | None, scratch: str | None, as_json: bool) -> None:
    """Write TARGET, a new directory with all live messages of DIRECTORY in their order, and verify it.

    ActiveMQ 5.17 and TandemMQ can open it. DIRECTORY is only read; no broker may run there. Exit code 1 if the
    verification fails.
    """
    demand_journal(directory)
    demand_unheld(directory, "stop it first, or export a copy")
    if os.path.isdir(target) and os.listdir(target):
        raise click.UsageError(f"{target} is not empty: an export begins a fresh directory")
    os.makedirs(target, 0o700, exist_ok=True)
    with (
        failures_told(),
        tempfile.TemporaryDirectory(prefix="tandemmq-export-", dir=scratch) as temporary,
        locked(target, "store export") as has_proof,
    ):
        selects = selecting(destination)
        carried = carry_over(
            directory, target, temporary, name="export", selects=selects, has_proof=has_proof, progress=progress
        )
        write_minimal(target, OPENWIRE_VERSION)
    show(carried, [], as_json)
    sys.exit(1 if carried.differences else 0)
