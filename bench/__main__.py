"""``python -m tandemmq.bench``: our broker and its peers under the same load in the same run, with the ratios."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

import click

from tandemmq.bench import budget
from tandemmq.bench.beside import CASES as BESIDE_CASES
from tandemmq.bench.beside import beside
from tandemmq.bench.beside import table as beside_table
from tandemmq.bench.catch_up import PACE_PER_SECOND
from tandemmq.bench.compare import HEADLINES, OURS, PEERS, compare, table
from tandemmq.bench.connection import BenchError, Endpoint
from tandemmq.bench.cpu import CASES as CPU_CASES
from tandemmq.bench.cpu import cpu
from tandemmq.bench.cpu import table as cpu_table
from tandemmq.bench.failover import CASES, LOAD_MESSAGES, SIZES, failover
from tandemmq.bench.growth import SIZES as GROWTH_SIZES
from tandemmq.bench.growth import SUBJECTS, growth
from tandemmq.bench.instructions import CASES as COUNTED_CASES
from tandemmq.bench.instructions import ROUNDS as COUNTED_ROUNDS
from tandemmq.bench.instructions import instructions
from tandemmq.bench.instructions import table as counted_table
from tandemmq.bench.jms import BROKERS, jms
from tandemmq.bench.jms import CASES as JMS_CASES
from tandemmq.bench.mqtt import BROKERS as MQTT_BROKERS
from tandemmq.bench.mqtt import CASES as MQTT_CASES
from tandemmq.bench.mqtt import mqtt
from tandemmq.bench.peers.server import HOST
from tandemmq.bench.plan import LoadPlan
from tandemmq.bench.process import end_in_order_at_sigterm
from tandemmq.bench.replicated import CASES as REPLICATED_CASES
from tandemmq.bench.replicated import GROUPS, has_failed, replicated
from tandemmq.bench.report import as_json
from tandemmq.bench.scrape import CASES as SCRAPE_CASES
from tandemmq.bench.scrape import SIZES as SCRAPE_SIZES
from tandemmq.bench.scrape import scrape
from tandemmq.bench.scrape import table as scrape_table

EXIT_FAILED = 1
BESIDE = "beside"
CPU = "cpu"
FAILOVER = "failover"
GROWTH = "growth"
INSTRUCTIONS = "instructions"
JMS = "jms"
LATENCY = "latency"
MQTT = "mqtt"
PIPELINE = "pipeline"
REPLICATED = "replicated"
SCRAPE = "scrape"
SCENARIOS = [*HEADLINES, BESIDE, CPU, FAILOVER, GROWTH, INSTRUCTIONS, JMS, MQTT, PIPELINE, REPLICATED, SCRAPE]
GIB = 1 << 30
ROUNDS, CPU_ROUNDS = 2, 12
DEFAULT_BACKLOG = {"backlog": 1_000_000, "outage": 0, REPLICATED: 20_000}


@click.command()
@click.option("--scenario", type=click.Choice(SCENARIOS), default="windowed", show_default=True)
@click.option(
    "--peers",
    help="Comma-separated; empty for none. Default: activemq,rabbitmq; jms: activemq,activemq-stored; "
    "mqtt: activemq,mosquitto; "
    f"replicated: {','.join(GROUPS)}.",
)
@click.option("--without-ours", is_flag=True, help="The peers alone.")
@click.option(
    "--compiled",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A tree of ours with its compiled libraries, which runs beside this one; beside: in its place.",
)
@click.option(
    "--rounds", type=click.IntRange(1), help=f"Default: {ROUNDS}; cpu: {CPU_ROUNDS}; instructions: {COUNTED_ROUNDS}."
)
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--warmup", type=click.FloatRange(0), default=4.0, show_default=True, help="A Java broker needs some.")
@click.option("--producers", type=click.IntRange(1), help="Default: 4; waiting: 16; jms: 8.")
@click.option("--consumers", type=click.IntRange(0), default=4, show_default=True)
@click.option("--queues", type=click.IntRange(1), help="Default: 4; backlog: 1.")
@click.option("--size", type=click.IntRange(40), default=1024, show_default=True)
@click.option("--window", type=click.IntRange(1), help="Default: 200; waiting: 1.")
@click.option(
    "--backlog", type=click.IntRange(0), help="Messages. Default: 1,000,000; before an outage 0; replicated: 20,000."
)
@click.option(
    "--cases",
    help=f"Which. beside: {','.join(BESIDE_CASES)}; cpu: {','.join(CPU_CASES)}; "
    f"instructions: {','.join(COUNTED_CASES)}; "
    f"failover: {','.join(CASES)}; growth: {','.join(SUBJECTS)}; jms: {','.join(JMS_CASES)}; "
    f"mqtt: {','.join(MQTT_CASES)}; "
    f"replicated: {','.join(REPLICATED_CASES)}. "
    "Default: all.",
)
@click.option(
    "--sizes",
    help=f"failover: what is stored, some of {','.join(SIZES)}. growth: how many, "
    f"{','.join(map(str, GROWTH_SIZES))} unless said otherwise.",
)
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
    help="failover, pipeline: where stores are built and kept for the next run. Default: they go. replicated: where "
    "the node that catches up has its own, a disk that no other node uses.",
)
@click.option(
    "--journal-gib", type=click.FloatRange(0.1), default=2.0, show_default=True, help="pipeline: what is read."
)
@click.option(
    "--composition-gib", type=click.FloatRange(0.1), default=5.0, show_default=True, help="pipeline: composed."
)
@click.option("--gigabytes", type=click.FloatRange(0.01), default=0.1, show_default=True, help="replicated: catch-up.")
@click.option(
    "--pace",
    type=click.FloatRange(1),
    default=PACE_PER_SECOND,
    show_default=True,
    help="replicated: messages a second beside a catch-up.",
)
@click.option("--outages", type=click.IntRange(1), default=3, show_default=True, help="replicated: rounds of outage.")
@click.option(
    "--rate", type=click.FloatRange(1), default=1_000.0, show_default=True, help="latency, beside: messages a second."
)
@click.option(
    "--baseline",
    help="cpu, instructions: a commit. Default: where the branch left the main one; on the main one HEAD~.",
)
@click.option(
    "--interpreter",
    type=click.Path(exists=True, dir_okay=False),
    help="cpu: another Python. It runs the broker, beside one of the same tree by the Python that runs this.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    help="cpu, instructions: 0.1 for a tenth of the messages.",
)
@click.option("--check", is_flag=True, help="instructions: end with 1 when a case is beyond bench/budget.toml.")
@click.option("--json", "as_json_asked", is_flag=True, help="Print JSON instead of a table.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file, too.")
def main(
    scenario: str,
    peers: str | None,
    without_ours: bool,
    compiled: Path | None,
    rounds: int | None,
    seconds: float,
    warmup: float,
    producers: int | None,
    consumers: int,
    queues: int | None,
    size: int,
    window: int | None,
    backlog: int | None,
    cases: str | None,
    sizes: str | None,
    load: int,
    directory: Path | None,
    journal_gib: float,
    composition_gib: float,
    gigabytes: float,
    pace: float,
    outages: int,
    rate: float,
    baseline: str | None,
    interpreter: str | None,
    scale: float,
    check: bool,
    as_json_asked: bool,
    report: Path | None,
) -> None:
    """Compare brokers on this machine. Starts and ends all of them itself, on loopback, in temporary directories."""
    end_in_order_at_sigterm()
    if scenario == CPU:
        chosen = _chosen(cases or ",".join(CPU_CASES), CPU_CASES, "--cases")
        try:
            figures = cpu(baseline, chosen, rounds or CPU_ROUNDS, scale, _say, interpreter)
        except (BenchError, OSError) as problem:
            raise click.ClickException(str(problem)) from None
        text = as_json(figures, report)
        return _end(text if as_json_asked else "\n".join(cpu_table(figures)), False)
    if scenario == INSTRUCTIONS:
        accepted = budget.Budget.read(budget.FILE.read_text(), COUNTED_CASES) if check else None
        chosen = _chosen(cases or ",".join(COUNTED_CASES), COUNTED_CASES, "--cases")
        try:
            figures = instructions(baseline, chosen, rounds or COUNTED_ROUNDS, scale, accepted, _say)
        except (BenchError, OSError, subprocess.CalledProcessError) as problem:
            raise click.ClickException(str(problem)) from None
        text = as_json(figures, report)
        return _end(text if as_json_asked else "\n".join(counted_table(figures)), bool(figures["beyond"]))
    rounds = rounds or ROUNDS
    if scenario == BESIDE:
        chosen = _chosen(cases or ",".join(BESIDE_CASES), BESIDE_CASES, "--cases")
        figures = beside(chosen, rate, seconds, rounds, compiled, _say)
        text = as_json(figures, report)
        return _end(text if as_json_asked else "\n".join(beside_table(figures)), False)
    if scenario == REPLICATED:
        replicated_plan = LoadPlan(Endpoint(HOST, 0), body_bytes=size, seconds=seconds, warmup_seconds=warmup)
        figures = replicated(
            _chosen(cases or ",".join(REPLICATED_CASES), REPLICATED_CASES, "--cases"),
            _chosen(peers if peers is not None else ",".join(GROUPS), GROUPS, "--peers"),
            rounds,
            replicated_plan,
            backlog if backlog is not None else DEFAULT_BACKLOG[REPLICATED],
            gigabytes,
            outages,
            _say,
            pace,
            directory,
        )
        return _end(as_json(figures, report), has_failed(figures))
    if scenario == FAILOVER:
        chosen = _chosen(cases or ",".join(CASES), CASES, "--cases")
        figures = failover(chosen, _chosen(sizes or ",".join(SIZES), SIZES, "--sizes"), rounds, directory, _say, load)
        is_broken = any(case["problem"] or case["lost"] or case["undone"] for case in figures["cases"])
        return _end(as_json(figures, report), is_broken)
    if scenario == GROWTH:
        subjects = _chosen(cases or ",".join(SUBJECTS), SUBJECTS, "--cases")
        try:
            counts = sorted({int(each) for each in _names(sizes)}) if sizes else GROWTH_SIZES
        except ValueError:
            raise click.BadParameter(f"{sizes!r}: expected numbers", param_hint="--sizes") from None
        return _end(as_json(growth(subjects, counts, _say), report), False)
    if scenario == SCRAPE:
        try:
            figures = scrape(_chosen(cases or ",".join(SCRAPE_CASES), SCRAPE_CASES, "--cases"), SCRAPE_SIZES, _say)
        except (BenchError, OSError) as problem:
            raise click.ClickException(str(problem)) from None
        text = as_json(figures, report)
        return _end(text if as_json_asked else "\n".join(scrape_table(figures)), False)
    if scenario == PIPELINE:
        from tandemmq.bench.pipeline import pipeline  # needs the extra "spark"

        found = pipeline(int(journal_gib * GIB), int(composition_gib * GIB), rounds, directory, _say)
        return _end(as_json(found, report), False)
    if scenario == MQTT:
        known = [name for name in MQTT_BROKERS if name != OURS]
        chosen_peers = _chosen(",".join(known) if peers is None else peers, known, "--peers")
        mqtt_plan = LoadPlan(
            Endpoint(HOST, 0),
            producers or 4,
            consumers,
            queues or 4,
            size,
            window or 200,
            seconds=seconds,
            warmup_seconds=warmup,
            rate=rate,
        )
        chosen = _chosen(cases or ",".join(MQTT_CASES), MQTT_CASES, "--cases")
        own = [] if without_ours else [OURS]
        figures = mqtt(chosen, own + chosen_peers, rounds, mqtt_plan, _say, compiled)
        return _end(as_json(figures, report), any(run["problem"] for run in figures["runs"]))
    if peers is None:
        peers = "activemq,activemq-stored" if scenario == JMS else "activemq,rabbitmq"
    names = _names(peers)
    nobody = Endpoint(HOST, 0)  # each server's own takes its place
    if scenario == JMS:
        brokers = ([] if without_ours else [OURS]) + [name for name in names if name in BROKERS and name != OURS]
        jms_plan = LoadPlan(
            nobody, producers or 8, consumers, queues or 4, size, seconds=seconds, warmup_seconds=warmup
        )
        chosen = _chosen(cases or ",".join(JMS_CASES), JMS_CASES, "--cases")
        figures = jms(chosen, brokers, rounds, jms_plan, _say, compiled)
        return _end(as_json(figures, report), any(run["problem"] for run in figures["runs"]))
    _chosen(peers, PEERS, "--peers")
    if without_ours and not names and compiled is None:
        raise click.UsageError("nothing to do: no peers and not ours")
    count = backlog if backlog is not None else DEFAULT_BACKLOG.get(scenario, 0)
    if scenario == "backlog" and count == 0:
        raise click.UsageError("a backlog has at least one message")
    plan = LoadPlan(
        nobody,
        producers=producers or (16 if scenario == "waiting" else 4),
        consumers=consumers,
        queues=queues or (1 if scenario == "backlog" else 4),
        body_bytes=size,
        window=window or (1 if scenario == "waiting" else 200),
        count=count if scenario == "backlog" else None,
        seconds=seconds,
        warmup_seconds=warmup,
        processes=2 if scenario == LATENCY else 1,
        rate=rate if scenario == LATENCY else None,
    )
    comparison = compare(scenario, names, plan, rounds, count, _say, not without_ours, compiled)
    text = as_json(comparison.figures(), report)
    is_broken = any(run.problem is not None and run.broker == OURS for run in comparison.runs)
    return _end(text if as_json_asked else "\n".join(table(comparison)), is_broken)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _end(text: str, has_failed: bool) -> None:
    click.echo(text)
    if has_failed:
        raise SystemExit(EXIT_FAILED)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _chosen(text: str, known: Iterable[str], option: str) -> list[str]:
    names = _names(text)
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r}: expected some of {', '.join(known)}", param_hint=option)
    return names


if __name__ == "__main__":
    main()
