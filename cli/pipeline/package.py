"""``tandemmq pipeline package``: the files for spark-submit."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tandemmq.cli.answers import json_option, tell
from tandemmq.pipeline.package import package as write_package


@click.command
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory that gets the zip and the script.",
)
@json_option
def package(out: Path, as_json: bool) -> None:
    """Write what `spark-submit` needs to run jobs in a cluster: this package as a zip, and a script that starts one.

    The nodes need pyarrow and numpy beside Python. Where the script runs, click and rich are needed as well.
    """
    try:
        archive, script = write_package(out)
    except OSError as error:
        raise click.ClickException(str(error)) from None
    zip_, submit = shlex.quote(str(archive)), shlex.quote(str(script))
    command = f"spark-submit --py-files {zip_} {submit} composition SOURCE... --out DIR"
    tell(as_json, {"package": archive, "script": script, "command": command}, command)
