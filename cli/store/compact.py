"""``tandemmq store compact``: copy live records out of sparse journal files, so that the files can be deleted."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import click

from tandemmq.cli.admin import DEFAULT_ADMIN, admin_option, answer_understood, call
from tandemmq.cli.config import load_settings
from tandemmq.cli.output import json_option, watched
from tandemmq.cli.store.directory import DIRECTORY, failures_told, file_length, known_files, locked
from tandemmq.config.settings import Settings
from tandemmq.journal.files import JournalFiles
from tandemmq.store.maintenance.compaction import CompactionReport
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state.state import State
from tandemmq.store.tools.offline import OFFLINE, OfflineStore
from tandemmq.store.tools.why.offline import indexes_in
from tandemmq.store.tools.why.words import bytes_of, counted

# A running broker answers at its end, at its own rate.
ANSWER_SECONDS_MAX = 24 * 3600.0
# No client is served meanwhile, so there is no rate limit.
NO_RATE_LIMIT = 1 << 40
_FROM_SETTINGS = (
    *("journal_max_file_length", "archive_data_logs", "directory_archive"),
    *("failover_producers_audit_depth", "max_failover_producers_to_track"),
)


@click.command()
@click.argument("directory", type=DIRECTORY, required=False)
@admin_option(f"Admin address of a running broker that does it ({DEFAULT_ADMIN}).", None)
@click.option("--store", metavar="NAME", help="With --admin: one of several stores.")
@click.option(
    "--config", metavar="FILE", help="Settings file of the broker, for its kind of lock, files, indexes and archive."
)
@click.option("--index", "index_root", type=click.Path(file_okay=False), help="Index directory. Default: index/.")
@click.option("--name", metavar="NAME", help="Name of the broker for which this is done.")
@json_option
def compact(
    directory: str | None,
    admin: str | None,
    store: str | None,
    config: str | None,
    index_root: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Empty and remove each journal file in which more than a little is dead.

    Live records are copied to the end and keep their order. On a DIRECTORY it takes the lock, as a master does; with
    --admin the running master does it beside its work. It can be stopped and can crash at any time.
    """
    if (directory is None) == (admin is None):
        raise click.UsageError("a DIRECTORY that no broker holds, or --admin URL of the broker that does")
    if admin is not None:
        report = _by_broker(admin, store)
        after = report.disk_expected
    else:
        assert directory is not None, "one of the two was given"
        settings = None if config is None else load_settings(config)
        report, after = _by_us(directory, settings, index_root, name)
    if as_json:
        click.echo(json.dumps(report._asdict() | {"disk_after": after}))
    elif not report.files:
        click.echo(f"nothing to gain: the journal has {bytes_of(after)}")
    else:
        click.echo(
            f"{counted(len(report.files), 'file')} emptied, {counted(report.messages, 'message')} moved, "
            f"{bytes_of(report.bytes_copied)} copied: the journal had {bytes_of(report.disk_before)} "
            f"and has {bytes_of(after)}"
        )


def _by_broker(admin: str, store: str | None) -> CompactionReport:
    answer = call(admin, "store/compact", {"store": store}, method="POST", seconds_max=ANSWER_SECONDS_MAX)
    with answer_understood(admin):
        return CompactionReport(**answer | {"files": tuple(answer["files"])})


def _by_us(
    directory: str, settings: Settings | None, index_root: str | None, name: str | None
) -> tuple[CompactionReport, int]:
    """Compact in this process. Return the report, and the bytes of the journal afterwards."""
    files = JournalFiles(directory)
    options = _options(file_length(known_files(directory)), settings)
    root = index_root or (settings and settings.store.index_directory) or os.path.join(directory, "index")
    # In the name of the broker with the freshest index: that index is then complete, and a start is quick.
    broker = name or next((os.path.basename(path) for path in indexes_in(root)), OFFLINE)
    with (
        locked(directory, "store compact", settings, "stop it, or give --admin with its address") as has_proof,
        failures_told(f"; `tandemmq store check {directory}` says more"),
        OfflineStore(directory, root, broker, options, has_proof=has_proof) as offline,
    ):
        live = offline.result(offline.store.ask(_live_bytes))
        with watched("copying", live, lambda: offline.store.figures.bytes_copied):
            report = offline.result(offline.store.compact())
    after = sum(files.size(file) for file in files.list())
    free = shutil.disk_usage(directory).free
    if not report.files and free < options.journal_max_file_length:
        raise click.ClickException(
            f"copies need room for a journal file of {bytes_of(options.journal_max_file_length)}, and {directory} has "
            f"{bytes_of(free)}"
        )
    return report, after


def _options(length: int, settings: Settings | None) -> StoreSettings:
    """Return the settings of the store: the broker's where they are known, but at full speed."""
    options = StoreSettings(compaction_rate=NO_RATE_LIMIT, journal_max_file_length=length)
    if settings is None:
        return options
    return replace(options, **{name: getattr(settings.store, name) for name in _FROM_SETTINGS})


def _live_bytes(state: State) -> int:
    return sum(held.live_bytes for held in state.files.values())
