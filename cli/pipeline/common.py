"""Common parts of all jobs of ``tandemmq pipeline``: options, the run with DuckDB or Spark, and the summary.

A job can have further options. It passes the common ones on:

    @click.command
    @common_options
    @click.option("--rate", type=click.IntRange(1))
    def replay(rate: int | None, **common: Any) -> None:
        answer("replay", {"rate": rate}, check=parquet_or_journals, **common)
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from tandemmq.cli import output
from tandemmq.cli.failures import EXIT_FAILED
from tandemmq.cli.output import Column, json_option, terminal_width
from tandemmq.config.section import milliseconds
from tandemmq.pipeline.choice import LOCAL_BYTES_MAX, choose
from tandemmq.pipeline.engine import AUTO, ENGINES, LOCAL
from tandemmq.pipeline.failures import cause, expected
from tandemmq.pipeline.jobs import JOBS
from tandemmq.pipeline.jobs.summary import Summary
from tandemmq.pipeline.jobs.tables import Sources, refuse_store, refuse_unwritable
from tandemmq.pipeline.local.session import LocalSession, NoEngine
from tandemmq.pipeline.parts import FileGone
from tandemmq.pipeline.places import NoPlace, access_of, is_access
from tandemmq.pipeline.reach import describe
from tandemmq.pipeline.report import page
from tandemmq.pipeline.session import DEFAULT_MASTER, PROGRESS, NoSpark, session, silence
from tandemmq.pipeline.stores import NoJournal
from tandemmq.pipeline.table import Cell, Table, is_number, shown, size, with_short_stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
# Mostly the same in all rows: the first column that is dropped when there is no room.
_LAST: Final = "destination_type"


def _there(ctx: click.Context, parameter: click.Parameter, places: tuple[str, ...]) -> tuple[str, ...]:
    """Check that paths exist. URLs are checked by the code that reads them."""
    for place in places:
        if not _URL.match(place):
            click.Path(exists=True).convert(place, parameter, ctx)
    return places


def _local(ctx: click.Context, parameter: click.Parameter, out: Path) -> Path:
    if _URL.match(str(out)):
        raise click.BadParameter(f"{out}: results can be written only to a directory of a mounted file system")
    return out


_COMMON = (
    click.argument("sources", nargs=-1, required=True, callback=_there),
    click.option(
        "--out",
        required=True,
        type=click.Path(file_okay=False, path_type=Path),
        callback=_local,
        help="Directory of the results: Parquet files and an HTML page. Results of an earlier run are replaced.",
    ),
    click.option(
        "--engine",
        type=click.Choice((AUTO, *ENGINES)),
        default=AUTO,
        help="local: DuckDB in this process, without Spark and Java. auto: local if DuckDB is installed, at most "
        f"{size(LOCAL_BYTES_MAX)} are read, and no option needs Spark.",
    ),
    click.option("--master", help=f"Master of Spark: {DEFAULT_MASTER} (default), spark://host:port, yarn."),
    click.option("--conf", "settings", metavar="KEY=VALUE", multiple=True, help="Setting of Spark; repeatable."),
    click.option(
        "--tail/--closed",
        "tail",
        default=None,
        help="Read the newest file of each store up to its last complete batch, which may not be synced yet; or closed "
        "files only.  [default: tail]",
    ),
    click.option("--from-file", type=click.IntRange(0), help="First file number."),
    click.option("--to-file", type=click.IntRange(0), help="Last file number."),
    json_option,
)


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that ``answer`` needs to a click command, which passes its keywords on."""
    for option in reversed(_COMMON):
        command = option(command)
    return command


def journals_there(sources: Sources) -> int:
    """Return the number of bytes to read. Raises NoJournal, ValueError or a UsageError if there is no journal file."""
    files = sources.files(sources.access)
    if not files:
        raise click.UsageError(
            "no file to read: nothing is stored yet, or --closed, --from-file and --to-file leave it out"
        )
    return sum(file.size for file in files)


def whole_stores(sources: Sources) -> int:
    """Do as journals_there. Raises ValueError if files are left out, too."""
    return journals_there(sources.whole())


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Parse an ISO 8601 time, such as 2026-11-20T02:14:00Z; UTC if it names no zone."""
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no time such as 2026-11-20T02:14:00Z", ctx, param) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def time_ms(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parse a length of time, in milliseconds."""
    try:
        return None if value is None else milliseconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, not {value!r}", ctx, param) from None


def whole_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parse a length of time, in whole seconds."""
    length = time_ms(ctx, param, value)
    if length is not None and (length < 1000 or length % 1000):
        raise click.BadParameter(f"whole seconds, one at least, not {value!r}", ctx, param)
    return None if length is None else length // 1000


def answer(
    job: str,
    own: dict[str, Any] | None = None,
    *,
    check: Callable[[Sources], int | None] = journals_there,
    report_in: Path | None = None,
    needs_spark: str | None = None,
    sources: tuple[str, ...],
    out: Path,
    engine: str,
    master: str | None,
    settings: tuple[str, ...],
    tail: bool | None,
    from_file: int | None,
    to_file: int | None,
    as_json: bool,
) -> None:
    """Run the job with its own keywords ``own``, print its findings and write its report. End the process with
    EXIT_FAILED if an operator must act.

    Spark takes seconds to start, so ``check`` runs first and reports problems of the sources (NoJournal, ValueError, a
    click exception). It returns the bytes that will be read, None if it cannot know. The page and the JSON go to the
    directory ``report_in``, by default ``out``. ``needs_spark``: the feature that only Spark has, unless the user names
    an engine.
    """
    given = dict(_setting(setting) for setting in settings)
    if engine == LOCAL:
        _refuse_sparks(master, given)
    conf = ({PROGRESS: "false"} if as_json else {}) | given
    meant = Sources(sources, tail is not False, from_file, to_file, access_of(conf))
    try:
        bytes = check(meant)
        refuse_store(str(out), meant)
        refuse_unwritable(str(out))
    except (NoJournal, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if needs_spark is None and (master is not None or any(not is_access(key) for key in given)):
        needs_spark = "--master and --conf require it"
    chosen = choose(engine, bytes, needs_spark)
    with described():
        with LocalSession(out) if chosen.name == LOCAL else _spark(job, master, conf, bytes) as engine_session:
            summary = import_module(JOBS[job]).run(engine_session, meant, str(out), **(own or {}))
        summary = replace(summary, engine=chosen)
        tell(summary, sources, report_in or out, as_json=as_json)
    if not summary.is_clean:
        sys.exit(EXIT_FAILED)


def _refuse_sparks(master: str | None, given: dict[str, str]) -> None:
    """Raise a UsageError for options that --engine local does not have."""
    others = [key for key in given if not is_access(key)]
    if master is not None or others:
        raise click.UsageError(f"--engine local does not use Spark, so it takes no {', '.join(others) or '--master'}")


@contextmanager
def _spark(job: str, master: str | None, conf: dict[str, str], size: int | None) -> Iterator[SparkSession]:
    spark = session(master, conf, name=f"tandemmq {job}", bytes=size)
    with interruptible(spark):
        yield spark


class Interrupted(BaseException):
    """Ctrl-C while Spark runs. PySpark would send a request to Java, which is busy, and py4j would log a traceback."""


@contextmanager
def described() -> Iterator[None]:
    """End the process with a sentence and EXIT_FAILED when the block fails, Ctrl-C included.

    The session and Java end with the process. An existing session is not stopped: its owner does that.
    """
    failures: tuple[type[Exception], ...] = (NoSpark, NoEngine, NoJournal, NoPlace, FileGone, *expected())
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        raise click.Abort from None
    except failures as error:
        raise click.ClickException(cause(error)) from None


@contextmanager
def interruptible(spark: SparkSession) -> Iterator[None]:
    """Raise Interrupted on Ctrl-C; only on the main thread, which receives the signals."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Interrupted:
        silence(spark)  # tasks fail while Java ends: expected
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def tell(summary: Summary, sources: tuple[str, ...], directory: Path, *, as_json: bool) -> None:
    """Write the summary's page and JSON into ``directory``, which is created if needed, and print it."""
    directory.mkdir(parents=True, exist_ok=True)
    report = directory / f"{summary.job}.html"
    made = datetime.now(UTC)
    report.write_text(page(summary, sources, made), encoding="utf-8")
    figures = json.dumps({**summary.figures(), "made": made.isoformat(), "report": str(report)}, indent=2, default=str)
    (directory / f"{summary.job}.json").write_text(figures + "\n", encoding="utf-8")
    if as_json:
        click.echo(figures)
    else:
        lines = (
            *summary.findings,
            *describe(summary.reached or ()),
            *(() if summary.engine is None else (str(summary.engine),)),
        )
        click.echo("\n".join(summary_lines(lines, summary.tables, terminal_width())))
        click.echo(f"report: {report}")


def _setting(setting: str) -> tuple[str, str]:
    key, separator, value = setting.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"{setting!r} is not of the form KEY=VALUE", param_hint="--conf")
    return key, value


# ---- the summary as lines: its sentences, then its tables in the style of all commands


def summary_lines(findings: Sequence[str], tables: Sequence[Table], width: int | None) -> Iterator[str]:
    """Yield lines for a terminal of ``width`` cells, with tables cut to fit; None: for a pipe or a file, uncut."""
    yield from map(shown, findings)
    for table in map(with_short_stores, tables):
        yield ""
        yield shown(table.title)
        # An empty column is left out.
        places = [
            at for at in range(len(table.columns)) if not table.rows or any(row[at] is not None for row in table.rows)
        ]
        places.sort(key=lambda at: table.columns[at] == _LAST)
        columns = [Column(shown(table.columns[at]), is_number=_is_whole(table, at)) for at in places]
        yield from output.lines(columns, ([shown(row[at]) for at in places] for row in table.rows), width)
        if table.note:
            yield shown(table.note)


def _is_whole(table: Table, at: int) -> bool:
    """Return whether the column has only numbers and times, which are not cut."""
    return all(row[at] is None or is_number(row[at]) or _is_time(row[at]) for row in table.rows)


def _is_time(cell: Cell) -> bool:
    """Return whether the cell is a time; jobs give some times as text."""
    try:
        return isinstance(cell, datetime) or (isinstance(cell, str) and bool(datetime.fromisoformat(cell)))
    except ValueError:
        return False
