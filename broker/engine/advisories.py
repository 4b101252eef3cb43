"""Publish advisories about events in the broker. Without a listener no advisory is built."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tandemmq.broker.core.access import Operation
from tandemmq.broker.core.advisor import (
    Advisor,
    AdvisoryRights,
    Audience,
    ConnectionFact,
    ConsumerFact,
    DestinationFact,
    DurableFact,
    Fact,
    MasterFact,
    MessageEvent,
    MessageFact,
    ProducerFact,
    Subject,
    subjects,
)
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import Subscribe
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.delivery import Outlet, Subscription, volatile_entry
from tandemmq.broker.core.names import Pattern, is_advisory
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.topics.durables import DurableSubscriber
from tandemmq.broker.core.topics.topic import Topic, TopicSubscription
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.fan_out import NOBODY
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.store.records.message import Destination, DestinationKind, Message

log = logging.getLogger(__name__)

_DESTINATION_SUBJECTS = {
    Subject.QUEUES: DestinationKind.QUEUE,
    Subject.TOPICS: DestinationKind.TOPIC,
    Subject.TEMP_QUEUES: DestinationKind.TEMP_QUEUE,
    Subject.TEMP_TOPICS: DestinationKind.TEMP_TOPIC,
}


# Cost of publishing one advisory, in items of a step.
_TOLD = 8


class Advising(Part):
    """Publishes advisories to their listeners. ``advisor`` None: none is published, because no protocol reads them."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher, advisor: Advisor | None) -> None:
        super().__init__(shared)
        self._rights = AdvisoryRights(self._access)
        self._dispatcher = dispatcher
        self._fan_out = dispatcher.fan_out
        self._advisor = advisor
        self._audience = Audience()
        self._consumers: dict[Subscription, tuple[ConsumerFact, ...]] = {}
        self._listening: dict[Client, dict[Subscription, tuple[Destination, ...]]] = {}
        self._clients: dict[Client, ConnectionFact] = {}
        self._by_outlet: dict[Outlet, Client] = {}

    @property
    def has_listeners(self) -> bool:
        """True if there is any listener: checked before a fact is made."""
        return self._audience.is_there

    def tell(self, fact: Fact, cause: Outlet | None = None) -> None:
        """Publish a fact that the client of ``cause`` caused, and charge the time to it. An error is logged and does
        not affect that client."""
        if not self._audience.is_there or self._advisor is None:
            return
        try:
            self._tell(self._advisor, fact, cause)
        except Exception:
            log.exception("an advisory %s", ERROR_OF_BROKER)

    def _tell(self, advisor: Advisor, fact: Fact, cause: Outlet | None) -> None:
        audience = self._audience
        name = advisor.topic(fact)
        if name is None or not audience.has_listener(name.name):
            return
        topic, listeners = self._destinations.listeners_of(name)
        if not self._rights.are_there:
            if listeners:
                self._fan_out.publish(topic, advisor.message(fact, name), NOBODY, listeners, payer=cause)
            return
        for shown, those in self._divided(fact, listeners):
            if those:
                self._fan_out.publish(topic, advisor.message(shown, name), NOBODY, those, payer=cause)

    def _divided(
        self, fact: Fact, listeners: Iterable[TopicSubscription]
    ) -> Iterator[tuple[Fact, list[TopicSubscription]]]:
        """Yield ``fact`` with the listeners that get all of it, then the reduced fact with those that get less."""
        whole, rest, less = list[TopicSubscription](), list[TopicSubscription](), fact
        for each in listeners:
            client = self._by_outlet.get(each.outlet)
            shown = None if client is None else self._rights.shown(client, fact)
            if shown is fact:
                whole.append(each)
            elif shown is not None:
                rest.append(each)
                less = shown
        yield fact, whole
        yield less, rest

    def given(self, outlet: Outlet, temporary: Destination) -> None:
        """Announce a temporary destination before its name is delivered to a client as the address of a reply. Java
        clients send only to temporary destinations that were announced."""
        owner = self._rights.owners.get(temporary)
        client = self._by_outlet.get(outlet)
        advisor = self._advisor
        if owner is None or client is None or advisor is None:
            return
        listening = self._listening.get(client)
        if listening is None:
            return
        fact = DestinationFact(temporary, True, name_of(owner))
        name = advisor.topic(fact)
        if name is None or self._rights.may_know(client, temporary):
            return
        self._rights.give(client, temporary)
        topic, listeners = self._destinations.listeners_of(name)
        mine = [each for each in listeners if each in listening]
        self._dispatcher.deliver(topic.give(topic.enter(advisor.message(fact, name)), NOBODY, mine))

    # ---- messages

    def message(
        self, event: MessageEvent, message: Message, destination: Destination, subscription: Subscription | None
    ) -> None:
        """Publish an advisory about a message, if the policy of the destination enables it; see dispatcher.Tell."""
        if not self._audience.is_there or is_advisory(destination):
            return
        policy = self._policies.of(destination)
        if (
            (event is MessageEvent.DELIVERED and not policy.advisory_for_delivery)
            or (event is MessageEvent.DISPATCHED and not policy.advisory_for_dispatched)
            or (event is MessageEvent.CONSUMED and not policy.advisory_for_consumed)
            or (event is MessageEvent.DISCARDED and not policy.advisory_for_discarding_messages)
            or (event is MessageEvent.NO_CONSUMER and (not policy.send_advisory_if_no_consumers or message.persistent))
        ):
            return
        # A subscription for which no ConsumerFact was published is not named.
        facts = self._consumers.get(subscription) if subscription is not None else None
        consumer = (facts[0].connection_id, facts[0].id) if facts else None
        discarded = subscription.dropped if isinstance(subscription, TopicSubscription) else 0
        self.tell(MessageFact(event, message, destination, consumer, discarded, policy.include_body_for_advisory))

    # ---- clients, destinations, producers, subscriptions

    def connected(self, client: Client, login: str | None) -> None:
        connection = client.connection
        fact = ConnectionFact(name_of(client), True, client.id, login, connection.peer, client.principal.name)
        self._clients[client] = fact
        self._by_outlet[connection] = client
        self.tell(fact, connection)

    def disconnected(self, client: Client) -> None:
        fact = self._clients.pop(client, None)
        self._rights.left(client)
        self._by_outlet.pop(client.connection, None)
        if fact is not None:
            self.tell(replace(fact, is_there=False), client.connection)

    def owns(self, client: Client, temporary: Destination) -> None:
        """Record the owner of a temporary destination that is about to begin, until it ends."""
        self._rights.owners[temporary] = client

    def began(self, destination: Destination) -> None:
        """Publish that a destination was created."""
        if self._audience.is_there and not is_advisory(destination):
            self._publish_change(destination, is_there=True)

    def ended(self, destination: Destination) -> None:
        """Publish that a destination was deleted, or did not begin."""
        if self._audience.is_there and not is_advisory(destination):
            self._publish_change(destination, is_there=False)
        self._rights.ended(destination)

    def _publish_change(self, destination: Destination, *, is_there: bool) -> None:
        owner = self._rights.owners.get(destination)
        fact = DestinationFact(destination, is_there, self._owner_of(destination))
        self.tell(fact, None if owner is None else owner.connection)

    def _owner_of(self, destination: Destination) -> str | None:
        owner = self._rights.owners.get(destination)
        return None if owner is None else name_of(owner)

    def producer(self, client: Client, id: str, destination: Destination | None, count: int, *, is_there: bool) -> None:
        """Publish that a producer started or ended. ``count``: producers that its destination has now."""
        if self._audience.is_there:
            fact = ProducerFact(name_of(client), id, destination, is_there, 0 if destination is None else count)
            self.tell(fact, client.connection)

    def subscribed(
        self, client: Client, command: Subscribe, subscription: Subscription, parts: tuple[Destination, ...]
    ) -> Work[None]:
        """Publish that a subscription began. If it listens to advisories, send it their present state."""
        facts = tuple(
            ConsumerFact(
                name_of(client),
                command.id,
                part,
                True,
                0,
                client.id,
                command.durable_name,
                command.selector,
                subscription.prefetch,
                command.priority,
                command.is_browser,
                command.is_exclusive,
                command.is_retroactive,
                command.no_local,
            )
            for part in parts
            if not is_advisory(part)
        )
        if facts:
            self._consumers[subscription] = facts
            for fact in facts:
                self.tell(replace(fact, count=self._consumers_of(fact.destination)), client.connection)
        if parts[0].is_topic and any(map(is_advisory, parts)) and isinstance(subscription, TopicSubscription):
            self._audience.joined(parts)
            self._listening.setdefault(client, {})[subscription] = parts
            yield from self._replay(client, subscription, parts)

    def unsubscribed(self, subscription: Subscription) -> None:
        """Publish that a subscription ended. An advisory topic exists as long as a subscription names it."""
        client = self._by_outlet.get(subscription.outlet)
        listening = None if client is None else self._listening.get(client)
        if client is not None and listening is not None and subscription in listening:
            parts = listening.pop(subscription)
            if not listening:
                del self._listening[client]
            self._audience.left(parts)
            for part in parts:
                if is_advisory(part) and not self._audience.names(part.name):
                    self._destinations.remove_unnamed(part)
        for fact in self._consumers.pop(subscription, ()):
            ended = replace(fact, is_there=False, count=self._consumers_of(fact.destination))
            self.tell(ended, subscription.outlet)

    def durable_deleted(self, client: Client, durable: DurableSubscriber) -> None:
        """Publish that a client deleted its durable subscription."""
        if self._audience.is_there:
            count = self._consumers_of(durable.subscribed)
            fact = DurableFact(name_of(client), durable.client_id, durable.name, durable.subscribed, count)
            self.tell(fact, client.connection)

    def _consumers_of(self, destination: Destination) -> int:
        target = self._destinations.by_name.get(destination)
        if isinstance(target, Queue):
            return len(target.users)
        return len(target.subscribers) if isinstance(target, Topic) else 0

    # ---- present state

    def _replay(self, client: Client, subscription: TopicSubscription, parts: tuple[Destination, ...]) -> Work[None]:
        """Send the present state to ``subscription`` alone (AdvisoryBroker.addConsumer)."""
        advisor = self._advisor
        if advisor is None:
            return
        patterns = [Pattern(part.name) for part in parts]
        wanted = {subject for part in parts for subject in subjects(part)}
        pace = Pace()
        for subject in wanted:
            for fact in self._present(subject):
                if fact is not None:
                    topic = advisor.topic(fact)
                    is_wanted = topic is not None and any(pattern.matches(topic.name) for pattern in patterns)
                    shown = self._shown(client, topic, fact) if topic is not None and is_wanted else None
                    if topic is not None and shown is not None:
                        lost = subscription.hold(volatile_entry(advisor.message(shown, topic)))
                        target = self._destinations.by_name.get(topic)
                        if isinstance(target, Topic):  # as in fan_out: a topic that no client named counts nothing
                            target.dropped += lost
                if pace.is_full(1 if fact is None else _TOLD * len(patterns)):
                    self._dispatcher.dispatch_pending(subscription)
                    yield
                    if not subscription.is_open:
                        return
        self._dispatcher.dispatch_pending(subscription)

    def _shown(self, client: Client, topic: Destination, fact: Fact) -> Fact | None:
        if self._rights.are_there and not self._access.may(client.principal, Operation.READ, topic):
            return None
        return self._rights.shown(client, fact)

    def _present(self, subject: Subject) -> Iterator[Fact | None]:
        """Yield the present facts of ``subject``, each as it is at that moment, and None for an item without a fact."""
        if subject is Subject.CONNECTIONS:
            yield from list(self._clients.values())
        elif subject is Subject.PRODUCERS:
            yield from self._present_producers()
        elif subject is Subject.CONSUMERS:
            for facts in list(self._consumers.values()):
                for fact in facts:
                    yield replace(fact, count=self._consumers_of(fact.destination))
        elif subject is Subject.MASTER:
            yield MasterFact()
        else:
            kind = _DESTINATION_SUBJECTS[subject]
            for destination in self._destinations.names():
                is_reported = destination.kind is kind and not is_advisory(destination)
                is_there = is_reported and self._destinations.exists(destination)
                yield DestinationFact(destination, True, self._owner_of(destination)) if is_there else None

    def _present_producers(self) -> Iterator[Fact | None]:
        counts: Counter[Destination | None] = Counter()
        for client in list(self._clients):
            counts.update(client.producers.values())
            yield None
        for client in list(self._clients):
            for id, destination in list(client.producers.items()):
                if destination is not None:
                    yield ProducerFact(name_of(client), id, destination, True, counts[destination])


def name_of(client: Client) -> str:
    """Return the name of a client's connection: the name that the client chose, if its protocol has one."""
    return client.connection_id or client.connection.id
