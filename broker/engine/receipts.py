"""Receipts and visibility: when a message is stored, its sender gets the receipt, and it becomes visible in its queue
and to its subscribers. A message that is not stored becomes visible at once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tandemmq.broker.core.advisor import MessageEvent
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import Receipt
from tandemmq.broker.core.delivery import Outlet
from tandemmq.broker.core.operations import Target
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import HEAVY_BYTES, ITEMS, Pace, Work, pause
from tandemmq.broker.core.topics.topic import DurableSubscription, Topic
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.fan_out import NOBODY
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.scheduler import Scheduler
from tandemmq.store.operations import AddMessage, Atomic
from tandemmq.store.records.message import Message

log = logging.getLogger(__name__)


class Stored:
    """Completion of an AddMessage that a client sent: makes the message visible and sends the receipt.
    ``client``: None if no client waits and only one queue receives the message."""

    __slots__ = ("_arrivals", "_receipt", "client")

    def __init__(self, arrivals: Arrivals, client: Client | None, receipt: Receipt | None) -> None:
        self._arrivals = arrivals
        self._receipt = receipt
        self.client = client

    def durable(self, add: AddMessage) -> Work[None] | None:
        arrivals = self._arrivals
        queue = arrivals.by_owner.get(add.owners[0])
        client = self.client
        taken = 0
        if add.is_duplicate:
            arrivals.note_duplicate(add.message)
        elif queue is not None and queue.topic is None:
            queue.add(add.message, add.order_key, add.location, add.size)
            arrivals.touched[queue] = None
            if arrivals.tells_arrived:
                arrivals.arrived(add.message)
        else:
            taken = arrivals.published(add, origin_of(client))
        if self._receipt is not None and client is not None and client.is_there:
            client.session.receipt(self._receipt)
            client.connection.touch()
        return pause() if taken and arrivals.pace.is_full(taken) else None


@dataclass(slots=True, eq=False, repr=False)
class Commitment:
    """Completion of an Atomic that a client requested, or that was due (``client`` is None): makes its messages
    visible. ``volatile``: those that are not stored."""

    _arrivals: Arrivals
    client: Client | None
    receipt: Receipt | None
    volatile: list[tuple[Message, Target]]

    def durable(self, atomic: Atomic) -> Work[None]:
        arrivals = self._arrivals
        pace = arrivals.pace
        for part in atomic.operations:
            if not isinstance(part, AddMessage):
                continue
            if len(part.owners) > ITEMS and not part.is_duplicate:
                yield from arrivals.dispatcher.added(part, origin_of(self.client))
            elif pace.is_full(arrivals.added(part, origin_of(self.client))):
                yield
        yield from arrivals.committed(self, pace)


class Arrivals(Part):
    """Makes messages visible. Runs on the loop. ``scheduler``: holds messages that must wait for a time; None until
    there is such a message."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher) -> None:
        super().__init__(shared)
        self.scheduler: Scheduler | None = None
        self.duplicates = 0
        self.by_owner = shared.destinations.by_owner
        self.touched = dispatcher.touched
        self.tells_arrived = dispatcher.tells_arrived
        self.arrived = dispatcher.arrived
        self.pace = dispatcher.pace
        self.dispatcher = dispatcher
        self._fan_out = dispatcher.fan_out

    def show(self, client: Client | None, message: Message, target: Target, count: int = 1) -> None:
        """Make a message that is not stored visible; ``count``: number of messages that become visible together."""
        if isinstance(target, Queue):
            if not target.consumers:
                self.dispatcher.tell(MessageEvent.NO_CONSUMER, message, target.destination, None)
            if self.tells_arrived:
                self.arrived(message)
            target.add_volatile(message)
            self.dispatcher.dispatch(target)
            return
        self.show_to_subscribers(client, message, target, count)
        for durable in _keepers(target, message):
            self._show_to_durable(client, durable, message)

    def show_to_subscribers(self, client: Client | None, message: Message, topic: Topic, count: int) -> None:
        """Deliver a message of a topic to its plain subscribers; see ``show``."""
        if not topic.subscribers and not topic.durables:
            self.dispatcher.tell(MessageEvent.NO_CONSUMER, message, topic.destination, None)
        if self.tells_arrived:
            self.arrived(message)
        self._fan_out.publish(topic, message, origin_of(client), count=count)

    def _show_to_durable(self, client: Client | None, durable: DurableSubscription, message: Message) -> None:
        if not durable.is_dropped and durable.wants(message, None if client is None else client.id):
            if not durable.has_room(message):
                if isinstance(durable.topic, Topic):
                    durable.topic.dropped += 1
                return
            durable.add_volatile(message)
            self.dispatcher.dispatch(durable)

    def shown(self, client: Client | None, volatile: list[tuple[Message, Target]], pace: Pace) -> Work[None]:
        """Make several messages visible together, as ``show`` does, in steps."""
        count = len(volatile)
        for message, target in volatile:
            if isinstance(target, Queue):
                if not target.is_dropped:
                    self.show(client, message, target, count)
            else:
                self.show_to_subscribers(client, message, target, count)
                for durable in _keepers(target, message):
                    self._show_to_durable(client, durable, message)
                    if pace.is_over() if durable.is_expensive else pace.is_full():
                        yield
            if pace.is_over() if _is_expensive(target) else pace.is_full():
                yield

    def added(self, add: AddMessage, origin: Outlet) -> int:
        """Make a message that was stored together with others visible. Return the number of its receivers."""
        if add.is_duplicate:
            self.note_duplicate(add.message)
            return 0
        queue = self.by_owner.get(add.owners[0])
        if queue is None or queue.topic is not None:
            return self.published(add, origin)
        queue.add(add.message, add.order_key, add.location, add.size)
        self.touched[queue] = None
        if self.tells_arrived:
            self.arrived(add.message)
        return 1

    def note_duplicate(self, message: Message) -> None:
        """Count a message that its producer sent again: it was stored before, and is not delivered twice."""
        self.duplicates += 1
        log.debug("resent, and already stored: %s", message.message_id)

    def published(self, add: AddMessage, origin: Outlet) -> int:
        """Make a durable message of a topic visible, or schedule one that waits for a time. Subscriptions that were
        deleted meanwhile are left out. Return the number of receivers."""
        if self.scheduler is not None and add.owners[0] == self.scheduler.owner:
            self.scheduler.durable(add)
            return 1
        message = add.message
        if self.tells_arrived:
            self.arrived(message)
        topic = self._destinations.by_name.get(message.destination)
        count = len(add.owners)
        if isinstance(topic, Topic):
            self._fan_out.publish(topic, message, origin)
            count += len(topic.subscribers)
            if topic.expensive or add.size > HEAVY_BYTES:
                self.pace.read_clock_next()
        for owner in add.owners:
            queue = self.by_owner.get(owner)
            if queue is not None:
                queue.add(message, add.order_key, add.location, add.size)
                self.touched[queue] = None
        return count

    def committed(self, commitment: Commitment, pace: Pace) -> Work[None]:
        """Make visible, in steps, the messages of a durable Atomic that are not stored, and send the receipt."""
        client = commitment.client
        yield from self.shown(client, commitment.volatile, pace)
        if client is not None:
            client.send_receipt(commitment.receipt)


def _keepers(topic: Topic, message: Message) -> list[DurableSubscription]:
    """Return the durable subscriptions that may keep ``message``, which is not stored, in memory.

    A persistent message is not stored if no durable subscription took it when it arrived. A subscription that was
    created later must not keep it in memory, because the next master would not have it.
    """
    # prove: no-durable-in-memory-alone "[] if message.persistent else "
    return [] if message.persistent else list(topic.durables.values())


def _is_expensive(target: Target) -> bool:
    """Return whether a message to ``target`` may take a part of a step, because of its selectors."""
    return target.expensive > 0 if isinstance(target, Topic) else target.assignment is not None


def origin_of(client: Client | None) -> Outlet:
    return NOBODY if client is None else client.connection
