"""A load of ``plan.count`` persistent OpenWire messages, like that of a JMS client: one process sends, and one
acknowledges each message individually. No Java: the broker's codec encodes the frames."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.mqtt_load import PairResult, run_pair
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED, WireFormat
from tandemmq.broker.protocols.openwire.frames import FrameCutter
from tandemmq.broker.protocols.openwire.types import ConnectionId, ConsumerId, MessageId, ProducerId, SessionId
from tandemmq.broker.protocols.openwire.wireformat import our_info
from tandemmq.store.records.acknowledgements import AckType
from tandemmq.store.records.message import Destination, DestinationKind

VERSION = 12
READ_BYTES = 1 << 18
FRAME_BYTES_MAX = 1 << 26
TIMEOUT_SECONDS = 30.0


def run_jms_load(pid: int, plan: LoadPlan) -> PairResult:
    """Run a load to its end. ``pid``: pid of the broker. With a window of 1, a producer waits for the response to each
    message (default of JMS); otherwise it requests no responses (``useAsyncSend``). Raises BenchError if a message does
    not arrive."""
    is_awaited = plan.window == 1
    return run_pair(pid, plan, (partial(_consume), partial(_produce, is_awaited)), is_confirmed=is_awaited)


class JmsConnection:
    """Connection with one session. Raises BenchError or OSError."""

    def __init__(self, plan: LoadPlan, name: str) -> None:
        endpoint = plan.endpoint
        self.id = f"ID:bench-{os.getpid()}-{time.time_ns()}-{name}:1"
        self.sock = socket.create_connection((endpoint.host, endpoint.port), TIMEOUT_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wire: WireFormat = STORED
        self._cutter = FrameCutter(FRAME_BYTES_MAX)
        self.say(our_info(max_frame_size=FRAME_BYTES_MAX, provider_version="", version=VERSION, inactivity_ms=0))
        self.wire = WireFormat(VERSION)
        self.ask(schema.ConnectionInfo(1, True, ConnectionId(self.id), self.id))
        self.ask(schema.SessionInfo(2, True, SessionId(self.id, 1)))

    def say(self, *commands: schema.Command) -> None:
        self.sock.sendall(b"".join(map(self.wire.encode, commands)))

    def ask(self, command: schema.Command) -> None:
        """Send a command, and wait for its response."""
        self.say(command)
        while True:
            for heard in self.hear():
                if isinstance(heard, schema.Response):
                    return

    def hear(self) -> Iterator[schema.Command]:
        """Read from the socket, and yield the received commands. Exhaust the iterator."""
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise BenchError("the broker closed the connection")
        self._cutter.feed(data)
        while (frame := self._cutter.next_frame()) is not None:
            heard = self.wire.decode(frame if isinstance(frame, bytes) else frame.getvalue())
            if isinstance(heard, schema.ExceptionResponse | schema.ConnectionError):
                raise BenchError(f"the broker says: {heard.exception}")
            yield heard


def _queue(plan: LoadPlan, number: int) -> Destination:
    return Destination(DestinationKind.QUEUE, plan.queue(number).removeprefix("/queue/"))


def _consume(plan: LoadPlan, counts: Any, ready: Any, is_over: Any) -> None:
    """Acknowledge all messages, without responses."""
    peers: dict[int, JmsConnection] = {}
    poll = select.poll()
    for number in range(plan.consumers):
        peer = JmsConnection(plan, f"consumer-{number}")
        consumer = ConsumerId(peer.id, 1, 1)
        queue = _queue(plan, number)
        peer.ask(schema.ConsumerInfo(3, True, consumer, destination=queue, prefetch_size=plan.prefetch))
        peers[peer.sock.fileno()] = peer
        poll.register(peer.sock, select.POLLIN)
    ready.wait(plan.stall_seconds)
    received = 0
    while not is_over.is_set():
        time.sleep(plan.least_turn_seconds)
        for descriptor, _event in poll.poll(100):
            peer = peers[descriptor]
            acks = []
            for heard in peer.hear():
                if isinstance(heard, schema.MessageDispatch) and heard.message is not None:
                    id = heard.message.message_id
                    received += 1
                    ack = schema.MessageAck(3 + received, False, heard.destination, None, heard.consumer_id)
                    ack.ack_type = AckType.STANDARD
                    ack.first_message_id = ack.last_message_id = id
                    ack.message_count = 1
                    acks.append(ack)
            if acks:
                peer.say(*acks)
            counts[2] = received
    for peer in peers.values():  # all commands sent before are carried out then
        peer.ask(schema.RemoveInfo(3, True, ConsumerId(peer.id, 1, 1)))


def _produce(is_awaited: bool, plan: LoadPlan, counts: Any, ready: Any, is_over: Any) -> None:
    """Send the messages, and read the responses."""
    assert plan.count is not None
    peers: dict[int, JmsConnection] = {}
    poll = select.poll()
    for number in range(plan.producers):
        peer = JmsConnection(plan, f"producer-{number}")
        peer.ask(schema.ProducerInfo(3, True, ProducerId(peer.id, 1, 1), _queue(plan, number)))
        peers[peer.sock.fileno()] = peer
        poll.register(peer.sock, select.POLLIN)
    body = bytes(plan.body_bytes)
    ready.wait(plan.stall_seconds)
    sent = confirmed = 0
    free = dict.fromkeys(peers, plan.window)
    while not is_over.is_set():
        for number, (descriptor, peer) in enumerate(peers.items()):
            messages = []
            for _ in range(min(free[descriptor], plan.count - sent)):
                sent += 1
                producer = ProducerId(peer.id, 1, 1)
                messages.append(
                    schema.ActiveMQBytesMessage(
                        3 + sent,
                        is_awaited,
                        producer_id=producer,
                        destination=_queue(plan, number),
                        message_id=MessageId(None, producer, sent, 0),
                        persistent=True,
                        priority=4,
                        timestamp=time.time_ns() // 1_000_000,
                        content=body,
                    )
                )
            if messages:
                peer.say(*messages)
                if is_awaited:
                    free[descriptor] -= len(messages)
        counts[0] = sent
        time.sleep(plan.least_turn_seconds)
        for descriptor, _event in poll.poll(100 if is_awaited else 0):
            answers = sum(isinstance(heard, schema.Response) for heard in peers[descriptor].hear())
            free[descriptor] += answers
            confirmed += answers
        counts[1] = confirmed
