"""``python -m tandemmq.bench --scenario cpu``: CPU of the broker for one message, compared with a baseline commit.

Other work on the machine changes rates a lot, but CPU per message only a little. The remaining noise is reduced in
three ways. Each case has a fixed number of messages, so that the work is the same. The brokers of the baseline and of
the candidate alternate within seconds; both get the load of this tree, and every second round has the reverse order.
The result is the median of the rounds, and the ratio is the median of the ratios of the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tandemmq.bench.driver.load import run_load
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import BenchError, Endpoint
from tandemmq.bench.mqtt_load import run_mqtt_load
from tandemmq.bench.peers.loads import WORKLOADS, Load
from tandemmq.bench.peers.server import HOST, TREE, Measured
from tandemmq.bench.report import Say, aligned, checked_out, default_baseline, described, head

CANDIDATE, BASELINE = "candidate", "baseline"
# Rounds with the same broker processes. Two processes of the same code differ by some percent as long as they live.
ROUNDS_OF_A_BROKER = 4
BATCH = 100
JMS_SECONDS, JMS_SETTLE_SECONDS = 3.0, 1.0

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """Load of a case. ``messages`` are sent and received with a LoadPlan that has the fields ``load``. ``jms``:
    instead, the Java program runs this workload of bench.peers.loads for JMS_SECONDS. ``qos``: if not None, MQTT
    messages with this QoS."""

    messages: int
    load: Mapping[str, Any]
    jms: str = ""
    qos: int | None = None


CASES: Mapping[str, Case] = {
    "stomp-windowed": Case(5_000, {}),
    "stomp-waiting": Case(1_000, {"producers": 16, "window": 1}),
    "stomp-transacted": Case(5_000, {"transaction": BATCH}),
    "stomp-not-persistent": Case(5_000, {"is_persistent": False}),
    **{f"mqtt-qos{qos}": Case(5_000, {}, qos=qos) for qos in range(3)},
    **{case: Case(0, {}, jms=case) for case, workload in WORKLOADS.items() if workload.protocol == "jms"},
}


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of a case on one side in one round. They are of the server, and per message unless the name states
    another unit."""

    case: str
    side: str
    round: int
    figures: Figures


def cpu(baseline: str | None, cases: Sequence[str], rounds: int, scale: float, say: Say) -> dict[str, Any]:
    """Return the figures of all cases.

    ``baseline`` None: the commit where this branch left the main branch; if there is none, nothing is compared.
    """
    with ExitStack() as trees:
        sides = {CANDIDATE: TREE}
        baseline = baseline or default_baseline()
        against = described(baseline) if baseline else None
        if baseline is not None:
            sides[BASELINE] = trees.enter_context(checked_out(baseline))
        say(f"the baseline is {against}" if against else "there is no other commit here: nothing to compare with")
        runs = measure(sides, cases, rounds, scale, say)
    return {
        **head("cpu"),
        "baseline": against,
        "cases": {case: summary(runs, case) for case in cases},
        "runs": [{"case": run.case, "side": run.side, "round": run.round, **run.figures} for run in runs],
    }


def measure(sides: Mapping[str, Path], cases: Sequence[str], rounds: int, scale: float, say: Say) -> list[Run]:
    """Measure all rounds. After ROUNDS_OF_A_BROKER rounds, new brokers are started. A broker that is not measured is
    idle."""
    runs: list[Run] = []
    protocols = ("mqtt",) if any(CASES[case].qos is not None for case in cases) else ()
    for first in range(1, rounds + 1, ROUNDS_OF_A_BROKER):
        with ExitStack() as running:
            servers = {side: running.enter_context(Measured(tree, protocols=protocols)) for side, tree in sides.items()}
            for case in cases:
                for server in servers.values():
                    load_figures(server, case, scale)
            for number in range(first, min(first + ROUNDS_OF_A_BROKER, rounds + 1)):
                order = list(sides) if number % 2 else list(sides)[::-1]
                for case in cases:
                    done = [Run(case, side, number, load_figures(servers[side], case, scale)) for side in order]
                    say(round_line(done))
                    runs += done
    return runs


def load_figures(server: Measured, case: str, scale: float) -> Figures:
    """Run one load of a case on a running broker, and return its figures."""
    if CASES[case].jms:
        return _jms_figures(server, CASES[case], scale)
    messages = max(1, round(CASES[case].messages * scale))
    plan = LoadPlan(
        server.endpoint,
        count=messages,
        destination=f"/queue/{case}",
        server_pid=server.pid,
        admin_url=server.admin_url,
        **CASES[case].load,
    )
    if CASES[case].qos is not None:
        return _mqtt_figures(server, case, replace(plan, endpoint=Endpoint(HOST, server.ports["mqtt"])))
    result = run_load(plan)
    if result.received != messages:
        raise BenchError(f"{case}: {messages} sent, {result.received} received")
    seconds, system = result.server_cpu_seconds, result.server_system_seconds
    waits, preemptions = result.server_waits, result.server_preemptions
    assert seconds is not None
    assert system is not None
    assert waits is not None
    assert preemptions is not None
    figures = _of_each(messages, seconds, system, waits, preemptions) | {"rate": result.received_per_second}
    if result.messages_per_sync is not None:
        figures["messages_per_batch"] = result.messages_per_sync
    return figures


def _mqtt_figures(server: Measured, case: str, plan: LoadPlan) -> Figures:
    qos, messages = CASES[case].qos, plan.count
    assert qos is not None
    assert messages is not None
    result = run_mqtt_load(server.pid, plan, qos, case)
    spent = result.spent
    figures = _of_each(messages, spent.cpu_seconds, spent.system_seconds, spent.waits, spent.preemptions)
    return figures | {"rate": result.received / result.seconds}


def _jms_figures(server: Measured, case: Case, scale: float) -> Figures:
    with Load(WORKLOADS[case.jms], server) as load:
        window = load.window(JMS_SECONDS * scale, JMS_SETTLE_SECONDS)
    return {
        "messages": load.sent,
        "cpu_us": window.cpu_us,
        "user_us": max(0.0, window.cpu_us - window.system_us),
        "system_us": window.system_us,
        "waits": window.waits,
        "preemptions": window.preemptions,
        "rate": window.rate,
    }


def _of_each(messages: float, seconds: float, system: float, waits: int, preemptions: int) -> dict[str, float]:
    return {
        "messages": messages,
        "cpu_us": seconds / messages * 1e6,
        "user_us": max(0.0, seconds - system) / messages * 1e6,
        "system_us": system / messages * 1e6,
        "waits": waits / messages,
        "preemptions": preemptions / messages,
    }


def _ratios(runs: Sequence[Run], case: str, figure: str) -> list[float]:
    found = {(run.side, run.round): run.figures[figure] for run in runs if run.case == case}
    return [
        found[CANDIDATE, number] / theirs for (side, number), theirs in found.items() if side == BASELINE and theirs
    ]


def summary(runs: Sequence[Run], case: str) -> dict[str, Any]:
    """Return the medians of each side, and the ratio with those of its lowest and highest round."""
    result: dict[str, Any] = {}
    for side in (CANDIDATE, BASELINE):
        own = [run.figures for run in runs if (run.case, run.side) == (case, side)]
        if own:
            result[side] = {name: round(statistics.median(each[name] for each in own), 3) for name in own[0]}
    found = sorted(_ratios(runs, case, "cpu_us"))
    if found:
        result |= {
            "ratio": round(statistics.median(found), 4),
            "ratio_least": round(found[0], 4),
            "ratio_most": round(found[-1], 4),
            "rate_ratio": round(statistics.median(_ratios(runs, case, "rate")), 4),
        }
    return result


def round_line(runs: Sequence[Run]) -> str:
    """Return a line about the progress: one case in one round."""
    each = "  ".join(f"{run.side} {run.figures['cpu_us']:7.1f} us" for run in sorted(runs, key=lambda run: run.side))
    return f"round {runs[0].round}  {runs[0].case:<20} {each}"


_COLUMNS = {
    "cpu_us": "CPU us",
    "user_us": "user us",
    "system_us": "system us",
    "waits": "waits",
    "preemptions": "preemptions",
    "messages_per_batch": "messages a batch",
    "rate": "messages a second",
}


def table(figures: Mapping[str, Any]) -> list[str]:
    """Return the summary as aligned columns."""
    rows = [["case", "side", *_COLUMNS.values(), "ratio", "of the rounds"]]
    for case, sides in figures["cases"].items():
        rows += [
            [case, side, *(_cell(sides[side].get(name)) for name in _COLUMNS), "", ""]
            for side in (BASELINE, CANDIDATE)
            if side in sides
        ]
        if "ratio" in sides:
            rows[-1][-2:] = f"{sides['ratio']:.3f}", f"{sides['ratio_least']:.3f} to {sides['ratio_most']:.3f}"
    return aligned(rows)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"
