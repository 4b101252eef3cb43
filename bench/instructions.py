"""``python -m tandemmq.bench --scenario instructions``: how many instructions of the broker a message takes, beside a
baseline commit.

Counted by valgrind (callgrind), which runs the broker some forty times more slowly: what the kernel does, and what a
cache misses, is not in it. How many messages share a batch is chance, and on a busy machine it is fewer: the same code
gives the same figure within some percent, and once in a while within twelve. So both sides are counted by turns, and
what is beyond the budget is counted again before it is believed. This is what CI holds a change to (bench/budget.toml);
what it means in time, ``--scenario cpu`` tells.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandemmq.bench.baseline import checked_out, default_baseline, described
from tandemmq.bench.budget import Budget
from tandemmq.bench.connection import BenchError, Endpoint
from tandemmq.bench.cpu import BASELINE, CANDIDATE
from tandemmq.bench.load import run_load
from tandemmq.bench.mqtt_load import run_mqtt_load
from tandemmq.bench.peers.server import HOST
from tandemmq.bench.peers.tandemmq import TREE, TandemMQ
from tandemmq.bench.plan import LoadPlan
from tandemmq.bench.report import aligned, commit, machine

PROGRAMS = ("valgrind", "callgrind_control")
MESSAGES = 500
START_SECONDS_MAX = 300.0
STALL_SECONDS_MAX = 120.0
ROUNDS = 3
# So many times that many rounds make a case that is beyond the budget.
TRIALS_MAX = 4

# Cases of MQTT.
QOS = {"mqtt-qos0": 0, "mqtt-qos1": 1}
CASES: Mapping[str, Mapping[str, Any]] = {
    "stomp-windowed": {},
    "stomp-waiting": {"producers": 16, "window": 1},
    "stomp-transacted": {"transaction": 100},
    "stomp-not-persistent": {"is_persistent": False},
    **{case: {} for case in QOS},
}

Say = Callable[[str], None]
# By side, by case, of each round.
Counts = Mapping[str, Mapping[str, list[float]]]


class CountedTandemMQ(TandemMQ):
    """A broker whose instructions are counted while somebody asks for it."""

    def __init__(self, tree: Path) -> None:
        super().__init__(tree=tree)
        self.mqtt_port = self.listen_to_mqtt()
        self.start_timeout_seconds = START_SECONDS_MAX
        self.environment = {"PYTHONHASHSEED": "0"}

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, user: str | None = None
    ) -> None:
        out = self.directory / "callgrind"
        counted = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        super().spawn([*counted, "--fair-sched=yes", *command], environment, user)

    def begin(self) -> None:
        """From now on they are counted."""
        self._control("--instr=on")
        self.taken()

    def taken(self) -> int:
        """So many since this was last asked."""
        self._control("--dump")
        count = 0
        for dump in self.directory.glob("callgrind*"):
            count += total_in(dump.read_text(errors="replace"))
            dump.unlink()
        return count

    def _control(self, command: str) -> None:
        subprocess.run(
            ["callgrind_control", command, str(self.pid)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )


def is_there() -> bool:
    """Whether valgrind is."""
    return all(shutil.which(program) for program in PROGRAMS)


def total_in(dump: str) -> int:
    """The sum of a callgrind dump, whose line is ``summary: <instructions>``; 0 where it has none."""
    return sum(int(line.split()[1]) for line in dump.splitlines() if line.startswith("summary:"))


def instructions(
    baseline: str | None, cases: Sequence[str], rounds: int, scale: float, budget: Budget | None, say: Say
) -> dict[str, Any]:
    """The figures of all cases, and with a budget in ``beyond`` those that are not within it.

    Without a baseline it is the commit where this branch left the main one; where there is none, nothing is compared.
    Raises BenchError.
    """
    if not is_there():
        raise BenchError(f"no {' or no '.join(PROGRAMS)}: the Debian package valgrind")
    baseline = baseline or default_baseline()
    messages = max(1, round(MESSAGES * scale))
    with ExitStack() as stack:
        sides = {CANDIDATE: TREE}
        if baseline is None:
            say("there is no other commit here: nothing to compare with")
        else:
            sides[BASELINE] = stack.enter_context(checked_out(baseline))
            say(f"the baseline is {described(baseline)}")
        servers = {side: stack.enter_context(CountedTandemMQ(tree)) for side, tree in sides.items()}
        for server in servers.values():
            for case in cases:
                _load(server, case, messages)
            server.begin()
        counts = counted(lambda side, case: _count(servers[side], case, messages), sides, cases, rounds, budget)
    told = summary(counts)
    return {
        "scenario": "instructions",
        "machine": machine(),
        "commit": commit(),
        "baseline": described(baseline) if baseline else None,
        "cases": told,
        "beyond": _beyond(told, budget),
    }


def counted(
    count: Callable[[str, str], float],
    sides: Collection[str],
    cases: Sequence[str],
    rounds: int,
    budget: Budget | None,
) -> Counts:
    """What ``count`` gives for side and case: ``rounds`` times, the sides by turns, and TRIALS_MAX times as often where
    the medians stay beyond the budget."""
    counts: Counts = {side: {case: [] for case in cases} for side in sides}
    doubtful = cases
    for _ in range(TRIALS_MAX):
        for case in doubtful:
            for _ in range(rounds):
                for side in sides:
                    counts[side][case].append(count(side, case))
        doubtful = _beyond(summary(counts), budget)
    return counts


def _beyond(told: Mapping[str, Mapping[str, Any]], budget: Budget | None) -> list[str]:
    return [] if budget is None else budget.beyond({case: figures.get("ratio") for case, figures in told.items()})


def _count(server: CountedTandemMQ, case: str, messages: int) -> float:
    """So many instructions a message."""
    server.taken()  # while the other side was asked
    _load(server, case, messages)
    return server.taken() / messages


def _load(server: CountedTandemMQ, case: str, messages: int) -> None:
    plan = LoadPlan(
        server.endpoint,
        count=messages,
        destination=f"/queue/{case}",
        stall_seconds=STALL_SECONDS_MAX,
        **CASES[case],
    )
    if case in QOS:
        plan = replace(plan, endpoint=Endpoint(HOST, server.mqtt_port))
        received = run_mqtt_load(server.pid, plan, QOS[case], case).received
    else:
        received = run_load(plan).received
    if received != messages:
        raise BenchError(f"{case}: {messages} sent, {received} received")


def summary(counts: Counts) -> dict[str, dict[str, Any]]:
    """Of each case: the median of each side's rounds, and the ratio of these."""
    told: dict[str, dict[str, Any]] = {}
    for case in counts[CANDIDATE]:
        medians = {side: statistics.median(of_case[case]) for side, of_case in counts.items()}
        told[case] = {side: round(median) for side, median in medians.items()}
        if BASELINE in medians:
            told[case]["ratio"] = round(medians[CANDIDATE] / medians[BASELINE], 4)
    return told


def table(figures: Mapping[str, Any]) -> list[str]:
    """The figures as aligned columns, and what is beyond the budget."""
    rows = [["case", f"instructions, {BASELINE}", CANDIDATE, "ratio"]]
    for case, told in figures["cases"].items():
        theirs, ratio = told.get(BASELINE), told.get("ratio")
        rows.append([case, f"{theirs:,}" if theirs else "", f"{told[CANDIDATE]:,}", f"{ratio:.3f}" if ratio else ""])
    beyond = [f"beyond the budget: {case}, {figures['cases'][case]['ratio']:.3f}" for case in figures["beyond"]]
    return aligned(rows) + beyond
