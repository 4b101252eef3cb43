"""Clients as one should be written: they know both brokers, go to the other one when theirs is silent, send again what
has no receipt under the same message id, and forget what they had not acknowledged when a connection ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from broker.core.commands import Ack, AckMode, Begin, Command, Commit, Send, Subscribe
from broker.simulate.connection import Connection, Delivery, Frame, Receipt, Refusal
from broker.simulate.kernel import World
from broker.simulate.node import Node
from broker.simulate.promises import Promises
from store.records.message import Destination, DestinationKind, Message
from store.records.message_ids import client_message_id

#: A broker that was not heard of for so long is given up; it is looked at this often.
SILENCE_SECONDS = 4.0
LOOK_SECONDS = 1.0
RECONNECT_SECONDS = 0.3
REFUSED_SECONDS = 0.5
BODY = b"x" * 120


def queue_named(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


class Client:
    """What producers and consumers share: a connection, as long as there is one. ``stop`` it in the end."""

    def __init__(self, world: World, name: str, nodes: Sequence[Node], promises: Promises) -> None:
        self.world = world
        self.name = name
        self.promises = promises
        self.connection: Connection | None = None
        self.is_stopped = False
        self._nodes = nodes
        self._next = 0
        self._heard_at = 0.0
        self._look()

    def stop(self) -> None:
        self.is_stopped = True
        self._give_up()

    def _look(self) -> None:
        if self.is_stopped:
            return
        self.world.after(LOOK_SECONDS, self._look)
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
        for _ in self._nodes:
            self._next = (self._next + 1) % len(self._nodes)
            self.connection = self._nodes[self._next].connect(self)
            if self.connection is not None:
                self._heard_at = self.world.now
                self.connected()
                return

    def send(self, *commands: Command) -> None:
        if self.connection is not None:
            self.connection.send(*commands)

    # what the connection says

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

    # what kinds of clients make of it

    def connected(self) -> None:
        """A new connection."""

    def lost_connection(self) -> None:
        """It is over; receipts that did not come will not come."""

    def receipt(self, name: str) -> None:
        """What asked for this receipt holds."""

    def delivery(self, delivery: Delivery) -> None:
        """A message."""

    def refused(self, refusal: Refusal) -> None:
        """An ERROR frame."""


class Producer(Client):
    """Sends numbered messages, alone to the first of its queues or a few in a transaction to all of them by turns, some
    at a time without a receipt yet.

    ``interval_seconds`` between them. Of its transactions ``abandons`` (a share) are not asked for again when their
    outcome is unknown.
    """

    def __init__(
        self,
        world: World,
        name: str,
        nodes: Sequence[Node],
        promises: Promises,
        *,
        queues: Sequence[str],
        interval_seconds: float,
        window: int,
        transacted: float,
        abandons: float,
    ) -> None:
        self._queues = queues
        self._interval = interval_seconds
        self._window = window
        self._transacted = transacted
        self._abandons = abandons
        self._sequence = 0
        self._units = 0
        self._waiting: dict[str, tuple[str, ...]] = {}  # receipt -> message ids, in order of sending
        self.is_producing = True
        super().__init__(world, name, nodes, promises)
        self._produce()

    @property
    def is_done(self) -> bool:
        """Whether everything it sent has its receipt."""
        return not self._waiting

    def _produce(self) -> None:
        if not self.is_producing or self.is_stopped:
            return
        self.world.after(self._interval * (0.5 + self.world.random.random()), self._produce)
        if self.connection is None or len(self._waiting) >= self._window:
            return
        chance = self.world.random
        count = chance.randint(2, 4) if chance.random() < self._transacted else 1
        ids = []
        for number in range(count):
            self._sequence += 1
            message_id = client_message_id(self.name, self._sequence)
            queue = self._queues[number % len(self._queues)]
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
            if len(ids) > 1 and self.world.random.random() < self._abandons:
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


class Consumer(Client):
    """Takes from one queue and acknowledges after a while: each by itself, all up to one, or some in a transaction."""

    def __init__(
        self,
        world: World,
        name: str,
        nodes: Sequence[Node],
        promises: Promises,
        *,
        queue: str,
        mode: AckMode,
        prefetch: int,
        think_seconds: float,
        transacted: float,
    ) -> None:
        self._queue = queue
        self._mode = mode
        self._prefetch = prefetch
        self._think = think_seconds
        self._transacted = transacted
        self._held: list[Delivery] = []
        self._transactions = 0
        super().__init__(world, name, nodes, promises)

    def connected(self) -> None:
        self.send(Subscribe("s", queue_named(self._queue), self._mode, prefetch=self._prefetch))

    def lost_connection(self) -> None:
        self._held = []

    def delivery(self, delivery: Delivery) -> None:
        self._held.append(delivery)
        connection = self.connection
        self.world.after(self._think * self.world.random.random(), lambda: self._acknowledge(connection))

    def _acknowledge(self, connection: Connection | None) -> None:
        if self.connection is not connection or not self._held:
            return
        chance = self.world.random
        is_transacted = chance.random() < self._transacted
        count = min(len(self._held), 3) if is_transacted or self._mode is AckMode.CLIENT else 1
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


class Drain(Consumer):
    """Takes all that is left in a queue, in the end, and tells in which order."""

    def __init__(self, world: World, name: str, nodes: Sequence[Node], promises: Promises, queue: str) -> None:
        self._seen: set[str] = set()  # on this connection
        self._quiet_since = world.now
        super().__init__(
            world,
            name,
            nodes,
            promises,
            queue=queue,
            mode=AckMode.INDIVIDUAL,
            prefetch=50,
            think_seconds=0.01,
            transacted=0.0,
        )

    @property
    def quiet_seconds(self) -> float:
        """For so long the broker had nothing to give; 0 without a broker."""
        return 0.0 if self.connection is None else self.world.now - self._quiet_since

    def connected(self) -> None:
        self._seen = set()
        self._quiet_since = self.world.now
        super().connected()

    def delivery(self, delivery: Delivery) -> None:
        self._quiet_since = self.world.now
        message_id = delivery.message_id
        if message_id in self._seen or message_id not in self.promises.drained.get(self._queue, ()):
            self.promises.drained_from(self._queue, message_id)
        self._seen.add(message_id)
        super().delivery(delivery)
