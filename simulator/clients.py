"""Clients as they should be written: they know both brokers, change to the other one when theirs is silent, send
messages without a receipt again with the same message id, and forget unacknowledged messages when a connection ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tandemmq.broker.core.commands import Ack, AckMode, Begin, Command, Commit, Send, Subscribe
from tandemmq.simulator.connection import Connection, Delivery, Frame, Receipt, Refusal
from tandemmq.simulator.kernel import World
from tandemmq.simulator.node import Node
from tandemmq.simulator.promises import Promises
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.message_ids import client_message_id

#: A broker that was silent for this long is given up; the silence is checked at this interval.
SILENCE_SECONDS = 4.0
CHECK_SECONDS = 1.0
RECONNECT_SECONDS = 0.3
REFUSED_SECONDS = 0.5
BODY = b"x" * 120


def queue_named(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


@dataclass(eq=False)
class Client:
    """Common part of producers and consumers: the connection, while there is one. ``stop`` it at the end."""

    world: World
    name: str
    nodes: Sequence[Node]
    promises: Promises
    connection: Connection | None = field(default=None, init=False)
    is_stopped: bool = field(default=False, init=False)
    _next: int = field(default=0, init=False)
    _heard_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._check()

    def stop(self) -> None:
        self.is_stopped = True
        self._give_up()

    def _check(self) -> None:
        if self.is_stopped:
            return
        self.world.after(CHECK_SECONDS, self._check)
        if self.connection is not None and self.world.now - self._heard_at > SILENCE_SECONDS:
            self._give_up()
        if self.connection is None:
            self._connect()

    def _give_up(self) -> None:
        if self.connection is not None:
            self.connection.give_up()
            self.connection = None
            self.lost_connection()

    def _connect(self) -> None:
        if self.is_stopped or self.connection is not None:
            return
        for _ in self.nodes:
            self._next = (self._next + 1) % len(self.nodes)
            self.connection = self.nodes[self._next].connect(self)
            if self.connection is not None:
                self._heard_at = self.world.now
                self.connected()
                return

    def send(self, *commands: Command) -> None:
        if self.connection is not None:
            self.connection.send(*commands)

    # frames of the connection

    def receive(self, frame: Frame) -> None:
        self._heard_at = self.world.now
        if isinstance(frame, Receipt):
            self.receipt(frame.name)
        elif isinstance(frame, Delivery):
            self.delivery(frame)
        elif isinstance(frame, Refusal):
            self.refused(frame)

    def hung_up(self) -> None:
        self.connection = None
        self.lost_connection()
        self.world.after(RECONNECT_SECONDS * self.world.random.random(), self._connect)

    # reactions of each kind of client

    def connected(self) -> None:
        """Begin on a new connection."""

    def lost_connection(self) -> None:
        """Note that the connection is over; missing receipts will not come."""

    def receipt(self, name: str) -> None:
        """Note a receipt: its operation is confirmed."""

    def delivery(self, delivery: Delivery) -> None:
        """Take a message."""

    def refused(self, refusal: Refusal) -> None:
        """Take an ERROR frame."""


@dataclass(eq=False, kw_only=True)
class Producer(Client):
    """Sends numbered messages: single ones to the first of its queues, or a few in a transaction to all of them in
    turn; several may wait for their receipts.

    ``interval_seconds`` between them. A share ``abandons`` of its transactions is not repeated when their outcome is
    unknown.
    """

    queues: Sequence[str]
    interval_seconds: float
    window: int
    transacted: float
    abandons: float
    is_producing: bool = field(default=True, init=False)
    _sequence: int = field(default=0, init=False)
    _units: int = field(default=0, init=False)
    _waiting: dict[str, tuple[str, ...]] = field(
        default_factory=dict, init=False
    )  # receipt -> ids, in order of sending

    def __post_init__(self) -> None:
        super().__post_init__()
        self._produce()

    @property
    def is_done(self) -> bool:
        """Return whether everything it sent has a receipt."""
        return not self._waiting

    def _produce(self) -> None:
        if not self.is_producing or self.is_stopped:
            return
        self.world.after(self.interval_seconds * (0.5 + self.world.random.random()), self._produce)
        if self.connection is None or len(self._waiting) >= self.window:
            return
        chance = self.world.random
        count = chance.randint(2, 4) if chance.random() < self.transacted else 1
        ids = []
        for number in range(count):
            self._sequence += 1
            message_id = client_message_id(self.name, self._sequence)
            queue = self.queues[number % len(self.queues)]
            self.promises.will_send(message_id, queue, self.name, self._sequence)
            ids.append(message_id)
        self._units += 1
        name = f"send {self._units} {' '.join(ids)}"
        self._waiting[name] = tuple(ids)
        self._send_unit(name)

    def _send_unit(self, name: str) -> None:
        ids = self._waiting.get(name)
        if ids is None:
            return
        messages = [
            Message(queue_named(self.promises.sent[message_id][0]), message_id, BODY, persistent=True)
            for message_id in ids
        ]
        if len(messages) == 1:
            self.send(Send(messages[0], None, name))
            return
        transaction = f"{name} {self.world.now}"
        sends = [Send(message, transaction) for message in messages]
        self.send(Begin(transaction), *sends, Commit(transaction, name))

    def connected(self) -> None:
        for name, ids in list(self._waiting.items()):
            if len(ids) > 1 and self.world.random.random() < self.abandons:
                del self._waiting[name]
                self.promises.gave_up(name, ids)
            else:
                self._send_unit(name)

    def receipt(self, name: str) -> None:
        self._waiting.pop(name, None)

    def refused(self, refusal: Refusal) -> None:
        name = refusal.receipt or ""
        ids = self._waiting.get(name)
        if ids is not None:
            self.promises.may_be_reordered(ids)
            self.world.after(REFUSED_SECONDS, partial(self._send_unit, name))


@dataclass(eq=False, kw_only=True)
class Consumer(Client):
    """Takes messages from one queue and acknowledges them after a while: each by itself, all up to one, or some in a
    transaction."""

    queue: str
    mode: AckMode = AckMode.INDIVIDUAL
    prefetch: int = 50
    think_seconds: float = 0.01
    transacted: float = 0.0
    _held: list[Delivery] = field(default_factory=list, init=False)
    _transactions: int = field(default=0, init=False)

    def connected(self) -> None:
        self.send(Subscribe("s", queue_named(self.queue), self.mode, prefetch=self.prefetch))

    def lost_connection(self) -> None:
        self._held = []

    def delivery(self, delivery: Delivery) -> None:
        self._held.append(delivery)
        connection = self.connection
        self.world.after(self.think_seconds * self.world.random.random(), lambda: self._acknowledge(connection))

    def _acknowledge(self, connection: Connection | None) -> None:
        if self.connection is not connection or not self._held:
            return
        chance = self.world.random
        is_transacted = chance.random() < self.transacted
        count = min(len(self._held), 3) if is_transacted or self.mode is AckMode.CLIENT else 1
        taken, self._held = self._held[:count], self._held[count:]
        ids = [delivery.message_id for delivery in taken]
        self.promises.will_acknowledge(ids)
        name = f"ack {' '.join(ids)}"
        if is_transacted:
            self._transactions += 1
            transaction = f"{self.name}-{self._transactions}"
            acks = [Ack("s", delivery.tag, transaction) for delivery in taken]
            self.send(Begin(transaction), *acks, Commit(transaction, name))
        else:
            self.send(Ack("s", taken[-1].tag, None, name))


@dataclass(eq=False, kw_only=True)
class Drain(Consumer):
    """Takes all messages that are left in a queue at the end, and notes their order."""

    _seen: set[str] = field(default_factory=set, init=False)  # on this connection
    _quiet_since: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._quiet_since = self.world.now
        super().__post_init__()

    @property
    def quiet_seconds(self) -> float:
        """Seconds for which the broker had no message; 0 without a broker."""
        return 0.0 if self.connection is None else self.world.now - self._quiet_since

    def connected(self) -> None:
        self._seen = set()
        self._quiet_since = self.world.now
        super().connected()

    def delivery(self, delivery: Delivery) -> None:
        self._quiet_since = self.world.now
        message_id = delivery.message_id
        if message_id in self._seen or message_id not in self.promises.drained.get(self.queue, ()):
            assert self.connection is not None, "a frame came from there"
            self.promises.drained_from(self.queue, message_id, self.connection.epoch)
        self._seen.add(message_id)
        super().delivery(delivery)
