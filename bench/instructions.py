"""``python -m tandemmq.bench --scenario instructions``: instructions per message, compared with a baseline commit.

valgrind (callgrind) counts them, and makes the broker about forty times slower. Work of the kernel and cache misses are
not counted. The broker's clock (faketime) is slowed down even more. Otherwise the broker would divide its work into
more slices of a millisecond (broker.net.turns), and do more of its periodic work, and both would depend on other work
on the machine. The number of messages in a batch remains random: figures of the same code usually differ by at most
three percent, rarely by five. So the sides are counted alternately, and a figure above the budget is counted again. CI
checks changes with this scenario (bench/budget.toml). ``--scenario cpu`` shows the effect on time.

A count includes the logins of the clients of the load. With 500 messages that is several percent; ``--scale 4`` makes
this part a quarter as large.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import tomllib
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tandemmq.bench.cpu import BASELINE
from tandemmq.bench.driver.load import run_load
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import BenchError, Endpoint
from tandemmq.bench.jms_load import run_jms_load
from tandemmq.bench.mqtt_load import run_mqtt_load
from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import HOST, TREE, TandemMQ
from tandemmq.bench.report import Say, aligned, checked_out, default_baseline, described, head

PROGRAMS = ("valgrind", "callgrind_control")
# Sides: this tree, and a tree with compiled libraries.
PLAIN, COMPILED = "plain", "compiled"
# Rate of the broker's clock during the count: so slow that its time limits have no effect, even on a busy machine.
CLOCK_RATE = 0.004
MESSAGES = 500
START_SECONDS_MAX = 300.0
STALL_SECONDS_MAX = 120.0
ROUNDS = 2
# Maximum number of times that the rounds of a case are repeated while it exceeds the budget.
TRIALS_MAX = 4
BUDGET_FILE = Path(__file__).with_name("budget.toml")

# Cases of MQTT.
QOS = {"mqtt-qos0": 0, "mqtt-qos1": 1}
# Cases of OpenWire.
JMS = ("jms-sync", "jms-async")
CASES: Mapping[str, Mapping[str, Any]] = {
    "stomp-windowed": {},
    "stomp-waiting": {"producers": 16, "window": 1},
    "stomp-transacted": {"transaction": 100},
    "stomp-not-persistent": {"is_persistent": False},
    "jms-sync": {"producers": 8, "window": 1},
    "jms-async": {},
    **{case: {} for case in QOS},
}

# Counts of each round, by side and case.
Counts = Mapping[str, Mapping[str, list[float]]]


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of the instructions. ``baselines``: by case, the commit with whose plain Python it is compared.
    ``shares``: by case and side, the limit as a share of the baseline. ``noise``: part of the share by which a count
    may exceed it, because of noise."""

    noise: float
    baselines: Mapping[str, str]
    shares: Mapping[str, Mapping[str, float]]

    @classmethod
    def read(cls, text: str, known: Container[str]) -> Budget:
        """Parse a budget in TOML. Raises ValueError if a case is not known, or has two baselines."""
        found = tomllib.loads(text)
        noise = float(found.pop("noise"))
        baselines: dict[str, str] = {}
        shares: dict[str, Mapping[str, float]] = {}
        for commit_id, cases in found.items():
            for case, of_sides in cases.items():
                if case not in known:
                    raise ValueError(f"the budget names the case {case!r}, which is not known")
                if case in baselines:
                    raise ValueError(f"the budget names the case {case!r} twice")
                baselines[case] = commit_id
                shares[case] = {side: float(share) for side, share in of_sides.items()}
        return cls(noise, baselines, shares)

    def accepted(self, case: str, side: str) -> float:
        """Return the limit for ``side`` including the noise, as a share of the baseline. Raises KeyError if it has
        none."""
        return self.shares[case][side] * (1 + self.noise)

    def beyond(self, ratios: Mapping[str, Mapping[str, float]]) -> list[str]:
        """Return the cases in which a side exceeds the limit. ``ratios``: by case and side."""
        return [
            case
            for case, of_sides in ratios.items()
            if any(ratio > self.accepted(case, side) for side, ratio in of_sides.items())
        ]


class CountedTandemMQ(TandemMQ):
    """A broker of ``tree`` whose instructions are counted on request. It has an MQTT port only if ``cases`` need it,
    because older commits do not have MQTT."""

    # A normal stop would take too long with the slow clock; the directory is removed anyway.
    stop_signal = signal.SIGKILL

    def __init__(self, tree: Path, cases: Sequence[str]) -> None:
        super().__init__(tree=tree)
        self.cases = cases
        self.mqtt_port = self.listen_to("mqtt") if any(case in QOS for case in cases) else 0
        self.jms_port = free_port()
        self.openwire = f"{HOST}:{self.jms_port}"
        self.start_timeout_seconds = START_SECONDS_MAX
        self.environment = {
            "PYTHONHASHSEED": "0",
            "LD_PRELOAD": str(slow_clock()),
            "FAKETIME": f"+0 x{CLOCK_RATE}",
            "FAKETIME_DONT_RESET": "1",
        }

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, user: str | None = None
    ) -> None:
        out = self.directory / "callgrind"
        counted = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        super().spawn([*counted, "--fair-sched=yes", self._pipes(), *command], environment, user)

    def _pipes(self) -> str:
        """Return the option for the place of valgrind's pipes, which a killed process leaves behind."""
        return f"--vgdb-prefix={self.directory / 'vgdb'}"

    def stop(self) -> None:
        """Kill the broker, and remove what its slow clock leaves in memory."""
        pid = self._process.pid if self._process is not None else None
        super().stop()
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            Path("/dev/shm", name).unlink(missing_ok=True)

    def begin(self) -> None:
        """Begin counting."""
        self._control("--instr=on")
        self.taken()

    def taken(self) -> int:
        """Return the number of instructions since the last call."""
        self._control("--dump")
        count = 0
        for dump in self.directory.glob("callgrind*"):
            count += total_in(dump.read_text(errors="replace"))
            dump.unlink()
        return count

    def _control(self, command: str) -> None:
        subprocess.run(
            ["callgrind_control", self._pipes(), command, str(self.pid)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )


def slow_clock() -> Path | None:
    """Return the path of the library faketime; None: it is not installed."""
    return min(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), default=None)


def missing() -> str:
    """Return the names of missing programs and libraries; "": none."""
    programs = [program for program in PROGRAMS if not shutil.which(program)]
    return ", ".join(programs if slow_clock() else [*programs, "faketime"])


def total_in(dump: str) -> int:
    """Return the sum of a callgrind dump, whose line is ``summary: <instructions>``; 0 if it has none."""
    return sum(int(line.split()[1]) for line in dump.splitlines() if line.startswith("summary:"))


def instructions(
    baseline: str | None,
    cases: Sequence[str],
    rounds: int,
    scale: float,
    budget: Budget | None,
    compiled: Path | None,
    say: Say,
) -> dict[str, Any]:
    """Return the figures of all cases. With a budget, ``beyond`` lists the cases that exceed it.

    The baselines are those of the budget. Without a budget, the baseline is ``baseline`` or the commit where this
    branch left the main branch; if there is none, nothing is compared. ``compiled``: a tree with compiled libraries
    that is also counted. Raises BenchError.
    """
    if absent := missing():
        raise BenchError(f"no {absent}: the Debian packages valgrind and faketime")
    messages = max(1, round(MESSAGES * scale))
    baselines = baselines_of(baseline, cases, budget)
    with ExitStack() as stack:

        def started(tree: Path, of: Sequence[str]) -> CountedTandemMQ:
            return stack.enter_context(CountedTandemMQ(tree, of))

        servers = {PLAIN: dict.fromkeys(cases, started(TREE, cases))}
        if compiled is not None:
            servers[COMPILED] = dict.fromkeys(cases, started(compiled.resolve(), cases))
        if not baselines:
            say("there is no other commit here: nothing to compare with")
        for commit_id in sorted(set(baselines.values())):
            of = [case for case in cases if baselines[case] == commit_id]
            tree = stack.enter_context(checked_out(commit_id))
            say(f"the baseline of {', '.join(of)} is {described(commit_id)}")
            servers.setdefault(BASELINE, {}).update(dict.fromkeys(of, started(tree, of)))
        for server in {id(server): server for of_cases in servers.values() for server in of_cases.values()}.values():
            for case in server.cases:
                _load(server, case, messages)
            server.begin()
        counts = counted(lambda side, case: _count(servers[side][case], case, messages), servers, cases, rounds, budget)
    figures = summary(counts)
    return {
        **head("instructions"),
        "baselines": {case: described(commit_id) for case, commit_id in baselines.items()},
        "cases": figures,
        "beyond": _beyond(figures, budget),
    }


def baselines_of(baseline: str | None, cases: Sequence[str], budget: Budget | None) -> dict[str, str]:
    """Return the baseline commit of each case; empty if there is no other commit."""
    if budget is None:
        baseline = baseline or default_baseline()
        return {} if baseline is None else dict.fromkeys(cases, baseline)
    if unknown := [case for case in cases if case not in budget.baselines]:
        raise BenchError(f"no budget of {', '.join(unknown)}")
    return {case: budget.baselines[case] for case in cases}


def counted(
    count: Callable[[str, str], float],
    sides: Collection[str],
    cases: Sequence[str],
    rounds: int,
    budget: Budget | None,
) -> Counts:
    """Return the results of ``count`` for each side and case: ``rounds`` times, alternating between the sides, and up
    to TRIALS_MAX times as often while the medians exceed the budget."""
    counts: Counts = {side: {case: [] for case in cases} for side in sides}
    doubtful = cases
    for _ in range(TRIALS_MAX):
        for case in doubtful:
            for _ in range(rounds):
                for side in sides:
                    counts[side][case].append(count(side, case))
        doubtful = _beyond(summary(counts), budget)
    return counts


def _beyond(cases: Mapping[str, Mapping[str, Any]], budget: Budget | None) -> list[str]:
    return [] if budget is None else budget.beyond({case: figures["ratios"] for case, figures in cases.items()})


def _count(server: CountedTandemMQ, case: str, messages: int) -> float:
    """Return the number of instructions per message."""
    server.taken()  # reset the count, which includes the idle time while the other side ran
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
    elif case in JMS:
        received = run_jms_load(server.pid, replace(plan, endpoint=Endpoint(HOST, server.jms_port))).received
    else:
        received = run_load(plan).received
    if received != messages:
        raise BenchError(f"{case}: {messages} sent, {received} received")


def summary(counts: Counts) -> dict[str, dict[str, Any]]:
    """Return for each case the medians of the sides, and their ratios to the baseline."""
    result: dict[str, dict[str, Any]] = {}
    for case in counts[PLAIN]:
        medians = {side: statistics.median(of_case[case]) for side, of_case in counts.items()}
        theirs = medians.get(BASELINE)
        ratios = {side: round(of / theirs, 4) for side, of in medians.items() if side != BASELINE} if theirs else {}
        result[case] = {side: round(median) for side, median in medians.items()} | {"ratios": ratios}
    return result


def table(figures: Mapping[str, Any]) -> list[str]:
    """Return the figures as aligned columns, and the cases that exceed the budget."""
    cases: Mapping[str, Mapping[str, Any]] = figures["cases"]
    sides = [side for side in (BASELINE, PLAIN, COMPILED) if any(side in of_case for of_case in cases.values())]
    rows = [["case", *(f"instructions, {side}" for side in sides), *(f"ratio, {side}" for side in sides[1:])]]
    for case, of_case in cases.items():
        ratios = [f"{of_case['ratios'][side]:.3f}" if side in of_case["ratios"] else "" for side in sides[1:]]
        rows.append([case, *(f"{of_case[side]:,}" for side in sides), *ratios])
    return aligned(rows) + [f"beyond the budget: {case}" for case in figures["beyond"]]
