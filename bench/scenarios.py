"""The scenarios of ``python -m tandemmq.bench``. Each reads the options that it has parameters for, and no others."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tandemmq.bench import budget
from tandemmq.bench.attacks import CASES as ATTACKS
from tandemmq.bench.attacks import ROUNDS as ATTACK_ROUNDS
from tandemmq.bench.attacks import attacks
from tandemmq.bench.attacks import table as attacks_table
from tandemmq.bench.beside import CASES as BESIDE_CASES
from tandemmq.bench.beside import beside
from tandemmq.bench.beside import table as beside_table
from tandemmq.bench.compare import OURS, PEERS, compare
from tandemmq.bench.compare import table as compare_table
from tandemmq.bench.connection import Endpoint
from tandemmq.bench.cpu import CASES as CPU_CASES
from tandemmq.bench.cpu import cpu
from tandemmq.bench.cpu import table as cpu_table
from tandemmq.bench.failover import CASES as FAILOVER_CASES
from tandemmq.bench.failover import SIZES as FAILOVER_SIZES
from tandemmq.bench.failover import failover
from tandemmq.bench.growth import SIZES as GROWTH_SIZES
from tandemmq.bench.growth import SUBJECTS, growth
from tandemmq.bench.instructions import CASES as COUNTED_CASES
from tandemmq.bench.instructions import ROUNDS as COUNTED_ROUNDS
from tandemmq.bench.instructions import instructions
from tandemmq.bench.instructions import table as counted_table
from tandemmq.bench.jms import BROKERS as JMS_BROKERS
from tandemmq.bench.jms import CASES as JMS_CASES
from tandemmq.bench.jms import jms
from tandemmq.bench.logins import logins
from tandemmq.bench.logins import table as logins_table
from tandemmq.bench.mqtt import BROKERS as MQTT_BROKERS
from tandemmq.bench.mqtt import CASES as MQTT_CASES
from tandemmq.bench.mqtt import mqtt
from tandemmq.bench.pairs import ATTACKS as PAIRS_CASES
from tandemmq.bench.pairs import pairs
from tandemmq.bench.pairs import table as pairs_table
from tandemmq.bench.peers.server import HOST
from tandemmq.bench.plan import LoadPlan
from tandemmq.bench.port_attacks import CASES as PORT_CASES
from tandemmq.bench.port_attacks import admin_port
from tandemmq.bench.port_attacks import table as port_table
from tandemmq.bench.replicated import CASES as REPLICATED_CASES
from tandemmq.bench.replicated import GROUPS, has_failed, replicated
from tandemmq.bench.scrape import CASES as SCRAPE_CASES
from tandemmq.bench.scrape import SIZES as SCRAPE_SIZES
from tandemmq.bench.scrape import scrape
from tandemmq.bench.scrape import table as scrape_table

ROUNDS: Final = 2
CPU_ROUNDS: Final = 12
BACKLOG: Final = 1_000_000
REPLICATED_BACKLOG: Final = 20_000
_GIB: Final = 1 << 30
_NOBODY: Final = Endpoint(HOST, 0)  # each server's own takes its place


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured, and the table of it: without one the figures are printed as they are."""

    figures: Mapping[str, Any]
    table: Sequence[str] = ()
    has_failed: bool = False


def _say(line: str) -> None:
    click.echo(line, err=True)


def _chosen(text: str | None, known: Iterable[str], option: str = "--cases") -> list[str]:
    """Of what is ``known``; all of it unless somebody said which. Raises click.BadParameter."""
    known = list(known)
    names = known if text is None else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r}: expected some of {', '.join(known)}", param_hint=option)
    return names


# ---- STOMP beside peers


def _messages(
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
    rate: float,
) -> Outcome:
    names = _chosen("activemq,rabbitmq" if peers is None else peers, PEERS, "--peers")
    if without_ours and not names and compiled is None:
        raise click.UsageError("nothing to do: no peers and not ours")
    waits, is_backlog, is_latency = scenario == "waiting", scenario == "backlog", scenario == "latency"
    count = (BACKLOG if is_backlog else 0) if backlog is None else backlog
    if is_backlog and count == 0:
        raise click.UsageError("a backlog has at least one message")
    plan = LoadPlan(
        _NOBODY,
        producers=producers or (16 if waits else 4),
        consumers=consumers,
        queues=queues or (1 if is_backlog else 4),
        body_bytes=size,
        window=window or (1 if waits else 200),
        count=count if is_backlog else None,
        seconds=seconds,
        warmup_seconds=warmup,
        processes=2 if is_latency else 1,
        rate=rate if is_latency else None,
    )
    comparison = compare(scenario, names, plan, rounds or ROUNDS, count, _say, not without_ours, compiled)
    is_broken = any(run.problem is not None and run.broker == OURS for run in comparison.runs)
    return Outcome(comparison.figures(), compare_table(comparison), is_broken)


# ---- other protocols beside peers


def _jms(
    peers: str | None,
    without_ours: bool,
    compiled: Path | None,
    rounds: int | None,
    cases: str | None,
    seconds: float,
    warmup: float,
    producers: int | None,
    consumers: int,
    queues: int | None,
    size: int,
) -> Outcome:
    others = [name for name in JMS_BROKERS if name != OURS]
    chosen = _chosen("activemq,activemq-stored" if peers is None else peers, others, "--peers")
    plan = LoadPlan(_NOBODY, producers or 8, consumers, queues or 4, size, seconds=seconds, warmup_seconds=warmup)
    own = [] if without_ours else [OURS]
    figures = jms(_chosen(cases, JMS_CASES), own + chosen, rounds or ROUNDS, plan, _say, compiled)
    return Outcome(figures, has_failed=any(run["problem"] for run in figures["runs"]))


def _mqtt(
    peers: str | None,
    without_ours: bool,
    compiled: Path | None,
    rounds: int | None,
    cases: str | None,
    seconds: float,
    warmup: float,
    producers: int | None,
    consumers: int,
    queues: int | None,
    size: int,
    window: int | None,
    rate: float,
) -> Outcome:
    chosen = _chosen(peers, [name for name in MQTT_BROKERS if name != OURS], "--peers")
    plan = LoadPlan(
        _NOBODY,
        producers or 4,
        consumers,
        queues or 4,
        size,
        window or 200,
        seconds=seconds,
        warmup_seconds=warmup,
        rate=rate,
    )
    own = [] if without_ours else [OURS]
    figures = mqtt(_chosen(cases, MQTT_CASES), own + chosen, rounds or ROUNDS, plan, _say, compiled)
    return Outcome(figures, has_failed=any(run["problem"] for run in figures["runs"]))


# ---- what a message costs, and waits


def _cpu(baseline: str | None, cases: str | None, rounds: int | None, scale: float, interpreter: str | None) -> Outcome:
    figures = cpu(baseline, _chosen(cases, CPU_CASES), rounds or CPU_ROUNDS, scale, _say, interpreter)
    return Outcome(figures, cpu_table(figures))


def _instructions(baseline: str | None, cases: str | None, rounds: int | None, scale: float, check: bool) -> Outcome:
    accepted = budget.Budget.read(budget.FILE.read_text(), COUNTED_CASES) if check else None
    chosen = _chosen(cases, COUNTED_CASES)
    figures = instructions(baseline, chosen, rounds or COUNTED_ROUNDS, scale, accepted, _say)
    return Outcome(figures, counted_table(figures), bool(figures["beyond"]))


def _beside(cases: str | None, rate: float, seconds: float, rounds: int | None, compiled: Path | None) -> Outcome:
    figures = beside(_chosen(cases, BESIDE_CASES), rate, seconds, rounds or ROUNDS, compiled, _say)
    return Outcome(figures, beside_table(figures))


def _logins(rounds: int | None, compiled: Path | None) -> Outcome:
    figures = logins(rounds or 1, compiled, _say)
    return Outcome(figures, logins_table(figures), figures["has_failed"])


def _attacks(cases: str | None, seconds: float, rounds: int | None, compiled: Path | None) -> Outcome:
    figures = attacks(_chosen(cases, ATTACKS), seconds, rounds or ATTACK_ROUNDS, compiled, _say)
    return Outcome(figures, attacks_table(figures), figures["has_failed"])


def _growth(cases: str | None, sizes: str | None) -> Outcome:
    try:
        counts = sorted({int(each) for each in sizes.split(",") if each.strip()}) if sizes else GROWTH_SIZES
    except ValueError:
        raise click.BadParameter(f"{sizes!r}: expected numbers", param_hint="--sizes") from None
    return Outcome(growth(_chosen(cases, SUBJECTS), counts, _say))


def _pairs(cases: str | None) -> Outcome:
    figures = pairs(_chosen(cases, PAIRS_CASES), _say)
    return Outcome(figures, pairs_table(figures), figures["has_failed"])


def _admin_port(cases: str | None, seconds: float, rounds: int | None, compiled: Path | None) -> Outcome:
    figures = admin_port(_chosen(cases, PORT_CASES), seconds, rounds or ROUNDS, compiled, _say)
    return Outcome(figures, port_table(figures))


def _scrape(cases: str | None) -> Outcome:
    figures = scrape(_chosen(cases, SCRAPE_CASES), SCRAPE_SIZES, _say)
    return Outcome(figures, scrape_table(figures))


# ---- pairs, sets and the pipeline


def _failover(cases: str | None, sizes: str | None, rounds: int | None, directory: Path | None, load: int) -> Outcome:
    chosen, stored = _chosen(cases, FAILOVER_CASES), _chosen(sizes, FAILOVER_SIZES, "--sizes")
    figures = failover(chosen, stored, rounds or ROUNDS, directory, _say, load)
    is_broken = any(case["problem"] or case["lost"] or case["undone"] for case in figures["cases"])
    return Outcome(figures, has_failed=is_broken)


def _replicated(
    cases: str | None,
    peers: str | None,
    rounds: int | None,
    size: int,
    seconds: float,
    warmup: float,
    backlog: int | None,
    gigabytes: float,
    outages: int,
    pace: float,
    directory: Path | None,
) -> Outcome:
    figures = replicated(
        _chosen(cases, REPLICATED_CASES),
        _chosen(peers, GROUPS, "--peers"),
        rounds or ROUNDS,
        LoadPlan(_NOBODY, body_bytes=size, seconds=seconds, warmup_seconds=warmup),
        REPLICATED_BACKLOG if backlog is None else backlog,
        gigabytes,
        outages,
        _say,
        pace,
        directory,
    )
    return Outcome(figures, has_failed=has_failed(figures))


def _pipeline(journal_gib: float, composition_gib: float, rounds: int | None, directory: Path | None) -> Outcome:
    from tandemmq.bench.pipeline import pipeline  # needs the extra "spark"

    return Outcome(pipeline(int(journal_gib * _GIB), int(composition_gib * _GIB), rounds or ROUNDS, directory, _say))


SCENARIOS: Final[Mapping[str, Callable[..., Outcome]]] = {
    **{name: functools.partial(_messages, name) for name in ("windowed", "waiting", "backlog", "outage", "latency")},
    "attacks": _attacks,
    "beside": _beside,
    "cpu": _cpu,
    "failover": _failover,
    "growth": _growth,
    "instructions": _instructions,
    "jms": _jms,
    "logins": _logins,
    "mqtt": _mqtt,
    "pairs": _pairs,
    "pipeline": _pipeline,
    "replicated": _replicated,
    "scrape": _scrape,
    "admin-port": _admin_port,
}
