"""``python -m tandemmq.bench``: TandemMQ and its peers under the same load in the same run, with the ratios."""

import inspect
import subprocess
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tandemmq.bench.attacks import CASES as ATTACKS
from tandemmq.bench.attacks import PORT_CASES
from tandemmq.bench.beside import CASES as BESIDE_CASES
from tandemmq.bench.catch_up import PACE_PER_SECOND
from tandemmq.bench.cpu import CASES as CPU_CASES
from tandemmq.bench.driver.process import end_in_order_at_sigterm
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.failover import CASES as FAILOVER_CASES
from tandemmq.bench.failover import LOAD_MESSAGES
from tandemmq.bench.failover import SIZES as FAILOVER_SIZES
from tandemmq.bench.growth import SIZES as GROWTH_SIZES
from tandemmq.bench.growth import SUBJECTS
from tandemmq.bench.instructions import CASES as COUNTED_CASES
from tandemmq.bench.instructions import ROUNDS as COUNTED_ROUNDS
from tandemmq.bench.peers.fair import BROKERS
from tandemmq.bench.replicated import CASES as REPLICATED_CASES
from tandemmq.bench.replicated import GROUPS
from tandemmq.bench.report import as_json
from tandemmq.bench.scenarios import CPU_ROUNDS, FAIR_CASES, REPLICATED_BACKLOG, ROUNDS, SCENARIOS

EXIT_FAILED = 1


@click.command()
@click.option("--scenario", type=click.Choice(list(SCENARIOS)), default="fair", show_default=True)
@click.option(
    "--peers",
    help=f"Brokers, ours included, separated by commas. fair, latency, jms-patterns: of {','.join(BROKERS)}. "
    f"replicated: of {','.join(GROUPS)}.",
)
@click.option(
    "--quick", is_flag=True, help="fair, latency, jms-patterns: at most 20 minutes, for development. Not to publish."
)
@click.option(
    "--compiled",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A tree of ours with its compiled libraries, in place of this one.",
)
@click.option(
    "--rounds", type=click.IntRange(1), help=f"Default: {ROUNDS}; cpu: {CPU_ROUNDS}; instructions: {COUNTED_ROUNDS}."
)
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--warmup", type=click.FloatRange(0), default=4.0, show_default=True, help="A Java broker needs some.")
@click.option("--size", type=click.IntRange(40), default=1024, show_default=True)
@click.option(
    "--backlog",
    type=click.IntRange(0),
    help=f"replicated: messages. Default: {REPLICATED_BACKLOG:,}.",
)
@click.option(
    "--cases",
    help=f"Which. attacks: {','.join(ATTACKS)}; beside: {','.join(BESIDE_CASES)}; cpu: {','.join(CPU_CASES)}; "
    f"instructions: {','.join(COUNTED_CASES)}; "
    f"failover: {','.join(FAILOVER_CASES)}; growth: {','.join(SUBJECTS)}; "
    + "".join(f"{name}: {','.join(known)}; " for name, known in FAIR_CASES.items())
    + f"admin-port: {','.join(PORT_CASES)}; "
    f"replicated: {','.join(REPLICATED_CASES)}. "
    "Default: all.",
)
@click.option(
    "--sizes",
    help=f"failover: what is stored, some of {','.join(FAILOVER_SIZES)}. growth: how many, "
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
@click.option("--rate", type=click.FloatRange(1), default=1_000.0, show_default=True, help="beside: messages a second.")
@click.option(
    "--baseline",
    help="cpu, instructions: a commit. Default: where the branch left the main one; on the main one HEAD~.",
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
@click.pass_context
def main(context: click.Context, /, scenario: str, as_json_asked: bool, report: Path | None, **options: Any) -> None:
    """Compare brokers on this machine. Starts and stops all of them, on loopback, in temporary directories."""
    end_in_order_at_sigterm()
    run = SCENARIOS[scenario]
    read = inspect.signature(run).parameters
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if is_given and option.name in options and option.name not in read:
            raise click.UsageError(f"{option.opts[0]} is nothing that --scenario {scenario} reads")
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
