"""Our broker beside its peers: the same load, the same machine, taking turns.

Each round starts every broker afresh on an empty directory, one after the other, and every other round goes through
them backwards, so that a machine that gets slower or faster meanwhile is fair to all. Ratios are of the means.
"""

import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.peers.activemq import ActiveMQ
from bench.peers.rabbitmq import RabbitMQ
from bench.peers.server import PeerMissing, Server
from bench.peers.tandemmq import TandemMQ
from broker.bench.backlog import run_backlog
from broker.bench.connection import BenchError
from broker.bench.load import run_load
from broker.bench.outage import run_outage
from broker.bench.plan import LoadPlan

OURS = TandemMQ.name
SERVERS: Mapping[str, Callable[[], Server]] = {
    TandemMQ.name: TandemMQ,
    ActiveMQ.name: ActiveMQ,
    RabbitMQ.name: RabbitMQ,
}
SECONDS_BEFORE_KILL = 2.0

# The figure that a scenario is about: where it stands, how it is called, and whether more is better.
HEADLINES: Mapping[str, tuple[str, str, bool]] = {
    "windowed": ("sent_per_second", "msg/s", True),
    "waiting": ("sent_per_second", "msg/s", True),
    "backlog": ("sent_per_second_at_end", "msg/s", True),
    "outage": ("outage_seconds", "s", False),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One broker in one round; ``figures`` is empty when ``problem`` says why."""

    broker: str
    round: int
    figures: Mapping[str, object]
    problem: str | None = None


@dataclass(slots=True)
class Comparison:
    """All rounds of one scenario."""

    scenario: str
    runs: list[Run] = field(default_factory=list)

    def mean(self, broker: str) -> float | None:
        """The mean of the scenario's headline figure; None when the broker has none."""
        name = HEADLINES[self.scenario][0]
        values = [run.figures[name] for run in self.runs if run.broker == broker and name in run.figures]
        return statistics.fmean(value for value in values if isinstance(value, int | float)) if values else None

    def ratio(self, peer: str) -> float | None:
        """How many times better we are: above 1 is for us, whether the figure is a rate or a time."""
        ours, theirs = self.mean(OURS), self.mean(peer)
        if not ours or not theirs:
            return None
        return ours / theirs if HEADLINES[self.scenario][2] else theirs / ours

    def brokers(self) -> list[str]:
        """In the order they first ran."""
        return list(dict.fromkeys(run.broker for run in self.runs))

    def figures(self) -> dict[str, object]:
        """Everything, for a machine."""
        return {
            "scenario": self.scenario,
            "machine": machine(),
            "runs": [
                {"broker": run.broker, "round": run.round, "problem": run.problem, **run.figures} for run in self.runs
            ],
            "means": {broker: self.mean(broker) for broker in self.brokers()},
            "ratios": {broker: self.ratio(broker) for broker in self.brokers() if broker != OURS},
        }


def machine() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def compare(
    scenario: str,
    peers: Sequence[str],
    plan: LoadPlan,
    rounds: int,
    backlog: int,
    say: Callable[[str], None],
    with_ours: bool = True,
) -> Comparison:
    """Run all rounds. A broker that cannot run a scenario is noted with the reason, and the others go on."""
    comparison = Comparison(scenario)
    names = ([OURS] if with_ours else []) + list(peers)
    for number in range(1, rounds + 1):
        for name in names if number % 2 else reversed(names):
            try:
                figures = _outage(name, plan, backlog) if scenario == "outage" else _load(name, scenario, plan)
                run = Run(name, number, figures)
            except (BenchError, PeerMissing, OSError) as problem:
                run = Run(name, number, {}, str(problem))
            comparison.runs.append(run)
            say(run_line(scenario, run))
    return comparison


def _load(name: str, scenario: str, plan: LoadPlan) -> Mapping[str, object]:
    with SERVERS[name]() as server:
        own = replace(plan, endpoint=server.endpoint, server_pid=server.pid, admin_url=server.admin_url)
        return run_backlog(own).figures() if scenario == "backlog" else run_load(own).figures()


def _outage(name: str, plan: LoadPlan, backlog: int) -> Mapping[str, object]:
    """A pair over one directory; its master holds ``backlog`` messages when it is killed."""
    shared = Path(tempfile.mkdtemp(prefix="bench-pair-"))
    try:
        with ExitStack() as running:
            if name == TandemMQ.name:
                master: Server = TandemMQ(data=shared / "data", broker="a")
                standby: Server = TandemMQ(data=shared / "data", broker="b")
            elif name == ActiveMQ.name:
                master, standby = ActiveMQ(data=shared / "data"), ActiveMQ(data=shared / "data")
            else:
                raise BenchError(f"{name} has no pair over one store directory")
            running.callback(standby.discard)
            running.enter_context(master)
            standby.start()
            standby.await_standby()
            if backlog:
                run_load(replace(plan, endpoint=master.endpoint, count=backlog, consumers=0, queues=1, window=200))
            return run_outage(
                [master.endpoint, standby.endpoint],
                master.pid,
                f"{plan.destination}.outage",
                SECONDS_BEFORE_KILL,
                body_bytes=plan.body_bytes,
            ).figures()
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def run_line(scenario: str, run: Run) -> str:
    """One run in one line, for whoever watches."""
    if run.problem is not None:
        return f"round {run.round}  {run.broker:<10} – {run.problem}"
    name, unit, _ = HEADLINES[scenario]
    value = run.figures[name]
    assert isinstance(value, int | float), "a headline figure is a number"
    return f"round {run.round}  {run.broker:<10} {value:12,.3f} {unit}"


def table(comparison: Comparison) -> list[str]:
    """The comparison as aligned columns."""
    name, unit, _ = HEADLINES[comparison.scenario]
    columns = {
        "windowed": ["receipt_p50_ms", "receipt_p99_ms", "server_cpu_seconds", "driver_cpu_seconds"],
        "waiting": ["receipt_p50_ms", "receipt_p99_ms", "server_cpu_seconds", "driver_cpu_seconds"],
        "backlog": ["sent_per_second_at_start", "end_to_start", "is_complete"],
        "outage": ["until_connected_seconds", "confirmed_before", "confirmed_after"],
    }[comparison.scenario]
    memory = ["server_peak_memory_bytes"] if comparison.scenario in ("windowed", "waiting") else []
    heads = ["broker", "round", f"{name} ({unit})", *columns, *(["peak MiB"] if memory else [])]
    rows = [heads]
    for run in comparison.runs:
        if run.problem is not None:
            rows.append([run.broker, str(run.round), run.problem.splitlines()[0][:60]])
            continue
        cells = [_cell(run.figures.get(column)) for column in [name, *columns]]
        peak = [_cell(_mebibytes(run.figures.get(column))) for column in memory]
        rows.append([run.broker, str(run.round), *cells, *peak])
    widths = [max(len(row[place]) for row in rows if len(row) == len(heads)) for place in range(len(heads))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
    for peer in comparison.brokers():
        ratio = comparison.ratio(peer)
        if peer != OURS and ratio is not None:
            lines.append(f"{OURS} is {ratio:.2f} x {peer}")
    return lines


def _mebibytes(value: object) -> float | None:
    return value / (1024 * 1024) if isinstance(value, int) else None


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "NO", None: "–"}[value]
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
