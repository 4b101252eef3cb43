"""``tandemmq pipeline replay``: messages of journals, or of Parquet made of them, back to a broker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from broker.cli.pipeline.asked import answer, asked, journals_there
from broker.failover import FailoverUrl, UrlError
from broker.pipeline.jobs.tables import Sources
from broker.pipeline.parquet import are_parquet
from broker.pipeline.sending.ledger import STATE, Ledger
from broker.pipeline.sending.sends import destination_of
from broker.pipeline.sending.wish import ALL, TASKS_DEFAULT, TASKS_MAX, UNACKNOWLEDGED, Target, Wish


def _time(ctx: click.Context, parameter: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected 2026-11-20 or 2026-11-20T02:14:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _named(ctx: click.Context, parameter: click.Parameter, given: Any) -> Any:
    for text in given if isinstance(given, tuple) else (given,):
        if text is not None:
            try:
                destination_of(text)
            except ValueError as error:
                raise click.BadParameter(str(error)) from None
    return given


def _url(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        try:
            FailoverUrl.parse(text)
        except UrlError as error:
            raise click.BadParameter(str(error)) from None
    return text


def _there(sources: Sources) -> None:
    if not are_parquet(sources.paths):
        journals_there(sources)


@click.command
@asked
@click.option("--to", "url", metavar="URL", callback=_url, help="failover:(stomp://a:61613,stomp://b:61613)")
@click.option("--login", help="Who we say we are.")
@click.option(
    "--passcode-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The password for --login is its first line. Read where Spark's tasks run.",
)
@click.option(
    "--destination",
    "destinations",
    multiple=True,
    metavar="DEST",
    callback=_named,
    help="Only messages of this one: queue://NAME, topic://NAME; a bare name is a queue. May be repeated.",
)
@click.option("--as", "new", metavar="DEST", callback=_named, help="Send all of them there.")
@click.option("--since", metavar="TIME", callback=_time, help="Only what the broker took then or later; UTC.")
@click.option("--until", metavar="TIME", callback=_time, help="Only what it took before.")
@click.option("--where", metavar="SQL", help="Only rows of the table messages of which this is true: type = 'order'")
@click.option("--only", type=click.Choice((ALL, UNACKNOWLEDGED)), default=ALL, show_default=True)
@click.option(
    "--expired",
    type=click.Choice(("skip", "keep")),
    default="skip",
    show_default=True,
    help="keep: send what has expired, too. Then no message has an end.",
)
@click.option("--ordered/--unordered", default=True, show_default=True, help="Each destination in one piece, in order.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="At most so many messages a second, in all.")
@click.option(
    "--tasks",
    type=click.IntRange(1, TASKS_MAX),
    default=TASKS_DEFAULT,
    show_default=True,
    help="So many connections, where Spark runs so many tasks at once.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would be sent. Connects to no broker.")
def replay(
    url: str | None,
    login: str | None,
    passcode_file: Path | None,
    destinations: tuple[str, ...],
    new: str | None,
    since: datetime | None,
    until: datetime | None,
    where: str | None,
    only: str,
    expired: str,
    ordered: bool,
    rate: float | None,
    tasks: int,
    is_dry: bool,
    **common: Any,
) -> None:
    """Send the messages of SOURCES to a broker, each once, whatever is killed meanwhile: run it again with the same
    --out, and it goes on.

    SOURCES are journals, Parquet of the table messages, or the lake of the job archive. The messages get new ids; the
    property originalMessageId has the old one.

    Exit code 1 while a message that was asked for is not at the broker.
    """
    if url is None and not is_dry:
        raise click.UsageError("--to says where to; or give --dry-run")
    wish = Wish(destinations, since, until, where, only, expired == "keep", ordered)
    own: dict[str, Any] = {"wish": wish, "rate": rate}
    if not is_dry:
        assert url is not None, "asked above"
        passcode = None if passcode_file is None else str(passcode_file)
        own["target"] = Target(url, login, passcode, new, rate, tasks)
        if sys.stderr.isatty():
            own["progress"] = _progress()
    begun = Ledger(common["out"] / STATE).run() is not None
    answer("replay", own, check=_nothing if begun else _there, **common)


def _nothing(sources: Sources) -> None:
    """What is left is sent from the plan: the sources may be gone."""


def _progress() -> Callable[[int, int], None]:
    def show(sent: int, total: int) -> None:
        click.echo(f"\rconfirmed: {sent:,} of {total:,}", nl=sent >= total, err=True)

    return show
