"""Durable subscriptions: what the store must know of them, topic by topic, and who takes what they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandemmq.broker.core import names
from tandemmq.broker.core.access import Operation
from tandemmq.broker.core.client import Client, ReceiptDue
from tandemmq.broker.core.commands import ClientError, ErrorKind, Receipt, Subscribe, refusal
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.slices import Pace, Work, begin
from tandemmq.broker.core.topics.durables import DurableSubscriber
from tandemmq.broker.core.topics.topic import DurableSubscription, Topic
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.ports import Then
from tandemmq.broker.engine.shared import Part, Shared
from tandemmq.store.operations import AddSubscription, RemoveOwner
from tandemmq.store.records.commands import encode_subscription, encode_unsubscribe, subscription_key
from tandemmq.store.records.hints import with_user_hint
from tandemmq.store.records.message import Destination, DestinationKind

# What it takes to begin a durable subscription of one more topic, and to end one, in items of a step.
_BEGUN, _ENDED = 8, 8
# So many topics of a durable subscription are on their way to the store at the same time.
BEGINNING_MAX = 1_000


@dataclass(slots=True, eq=False, repr=False)
class _Stored:
    """What waits until the store has a new durable subscription, of so many topics (``count``): the receipt, and then
    what is served: ``parts``, new and old."""

    client: Client | None
    receipt: Receipt | None
    count: int
    parts: list[DurableSubscription]


class DurableSubscriptions(Part):
    """Begins and ends durable subscriptions, here and in the store."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher) -> None:
        super().__init__(shared)
        self._dispatcher = dispatcher
        shared.destinations.on_topic = self._join

    def of(
        self, client: Client, command: Subscribe, name: str, parts: tuple[Destination, ...]
    ) -> Work[DurableSubscriber]:
        """The one that the client asks for: that which is there, or another one."""
        names.check_length("the name of a durable subscription", name)
        for topic in parts:
            if topic.kind is not DestinationKind.TOPIC:
                raise refusal(f"{topic} is no topic", "Only a topic has durable subscriptions.", ErrorKind.DESTINATION)
        destination = Destination(DestinationKind.TOPIC, ",".join(topic.name for topic in parts))
        names.check_length("the name of several topics", destination.name)
        client_id = client.client_id()
        asked = DurableSubscriber(client_id, name, destination, command.selector, command.no_local)
        durable = self._destinations.durables.get(subscription_key(client_id, name))
        if durable is not None:
            self.check_is_its(client, durable)
            if durable.terms == asked.terms:
                return durable
            # As JMS wants it: under the same name begins another one.
            durable.check_unused()
            yield from self.delete(durable, None)
        return self._destinations.add_durable(asked)

    def begin(
        self,
        durable: DurableSubscriber,
        subscription: Subscription,
        client: Client,
        command: Subscribe,
        may_read: Callable[[Destination], bool],
    ) -> Work[None]:
        """``subscription`` gets what ``durable`` holds and will hold; its receipt is told once the store has it."""
        pace = Pace()
        known: list[DurableSubscription] = []
        for part in list(durable.parts.values()):
            if may_read(part.destination):
                part.reserve(subscription)
                known.append(part)
            if pace.is_full():
                yield
        missing = yield from self._missing(durable, pace)
        stored = _Stored(client, command.receipt, len(missing) + 1, known)  # and this work itself
        for number, topic in enumerate(missing):
            while len(missing) - number < stored.count - BEGINNING_MAX and subscription.is_open:
                yield  # the store has others to serve, too
            if not subscription.is_open:
                return
            if topic in durable.parts:  # it began meanwhile, and is served by itself
                stored.count -= 1
            else:
                self._begin_part(durable, topic, stored, is_retroactive=command.is_retroactive)
            if pace.is_full(_BEGUN):
                yield
        stored.count -= 1
        if not stored.count:
            yield from self._serve(stored, subscription)

    def _is_stored(self, stored: _Stored, subscription: Subscription, part: DurableSubscription) -> None:
        """If this was the last one that waited for the store, all of it is served from now on."""
        stored.parts.append(part)
        stored.count -= 1
        if not stored.count:
            begin(self._serve(stored, subscription), self._start)

    def _serve(self, stored: _Stored, subscription: Subscription) -> Work[None]:
        """The store has all of it: tell who waits, and have what there is delivered."""
        pace = Pace()
        if stored.client is not None:
            stored.client.send_receipt(stored.receipt)
        for part in stored.parts:
            if not subscription.is_open:
                return
            part.open(subscription)
            dispatched = part.dispatched
            self._dispatcher.dispatch(part)
            if pace.is_full(2 + part.dispatched - dispatched):
                yield

    def _missing(self, durable: DurableSubscriber, pace: Pace) -> Work[list[Destination]]:
        """The topics that there are, of which ``durable`` is to have a part and has none."""
        missing = dict.fromkeys(durable.missing)
        if durable.is_of_pattern:
            for topic in self._destinations.topics():
                destination = topic.destination
                if not names.is_advisory(destination) and durable.lacks(destination):
                    missing[destination] = None
                if pace.is_full():
                    yield
        return [topic for topic in missing if durable.may_read(topic)]

    def _begin_part(
        self, durable: DurableSubscriber, topic: Destination, stored: _Stored | None, *, is_retroactive: bool = False
    ) -> None:
        """From now on ``durable`` gets what is sent to ``topic``, and its consumer, once that is stored."""
        owner = self._store.subscription(durable.client_id, durable.name, topic)
        part = self._destinations.add_part(durable, topic, owner, durable.selector_text)
        consumer = durable.consumer
        opening = None
        if consumer is not None:
            part.reserve(consumer)
            waiting = stored or _Stored(None, None, 1, [])
            opening = Then(waiting.client, lambda _: self._is_stored(waiting, consumer, part))
        self._append(AddSubscription(owner, _record(durable, topic, is_retroactive=is_retroactive), opening))

    def claim(self, durable: DurableSubscriber) -> None:
        """Have the store know whose it is, of parts from before that was known. Only of those that hold nothing: to
        ActiveMQ a record that is written anew comes behind all that it has pending, which it would not deliver."""
        if durable.user is None:
            return
        for topic in [each for each in durable.unclaimed if not durable.parts[each].count]:
            durable.unclaimed.discard(topic)
            self._append(AddSubscription(durable.parts[topic].owner, _record(durable, topic)))

    def _join(self, topic: Topic) -> Work[None]:
        """A topic begins: for the durable subscribers whose patterns match it, before its first message."""
        destination = topic.destination
        pace = Pace()
        for durable in self._destinations.of_patterns():
            if (
                durable.lacks(destination)
                and durable.may_read(destination)
                and self._destinations.is_there(topic, durable)
            ):
                self._begin_part(durable, destination, None)
                if pace.is_full(_BEGUN):
                    yield
            elif pace.is_full():
                yield

    def check_is_its(self, client: Client, durable: DurableSubscriber) -> None:
        """ClientError for whoever is neither the user it belongs to nor may create and delete its topics."""
        if durable.user is None or durable.user == client.principal.name:
            return
        try:
            for topic in durable.topics:
                for operation in (Operation.CREATE, Operation.REMOVE):
                    self._access.check(client.principal, operation, topic)
        except ClientError as error:
            raise refusal(
                f"Durable subscription {durable.name} of client {durable.client_id} belongs to another user",
                "It is his, also while he is away, and that of those with admin rights on its topics.",
                ErrorKind.SECURITY,
            ) from error

    def delete(self, durable: DurableSubscriber, waiting: ReceiptDue | None) -> Work[None]:
        self._destinations.remove_durable(durable)
        parts = list(durable.parts.values())
        pace = Pace()
        for part in parts:
            if pace.is_full(_ENDED):
                yield
            self._destinations.remove_part(part)
            payload = encode_unsubscribe(part.destination, durable.client_id, durable.name)
            self._append(RemoveOwner(part.owner, payload, waiting if part is parts[-1] else None))
        if not parts and waiting is not None:
            waiting.client.send_receipt(waiting.receipt)


def _record(durable: DurableSubscriber, topic: Destination, *, is_retroactive: bool = False) -> bytes:
    """What the store is to keep of ``durable`` and one of its topics."""
    payload = encode_subscription(
        topic,
        durable.client_id,
        durable.name,
        durable.selector_text,
        durable.no_local,
        is_retroactive,
        subscribed=durable.subscribed,
    )
    return with_user_hint(payload, durable.user)
