"""A load of MQTT: one process that publishes, one that is subscribed, and what that cost the broker.

Subscribers have sessions that are kept (clean session 0). Every message must arrive but those of QoS 0.
"""

from __future__ import annotations

import multiprocessing
import select
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.sharedctypes import RawArray
from typing import Any

from tandemmq.bench.connection import BenchError
from tandemmq.bench.mqtt_connection import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    READ_BYTES,
    MqttConnection,
    answer,
    publish_start,
)
from tandemmq.bench.plan import LoadPlan
from tandemmq.bench.process import Cost, cost

# The clock is read for one message in so many, but at a rate.
SAMPLE = 8
_STAMP = struct.Struct(">d")


@dataclass(frozen=True, slots=True)
class MqttResult:
    """What was counted while it was measured. Latencies in seconds, in order. ``lost``: of all."""

    sent: int
    confirmed: int
    received: int
    lost: int
    seconds: float
    spent: Cost
    confirm: list[float]
    receive: list[float]


def run_mqtt_load(pid: int, plan: LoadPlan, qos: int, topic: str = "bench") -> MqttResult:
    """To its end. ``pid``: the broker's. With ``plan.count`` all of it is measured. Raises BenchError where not all
    arrives, but of QoS 0."""
    context = multiprocessing.get_context("fork")
    counts = RawArray("Q", 3)  # sent, confirmed, received
    is_over, is_all_sent = context.Event(), context.Event()
    ready = context.Barrier(3)
    pipes: list[Pipe] = []
    workers = []
    for work in (_subscribe, _publish):
        ours, theirs = context.Pipe(duplex=False)
        arguments = (plan, qos, topic, counts, ready, is_all_sent, is_over, theirs)
        worker = context.Process(target=_worker, args=(work, *arguments), daemon=True)
        worker.start()
        theirs.close()
        workers.append(worker)
        pipes.append(ours)
    try:
        before, counted = cost(pid), [0, 0, 0]
        ready.wait(plan.stall_seconds)
        begin = time.monotonic()
        if plan.count is not None:
            first, last = begin, _await(counts, qos, plan)
        else:
            time.sleep(plan.warmup_seconds)
            before, counted = cost(pid), list(counts)
            time.sleep(plan.seconds)
            first = begin + plan.warmup_seconds
            last = first + plan.seconds
        spent = cost(pid).since(before)
        sent, confirmed, received = (now - then for now, then in zip(counts, counted, strict=True))
        is_all_sent.set()
        _await(counts, qos, plan)
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
        raise BenchError("; ".join(problems) or "the load ended without a word")
    receive, confirm = (sorted(seconds for at, seconds in each if first <= at <= last) for each in told)
    return MqttResult(sent, confirmed, received, counts[0] - counts[2], last - first, spent, confirm, receive)


def _await(counts: Any, qos: int, plan: LoadPlan) -> float:
    """Until all that was sent is confirmed and received, or nothing moves any more: when the last of it was seen."""
    moved_at, last = time.monotonic(), tuple(counts)
    while time.monotonic() - moved_at < (plan.stall_seconds if qos or plan.count is not None else 1.0):
        time.sleep(0.05)
        now = tuple(counts)
        if now != last:
            moved_at, last = time.monotonic(), now
        is_sent = plan.count is None or now[0] == plan.count
        if is_sent and now[0] == now[2] and (not qos or now[0] == now[1]) and time.monotonic() - moved_at > 0.2:
            return moved_at
    if qos or plan.count is not None:
        raise BenchError(f"{counts[0]} sent, {counts[1]} confirmed, {counts[2]} received: the rest does not come")
    return moved_at


def _worker(work: Callable[..., Any], *arguments: Any) -> None:
    pipe: Pipe = arguments[-1]
    try:
        pipe.send(work(*arguments[:-1]))
    except Exception as problem:
        pipe.send(f"{work.__name__.strip('_')}: {type(problem).__name__}: {problem}")


def _subscribe(
    plan: LoadPlan, qos: int, topic: str, counts: Any, ready: Any, _: Any, is_over: Any
) -> list[tuple[float, float]]:
    """Take and confirm everything. When each message of the sample came, and how long after it was sent or due."""
    peers: dict[int, MqttConnection] = {}
    poll = select.poll()
    for number in range(plan.consumers):
        peer = MqttConnection(plan.endpoint, f"{topic}-subscriber-{number}", is_clean=False)
        peer.subscribe(f"{topic}/{number % plan.queues}", qos)
        peers[peer.sock.fileno()] = peer
        poll.register(peer.sock, select.POLLIN)
    ready.wait(plan.stall_seconds)
    latencies: list[tuple[float, float]] = []
    received = 0
    turn = plan.least_turn_seconds
    while not is_over.is_set():
        if turn:
            time.sleep(turn)
        for descriptor, _event in poll.poll(100):
            peer = peers[descriptor]
            data = peer.sock.recv(READ_BYTES)
            if not data:
                raise BenchError("the broker hung up on a subscriber")
            peer.feed(data)
            now = time.monotonic()
            answers = []
            for first, content in peer.packets():
                if first >> 4 == PUBLISH:
                    start = 2 + (content[0] << 8 | content[1])
                    if qos:
                        answers.append(answer(PUBACK if qos == 1 else PUBREC, content[start : start + 2]))
                        start += 2
                    received += 1
                    if plan.rate or received % SAMPLE == 0:
                        latencies.append((now, now - _STAMP.unpack_from(content, start)[0]))
                elif first >> 4 == PUBREL:
                    answers.append(answer(PUBCOMP, content[:2]))
            if answers:
                peer.sock.sendall(b"".join(answers))
            counts[2] = received
    return latencies


class _Publisher:
    """One connection, and what of it is not confirmed: when each was sent or due, by packet id."""

    def __init__(self, peer: MqttConnection, start: bytes) -> None:
        self.peer = peer
        self.start = start
        self.open: dict[bytes, float] = {}
        self.free = deque(struct.pack(">H", number) for number in range(1, 0x10000))


def _publish(
    plan: LoadPlan, qos: int, topic: str, counts: Any, ready: Any, is_all_sent: Any, is_over: Any
) -> list[tuple[float, float]]:
    """Send, and see to what is confirmed. When that came of each message of the sample, and after how long."""
    publishers: dict[int, _Publisher] = {}
    poll = select.poll()
    for number in range(plan.producers):
        peer = MqttConnection(plan.endpoint, f"{topic}-publisher-{number}", is_clean=True)
        start = publish_start(f"{topic}/{number % plan.queues}", qos, plan.body_bytes)
        publishers[peer.sock.fileno()] = _Publisher(peer, start)
        poll.register(peer.sock, select.POLLIN)
    rest = bytes(plan.body_bytes - _STAMP.size)
    everyone = list(publishers.values())
    ready.wait(plan.stall_seconds)
    begin = time.monotonic()
    latencies: list[tuple[float, float]] = []
    sent = confirmed = 0
    rate, turn = plan.rate, plan.least_turn_seconds
    while not is_over.is_set():
        now = time.monotonic()
        if not is_all_sent.is_set():
            for number, each in enumerate(everyone):
                if rate is not None:
                    due = int((now - begin) * rate) - sent if number == sent % len(everyone) else 0
                    count = min(due, 1)
                else:
                    count = plan.window - len(each.open)
                if plan.count is not None:
                    count = min(count, plan.count - sent)
                parts: list[bytes] = []
                for _ in range(count):
                    stamp = begin + sent / rate if rate is not None else now
                    sent += 1
                    if qos:
                        packet_id = each.free.popleft()
                        each.open[packet_id] = stamp
                        parts += (each.start, packet_id, _STAMP.pack(stamp), rest)
                    else:
                        parts += (each.start, _STAMP.pack(stamp), rest)
                if parts:
                    each.peer.sock.sendall(b"".join(parts))
            counts[0] = sent
        if turn:
            time.sleep(turn)
        for descriptor, _event in poll.poll(1 if rate else 0 if not qos else 100):
            each = publishers[descriptor]
            data = each.peer.sock.recv(READ_BYTES)
            if not data:
                raise BenchError("the broker hung up on a publisher")
            each.peer.feed(data)
            now = time.monotonic()
            answers = []
            for first, content in each.peer.packets():
                if first >> 4 == PUBREC:
                    answers.append(answer(PUBREL, content[:2]))
                elif first >> 4 in (PUBACK, PUBCOMP):
                    packet_id = content[:2]
                    stamp = each.open.pop(packet_id)
                    each.free.append(packet_id)
                    confirmed += 1
                    if rate or confirmed % SAMPLE == 0:
                        latencies.append((now, now - stamp))
            if answers:
                each.peer.sock.sendall(b"".join(answers))
            counts[1] = confirmed
    return latencies
