"""One process of the driver: an epoll loop over its producers and consumers.

    parent: fork -> [worker connects, subscribes] -> barrier -> go
    worker: epoll -> read what is there, in one go -> answer it, in one go -> add to the shared counters
    parent: reads the counters, sets ``stop`` -> workers disconnect and hand back what they measured

Everything per message happens in C loops over a whole buffer; Python's own loop turns once per message only
to cut out its identity. Counters are written by one worker each and read by the parent without a lock: a
reading is at most one batch old.
"""

import os
import select
import socket
import time
from array import array
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Barrier, Event

from broker.bench.connection import BenchError, connect, disconnect, error_text, request
from broker.bench.frames import (
    Acknowledgement,
    OrderCheck,
    SendStream,
    command_frame,
    message_identities,
    read_receipts,
    sent_microseconds,
)
from broker.bench.plan import LoadPlan

RECEIPT_READ_BYTES = 64 * 1024
MESSAGE_READ_BYTES = 256 * 1024
SEND_BATCH_MESSAGES_MAX = 256
POLL_SECONDS = 0.02
DISCONNECT_TIMEOUT_SECONDS = 5.0
START_TIMEOUT_SECONDS = 60.0
# The clock is read for one message in so many: enough for percentiles, too few to cost anything.
RECEIVE_SAMPLE = 8
MICROSECONDS = 1_000_000
_SUBSCRIPTION = "1"
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


@dataclass(slots=True)
class Shared:
    """What all processes of a run see."""

    sent: MutableSequence[int]
    confirmed: MutableSequence[int]
    received: MutableSequence[int]
    start: Barrier
    stop: Event


@dataclass(slots=True)
class WorkerReport:
    """What one process measured. Latencies are seconds."""

    cpu_seconds: float
    receipt_latencies: "array[float]"
    receive_latencies: "array[float]"
    order: list[OrderCheck]
    error: str | None = None


class _Outbox:
    """Bytes that the socket did not take yet; asks the loop for EPOLLOUT while there are any."""

    __slots__ = ("_poll", "_rest", "_socket")

    def __init__(self, peer: socket.socket, poll: select.epoll) -> None:
        self._socket = peer
        self._poll = poll
        self._rest: memoryview | None = None

    @property
    def is_blocked(self) -> bool:
        return self._rest is not None

    def send(self, frames: bytes) -> None:
        """Send, and keep what the socket does not take. Only when nothing is kept already."""
        try:
            taken = self._socket.send(frames)
        except BlockingIOError:
            taken = 0
        if taken < len(frames):
            self._rest = memoryview(frames)[taken:]
            self._poll.modify(self._socket, _IN | _OUT)

    def resume(self) -> None:
        """The socket takes bytes again."""
        if self._rest is None:
            return
        self._rest = self._rest[self._socket.send(self._rest) :]
        if not self._rest:
            self._rest = None
            self._poll.modify(self._socket, _IN)


class Producer:
    """Keeps ``window`` messages without a receipt under way until its quota or the time is used up."""

    __slots__ = (
        "_deadline",
        "_latencies",
        "_measured_from",
        "_outbox",
        "_quota",
        "_rest",
        "_sent_at",
        "_shared",
        "_slot",
        "_stream",
        "_window",
        "confirmed",
        "sent",
        "socket",
    )

    def __init__(
        self, plan: LoadPlan, number: int, shared: Shared, poll: select.epoll, latencies: "array[float]"
    ) -> None:
        self.socket = connect(plan.endpoint)
        self._stream = SendStream(plan.queue(number), number, plan.body_bytes, is_persistent=plan.is_persistent)
        self._outbox = _Outbox(self.socket, poll)
        self._window = plan.window
        self._quota = plan.quota(number)
        self._slot = number
        self._shared = shared
        self._latencies = latencies
        self._sent_at = array("d")
        self._rest = b""
        self.sent = 0
        self.confirmed = 0
        self._deadline = float("inf")
        self._measured_from = 0.0

    def schedule(self, measured_from: float, deadline: float) -> None:
        """When to begin to keep latencies, and when to stop sending."""
        self._measured_from = measured_from
        self._deadline = deadline

    def begin(self) -> None:
        self._pump(time.monotonic())

    def writable(self) -> None:
        self._outbox.resume()
        self._pump(time.monotonic())

    def readable(self) -> None:
        data = self.socket.recv(RECEIPT_READ_BYTES)
        if not data:
            raise BenchError(f"the broker closed the connection of producer {self._slot}")
        if self._rest:
            data = self._rest + data
        end = data.rfind(b"\0") + 1
        self._rest = data[end:]
        if not end:
            return
        data = data[:end]
        numbers = read_receipts(data)
        if len(numbers) != data.count(b"\0"):
            _refuse_errors(data.split(b"\0"))
        self.confirmed += len(numbers)
        self._shared.confirmed[self._slot] = self.confirmed
        now = time.monotonic()
        if now >= self._measured_from:
            sent_at = self._sent_at
            self._latencies.extend([now - sent_at[number] for number in numbers])
        self._pump(now)

    def _pump(self, now: float) -> None:
        if self._outbox.is_blocked or now >= self._deadline:
            return
        count = min(self._window - (self.sent - self.confirmed), SEND_BATCH_MESSAGES_MAX)
        if self._quota is not None:
            count = min(count, self._quota - self.sent)
        if count <= 0:
            return
        frames = self._stream.frames(self.sent, count, int(now * MICROSECONDS))
        self._sent_at.extend([now] * count)
        self.sent += count
        self._shared.sent[self._slot] = self.sent
        self._outbox.send(frames)


class Consumer:
    """Reads messages and acknowledges them in the mode of the plan, all of a read with one write."""

    __slots__ = (
        "_acknowledgement",
        "_latencies",
        "_measured_from",
        "_mode",
        "_order",
        "_outbox",
        "_rest",
        "_shared",
        "_slot",
        "_unsent",
        "received",
        "socket",
    )

    def __init__(
        self,
        plan: LoadPlan,
        number: int,
        shared: Shared,
        poll: select.epoll,
        latencies: "array[float]",
        order: OrderCheck | None,
    ) -> None:
        self.socket = connect(plan.endpoint)
        self._mode = plan.acknowledgement
        self._acknowledgement = Acknowledgement(plan.endpoint.version, _SUBSCRIPTION)
        self._outbox = _Outbox(self.socket, poll)
        self._slot = number
        self._shared = shared
        self._latencies = latencies
        self._measured_from = 0.0
        self._order = order
        self._rest = b""
        self._unsent: list[bytes] = []
        self.received = 0
        # Brokers ignore the other one's name for the same thing. No receipt here: a queue that holds
        # messages already may send the first of them before it, depending on the broker.
        headers = [
            ("id", _SUBSCRIPTION),
            ("destination", plan.queue(number)),
            ("ack", plan.acknowledgement),
            ("activemq.prefetchSize", str(plan.prefetch)),
            ("prefetch-count", str(plan.prefetch)),
        ]
        if plan.expected:
            self.socket.sendall(command_frame("SUBSCRIBE", headers))
        else:
            request(self.socket, "SUBSCRIBE", headers, "subscribed")

    def schedule(self, measured_from: float, deadline: float) -> None:
        """When to begin to keep latencies; a consumer has no deadline."""
        self._measured_from = measured_from

    def begin(self) -> None:
        """Messages come by themselves."""

    def writable(self) -> None:
        self._outbox.resume()
        self._acknowledge()

    def readable(self) -> None:
        data = self.socket.recv(MESSAGE_READ_BYTES)
        if not data:
            raise BenchError(f"the broker closed the connection of consumer {self._slot}")
        if self._rest:
            data = self._rest + data
        frames = data.split(b"\0")
        self._rest = frames.pop()
        if not frames:
            return
        try:
            identities = message_identities(frames, self._acknowledgement.header) if self._mode != "auto" else []
        except ValueError:
            _refuse_errors(frames)
            raise BenchError(f"a MESSAGE without {self._acknowledgement.header!r}") from None
        self.received += len(frames)
        self._shared.received[self._slot] = self.received
        if self._order is not None:
            self._order.add(frames)
        now = time.monotonic()
        if now >= self._measured_from:
            self._latencies.extend(
                [now - sent_microseconds(frame) / MICROSECONDS for frame in frames[::RECEIVE_SAMPLE]]
            )
        if identities:
            # `client` is cumulative: the last one speaks for all before it.
            self._unsent += identities if self._mode == "client-individual" else identities[-1:]
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._unsent and not self._outbox.is_blocked:
            frames = self._acknowledgement.frames(self._unsent)
            self._unsent = []
            self._outbox.send(frames)


def _refuse_errors(frames: Sequence[bytes]) -> None:
    for frame in frames:
        if frame.lstrip(b"\r\n").startswith(b"ERROR"):
            raise BenchError(f"the broker says: {error_text(frame.lstrip())}")


def work(plan: LoadPlan, producers: Sequence[int], consumers: Sequence[int], shared: Shared, results: Pipe) -> None:
    """The main function of a worker process; its last act is one WorkerReport into the pipe."""
    receipt_latencies, receive_latencies = array("f"), array("f")
    checks = {plan.queue(number): OrderCheck() for number in consumers} if plan.checks_order else {}
    poll = select.epoll()
    peers: dict[int, Producer | Consumer] = {}
    cpu_before = 0.0
    error = None
    try:
        for number in consumers:
            order = checks.get(plan.queue(number))
            consumer = Consumer(plan, number, shared, poll, receive_latencies, order)
            peers[consumer.socket.fileno()] = consumer
        for number in producers:
            producer = Producer(plan, number, shared, poll, receipt_latencies)
            peers[producer.socket.fileno()] = producer
        for handle, peer in peers.items():
            peer.socket.setblocking(False)
            poll.register(handle, _IN)
        shared.start.wait(START_TIMEOUT_SECONDS)
        go = time.monotonic()
        cpu_before = time.process_time()
        ends = float("inf") if plan.count is not None else go + plan.warmup_seconds + plan.seconds
        for peer in peers.values():
            peer.schedule(go + (plan.warmup_seconds if plan.count is None else 0.0), ends)
            peer.begin()
        _turn(poll, peers, shared.stop, plan.least_turn_seconds)
    except (OSError, BenchError) as problem:
        error = f"{type(problem).__name__}: {problem}" if isinstance(problem, OSError) else str(problem)
        shared.start.abort()
    except KeyboardInterrupt:
        error = "interrupted"
    cpu_seconds = time.process_time() - cpu_before
    for peer in peers.values():
        disconnect(peer.socket, DISCONNECT_TIMEOUT_SECONDS if error is None else 0.1)
    poll.close()
    results.send(WorkerReport(cpu_seconds, receipt_latencies, receive_latencies, list(checks.values()), error))
    results.close()
    os._exit(0)  # a forked child leaves the parent's exit handlers and buffers alone


def _turn(poll: select.epoll, peers: dict[int, Producer | Consumer], stop: Event, least_seconds: float) -> None:
    stopping: Callable[[], bool] = stop.is_set
    wait = poll.poll
    look_again = turned_at = 0.0
    while True:
        for handle, events in wait(POLL_SECONDS):
            peer = peers[handle]
            if events & _OUT:
                peer.writable()
            if events & ~_OUT:
                peer.readable()
        now = time.monotonic()
        if now < turned_at + least_seconds:
            time.sleep(turned_at + least_seconds - now)
        turned_at = time.monotonic()
        if now >= look_again:  # Event.is_set takes a semaphore: not once a turn
            if stopping():
                return
            look_again = now + POLL_SECONDS
