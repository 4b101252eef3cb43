"""``tandemmq store check``: does everything in a data directory agree?"""

from __future__ import annotations

import json
import sys
import time

import click

from locker.contract import Holder, LockRequest, LockUnavailable
from locker.shared_file import SharedFileLocker
from store.check import check as check_store


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--index", "index_root", type=click.Path(file_okay=False), help="The indexes, if not in index/.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def check(directory: str, index_root: str | None, as_json: bool) -> None:
    """Read everything in DIRECTORY and say what does not agree. Exit code 1 if anything does not.

    Reads only. While a broker is master there the answer would mean nothing, so it is refused.
    """
    request = LockRequest(directory=directory, holder=Holder(name="store check"))
    try:
        holder = SharedFileLocker(request).holder()
    except LockUnavailable as error:
        raise click.ClickException(str(error)) from error
    if holder is not None:
        raise click.ClickException(f"{directory} is in use by {holder}: stop it, or check a copy")
    started = time.monotonic()
    report = check_store(directory, index_root)
    seconds = time.monotonic() - started
    if as_json:
        click.echo(
            json.dumps(
                {
                    "clean": report.is_clean,
                    "problems": report.problems,
                    "notes": report.notes,
                    "files": report.files,
                    "records": report.records,
                    "messages": report.messages,
                    "owners": report.owners,
                    "seconds": round(seconds, 3),
                }
            )
        )
    else:
        for problem in report.problems:
            click.echo(f"problem: {problem}")
        for note in report.notes:
            click.echo(f"note: {note}")
        click.echo(
            f"{'clean' if report.is_clean else 'NOT clean'}: {report.files} journal files, {report.records} records, "
            f"{report.messages} messages in {report.owners} queues and subscriptions, {seconds:.1f} s"
        )
    sys.exit(0 if report.is_clean else 1)
