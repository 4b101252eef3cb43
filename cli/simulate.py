"""``tandemmq simulate``: run brokers with these settings through seeded faults in virtual time, and report."""

from __future__ import annotations

import gc
import json
import logging
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tandemmq.cli.config import WrongSettings, settings_options
from tandemmq.cli.failures import EXIT_FAILED
from tandemmq.cli.output import json_option, say_each
from tandemmq.config.settings import Settings
from tandemmq.simulator.tally import Tally

if TYPE_CHECKING:
    from tandemmq.simulator.simulation import Outcome

SEEDS_PER_TASK = 10
SEEDS_PER_LINE = 500
"""Seeds between two progress lines of a long run on standard error."""
MIXTURES = ("named", "all", "storms", "late", "mixed")
COLLECT_AFTER_OBJECTS = 100_000


@dataclass(frozen=True, slots=True)
class _Task:
    settings: Settings
    seeds: range
    kinds: tuple[str, ...] | None
    """Kinds of faults; None: those of the mixture."""
    mixture: str
    brokers: int | None
    seconds: float
    is_traced: bool
    is_replicated: bool


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="One seed; its faults are shown.")
@click.option("--seeds", metavar="A..B", help="All seeds from A to B.")
@click.option(
    "--mixture",
    type=click.Choice(MIXTURES),
    default=MIXTURES[0],
    help="Mixture of faults: the most frequent ones, all, the worst, late links; or in turns, with a "
    "storm in every second seed.",
)
@click.option("--faults", metavar="LIST", help="Kinds of faults instead of a mixture, or `none`.")
@click.option("--brokers", type=click.IntRange(2, 9), help="Number of brokers. Default: 2, 3 or 5, by the seed.")
@click.option(
    "--replicated", "is_replicated", is_flag=True, help="Simulate a replicated set: each broker has its own disk."
)
@click.option("--seconds", type=click.FloatRange(min=1), help="Virtual seconds with faults.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Number of processes.")
@click.option("--trace", "is_traced", is_flag=True, help="Print all actions and log lines of the brokers, with --seed.")
@json_option
@settings_options
def simulate(
    settings: Settings,
    seed: int | None,
    seeds: str | None,
    faults: str | None,
    seconds: float | None,
    jobs: int,
    as_json: bool,
    is_replicated: bool,
    **others: Any,
) -> None:
    """Run brokers with these settings in virtual time, with faults from a seed.

    Lock, mastership, store and engine are real; volume, database, threads and clocks are simulated. A seed always gives
    the same run. Exit code 1 if a guarantee was broken, with the seed.
    """
    try:
        from tandemmq.simulator.kinds import KINDS
        from tandemmq.simulator.parts import NotSimulated, parts_of
        from tandemmq.simulator.set_kinds import SET_KINDS
        from tandemmq.simulator.simulation import STORM_SECONDS
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the simulator needs greenlet ({error}): pip install 'tandemmq[simulate]'"
        ) from error
    kinds = None if faults is None else () if faults == "none" else tuple(faults.split(","))
    there_are = SET_KINDS if is_replicated else KINDS
    unknown = [kind for kind in kinds or () if kind not in there_are]
    if unknown:
        raise click.UsageError(f"--faults: {', '.join(unknown)} unknown; known kinds: {', '.join(there_are)}")
    try:
        parts_of(settings)
    except NotSimulated as reason:
        raise WrongSettings(str(reason)) from reason
    chosen = _seeds(seed, seeds)
    task = _Task(settings, chosen, kinds, seconds=seconds or STORM_SECONDS, is_replicated=is_replicated, **others)
    began = time.monotonic()
    broken: list[Outcome] = []
    result = None
    tally = Tally()
    for result in _all(task, jobs):
        tally.take(result.counts)
        tally.take({"figures": result.figures})
        if result.problems:
            broken.append(result)
        if not as_json:
            _show(result, is_alone=len(chosen) == 1)
        if result.seed % SEEDS_PER_LINE == 0 and len(chosen) > SEEDS_PER_LINE:
            click.echo(
                f"seed {result.seed} of {chosen[-1]}: {len(broken)} broken, {time.monotonic() - began:.0f} s", err=True
            )
    elapsed = time.monotonic() - began
    if as_json:
        _show_json(chosen, broken, result if len(chosen) == 1 else None, tally, elapsed)
    else:
        for group, names in tally.counts().items():
            click.echo(f"{group}: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in names.items()))
        click.echo(
            f"{len(chosen)} seeds, {len(broken)} with broken promises; "
            f"{elapsed:.1f} s, {elapsed / len(chosen):.3f} s a seed"
        )
    if broken:
        sys.exit(EXIT_FAILED)


def _seeds(seed: int | None, seeds: str | None) -> range:
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed or --seeds, not both")
    if seeds is None:
        only = 1 if seed is None else seed
        return range(only, only + 1)
    first, dots, last = seeds.partition("..")
    if not (dots and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise click.UsageError(f"--seeds {seeds!r}: expected A..B, as in 1..100")
    return range(int(first), int(last) + 1)


def _all(task: _Task, jobs: int) -> Iterator[Outcome]:
    """Yield the outcome of every seed, in order."""
    seeds = task.seeds
    if jobs == 1 or len(seeds) == 1:
        yield from _some(task)
        return
    tasks = [replace(task, seeds=seeds[at : at + SEEDS_PER_TASK]) for at in range(0, len(seeds), SEEDS_PER_TASK)]
    with ProcessPoolExecutor(jobs) as pool:
        for result in pool.map(_listed, tasks):
            yield from result


def _listed(task: _Task) -> list[Outcome]:
    return list(_some(task))


def _some(task: _Task) -> Iterator[Outcome]:
    from tandemmq.simulator.kinds import MIXTURES, mixture_of
    from tandemmq.simulator.parts import parts_of
    from tandemmq.simulator.set_kinds import SET_MIXTURE
    from tandemmq.simulator.set_simulation import SetSimulation
    from tandemmq.simulator.simulation import Simulation

    parts = parts_of(task.settings)
    simulation = partial(SetSimulation, replication=task.settings.replication) if task.is_replicated else Simulation
    with _quiet(), _rarely_collecting():
        for seed in task.seeds:
            mixture = "set" if task.is_replicated else mixture_of(seed, task.mixture)
            outcome = simulation(
                seed,
                parts,
                ({**MIXTURES, "set": SET_MIXTURE}[mixture] if task.kinds is None else task.kinds),
                brokers=task.brokers,
                storm_seconds=task.seconds,
                is_traced=task.is_traced,
            ).run()
            of_seed = {"seeds": {mixture if task.kinds is None else "chosen faults": 1}}
            yield replace(outcome, counts=outcome.counts | of_seed)


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable logging: brokers log simulated troubles, which --trace prints with their virtual times."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _rarely_collecting() -> Iterator[None]:
    """Collect garbage about once a seed: a seed makes nearly all of its garbage when it ends."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _show(result: Outcome, *, is_alone: bool) -> None:
    say_each("", result.trace)
    if is_alone or result.problems:
        say_each("    ", result.faults)
    for problem in result.problems:
        click.echo(f"seed {result.seed}: {problem}")
    if is_alone:
        click.echo(f"seed {result.seed}: {result.virtual_seconds:.1f} virtual s; fingerprint {_hex(result)}")


def _hex(result: Outcome) -> str:
    return f"{result.fingerprint & (1 << 64) - 1:016x}"


def _show_json(chosen: range, broken: list[Outcome], alone: Outcome | None, tally: Tally, elapsed: float) -> None:
    answer: dict[str, object] = {
        "first_seed": chosen[0],
        "last_seed": chosen[-1],
        "seeds": len(chosen),
        "broken": [{"seed": result.seed, "problems": result.problems, "faults": result.faults} for result in broken],
        "happened": tally.counts(),
        "seconds": round(elapsed, 3),
    }
    if alone is not None:
        answer |= {
            "fingerprint": _hex(alone),
            "virtual_seconds": round(alone.virtual_seconds, 3),
            "faults": alone.faults,
        }
    click.echo(json.dumps(answer, indent=2))
