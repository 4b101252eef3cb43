"""``python -m bench``: our broker and its peers under the same load in the same run, with the ratios."""

import json
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from bench.compare import HEADLINES, OURS, SERVERS, compare, table
from bench.failover import CASES, LOAD_MESSAGES, SIZES, failover
from bench.jms import BROKERS, JmsPlan, jms
from bench.jms import CASES as JMS_CASES
from bench.peers.server import HOST
from broker.bench.connection import Endpoint
from broker.bench.plan import LoadPlan

EXIT_FAILED = 1
FAILOVER = "failover"
JMS = "jms"
PIPELINE = "pipeline"
SCENARIOS = [*HEADLINES, FAILOVER, JMS, PIPELINE]
GIB = 1 << 30
DEFAULT_BACKLOG = {"backlog": 1_000_000, "outage": 0}


@click.command()
@click.option(
    "--scenario", type=click.Choice([*HEADLINES, FAILOVER, JMS, PIPELINE]), default="windowed", show_default=True
)
@click.option(
    "--peers",
    help="Comma-separated; empty for none. Default: activemq,rabbitmq; jms: activemq,activemq-stored.",
)
@click.option("--without-ours", is_flag=True, help="The peers alone.")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--warmup", type=click.FloatRange(0), default=4.0, show_default=True, help="A Java broker needs some.")
@click.option("--producers", type=click.IntRange(1), help="Default: 4; waiting: 16; jms: 8.")
@click.option("--consumers", type=click.IntRange(0), default=4, show_default=True)
@click.option("--queues", type=click.IntRange(1), help="Default: 4; backlog: 1.")
@click.option("--size", type=click.IntRange(40), default=1024, show_default=True)
@click.option("--window", type=click.IntRange(1), help="Default: 200; waiting: 1.")
@click.option("--backlog", type=click.IntRange(0), help="Messages. Default: 1,000,000; before an outage 0.")
@click.option("--cases", help=f"Which. failover: {','.join(CASES)}; jms: {','.join(JMS_CASES)}. Default: all.")
@click.option("--sizes", default=",".join(SIZES), show_default=True, help="failover: what is stored.")
@click.option(
    "--load",
    type=click.IntRange(0),
    default=LOAD_MESSAGES,
    show_default=True,
    help="failover: messages sent and received in each round before its end.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="failover, pipeline: where stores are built and kept for the next run. Default: they go.",
)
@click.option(
    "--journal-gib", type=click.FloatRange(0.1), default=2.0, show_default=True, help="pipeline: what is read."
)
@click.option(
    "--composition-gib", type=click.FloatRange(0.1), default=5.0, show_default=True, help="pipeline: composed."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file, too.")
def main(
    scenario: str,
    peers: str | None,
    without_ours: bool,
    rounds: int,
    seconds: float,
    warmup: float,
    producers: int | None,
    consumers: int,
    queues: int | None,
    size: int,
    window: int | None,
    backlog: int | None,
    cases: str | None,
    sizes: str,
    load: int,
    directory: Path | None,
    journal_gib: float,
    composition_gib: float,
    as_json: bool,
    report: Path | None,
) -> None:
    """Compare brokers on this machine. Starts and ends all of them itself, on loopback, in temporary directories."""
    if scenario == FAILOVER:
        chosen = _chosen(cases or ",".join(CASES), CASES, "--cases")
        _failover(chosen, _chosen(sizes, SIZES, "--sizes"), rounds, directory, report, load)
        return
    if scenario == PIPELINE:
        _pipeline(int(journal_gib * GIB), int(composition_gib * GIB), rounds, directory, report)
        return
    if peers is None:
        peers = ",".join(name for name in BROKERS if name != OURS) if scenario == JMS else "activemq,rabbitmq"
    names = [name.strip() for name in peers.split(",") if name.strip()]
    if scenario == JMS:
        brokers = ([] if without_ours else [OURS]) + [name for name in names if name in BROKERS and name != OURS]
        jms_plan = JmsPlan(producers or 8, consumers, queues or 4, size, seconds, warmup)
        _jms(_chosen(cases or ",".join(JMS_CASES), JMS_CASES, "--cases"), brokers, rounds, jms_plan, report)
        return
    unknown = [name for name in names if name not in SERVERS or name == OURS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r}: expected activemq or rabbitmq", param_hint="--peers")
    if without_ours and not names:
        raise click.UsageError("nothing to do: no peers and not ours")
    count = backlog if backlog is not None else DEFAULT_BACKLOG.get(scenario, 0)
    if scenario == "backlog" and count == 0:
        raise click.UsageError("a backlog has at least one message")
    plan = LoadPlan(
        Endpoint(HOST, 0),  # each server's own takes its place
        producers=producers if producers is not None else (16 if scenario == "waiting" else 4),
        consumers=consumers,
        queues=queues if queues is not None else (1 if scenario == "backlog" else 4),
        body_bytes=size,
        window=window if window is not None else (1 if scenario == "waiting" else 200),
        count=count if scenario == "backlog" else None,
        seconds=seconds,
        warmup_seconds=warmup,
    )
    # A run that is told to end must still end what it started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    comparison = compare(
        scenario, names, plan, rounds, count, lambda line: click.echo(line, err=True), with_ours=not without_ours
    )
    text = json.dumps(comparison.figures(), indent=2)
    if report is not None:
        report.write_text(text + "\n")
    click.echo(text if as_json else "\n".join(table(comparison)))
    if any(run.problem is not None and run.broker == OURS for run in comparison.runs):
        raise SystemExit(EXIT_FAILED)


def _chosen(said: str, known: Iterable[str], option: str) -> list[str]:
    names = [name.strip() for name in said.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r}: expected some of {', '.join(known)}", param_hint=option)
    return names


def _jms(cases: Sequence[str], brokers: Sequence[str], rounds: int, plan: JmsPlan, report: Path | None) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    figures = jms(cases, brokers, rounds, plan, lambda line: click.echo(line, err=True))
    text = json.dumps(figures, indent=2)
    if report is not None:
        report.write_text(text + "\n")
    click.echo(text)
    if any(run["problem"] for run in figures["runs"]):
        raise SystemExit(EXIT_FAILED)


def _pipeline(journal_bytes: int, composition_bytes: int, rounds: int, work: Path | None, report: Path | None) -> None:
    from bench.pipeline import pipeline  # needs the extra "spark"

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    figures = pipeline(journal_bytes, composition_bytes, rounds, work, lambda line: click.echo(line, err=True))
    text = json.dumps(figures, indent=2)
    if report is not None:
        report.write_text(text + "\n")
    click.echo(text)


def _failover(
    cases: Sequence[str], sizes: Sequence[str], rounds: int, work: Path | None, report: Path | None, load: int
) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    figures = failover(cases, sizes, rounds, work, lambda line: click.echo(line, err=True), load)
    text = json.dumps(figures, indent=2)
    if report is not None:
        report.write_text(text + "\n")
    click.echo(text)
    if any(case["problem"] or case["lost"] or case["undone"] for case in figures["cases"]):
        raise SystemExit(EXIT_FAILED)


if __name__ == "__main__":
    main()
