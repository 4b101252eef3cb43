"""``tandemmq store check``: check that everything in a data directory agrees."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

import click

from tandemmq.cli.output import json_option, progress, say_each
from tandemmq.cli.store.directory import DIRECTORY, demand_names, demand_unheld
from tandemmq.store.several.layout import has_several
from tandemmq.store.tools.check import check as check_store
from tandemmq.store.tools.check_several import check_all
from tandemmq.store.tools.why.words import bytes_of


@click.command()
@click.argument("directory", type=DIRECTORY)
@click.option("--index", "index_root", type=click.Path(file_okay=False), help="Index directory. Default: index/.")
@json_option
def check(directory: str, index_root: str | None, as_json: bool) -> None:
    """Verify everything in DIRECTORY and report what does not agree. Exit code 1 if anything does not.

    Several stores are checked together. Reads only. Refused while a broker is master there, because the result would be
    meaningless.
    """
    is_several = has_several(directory)
    if not is_several:
        demand_names(directory)
    demand_unheld(directory, "stop it, or check a copy")
    started = time.monotonic()
    with progress("checking", 0) as advance:
        check_it = check_all if is_several else check_store
        report = check_it(directory, index_root, progress=lambda done, total: advance(done, total_bytes=total))
    seconds = time.monotonic() - started
    if as_json:
        click.echo(json.dumps({"clean": report.is_clean} | asdict(report) | {"seconds": round(seconds, 3)}))
    else:
        say_each("problem: ", report.problems)
        say_each("note: ", report.notes)
        click.echo(
            f"{'clean' if report.is_clean else 'NOT clean'}: {report.files} journal files, {report.records} records, "
            f"{report.messages} messages in {report.owners} queues and subscriptions, {seconds:.1f} s "
            f"({bytes_of(int(report.bytes / max(seconds, 1e-6)))}/s)"
        )
    sys.exit(0 if report.is_clean else 1)
