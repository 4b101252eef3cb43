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
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tandemmq.bench.compare import machine
from tandemmq.bench.connection import BenchError
from tandemmq.bench.peers.activemq import ActiveMQ, ActiveMQStored
from tandemmq.bench.peers.floor import Floor
from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import HOST, Server
from tandemmq.bench.peers.tandemmq import TREE, TandemMQ
from tandemmq.bench.plan import LoadPlan
from tandemmq.bench.process import Cost, cost
from tandemmq.bench.rounds import ratios, take_turns
from tandemmq.broker.protocols.openwire.handshake import Greeting

LIBRARIES = Path("/usr/share/activemq/lib")
SOURCE = Path(__file__).parent / "peers" / "jms" / "JmsLoad.java"
CASES = ("sync", "async", "transacted")
BATCH = 100
END_SECONDS_MAX = 120.0
ANSWER_SECONDS_MAX = 2.0
MAGIC = b"ActiveMQ"
# Whether more of it is better.
FIGURES = {
    "sent_per_second": True,
    "received_per_second": True,
    "send_p50_ms": False,
    "send_p99_ms": False,
    "cpu_us_per_message": False,
}


class _OpenWireServer(Server):
    """Serves when it greets as OpenWire does."""

    openwire_port: int

    def ask(self) -> None:
        with socket.create_connection((HOST, self.openwire_port), ANSWER_SECONDS_MAX) as peer:
            peer.settimeout(ANSWER_SECONDS_MAX)
            if MAGIC not in peer.recv(64):
                raise BenchError("what it says is not OpenWire")


class JmsActiveMQ(_OpenWireServer, ActiveMQ):
    """With one connector, of OpenWire."""

    def __init__(self) -> None:
        super().__init__(scheme="tcp")
        self.openwire_port = self.port


class JmsTandemMQ(_OpenWireServer, TandemMQ):
    """With OpenWire beside STOMP."""

    def __init__(self, tree: Path = TREE, python: str = sys.executable) -> None:
        super().__init__(tree=tree, python=python)
        self.openwire_port = free_port()
        self.openwire = f"{HOST}:{self.openwire_port}"


class JmsFloor(_OpenWireServer, Floor):
    """The bare program: it writes, syncs and answers. For the cases without transactions."""

    source = "jms_floor.c"

    def __init__(self) -> None:
        super().__init__()
        self.openwire_port = self.port

    def arguments(self) -> list[str]:
        greeting = self.directory / "greeting"
        greeting.write_bytes(Greeting("floor", "ID:floor", "").wire_format_info)
        return [str(greeting)]


class JmsActiveMQStored(JmsActiveMQ, ActiveMQStored):
    """Storing first."""


BROKERS: Mapping[str, Callable[[], _OpenWireServer]] = {
    TandemMQ.name: JmsTandemMQ,
    ActiveMQ.name: JmsActiveMQ,
    JmsActiveMQStored.name: JmsActiveMQStored,
    JmsFloor.name: JmsFloor,
}


def jms(
    cases: Sequence[str],
    names: Sequence[str],
    rounds: int,
    plan: LoadPlan,
    say: Callable[[str], None],
    compiled: Path | None = None,
) -> dict[str, Any]:
    """All rounds of all cases, and what we are to each peer (bench.rounds)."""
    with driver() as path:
        runs = take_turns(
            cases,
            BROKERS,
            names,
            rounds,
            JmsTandemMQ,
            compiled,
            lambda server, case: _run(path, server, case, plan),
            lambda run: say(run_line(run)),
        )
    return {"scenario": "jms", "machine": machine(), "runs": runs, "ratios": ratios(runs, FIGURES)}


def is_there() -> bool:
    """Whether the JMS client is, and a JDK."""
    return (LIBRARIES / "activemq-client.jar").exists() and shutil.which("javac") is not None


@contextmanager
def driver() -> Iterator[str]:
    """The class path of the Java program, which is compiled first. Raises BenchError."""
    if not is_there():
        raise BenchError(f"no JMS client ({LIBRARIES}) or no JDK to compile {SOURCE.name} with")
    with tempfile.TemporaryDirectory(prefix="bench-jms-") as classes:
        path = f"{classes}:{LIBRARIES}/*:{LIBRARIES}/optional/*"
        subprocess.run(["javac", "-nowarn", "-cp", path, "-d", classes, str(SOURCE)], check=True)
        yield path


def _run(path: str, server: _OpenWireServer, case: str, plan: LoadPlan) -> dict[str, Any]:
    told, spent = drive(path, server, case, plan)
    delivered = told["sent_per_second"] * plan.seconds
    return told | {
        "server_cpu_seconds": spent.cpu_seconds,
        "cpu_us_per_message": spent.cpu_seconds / delivered * 1e6 if delivered else None,
        "server_peak_memory_bytes": spent.peak_memory_bytes,
    }


def drive(path: str, server: _OpenWireServer, case: str, plan: LoadPlan) -> tuple[dict[str, Any], Cost]:
    """What the Java program told of its load, and what that cost the server. Raises BenchError, also if anything is
    missing."""
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
        before = cost(server.pid)
        _expect(lines, "measured")
        spent = cost(server.pid).since(before)
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
    return told, spent


def _expect(lines: Any, wanted: str) -> None:
    line = next(lines, "").strip()
    if line != wanted:
        raise BenchError(f"the JMS load said {line!r}, not {wanted!r}")


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
