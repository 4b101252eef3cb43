"""Cost of many objects: memory for each, CPU of a message while they exist, and the time of a start.

The number of objects grows in steps on one broker for each subject. After each step, the same load is sent and received
over four other queues: its CPU shows the cost of the existence of the objects. Then the broker is stopped and started
again.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandemmq.bench.driver.load import run_load
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.process import status_number
from tandemmq.bench.driver.stomp import BenchError, Endpoint, command_frame, connect, error_text, read_frame
from tandemmq.bench.peers.server import TandemMQ
from tandemmq.bench.report import Say, head

# The largest number is below the 10,000 connections of a connector, because the load needs some.
SIZES = (1, 10, 100, 1_000, 9_000)
LOAD_MESSAGES = 5_000
BACKLOG_BODY_BYTES = 100
# Number of requests for one receipt, and the limit of the time until it arrives.
AT_ONCE = 500
SECONDS_MAX = 120.0
SETTLE_SECONDS = 1.5

Grow = Callable[["Field", int, int], None]


@dataclass(slots=True)
class Field:
    """A broker, and the sockets to it that stay open."""

    server: TandemMQ
    sockets: list[socket.socket]

    def connect(self) -> socket.socket:
        peer = connect(self.server.endpoint)
        self.sockets.append(peer)
        return peer

    def close(self) -> None:
        for peer in self.sockets:
            peer.close()
        self.sockets.clear()


def growth(subjects: Sequence[str], sizes: Sequence[int], say: Say) -> dict[str, Any]:
    """Return the steps of each subject: the number of objects, their memory and CPU, and the time of a start."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    steps = {subject: list(_steps(subject, sizes, say)) for subject in subjects}
    return {
        **head("growth"),
        "bytes_each": {subject: round(each(found)) for subject, found in steps.items() if len(found) > 1},
        "steps": steps,
    }


def _steps(subject: str, sizes: Sequence[int], say: Say) -> Iterator[Mapping[str, float | None]]:
    grow, is_lasting = SUBJECTS[subject], subject in LASTING
    with TandemMQ() as server:
        field = Field(server, [])
        _cpu(server)  # after this, all objects exist that are made only once
        if is_lasting:
            _restarted(field)
        before = resident(server.pid)
        there = 0
        for size in sizes:
            grow(field, there, size)
            there = size
            # Durable objects are measured after a start, when the broker has only durable state.
            seconds = _restarted(field) if is_lasting else None
            time.sleep(SETTLE_SECONDS)
            grown = resident(server.pid) - before
            cpu = round(_cpu(server), 2)
            yield {"count": size, "bytes": grown, "cpu_us": cpu, "start_seconds": seconds}
            say(f"{subject:<22} {size:>10,}  {grown / 1024:>10,.0f} KiB  {cpu:6.1f} us a message")
        field.close()


def each(steps: Sequence[Mapping[str, Any]]) -> float:
    """Return the bytes of one more object, from the last two steps."""
    first, last = steps[-2:]
    return float(last["bytes"] - first["bytes"]) / float(last["count"] - first["count"])


def _cpu(server: TandemMQ) -> float:
    """Return the CPU of one message in a load over separate queues."""
    plan = LoadPlan(server.endpoint, count=LOAD_MESSAGES, destination="/queue/growth.load", server_pid=server.pid)
    result = run_load(plan)
    if result.received != LOAD_MESSAGES or result.server_cpu_seconds is None:
        raise BenchError(f"{result.sent} sent, {result.received} received")
    return result.server_cpu_seconds / LOAD_MESSAGES * 1e6


def _restarted(field: Field) -> float:
    """Restart the broker. Return the seconds until a client gets an answer."""
    field.close()
    field.server.stop()
    began = time.monotonic()
    field.server.start()
    field.server.wait_until_it_serves()
    return round(time.monotonic() - began, 3)


def resident(pid: int) -> int:
    """Return the memory of the process, in bytes."""
    return status_number(Path(f"/proc/{pid}/status").read_text(), "VmRSS") * 1024


# ---- subjects


def send_frames(peer: socket.socket, frames: Iterator[bytes], count: int) -> None:
    """Send all frames, and wait for a receipt after each AT_ONCE frames."""
    peer.settimeout(SECONDS_MAX)
    for first in range(0, count, AT_ONCE):
        some = b"".join(next(frames) for _ in range(min(AT_ONCE, count - first)))
        peer.sendall(some + command_frame("BEGIN", [("transaction", f"t{first}"), ("receipt", f"r{first}")]))
        while not (answer := read_frame(peer)).startswith(b"RECEIPT"):
            if answer.startswith(b"ERROR"):
                raise BenchError(error_text(answer))


def _queues(field: Field, there: int, wanted: int) -> None:
    def frames() -> Iterator[bytes]:
        for number in range(there, wanted):
            headers = [("id", f"q{number}"), ("destination", f"/queue/growth.{number}")]
            yield command_frame("SUBSCRIBE", headers) + command_frame("UNSUBSCRIBE", headers[:1])

    send_frames(connect(field.server.endpoint), frames(), wanted - there)


def _consumers(field: Field, there: int, wanted: int) -> None:
    for first in range(there, wanted, AT_ONCE):  # a connection may have 1,000
        numbers = range(first, min(first + AT_ONCE, wanted))
        frames = (
            command_frame("SUBSCRIBE", [("id", f"c{number}"), ("destination", "/queue/growth.one")])
            for number in numbers
        )
        send_frames(field.connect(), frames, len(numbers))


def _connections(field: Field, there: int, wanted: int) -> None:
    for _ in range(there, wanted):
        field.connect()


def _durables(field: Field, there: int, wanted: int) -> None:
    """Make durable subscriptions, and close their connections."""
    for first in range(there, wanted, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, wanted))
        frames = (
            command_frame(
                "SUBSCRIBE",
                [
                    ("id", f"d{number}"),
                    ("destination", f"/topic/growth.{number}"),
                    ("activemq.subscriptionName", f"d{number}"),
                ],
            )
            for number in numbers
        )
        with socket.create_connection((field.server.endpoint.host, field.server.endpoint.port), SECONDS_MAX) as peer:
            headers = [("accept-version", "1.2"), ("host", "/"), ("client-id", f"growth-{first}")]
            peer.sendall(command_frame("CONNECT", headers))
            if not (answer := read_frame(peer)).startswith(b"CONNECTED"):
                raise BenchError(error_text(answer))
            send_frames(peer, frames, len(numbers))


def _messages(field: Field, there: int, wanted: int) -> None:
    plan = LoadPlan(
        Endpoint(field.server.endpoint.host, field.server.endpoint.port),
        consumers=0,
        queues=1,
        body_bytes=BACKLOG_BODY_BYTES,
        count=wanted - there,
        destination="/queue/growth.backlog",
        stall_seconds=SECONDS_MAX,
    )
    if (confirmed := run_load(plan).confirmed) != wanted - there:
        raise BenchError(f"{wanted - there} sent, {confirmed} confirmed")


SUBJECTS: Mapping[str, Grow] = {
    "queues": _queues,
    "connections": _connections,
    "consumers": _consumers,
    "durable-subscriptions": _durables,
    "messages": _messages,
}
# Subjects whose objects are durable.
LASTING = frozenset(("durable-subscriptions", "messages"))
