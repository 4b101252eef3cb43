"""``python -m tandemmq.bench.cores``: gain of a second core for the most expensive part of a message, reading its
frame.

The same frames are read by one reader, and by two at once: threads, sub-interpreters if this Python has them,
processes. ``gain`` is the frames a second of two, until both are done, relative to one: 2 would be a full second core,
1 is what one lock allows.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tandemmq.bench.interpreters import ask
from tandemmq.bench.reading import read
from tandemmq.bench.report import as_json, machine
from tandemmq.compiled import is_compiled

INTERPRETERS = ("_interpreters", "_xxsubinterpreters")
# Time until both readers are ready and begin together.
READY_SECONDS = 1.0


def in_threads(seconds: float) -> float:
    """Return the frames a second."""
    counts: list[int] = []
    start = time.monotonic() + READY_SECONDS
    _run_both(lambda: counts.append(read(seconds, start)))
    return sum(counts) / (time.monotonic() - start)


def in_interpreters(seconds: float) -> float | None:
    """Return the frames a second; None if this Python has no sub-interpreters, or mypyc's libraries read the frames:
    their globals exist once per process, and a second interpreter that loads them takes them from the first."""
    interpreters = next(filter(None, map(_module, INTERPRETERS)), None)
    if interpreters is None or is_compiled():
        return None
    start = time.monotonic() + READY_SECONDS
    reading, writing = os.pipe()
    try:

        def work() -> None:
            code = (
                f"import os, sys; sys.path[:] = {sys.path!r}\n"
                f"from tandemmq.bench.reading import read\n"
                f"os.write({writing}, b'%d\\n' % read({seconds}, {start}))"
            )
            own = interpreters.create()
            interpreters.run_string(own, code)
            interpreters.destroy(own)

        _run_both(work)
        elapsed = time.monotonic() - start
        return sum(map(int, os.read(reading, 100).split())) / elapsed
    finally:
        os.close(reading)
        os.close(writing)


def in_processes(seconds: float) -> float:
    start = time.monotonic() + READY_SECONDS
    with multiprocessing.get_context("fork").Pool(2) as pool:
        count = sum(pool.starmap(read, [(seconds, start)] * 2))
        return count / (time.monotonic() - start)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _run_both(work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAYS: Mapping[str, Callable[[float], float | None]] = {
    "threads": in_threads,
    "sub-interpreters": in_interpreters,
    "processes": in_processes,
}


def rates(seconds: float) -> dict[str, float | None]:
    """Return the frames a second of one, and of two at once in each way; None: not with this Python. ``of_cpu``: of
    one, per second of its CPU."""
    began, count = time.process_time(), read(seconds)
    of_cpu = count / (time.process_time() - began)
    return {"one": count / seconds, "of_cpu": of_cpu, **{name: way(seconds) for name, way in WAYS.items()}}


def summary(runs: Sequence[Mapping[str, float | None]], first: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the medians of the rounds of a Python. ``gain``: of two relative to its own one; ``to_first``: of one
    relative to that of the first Python, for the same CPU, which other work on the machine changes little."""

    def ratio(name: str, to: Sequence[Mapping[str, float | None]], of: str) -> float | None:
        found = [rate / one for run, base in zip(runs, to, strict=True) if (rate := run[name]) and (one := base[of])]
        return round(statistics.median(found), 3) if found else None

    told: dict[str, Any] = {"one": round(statistics.median(run["one"] or 0.0 for run in runs))}
    told["to_first"] = ratio("of_cpu", first, "of_cpu")
    for way in WAYS:
        told[way] = {"gain": ratio(way, runs, "one")}
    return told


@click.command()
@click.option("--seconds", type=click.FloatRange(0.01), default=2.0, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--interpreter",
    "interpreters",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A Python to measure; several take turns. Default: the running one.",
)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file, too.")
def main(seconds: float, rounds: int, interpreters: Sequence[str], report: Path | None) -> None:
    """Measure the frames a second read by one and by two at once; medians."""
    pythons = list(interpreters) or [sys.executable]
    runs: dict[str, list[Mapping[str, float | None]]] = {python: [] for python in pythons}
    for number in range(rounds):
        for python in pythons[:: -1 if number % 2 else 1]:
            runs[python].append(ask(python, "tandemmq.bench.cores", "rates", seconds))
    figures = {
        "scenario": "cores",
        "machine": machine(),
        "pythons": {
            ask(python, "tandemmq.bench.interpreters", "name"): summary(runs[python], runs[pythons[0]])
            for python in pythons
        },
    }
    click.echo(as_json(figures, report))


if __name__ == "__main__":
    main()
