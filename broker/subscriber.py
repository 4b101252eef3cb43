"""SUBSCRIBE and UNSUBSCRIBE: which queue or topic a subscription takes part in, and what the store must know of it."""

from __future__ import annotations

from typing import Protocol

from broker.core.client import Client, Waiting
from broker.core.commands import ClientError, Subscribe, Unsubscribe
from broker.core.destinations import Destinations
from broker.core.queue import Queue
from broker.core.settings import EngineSettings
from broker.core.subscription import Subscription
from broker.core.topic import DurableSubscription, TopicSubscription
from broker.dispatcher import Dispatcher
from store.operations import AddSubscription, Operation, Owner, RemoveOwner
from store.records.commands import encode_subscription, encode_unsubscribe, subscription_key
from store.records.message import Destination, DestinationKind


class Store(Protocol):
    """What the engine asks of a store (store.store.Store, store.memory.MemoryStore)."""

    epoch: int

    @property
    def is_congested(self) -> bool: ...

    @property
    def is_full(self) -> bool: ...

    @property
    def full_reason(self) -> str: ...

    def may_speak(self) -> bool: ...

    def look_soon(self) -> None: ...

    def queue(self, destination: Destination) -> int: ...

    def subscription(self, client_id: str, name: str, destination: Destination) -> int: ...

    def append(self, operation: Operation) -> None: ...

    def owners(self) -> list[Owner]: ...


class Opening:
    """Context of a new durable subscription's AddSubscription."""

    __slots__ = ("client", "receipt", "subscription")

    def __init__(self, client: Client, receipt: str | None, subscription: Subscription) -> None:
        self.client = client
        self.receipt = receipt
        self.subscription = subscription


class Subscriber:
    """See the module."""

    def __init__(
        self, store: Store, destinations: Destinations, dispatcher: Dispatcher, settings: EngineSettings
    ) -> None:
        self._store = store
        self._append = store.append
        self._destinations = destinations
        self._dispatcher = dispatcher
        self._settings = settings

    def subscribe(self, client: Client, command: Subscribe) -> None:
        """Open a subscription. A new durable one is served, and its receipt told, once the store has it."""
        if command.id in client.subscriptions:
            raise ClientError(f"Subscription {command.id!r} exists already", "Each needs its own id.")
        settings = self._settings
        if len(client.subscriptions) >= settings.subscriptions_max:
            raise ClientError(f"More than {settings.subscriptions_max} subscriptions (subscriptions_max)")
        destination = command.destination
        if command.durable_name is not None:
            self._subscribe_durable(client, command, command.durable_name)
            return
        if destination.is_topic:
            prefetch = self._prefetch(command, settings.topic_prefetch)
            plain = TopicSubscription(
                command.id, client.connection, command.ack, prefetch, settings, no_local=command.no_local
            )
            self._destinations.topic(destination).open(plain)
            client.subscriptions[command.id] = plain
            client.tell_receipt(command.receipt)
            return
        queue = self._destinations.queue(destination)
        prefetch = self._prefetch(command, settings.queue_prefetch)
        subscription = Subscription(command.id, client.connection, command.ack, prefetch)
        client.subscriptions[command.id] = subscription
        # The receipt precedes the first message (ActiveMQ).
        client.tell_receipt(command.receipt)
        queue.open(subscription)
        self._dispatcher.dispatch(queue)

    def _prefetch(self, command: Subscribe, default: int) -> int:
        """At least one: a consumer that can never get anything is a mistake."""
        wanted = default if command.prefetch is None else command.prefetch
        return max(1, min(wanted, self._settings.prefetch_max))

    def _subscribe_durable(self, client: Client, command: Subscribe, name: str) -> None:
        destination = command.destination
        if destination.kind is not DestinationKind.TOPIC:
            raise ClientError(f"{destination} is no topic", "Only a topic has durable subscriptions.")
        client_id = client.client_id()
        durable = self._destinations.durables.get(subscription_key(client_id, name))
        is_new = durable is None
        if durable is not None and durable.destination != destination:
            # As JMS wants it: another destination under the same name is another subscription.
            self._check_unused(durable)
            self._delete(durable, None)
            is_new = True
        if is_new:
            owner = self._store.subscription(client_id, name, destination)
            durable = self._destinations.add_durable(destination, owner, client_id, name)
        assert durable is not None, "it was found or made"
        prefetch = self._prefetch(command, self._settings.durable_topic_prefetch)
        subscription = Subscription(command.id, client.connection, command.ack, prefetch, no_local=command.no_local)
        durable.reserve(subscription)
        client.subscriptions[command.id] = subscription
        if is_new:
            payload = encode_subscription(destination, client_id, name, no_local=command.no_local)
            self._append(AddSubscription(durable.owner, payload, Opening(client, command.receipt, subscription)))
            return
        client.tell_receipt(command.receipt)
        durable.open(subscription)
        self._dispatcher.dispatch(durable)

    def unsubscribe(self, client: Client, command: Unsubscribe) -> None:
        """Close a subscription, delete a durable one, or both in one step (ActiveMQ's clients need two)."""
        durable = None
        if command.durable_name is not None:
            durable = self._destinations.durables.get(subscription_key(client.client_id(), command.durable_name))
            if durable is None:
                raise ClientError(
                    f"No durable subscription {command.durable_name!r} of client {client.id!r}", is_fatal=False
                )
            if durable.subscription is not None and durable.subscription.outlet is not client.connection:
                self._check_unused(durable)
        queue = None
        if command.id is not None:
            subscription = client.subscriptions.pop(command.id, None)
            if subscription is None:
                raise ClientError(f"No subscription matched {command.id!r}", is_fatal=False)
            queue = self.close(subscription)
        if durable is not None:
            if durable.subscription is not None:
                client.subscriptions.pop(durable.subscription.id, None)
                durable.close(durable.subscription)
            self._delete(durable, (client, command.receipt))
            return
        client.tell_receipt(command.receipt)
        if queue is not None:
            self._dispatcher.dispatch(queue)

    def _check_unused(self, durable: DurableSubscription) -> None:
        if durable.subscription is not None:
            raise durable.in_use()

    def _delete(self, durable: DurableSubscription, waiting: Waiting | None) -> None:
        self._destinations.remove_durable(durable)
        payload = encode_unsubscribe(durable.destination, durable.client_id, durable.name)
        self._append(RemoveOwner(durable.owner, payload, waiting))

    def close(self, subscription: Subscription) -> Queue | None:
        """``subscription`` ends. Returns the queue to which its unacknowledged messages went back, to be dispatched."""
        queue = subscription.queue
        if queue is not None:
            queue.close(subscription)
        elif isinstance(subscription, TopicSubscription) and subscription.topic is not None:
            subscription.topic.close(subscription)
        return queue
