"""SUBSCRIBE and UNSUBSCRIBE: what a subscription takes part in, and what the store must know of it."""

from __future__ import annotations

from functools import partial

from broker.advising import Advising
from broker.core import names
from broker.core.access import Access, Operation
from broker.core.client import Client, Waiting
from broker.core.commands import ClientError, ErrorKind, Receipt, Subscribe, Unsubscribe
from broker.core.destinations import Destinations
from broker.core.durables import DurableSubscriber
from broker.core.memory import SUBSCRIPTION_BYTES, Kind
from broker.core.policies import Policies
from broker.core.queue import Queue
from broker.core.selector import compile_selector
from broker.core.settings import EngineSettings
from broker.core.slices import Pace, Work
from broker.core.subscription import Entry, Selector, Subscription
from broker.core.telling import tell
from broker.core.topic import DurableSubscription, Topic, TopicSubscription
from broker.core.virtual_topics import needs_queue
from broker.dispatcher import Dispatcher, Store
from store.hints import with_user_hint
from store.operations import AddSubscription, RemoveOwner
from store.records.commands import encode_subscription, encode_unsubscribe, subscription_key
from store.records.message import Destination, DestinationKind

# What it takes to begin a durable subscription of one more topic, and to end one, in items of a step.
_BEGUN, _ENDED = 8, 8
# So many topics of a durable subscription are on their way to the store at the same time.
BEGINNING_MAX = 1_000


class Stored:
    """What waits until the store has a new durable subscription, of so many topics (``count``): the receipt, and then
    what is served: ``parts``, new and old."""

    __slots__ = ("client", "count", "parts", "receipt")

    def __init__(
        self, client: Client | None, receipt: Receipt | None, count: int, parts: list[DurableSubscription]
    ) -> None:
        self.client = client
        self.count = count
        self.parts = parts
        self.receipt = receipt


class Opening:
    """Context of an AddSubscription for somebody who is there."""

    __slots__ = ("_part", "_stored", "subscription")

    def __init__(self, stored: Stored, subscription: Subscription, part: DurableSubscription) -> None:
        self.subscription = subscription
        self._part = part
        self._stored = stored

    def is_stored(self) -> Stored | None:
        """What is to be served from now on, if this was the last one that waited for the store."""
        stored = self._stored
        stored.parts.append(self._part)
        stored.count -= 1
        return None if stored.count else stored


class Subscriber:
    """See the module."""

    def __init__(
        self,
        store: Store,
        destinations: Destinations,
        dispatcher: Dispatcher,
        settings: EngineSettings,
        policies: Policies,
        access: Access,
        advising: Advising,
    ) -> None:
        self._store = store
        self._append = store.append
        self._destinations = destinations
        self._dispatcher = dispatcher
        self._settings = settings
        self._policies = policies
        self._access = access
        self._advising = advising
        destinations.on_topic = self._join

    def subscribe(self, client: Client, command: Subscribe) -> Work[None]:
        """Open a subscription. A new durable one is served, and its receipt told, once the store has it."""
        if command.id in client.subscriptions:
            raise ClientError(
                f"Subscription {command.id!r} exists already",
                "Each needs its own id.",
                is_fatal=False,
                kind=ErrorKind.STATE,
            )
        limit = self._settings.subscriptions_max
        if len(client.subscriptions) >= limit:
            raise ClientError(
                f"More than {limit} subscriptions (subscriptions_max)", is_fatal=False, kind=ErrorKind.RESOURCE
            )
        memory = client.holder.memory
        if client.holder.by_kind[Kind.STATE] > memory.held_max:
            raise ClientError(
                "Subscriptions fill the memory that is free",
                f"memory_limit of the broker is {memory.limit} bytes.",
                is_fatal=False,
                kind=ErrorKind.RESOURCE,
            )
        parts = names.split(command.destination)
        if len(parts) > names.COMPOSITE_PARTS_MAX:
            raise ClientError(
                f"{command.destination} names {len(parts)} destinations",
                f"1 to {names.COMPOSITE_PARTS_MAX} may be named.",
                is_fatal=False,
            )
        for part in parts:
            if part.is_topic != parts[0].is_topic:
                raise ClientError(
                    f"{command.destination} names queues and topics",
                    "A consumer has the one or the other.",
                    is_fatal=False,
                    kind=ErrorKind.DESTINATION,
                )
            self._check_may_read(client, part)
        selector = None if command.selector is None else compile_selector(command.selector)
        if command.durable_name is not None:
            yield from self._subscribe_durable(client, command, command.durable_name, parts)
        elif parts[0].is_topic:
            yield from self._subscribe_topics(client, command, parts, selector)
        else:
            yield from self._subscribe_queues(client, command, parts, selector)

    def _check_may_read(self, client: Client, part: Destination) -> None:
        """ClientError when the client may not, or when the destination belongs to another connection."""
        if part.kind > DestinationKind.TOPIC and part not in client.temporaries:
            is_there = self._destinations.exists(part)
            raise ClientError(
                f"Subscribing to {part}, which another connection created, is not permitted"
                if is_there
                else f"There is no destination {part}",
                "A temporary destination is read by the connection that made it.",
                is_fatal=False,
                kind=ErrorKind.DESTINATION,
            )
        if (not names.is_wildcard(part.name) or needs_queue(part)) and not self._destinations.exists(part):
            self._access.check(client.principal, Operation.CREATE, part)
        self._access.check(client.principal, Operation.READ, part)

    def _may_read(self, client: Client, destination: Destination) -> bool:
        """Of what a pattern comes to, what is closed to its client is left out (AbstractRegion)."""
        try:
            self._access.check(client.principal, Operation.READ, destination)
        except ClientError:
            return False
        return True

    def _subscribe_topics(
        self, client: Client, command: Subscribe, parts: tuple[Destination, ...], selector: Selector | None
    ) -> Work[None]:
        policy = self._policies.of(parts[0])
        plain = TopicSubscription(
            command.id,
            client.connection,
            command.ack,
            self._bounded(client, policy.prefetch(command.prefetch, is_topic=True)),
            self._settings,
            no_local=command.no_local,
            selector=selector,
            pending_limit=policy.pending_message_limit,
        )
        if policy.advisory_for_discarding_messages:
            plain.on_drop = self._advising.discarded
        user = client.principal.owner
        named = [self._destinations.topic(part, user) for part in parts if not names.is_wildcard(part.name)]
        _enter(client, command, plain)
        for topic in named:
            topic.open(plain)
        for part in parts:
            if names.is_wildcard(part.name):
                yield from self._destinations.watch(plain, part, partial(self._may_read, client))
        client.tell_receipt(command.receipt)
        yield from self._advising.subscribed(client, command, plain, parts)

    def _subscribe_queues(
        self, client: Client, command: Subscribe, parts: tuple[Destination, ...], selector: Selector | None
    ) -> Work[None]:
        policy = self._policies.of(parts[0])
        asked = policy.prefetch(command.prefetch, is_topic=False, is_browser=command.is_browser)
        subscription = Subscription(
            command.id,
            client.connection,
            command.ack,
            self._bounded(client, asked),
            selector=selector,
            priority=command.priority if policy.use_consumer_priority else 0,
            is_exclusive=command.is_exclusive or policy.all_consumers_exclusive_by_default,
            is_browser=command.is_browser,
        )
        user = client.principal.owner
        queues = [self._destinations.queue(part, user) for part in parts if not names.is_wildcard(part.name)]
        for part in parts:
            if needs_queue(part) and not command.is_browser:
                self._destinations.queue(part, user)  # where its messages wait while it is away
        _enter(client, command, subscription)
        if command.is_browser:
            client.tell_receipt(command.receipt)
            yield from self._dispatcher.browse(subscription, queues)
            return
        credit, subscription.credit = subscription.credit, 0  # until it takes part in all of them
        for queue in queues:
            queue.open(subscription)
        for part in parts:
            if names.is_wildcard(part.name):
                yield from self._destinations.watch(subscription, part, partial(self._may_read, client))
        if not subscription.is_open:
            return
        # The receipt precedes the first message (ActiveMQ).
        client.tell_receipt(command.receipt)
        subscription.credit = credit
        yield from self._advising.subscribed(client, command, subscription, parts)
        yield from self._dispatcher.dispatch_all(list(subscription.queues), Pace())

    def _bounded(self, client: Client, wanted: int) -> int:
        """At most what a client may have. 0, one message for each Pull, is for those who can pull."""
        return max(0 if client.session.can_pull else 1, min(wanted, self._settings.prefetch_max))

    # ---- durable ones

    def _subscribe_durable(
        self,
        client: Client,
        command: Subscribe,
        name: str,
        parts: tuple[Destination, ...],
    ) -> Work[None]:
        names.check_length("the name of a durable subscription", name)
        for topic in parts:
            if topic.kind is not DestinationKind.TOPIC:
                raise ClientError(
                    f"{topic} is no topic",
                    "Only a topic has durable subscriptions.",
                    is_fatal=False,
                    kind=ErrorKind.DESTINATION,
                )
        destination = Destination(DestinationKind.TOPIC, ",".join(topic.name for topic in parts))
        names.check_length("the name of several topics", destination.name)
        client_id = client.client_id()
        asked = DurableSubscriber(client_id, name, destination, command.selector, command.no_local)
        durable = self._destinations.durables.get(subscription_key(client_id, name))
        if durable is not None:
            self._check_is_its(client, durable)
        if durable is None or durable.terms != asked.terms:
            if durable is not None:  # as JMS wants it: under the same name begins another one
                durable.check_unused()
                yield from self._delete(durable, None)
            durable = self._destinations.add_durable(asked)
        prefetch = self._policies.of(parts[0]).prefetch(command.prefetch, is_topic=True, is_durable=True)
        subscription = Subscription(
            command.id, client.connection, command.ack, self._bounded(client, prefetch), no_local=command.no_local
        )
        durable.reserve(subscription, partial(self._may_read, client))
        if durable.user is None:
            durable.user = client.principal.owner
        self._claim(durable)
        _enter(client, command, subscription)
        yield from self._advising.subscribed(client, command, subscription, parts)
        pace = Pace()
        known: list[DurableSubscription] = []
        for part in list(durable.parts.values()):
            if self._may_read(client, part.destination):
                part.reserve(subscription)
                known.append(part)
            if pace.is_full():
                yield
        missing = yield from self._missing(durable, pace)
        stored = Stored(client, command.receipt, len(missing) + 1, known)  # and this work itself
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
            yield from self.serve(stored, subscription)

    def serve(self, stored: Stored, subscription: Subscription) -> Work[None]:
        """The store has all of it: tell who waits, and have what there is delivered."""
        pace = Pace()
        if stored.client is not None:
            stored.client.tell_receipt(stored.receipt)
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
        self, durable: DurableSubscriber, topic: Destination, stored: Stored | None, *, is_retroactive: bool = False
    ) -> None:
        """From now on ``durable`` gets what is sent to ``topic``, and its consumer, once that is stored."""
        owner = self._store.subscription(durable.client_id, durable.name, topic)
        part = self._destinations.add_part(durable, topic, owner, durable.selector_text)
        consumer = durable.consumer
        opening = None
        if consumer is not None:
            part.reserve(consumer)
            opening = Opening(stored or Stored(None, None, 1, []), consumer, part)
        self._append(AddSubscription(owner, _record(durable, topic, is_retroactive=is_retroactive), opening))

    def _claim(self, durable: DurableSubscriber) -> None:
        """Have the store know whose it is, of parts from before that was known. Only of those that hold nothing: to
        ActiveMQ a record that is written anew comes behind all that it has pending, which it would not deliver."""
        if durable.user is None:
            return
        for topic in [each for each in durable.unclaimed if not durable.parts[each].count]:
            durable.unclaimed.discard(topic)
            self._append(AddSubscription(durable.parts[topic].owner, _record(durable, topic)))

    def _join(self, topic: Topic) -> None:
        """A topic begins: for the durable subscribers whose patterns match it, before its first message."""
        for durable in self._destinations.lacking(topic.destination):
            if durable.may_read(topic.destination):
                self._begin_part(durable, topic.destination, None)

    # ---- the end

    def unsubscribe(self, client: Client, command: Unsubscribe) -> Work[None]:
        """Close a subscription, delete a durable one, or both in one step (ActiveMQ's clients need two).
        Where the second is refused the first holds: a session forgets what it asked to be closed."""
        pace = Pace()
        left: dict[Queue, None] = {}
        refusal: ClientError | None = None
        if command.id is not None:
            subscription = client.subscriptions.pop(command.id, None)
            if subscription is None:
                raise ClientError(f"No subscription matched {command.id!r}", is_fatal=False, kind=ErrorKind.STATE)
            yield from self.close(subscription, left, pace, command.seen)
        try:
            if command.durable_name is None:
                client.tell_receipt(command.receipt)
            else:
                yield from self._end_durable(client, command.durable_name, command.receipt)
        except ClientError as error:
            refusal = error
        yield from self._dispatcher.dispatch_all(left, pace)
        if refusal is not None:
            raise refusal

    def _end_durable(self, client: Client, name: str, receipt: Receipt | None) -> Work[None]:
        durable = self._destinations.durables.get(subscription_key(client.client_id(), name))
        if durable is None:
            raise ClientError(
                f"No durable subscription exists for: {name} of client {client.id}",
                is_fatal=False,
                kind=ErrorKind.DESTINATION,
            )
        self._check_is_its(client, durable)
        consumer = durable.consumer
        if consumer is not None and (consumer.outlet is not client.connection or client.session.survives_errors):
            durable.check_unused()
        if durable.consumer is not None:
            client.subscriptions.pop(durable.consumer.id, None)
            yield from self.close(durable.consumer, {}, Pace())
        yield from self._delete(durable, (client, receipt))
        self._advising.durable_deleted(client, durable)

    def _check_is_its(self, client: Client, durable: DurableSubscriber) -> None:
        """ClientError for whoever is neither the user it belongs to nor may create and delete its topics."""
        if durable.user is None or durable.user == client.principal.name:
            return
        try:
            for topic in durable.topics:
                for operation in (Operation.CREATE, Operation.REMOVE):
                    self._access.check(client.principal, operation, topic)
        except ClientError as error:
            raise ClientError(
                f"Durable subscription {durable.name} of client {durable.client_id} belongs to another user",
                "It is his, also while he is away, and that of those with admin rights on its topics.",
                is_fatal=False,
                kind=ErrorKind.SECURITY,
            ) from error

    def _delete(self, durable: DurableSubscriber, waiting: Waiting | None) -> Work[None]:
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
            client, receipt = waiting
            client.tell_receipt(receipt)

    def close(
        self, subscription: Subscription, left: dict[Queue, None], pace: Pace, seen: int | None = None
    ) -> Work[None]:
        """``subscription`` ends. ``left`` gets the queues that it left, with its unacknowledged messages, and that are
        to be dispatched afterwards. Of each queue all come back at once, so that nobody overtakes them there.

        ``seen``: see Unsubscribe.
        """
        subscription.end()
        subscription.outlet.holder.add(Kind.STATE, -SUBSCRIPTION_BYTES)
        self._destinations.unwatch(subscription)
        if subscription.is_browser:
            self._dispatcher.end_browse(subscription)
            subscription.clear()
            return
        unacked, subscription.unacked = subscription.unacked, {}
        came_back: dict[Queue, list[Entry]] = {}
        for tag, entry in unacked.items():
            subscription.let_go(entry)
            if entry.queue is not None:
                entry.queue.mark_returned(entry, is_seen=seen is None or tag <= seen)
                came_back.setdefault(entry.queue, []).append(entry)
            if pace.is_full():
                yield
        for queue in list(subscription.queues):
            freed = queue.close(subscription, came_back.pop(queue, ()))
            left[queue] = None
            yield from freed
            if pace.is_full(1 + len(queue.consumers) // 8 + queue.held // 8):
                yield
        for queue, entries in came_back.items():  # dropped meanwhile
            yield from queue.close(subscription, entries)
        if isinstance(subscription, TopicSubscription):
            for topic in list(subscription.topics):
                topic.close(subscription)
                if pace.is_full():
                    yield
            yield from subscription.let_go_of_all(pace)  # also what topics gave it that are gone
        parts = [queue for queue in subscription.queues if isinstance(queue, DurableSubscription)]
        if parts:  # what was there for it may be taken by now
            self._claim(self._destinations.durables[subscription_key(parts[0].client_id, parts[0].name)])
        self._advising.unsubscribed(subscription)


def _enter(client: Client, command: Subscribe, subscription: Subscription) -> None:
    """It is open from now on, until ``close``."""
    client.subscriptions[subscription.id] = subscription
    client.holder.add(Kind.STATE, SUBSCRIPTION_BYTES)
    prefetch = subscription.prefetch
    if command.prefetch not in (None, prefetch) and client.session.can_pull:
        tell(client.connection, client.session.tell_prefetch, subscription.id, prefetch)


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
