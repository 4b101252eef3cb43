"""``tandemmq bench``: persistent STOMP load against any broker, from processes of its own."""

import json
import os
from dataclasses import replace
from pathlib import Path

import click

from broker.bench.backlog import run_backlog
from broker.bench.connection import BenchError, Endpoint
from broker.bench.load import run_load
from broker.bench.outage import endpoints_of, run_outage
from broker.bench.plan import LoadPlan
from broker.bench.report import backlog_lines, load_lines, outage_lines
from broker.failover import FailoverUrl, UrlError

EXIT_FAILED = 1
DEFAULT_BACKLOG = 1_000_000


@click.command("bench")
@click.argument("scenario", type=click.Choice(["windowed", "waiting", "backlog", "outage"]), default="windowed")
@click.option("--url", help="stomp://host:port, or failover:(...): the first address, or for outage all of them.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=61613, show_default=True)
@click.option("--login", default="guest", show_default=True)
@click.option("--passcode", default="guest", show_default=True)
@click.option("--stomp-version", type=click.Choice(["1.1", "1.2"]), default="1.2", show_default=True)
@click.option("--producers", type=click.IntRange(0), help="Default: 4; waiting: 16.")
@click.option("--consumers", type=click.IntRange(0), default=4, show_default=True)
@click.option("--queues", type=click.IntRange(1), help="Default: 4; backlog: 1.")
@click.option("--destination", help="Queues are <this>.0, .1, ...  Default: /queue/bench.<pid>.")
@click.option("--size", type=click.IntRange(40), default=1024, show_default=True, help="Bytes of a body.")
@click.option("--window", type=click.IntRange(1), help="Receipts outstanding per producer. Default: 200; waiting: 1.")
@click.option("--count", type=click.IntRange(1), help="Messages in all, instead of --seconds.")
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--warmup", type=click.FloatRange(0), default=2.0, show_default=True, help="Seconds before --seconds.")
@click.option(
    "--ack",
    type=click.Choice(["client-individual", "client", "auto"]),
    default="client-individual",
    show_default=True,
)
@click.option("--persistent/--no-persistent", default=True, show_default=True)
@click.option("--prefetch", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Processes of the driver.")
@click.option("--turn-ms", type=click.FloatRange(0), help="Least length of a turn of the driver's loop.")
@click.option("--pid", type=int, help="The server's process, to measure (with its children); outage: to kill.")
@click.option("--admin", help="http://host:port of a TandemMQ broker, for messages per sync.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file, too.")
def bench(
    scenario: str,
    url: str | None,
    host: str,
    port: int,
    login: str,
    passcode: str,
    stomp_version: str,
    producers: int | None,
    consumers: int,
    queues: int | None,
    destination: str | None,
    size: int,
    window: int | None,
    count: int | None,
    seconds: float,
    warmup: float,
    ack: str,
    persistent: bool,
    prefetch: int,
    processes: int,
    turn_ms: float | None,
    pid: int | None,
    admin: str | None,
    as_json: bool,
    report: Path | None,
) -> None:
    """Measure a STOMP broker.

    \b
    windowed: producers keep a window of receipts outstanding, consumers acknowledge each message.
    waiting: 16 producers that wait for each receipt.
    backlog: --count messages with nobody reading, then a drain that checks each message and its place.
    outage: kill -9 of --pid while a client sends; --url names both brokers.
    """
    endpoint = Endpoint(host, port, login, passcode, version=stomp_version)
    addresses = [(host, port)]
    if url is not None:
        try:
            addresses = [(address.host, address.port) for address in FailoverUrl.parse(url).addresses]
        except UrlError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
        endpoint = endpoints_of(endpoint, addresses)[0]
    is_waiting, is_backlog = scenario == "waiting", scenario == "backlog"
    plan = LoadPlan(
        endpoint,
        producers=producers if producers is not None else (16 if is_waiting else 4),
        consumers=consumers,
        queues=queues if queues is not None else (1 if is_backlog else 4),
        body_bytes=size,
        window=window if window is not None else (1 if is_waiting else 200),
        count=count,
        seconds=seconds,
        warmup_seconds=warmup,
        acknowledgement=ack,
        is_persistent=persistent,
        prefetch=prefetch,
        processes=processes,
        destination=destination or f"/queue/bench.{os.getpid()}",
        server_pid=pid,
        admin_url=admin,
        turn_seconds=turn_ms / 1000 if turn_ms is not None else None,
    )
    if plan.producers == 0 and plan.consumers == 0:
        raise click.UsageError("nothing to do: no producers and no consumers")
    try:
        if scenario == "outage":
            if pid is None:
                raise click.UsageError("outage needs --pid, the process to kill")
            outage = run_outage(
                endpoints_of(endpoint, addresses), pid, plan.queue(0), seconds_before=seconds, body_bytes=size
            )
            figures, lines = outage.figures(), outage_lines(outage)
        elif is_backlog:
            backlog = run_backlog(replace(plan, count=count or DEFAULT_BACKLOG))
            figures, lines = backlog.figures(), backlog_lines(backlog)
        else:
            load = run_load(plan)
            figures, lines = load.figures(), load_lines(load)
    except (BenchError, OSError) as error:
        click.echo(f"bench: {error}", err=True)
        raise SystemExit(EXIT_FAILED) from None
    text = json.dumps({"scenario": scenario, **figures}, indent=2)
    if report is not None:
        report.write_text(text + "\n")
    click.echo(text if as_json else "\n".join(lines))
    if is_backlog and not backlog.is_complete:
        raise SystemExit(EXIT_FAILED)
