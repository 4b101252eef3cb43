"""``python -m tandemmq.bench``: TandemMQ and other brokers under the same load in the same run, with the ratios.

The parameters of a scenario's function are its options. Other options are refused.
"""

import functools
import inspect
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from tandemmq.bench import attacks, beside, catch_up, cpu, failover, growth, instructions, pairs, replicated
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.process import end_in_order_at_sigterm
from tandemmq.bench.driver.stomp import BenchError, Endpoint
from tandemmq.bench.peers import fair
from tandemmq.bench.peers.loads import AMQP, LATENCIES, PATTERNS, WORKLOADS
from tandemmq.bench.peers.server import HOST
from tandemmq.bench.report import as_json, runs_table

ROUNDS: Final = 2
CPU_ROUNDS: Final = 12
REPLICATED_BACKLOG: Final = 20_000
_GIB: Final = 1 << 30
FAIR_CASES: Final = {"fair": WORKLOADS, "latency": LATENCIES, "jms-patterns": PATTERNS, "amqp": AMQP}
#: Brokers of the scenarios that do not run all by default.
FAIR_BROKERS: Final = {"jms-patterns": ("compiled", "activemq"), "amqp": ("compiled", "activemq-6", "artemis")}
_NOBODY: Final = Endpoint(HOST, 0)  # replaced by each server's endpoint


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a scenario. ``table``: lines of the report; empty: the figures are printed as JSON."""

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
    brokers = [name for name, broker in fair.BROKERS.items() if offered.intersection(broker.protocols)]
    default = FAIR_BROKERS.get(scenario) or [name for name in brokers if fair.BROKERS[name].is_default]
    names = default if peers is None else _chosen(peers, brokers, "--peers")
    rule = fair.QUICK if quick else fair.FULL
    figures = fair.fair(names, chosen, replace(rule, rounds=rounds or rule.rounds), _say)
    return Outcome({"scenario": scenario, "quick": quick, **figures}, fair.table(figures), fair.has_failed(figures))


# ---- cost and delay of a message


def _cpu(baseline: str | None, cases: str | None, rounds: int | None, scale: float) -> Outcome:
    figures = cpu.cpu(baseline, _chosen(cases, cpu.CASES), rounds or CPU_ROUNDS, scale, _say)
    return Outcome(figures, cpu.table(figures))


def _instructions(
    baseline: str | None, cases: str | None, rounds: int | None, scale: float, check: bool, compiled: Path | None
) -> Outcome:
    accepted = instructions.Budget.read(instructions.BUDGET_FILE.read_text(), instructions.CASES) if check else None
    chosen = _chosen(cases, instructions.CASES)
    figures = instructions.instructions(
        baseline, chosen, rounds or instructions.ROUNDS, scale, accepted, compiled, _say
    )
    return Outcome(figures, instructions.table(figures), bool(figures["beyond"]))


def _beside(cases: str | None, rate: float, seconds: float, rounds: int | None, compiled: Path | None) -> Outcome:
    figures = beside.beside(_chosen(cases, beside.CASES), rate, seconds, rounds or ROUNDS, compiled, _say)
    return Outcome(figures, runs_table(figures, beside.COLUMNS))


def _logins(rounds: int | None, compiled: Path | None) -> Outcome:
    figures = attacks.logins(rounds or 1, compiled, _say)
    return Outcome(figures, runs_table(figures, attacks.LOGINS_COLUMNS), figures["has_failed"])


def _attacks(cases: str | None, seconds: float, rounds: int | None, compiled: Path | None) -> Outcome:
    figures = attacks.attacks(_chosen(cases, attacks.CASES), seconds, rounds or attacks.ROUNDS, compiled, _say)
    return Outcome(figures, runs_table(figures, attacks.ATTACKS_COLUMNS), figures["has_failed"])


def _growth(cases: str | None, sizes: str | None) -> Outcome:
    try:
        counts = sorted({int(each) for each in sizes.split(",") if each.strip()}) if sizes else growth.SIZES
    except ValueError:
        raise click.BadParameter(f"{sizes!r}: expected numbers", param_hint="--sizes") from None
    return Outcome(growth.growth(_chosen(cases, growth.SUBJECTS), counts, _say))


def _pairs(cases: str | None) -> Outcome:
    figures = pairs.pairs(_chosen(cases, pairs.ATTACKS), _say)
    return Outcome(figures, pairs.table(figures), figures["has_failed"])


def _admin_port(cases: str | None, seconds: float, rounds: int | None, compiled: Path | None) -> Outcome:
    figures = attacks.admin_port(_chosen(cases, attacks.PORT_CASES), seconds, rounds or ROUNDS, compiled, _say)
    return Outcome(figures, runs_table(figures, attacks.PORT_COLUMNS))


# ---- pairs, sets and the pipeline


def _failover(cases: str | None, sizes: str | None, rounds: int | None, directory: Path | None, load: int) -> Outcome:
    chosen, stored = _chosen(cases, failover.CASES), _chosen(sizes, failover.SIZES, "--sizes")
    figures = failover.failover(chosen, stored, rounds or ROUNDS, directory, _say, load)
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
    figures = replicated.replicated(
        _chosen(cases, replicated.CASES),
        _chosen(peers, replicated.GROUPS, "--peers"),
        rounds or ROUNDS,
        LoadPlan(_NOBODY, body_bytes=size, seconds=seconds, warmup_seconds=warmup),
        REPLICATED_BACKLOG if backlog is None else backlog,
        gigabytes,
        outages,
        _say,
        pace,
        directory,
    )
    return Outcome(figures, has_failed=replicated.has_failed(figures))


def _pipeline(journal_gib: float, composition_gib: float, rounds: int | None, directory: Path | None) -> Outcome:
    from tandemmq.bench.pipeline import pipeline  # imports Spark (the extra "spark")

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


EXIT_FAILED = 1


@click.command()
@click.option("--scenario", type=click.Choice(list(SCENARIOS)), default="fair", show_default=True)
@click.option(
    "--peers",
    help="Brokers, TandemMQ included, separated by commas. fair, latency, jms-patterns, amqp: "
    f"of {','.join(fair.BROKERS)}. "
    f"replicated: of {','.join(replicated.GROUPS)}.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="fair, latency, jms-patterns, amqp: at most 20 minutes, for development, not for publication.",
)
@click.option(
    "--compiled",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A source tree of TandemMQ with compiled libraries, in place of this one.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help=f"Default: {ROUNDS}; cpu: {CPU_ROUNDS}; instructions: {instructions.ROUNDS}.",
)
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option(
    "--warmup", type=click.FloatRange(0), default=4.0, show_default=True, help="Seconds of load before the measurement."
)
@click.option("--size", type=click.IntRange(40), default=1024, show_default=True)
@click.option(
    "--backlog",
    type=click.IntRange(0),
    help=f"replicated: messages. Default: {REPLICATED_BACKLOG:,}.",
)
@click.option(
    "--cases",
    help=f"Cases. attacks: {','.join(attacks.CASES)}; beside: {','.join(beside.CASES)}; cpu: {','.join(cpu.CASES)}; "
    f"instructions: {','.join(instructions.CASES)}; "
    f"failover: {','.join(failover.CASES)}; growth: {','.join(growth.SUBJECTS)}; "
    + "".join(f"{name}: {','.join(known)}; " for name, known in FAIR_CASES.items())
    + f"admin-port: {','.join(attacks.PORT_CASES)}; "
    f"replicated: {','.join(replicated.CASES)}. "
    "Default: all.",
)
@click.option(
    "--sizes",
    help=f"failover: sizes of the store, of {','.join(failover.SIZES)}. growth: numbers of objects, "
    f"{','.join(map(str, growth.SIZES))} by default.",
)
@click.option(
    "--load",
    type=click.IntRange(0),
    default=failover.LOAD_MESSAGES,
    show_default=True,
    help="failover: messages sent and received in each round before its end.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="failover, pipeline: where stores are built and kept for the next run. Default: they are removed. replicated: "
    "directory of the node that catches up, on a disk that no other node uses.",
)
@click.option(
    "--journal-gib", type=click.FloatRange(0.1), default=2.0, show_default=True, help="pipeline: size of the journal."
)
@click.option(
    "--composition-gib", type=click.FloatRange(0.1), default=5.0, show_default=True, help="pipeline: for composition."
)
@click.option("--gigabytes", type=click.FloatRange(0.01), default=0.1, show_default=True, help="replicated: catch-up.")
@click.option(
    "--pace",
    type=click.FloatRange(1),
    default=catch_up.PACE_PER_SECOND,
    show_default=True,
    help="replicated: messages a second beside a catch-up.",
)
@click.option("--outages", type=click.IntRange(1), default=3, show_default=True, help="replicated: rounds of outage.")
@click.option("--rate", type=click.FloatRange(1), default=1_000.0, show_default=True, help="beside: messages a second.")
@click.option(
    "--baseline",
    help="cpu, instructions: the commit to compare with. Default: where this branch left the main branch; on the main "
    "branch HEAD~.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    help="cpu, instructions: 0.1 for a tenth of the messages.",
)
@click.option("--check", is_flag=True, help="instructions: end with 1 if a case exceeds bench/budget.toml.")
@click.option("--json", "as_json_asked", is_flag=True, help="Print JSON instead of a table.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file, too.")
@click.pass_context
def main(context: click.Context, /, scenario: str, as_json_asked: bool, report: Path | None, **options: Any) -> None:
    """Compare brokers on this machine. Starts and stops all of them, on loopback, in temporary directories."""
    end_in_order_at_sigterm()
    run = SCENARIOS[scenario]
    read = inspect.signature(run).parameters
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if is_given and option.name in options and option.name not in read:
            raise click.UsageError(f"--scenario {scenario} has no option {option.opts[0]}")
    try:
        outcome = run(**{name: options[name] for name in read})
    except (BenchError, OSError, subprocess.CalledProcessError) as problem:
        raise click.ClickException(str(problem)) from None
    text = as_json(outcome.figures, report)
    click.echo(text if as_json_asked or not outcome.table else "\n".join(outcome.table))
    if outcome.has_failed:
        raise SystemExit(EXIT_FAILED)


if __name__ == "__main__":
    main()
