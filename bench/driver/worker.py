"""A process of the driver: an epoll loop over its producers and consumers.

    parent: fork -> [worker connects, subscribes] -> barrier -> go
    worker: epoll -> read all that is there -> answer it in one write -> add to the shared counters
    parent: reads the counters, sets ``stop`` -> workers disconnect and return their figures

The work per message is done in C loops over a whole buffer; Python only cuts out the id of each message. Each counter
is written by one worker, and read by the parent without a lock: its value is at most one batch old.
"""

import math
import os
import select
import socket
import time
from array import array
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Barrier, Event

from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import (
    Acknowledgement,
    BenchError,
    OrderCheck,
    SendStream,
    TlsSocket,
    TransactedStream,
    command_frame,
    connect,
    disconnect,
    error_text,
    message_identities,
    read_receipts,
    request,
    sent_microseconds,
)

RECEIPT_READ_BYTES = 64 * 1024
MESSAGE_READ_BYTES = 256 * 1024
SEND_BATCH_MESSAGES_MAX = 256
POLL_SECONDS = 0.02
# FD_SETSIZE of Linux.
SELECTED_MAX = 1_024
DISCONNECT_TIMEOUT_SECONDS = 5.0
START_TIMEOUT_SECONDS = 60.0
# One of this many messages is measured: enough for percentiles, at a negligible cost.
RECEIVE_SAMPLE = 8
MICROSECONDS = 1_000_000
_SUBSCRIPTION = "1"
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


@dataclass(slots=True)
class Shared:
    """State that all processes of a run share."""

    sent: MutableSequence[int]
    confirmed: MutableSequence[int]
    received: MutableSequence[int]
    start: Barrier
    stop: Event


@dataclass(slots=True)
class WorkerReport:
    """Figures of one process. Latencies are seconds."""

    cpu_seconds: float
    receipt_latencies: "array[float]"
    receive_latencies: "array[float]"
    order: list[OrderCheck]
    error: str | None = None


class _Outbox:
    """Bytes that are not written yet. It registers for EPOLLOUT while there are some."""

    __slots__ = ("_poll", "_rest", "_socket")

    def __init__(self, peer: socket.socket, poll: select.epoll) -> None:
        self._socket = peer
        self._poll = poll
        self._rest: memoryview | None = None

    @property
    def is_blocked(self) -> bool:
        return self._rest is not None

    def send(self, frames: bytes) -> None:
        """Write to the socket, and store the bytes that it does not accept. Call it only if no bytes are stored."""
        try:
            taken = self._socket.send(frames)
        except BlockingIOError:
            taken = 0
        if taken < len(frames):
            self._rest = memoryview(frames)[taken:]
            self._poll.modify(self._socket, _IN | _OUT)

    def resume(self) -> None:
        """Write stored bytes. Called when the socket is writable again."""
        if self._rest is None:
            return
        try:
            self._rest = self._rest[self._socket.send(self._rest) :]
        except BlockingIOError:
            return
        if not self._rest:
            self._rest = None
            self._poll.modify(self._socket, _IN)


@dataclass(eq=False)
class _Peer:
    """A connection of the driver, with the bytes of an incomplete frame and its counter."""

    plan: LoadPlan
    number: int
    shared: Shared
    poll: select.epoll
    latencies: "array[float]"

    def __post_init__(self) -> None:
        self.socket = connect(self.plan.endpoint)
        self._outbox = _Outbox(self.socket, self.poll)
        self._rest = b""
        self._go = 0.0
        self._deadline = math.inf
        self._measured_from = 0.0

    def schedule(self, go: float, measured_from: float, deadline: float) -> None:
        """Set the start time, the time from which latencies are recorded, and the time at which a producer stops."""
        self._go = go
        self._measured_from = measured_from
        self._deadline = deadline

    @property
    def next_due(self) -> float:
        """Time of the next action that does not need an event; infinity: none."""
        return math.inf

    def begin(self) -> None:
        """Do nothing: a consumer waits for input."""

    def _receive(self, bytes_max: int) -> bytes:
        """Return the stored bytes and all received bytes."""
        try:
            data = self.socket.recv(bytes_max)
        except BlockingIOError:
            return self._rest  # an incomplete TLS record
        if not data:
            raise BenchError(f"the broker closed the connection of {type(self).__name__.lower()} {self.number}")
        return self._rest + data if self._rest else data


@dataclass(eq=False)
class Producer(_Peer):
    """Producer with at most ``window`` unconfirmed messages, until it has sent its quota or the time is over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        plan, number = self.plan, self.number
        queue, body_bytes = plan.queue(number), plan.body_bytes
        self._stream = (
            TransactedStream(queue, number, body_bytes, plan.transaction)
            if plan.transaction
            else SendStream(queue, number, body_bytes, is_persistent=plan.is_persistent)
        )
        self._window = plan.window
        self._quota = plan.quota(number)
        self._is_paced = plan.rate is not None
        self._sent_at = array("d")
        self.sent = 0
        self.confirmed = 0

    def begin(self) -> None:
        self._pump(time.monotonic())

    @property
    def next_due(self) -> float:
        if not self._is_paced or self._outbox.is_blocked or self.sent == self._quota:
            return math.inf
        due = self._go + self.plan.due(self.number, self.sent)
        return due if due < self._deadline else math.inf

    def send_due(self, now: float) -> None:
        """Send all messages that are due. The time stamp of each is the time at which it was due."""
        parts = []
        while (due := self.next_due) <= now:
            parts.append(self._stream.frames(self.sent, 1, int(due * MICROSECONDS)))
            self._sent_at.append(due)
            self.sent += 1
        if parts:
            self.shared.sent[self.number] = self.sent
            self._outbox.send(b"".join(parts))

    def writable(self) -> None:
        self._outbox.resume()
        self._pump(time.monotonic())

    def readable(self) -> None:
        data = self._receive(RECEIPT_READ_BYTES)
        end = data.rfind(b"\0") + 1
        self._rest = data[end:]
        if not end:
            return
        data = data[:end]
        numbers = read_receipts(data)
        if len(numbers) != data.count(b"\0"):
            _refuse_errors(data.split(b"\0"))
        self.confirmed = numbers[-1] + 1 if self.plan.transaction else self.confirmed + len(numbers)
        self.shared.confirmed[self.number] = self.confirmed
        now = time.monotonic()
        if now >= self._measured_from:
            sent_at = self._sent_at
            self.latencies.extend([now - sent_at[number] for number in numbers])
        self._pump(now)

    def _pump(self, now: float) -> None:
        if self._is_paced:
            self.send_due(now)
            return
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
        self.shared.sent[self.number] = self.sent
        self._outbox.send(frames)


@dataclass(eq=False)
class Consumer(_Peer):
    """Consumer that acknowledges in the mode of the plan: all messages of one read with one write."""

    order: OrderCheck | None

    def __post_init__(self) -> None:
        super().__post_init__()
        plan = self.plan
        self._mode = plan.acknowledgement
        self._acknowledgement = Acknowledgement(plan.endpoint.version, _SUBSCRIPTION)
        self._unsent: list[bytes] = []
        self.received = 0
        # Several brokers have different headers for the prefetch, and ignore the others. No receipt is requested,
        # because the first messages of a filled queue may arrive before it.
        headers = [
            ("id", _SUBSCRIPTION),
            ("destination", plan.queue(self.number)),
            ("ack", plan.acknowledgement),
            ("activemq.prefetchSize", str(plan.prefetch)),
            ("prefetch-count", str(plan.prefetch)),
        ]
        if plan.expected:
            self.socket.sendall(command_frame("SUBSCRIBE", headers))
        else:
            request(self.socket, "SUBSCRIBE", headers, "subscribed")

    def writable(self) -> None:
        self._outbox.resume()
        self._acknowledge()

    def readable(self) -> None:
        data = self._receive(MESSAGE_READ_BYTES)
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
        self.shared.received[self.number] = self.received
        if self.order is not None:
            self.order.add(frames)
        now = time.monotonic()
        if now >= self._measured_from:
            looked_at = frames if self.plan.rate else frames[::RECEIVE_SAMPLE]
            self.latencies.extend([now - sent_microseconds(frame) / MICROSECONDS for frame in looked_at])
        if identities:
            # The mode `client` is cumulative: the last acknowledgement includes all messages before it.
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
    """Run a worker process. At its end, it sends one WorkerReport through the pipe."""
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
        ends = math.inf if plan.count is not None else go + plan.warmup_seconds + plan.seconds
        for peer in peers.values():
            peer.schedule(go, go + (plan.warmup_seconds if plan.count is None else 0.0), ends)
            peer.begin()
            if isinstance(peer.socket, TlsSocket) and peer.socket.pending():
                peer.readable()  # these bytes arrived with the last answer, and epoll does not report them
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
    os._exit(0)  # a forked child must not run the parent's exit handlers or flush its buffers


def _turn(poll: select.epoll, peers: dict[int, Producer | Consumer], stop: Event, least_seconds: float) -> None:
    stopping: Callable[[], bool] = stop.is_set
    look_again = turned_at = 0.0
    paced = [peer for peer in peers.values() if isinstance(peer, Producer) and peer.plan.rate is not None]
    while True:
        for handle, events in _wait(poll, paced):
            peer = peers[handle]
            if events & _OUT:
                peer.writable()
            if events & ~_OUT:
                peer.readable()
        now = time.monotonic()
        for producer in paced:
            producer.send_due(now)
        if now < turned_at + least_seconds:
            time.sleep(turned_at + least_seconds - now)
        turned_at = time.monotonic()
        if now >= look_again:  # Event.is_set uses a semaphore, which is too expensive for each turn
            if stopping():
                return
            look_again = now + POLL_SECONDS


def _wait(poll: select.epoll, paced: Sequence[Producer]) -> list[tuple[int, int]]:
    """Return the events; none when a message is due. epoll has timeouts in milliseconds. select is more exact, but only
    for descriptors below SELECTED_MAX."""
    if not paced:
        return poll.poll(POLL_SECONDS)
    due = min(producer.next_due for producer in paced)
    seconds = max(0.0, min(POLL_SECONDS, due - time.monotonic()))
    if poll.fileno() >= SELECTED_MAX:
        return poll.poll(seconds)
    select.select([poll.fileno()], [], [], seconds)
    return poll.poll(0)
