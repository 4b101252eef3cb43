"""MQTT: our broker beside mosquitto and ActiveMQ, the same load in the same run, taking turns.

Cases:

    qos0, qos1, qos2   as fast as a window of packets allows; of QoS 0 as fast as the socket takes them
    latency            QoS 1 at a fixed rate; counted from the moment at which a message was due
    idle               connections that say nothing: what the server holds for one

Subscribers have sessions that are kept (clean session 0), so that what they are sent is stored first where a broker
stores: here and in ActiveMQ. mosquitto keeps it in memory. Every message must arrive but those of QoS 0.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandemmq.bench.compare import OURS, machine
from tandemmq.bench.mqtt_connection import MqttConnection
from tandemmq.bench.mqtt_load import run_mqtt_load
from tandemmq.bench.peers.activemq import ActiveMQ
from tandemmq.bench.peers.mosquitto import Mosquitto
from tandemmq.bench.peers.server import PeerMissing, Server
from tandemmq.bench.peers.tandemmq import TREE, TandemMQ
from tandemmq.bench.plan import LoadPlan
from tandemmq.bench.process import status_number
from tandemmq.bench.replicated import commit
from tandemmq.bench.rounds import ratios, take_turns
from tandemmq.bench.statistics import percentile

LATENCY = "latency"
QOS = {"qos0": 0, "qos1": 1, "qos2": 2, LATENCY: 1}
IDLE = "idle"
CODEC = Path("/usr/share/java/mqtt-client.jar")
CASES = (*QOS, IDLE)
IDLE_CONNECTIONS = 10_000
SETTLE_SECONDS = 1.5
# Whether more of it is better.
FIGURES = {
    "sent_per_second": True,
    "received_per_second": True,
    "confirm_p99_ms": False,
    "receive_p99_ms": False,
    "cpu_us_per_message": False,
    "bytes_each": False,
}

Say = Callable[[str], None]


class _MqttServer(Server):
    """Serves when it takes an MQTT client. ``port`` is the one that speaks it."""

    def ask(self) -> None:
        MqttConnection(self.endpoint, "asking", is_clean=True).sock.close()


class MqttTandemMQ(_MqttServer, TandemMQ):
    def __init__(self, tree: Path = TREE) -> None:
        super().__init__(tree=tree)
        self.port = self.listen_to_mqtt()


class MqttActiveMQ(_MqttServer, ActiveMQ):
    """With the codec that its MQTT needs, and that Debian has in a package of its own (libmqtt-client-java)."""

    def __init__(self) -> None:
        super().__init__(scheme="mqtt+nio")

    def start(self) -> None:
        if not CODEC.exists():
            raise PeerMissing(f"ActiveMQ has no codec of MQTT ({CODEC})")
        extra = self.directory / "lib" / "extra"
        extra.mkdir(parents=True, exist_ok=True)
        (extra / CODEC.name).symlink_to(CODEC)
        super().start()


class MqttMosquitto(_MqttServer, Mosquitto):
    """As it is."""


BROKERS: Mapping[str, Callable[[], _MqttServer]] = {
    OURS: MqttTandemMQ,
    ActiveMQ.name: MqttActiveMQ,
    Mosquitto.name: MqttMosquitto,
}


def mqtt(
    cases: Sequence[str], names: Sequence[str], rounds: int, plan: LoadPlan, say: Say, compiled: Path | None = None
) -> dict[str, Any]:
    """All rounds of all cases, and what we are to each peer (bench.rounds)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    runs = take_turns(
        cases,
        BROKERS,
        names,
        rounds,
        MqttTandemMQ,
        compiled,
        lambda server, case: _idle(server) if case == IDLE else _load(server, case, plan),
        lambda run: say(run_line(run)),
    )
    return {
        "scenario": "mqtt",
        "machine": machine(),
        "commit": commit(),
        "runs": runs,
        "ratios": ratios(runs, FIGURES),
    }


def _idle(server: _MqttServer) -> dict[str, Any]:
    before = status_number((Path("/proc") / str(server.pid) / "status").read_text(), "VmRSS")
    peers = [MqttConnection(server.endpoint, f"idle-{number}", is_clean=True) for number in range(IDLE_CONNECTIONS)]
    time.sleep(SETTLE_SECONDS)
    after = status_number((Path("/proc") / str(server.pid) / "status").read_text(), "VmRSS")
    for peer in peers:
        peer.sock.close()
    return {"connections": IDLE_CONNECTIONS, "bytes_each": (after - before) * 1024 / IDLE_CONNECTIONS}


def _load(server: _MqttServer, case: str, plan: LoadPlan) -> dict[str, Any]:
    """Raises BenchError where not all arrives, but of QoS 0."""
    qos = QOS[case]
    plan = replace(plan, endpoint=server.endpoint, rate=plan.rate if case == LATENCY else None)
    result = run_mqtt_load(server.pid, plan, qos)
    latencies = {"receive": result.receive, "confirm": result.confirm}
    return {
        "sent_per_second": (result.confirmed if qos else result.sent) / plan.seconds,
        "received_per_second": result.received / plan.seconds,
        "lost": result.lost,
        "cpu_us_per_message": result.spent.cpu_seconds / max(result.received, 1) * 1e6,
        "server_peak_memory_bytes": result.spent.peak_memory_bytes,
        **{
            f"{name}_{figure}_ms": None if (value := percentile(each, share)) is None else value * 1000
            for name, each in latencies.items()
            for figure, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
        },
    }


def run_line(run: Mapping[str, Any]) -> str:
    """One run in one line, for whoever watches."""
    head = f"{run['case']:<8}  round {run['round']}  {run['broker']:<17}"
    if run["problem"] is not None:
        return f"{head} – {run['problem'].splitlines()[0]}"
    if run["case"] == IDLE:
        return f"{head} {run['bytes_each']:9,.0f} bytes a connection"
    confirmed = "" if run["confirm_p99_ms"] is None else f"confirmed p99 {run['confirm_p99_ms']:8.2f} ms  "
    return (
        f"{head} {run['sent_per_second']:9,.0f} sent/s {run['received_per_second']:9,.0f} received/s  {confirmed}"
        f"received p99 {run['receive_p99_ms'] or 0:8.2f} ms  {run['cpu_us_per_message']:6.1f} us CPU each"
    )
