"""``python -m tandemmq.bench --scenario replicated``: a set of three nodes, beside its peers.

throughput  the set, a single node and RabbitMQ's quorum queues on three nodes, in turn, under the same loads
outage      how long clients wait when the master is killed, hands over or gets SIGTERM. One set runs through all rounds
            of a size; the former master is started again and follows. Each round counts the messages lost, undone or
            stored twice (bench.witness).
catch-up    speed at which an empty node gets the others' data, under load (bench.catch_up)
"""

from __future__ import annotations

import os
import signal
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tandemmq.bench.catch_up import PACE_PER_SECOND, catch_up
from tandemmq.bench.driver.load import run_load
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.process import cost
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.failover import Case, Round
from tandemmq.bench.journals import write_journal
from tandemmq.bench.peers.replicated import Alone, Group, RabbitMQCluster, ReplicatedSet
from tandemmq.bench.peers.server import PeerMissing, TandemMQ
from tandemmq.bench.report import Say, head
from tandemmq.bench.witness import hand_over, strike_and_count

THROUGHPUT = "throughput"
OUTAGE = "outage"
CATCH_UP = "catch-up"
CASES = (THROUGHPUT, OUTAGE, CATCH_UP)
QUEUES = 4
LOADS: Mapping[str, tuple[int, int]] = {"windowed": (4, 200), "waiting": (16, 1)}  # producers, and the window of each
GROUPS: Mapping[str, Callable[[], Group]] = {
    "tandemmq": Alone,
    "tandemmq-quorum_disk": lambda: ReplicatedSet("quorum_disk"),
    "tandemmq-quorum_mem": lambda: ReplicatedSet("quorum_mem"),
    "rabbitmq-quorum": lambda: RabbitMQCluster(QUEUES),
}
SETS = ("tandemmq-quorum_disk", "tandemmq-quorum_mem")
PEERS = ("tandemmq", "rabbitmq-quorum")


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of a load on a group in one round; ``figures`` is empty if there is a ``problem``."""

    group: str
    load: str
    round: int
    figures: Mapping[str, Any]
    problem: str | None = None

    def as_mapping(self) -> dict[str, Any]:
        return {
            "broker": self.group,
            "load": self.load,
            "round": self.round,
            "problem": self.problem,
            **self.figures,
        }

    def line(self) -> str:
        head = f"round {self.round}  {self.group:<20} {self.load:<8}"
        if self.problem is not None:
            return f"{head} – {self.problem}"
        figures = self.figures
        return (
            f"{head} {figures['sent_per_second']:9,.0f} msg/s  p50 {figures['receipt_p50_ms']:.2f} ms  "
            f"p99 {figures['receipt_p99_ms']:.2f} ms  CPU {figures['cpu_us_per_message']:.0f} us a message"
        )


def replicated(
    cases: Sequence[str],
    groups: Sequence[str],
    rounds: int,
    plan: LoadPlan,
    backlog: int,
    gigabytes: float,
    outage_rounds: int,
    say: Say,
    pace: float = PACE_PER_SECOND,
    directory: Path | None = None,
) -> dict[str, Any]:
    """Return the figures of all cases. ``plan``: duration of a load and length of its messages; ``pace``: messages a
    second during a catch-up; ``directory``: place of the directory of the node that catches up."""
    figures = head("replicated")
    if THROUGHPUT in cases:
        figures[THROUGHPUT] = throughput(groups, rounds, plan, say)
    if OUTAGE in cases:
        figures[OUTAGE] = outages(outage_rounds, backlog, say)
    if CATCH_UP in cases:
        figures[CATCH_UP] = catch_up(gigabytes, rounds, say, pace, directory)
    return figures


def throughput(groups: Sequence[str], rounds: int, plan: LoadPlan, say: Say) -> dict[str, Any]:
    """Measure the groups. Each round starts each group afresh; every other round has the reverse order."""
    runs: list[Run] = []
    for number in range(1, rounds + 1):
        for name in groups if number % 2 else reversed(groups):
            done: list[Run] = []
            try:
                with GROUPS[name]() as group:
                    done.extend(Run(name, load, number, _load(group, load, plan)) for load in LOADS)
            except (BenchError, PeerMissing, OSError) as problem:
                done += [Run(name, load, number, {}, str(problem)) for load in list(LOADS)[len(done) :]]
            for run in done:
                say(run.line())
            runs += done
    return {
        "means": {load: {name: _means(runs, name, load) for name in groups} for load in LOADS},
        "ratios": {load: ratios(runs, load) for load in LOADS},
        "runs": [run.as_mapping() for run in runs],
    }


def _load(group: Group, load: str, plan: LoadPlan) -> dict[str, Any]:
    producers, window = LOADS[load]
    before = {pid: cost(pid).cpu_seconds for pid in group.pids}
    result = run_load(
        LoadPlan(
            group.endpoint,
            producers=producers,
            window=window,
            queues=QUEUES,
            destination=group.queue,
            body_bytes=plan.body_bytes,
            seconds=plan.seconds,
            warmup_seconds=plan.warmup_seconds,
        )
    )
    each = [cost(pid).cpu_seconds - seconds for pid, seconds in before.items()]
    return {
        **result.figures(),
        "server_cpu_seconds": round(sum(each), 2),
        "server_cpu_seconds_each": [round(seconds, 2) for seconds in each],
        "cpu_us_per_message": round(sum(each) / max(1, result.confirmed) * 1e6, 1),
    }


def _means(runs: Sequence[Run], group: str, load: str) -> dict[str, float] | None:
    own = [run.figures for run in runs if (run.group, run.load) == (group, load) and run.figures]
    if not own:
        return None
    return {
        name: round(statistics.fmean(figures[name] for figures in own), 2)
        for name in ("sent_per_second", "receipt_p50_ms", "receipt_p99_ms", "cpu_us_per_message")
    }


def ratios(runs: Sequence[Run], load: str) -> dict[str, dict[str, float | None]]:
    """Return the mean rate of each of our sets relative to that of each peer."""
    rates = {name: (_means(runs, name, load) or {}).get("sent_per_second") for name in (*SETS, *PEERS)}
    return {
        ours: {peer: round(rate / theirs, 2) if rate and (theirs := rates[peer]) else None for peer in PEERS}
        for ours in SETS
        if (rate := rates[ours]) is not None
    }


def has_failed(figures: Mapping[str, Any]) -> bool:
    """Return whether TandemMQ could not be measured, or broke a promise."""
    return (
        any(run["problem"] and run["broker"] in SETS for run in figures.get(THROUGHPUT, {}).get("runs", ()))
        or any(each["problem"] or each["lost"] or each["undone"] for each in figures.get(OUTAGE, ()))
        or bool(figures.get(CATCH_UP, {}).get("problem"))
    )


# ---- outages

BODY_BYTES: Final = 1024
LOAD_MESSAGES: Final = 5_000
ACKNOWLEDGED_MAX: Final = 500
ROUND_SECONDS: Final = 1.0
TIMEOUT: Final = "2s"
BUILD_SECONDS_MAX: Final = 1_800.0
KILL, HANDOVER, SIGTERM = "kill", "handover", "sigterm"
ENDS: Final = (KILL, HANDOVER, SIGTERM)


def outages(
    rounds: int,
    backlog: int,
    say: Say,
    ends: Sequence[str] = ENDS,
    load: int = LOAD_MESSAGES,
) -> list[Mapping[str, Any]]:
    """Run all cases with an empty store, then with ``backlog`` messages; 0: only empty."""
    done: list[Case] = []
    for stored in (0, backlog) if backlog else (0,):
        cases = [Case(end, stored) for end in ends]
        done += cases
        try:
            whole = ReplicatedSet(timeout=TIMEOUT)
            if stored:
                write_journal(whole.data(whole.nodes[0]), stored, BODY_BYTES)
                for node in whole.nodes:
                    node.start_timeout_seconds = BUILD_SECONDS_MAX
            with whole:
                whole.await_whole(BUILD_SECONDS_MAX)
                _all_rounds(whole, cases, rounds, load, say)
        except (BenchError, PeerMissing, OSError, StopIteration) as problem:
            for case in cases:
                case.problem = case.problem or (str(problem) if len(case.rounds) < rounds else None)
        for case in cases:
            say(case.line())
    return [{**case.figures(), "zk_session_timeout": TIMEOUT} for case in done]


def _all_rounds(whole: ReplicatedSet, cases: Sequence[Case], rounds: int, load: int, say: Say) -> None:
    run = uuid.uuid4().hex[:8]
    for number in range(rounds):
        for case in cases:
            case.rounds.append(_round(whole, case.name, f"/queue/bench.{run}.{case.name}.{number}", load))
            say(f"{case.name} {case.size} {number + 1}: {case.rounds[-1].outage.outage_seconds:.3f} s")


def _round(whole: ReplicatedSet, end: str, destination: str, load: int) -> Round:
    """End the master, and wait until the set is complete again."""
    master = whole.master
    if load:
        run_load(LoadPlan(master.endpoint, count=load, body_bytes=BODY_BYTES, destination=f"{destination}.load"))
    outage, toll = strike_and_count(
        [master.endpoint, *(each for each in whole.endpoints if each != master.endpoint)],
        master.pid,
        destination,
        ACKNOWLEDGED_MAX,
        ROUND_SECONDS,
        _strike(end, master),
        lambda: whole.master.endpoint,
    )
    if end == KILL:
        master.kill()  # the process is dead: this only records it
    elif end == SIGTERM:
        master.stop()
    if end != HANDOVER:
        master.start()
    whole.await_whole(BUILD_SECONDS_MAX)
    return Round(outage, toll)


def _strike(end: str, master: TandemMQ) -> Callable[[], object] | None:
    if end == KILL:
        return None
    if end == SIGTERM:
        return lambda: os.kill(master.pid, signal.SIGTERM)
    return lambda: hand_over(master)
