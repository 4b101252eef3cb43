"""The scenarios of ``python -m tandemmq.bench``. Each reads the options that it has parameters for, and no others."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from tandemmq.bench.attacks import (
    ATTACKS_COLUMNS,
    LOGINS_COLUMNS,
    PORT_CASES,
    PORT_COLUMNS,
    admin_port,
    attacks,
    logins,
)
from tandemmq.bench.attacks import CASES as ATTACKS
from tandemmq.bench.attacks import ROUNDS as ATTACK_ROUNDS
from tandemmq.bench.beside import CASES as BESIDE_CASES
from tandemmq.bench.beside import COLUMNS as BESIDE_COLUMNS
from tandemmq.bench.beside import beside
from tandemmq.bench.cpu import CASES as CPU_CASES
from tandemmq.bench.cpu import cpu
from tandemmq.bench.cpu import table as cpu_table
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import Endpoint
from tandemmq.bench.failover import CASES as FAILOVER_CASES
from tandemmq.bench.failover import SIZES as FAILOVER_SIZES
from tandemmq.bench.failover import failover
from tandemmq.bench.growth import SIZES as GROWTH_SIZES
from tandemmq.bench.growth import SUBJECTS, growth
from tandemmq.bench.instructions import BUDGET_FILE, Budget, instructions
from tandemmq.bench.instructions import CASES as COUNTED_CASES
from tandemmq.bench.instructions import ROUNDS as COUNTED_ROUNDS
from tandemmq.bench.instructions import table as counted_table
from tandemmq.bench.pairs import ATTACKS as PAIRS_CASES
from tandemmq.bench.pairs import pairs
from tandemmq.bench.pairs import table as pairs_table
from tandemmq.bench.peers.fair import BROKERS, FULL, QUICK, fair
from tandemmq.bench.peers.fair import has_failed as fair_has_failed
from tandemmq.bench.peers.fair import table as fair_table
from tandemmq.bench.peers.loads import LATENCIES, PATTERNS, WORKLOADS
from tandemmq.bench.peers.server import HOST
from tandemmq.bench.replicated import CASES as REPLICATED_CASES
from tandemmq.bench.replicated import GROUPS, has_failed, replicated
from tandemmq.bench.report import runs_table

ROUNDS: Final = 2
CPU_ROUNDS: Final = 12
REPLICATED_BACKLOG: Final = 20_000
_GIB: Final = 1 << 30
FAIR_CASES: Final = {"fair": WORKLOADS, "latency": LATENCIES, "jms-patterns": PATTERNS}
PATTERN_BROKERS: Final = ("compiled", "activemq")
_NOBODY: Final = Endpoint(HOST, 0)  # replaced by each server's endpoint


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a scenario, and its table; without a table the figures are printed as they are."""

    figures: Mapping[str, Any]
    table: Sequence[str] = ()
    has_failed: bool = False


def _say(line: str) -> None:
    click.echo(line, err=True)


def _chosen(text: str | None, known: Iterable[str], option: str = "--cases") -> list[str]:
    """Return the names in ``text``, which must be in ``known``; None: all of them. Raises click.BadParameter."""
    known = list(known)
    names = known if text is None else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r}: expected some of {', '.join(known)}", param_hint=option)
    return names


# ---- brokers side by side


def _fair(scenario: str, peers: str | None, cases: str | None, quick: bool, rounds: int | None) -> Outcome:
    known = FAIR_CASES[scenario]
    chosen = _chosen(cases, known)
    offered = {known[case].protocol for case in chosen}
    brokers = [name for name, broker in BROKERS.items() if offered.intersection(broker.protocols)]
    default = PATTERN_BROKERS if scenario == "jms-patterns" else [name for name in brokers if BROKERS[name].is_default]
    names = default if peers is None else _chosen(peers, brokers, "--peers")
    rule = QUICK if quick else FULL
    figures = fair(names, chosen, replace(rule, rounds=rounds or rule.rounds), _say)
    return Outcome({"scenario": scenario, "quick": quick, **figures}, fair_table(figures), fair_has_failed(figures))


# ---- cost and delay of a message


def _cpu(baseline: str | None, cases: str | None, rounds: int | None, scale: float) -> Outcome:
    figures = cpu(baseline, _chosen(cases, CPU_CASES), rounds or CPU_ROUNDS, scale, _say)
    return Outcome(figures, cpu_table(figures))


def _instructions(
    baseline: str | None, cases: str | None, rounds: int | None, scale: float, check: bool, compiled: Path | None
) -> Outcome:
    accepted = Budget.read(BUDGET_FILE.read_text(), COUNTED_CASES) if check else None
    chosen = _chosen(cases, COUNTED_CASES)
    figures = instructions(baseline, chosen, rounds or COUNTED_ROUNDS, scale, accepted, compiled, _say)
    return Outcome(figures, counted_table(figures), bool(figures["beyond"]))


def _beside(cases: str | None, rate: float, seconds: float, rounds: int | None, compiled: Path | None) -> Outcome:
    figures = beside(_chosen(cases, BESIDE_CASES), rate, seconds, rounds or ROUNDS, compiled, _say)
    return Outcome(figures, runs_table(figures, BESIDE_COLUMNS))


def _logins(rounds: int | None, compiled: Path | None) -> Outcome:
    figures = logins(rounds or 1, compiled, _say)
    return Outcome(figures, runs_table(figures, LOGINS_COLUMNS), figures["has_failed"])


def _attacks(cases: str | None, seconds: float, rounds: int | None, compiled: Path | None) -> Outcome:
    figures = attacks(_chosen(cases, ATTACKS), seconds, rounds or ATTACK_ROUNDS, compiled, _say)
    return Outcome(figures, runs_table(figures, ATTACKS_COLUMNS), figures["has_failed"])


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
    return Outcome(figures, runs_table(figures, PORT_COLUMNS))


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
    **{name: functools.partial(_fair, name) for name in FAIR_CASES},
    "attacks": _attacks,
    "beside": _beside,
    "cpu": _cpu,
    "failover": _failover,
    "growth": _growth,
    "instructions": _instructions,
    "logins": _logins,
    "pairs": _pairs,
    "pipeline": _pipeline,
    "replicated": _replicated,
    "admin-port": _admin_port,
}
