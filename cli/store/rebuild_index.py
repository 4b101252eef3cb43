"""``tandemmq store rebuild-index``: rebuild a broker's index from the journal."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from tandemmq.cli.output import json_option, watched
from tandemmq.cli.store.directory import DIRECTORY, demand_single, failures_told, holder_of, known_files
from tandemmq.index.errors import IndexInUse
from tandemmq.modes import made_like
from tandemmq.store.recovery.rebuild import Rebuild
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.why.offline import indexes_in
from tandemmq.store.tools.why.words import counted


@click.command("rebuild-index")
@click.argument("directory", type=DIRECTORY)
@click.option("--index-root", type=click.Path(file_okay=False), help="Index directory. Default: index/.")
@click.option("--name", metavar="NAME", help="Name of the broker that has the index; required if there are several.")
@json_option
def rebuild_index(directory: str, index_root: str | None, name: str | None, as_json: bool) -> None:
    """Replay the journal in DIRECTORY into a new index, which replaces the old one; that one is set aside.

    An index is private to its broker: this needs no lock of the store and works beside a running master. Refused while
    the broker of that name has its index open.
    """
    known_files(directory)
    demand_single(directory)
    root = index_root or os.path.join(directory, "index")
    broker = name or _only_name(root)
    is_live = holder_of(directory) is not None
    with failures_told():
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
        click.echo(f"the old one is {rebuilt.aside}")


def _only_name(root: str) -> str:
    """Return the broker that has an index there, if there is exactly one."""
    names = sorted(os.path.basename(path) for path in indexes_in(root))
    if len(names) == 1:
        return names[0]
    there = f"there are those of {', '.join(names)}" if names else f"there is none in {root}"
    raise click.UsageError(f"name the broker with --name: {there}")
