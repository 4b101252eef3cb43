"""``tandemmq store afresh``: begin with an empty store after the journal was lost."""

from __future__ import annotations

import json
import os

import click

from tandemmq.cli.config import load_settings
from tandemmq.cli.output import json_option
from tandemmq.cli.store.directory import DIRECTORY, failures_told, locked
from tandemmq.store.tools.afresh import JournalThere, begin_afresh


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
    with locked(directory, "store afresh", settings), failures_told():
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
