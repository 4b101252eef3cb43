"""``tandemmq pipeline package``: the files for spark-submit."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tandemmq.cli.output import json_option, tell
from tandemmq.pipeline.package import package as write_package


@click.command
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the zip and the script.",
)
@json_option
def package(out: Path, as_json: bool) -> None:
    """Write a zip of this package and a script for `spark-submit`, which run jobs in a cluster.

    The nodes need Python with pyarrow and numpy; the script also needs click and rich.
    """
    try:
        archive, script = write_package(out)
    except OSError as error:
        raise click.ClickException(str(error)) from None
    zip_, submit = shlex.quote(str(archive)), shlex.quote(str(script))
    command = f"spark-submit --py-files {zip_} {submit} composition SOURCE... --out DIR"
    tell(as_json, {"package": archive, "script": script, "command": command}, command)
