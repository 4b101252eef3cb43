"""A load of ``plan.count`` MQTT 3.1.1 messages: one process publishes, and one subscribes. The result includes the cost
of the broker. Subscribers have persistent sessions (clean session 0). Every message must arrive."""

from __future__ import annotations

import multiprocessing
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from multiprocessing.sharedctypes import RawArray
from typing import Any

from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.process import Cost, cost
from tandemmq.bench.driver.stomp import BenchError, Endpoint

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK = 2, 3, 4, 5, 6, 7, 9
TIMEOUT_SECONDS = 30.0
READ_BYTES = 1 << 18
_PACKET_ID = struct.Struct(">H")


def length(count: int) -> bytes:
    """Encode a remaining length (3.1.1, 2.2.3)."""
    encoded = bytearray()
    while True:
        count, digit = divmod(count, 128)
        encoded.append(digit | (128 if count else 0))
        if not count:
            return bytes(encoded)


def text(value: str) -> bytes:
    return _PACKET_ID.pack(len(value)) + value.encode()


def packet(first: int, content: bytes) -> bytes:
    return bytes((first,)) + length(len(content)) + content


def answer(type: int, packet_id: bytes) -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return bytes((type << 4 | (2 if type == PUBREL else 0), 2)) + packet_id


def publish_start(topic: str, qos: int, payload_bytes: int) -> bytes:
    """Return the part of a PUBLISH before the packet id, or with QoS 0 before the payload."""
    head = text(topic)
    return bytes((PUBLISH << 4 | qos << 1,)) + length(len(head) + (2 if qos else 0) + payload_bytes) + head


class MqttConnection:
    """Connection of a load; ``sock`` is blocking. Raises BenchError or OSError."""

    def __init__(self, endpoint: Endpoint, client_id: str, *, is_clean: bool) -> None:
        self.sock = socket.create_connection((endpoint.host, endpoint.port), TIMEOUT_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        flags = 2 if is_clean else 0
        self.sock.sendall(packet(0x10, text("MQTT") + bytes((4, flags)) + b"\0\0" + text(client_id)))
        first, content = self._one()
        if first >> 4 != CONNACK or content[1]:
            raise BenchError(f"{endpoint.host}:{endpoint.port} refused the connection: {first:#x} {content!r}")

    def subscribe(self, topic: str, qos: int) -> None:
        self.sock.sendall(packet(0x82, b"\0\1" + text(topic) + bytes((qos,))))
        first, content = self._one()
        if first >> 4 != SUBACK or content[2] != qos:
            raise BenchError(f"the subscription was refused: {first:#x} {content!r}")

    def _one(self) -> tuple[int, bytes]:
        while True:
            for found in self.packets():
                return found
            data = self.sock.recv(READ_BYTES)
            if not data:
                raise BenchError("the broker closed the connection")
            self.feed(data)

    def feed(self, data: bytes) -> None:
        self._rest = self._rest + data if self._rest else data

    def packets(self) -> Iterator[tuple[int, bytes]]:
        """Yield first byte and content of each complete packet."""
        data, at, end = self._rest, 0, len(self._rest)
        while at + 2 <= end:
            count, shift, place = 0, 0, at + 1
            while place < end:
                digit = data[place]
                count |= (digit & 127) << shift
                place += 1
                if digit < 128:
                    break
                shift += 7
            else:
                break
            if place + count > end:
                break
            first, content = data[at], data[place : place + count]
            at = place + count
            self._rest = data[at:] if at == end else data
            try:
                yield first, content
            finally:
                self._rest = data[at:]


@dataclass(frozen=True, slots=True)
class PairResult:
    """Result of a load. ``seconds``: time until the last message was received or confirmed. ``spent``: cost of the
    broker."""

    sent: int
    confirmed: int
    received: int
    seconds: float
    spent: Cost


def run_mqtt_load(pid: int, plan: LoadPlan, qos: int, topic: str = "bench") -> PairResult:
    """Run a load to its end. ``pid``: pid of the broker. Raises BenchError if a message does not arrive."""
    works = partial(_subscribe, qos, topic), partial(_publish, qos, topic)
    return run_pair(pid, plan, works, is_confirmed=qos > 0)


def run_pair(pid: int, plan: LoadPlan, works: tuple[partial[None], partial[None]], *, is_confirmed: bool) -> PairResult:
    """Run a receiving and a sending process to their end. The arguments of ``works`` are the plan, the counts of
    messages (sent, confirmed, received), a barrier for the time when both are connected, and an event that ends
    them."""
    context = multiprocessing.get_context("fork")
    counts = RawArray("Q", 3)  # sent, confirmed, received
    is_over = context.Event()
    ready = context.Barrier(3)
    pipes: list[Pipe] = []
    workers = []
    for work in works:
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_worker, args=(work, plan, counts, ready, is_over, theirs), daemon=True)
        worker.start()
        theirs.close()
        workers.append(worker)
        pipes.append(ours)
    try:
        before = cost(pid)
        ready.wait(plan.stall_seconds)
        begin = time.monotonic()
        seconds = _await(counts, plan, is_confirmed=is_confirmed) - begin
        spent = cost(pid).since(before)
        is_over.set()
        told = [pipe.recv() for pipe in pipes if pipe.poll(plan.stall_seconds)]
    finally:
        is_over.set()
        for worker in workers:
            worker.join(plan.stall_seconds)
            if worker.is_alive():
                worker.kill()
                worker.join()
    problems = [each for each in told if isinstance(each, str)]
    if problems or len(told) < len(workers):
        raise BenchError("; ".join(problems) or "the load ended without a result")
    sent, confirmed, received = counts
    return PairResult(sent, confirmed, received, seconds, spent)


def _await(counts: Any, plan: LoadPlan, *, is_confirmed: bool) -> float:
    """Wait until all sent messages are confirmed and received, or no count changes any more. Return the time of the
    last change."""
    moved_at, last = time.monotonic(), tuple(counts)
    while time.monotonic() - moved_at < plan.stall_seconds:
        time.sleep(0.05)
        now = tuple(counts)
        if now != last:
            moved_at, last = time.monotonic(), now
        is_done = plan.count == now[0] == now[2] and (not is_confirmed or now[0] == now[1])
        if is_done and time.monotonic() - moved_at > 0.2:
            return moved_at
    raise BenchError(f"{counts[0]} sent, {counts[1]} confirmed, {counts[2]} received: the rest does not come")


def _worker(work: partial[None], *arguments: Any) -> None:
    pipe: Pipe = arguments[-1]
    try:
        pipe.send(work(*arguments[:-1]))
    except Exception as problem:
        pipe.send(f"{work.func.__name__.strip('_')}: {type(problem).__name__}: {problem}")


def _subscribe(qos: int, topic: str, plan: LoadPlan, counts: Any, ready: Any, is_over: Any) -> None:
    """Receive and confirm all messages."""
    peers: dict[int, MqttConnection] = {}
    poll = select.poll()
    for number in range(plan.consumers):
        peer = MqttConnection(plan.endpoint, f"{topic}-subscriber-{number}", is_clean=False)
        peer.subscribe(f"{topic}/{number % plan.queues}", qos)
        peers[peer.sock.fileno()] = peer
        poll.register(peer.sock, select.POLLIN)
    ready.wait(plan.stall_seconds)
    received = 0
    turn = plan.least_turn_seconds
    while not is_over.is_set():
        if turn:
            time.sleep(turn)
        for descriptor, _event in poll.poll(100):
            peer = peers[descriptor]
            data = peer.sock.recv(READ_BYTES)
            if not data:
                raise BenchError("the broker closed the connection of a subscriber")
            peer.feed(data)
            answers = []
            for first, content in peer.packets():
                if first >> 4 == PUBLISH:
                    start = 2 + (content[0] << 8 | content[1])
                    if qos:
                        answers.append(answer(PUBACK if qos == 1 else PUBREC, content[start : start + 2]))
                    received += 1
                elif first >> 4 == PUBREL:
                    answers.append(answer(PUBCOMP, content[:2]))
            if answers:
                peer.sock.sendall(b"".join(answers))
            counts[2] = received


class _Publisher:
    """A connection, and the number of its unconfirmed messages."""

    def __init__(self, peer: MqttConnection, start: bytes) -> None:
        self.peer = peer
        self.start = start
        self.open = 0
        self.free = deque(struct.pack(">H", number) for number in range(1, 0x10000))


def _publish(qos: int, topic: str, plan: LoadPlan, counts: Any, ready: Any, is_over: Any) -> None:
    """Send the messages, and process their confirmations."""
    assert plan.count is not None
    publishers: dict[int, _Publisher] = {}
    poll = select.poll()
    for number in range(plan.producers):
        peer = MqttConnection(plan.endpoint, f"{topic}-publisher-{number}", is_clean=True)
        start = publish_start(f"{topic}/{number % plan.queues}", qos, plan.body_bytes)
        publishers[peer.sock.fileno()] = _Publisher(peer, start)
        poll.register(peer.sock, select.POLLIN)
    body = bytes(plan.body_bytes)
    ready.wait(plan.stall_seconds)
    sent = confirmed = 0
    turn = plan.least_turn_seconds
    while not is_over.is_set():
        for each in publishers.values():
            parts: list[bytes] = []
            for _ in range(min(plan.window - each.open, plan.count - sent)):
                sent += 1
                if qos:
                    each.open += 1
                    parts += (each.start, each.free.popleft(), body)
                else:
                    parts += (each.start, body)
            if parts:
                each.peer.sock.sendall(b"".join(parts))
        counts[0] = sent
        if turn:
            time.sleep(turn)
        for descriptor, _event in poll.poll(100 if qos else 0):
            each = publishers[descriptor]
            data = each.peer.sock.recv(READ_BYTES)
            if not data:
                raise BenchError("the broker closed the connection of a publisher")
            each.peer.feed(data)
            answers = []
            for first, content in each.peer.packets():
                if first >> 4 == PUBREC:
                    answers.append(answer(PUBREL, content[:2]))
                elif first >> 4 in (PUBACK, PUBCOMP):
                    each.free.append(content[:2])
                    each.open -= 1
                    confirmed += 1
            if answers:
                each.peer.sock.sendall(b"".join(answers))
            counts[1] = confirmed
