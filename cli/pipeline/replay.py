"""``tandemmq pipeline replay``: send messages of journals, or of Parquet made from them, to a broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import click

from tandemmq.cli.connect import tls, tls_files, tls_options
from tandemmq.cli.pipeline.common import answer, common_options, journals_there, moment
from tandemmq.client.failover_url import FailoverUrl
from tandemmq.client.tls import TlsFiles
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.parquet import are_parquet
from tandemmq.pipeline.sending.ledger import STATE, Ledger
from tandemmq.pipeline.sending.request import ALL, TASKS_DEFAULT, TASKS_MAX, UNACKNOWLEDGED, ReplayRequest, Target
from tandemmq.pipeline.sending.sends import destination_of


def _checked(parse: Callable[[str], object]) -> Callable[..., Any]:
    """Return a callback that checks a text with ``parse`` and passes the text on unchanged."""

    def check(ctx: click.Context, parameter: click.Parameter, given: Any) -> Any:
        for text in given if isinstance(given, tuple) else (given,):
            try:
                if text is not None:
                    parse(text)
            except ValueError as error:
                raise click.BadParameter(str(error)) from None
        return given

    return check


_OF_REQUEST: Final = tuple(each.name for each in fields(ReplayRequest))


def _there(sources: Sources) -> int | None:
    return None if are_parquet(sources.paths) else journals_there(sources)


@click.command
@common_options
@click.option(
    "--to",
    "url",
    metavar="URL",
    callback=_checked(FailoverUrl.parse),
    help="failover:(stomp://a:61613,stomp://b:61613)",
)
@click.option("--login", help="User name.")
@click.option(
    "--passcode-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File whose first line is the password for --login, read where Spark's tasks run.",
)
@tls_options
@click.option(
    "--destination",
    "destinations",
    multiple=True,
    metavar="DEST",
    callback=_checked(destination_of),
    help="Only messages of this destination: queue://NAME, topic://NAME; a bare name is a queue. Repeatable.",
)
@click.option(
    "--as", "new", metavar="DEST", callback=_checked(destination_of), help="Send all messages to this destination."
)
@click.option(
    "--since",
    metavar="TIME",
    callback=moment,
    help="Only messages that the broker received at this time or later (UTC).",
)
@click.option(
    "--until", metavar="TIME", callback=moment, help="Only messages that the broker received before this time (UTC)."
)
@click.option("--where", metavar="SQL", help="Only rows of the table messages that match: type = 'order'")
@click.option("--only", type=click.Choice((ALL, UNACKNOWLEDGED)), default=ALL)
@click.option(
    "--expired",
    "is_expired_sent",
    type=click.Choice(("skip", "keep")),
    default="skip",
    callback=lambda context, parameter, value: value == "keep",
    help="keep: send expired messages, too. Then no message has an expiration.",
)
@click.option("--ordered/--unordered", "is_ordered", default=True, help="Send each destination in order, by one task.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Maximum number of messages in a second, in total."
)
@click.option(
    "--tasks",
    type=click.IntRange(1, TASKS_MAX),
    default=TASKS_DEFAULT,
    help="Number of connections (tasks of Spark).",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show what would be sent; connect to no broker.")
def replay(url: str | None, passcode_file: Path | None, rate: float | None, is_dry: bool, **others: Any) -> None:
    """Send the messages of SOURCES to a broker, each once. If it ends early, run it again with the same --out.

    SOURCES are journals, Parquet of the table messages, or the lake of the job archive. The messages get new ids; the
    property originalMessageId has the old one.

    Exit code 1 while a requested message is not at the broker.
    """
    if url is None and not is_dry:
        raise click.UsageError("--to is required unless --dry-run is given")
    request = ReplayRequest(**{name: others.pop(name) for name in _OF_REQUEST})
    login, new, tasks = (others.pop(name) for name in ("login", "new", "tasks"))
    own: dict[str, Any] = {"request": request, "rate": rate}
    if not is_dry:
        assert url is not None, "checked above"
        passcode = None if passcode_file is None else str(passcode_file)
        own["target"] = Target(url, login, passcode, new, rate, tasks, _checked_files())
        if sys.stderr.isatty():
            own["progress"] = _progress
    # No check of a replay that has begun: the rest is sent from the plan, and the sources may be gone.
    begun = Ledger(others["out"] / STATE).run() is not None
    needs_spark = (
        "--where has the SQL of Spark, unless --engine selects another engine" if request.where is not None else None
    )
    answer("replay", own, check=(lambda sources: 0) if begun else _there, needs_spark=needs_spark, **others)


def _checked_files() -> TlsFiles:
    """Return the TLS files of the options. Files that are wrong end the command here, before Spark starts."""
    tls()
    files = tls_files()
    paths = ("ca_file", "certificate", "key", "key_password_file")
    return replace(files, **{name: os.path.abspath(path) for name in paths if (path := getattr(files, name))})


def _progress(sent: int, total: int) -> None:
    click.echo(f"\rconfirmed: {sent:,} of {total:,}", nl=sent >= total, err=True)
