"""``tandemmq store check``, ``compact``, ``rebuild-index`` and ``afresh``: a data directory is checked and repaired."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import asdict, replace

import click

from tandemmq.cli.admin import DEFAULT_ADMIN, admin_option, answer_understood, call
from tandemmq.cli.config import load_settings
from tandemmq.cli.output import json_option, progress, say_each, watched
from tandemmq.cli.store.directory import (
    DIRECTORY,
    demand_names,
    demand_single,
    demand_unheld,
    failures_reported,
    file_length,
    holder_of,
    known_files,
    locked,
)
from tandemmq.config.settings import Settings
from tandemmq.index.errors import IndexInUse
from tandemmq.journal.files import JournalFiles
from tandemmq.modes import made_like
from tandemmq.store.maintenance.compaction import CompactionReport
from tandemmq.store.recovery.rebuild import Rebuild
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.layout import has_several
from tandemmq.store.state.state import State
from tandemmq.store.tools.afresh import JournalThere, begin_afresh
from tandemmq.store.tools.check import check as check_store
from tandemmq.store.tools.check_several import check_all
from tandemmq.store.tools.offline import OFFLINE, OfflineStore
from tandemmq.store.tools.why.offline import indexes_in
from tandemmq.store.tools.why.report import bytes_of, counted


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


# A running broker answers when the compaction is complete; the broker's settings limit the rate.
ANSWER_SECONDS_MAX = 24 * 3600.0
# No client is served meanwhile, so there is no rate limit.
NO_RATE_LIMIT = 1 << 40
_FROM_SETTINGS = (
    *("journal_max_file_length", "archive_data_logs", "directory_archive"),
    *("failover_producers_audit_depth", "max_failover_producers_to_track"),
)


@click.command()
@click.argument("directory", type=DIRECTORY, required=False)
@admin_option(f"Admin address of a running broker that compacts ({DEFAULT_ADMIN}).", None)
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
    """Empty and remove each journal file in which more than a small part is dead.

    Live records are copied to the end and keep their order. With DIRECTORY, the command takes the lock, as a master
    does. With --admin, the running master does the work while it serves. Stopping the command or a crash does no harm.
    """
    if (directory is None) == (admin is None):
        raise click.UsageError("give a DIRECTORY that no broker uses, or --admin with the URL of the broker")
    if admin is not None:
        report = _compact_by_broker(admin, store)
        after = report.disk_expected
    else:
        assert directory is not None, "one of the two was given"
        settings = None if config is None else load_settings(config)
        report, after = _compact_here(directory, settings, index_root, name)
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


def _compact_by_broker(admin: str, store: str | None) -> CompactionReport:
    answer = call(admin, "store/compact", {"store": store}, method="POST", seconds_max=ANSWER_SECONDS_MAX)
    with answer_understood(admin):
        return CompactionReport(**answer | {"files": tuple(answer["files"])})


def _compact_here(
    directory: str, settings: Settings | None, index_root: str | None, name: str | None
) -> tuple[CompactionReport, int]:
    """Compact in this process. Return the report, and the bytes of the journal afterwards."""
    files = JournalFiles(directory)
    options = _options(file_length(known_files(directory)), settings)
    root = index_root or (settings and settings.store.index_directory) or os.path.join(directory, "index")
    # Use the name of the broker with the newest index, so that this index is complete and the broker starts quickly.
    broker = name or next((os.path.basename(path) for path in indexes_in(root)), OFFLINE)
    with (
        locked(directory, "store compact", settings, "stop it, or give --admin with its address") as has_proof,
        failures_reported(f"; `tandemmq store check {directory}` has the details"),
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
    """Return the settings of the store: those of the broker if they are known, but without a rate limit."""
    options = StoreSettings(compaction_rate=NO_RATE_LIMIT, journal_max_file_length=length)
    if settings is None:
        return options
    return replace(options, **{name: getattr(settings.store, name) for name in _FROM_SETTINGS})


def _live_bytes(state: State) -> int:
    return sum(held.live_bytes for held in state.files.values())


@click.command("rebuild-index")
@click.argument("directory", type=DIRECTORY)
@click.option("--index-root", type=click.Path(file_okay=False), help="Index directory. Default: index/.")
@click.option("--name", metavar="NAME", help="Name of the broker that has the index; required if there are several.")
@json_option
def rebuild_index(directory: str, index_root: str | None, name: str | None, as_json: bool) -> None:
    """Replay the journal in DIRECTORY into a new index, which replaces the old one. The old index is set aside.

    An index is private to its broker: this needs no lock of the store and works beside a running master. Refused while
    the broker of that name has its index open.
    """
    known_files(directory)
    demand_single(directory)
    root = index_root or os.path.join(directory, "index")
    broker = name or _only_name(root)
    is_live = holder_of(directory) is not None
    with failures_reported():
        try:
            rebuild = Rebuild(directory, root, broker, StoreSettings())
            progress = watched("replaying", rebuild.bytes_total, lambda: rebuild.bytes_read, lambda: rebuild.records)
            with made_like(directory), progress:
                rebuilt = rebuild.run(is_live=is_live)
        except IndexInUse as error:
            raise click.ClickException(f"the index of {broker} is in use: stop that broker first") from error
    if as_json:
        click.echo(json.dumps(asdict(rebuilt)))
        return
    rate = rebuilt.records / max(rebuilt.seconds, 1e-6)
    click.echo(
        f"{rebuilt.path}: {counted(rebuilt.records, 'record')} in {rebuilt.seconds:.1f} s ({rate:,.0f} records/s), "
        f"{counted(rebuilt.messages, 'message')} in {rebuilt.owners} queues and subscriptions"
    )
    if rebuilt.aside is not None:
        click.echo(f"the old index is {rebuilt.aside}")


def _only_name(root: str) -> str:
    """Return the broker that has an index there, if there is exactly one."""
    names = sorted(os.path.basename(path) for path in indexes_in(root))
    if len(names) == 1:
        return names[0]
    there = f"there are indexes of {', '.join(names)}" if names else f"there is no index in {root}"
    raise click.UsageError(f"name the broker with --name: {there}")


@click.command()
@click.argument("directory", type=DIRECTORY)
@click.option(
    "--config", metavar="FILE", help="Settings file of the broker, for its kind of lock and its index directory."
)
@click.option("--index", "index_root", type=click.Path(file_okay=False), help="Index directory. Default: index/.")
@json_option
def afresh(directory: str, config: str | None, index_root: str | None, as_json: bool) -> None:
    """Give up the lost journal of DIRECTORY: the next start begins with an empty store.

    A broker refuses to start if an index expects journal files and none is left. This command sets these indexes aside
    and deletes nothing. It is refused if there is a journal. If each host has its own index directory, run it on each.
    """
    settings = None if config is None else load_settings(config)
    root = index_root or (settings and settings.store.index_directory) or os.path.join(directory, "index")
    with locked(directory, "store afresh", settings), failures_reported():
        try:
            moved = begin_afresh(directory, root)
        except JournalThere as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({"aside": moved}))
    elif not moved:
        click.echo("nothing to do: no index expects a journal here")
    for path in [] if as_json else moved:
        click.echo(f"set aside: {path}")
