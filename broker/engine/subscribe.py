"""SUBSCRIBE and UNSUBSCRIBE: attach a subscription to queues and topics, and record it in the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final, cast

from tandemmq.broker.core import names
from tandemmq.broker.core.access import Operation, is_admin
from tandemmq.broker.core.advisor import MessageEvent
from tandemmq.broker.core.client import UNBOUNDED, Client, Connection, ReceiptDue
from tandemmq.broker.core.commands import ClientError, ErrorKind, SetNoLocal, Subscribe, Unsubscribe, refusal
from tandemmq.broker.core.containment import tell
from tandemmq.broker.core.delivery import Entry, QueueBase, Selector, Subscription, volatile_entry
from tandemmq.broker.core.memory import ID_BYTES, INSTRUCTION_BYTES, NAMED_BYTES, SUBSCRIPTION_BYTES, WORD_BYTES, Kind
from tandemmq.broker.core.queue.ordering import run_of
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.selector import compile_selector, count_words
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.topics.durables import DurableSubscriber
from tandemmq.broker.core.topics.shared import Holding
from tandemmq.broker.core.topics.topic import DurableSubscription, TopicSubscription
from tandemmq.broker.engine.advisories import Advising
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.durable_subscriptions import DurableSubscriptions
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.shared_subscriptions import SharedSubscriptions
from tandemmq.store.records.message import Destination, DestinationKind, Message

_position = attrgetter("position")

# Subscriptions of a session with a state: to that state, and to messages that it sends to itself.
OWN_SUBSCRIPTIONS = 2
# A client that closes each consumer after a few messages would get a full prefetch for each of them, and return nearly
# all of it. So its next consumer gets at first twice as many messages as the last one kept, but at least this number.
FIRST_DELIVERIES_MIN: Final = 8
# After each such time it gets FIRST_DELIVERIES_MIN more, until it has its prefetch. The number must not grow with time:
# a busy client needs longer for each message the more it gets, and would then get even more.
WITHHELD_SECONDS: Final = 0.02
# Patterns that are compared with a name in the time of an item of a step.
_MATCHED = 8


def _queue_of(subscription: Subscription) -> Queue | None:
    """Return the queue of a subscription that has one queue and no other destination; else None."""
    queue = next(iter(subscription.queues)) if len(subscription.queues) == 1 else None
    return queue if isinstance(queue, Queue) else None


class Subscriber(Part):
    """Begins and ends subscriptions. Runs on the loop; raises ClientError."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher, advising: Advising) -> None:
        super().__init__(shared)
        self._dispatcher = dispatcher
        self._keeps = shared.policies.any(lambda policy: policy.recovery is not None)
        self._advising = advising
        self._durables = DurableSubscriptions(shared, dispatcher)
        self._shares = SharedSubscriptions(shared, self._durables)
        self.end_unused_shares = self._shares.end_all_unused
        self.find_durable = self._shares.look_up

    def subscribe(self, client: Client, command: Subscribe) -> Work[None]:
        """Open a subscription. A new durable one gets messages, and its receipt, once the store has it."""
        if command.id in client.subscriptions:
            raise refusal(f"Subscription {command.id!r} exists already", "Each needs its own id.", ErrorKind.STATE)
        limit = self._settings.subscriptions_max
        if len(client.subscriptions) >= limit + (0 if client.private is None else OWN_SUBSCRIPTIONS):
            raise refusal(f"More than {limit} subscriptions (subscriptions_max)", kind=ErrorKind.RESOURCE)
        memory = client.holder.memory
        if client.holder.by_kind[Kind.STATE] > memory.held_max:
            raise refusal(
                "Subscriptions use all free memory",
                f"memory_limit of the broker is {memory.limit} bytes.",
                ErrorKind.RESOURCE,
            )
        parts = names.split(command.destination)
        if len(parts) > names.COMPOSITE_PARTS_MAX:
            raise refusal(
                f"{command.destination} names {len(parts)} destinations",
                f"1 to {names.COMPOSITE_PARTS_MAX} may be named.",
            )
        for part in parts:
            if part.is_topic != parts[0].is_topic:
                raise refusal(
                    f"{command.destination} names queues and topics",
                    "A consumer has either queues or topics.",
                    ErrorKind.DESTINATION,
                )
            self._check_may_read(client, part)  # prove: reading-needs-the-right
        selector = None
        if command.selector is not None:
            selector = compile_selector(command.selector)
            command.selector_bytes = WORD_BYTES * count_words(command.selector)
            command.selector_bytes += INSTRUCTION_BYTES * selector.instructions
        if command.share is not None:
            yield from self._subscribe_shared(client, command, command.share, parts)
        elif command.durable_name is not None:
            yield from self._subscribe_durable(client, command, command.durable_name, parts)
        elif parts[0].is_topic:
            yield from self._subscribe_topics(client, command, parts, selector)
        else:
            yield from self._subscribe_queues(client, command, parts, selector)

    def _check_may_read(self, client: Client, part: Destination) -> None:
        """Raise ClientError if the client may not read, or if the destination belongs to another connection."""
        if client.owns(part):
            return
        if part.kind > DestinationKind.TOPIC and part not in client.temporaries:
            is_there = self._destinations.exists(part)
            raise refusal(
                f"Subscribing to {part}, which another connection created, is not permitted"
                if is_there
                else f"There is no destination {part}",
                "A temporary destination is read by the connection that made it.",
                ErrorKind.DESTINATION,
            )
        # This check is first: the answer must not reveal whether the destination exists.
        self._access.check(client.principal, Operation.READ, part)  # prove: rights-before-existence-read
        if (not names.is_wildcard(part.name) or self._destinations.needs_queue(part)) and not self._destinations.exists(
            part
        ):
            self._access.check(client.principal, Operation.CREATE, part)

    def _may_read(self, client: Client, destination: Destination) -> bool:
        """Return whether a pattern of the client includes that destination. It excludes destinations that the client
        may not read (AbstractRegion) and, for every client, the broker's own destinations."""
        return not names.is_private(destination) and self._access.may(client.principal, Operation.READ, destination)

    def _subscribe_topics(
        self, client: Client, command: Subscribe, parts: tuple[Destination, ...], selector: Selector | None
    ) -> Work[None]:
        policy = self._policies.of(parts[0])
        prefetch_now = self._prefetch(client, command, parts[0], is_topic=True)
        prefetch = prefetch_now()
        limit = policy.pending_limit(prefetch)
        plain = TopicSubscription(
            command.id,
            client.connection,
            command.ack,
            prefetch,
            self._settings,
            no_local=command.no_local,
            selector=selector,
            pending_limit=limit,
            eviction=policy.eviction,
        )
        plain.has_extension = policy.use_prefetch_extension
        plain.prefetch_now = prefetch_now
        if policy.advisory_for_discarding_messages or limit is not None:
            plain.on_drop = self._lost
        if selector is not None:
            plain.on_unsifted = self._dispatcher.sifting.put_off
        user = client.principal.owner
        named = [self._destinations.topic(part, user) for part in parts if not names.is_wildcard(part.name)]
        _enter(client, command, plain, parts)
        for topic in named:
            topic.open(plain)
        for part in parts:
            if names.is_wildcard(part.name):
                yield from self._destinations.watch(plain, part, partial(self._may_read, client))
        client.send_receipt(command.receipt)
        if self._keeps:
            yield from self._recover(client, command, plain, parts)
        yield from self._advising.subscribed(client, command, plain, parts)

    def _recover(
        self, client: Client, command: Subscribe, plain: TopicSubscription, parts: tuple[Destination, ...]
    ) -> Work[None]:
        """Give a subscription the kept messages that it missed, if it is retroactive and its topics keep some."""
        patterns = [names.Pattern(part.name) for part in parts]
        pace = Pace()
        selector = plain.selector
        plain.is_recovering = selector is not None
        items = 1
        for topic in self._destinations.topics():
            destination = topic.destination
            if pace.is_full(items):
                yield
            items = 1
            if topic.kept is None or destination.kind is not parts[0].kind:
                continue
            if self._access.has_rights and names.is_advisory(destination):
                continue  # prove: kept-advisories-are-not-for-all "continue" -> "pass"
            is_asked = command.is_retroactive or self._policies.of(destination).always_retroactive
            items += len(patterns) // _MATCHED
            if not is_asked or not any(each.matches(destination.name) for each in patterns):
                continue
            if not self._may_read(client, destination):
                continue
            late = {id(entry.message) for entry in plain.unsifted}  # they are kept, too
            for message in topic.kept.messages():
                if id(message) not in late and (selector is None or selector.matches(message)):
                    topic.dropped += plain.hold(volatile_entry(message))
                if selector is not None and (pace.is_full() if selector.is_cheap else pace.is_over()):
                    yield
        plain.recovered()
        self._dispatcher.dispatch_pending(plain)

    def _lost(self, subscription: TopicSubscription, message: Message) -> None:
        """Publish that a slow subscription lost a message; a policy that limits its backlog makes a dead letter."""
        self._advising.message(MessageEvent.DISCARDED, message, message.destination, subscription)
        if self._policies.of(message.destination).pending_limit(subscription.prefetch) is not None:
            self._dispatcher.dead_letters.bury_lost(message)

    def _subscribe_queues(
        self, client: Client, command: Subscribe, parts: tuple[Destination, ...], selector: Selector | None
    ) -> Work[None]:
        policy = self._policies.of(parts[0])
        prefetch_now = self._prefetch(client, command, parts[0], is_topic=False, is_browser=command.is_browser)
        subscription = Subscription(
            command.id,
            client.connection,
            command.ack,
            prefetch_now(),
            selector=selector,
            priority=command.priority if policy.use_consumer_priority else 0,
            is_exclusive=command.is_exclusive or policy.all_consumers_exclusive_by_default,
            is_browser=command.is_browser,
            takes_paused=command.takes_paused,
        )
        subscription.has_extension = policy.use_prefetch_extension
        user = client.principal.owner
        queues = [self._destinations.begin_queue(part, user) for part in parts if not names.is_wildcard(part.name)]
        for part in parts:
            if self._destinations.needs_queue(part) and not command.is_browser:
                self._destinations.begin_queue(part, user)  # its messages wait there while the client is away
        if command.is_browser and not self._is_operator(client):
            self._dispatcher.browsing.check_room(subscription, queues)
        _enter(client, command, subscription, parts)
        if command.is_browser:
            subscription.prefetch_now = prefetch_now
            client.send_receipt(command.receipt)
            yield from self._dispatcher.browsing.begin(subscription, queues)
            return
        credit, subscription.credit = subscription.credit, 0  # until it is attached to all of them
        for queue in queues:
            queue.open(subscription)
        try:
            for part in parts:
                if names.is_wildcard(part.name):
                    yield from self._destinations.watch(subscription, part, partial(self._may_read, client))
        except ClientError:
            yield from self._take_back(client, subscription)
            raise
        if not subscription.is_open:
            return
        # The receipt precedes the first message (ActiveMQ).
        client.send_receipt(command.receipt)
        subscription.credit = credit
        subscription.prefetch_now = prefetch_now
        first, client.first_deliveries = client.first_deliveries, UNBOUNDED
        only = None if any(names.is_wildcard(part.name) for part in parts) else _queue_of(subscription)
        if credit > first and not subscription.is_auto and only is not None:
            subscription.withhold(credit - first)
            self._grant_later(subscription, only)
        yield from self._advising.subscribed(client, command, subscription, parts)
        yield from self._dispatcher.dispatch_all(list(subscription.queues), Pace())

    def _grant_later(self, subscription: Subscription, queue: Queue) -> None:
        self._call_later(WITHHELD_SECONDS, partial(self._grant, subscription, queue))

    def _grant(self, subscription: Subscription, queue: Queue) -> None:
        """Deliver more of the messages that were withheld at the beginning of ``subscription``, whose only queue this
        is."""
        if subscription.is_open and subscription.withheld:
            subscription.grant(FIRST_DELIVERIES_MIN)
            self._grant_later(subscription, queue)
            self._dispatcher.dispatch(queue)

    def _is_operator(self, client: Client) -> bool:
        """Return whether the client is the broker itself, the admin server or an admin: these browse also when memory
        is full. Without rights no client is known to be an admin."""
        return client.is_inside or (self._access.has_rights and is_admin(self._access, client.principal))

    def _take_back(self, client: Client, subscription: Subscription) -> Work[None]:
        """Close a subscription that began, and was then refused."""
        if client.subscriptions.get(subscription.id) is subscription:
            del client.subscriptions[subscription.id]
            left: dict[QueueBase, None] = {}
            yield from self.close(subscription, left, Pace())
            yield from self._dispatcher.dispatch_all(left, Pace())

    def _subscribe_durable(
        self, client: Client, command: Subscribe, name: str, parts: tuple[Destination, ...]
    ) -> Work[None]:
        self._begin_topics(client, parts)
        durable = yield from self._durables.of(client, command, name, parts)
        if (yield from self._take_over(client, durable)):
            # It may have been replaced meanwhile.
            durable = yield from self._durables.of(client, command, name, parts)
        prefetch_now = self._prefetch(client, command, parts[0], is_topic=True, is_durable=True)
        subscription = Subscription(
            command.id, client.connection, command.ack, prefetch_now(), no_local=command.no_local
        )
        subscription.prefetch_now = prefetch_now
        subscription.has_extension = self._policies.of(parts[0]).use_prefetch_extension
        may_read = partial(self._may_read, client)
        self._durables.reserve(durable, subscription, may_read)
        if durable.user is None and not client.is_guest:  # prove: a-guest-claims-nothing " and not client.is_guest"
            self._destinations.claim(durable, client.principal.owner)
        self._durables.claim(durable)
        _enter(client, command, subscription, parts)
        yield from self._advising.subscribed(client, command, subscription, parts)
        try:
            yield from self._durables.begin(durable, subscription, client, command, may_read)
        except ClientError:
            yield from self._take_back(client, subscription)
            yield from self._durables.end_empty(durable)
            raise

    def _take_over(self, client: Client, durable: DurableSubscriber) -> Work[bool]:
        """End the consumer of a durable subscription on another connection, if both share their client id. Return
        whether one was ended."""
        former = durable.consumer
        if former is None:
            return False
        other: Client | None = cast(Connection, former.outlet).client
        # prove: only-its-user-takes-a-subscription-over "other.principal.name == client.principal.name" -> "True"
        is_of_its_user = other is not None and other.principal.name == client.principal.name
        if other is None or other is client or not (client.shares_id and other.shares_id and is_of_its_user):
            return False
        other.subscriptions.pop(former.id, None)
        left: dict[QueueBase, None] = {}
        yield from self.close(former, left, Pace())
        if other.is_there:
            error = ClientError(
                f"Durable subscription {durable.name} of client {client.id} has a consumer on a newer connection",
                "It has one consumer at a time.",
                kind=ErrorKind.TAKEN_OVER,
            )
            tell(other.connection, other.session.close_consumer, former.id, error)
        yield from self._dispatcher.dispatch_all(left, Pace())
        return True

    def _subscribe_shared(
        self, client: Client, command: Subscribe, group: str, parts: tuple[Destination, ...]
    ) -> Work[None]:
        share = self._shares.name_of(client, command, group, parts)
        self._begin_topics(client, parts)
        prefetch_now = self._prefetch(client, command, parts[0], is_topic=True, is_durable=True)
        subscription = Subscription(command.id, client.connection, command.ack, prefetch_now())
        subscription.prefetch_now = prefetch_now
        subscription.has_extension = self._policies.of(parts[0]).use_prefetch_extension
        _enter(client, command, subscription, parts)
        yield from self._advising.subscribed(client, command, subscription, parts)
        try:
            yield from self._shares.join(share, subscription, client, command, partial(self._may_read, client))
        except ClientError:
            yield from self._take_back(client, subscription)
            raise

    def _begin_topics(self, client: Client, parts: tuple[Destination, ...]) -> None:
        """Begin the named topics, and charge them to the client's user, as for other subscriptions."""
        for part in parts:
            if part.kind is DestinationKind.TOPIC and not names.is_wildcard(part.name):
                # prove: durable-topics-count "client.principal.owner" -> "None"
                self._destinations.topic(part, client.principal.owner)

    def _prefetch(
        self, client: Client, command: Subscribe, destination: Destination, **kind: bool
    ) -> Callable[[], int]:
        """Return a function for the present prefetch by the policies, at most the limit of a client. A client that
        limits itself gets the prefetch that it requests. 0, one message for each Pull, is for clients that can pull."""
        own = command.prefetch if client.holder.is_bounded else None
        if own is not None:
            return lambda: own
        least = 0 if client.session.can_pull else 1
        most = self._settings.prefetch_max
        requested = command.prefetch
        policies = self._policies
        return lambda: max(least, min(policies.prefetch(destination, requested, **kind), most))

    def set_no_local(self, client: Client, command: SetNoLocal) -> None:
        subscription = client.subscriptions.get(command.id)
        client.send_receipt(command.receipt)
        if subscription is not None:
            subscription.no_local = command.no_local
            for queue in subscription.queues:
                if isinstance(queue, DurableSubscription):
                    queue.set_no_local(subscription)

    # ---- the end

    def unsubscribe(self, client: Client, command: Unsubscribe) -> Work[None]:
        """Close a subscription, delete a durable one, or both in one step (ActiveMQ's clients need two). If the second
        is refused, the first stays done: the session has forgotten the subscription that it closed."""
        pace = Pace()
        left: dict[QueueBase, None] = {}
        refused: ClientError | None = None
        if command.id is not None:
            subscription = client.subscriptions.pop(command.id, None)
            if subscription is None:
                raise refusal(f"No subscription matched {command.id!r}", kind=ErrorKind.STATE)
            if subscription.tag and not subscription.is_browser and _queue_of(subscription) is not None:
                kept = subscription.tag - len(subscription.unacked)
                client.first_deliveries = max(FIRST_DELIVERIES_MIN, 2 * kept)
            yield from self.close(subscription, left, pace, command.seen)
        try:
            if command.durable_name is None:
                client.send_receipt(command.receipt)
            else:
                yield from self._end_durable(client, command, command.durable_name)
        except ClientError as error:
            refused = error
        yield from self._dispatcher.dispatch_all(left, pace)
        if refused is not None:
            raise refused

    def _end_durable(self, client: Client, command: Unsubscribe, name: str) -> Work[None]:
        receipt = command.receipt
        if not command.is_global:
            yield from self._durables.settled(client, name)
        durable = self._shares.find(client, name, is_global=command.is_global)
        if isinstance(durable, Holding):
            waiting = ReceiptDue(client, receipt)
            yield from self._shares.let_go(client, durable, waiting, unless_used=command.unless_used)
            return
        self._durables.check_is_its(client, durable)
        consumer = durable.consumer
        if consumer is not None:
            if consumer.outlet is not client.connection or client.session.survives_errors:
                durable.check_unused()
            client.subscriptions.pop(consumer.id, None)
            yield from self.close(consumer, {}, Pace())
        yield from self._durables.delete(durable, ReceiptDue(client, receipt))
        self._advising.durable_deleted(client, durable)

    def close(
        self,
        subscription: Subscription,
        left: dict[QueueBase, None],
        pace: Pace,
        seen: int | None = None,
        *,
        is_lost: bool = False,
    ) -> Work[None]:
        """End ``subscription``. ``left`` gets the queues that have its unacknowledged messages again; the caller
        dispatches them. All messages of a queue come back at once, so that none overtakes them there.

        ``seen``: see Unsubscribe. ``is_lost``: its client did not leave in order.
        """
        subscription.end()
        subscription.outlet.holder.add(Kind.STATE, -subscription.bytes)
        yield from self._destinations.unwatch(subscription)
        if subscription.is_browser:
            yield from self._dispatcher.browsing.end(subscription)
            subscription.clear()
            return
        unacked, subscription.unacked = subscription.unacked, {}
        came_back: dict[QueueBase, list[Entry]] = {}
        counted: dict[QueueBase, list[Entry]] = {}
        suspects = self._dispatcher.suspects
        sent = subscription.tag - subscription.unsent  # prove: unsent-does-not-count " - subscription.unsent"
        seen = sent if seen is None else min(seen, sent)
        for tag, entry in unacked.items():
            subscription.let_go(entry)
            queue = entry.queue
            if queue is not None:
                is_seen = tag <= seen
                if is_seen:
                    counted.setdefault(queue, []).append(entry)
                if suspects.comes_back(queue, entry, is_seen=is_seen, is_lost=is_lost):
                    came_back.setdefault(queue, []).append(entry)
            if pace.is_full():
                yield
        for queue, seen_entries in counted.items():
            suspects.count(queue, seen_entries)
        for queue in list(subscription.queues):
            entries = came_back.pop(queue, None)
            run = deque() if entries is None else (yield from run_of(entries, _position, pace))
            freed = queue.close(subscription, run)
            left[queue] = None
            yield from freed
            if pace.is_full(1 + len(queue.consumers) // 8 + queue.held // 8):
                yield
        for queue, entries in came_back.items():  # dropped meanwhile
            yield from queue.close(subscription, deque(entries))
        if isinstance(subscription, TopicSubscription):
            for topic in list(subscription.topics):
                topic.close(subscription)
                if pace.is_full():
                    yield
            yield from subscription.let_go_of_all(pace)  # also messages of ended topics
        self._durables.left(subscription)
        self._advising.unsubscribed(subscription)
        yield from self._shares.left(subscription)


def _enter(client: Client, command: Subscribe, subscription: Subscription, parts: tuple[Destination, ...]) -> None:
    """Register a subscription with its client: it is open until ``close``."""
    client.subscriptions[subscription.id] = subscription
    subscription.bytes = (
        SUBSCRIPTION_BYTES
        + NAMED_BYTES * (len(parts) - 1)
        + ID_BYTES * (len(command.id) + len(command.selector or ""))
        + command.selector_bytes
    )
    client.holder.add(Kind.STATE, subscription.bytes)
    prefetch = subscription.prefetch
    if command.prefetch not in (None, prefetch) and client.session.can_pull:
        tell(client.connection, client.session.tell_prefetch, subscription.id, prefetch)
