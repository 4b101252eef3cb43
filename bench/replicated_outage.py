"""Time that clients of a set wait when its master goes: kill -9, a planned handover, SIGTERM.

One set runs through all rounds of a size; the former master is started again and follows. Each round counts the
messages lost, undone or stored twice (bench.witness).
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.bench.driver.load import run_load
from tandemmq.bench.driver.outage import OutageResult, run_outage
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.journals import write_journal
from tandemmq.bench.peers.replicated import ReplicatedSet
from tandemmq.bench.peers.server import PeerMissing, TandemMQ
from tandemmq.bench.witness import Acknowledger, drain, fill

BODY_BYTES: Final = 1024
LOAD_MESSAGES: Final = 5_000
ACKNOWLEDGED_MAX: Final = 500
ROUND_SECONDS: Final = 1.0
TIMEOUT: Final = "2s"
COMMAND_SECONDS_MAX: Final = 60.0
BUILD_SECONDS_MAX: Final = 1_800.0
KILL, HANDOVER, SIGTERM = "kill", "handover", "sigterm"
ENDS: Final = (KILL, HANDOVER, SIGTERM)


@dataclass(slots=True)
class Case:
    """All rounds of one way to end, with a number of messages stored."""

    end: str
    stored: int
    outages: list[OutageResult] = field(default_factory=list)
    lost: int = 0
    undone: int = 0
    twice: int = 0
    problem: str | None = None

    def figures(self) -> dict[str, Any]:
        seconds = [each.outage_seconds for each in self.outages]
        return {
            "case": self.end,
            "stored": self.stored,
            "zk_session_timeout": TIMEOUT,
            "rounds": len(seconds),
            "p50_seconds": round(statistics.median(seconds), 3) if seconds else None,
            "max_seconds": round(max(seconds), 3) if seconds else None,
            "each_seconds": [round(each, 3) for each in seconds],
            "lost": self.lost,
            "undone": self.undone,
            "twice": self.twice,
            "problem": self.problem,
        }

    def line(self) -> str:
        head = f"{self.end:<9} {self.stored:>9,} stored"
        if not self.outages:
            return f"{head} – {self.problem}"
        figures = self.figures()
        return (
            f"{head}  p50 {figures['p50_seconds']:.3f} s  max {figures['max_seconds']:.3f} s  "
            f"rounds {len(self.outages)}  lost {self.lost}  undone {self.undone}  twice {self.twice}"
            f"{'  – ' + self.problem if self.problem else ''}"
        )


def outages(
    rounds: int,
    backlog: int,
    say: Callable[[str], None],
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
                case.problem = case.problem or (str(problem) if len(case.outages) < rounds else None)
        for case in cases:
            say(case.line())
    return [case.figures() for case in done]


def _all_rounds(
    whole: ReplicatedSet, cases: Sequence[Case], rounds: int, load: int, say: Callable[[str], None]
) -> None:
    run = uuid.uuid4().hex[:8]
    for number in range(rounds):
        for case in cases:
            outage = _round(whole, case, f"/queue/bench.{run}.{case.end}.{number}", load)
            say(f"{case.end} {case.stored} {number + 1}: {outage.outage_seconds:.3f} s")


def _round(whole: ReplicatedSet, case: Case, destination: str, load: int) -> OutageResult:
    """End the master, and wait until the set is complete again."""
    master = whole.master
    if load:
        run_load(LoadPlan(master.endpoint, count=load, body_bytes=BODY_BYTES, destination=f"{destination}.load"))
    acknowledged = f"{destination}.acknowledged"
    fill(master.endpoint, acknowledged, ACKNOWLEDGED_MAX)
    acknowledger = Acknowledger(master.endpoint, acknowledged)
    first = [master.endpoint, *(each for each in whole.endpoints if each != master.endpoint)]
    outage = run_outage(
        first,
        master.pid,
        destination,
        seconds_before=ROUND_SECONDS,
        seconds_after=0.2,
        body_bytes=BODY_BYTES,
        strike=_strike(case.end, master),
    )
    acknowledger.end()
    survivor = whole.master
    sent, left = drain(survivor.endpoint, destination), drain(survivor.endpoint, acknowledged)
    case.outages.append(outage)
    case.lost += sum(number not in sent for number in range(outage.confirmed_before + outage.confirmed_after))
    case.lost += sum(number not in left and number not in acknowledger.asked for number in range(ACKNOWLEDGED_MAX))
    case.undone += sum(number in left for number in acknowledger.confirmed)
    case.twice += sum(count > 1 for count in (*sent.values(), *left.values()))
    if case.end == KILL:
        master.kill()  # the process is dead: this only records it
    elif case.end == SIGTERM:
        master.stop()
    if case.end != HANDOVER:
        master.start()
    whole.await_whole(BUILD_SECONDS_MAX)
    return outage


def _strike(end: str, master: TandemMQ) -> Callable[[], object] | None:
    if end == KILL:
        return None
    if end == SIGTERM:
        return lambda: os.kill(master.pid, signal.SIGTERM)
    assert master.admin_url is not None, "ours has one"
    command = [sys.executable, "-m", "tandemmq", "handover", "--admin", master.admin_url]
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=COMMAND_SECONDS_MAX)
