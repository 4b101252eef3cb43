"""``tandemmq simulate``: brokers with these settings through seeded faults in virtual time, and what came of it."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import click

from broker.cli.options import WrongSettings, settings_options
from broker.simulate.tally import Tally
from config.settings import Settings

SEEDS_PER_TASK = 10
SEEDS_PER_LINE = 500
"""How often a long run says on standard error where it is."""
MIXTURES = ("named", "all", "storms", "mixed")
EXIT_BROKEN = 1


@dataclass(frozen=True, slots=True)
class _Task:
    settings: Settings
    seeds: range
    kinds: tuple[str, ...] | None
    """None: those of the mixture."""
    mixture: str
    brokers: int | None
    seconds: float
    is_traced: bool


@dataclass(frozen=True, slots=True)
class _Told:
    """What the parent wants to know of a seed."""

    seed: int
    problems: list[str]
    fingerprint: str
    virtual_seconds: float
    faults: list[str]
    figures: dict[str, int]
    counts: dict[str, dict[str, int]]
    trace: list[str]


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="One seed; its faults are told.")
@click.option("--seeds", metavar="A..B", help="All seeds from A to B.")
@click.option(
    "--mixture",
    type=click.Choice(MIXTURES),
    default=MIXTURES[0],
    show_default=True,
    help="Of faults: those that are named most, all, the worst; or by turns, every other seed a storm.",
)
@click.option("--faults", metavar="LIST", help="Kinds of faults instead of a mixture, or `none`.")
@click.option("--brokers", type=click.IntRange(2, 9), help="Default: 2, 3 or 5, as the seed says.")
@click.option("--seconds", type=click.FloatRange(min=1), help="Virtual seconds in which faults come.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--trace", "is_traced", is_flag=True, help="Everything that brokers did and told, with --seed.")
@click.option("--json", "is_json", is_flag=True, help="For a machine: one object.")
@settings_options
def simulate(
    settings: Settings,
    seed: int | None,
    seeds: str | None,
    mixture: str,
    faults: str | None,
    brokers: int | None,
    seconds: float | None,
    jobs: int,
    is_traced: bool,
    is_json: bool,
) -> None:
    """Run brokers with these settings, in virtual time, through faults that a seed decides.

    The lock, mastership, store and engine are the real ones; volume, database, threads and clocks are simulated, and
    lie. A seed always gives the same run. Exit code 1 when a promise was broken, with the seed that shows it.
    """
    try:
        from broker.simulate.kinds import KINDS
        from broker.simulate.parts import NotSimulated, parts_of
        from broker.simulate.simulation import STORM_SECONDS
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the simulator needs greenlet ({error}): pip install 'tandemmq[simulate]'"
        ) from error
    kinds = None if faults is None else () if faults == "none" else tuple(faults.split(","))
    unknown = [kind for kind in kinds or () if kind not in KINDS]
    if unknown:
        raise click.UsageError(f"--faults: {', '.join(unknown)} unknown; there is {', '.join(KINDS)}")
    try:
        parts_of(settings)
    except NotSimulated as reason:
        raise WrongSettings(str(reason)) from reason
    chosen = _seeds(seed, seeds)
    task = _Task(settings, chosen, kinds, mixture, brokers, seconds or STORM_SECONDS, is_traced)
    began = time.monotonic()
    broken: list[_Told] = []
    told = None
    tally = Tally()
    for told in _all(task, jobs):
        tally.take(told.counts)
        tally.take({"figures": told.figures})
        if told.problems:
            broken.append(told)
        if not is_json:
            _show(told, is_alone=len(chosen) == 1)
        if told.seed % SEEDS_PER_LINE == 0 and len(chosen) > SEEDS_PER_LINE:
            click.echo(
                f"seed {told.seed} of {chosen[-1]}: {len(broken)} broken, {time.monotonic() - began:.0f} s", err=True
            )
    elapsed = time.monotonic() - began
    if is_json:
        _show_json(chosen, broken, told if len(chosen) == 1 else None, tally, elapsed)
    else:
        for group, names in tally.counts().items():
            click.echo(f"{group}: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in names.items()))
        click.echo(
            f"{len(chosen)} seeds, {len(broken)} with broken promises; "
            f"{elapsed:.1f} s, {elapsed / len(chosen):.3f} s a seed"
        )
    if broken:
        sys.exit(EXIT_BROKEN)


def _seeds(seed: int | None, seeds: str | None) -> range:
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed or --seeds, not both")
    if seeds is None:
        return range(seed if seed is not None else 1, (seed if seed is not None else 1) + 1)
    first, dots, last = seeds.partition("..")
    if not (dots and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise click.UsageError(f"--seeds {seeds!r}: expected A..B, as in 1..100")
    return range(int(first), int(last) + 1)


def _all(task: _Task, jobs: int) -> Iterator[_Told]:
    """Every seed, in order."""
    seeds = task.seeds
    if jobs == 1 or len(seeds) == 1:
        yield from _some(task)
        return
    tasks = [replace(task, seeds=seeds[at : at + SEEDS_PER_TASK]) for at in range(0, len(seeds), SEEDS_PER_TASK)]
    with ProcessPoolExecutor(jobs) as pool:
        for told in pool.map(_listed, tasks):
            yield from told


def _listed(task: _Task) -> list[_Told]:
    return list(_some(task))


def _some(task: _Task) -> Iterator[_Told]:
    from broker.simulate.kinds import MIXTURES, mixture_of
    from broker.simulate.parts import parts_of
    from broker.simulate.simulation import Simulation

    parts = parts_of(task.settings)
    with _quiet():
        for seed in task.seeds:
            mixture = mixture_of(seed, task.mixture)
            outcome = Simulation(
                seed,
                parts,
                MIXTURES[mixture] if task.kinds is None else task.kinds,
                brokers=task.brokers,
                storm_seconds=task.seconds,
                is_traced=task.is_traced,
            ).run()
            yield _Told(
                seed,
                outcome.problems,
                f"{outcome.fingerprint & (1 << 64) - 1:016x}",
                outcome.virtual_seconds,
                outcome.faults,
                outcome.figures,
                {**outcome.counts, "seeds": {mixture if task.kinds is None else "chosen faults": 1}},
                outcome.trace,
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """What brokers log is about simulated troubles; --trace tells them with their virtual times."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _show(told: _Told, *, is_alone: bool) -> None:
    for line in told.trace:
        click.echo(line)
    if is_alone or told.problems:
        for line in told.faults:
            click.echo(f"    {line}")
    for problem in told.problems:
        click.echo(f"seed {told.seed}: {problem}")
    if is_alone:
        click.echo(f"seed {told.seed}: {told.virtual_seconds:.1f} virtual s; fingerprint {told.fingerprint}")


def _show_json(chosen: range, broken: list[_Told], alone: _Told | None, tally: Tally, elapsed: float) -> None:
    answer: dict[str, object] = {
        "first_seed": chosen[0],
        "last_seed": chosen[-1],
        "seeds": len(chosen),
        "broken": [{"seed": told.seed, "problems": told.problems, "faults": told.faults} for told in broken],
        "happened": tally.counts(),
        "seconds": round(elapsed, 3),
    }
    if alone is not None:
        answer |= {
            "fingerprint": alone.fingerprint,
            "virtual_seconds": round(alone.virtual_seconds, 3),
            "faults": alone.faults,
        }
    click.echo(json.dumps(answer, indent=2))
