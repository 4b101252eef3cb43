"""``tandemmq store import``: copy everything from another directory, of ActiveMQ or TandemMQ, into ours."""

from __future__ import annotations

import json
import os
import sys
import tempfile

import click

from tandemmq.cli.config import load_settings
from tandemmq.cli.output import Column, json_option, print_table, progress, say_each
from tandemmq.cli.store.directory import (
    DIRECTORY,
    demand_journal,
    demand_unheld,
    failures_told,
    file_length,
    holder_of,
    locked,
)
from tandemmq.cli.store.transfers import SUM_COLUMNS, cells, proof_as_json, show
from tandemmq.journal.files import JournalFiles
from tandemmq.store.migration.survey import Survey, survey
from tandemmq.store.migration.transfer import carry_over
from tandemmq.store.takeover.scheduler import find_scheduled_jobs
from tandemmq.store.tools.inspect import read_headers


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
        demand_unheld(source, "stop it first, or import a copy; --dry-run may look at it as it is")
        settings = None if config is None else load_settings(config)
        os.makedirs(data, 0o700, exist_ok=True)
        known = None if settings is None else settings.store.journal_max_file_length
        length = known or file_length(read_headers(JournalFiles(data)))
        with failures_told(), locked(data, "store import", settings) as has_proof:
            carried = carry_over(
                source, data, temporary, name="import", has_proof=has_proof, progress=progress, file_length=length
            )
    aside = [f"{jobs.pending} scheduled messages in {jobs.directory}" for jobs in find_scheduled_jobs(source)]
    show(carried, aside, as_json)
    sys.exit(1 if carried.differences else 0)


def _look(source: str, scratch: str, as_json: bool) -> None:
    holder = holder_of(source)
    with failures_told():
        found = survey(source, scratch, is_live=holder is not None, progress=progress)
    if holder is not None:
        found.notes.append(f"in use by {holder}: what it has not settled yet is left out")
    if as_json:
        click.echo(json.dumps(_as_json(found)))
    else:
        _tell(found)
    sys.exit(1 if found.damage else 0)


def _as_json(found: Survey) -> dict[str, object]:
    return {
        "destinations": proof_as_json(found.proof),
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


def _tell(found: Survey) -> None:
    say_each("DAMAGED: ", found.damage)
    print_table([Column("destination"), *SUM_COLUMNS], ([name, *cells(sum)] for name, sum in found.proof.items()))
    for share in found.files:
        held = [f"{count} of {name}" for name, (count, _) in share.holders.items()]
        if share.pins:
            held.append("acknowledgements of what is in " + ", ".join(f"db-{file}.log" for file in share.pins))
        click.echo(f"db-{share.file}.log, {share.bytes} bytes: {'; '.join(held) or 'nothing that is needed'}")
    click.echo(f"{found.bytes} bytes of journal; compaction would free up to {found.bytes_freed_by_compaction} of them")
    say_each("will be left aside: ", found.transactions)
    for place, count in found.scheduled.items():
        click.echo(f"will be left aside: {count} scheduled messages in {place}")
    say_each("note: ", found.notes)
