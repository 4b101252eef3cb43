"""``tandemmq bench``: persistent STOMP load against any broker, from separate processes."""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tandemmq.bench.driver.load import BacklogResult, LoadResult, run_backlog, run_load
from tandemmq.bench.driver.outage import OutageResult, endpoints_of, run_outage
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import BenchError, Endpoint
from tandemmq.cli.connect import connect_options, credentials, tls, tls_files
from tandemmq.cli.failures import EXIT_FAILED, Failed, Unreachable
from tandemmq.cli.output import json_option
from tandemmq.client.failover_url import FailoverUrl, UrlError

GUEST = "guest"
DEFAULT_BACKLOG = 1_000_000
CONNECT_SECONDS_MAX = 5.0
MEBIBYTE = 1024 * 1024
# Defaults of a scenario that differ from LoadPlan's.
DEFAULTS: dict[str, dict[str, Any]] = {"waiting": {"producers": 16, "window": 1}, "backlog": {"queues": 1}}


@click.command("bench")
@click.argument("scenario", type=click.Choice(["windowed", "waiting", "backlog", "outage"]), default="windowed")
@click.option("--url", help="stomp://host:port, stomp+ssl://..., or failover:(...). Only `outage` uses all addresses.")
@click.option("--host", default="127.0.0.1")
@click.option("--port", default=61613)
@connect_options
@click.option("--stomp-version", type=click.Choice(["1.1", "1.2"]), default="1.2")
@click.option("--producers", type=click.IntRange(0), help="Number of producers. Default: 4; waiting: 16.")
@click.option("--consumers", type=click.IntRange(0), default=4)
@click.option("--queues", type=click.IntRange(1), help="Number of queues. Default: 4; backlog: 1.")
@click.option("--destination", help="Prefix of the queues, <prefix>.0, .1, ... Default: /queue/bench.<pid>.")
@click.option("--size", "body_bytes", type=click.IntRange(40), default=1024, help="Bytes of a body.")
@click.option("--window", type=click.IntRange(1), help="Outstanding receipts of a producer. Default: 200; waiting: 1.")
@click.option("--count", type=click.IntRange(1), help="Total number of messages, instead of --seconds.")
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0)
@click.option(
    "--warmup", "warmup_seconds", type=click.FloatRange(0), default=2.0, help="Seconds of warm-up before --seconds."
)
@click.option(
    "--ack",
    "acknowledgement",
    type=click.Choice(["client-individual", "client", "auto"]),
    default="client-individual",
)
@click.option("--persistent/--no-persistent", "is_persistent", default=True)
@click.option("--prefetch", type=click.IntRange(1), default=1000)
@click.option("--processes", type=click.IntRange(1), default=1, help="Processes of the driver.")
@click.option("--turn-ms", type=click.FloatRange(0), help="Shortest turn of the driver's loop.")
@click.option(
    "--pid", "server_pid", type=int, help="Process of the server to measure, with its children; outage: to kill."
)
@click.option("--admin", "admin_url", help="Admin address of a TandemMQ broker, for messages per sync.")
@json_option
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Also write the JSON to this file.")
def bench(
    scenario: str,
    url: str | None,
    host: str,
    port: int,
    stomp_version: str,
    turn_ms: float | None,
    as_json: bool,
    report: Path | None,
    **load: Any,
) -> None:
    """Measure a STOMP broker.

    \b
    windowed: producers keep a window of receipts outstanding, consumers acknowledge each message.
    waiting: 16 producers that wait for each receipt.
    backlog: --count messages without consumers, then a drain that checks each message and its position.
    outage: kill -9 of --pid while a client sends; --url names both brokers.
    """
    who = credentials()
    has_certificate = tls_files().certificate is not None
    login = who.login or ("" if has_certificate else GUEST)
    passcode = GUEST if who.passcode is None else who.passcode
    endpoint = Endpoint(host, port, login, passcode, version=stomp_version)
    addresses = [(host, port)]
    if url is not None:
        try:
            found = FailoverUrl.parse(url).addresses
        except UrlError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
        addresses = [(address.host, address.port) for address in found]
        if any(address.is_tls for address in found):
            if not all(address.is_tls for address in found):
                raise click.BadParameter("either all addresses have TLS, or none", param_hint="--url")
            tls()  # reports wrong files before the run begins
            endpoint = replace(endpoint, tls=tls_files())
        endpoint = endpoints_of(endpoint, addresses)[0]
    is_backlog = scenario == "backlog"
    given = {name: value for name, value in load.items() if value is not None}
    if turn_ms is not None:
        given["turn_seconds"] = turn_ms / 1000
    plan = LoadPlan(endpoint, **{"destination": f"/queue/bench.{os.getpid()}"} | DEFAULTS.get(scenario, {}) | given)
    if plan.producers == 0 and plan.consumers == 0:
        raise click.UsageError("nothing to do: no producers and no consumers")
    try:
        _demand_broker(addresses)
        if scenario == "outage":
            if plan.server_pid is None:
                raise click.UsageError("outage needs --pid, the process to kill")
            both = endpoints_of(endpoint, addresses)
            outage = run_outage(
                both, plan.server_pid, plan.queue(0), seconds_before=plan.seconds, body_bytes=plan.body_bytes
            )
            figures, lines = outage.figures(), _outage_lines(outage)
        elif is_backlog:
            backlog = run_backlog(replace(plan, count=plan.count or DEFAULT_BACKLOG))
            figures, lines = backlog.figures(), _backlog_lines(backlog)
        else:
            done = run_load(plan)
            figures, lines = done.figures(), _load_lines(done)
    except (BenchError, OSError) as error:
        raise Failed(str(error)) from None
    text = json.dumps({"scenario": scenario, **figures}, indent=2)
    if report is not None:
        report.write_text(text + "\n")
    click.echo(text if as_json else "\n".join(lines))
    if is_backlog and not backlog.is_complete:
        raise SystemExit(EXIT_FAILED)


def _demand_broker(addresses: Sequence[tuple[str, int]]) -> None:
    """Raise Unreachable unless one of the addresses accepts connections. (A run would fail with the error of one of its
    connections.)"""
    problem = ""
    for host, port in addresses:
        try:
            socket.create_connection((host, port), CONNECT_SECONDS_MAX).close()
        except OSError as error:
            problem = problem or f"{host}:{port}: {error.strerror or error}"
        else:
            return
    raise Unreachable(f"no broker answers at {problem}")


def _load_lines(result: LoadResult) -> list[str]:
    """Return the figures of a load, one a line."""
    handled = max(result.confirmed, result.received, 1)
    lines = []
    if result.sent:
        lines += [
            f"sent              {result.sent_per_second:12,.0f} msg/s   {result.confirmed:,} of {result.sent:,}",
            f"send to receipt   {_latency(result.receipt_p50_ms, result.receipt_p99_ms)}",
        ]
    if result.received:
        lines.append(f"received          {result.received_per_second:12,.0f} msg/s   {result.received:,} messages")
    if result.sent and result.received:
        lines.append(f"send to receive   {_latency(result.receive_p50_ms, result.receive_p99_ms)}")
    lines.append(f"driver CPU        {_cpu(result.driver_cpu_seconds, handled)}")
    if result.server_cpu_seconds is not None:
        lines.append(f"server CPU        {_cpu(result.server_cpu_seconds, handled)}")
    if result.server_peak_memory_bytes is not None:
        lines.append(f"server peak memory{result.server_peak_memory_bytes / MEBIBYTE:12,.1f} MiB")
    if result.messages_per_sync is not None:
        lines.append(f"messages per sync {result.messages_per_sync:12,.1f}         {result.syncs:,} syncs")
    if result.order is not None:
        order = result.order
        lines.append(
            f"order             {order.seen:12,} seen, {order.skipped:,} skipped, {order.late:,} late or repeated"
        )
    return lines


def _backlog_lines(result: BacklogResult) -> list[str]:
    """Return the figures of filling and draining."""
    start, end = result.sent_per_second_at_start, result.sent_per_second_at_end
    verdict = "every message came out once, in order" if result.is_complete else "MESSAGES MISSING OR OUT OF ORDER"
    return [
        f"send rate         {start:12,.0f} msg/s at the start, {end:,.0f} at the end"
        + (f" ({end / start:.0%})" if start else ""),
        "filling:",
        *("  " + line for line in _load_lines(result.fill)),
        "draining:",
        *("  " + line for line in _load_lines(result.drain)),
        verdict,
    ]


def _outage_lines(result: OutageResult) -> list[str]:
    """Return the figures of an outage."""
    return [
        f"outage            {result.outage_seconds:12.3f} s   last receipt before the kill to first receipt after it",
        f"until connected   {result.until_connected_seconds:12.3f} s   {result.attempts:,} attempts",
        f"taken over by     {result.survivor}",
        f"receipts          {result.confirmed_before:12,}     before, {result.confirmed_after:,} after",
    ]


def _cpu(seconds: float, messages: int) -> str:
    return f"{seconds:12,.2f} s       {seconds / messages * 1e6:.1f} us a message"


def _latency(median: float | None, tail: float | None) -> str:
    if median is None or tail is None:
        return "           –"
    return f"{median:12,.2f} ms p50  {tail:,.2f} ms p99"
