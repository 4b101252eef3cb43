"""What every job of ``tandemmq pipeline`` is asked: where from, where to, and how Spark is to run."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from broker.pipeline.jobs import JOBS
from broker.pipeline.jobs.tables import Sources, refuse_store
from broker.pipeline.report import page
from broker.pipeline.session import DEFAULT_MASTER, NoSpark, session
from broker.pipeline.stores import NoJournal, journal_files
from broker.pipeline.table import terminal

EXIT_FAILED = 1

_COMMON = (
    click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True)),
    click.option(
        "--out",
        required=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="Where the results go, as Parquet and as a page of HTML; what an earlier run left there is replaced.",
    ),
    click.option("--master", help=f"Where Spark runs: {DEFAULT_MASTER} (the default), spark://host:port, yarn."),
    click.option("--conf", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; may be repeated."),
    click.option("--tail", is_flag=True, help="Read the newest file, too, up to its last complete batch."),
    click.option("--from-file", type=click.IntRange(0), help="Leave out files with lower numbers."),
    click.option("--to-file", type=click.IntRange(0), help="Leave out files with higher numbers."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."),
)


def asked(command: Callable[..., None]) -> Callable[..., None]:
    """Give a click command what ``answer`` wants: it hands its keywords on."""
    for option in reversed(_COMMON):
        command = option(command)
    return command


def answer(
    job: str,
    own: dict[str, Any] | None = None,
    *,
    sources: tuple[str, ...],
    out: Path,
    master: str | None,
    settings: tuple[str, ...],
    tail: bool,
    from_file: int | None,
    to_file: int | None,
    as_json: bool,
) -> None:
    """Run the job, whose own keywords are ``own``; print what it found and write its report. Ends the process with
    EXIT_FAILED where somebody must look."""
    conf = dict(_setting(setting) for setting in settings)
    meant = Sources(sources, tail, from_file, to_file)
    try:
        # Spark takes seconds to start: what can be told before is told before.
        files = journal_files(sources, is_tail_wanted=tail, first=from_file, last=to_file)
        refuse_store(str(out), meant)
    except (NoJournal, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if not files:
        raise click.UsageError("no file to read: the newest one of a store is read with --tail only")
    try:
        spark = session(master, conf, name=f"tandemmq {job}")
    except NoSpark as error:
        raise click.ClickException(str(error)) from None
    # Not before session() has said in words that it is missing. The session ends with the process; one that was there
    # before is not ours to stop.
    from pyspark.errors import PySparkException

    try:
        summary = import_module(JOBS[job]).run(spark, meant, str(out), **(own or {}))
    except (ValueError, OSError, PySparkException) as error:
        raise click.ClickException(str(error)) from None
    report = out / f"{job}.html"
    report.write_text(page(summary, sources), encoding="utf-8")
    figures = json.dumps({**summary.figures(), "report": str(report)}, indent=2, default=str)
    (out / f"{job}.json").write_text(figures + "\n", encoding="utf-8")
    if as_json:
        click.echo(figures)
    else:
        click.echo(terminal(summary.findings, summary.tables, shutil.get_terminal_size((120, 24)).columns), nl=False)
        click.echo(f"report: {report}")
    if not summary.is_clean:
        sys.exit(EXIT_FAILED)


def _setting(setting: str) -> tuple[str, str]:
    key, separator, value = setting.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"{setting!r} is not of the form KEY=VALUE", param_hint="--conf")
    return key, value
