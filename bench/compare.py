"""Our broker beside its peers: the same load, the same machine, taking turns.

Each round starts every broker afresh on an empty directory, one after the other, and every other round goes through
them backwards, so that a machine that gets slower or faster meanwhile is fair to all. Ratios are of the medians.
"""

import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tandemmq.bench.backlog import run_backlog
from tandemmq.bench.connection import BenchError
from tandemmq.bench.load import run_load
from tandemmq.bench.outage import run_outage
from tandemmq.bench.peers.activemq import ActiveMQ, ActiveMQStored
from tandemmq.bench.peers.floor import Floor
from tandemmq.bench.peers.rabbitmq import RabbitMQ
from tandemmq.bench.peers.replicated import RabbitMQCluster
from tandemmq.bench.peers.server import PeerMissing, Server, running_pair
from tandemmq.bench.peers.tandemmq import TandemMQ
from tandemmq.bench.plan import LoadPlan

OURS = TandemMQ.name
COMPILED = "tandemmq-compiled"
QUORUM = "rabbitmq-quorum"
SERVERS: Mapping[str, Callable[[], Server]] = {
    TandemMQ.name: TandemMQ,
    ActiveMQ.name: ActiveMQ,
    RabbitMQ.name: RabbitMQ,
    Floor.name: Floor,
    ActiveMQStored.name: ActiveMQStored,
}
PEERS = (*(name for name in SERVERS if name != OURS), QUORUM)
SECONDS_BEFORE_KILL = 2.0

# The figure that a scenario is about: where it stands, how it is called, and whether more is better.
HEADLINES: Mapping[str, tuple[str, str, bool]] = {
    "windowed": ("sent_per_second", "msg/s", True),
    "waiting": ("sent_per_second", "msg/s", True),
    "backlog": ("sent_per_second_at_end", "msg/s", True),
    "outage": ("outage_seconds", "s", False),
    "latency": ("receipt_p99_ms", "ms", False),
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

    def median(self, broker: str) -> float | None:
        """The median of the scenario's headline figure; None when the broker has none."""
        name = HEADLINES[self.scenario][0]
        values = [run.figures[name] for run in self.runs if run.broker == broker and name in run.figures]
        return statistics.median(value for value in values if isinstance(value, int | float)) if values else None

    def ratio(self, peer: str, to: str = OURS) -> float | None:
        """How many times better we are: above 1 is for us, whether the figure is a rate or a time."""
        ours, theirs = self.median(to), self.median(peer)
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
            "medians": {broker: self.median(broker) for broker in self.brokers()},
            "ratios": {
                ours: {broker: self.ratio(broker, ours) for broker in self.brokers() if broker != ours}
                for ours in (OURS, COMPILED)
                if ours in self.brokers()
            },
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
    compiled: Path | None = None,
) -> Comparison:
    """Run all rounds. A broker that cannot run a scenario is noted with the reason, and the others go on.

    ``compiled``: a tree whose hot path was compiled, which runs beside this one."""
    comparison = Comparison(scenario)
    names = ([OURS] if with_ours else []) + ([COMPILED] if compiled else []) + list(peers)
    for number in range(1, rounds + 1):
        for name in names if number % 2 else reversed(names):
            try:
                figures = (
                    _outage(name, plan, backlog) if scenario == "outage" else _load(name, scenario, plan, compiled)
                )
                run = Run(name, number, figures)
            except (BenchError, PeerMissing, OSError) as problem:
                run = Run(name, number, {}, str(problem))
            comparison.runs.append(run)
            say(run_line(scenario, run))
    return comparison


def _load(name: str, scenario: str, plan: LoadPlan, compiled: Path | None) -> Mapping[str, object]:
    run = run_backlog if scenario == "backlog" else run_load
    if name == QUORUM:
        with RabbitMQCluster(plan.queues, nodes=1) as cluster:
            own = replace(plan, endpoint=cluster.endpoint, destination=cluster.queue, server_pid=cluster.pids[0])
            return run(own).figures()
    with TandemMQ(tree=compiled) if name == COMPILED and compiled else SERVERS[name]() as server:
        own = replace(plan, endpoint=server.endpoint, server_pid=server.pid, admin_url=server.admin_url)
        return run(own).figures()


def _outage(name: str, plan: LoadPlan, backlog: int) -> Mapping[str, object]:
    """A pair over one directory; its master holds ``backlog`` messages when it is killed."""
    with tempfile.TemporaryDirectory(prefix="bench-pair-", ignore_cleanup_errors=True) as shared:
        data = Path(shared, "data")
        if name == TandemMQ.name:
            pair: list[Server] = [TandemMQ(data=data, broker=broker) for broker in "ab"]
        elif name == ActiveMQ.name:
            pair = [ActiveMQ(data=data) for _ in "ab"]
        else:
            raise BenchError(f"{name} has no pair over one store directory")
        with running_pair(*pair) as (master, standby):
            if backlog:
                run_load(replace(plan, endpoint=master.endpoint, count=backlog, consumers=0, queues=1, window=200))
            endpoints, destination = [master.endpoint, standby.endpoint], f"{plan.destination}.outage"
            outage = run_outage(endpoints, master.pid, destination, SECONDS_BEFORE_KILL, body_bytes=plan.body_bytes)
            return outage.figures()


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
    latencies = ["receipt_p50_ms", "receipt_p99_ms", "server_cpu_seconds", "driver_cpu_seconds"]
    columns = {
        "windowed": [*latencies, "server_peak_memory_bytes"],
        "waiting": [*latencies, "server_peak_memory_bytes"],
        "backlog": ["sent_per_second_at_start", "end_to_start", "is_complete"],
        "outage": ["until_connected_seconds", "confirmed_before", "confirmed_after"],
        "latency": [
            *("receipt_p50_ms", "receipt_p999_ms", "receipt_max_ms"),
            *("receive_p50_ms", "receive_p99_ms", "receive_p999_ms", "receive_max_ms", "sent_per_second"),
        ],
    }[comparison.scenario]
    heads = ["broker", "round", f"{name} ({unit})", *columns]
    rows = [[head.replace("server_peak_memory_bytes", "peak MiB") for head in heads]]
    for run in comparison.runs:
        if run.problem is not None:
            rows.append([run.broker, str(run.round), run.problem.splitlines()[0][:60]])
            continue
        rows.append([run.broker, str(run.round), *(_cell(run.figures.get(each), each) for each in (name, *columns))])
    lines = aligned(rows)
    for ours in (OURS, COMPILED):
        for peer in comparison.brokers():
            ratio = comparison.ratio(peer, ours)
            if peer not in (OURS, COMPILED) and ratio is not None:
                lines.append(f"{ours} is {ratio:.2f} x {peer}")
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """As columns. A row that is shorter than the first one, for it ends in a sentence, widens none."""
    heads = rows[0]
    widths = [max(len(row[place]) for row in rows if len(row) == len(heads)) for place in range(len(heads))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]


def _cell(value: object, column: str) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "NO", None: "–"}[value]
    if isinstance(value, int) and column.endswith("_bytes"):
        value = value / (1 << 20)
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
