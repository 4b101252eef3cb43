"""A topic: each message goes to every subscriber that is there, and to each durable subscription's own queue.

A plain subscriber that does not keep up holds back nobody: what waits for it is bounded, the oldest is dropped and
counted. A durable subscription is a queue of the store, with one consumer at a time, that lives on without it.
"""

from __future__ import annotations

from collections import deque

from broker.core.commands import AckMode, ClientError
from broker.core.queue import Delivery, Queue
from broker.core.settings import EngineSettings
from broker.core.subscription import Entry, Memory, Outlet, Subscription, volatile_entry
from store.records.message import Destination, Message


class TopicSubscription(Subscription):
    """A plain subscription of a topic. ``pending`` waits for credit or for its socket; ``dropped`` counts losses."""

    __slots__ = ("_bytes_max", "_messages_max", "dropped", "pending", "pending_bytes")

    def __init__(
        self,
        id: str,
        outlet: Outlet,
        ack: AckMode,
        prefetch: int,
        settings: EngineSettings,
        *,
        no_local: bool = False,
    ) -> None:
        super().__init__(id, outlet, ack, prefetch, no_local=no_local)
        self.pending: deque[Entry] = deque()
        self.pending_bytes = 0
        self.dropped = 0
        self._messages_max = settings.topic_pending_messages
        self._bytes_max = settings.topic_pending_bytes

    def hold(self, entry: Entry) -> None:
        """``entry`` waits; the oldest go when there are too many."""
        pending = self.pending
        pending.append(entry)
        self.pending_bytes += entry.weight
        # The newest is never dropped, however big it is.
        while len(pending) > 1 and (len(pending) > self._messages_max or self.pending_bytes > self._bytes_max):
            self.pending_bytes -= pending.popleft().weight
            self.dropped += 1

    def dispatch(self, now: int) -> list[Delivery]:
        """What waits and may go now. The outlet is asked once: call again until nothing comes."""
        deliveries: list[Delivery] = []
        pending = self.pending
        if not self.outlet.is_writable:
            return deliveries
        while pending and self.credit > 0 and len(deliveries) < _ROUND_MESSAGES:
            entry = pending.popleft()
            self.pending_bytes -= entry.weight
            expiration = entry.message.expiration
            if not expiration or expiration > now:
                deliveries.append(self.give(entry))
        return deliveries

    def give(self, entry: Entry) -> Delivery:
        """The next delivery. The caller has looked at credit and outlet."""
        self.tag = tag = self.tag + 1
        if not self.is_auto:
            self.unacked[tag] = entry
            self.credit -= 1
        return (self, tag, entry)


_ROUND_MESSAGES = 128


class DurableSubscription(Queue):
    """A queue that is fed by a topic for one named subscriber of one client id."""

    __slots__ = ("client_id", "name", "no_local_outlet", "subscription")

    def __init__(
        self,
        destination: Destination,
        owner: int,
        client_id: str,
        name: str,
        key: str,
        settings: EngineSettings,
        memory: Memory,
        *,
        unread: int = 0,
    ) -> None:
        super().__init__(destination, owner, settings, memory, unread=unread)
        self.client_id = client_id
        self.name = name
        self.subscription_key = key
        # Its consumer, from the moment of SUBSCRIBE; messages flow when it is in ``consumers``.
        self.subscription: Subscription | None = None
        self.no_local_outlet: Outlet | None = None

    def reserve(self, subscription: Subscription) -> None:
        """``subscription`` is the one consumer from now on. ClientError when there is one."""
        if self.subscription is not None:
            raise self.in_use()
        self.subscription = subscription
        subscription.queue = self
        self.no_local_outlet = subscription.outlet if subscription.no_local else None

    def in_use(self) -> ClientError:
        return ClientError(
            f"Durable subscription {self.name!r} of client {self.client_id!r} is in use",
            "It has one consumer at a time.",
        )

    def close(self, subscription: Subscription) -> None:
        super().close(subscription)
        self.subscription = None
        self.no_local_outlet = None


class Topic:
    """See the module."""

    __slots__ = ("destination", "dispatched", "dropped", "durables", "enqueued", "owners", "subscribers")

    # The store knows a topic only by its durable subscriptions.
    owner = 0

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.subscribers: list[TopicSubscription] = []
        self.durables: dict[str, DurableSubscription] = {}
        self.enqueued = 0
        self.dispatched = 0
        self.dropped = 0
        self.owners: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<Topic {self.destination}, {len(self.subscribers)} subscribers, {len(self.durables)} durable>"

    def open(self, subscription: TopicSubscription) -> None:
        subscription.topic = self
        self.subscribers.append(subscription)

    def close(self, subscription: TopicSubscription) -> None:
        """``subscription`` ends, with all that waited for it."""
        subscription.is_open = False
        self.subscribers.remove(subscription)
        self.dropped += subscription.dropped
        subscription.unacked.clear()
        subscription.pending.clear()

    def add_durable(self, durable: DurableSubscription) -> None:
        durable.topic = self
        assert durable.subscription_key is not None, "a durable subscription has a key"
        self.durables[durable.subscription_key] = durable
        self.owners = tuple(each.owner for each in self.durables.values())

    def remove_durable(self, durable: DurableSubscription) -> None:
        assert durable.subscription_key is not None, "a durable subscription has a key"
        del self.durables[durable.subscription_key]
        self.owners = tuple(each.owner for each in self.durables.values())

    def takers(self, origin: Outlet) -> tuple[int, ...]:
        """The ids of the durable subscriptions that take a message sent from ``origin``."""
        if any(durable.no_local_outlet is origin for durable in self.durables.values()):
            return tuple(each.owner for each in self.durables.values() if each.no_local_outlet is not origin)
        return self.owners

    def passed_over(self, origin: Outlet) -> list[str]:
        """The keys of the durable subscriptions that do not take a message sent from ``origin``."""
        return [key for key, each in self.durables.items() if each.no_local_outlet is origin]

    def publish(self, message: Message, origin: Outlet) -> list[Delivery]:
        """To every plain subscriber: delivered now, or kept waiting."""
        self.enqueued += 1
        deliveries: list[Delivery] = []
        if not self.subscribers:
            return deliveries
        entry = volatile_entry(message)
        for subscription in self.subscribers:
            outlet = subscription.outlet
            if subscription.no_local and outlet is origin:
                continue
            if subscription.pending or subscription.credit <= 0 or not outlet.is_writable:
                subscription.hold(entry)
            else:
                deliveries.append(subscription.give(entry))
        self.dispatched += len(deliveries)
        return deliveries

    @property
    def dropped_total(self) -> int:
        """Messages that subscribers lost because they did not keep up, also of those that left."""
        return self.dropped + sum(each.dropped for each in self.subscribers)
