"""Who hears of what happens in the broker: advisories, published to those who listen and built for nobody else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from broker.core.advisor import (
    Advisor,
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
from broker.core.client import Client
from broker.core.commands import Subscribe
from broker.core.destinations import Destinations
from broker.core.durables import DurableSubscriber
from broker.core.names import Pattern, is_advisory
from broker.core.policies import Policies
from broker.core.queue import Queue
from broker.core.subscription import Subscription, volatile_entry
from broker.core.topic import Topic, TopicSubscription
from broker.dispatcher import NOBODY, Dispatcher
from broker.fan_out import FanOut
from store.records.message import Destination, DestinationKind, Message

_DESTINATION_SUBJECTS = {
    Subject.QUEUES: DestinationKind.QUEUE,
    Subject.TOPICS: DestinationKind.TOPIC,
    Subject.TEMP_QUEUES: DestinationKind.TEMP_QUEUE,
    Subject.TEMP_TOPICS: DestinationKind.TEMP_TOPIC,
}


class Advising:
    """See the module. ``advisor`` None: nothing is told (there is no protocol that would read it)."""

    def __init__(
        self,
        destinations: Destinations,
        dispatcher: Dispatcher,
        fan_out: FanOut,
        advisor: Advisor | None,
        policies: Policies,
    ) -> None:
        self._policies = policies
        self._destinations = destinations
        self._dispatcher = dispatcher
        self._fan_out = fan_out
        self._advisor = advisor
        self._audience = Audience()
        self._consumers: dict[Subscription, tuple[ConsumerFact, ...]] = {}
        self._listening: dict[Subscription, tuple[Destination, ...]] = {}
        self._clients: dict[Client, ConnectionFact] = {}

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens to anything: asked before a fact is made."""
        return self._audience.is_there

    def tell(self, fact: Fact) -> None:
        """Something happened."""
        audience = self._audience
        advisor = self._advisor
        if not audience.is_there or advisor is None:
            return
        name = advisor.topic(fact)
        if name is None or not audience.hears(name.name):
            return
        topic = self._destinations.topic(name)
        self._fan_out.publish(topic, advisor.message(fact, name), NOBODY)

    # ---- messages

    def message(
        self, event: MessageEvent, message: Message, destination: Destination, subscription: Subscription | None
    ) -> None:
        """See dispatcher.Tell. What a policy has to ask for is told where it does."""
        if not self._audience.is_there or is_advisory(destination):
            return
        policy = self._policies.of(destination)
        if (
            (event is MessageEvent.DELIVERED and not policy.advisory_for_delivery)
            or (event is MessageEvent.CONSUMED and not policy.advisory_for_consumed)
            or (event is MessageEvent.DISCARDED and not policy.advisory_for_discarding_messages)
            or (event is MessageEvent.NO_CONSUMER and (not policy.send_advisory_if_no_consumers or message.persistent))
        ):
            return
        consumer = None
        discarded = 0
        if subscription is not None:
            consumer = self.consumer(subscription)
        if isinstance(subscription, TopicSubscription):
            discarded = subscription.dropped
        self.tell(MessageFact(event, message, destination, consumer, discarded, policy.include_body_for_advisory))

    def consumer(self, subscription: Subscription) -> tuple[str, str] | None:
        """The names of its connection and of itself; None of one that nobody is told of."""
        facts = self._consumers.get(subscription)
        return (facts[0].connection_id, facts[0].id) if facts else None

    def discarded(self, subscription: TopicSubscription, message: Message) -> None:
        """It did not keep up, and lost ``message``."""
        self.message(MessageEvent.DISCARDED, message, message.destination, subscription)

    # ---- what comes and goes

    def connected(self, client: Client, login: str | None) -> None:
        connection = client.connection
        fact = ConnectionFact(name_of(client), True, client.id, login, connection.peer)
        self._clients[client] = fact
        self.tell(fact)

    def disconnected(self, client: Client) -> None:
        fact = self._clients.pop(client, None)
        if fact is not None:
            self.tell(replace(fact, is_there=False))

    def began(self, destination: Destination, owner: Client | None = None) -> None:
        """A destination came into being."""
        if self._audience.is_there and not is_advisory(destination):
            self.tell(DestinationFact(destination, True, None if owner is None else name_of(owner)))

    def ended(self, destination: Destination, owner: Client | None = None) -> None:
        """A destination was deleted."""
        if self._audience.is_there and not is_advisory(destination):
            self.tell(DestinationFact(destination, False, None if owner is None else name_of(owner)))

    def producer(self, client: Client, id: str, destination: Destination | None, *, is_there: bool) -> None:
        """A producer came or went."""
        if self._audience.is_there:
            count = 0 if destination is None else self._producers_of(destination)
            self.tell(ProducerFact(name_of(client), id, destination, is_there, count))

    def _producers_of(self, destination: Destination) -> int:
        return sum(named == destination for client in self._clients for named in client.producers.values())

    def subscribed(
        self, client: Client, command: Subscribe, subscription: Subscription, parts: tuple[Destination, ...]
    ) -> None:
        """A subscription takes part: others hear of it, and it hears what there is, if that is what it listens to."""
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
                self.tell(replace(fact, count=self._consumers_of(fact.destination)))
        if parts[0].is_topic and any(map(is_advisory, parts)) and isinstance(subscription, TopicSubscription):
            self._audience.joined(parts)
            self._listening[subscription] = parts
            self._replay(subscription, parts)

    def unsubscribed(self, subscription: Subscription) -> None:
        """It takes part no more."""
        parts = self._listening.pop(subscription, None)
        if parts is not None:
            self._audience.left(parts)
        for fact in self._consumers.pop(subscription, ()):
            self.tell(replace(fact, is_there=False, count=self._consumers_of(fact.destination)))

    def durable_deleted(self, client: Client, durable: DurableSubscriber) -> None:
        """A durable subscription was deleted by its client."""
        if self._audience.is_there:
            count = self._consumers_of(durable.subscribed)
            fact = DurableFact(name_of(client), durable.client_id, durable.name, durable.subscribed, count)
            self.tell(fact)

    def _consumers_of(self, destination: Destination) -> int:
        target = self._destinations.by_name.get(destination)
        if isinstance(target, Queue):
            return len(target.consumers)
        return len(target.subscribers) if isinstance(target, Topic) else 0

    # ---- what there is

    def _replay(self, subscription: TopicSubscription, parts: tuple[Destination, ...]) -> None:
        """The present state, for ``subscription`` alone (AdvisoryBroker.addConsumer)."""
        advisor = self._advisor
        if advisor is None:
            return
        patterns = [Pattern(part.name) for part in parts]
        wanted = {subject for part in parts for subject in subjects(part)}
        for subject in wanted:
            for fact in self._present(subject):
                topic = advisor.topic(fact)
                if topic is not None and any(pattern.matches(topic.name) for pattern in patterns):
                    subscription.hold(volatile_entry(advisor.message(fact, topic)))
        self._dispatcher.dispatch_pending(subscription)

    def _present(self, subject: Subject) -> Iterable[Fact]:
        if subject is Subject.CONNECTIONS:
            return list(self._clients.values())
        if subject is Subject.PRODUCERS:
            return [
                ProducerFact(name_of(client), id, destination, True, self._producers_of(destination))
                for client in self._clients
                for id, destination in client.producers.items()
                if destination is not None
            ]
        if subject is Subject.CONSUMERS:
            return [
                replace(fact, count=self._consumers_of(fact.destination))
                for facts in self._consumers.values()
                for fact in facts
            ]
        if subject is Subject.MASTER:
            return [MasterFact()]
        kind = _DESTINATION_SUBJECTS[subject]
        owners = {each: name_of(client) for client in self._clients for each in client.temporaries}
        return [
            DestinationFact(destination, True, owners.get(destination))
            for destination in self._destinations.names()
            if destination.kind is kind and not is_advisory(destination)
        ]


def name_of(client: Client) -> str:
    """What its connection is called: by itself, if its protocol has it so."""
    return client.connection_id or client.connection.id
