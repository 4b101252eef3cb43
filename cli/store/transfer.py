"""Copies of a store: `backup` and `restore`, `store import` and `store export`, and `store handback` to ActiveMQ."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict
from typing import Any, Final

import click

from tandemmq.cli.config import load_settings
from tandemmq.cli.output import Column, json_option, print_table, progress, say_each, tell
from tandemmq.cli.store.directory import (
    DIRECTORY,
    demand_journal,
    demand_unheld,
    failures_reported,
    file_length,
    holder_of,
    locked,
)
from tandemmq.journal.files import JournalFiles
from tandemmq.modes import made_like
from tandemmq.store.kahadb.minimal import write_minimal
from tandemmq.store.migration.corrections import Report
from tandemmq.store.migration.handback import hand_back, rehearse
from tandemmq.store.migration.proof import Sum
from tandemmq.store.migration.survey import Survey, survey
from tandemmq.store.migration.transfer import Carried, carry_over, selecting
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.takeover.scheduler import find_scheduled_jobs
from tandemmq.store.tools.backup import Summary, back_up
from tandemmq.store.tools.backup import restore as put_back
from tandemmq.store.tools.inspect import read_headers

#: Columns of a Sum in a table.
SUM_COLUMNS: Final = (Column("messages", is_number=True), Column("bytes", is_number=True), Column("sha256"))
HASH_CHARS: Final = 16  # number of characters of a hash in a table; JSON has the whole hash
_COUNTED: Final = ("copied", "skipped", "subscriptions", "transactions", "left_aside")


@click.command()
@click.argument("target", type=click.Path(file_okay=False))
@click.option("--data", "directory", type=DIRECTORY, required=True, help="The data directory of the pair.")
@json_option
def backup(target: str, directory: str, as_json: bool) -> None:
    """Copy the store of a pair to TARGET, a new directory, and verify the copy.

    The brokers can run meanwhile; any host that sees the directory can do it. backup.json is written last: without it,
    TARGET is not a backup.
    """
    with failures_reported(), made_like(directory), progress("copying", 0) as advance:
        done = 0

        def copied(count: int) -> None:
            nonlocal done
            done += count
            advance(done)

        summary = back_up(directory, target, on_copied=copied)
    tell(as_json, {"backup": target, **asdict(summary)}, f"backed up and checked: {_in_words(summary)}")


@click.command()
@click.argument("source", type=DIRECTORY)
@click.option(
    "--data", "directory", type=click.Path(file_okay=False), required=True, help="Data directory, empty or missing."
)
@json_option
def restore(source: str, directory: str, as_json: bool) -> None:
    """Restore the backup SOURCE into an empty data directory. The broker builds its index at the next start."""
    with failures_reported(), made_like(source):
        summary = put_back(source, directory)
    tell(as_json, {"data": directory, **asdict(summary)}, f"restored: {_in_words(summary)}")


def _in_words(summary: Summary) -> str:
    return (
        f"{summary.messages} messages in {summary.owners} queues and subscriptions, {summary.files} journal files, "
        f"{summary.bytes:,} bytes"
    )


@click.command("import")
@click.argument("source", type=DIRECTORY)
@click.option(
    "--data", metavar="DIR", type=click.Path(file_okay=False), help="Data directory of TandemMQ, created if missing."
)
@click.option("--dry-run", is_flag=True, help="Only show the content of SOURCE.")
@click.option(
    "--config", metavar="FILE", help="Settings file of the broker, for its kind of lock and the length of its files."
)
@click.option("--scratch", type=DIRECTORY, help="Directory of temporary indexes. Default: that of the system.")
@json_option
def import_(
    source: str, data: str | None, dry_run: bool, config: str | None, scratch: str | None, as_json: bool
) -> None:
    """Copy all live messages of SOURCE into a data directory, and verify by count and hash that all arrived.

    SOURCE is a KahaDB directory of ActiveMQ or TandemMQ. It is only read, and no broker may run there; with --dry-run
    one may, and unsettled updates are left out. Messages that were already copied are not copied again, so you can
    repeat an interrupted import. Exit code 1 if the verification fails.
    """
    demand_journal(source)
    with tempfile.TemporaryDirectory(prefix="tandemmq-import-", dir=scratch) as temporary:
        if dry_run:
            _look(source, temporary, as_json)
            return
        if data is None:
            raise click.UsageError("--data DIR, the target directory, is missing (--dry-run only reads)")
        if os.path.exists(data) and os.path.samefile(source, data):
            raise click.UsageError("source and target are the same directory")
        demand_unheld(source, "stop it first, or import a copy; --dry-run can read it in use")
        settings = None if config is None else load_settings(config)
        os.makedirs(data, 0o700, exist_ok=True)
        known = None if settings is None else settings.store.journal_max_file_length
        length = known or file_length(read_headers(JournalFiles(data)))
        with failures_reported(), locked(data, "store import", settings) as has_proof:
            carried = carry_over(
                source, data, temporary, name="import", has_proof=has_proof, progress=progress, file_length=length
            )
    aside = [f"{jobs.pending} scheduled messages in {jobs.directory}" for jobs in find_scheduled_jobs(source)]
    _show(carried, aside, as_json)
    sys.exit(1 if carried.differences else 0)


def _look(source: str, scratch: str, as_json: bool) -> None:
    holder = holder_of(source)
    with failures_reported():
        found = survey(source, scratch, is_live=holder is not None, progress=progress)
    if holder is not None:
        found.notes.append(f"in use by {holder}: its unsettled updates are omitted")
    if as_json:
        click.echo(json.dumps(_survey_as_json(found)))
    else:
        _print_survey(found)
    sys.exit(1 if found.damage else 0)


def _survey_as_json(found: Survey) -> dict[str, object]:
    return {
        "destinations": [{"name": name, **(_described(sum) or {})} for name, sum in found.proof.items()],
        "damage": found.damage,
        "open_transactions": found.transactions,
        "scheduled": found.scheduled,
        "notes": found.notes,
        "bytes": found.bytes,
        "bytes_freed_by_compaction": found.bytes_freed_by_compaction,
        "files": [
            {
                "file": share.file,
                "bytes": share.bytes,
                "live_bytes": share.live_bytes,
                "holders": {name: {"messages": count, "bytes": size} for name, (count, size) in share.holders.items()},
                "keeps_dead_what_is_in": share.pins,
            }
            for share in found.files
        ],
    }


def _print_survey(found: Survey) -> None:
    say_each("DAMAGED: ", found.damage)
    print_table([Column("destination"), *SUM_COLUMNS], ([name, *_cells(sum)] for name, sum in found.proof.items()))
    for share in found.files:
        held = [f"{count} of {name}" for name, (count, _) in share.holders.items()]
        if share.pins:
            held.append("acknowledgements of messages in " + ", ".join(f"db-{file}.log" for file in share.pins))
        click.echo(f"db-{share.file}.log, {share.bytes} bytes: {'; '.join(held) or 'nothing that is needed'}")
    click.echo(f"{found.bytes} bytes of journal; compaction would free up to {found.bytes_freed_by_compaction} of them")
    say_each("will not be copied: ", found.transactions)
    for place, count in found.scheduled.items():
        click.echo(f"will not be copied: {count} scheduled messages in {place}")
    say_each("note: ", found.notes)


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
        raise click.UsageError(f"{target} is not empty: an export needs an empty directory")
    os.makedirs(target, 0o700, exist_ok=True)
    with (
        failures_reported(),
        tempfile.TemporaryDirectory(prefix="tandemmq-export-", dir=scratch) as temporary,
        locked(target, "store export") as has_proof,
    ):
        selects = selecting(destination)
        carried = carry_over(
            directory, target, temporary, name="export", selects=selects, has_proof=has_proof, progress=progress
        )
        write_minimal(target, OPENWIRE_VERSION)
    _show(carried, [], as_json)
    sys.exit(1 if carried.differences else 0)


# ---- the outcome of a transfer: counts and hashes of source and target, side by side


def _show(carried: Carried, notes: list[str], as_json: bool) -> None:
    """Print the outcome of a transfer, for people or for programs."""
    done = carried.transfer
    if as_json:
        click.echo(
            json.dumps(
                {
                    "proved": not carried.differences,
                    **{name: getattr(done, name) for name in _COUNTED},
                    "notes": notes,
                    "destinations": [
                        {"name": name, "source": _described(sum), "target": _described(carried.target.get(name))}
                        for name, sum in done.source.items()
                    ],
                    "differences": carried.differences,
                }
            )
        )
        return
    print_table(
        [Column("destination"), Column("in"), *SUM_COLUMNS],
        (
            [name, side, *_cells(sum)]
            for name, source in done.source.items()
            for side, sum in (("source", source), ("target", carried.target.get(name)))
        ),
    )
    say_each("not copied: ", (*done.left_aside, *notes))
    say_each("DIFFERENT: ", carried.differences)
    click.echo(
        f"{'NOT proved' if carried.differences else 'proved'}: {done.copied} messages copied, "
        f"{done.skipped} were there already, {done.subscriptions} subscriptions and "
        f"{done.transactions} prepared transactions begun"
    )


def _described(sum: Sum | None) -> dict[str, Any] | None:
    """Return a Sum as a JSON value."""
    return None if sum is None else {"messages": sum.count, "bytes": sum.bytes, "sha256": sum.digest}


def _cells(sum: Sum | None) -> list[object]:
    """Return a Sum as cells of a table, in the order of SUM_COLUMNS."""
    return [0, 0, None] if sum is None else [sum.count, sum.bytes, sum.digest[:HASH_CHARS]]


# ---- return to ActiveMQ


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

    Journal files are truncated at their ends, records correct the differences in ActiveMQ's view, and ActiveMQ's index
    is set aside for a new one. Nothing is deleted; TandemMQ can still open the directory. Exit code 1 if it is not
    ready: it is damaged, or a compaction has changed an order; then use `store export`.
    """
    demand_journal(directory)
    settings = None if config is None else load_settings(config)
    with failures_reported(), tempfile.TemporaryDirectory(prefix="tandemmq-handback-", dir=scratch) as temporary:
        if dry_run:
            demand_unheld(directory, "stop it first, or use a copy")
            report = rehearse(directory, temporary)
        else:
            with locked(directory, "store handback", settings) as has_proof:
                report = hand_back(directory, temporary, accepts_order=accept_order, has_proof=has_proof, on_step=_say)
    if as_json:
        click.echo(json.dumps(asdict(report)))
    else:
        _print_handback(report, dry_run)
    sys.exit(0 if report.is_ready else 1)


def _say(step: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"{step} ...", err=True)


def _print_handback(report: Report, is_dry: bool) -> None:
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
        click.echo("nothing prevents a hand-back" if is_dry else "ready: ActiveMQ may be started")
    elif report.problems:
        click.echo("NOT ready: use tandemmq store export")
    else:
        click.echo("NOT ready: use tandemmq store export, which keeps the order, or --accept-order")
