"""``tandemmq pipeline``: jobs that read the journals of any number of brokers, here or by ``spark-submit``.

A job can have further options in addition to those of `cli.pipeline.common`.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import click

from tandemmq.cli import Commands, LazyGroup
from tandemmq.cli.output import json_option, tell

COMMANDS: Final[Commands] = {
    "composition": ("tandemmq.cli.pipeline.jobs", "Show what fills the files."),
    "verify": ("tandemmq.cli.pipeline.jobs", "Verify checksums; show damage."),
    "duplicates": ("tandemmq.cli.pipeline.jobs", "Find messages that were stored twice."),
    "dlq": ("tandemmq.cli.pipeline.jobs", "Show dead letters with origin and cause."),
    "latency": ("tandemmq.cli.pipeline.jobs", "Show how long messages waited, and how many wait."),
    "pins": ("tandemmq.cli.pipeline.jobs", "Show why each file is kept."),
    "at": ("tandemmq.cli.pipeline.jobs", "Show the content of queues at a moment."),
    "archive": ("tandemmq.cli.pipeline.jobs", "Add journals to a message lake, each file once."),
    "replay": ("tandemmq.cli.pipeline.replay", "Send messages to a broker, each once."),
    "package": ("tandemmq.cli.pipeline", "Write the files for spark-submit."),
}

pipeline = LazyGroup(
    "pipeline",
    table=COMMANDS,
    help="""Analyse, archive and replay the journals of stores and archives, which are only read.

    Exit code 1 if there is something to check: damage, files that do not add up, ids stored twice, dead letters.""",
)


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
    from tandemmq.pipeline.package import package as write_package

    try:
        archive, script = write_package(out)
    except OSError as error:
        raise click.ClickException(str(error)) from None
    zip_, submit = shlex.quote(str(archive)), shlex.quote(str(script))
    command = f"spark-submit --py-files {zip_} {submit} composition SOURCE... --out DIR"
    tell(as_json, {"package": archive, "script": script, "command": command}, command)


def submit() -> None:
    """Run ``tandemmq pipeline`` with the arguments of the process, in spark-submit's session; ends the process.

    spark-submit --master yarn --py-files tandemmq-pipeline.zip submit.py composition /archive --out /reports/monday
    """
    from pyspark.sql import SparkSession

    # All times in results are UTC, whatever the cluster's setting.
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    try:
        pipeline(prog_name="submit.py")
    finally:
        spark.stop()
