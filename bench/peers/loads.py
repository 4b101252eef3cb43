"""Loads of a fair comparison: programs that use the same client for every broker (bench/peers/programs).

A load connects, writes "ready", and then answers each line of its standard input with one line of JSON:

    go N     send and receive; a pattern that reads filled queues sends N messages first
    mark     continue
    pause    stop, and answer when all sent messages are confirmed and received

    {"nanos": ..., "sent": ..., "received": ..., "step_us": [p50, p99], "receive_us": [p50, p99], "problems": []}

``nanos`` is its clock, ``sent`` and ``received`` count from its start. Times are of the events since the last line:
``step_us`` from a send to its answer (in a pattern that only receives: from the receive call to the acknowledgement),
``receive_us`` from a send to its receipt by a consumer.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from tandemmq.bench.driver.process import cost
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.peers.programs import activemq_6, amqp_load, artemis, go_load, jms_load, qpid_jms, stomp_load
from tandemmq.bench.peers.server import HOST, Server

KIB: Final = 1024
ANSWER_SECONDS_MAX: Final = 120.0
FILL_MAX: Final = 300_000
PROVED_FILL: Final = 5_000
_FIRST_RATE: Final = 10_000.0
_FILL: Final = 1.3
_OWN_JMS_CLIENT: Final = "org.apache.activemq.artemis.jms.client"
_QPID_JMS: Final = "org.apache.qpid.jms"


@dataclass(frozen=True, slots=True)
class Workload:
    """A load. ``pattern``: a pattern of JmsLoad, which uses Qpid JMS for AMQP. ``outstanding``: maximum number of
    messages that are sent and not confirmed; None if a send waits for no answer. ``is_stored`` False: the broker need
    not sync."""

    protocol: str
    senders: int = 0
    consumers: int = 4
    window: int = 1
    qos: int = 0
    pattern: str = ""
    body_bytes: int = KIB
    outstanding: int | None = None
    is_stored: bool = True
    rate: int = 0
    """Messages a second, at fixed moments from which times count; 0: as many as the window allows."""


def _jms(pattern: str, outstanding: int | None = None, body_bytes: int = KIB) -> Workload:
    return Workload("jms", pattern=pattern, outstanding=outstanding, body_bytes=body_bytes)


WORKLOADS: Final[Mapping[str, Workload]] = {
    "jms-sync": _jms("sync", 8),
    "jms-async": _jms("async"),
    "jms-commit": _jms("commit", 8),
    "stomp-windowed": Workload("stomp", 4, 4, 200, outstanding=800),
    "stomp-waiting": Workload("stomp", 16, 4, 1, outstanding=16),
    "mqtt-qos1": Workload("mqtt", 4, 4, 100, 1, outstanding=400),
    "mqtt-qos2": Workload("mqtt", 4, 4, 100, 2, outstanding=400),
}
LATENCIES: Final[Mapping[str, Workload]] = {
    f"stomp-{rate}": Workload("stomp", 4, 4, 1_000, outstanding=4_000, rate=rate) for rate in (100, 1_000, 5_000)
}
#: AMQP, and the same loads over STOMP.
AMQP: Final[Mapping[str, Workload]] = {
    "amqp-windowed": Workload("amqp", 4, 4, 200, outstanding=800),
    "stomp-windowed": WORKLOADS["stomp-windowed"],
    "amqp-jms-sync": Workload("amqp", pattern="sync", outstanding=8),
    "amqp-jms-async": Workload("amqp", pattern="async"),
    "amqp-jms-commit": Workload("amqp", pattern="commit", outstanding=8),
    "amqp-1000": Workload("amqp", 4, 4, 1_000, outstanding=4_000, rate=1_000),
    "stomp-1000": LATENCIES["stomp-1000"],
}
#: Patterns of JMS code. Messages are counted as received if the pattern receives, otherwise as sent.
PATTERNS: Final[Mapping[str, Workload]] = {
    "client-acknowledge": _jms("client-acknowledge"),
    "receive-commit": _jms("receive-commit"),
    "receive-commit-16": _jms("receive-commit-16"),
    "send-commit": _jms("send-commit", 4),
    "large": _jms("large", 2, KIB * KIB),
    "session-each": _jms("session-each"),
    "bridge": _jms("bridge", 8),
    "send": _jms("send", 4),
    "storm": _jms("storm", 8),
    "individual": _jms("individual"),
    "commit-both": _jms("commit-both", 8),
    "xa": _jms("xa", 8),
    "request": _jms("request", 20),
    "fan-out": Workload("jms", pattern="fan-out", is_stored=False),
    "durable": _jms("durable", 1),
}


@dataclass(frozen=True, slots=True)
class Window:
    """Figures of some seconds. ``rate``: messages received a second; sent, if none are received. CPU is of the broker
    and of all its processes, for each of these messages; ``waits`` and ``preemptions`` are its context switches
    (bench.process)."""

    rate: float
    sent_per_second: float
    cpu_us: float
    system_us: float
    waits: float
    preemptions: float
    step_p50_ms: float | None
    step_p99_ms: float | None
    receive_p50_ms: float | None
    receive_p99_ms: float | None


class Load:
    """A load that runs against ``server``. As a context manager it ends the program."""

    def __init__(self, workload: Workload, server: Server, *, uses_own_client: bool = False) -> None:
        self._server = server
        self._rate = _FIRST_RATE
        self._process = subprocess.Popen(
            command(workload, server, uses_own_client=uses_own_client),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._text = b""
        self.sent = 0
        """Messages that were sent and confirmed since the start."""

    def __enter__(self) -> Self:
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def window(self, seconds: float, settle: float) -> Window:
        """Start the load, wait for ``settle`` seconds, measure, and stop the load. Filled queues get as many messages
        as that takes at the last rate, at most FILL_MAX. Raises BenchError."""
        fill = min(FILL_MAX, int(self._rate * (settle + seconds) * _FILL))
        begin = self.tell(f"go {fill}")
        time.sleep(settle)
        before, spent = self.tell("mark"), cost(self._server.pid)
        time.sleep(seconds)
        after, spent = self.tell("mark"), cost(self._server.pid).since(spent)
        self.tell("pause")
        elapsed = (after["nanos"] - before["nanos"]) / 1e9
        sent, received = (after[name] - before[name] for name in ("sent", "received"))
        messages = received or sent
        if elapsed <= 0 and after["received"] > begin["received"] and fill < FILL_MAX:
            self._rate *= 4  # the queues were empty before the measurement
            return self.window(seconds, settle)
        if not messages or elapsed <= 0:
            raise BenchError("no message went through")
        self._rate = messages / elapsed
        step, age = (after[name] or (None, None) for name in ("step_us", "receive_us"))
        times = (None if micros is None else micros / 1000 for micros in (*step, *age))
        each = (
            value / messages
            for value in (spent.cpu_seconds * 1e6, spent.system_seconds * 1e6, spent.waits, spent.preemptions)
        )
        return Window(self._rate, sent / elapsed, *each, *times)

    def run(self, seconds: float) -> int:
        """Start and stop the load. Return the number of messages sent and confirmed, or received if none were sent.
        Filled queues get few messages, because a broker is slow while strace(1) traces it. Raises BenchError."""
        before = self.tell("mark")
        self.tell(f"go {PROVED_FILL}")
        time.sleep(seconds)
        after = self.tell("pause")
        sent, received = (int(after[name] - before[name]) for name in ("sent", "received"))
        return sent or received

    def tell(self, line: str) -> dict[str, Any]:
        """Send a line and return the program's answer. Raises BenchError, also for a problem in the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except OSError as problem:
            raise BenchError(f"the load has ended: {problem}") from None
        answer: dict[str, Any] = self._answer()
        if answer["problems"]:
            raise BenchError(answer["problems"][0])
        self.sent = answer["sent"]
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        until = time.monotonic() + ANSWER_SECONDS_MAX
        while b"\n" not in self._text:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise BenchError(f"the load does not answer within {ANSWER_SECONDS_MAX:g} s")
            read = os.read(self._process.stdout.fileno(), 65_536)
            if not read:
                raise BenchError("the load has ended")
            self._text += read
        line, _, self._text = self._text.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            raise BenchError(f"the load wrote {line[:200]!r}") from None


def command(workload: Workload, server: Server, *, uses_own_client: bool = False) -> list[str]:
    """Return the program of a workload with its arguments. ``uses_own_client``: the JMS client of Artemis in place of
    ActiveMQ's. Raises PeerMissing."""
    protocol = workload.protocol if workload.protocol in server.ports else "nats"
    address = HOST, str(server.ports[protocol])
    numbers = map(str, (workload.senders, workload.consumers, workload.window, workload.body_bytes, workload.qos))
    if protocol in ("stomp", "amqp") and not workload.pattern:
        program = stomp_load() if protocol == "stomp" else amqp_load()
        return [str(program), *address, *list(numbers)[:4], str(workload.rate)]
    if not workload.pattern:
        return [str(go_load()), protocol, *address, *numbers]
    own: list[str] = []
    if protocol == "amqp":
        path, own = jms_load(qpid_jms(), "qpid"), [_QPID_JMS]
    elif uses_own_client:
        path, own = jms_load(artemis() / "lib", "artemis", "javax.jms"), [_OWN_JMS_CLIENT]
    else:
        path = jms_load(activemq_6(), "activemq")
    return ["java", "-Xmx512m", "-cp", path, "JmsLoad", *address, workload.pattern, str(workload.body_bytes), *own]
