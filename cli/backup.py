"""``tandemmq backup`` and ``restore``: copy a store while a broker runs, and put the copy back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click

from tandemmq.cli.failures import Failed
from tandemmq.cli.output import json_option, progress, tell
from tandemmq.cli.store.directory import DIRECTORY, failures_told
from tandemmq.modes import made_like
from tandemmq.store.tools.backup import BackupFailed, Summary, back_up
from tandemmq.store.tools.backup import restore as put_back


@click.command()
@click.argument("target", type=click.Path(file_okay=False))
@click.option("--data", "directory", type=DIRECTORY, required=True, help="The data directory of the pair.")
@json_option
def backup(target: str, directory: str, as_json: bool) -> None:
    """Copy the store of a pair to TARGET, a new directory, and verify the copy.

    The brokers can run meanwhile; any host that sees the directory can do it. backup.json is written last: without it,
    TARGET is not a backup.
    """
    with _told(), made_like(directory), progress("copying", 0) as advance:
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
    with _told(), made_like(source):
        summary = put_back(source, directory)
    tell(as_json, {"data": directory, **asdict(summary)}, f"restored: {_in_words(summary)}")


@contextmanager
def _told() -> Iterator[None]:
    try:
        with failures_told():
            yield
    except BackupFailed as error:
        raise Failed(str(error)) from error


def _in_words(summary: Summary) -> str:
    return (
        f"{summary.messages} messages in {summary.owners} queues and subscriptions, {summary.files} journal files, "
        f"{summary.bytes:,} bytes"
    )
