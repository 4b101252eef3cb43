"""The real JMS client before us and before ActiveMQ: the same Java program, the same run, taking turns.

Cases:

    sync         each persistent send waits for the broker
    async        jms.useAsyncSend=true: sends wait for nobody but TCP
    transacted   batches of 100 in a local transaction; a sample of latency is a whole batch

Consumers acknowledge by themselves (AUTO). CPU is the broker's alone, over the measured seconds, per message sent and
delivered. A run in which not every message arrived has a problem, and no figures.
"""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.compare import machine
from bench.peers.activemq import ActiveMQ
from bench.peers.ports import free_port
from bench.peers.server import HOST, PeerMissing, Server
from bench.peers.tandemmq import TandemMQ
from broker.bench.connection import BenchError
from broker.bench.process import cost

LIBRARIES = Path("/usr/share/activemq/lib")
SOURCE = Path(__file__).parent / "peers" / "jms" / "JmsLoad.java"
CASES = ("sync", "async", "transacted")
BATCH = 100
END_SECONDS_MAX = 120.0
ANSWER_SECONDS_MAX = 2.0
MAGIC = b"ActiveMQ"


@dataclass(frozen=True, slots=True)
class JmsPlan:
    """What each run does."""

    producers: int = 8
    consumers: int = 4
    queues: int = 4
    body_bytes: int = 1024
    seconds: float = 10.0
    warmup_seconds: float = 4.0


class _OpenWireServer(Server):
    """Serves when it greets as OpenWire does."""

    openwire_port: int

    def wait_until_it_serves(self) -> None:
        until = time.monotonic() + self.start_timeout_seconds
        while time.monotonic() < until:
            try:
                with socket.create_connection((HOST, self.openwire_port), ANSWER_SECONDS_MAX) as peer:
                    peer.settimeout(ANSWER_SECONDS_MAX)
                    if MAGIC in peer.recv(64):
                        return
            except OSError:
                pass  # not up yet
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise BenchError(f"{self.name} does not answer on {self.openwire_port}:\n{self.output()}")


class JmsActiveMQ(_OpenWireServer, ActiveMQ):
    """With one connector, of OpenWire."""

    def __init__(self) -> None:
        super().__init__(scheme="tcp")
        self.openwire_port = self.port


class JmsTandemMQ(_OpenWireServer, TandemMQ):
    """With OpenWire beside STOMP."""

    def __init__(self) -> None:
        super().__init__()
        self.openwire_port = free_port()

    def spawn(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        super().spawn([*command, "--openwire", f"{HOST}:{self.openwire_port}"], environment)


class JmsActiveMQStored(JmsActiveMQ):
    """With TandemMQ's promise: a persistent message is on the disk before anybody is given it."""

    name = "activemq-stored"
    is_dispatched_unstored = False


BROKERS: Mapping[str, Callable[[], _OpenWireServer]] = {
    TandemMQ.name: JmsTandemMQ,
    ActiveMQ.name: JmsActiveMQ,
    JmsActiveMQStored.name: JmsActiveMQStored,
}


def jms(
    cases: Sequence[str], names: Sequence[str], rounds: int, plan: JmsPlan, say: Callable[[str], None]
) -> dict[str, Any]:
    """All rounds of all cases, and what we are to each peer: ratios of the means, above 1 is for us."""
    if not (LIBRARIES / "activemq-client.jar").exists() or shutil.which("javac") is None:
        raise BenchError(f"no JMS client ({LIBRARIES}) or no JDK to compile {SOURCE.name} with")
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-jms-") as classes:
        path = f"{classes}:{LIBRARIES}/*:{LIBRARIES}/optional/*"
        subprocess.run(["javac", "-nowarn", "-cp", path, "-d", classes, str(SOURCE)], check=True)
        for case in cases:
            for number in range(1, rounds + 1):
                for name in names if number % 2 else reversed(names):
                    run: dict[str, Any] = {"case": case, "broker": name, "round": number, "problem": None}
                    try:
                        with BROKERS[name]() as server:
                            run |= _run(path, server, case, plan)
                    except (BenchError, PeerMissing, OSError) as problem:
                        run["problem"] = str(problem)
                    runs.append(run)
                    say(run_line(run))
    return {"scenario": "jms", "machine": machine(), "runs": runs, "ratios": ratios(runs)}


def _run(path: str, server: _OpenWireServer, case: str, plan: JmsPlan) -> dict[str, Any]:
    numbers = [plan.producers, plan.consumers, plan.queues, plan.body_bytes, BATCH, plan.warmup_seconds, plan.seconds]
    url = f"tcp://{HOST}:{server.openwire_port}"
    process = subprocess.Popen(
        ["java", "-Xmx512m", "-cp", path, "JmsLoad", url, case, *map(str, numbers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        _expect(lines, "measuring")
        before = cost(server.pid).cpu_seconds
        _expect(lines, "measured")
        after = cost(server.pid)
        told: dict[str, Any] = json.loads(next(lines, "{}"))
        process.wait(END_SECONDS_MAX)
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"the JMS load gave no figures: {error}") from error
    finally:
        process.kill()
        process.wait()
    problems = told.pop("problems", ["it ended without a word"])
    if problems:
        raise BenchError("; ".join(problems[:3]))
    delivered = told["sent_per_second"] * plan.seconds
    return told | {
        "server_cpu_seconds": after.cpu_seconds - before,
        "cpu_us_per_message": (after.cpu_seconds - before) / delivered * 1e6 if delivered else None,
        "server_peak_memory_bytes": after.peak_memory_bytes,
    }


def _expect(lines: Any, wanted: str) -> None:
    line = next(lines, "").strip()
    if line != wanted:
        raise BenchError(f"the JMS load said {line!r}, not {wanted!r}")


def ratios(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Peer -> case -> figure -> ours to theirs, of the means; latencies and CPU turned round: above 1 is for us."""
    peers = dict.fromkeys(run["broker"] for run in runs if run["broker"] != TandemMQ.name)
    cases = dict.fromkeys(run["case"] for run in runs)
    return {peer: {case: _ratios_to(peer, case, runs) for case in cases} for peer in peers}


def _ratios_to(peer: str, case: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for figure, is_more_better in (
        ("sent_per_second", True),
        ("received_per_second", True),
        ("send_p50_ms", False),
        ("send_p99_ms", False),
        ("cpu_us_per_message", False),
    ):
        ours, theirs = (_mean(runs, case, name, figure) for name in (TandemMQ.name, peer))
        ratio = ours / theirs if ours and theirs else None
        found[figure] = ratio if is_more_better or ratio is None else 1 / ratio
    return found


def _mean(runs: Sequence[Mapping[str, Any]], case: str, broker: str, figure: str) -> float | None:
    values = [run[figure] for run in runs if run["case"] == case and run["broker"] == broker and run.get(figure)]
    return statistics.fmean(values) if values else None


def run_line(run: Mapping[str, Any]) -> str:
    """One run in one line, for whoever watches."""
    head = f"{run['case']:<10}  round {run['round']}  {run['broker']:<15}"
    if run["problem"] is not None:
        return f"{head} – {run['problem'].splitlines()[0]}"
    return (
        f"{head} {run['sent_per_second']:9,.0f} sent/s {run['received_per_second']:9,.0f} received/s  "
        f"p50 {run['send_p50_ms']:8.2f} ms  p99 {run['send_p99_ms']:8.2f} ms  "
        f"{run['cpu_us_per_message']:6.0f} us CPU each"
    )
