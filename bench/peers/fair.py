"""``python -m tandemmq.bench --scenario fair``, ``jms-patterns`` and ``amqp``: brokers side by side under one load.

For each workload, every broker is started on an empty directory, with a separate load program (bench.peers.loads).

1. Warm-up: a broker is loaded in windows of 10 s until three in a row differ by less than 5 %. After 30 windows it is
   not warm, and has no ratio.
2. Rounds: one window of each broker, A B A B, at least five of each. The other brokers run idle meanwhile.
3. Proof: strace(1) counts the calls that sync under the same load.

CPU is that of all threads and processes of a broker. A ratio is of the medians of the rounds, and above 1 is for ours.
A full run of ``fair`` takes two to five hours, ``jms-patterns`` for two brokers one to three hours. A quick run takes
at most 20 minutes, without the time in which programs are built: it is for development, not for figures to publish.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from tandemmq.bench.driver.process import descendants
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.peers.brokers import (
    ActiveMQ5,
    ActiveMQ6,
    ActiveMQStored,
    Artemis,
    Floor,
    JmsFloor,
    Mosquitto,
    Nats,
    RabbitMQ,
)
from tandemmq.bench.peers.loads import AMQP, LATENCIES, PATTERNS, WORKLOADS, Load, Window, Workload
from tandemmq.bench.peers.programs import installed
from tandemmq.bench.peers.server import Measured, PeerMissing, Server
from tandemmq.bench.report import Say, aligned, commit, machine

Ratios = Mapping[str, float | None]

ALIKE: Final = 3
OWN_CLIENT: Final = "artemis-own-client"
OURS: Final = ("plain", "compiled", "tree")


@dataclass(frozen=True, slots=True)
class Broker:
    """Start of a broker, and the protocols of the workloads that it takes. ``is_default``: it runs if none is named."""

    make: Callable[[], Server]
    protocols: tuple[str, ...]
    is_default: bool = True


BROKERS: Final[Mapping[str, Broker]] = {
    "plain": Broker(lambda: Measured(None, installed(compile_=False)), ("jms", "stomp", "mqtt", "amqp")),
    "compiled": Broker(lambda: Measured(None, installed(compile_=True)), ("jms", "stomp", "mqtt", "amqp")),
    "tree": Broker(Measured, ("jms", "stomp", "mqtt", "amqp"), is_default=False),
    "activemq": Broker(ActiveMQ5, ("jms", "stomp")),
    "activemq-6": Broker(ActiveMQ6, ("jms", "stomp", "mqtt", "amqp")),
    "artemis": Broker(Artemis, ("jms", "stomp", "mqtt", "amqp")),
    OWN_CLIENT: Broker(Artemis, ("jms",)),
    "rabbitmq": Broker(RabbitMQ, ("stomp",)),
    "nats": Broker(Nats, ("stomp", "mqtt")),
    "mosquitto": Broker(Mosquitto, ("mqtt",)),
    "activemq-stored": Broker(ActiveMQStored, ("jms", "stomp"), is_default=False),
    "floor": Broker(Floor, ("stomp",), is_default=False),
    "jms-floor": Broker(JmsFloor, ("jms",), is_default=False),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """The lengths and numbers of a run. ``tolerance``: the windows of a warm broker differ by less than this part of
    the largest."""

    window_seconds: float = 10.0
    settle_seconds: float = 1.0
    tolerance: float = 0.05
    windows_max: int = 30
    rounds: int = 5
    proof_seconds: float = 5.0
    seconds_max: float | None = None
    """After this time no further workload begins. None: all are measured."""

    def is_warm(self, figures: Sequence[float]) -> bool:
        """Return whether the last of ``figures`` are alike: rates of windows, or CPU of a message at a fixed rate."""
        last = figures[-ALIKE:]
        return len(last) == ALIKE and max(last) - min(last) < self.tolerance * max(last)


FULL: Final = Rule()
QUICK: Final = Rule(1.0, 0.3, 0.15, windows_max=10, rounds=2, proof_seconds=1.0, seconds_max=900.0)


@dataclass(slots=True)
class Result:
    """Result of one broker under one workload. ``unproved``: why strace(1) counted nothing; ``problem``: why there are
    no figures."""

    windows: list[Window] = field(default_factory=list)
    is_warm: bool = False
    rounds: list[Window] = field(default_factory=list)
    calls: Mapping[str, int] = field(default_factory=dict)
    confirmed: int = 0
    is_synced: bool | None = None
    unproved: str | None = None
    problem: str | None = None

    def median(self, figure: str) -> float | None:
        values = [value for each in self.rounds if (value := getattr(each, figure)) is not None]
        return statistics.median(values) if values else None

    @property
    def has_ratio(self) -> bool:
        return self.is_warm and self.problem is None and bool(self.rounds)


def warm_up(result: Result, rule: Rule, window: Callable[[], Window], figure: str = "rate") -> None:
    """Take windows until the broker is warm, at most ``rule.windows_max``."""
    while not result.is_warm and len(result.windows) < rule.windows_max:
        result.windows.append(window())
        result.is_warm = rule.is_warm([getattr(each, figure) for each in result.windows])


def turns(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Yield the names repeatedly in the same order: A B A B."""
    for _ in range(rounds):
        yield from names


def ratios(results: Mapping[str, Result]) -> dict[str, dict[str, Ratios | None]]:
    """Return the ratios of each of our brokers to each peer; None if one of the two is not warm or has a problem. A
    ratio above 1 is better for ours."""

    def ratio(ours: Result, peer: Result) -> Ratios | None:
        if not ours.has_ratio or not peer.has_ratio:
            return None
        figures = {}
        for figure in ("rate", "cpu_us", "step_p99_ms", "receive_p99_ms"):
            mine, theirs = ours.median(figure), peer.median(figure)
            is_rate = figure == "rate"
            figures[figure] = round(mine / theirs if is_rate else theirs / mine, 3) if mine and theirs else None
        return figures

    return {
        ours: {peer: ratio(results[ours], results[peer]) for peer in results if peer not in OURS}
        for ours in results
        if ours in OURS
    }


def fair(
    names: Sequence[str],
    cases: Sequence[str],
    rule: Rule,
    say: Say,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Measure the workloads ``cases``, of WORKLOADS, LATENCIES, PATTERNS or AMQP. ``left_out`` in the result: the
    workloads for which there was no time."""
    workloads: dict[str, Any] = {}
    begin = clock()
    for case in cases:
        if rule.seconds_max is not None and clock() - begin > rule.seconds_max:
            break
        workload = {**WORKLOADS, **LATENCIES, **PATTERNS, **AMQP}[case]
        chosen = [name for name in names if workload.protocol in BROKERS[name].protocols]
        results = measure(chosen, workload, rule, partial(_say_of, say, case))
        workloads[case] = {
            "brokers": {name: _figures(result) for name, result in results.items()},
            "ratios": ratios(results),
        }
    return {
        "machine": machine(),
        "commit": commit(),
        "rule": asdict(rule),
        "left_out": [case for case in cases if case not in workloads],
        "workloads": workloads,
        "of_stomp": of_stomp(workloads),
    }


#: AMQP, and the same load over STOMP.
_TWINS: Final[Mapping[str, str]] = {"amqp-windowed": "stomp-windowed", "amqp-1000": "stomp-1000"}


def of_stomp(workloads: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each load over AMQP and each of our brokers, its figures as multiples of those over STOMP in the same
    run. Below 1 is better for AMQP, except for the rate."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for case, twin in _TWINS.items():
        brokers = [
            name for name in OURS if all(name in workloads.get(each, {}).get("brokers", {}) for each in (case, twin))
        ]
        for name in brokers:
            amqp, stomp = (workloads[each]["brokers"][name]["medians"] for each in (case, twin))
            found.setdefault(case, {})[name] = {
                figure: round(amqp[figure] / stomp[figure], 3) for figure in _COLUMNS if amqp[figure] and stomp[figure]
            }
    return found


def measure(names: Sequence[str], workload: Workload, rule: Rule, say: Say) -> dict[str, Result]:
    """Measure one workload. All brokers run; one of them is loaded at a time."""
    results = {name: Result() for name in names}
    with ExitStack() as running:
        servers: dict[str, Server] = {}
        loads: dict[str, Load] = {}

        def attempt(work: Callable[[str], None], name: str) -> None:
            if results[name].problem is None:
                try:
                    work(name)
                except (BenchError, PeerMissing, OSError) as problem:
                    results[name].problem = str(problem)
                    say(f"{name:<18} – {str(problem).splitlines()[0]}")

        def window(name: str) -> Window:
            return loads[name].window(rule.window_seconds, rule.settle_seconds)

        def begin(name: str) -> None:
            servers[name] = running.enter_context(BROKERS[name].make())
            load = Load(workload, servers[name], uses_own_client=name == OWN_CLIENT)
            loads[name] = running.enter_context(load)
            warm_up(results[name], rule, lambda: window(name), "cpu_us" if workload.rate else "rate")
            word = "warm" if results[name].is_warm else "NOT WARM"
            say(f"{name:<18} {word} after {len(results[name].windows)} windows")

        def round_of(name: str) -> None:
            results[name].rounds.append(window(name))
            say(f"{name:<18} {_line(results[name].rounds[-1])}")

        def prove(name: str) -> None:
            result = results[name]
            try:
                with counted(servers[name].pid) as calls:
                    result.confirmed = loads[name].run(rule.proof_seconds)
            except BenchError as problem:
                result.unproved = str(problem)
                return
            result.calls = calls
            if workload.is_stored:
                result.is_synced = is_synced(calls, result.confirmed, workload.outstanding)

        for name in names:
            attempt(begin, name)
        for name in turns(names, rule.rounds):
            attempt(round_of, name)
        for name in names:
            attempt(prove, name)
    return results


def has_failed(figures: Mapping[str, Any]) -> bool:
    """Return whether one of our brokers has a problem, or does not sync."""
    return any(
        broker["problem"] is not None or broker["syncs"]["is_synced"] is False
        for each in figures["workloads"].values()
        for name, broker in each["brokers"].items()
        if name in OURS
    )


def _figures(result: Result) -> dict[str, Any]:
    return {
        "problem": result.problem,
        "is_warm": result.is_warm,
        "medians": {name: result.median(name) for name in Window.__slots__},
        "syncs": {
            "is_synced": result.is_synced,
            "unproved": result.unproved,
            "confirmed": result.confirmed,
            "calls": dict(result.calls),
        },
        "windows": [asdict(each) for each in result.windows],
        "rounds": [asdict(each) for each in result.rounds],
    }


def _say_of(say: Say, case: str, line: str) -> None:
    say(f"{case:<18} {line}")


def _line(window: Window) -> str:
    p99 = window.receive_p99_ms if window.step_p99_ms is None else window.step_p99_ms
    return f"{window.rate:9,.0f}/s  {window.cpu_us:7.1f} us CPU  p99 {p99 or 0:8.2f} ms"


_COLUMNS: Final = {
    "rate": "a second",
    "cpu_us": "CPU us",
    "step_p99_ms": "step p99 ms",
    "receive_p99_ms": "receive p99 ms",
}


def table(figures: Mapping[str, Any]) -> list[str]:
    """Return the medians of each broker, and the ratios of our brokers to it, as aligned columns."""
    ours = [name for name in OURS if any(name in each["ratios"] for each in figures["workloads"].values())]
    heads = ["workload", "broker", *_COLUMNS.values(), "warm", "messages a sync"]
    rows = [[*heads, *(f"{name}: rate, CPU" for name in ours)]]
    for case, each in figures["workloads"].items():
        for name, broker in each["brokers"].items():
            if broker["problem"] is not None:
                rows.append([case, name, broker["problem"].splitlines()[0][:80]])
                continue
            cells = [broker["medians"][figure] for figure in _COLUMNS]
            own = [each["ratios"].get(one, {}).get(name) for one in ours]
            rows.append([
                case, name, *("–" if cell is None else f"{cell:,.1f}" for cell in cells),
                "yes" if broker["is_warm"] else "NO", _syncs_of(broker["syncs"]),
                *("" if ratio is None else f"{ratio['rate']:.2f}, {ratio['cpu_us']:.2f}" for ratio in own),
            ])  # fmt: skip
    return [
        *aligned(rows),
        *(
            f"{case} {name}, as a multiple of STOMP: "
            + ", ".join(f"{_COLUMNS[key]} {each}" for key, each in parts.items())
            for case, brokers in figures["of_stomp"].items()
            for name, parts in brokers.items()
        ),
    ]


def _syncs_of(proof: Mapping[str, Any]) -> str:
    count = syncs(proof["calls"])
    a_sync = f"{proof['confirmed'] / count:,.1f}" if count else "–"
    return a_sync if proof["unproved"] is None and proof["is_synced"] is not False else f"NOT PROVED {a_sync}"


# ---- the proof

#: Calls in a report. Those of _SYNCS return when data is on the disk.
CALLS: Final = ("fsync", "fdatasync", "syncfs", "sync_file_range", "msync", "io_submit", "io_uring_enter")
_SYNCS: Final = ("fsync", "fdatasync", "msync")
END_SECONDS_MAX: Final = 20.0


@contextmanager
def counted(pid: int) -> Iterator[dict[str, int]]:
    """Count the CALLS of all threads and processes of ``pid`` in the block; the mapping is filled when the block ends.
    The broker is slow meanwhile. Raises BenchError."""
    if shutil.which("strace") is None:
        raise BenchError("strace is not installed: nothing shows that the broker syncs")
    found: dict[str, int] = {}
    with tempfile.NamedTemporaryFile("r", prefix="bench-strace-") as table:
        pids = [word for each in descendants(pid) for word in ("-p", str(each))]
        calls = "trace=" + ",".join(f"?{call}" for call in CALLS)
        tracer = subprocess.Popen(
            ["strace", "-f", "-c", "-o", table.name, "-e", calls, *pids], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        try:
            line = tracer.stderr.readline()  # "strace: Process 7 attached"
            if "attached" not in line:
                raise BenchError(f"strace counts nothing: {line.strip()}")
            yield found
        finally:
            tracer.send_signal(signal.SIGINT)
            try:
                tracer.communicate(timeout=END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                tracer.kill()
                tracer.communicate()
        found |= calls_in(table.read())


def calls_in(text: str) -> dict[str, int]:
    """Parse the table of ``strace -c``: the number of calls of each of CALLS."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 5 and words[-1] in CALLS:
            found[words[-1]] = int(words[3])
    return found


def is_synced(calls: Mapping[str, int], confirmed: int, outstanding: int | None) -> bool:
    """Return whether the calls can have synced ``confirmed`` messages before their confirmation: at most
    ``outstanding`` of them share a sync. Without that number one sync is enough."""
    count = syncs(calls)
    return count * outstanding >= confirmed if outstanding is not None else count > 0


def syncs(calls: Mapping[str, int]) -> int:
    """Return how many of the calls return when data is on the disk."""
    return sum(calls.get(call, 0) for call in _SYNCS)
