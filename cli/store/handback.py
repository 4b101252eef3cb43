"""``tandemmq store handback``: prepare a directory of TandemMQ for ActiveMQ."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile

import click

from tandemmq.cli.config import load_settings
from tandemmq.cli.output import json_option, say_each
from tandemmq.cli.store.directory import DIRECTORY, demand_journal, demand_unheld, failures_told, locked
from tandemmq.store.migration.handback import hand_back, rehearse
from tandemmq.store.migration.handback_report import Report


@click.command()
@click.argument("directory", type=DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--accept-order", is_flag=True, help="Continue although ActiveMQ would deliver in another order.")
@click.option("--config", metavar="FILE", help="Settings file of the broker, for its kind of lock.")
@click.option("--scratch", type=DIRECTORY, help="Directory of temporary indexes. Default: that of the system.")
@json_option
def handback(
    directory: str, dry_run: bool, accept_order: bool, config: str | None, scratch: str | None, as_json: bool
) -> None:
    """Prepare DIRECTORY for a start of ActiveMQ with the same messages in the same order.

    Journal files end where they count, records state what ActiveMQ would read differently, and its index is set aside
    for a new one. Nothing is deleted; TandemMQ can still open the directory. Exit code 1 if it is not ready: it is
    damaged, or a compaction has changed an order; then use `store export`.
    """
    demand_journal(directory)
    settings = None if config is None else load_settings(config)
    with failures_told(), tempfile.TemporaryDirectory(prefix="tandemmq-handback-", dir=scratch) as temporary:
        if dry_run:
            demand_unheld(directory, "stop it first, or look at a copy")
            report = rehearse(directory, temporary)
        else:
            with locked(directory, "store handback", settings) as has_proof:
                report = hand_back(directory, temporary, accepts_order=accept_order, has_proof=has_proof, says=_say)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    else:
        _tell(report, dry_run)
    sys.exit(0 if report.is_ready else 1)


def _say(step: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"{step} ...", err=True)


def _tell(report: Report, is_dry: bool) -> None:
    if report.was_done:
        click.echo("ready: it was handed back before, and nothing has been written since")
        return
    for text in report.ended:
        click.echo(f"{'would end' if is_dry else 'ended'} {text}")
    say_each("set aside ", report.set_aside)
    click.echo(
        f"recorded: {report.removed} messages removed, {report.copied} copied, "
        f"{report.subscriptions} subscriptions and {report.transactions} transactions repeated"
    )
    for text in report.reordered:
        click.echo(f"{'would correct the order of' if is_dry else 'order corrected:'} {text}")
    say_each("PROBLEM: ", report.problems)
    say_each("ORDER: ", report.order)
    if report.is_ready:
        click.echo("nothing prevents it" if is_dry else "ready: ActiveMQ may be started")
    elif report.problems:
        click.echo("NOT ready: use tandemmq store export")
    else:
        click.echo("NOT ready: use tandemmq store export, which keeps the order, or --accept-order")
