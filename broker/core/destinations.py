"""Index of all queues, topics and durable subscriptions of one engine, by name and by the store's id."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.memory import (
    DESTINATION_BYTES,
    DURABLE_BYTES,
    NAME_BYTES,
    NODE_BYTES,
    PART_BYTES,
    TOPIC_BYTES,
    WATCH_BYTES,
    Kind,
    Memory,
)
from tandemmq.broker.core.names import MQTT_SHARES, PATTERNS, Pattern, is_advisory, is_private
from tandemmq.broker.core.policies import Policies
from tandemmq.broker.core.queue.consumers import Start
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.scheduling.scheduled_message import PENDING
from tandemmq.broker.core.selector import compile_selector
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import ITEMS, Pace, Work, at_once, is_done, nothing
from tandemmq.broker.core.topics.durables import DurableSubscriber, UsersOfClientIds
from tandemmq.broker.core.topics.matching import Watch, Watching
from tandemmq.broker.core.topics.recovery import Kept
from tandemmq.broker.core.topics.shared import CLIENT_ID, Holding, Holdings, SharedSubscriber
from tandemmq.broker.core.topics.topic import DurableSubscription, Topic, TopicSubscription
from tandemmq.broker.core.trie import NameTrie
from tandemmq.broker.core.virtual_destinations import VirtualTopics
from tandemmq.store.operations import Owner
from tandemmq.store.records.commands import subscription_key
from tandemmq.store.records.message import Destination, DestinationKind

log = logging.getLogger(__name__)

NO_POLICIES = Policies(())
# Cost of waking a queue and adding a subscription to it, in items of a step.
_OPENED = 4
# Cost of adding a durable subscription of the store to its topic, in items of a step.
_BEGUN = 8
# Maximum number of remembered names of unused destinations that ended; beyond it the oldest is forgotten.
IDLE_REMEMBERED_MAX = 10_000


def _bytes_of(destination: Destination) -> int:
    """Memory of the destination itself, in bytes."""
    own = TOPIC_BYTES if destination.is_topic else DESTINATION_BYTES
    return own + NAME_BYTES * len(destination.name)


def _bytes_of_durable(durable: DurableSubscriber) -> int:
    """Memory of the durable subscription without its parts, in bytes."""
    names = len(durable.client_id) + len(durable.name) + len(durable.subscribed.name)
    return DURABLE_BYTES + NAME_BYTES * names + len(durable.selector_text or "")


def _take_part(queue: Queue, watch: Watch, payer: Memory | None = None) -> None:
    subscription = watch.subscription
    if queue not in subscription.queues and subscription.is_open and watch.may_read(queue.destination):
        queue.open(subscription, payer)


@dataclass(slots=True, eq=False, repr=False)
class Destinations:
    """Queues and topics begin when they are first named. ``new_queue`` returns a queue's id in the store.

    Queues that the store already has (``asleep``) also begin when they are first named, not at the take-over: clients
    wait during a take-over, and there may be ten thousand queues. ``by_name`` and ``by_owner`` hold the destinations
    that have begun. They are read directly on hot paths, and only this class changes them.

    If a method takes a ``user``, a destination that begins counts for that user until it ends; None: the destination
    counts for no user, because the name of the user is not proved. No user may have more destinations than are still
    available to all users. ``existing`` and ``queue`` begin nothing.

    ``shares`` count the messages of destinations with a ``memory_limit``. ``on_topic`` returns work for a topic that
    begins; the work is done before the first message of the topic. ``on_new`` is called with each new destination. Both
    are not called for advisory topics. ``on_pause_ended`` is called with a queue that was deleted while its consumers
    or producers were paused. A subscription with wildcards (``watch``) takes part in all matching destinations, also in
    those that begin later. Very many subscriptions join a queue in steps, and ``on_joined`` is called after each step.
    ``pending``: the queue in which the store keeps delayed messages, if there is one.
    """

    _settings: EngineSettings
    memory: Memory  # the budget in which all destinations count
    _new_queue: Callable[[Destination], int]
    _policies: Policies = NO_POLICIES
    _start: Callable[[Work[None]], object] = at_once
    on_new: Callable[[Destination], object] = field(default=lambda destination: None, init=False)
    by_name: dict[Destination, Queue | Topic] = field(default_factory=dict, init=False)
    by_owner: dict[int, Queue] = field(default_factory=dict, init=False)
    on_topic: Callable[[Topic], Work[None]] = field(default=lambda topic: nothing(), init=False)
    on_joined: Callable[[Queue], object] = field(default=lambda queue: None, init=False)
    on_pause_ended: Callable[[Destination], object] = field(default=lambda queue: None, init=False)
    # Milliseconds since 1970, once an engine has set it.
    clock: Callable[[], int] = field(default=int, init=False)
    durables: dict[str, DurableSubscriber] = field(default_factory=dict, init=False)
    users: UsersOfClientIds = field(default_factory=UsersOfClientIds, init=False)
    holdings: Holdings = field(init=False)  # of shared durable subscriptions
    _durable_names: dict[str, dict[str, None]] = field(default_factory=dict, init=False)  # by client id
    _of_patterns: list[DurableSubscriber] = field(default_factory=list, init=False)
    shares: dict[Destination, Share] = field(default_factory=dict, init=False)
    _makers: dict[Destination, str] = field(default_factory=dict, init=False)
    _made_by: Counter[str] = field(default_factory=Counter, init=False)
    _asleep: dict[Destination, Owner] = field(default_factory=dict, init=False)
    # Names by kind. A kind is added when a pattern of this kind is first looked up, so that a take-over of many queues
    # takes less time.
    _names: dict[DestinationKind, NameTrie[Destination]] = field(default_factory=dict, init=False)
    _named: set[DestinationKind] = field(default_factory=set, init=False)  # kinds whose names are all in ``_names``
    # Patterns of all subscriptions with wildcards, in the order of their start; and the patterns of each subscription.
    _watching: dict[DestinationKind, Watching] = field(init=False)
    _watched: dict[Subscription, list[tuple[Destination, Watch]]] = field(default_factory=dict, init=False)
    _virtual: VirtualTopics = field(init=False)
    pending: Owner | None = field(default=None, init=False)
    # Destinations whose producers wait until an operator resumes them; most brokers have none.
    closed_to_producers: set[Destination] = field(default_factory=set, init=False)
    # Destinations that ended because they were unused: a client that may send there may begin them again. No operator
    # deleted them.
    idle: dict[Destination, None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.holdings = Holdings(self.users)
        self._watching = {kind: Watching(self.memory) for kind in DestinationKind}
        self._virtual = VirtualTopics(self._settings.virtual_destinations.virtual_topics)

    def take_over(self, owners: Iterable[Owner], adds_to: Iterable[Destination] = ()) -> Work[None]:
        """Add the owners that the store already has, and the topics among ``adds_to``. Prepared transactions send to
        these topics: a durable subscription of a pattern that begins before the commit takes part in them. Call this
        method before ``on_new`` and ``on_topic`` are set, because these destinations are not new."""
        pace = Pace()
        for owner in owners:
            items = 1
            if owner.destination == PENDING:
                self.pending = owner
            elif owner.destination == MQTT_SHARES:
                self._know_holding(owner)
            elif owner.subscription_name is None:
                self._asleep[owner.destination] = owner
                self._virtual.know(owner.destination)
            elif owner.destination == PATTERNS:
                self._durable_of(owner, owner.subscription_name).record = owner.id
            else:
                durable = self._durable_of(owner, owner.subscription_name)
                self.add_part(durable, owner.destination, owner.id, owner.selector or None, unread=owner.count)
                items = _BEGUN
            if pace.is_full(items):
                yield
        for destination in adds_to:
            if destination.is_topic and destination not in self.by_name:
                self._add_topic(destination)  # prove: topic-of-a-branch-is-known
            if pace.is_full():
                yield

    def _know_holding(self, owner: Owner) -> None:
        client_id, name = owner.client_id, owner.subscription_name
        if client_id is not None and name is not None and owner.pattern is not None:
            self.holdings.add(Holding(owner.id, client_id, name, owner.pattern, owner.user))

    # ---- queues and topics

    def _add_queue(self, destination: Destination, owner: int, *, unread: int = 0, is_new: bool = True) -> Queue:
        queue = Queue(
            destination,
            owner,
            self._settings,
            self._share_of(destination),
            unread=unread,
            is_prioritized=self._policies.of(destination).prioritized_messages,
        )
        queue.expires = not is_private(destination)
        policy = self._policies.of(destination)
        if policy.consumers_before_dispatch_starts or policy.time_before_dispatch_starts:
            queue.start = Start(policy.consumers_before_dispatch_starts, policy.time_before_dispatch_starts)
        if owner:
            self.by_owner[owner] = queue
        self._enter(queue)
        watches = self._watching[destination.kind].of(destination.name)
        for watch in watches[:ITEMS]:
            _take_part(queue, watch, self.memory)  # not counted for the consumer: its client did not begin the queue
        if len(watches) > ITEMS:
            self._start(self._join_rest(queue, watches))
        if is_new:
            self._virtual.know(destination)
            self.on_new(destination)
        return queue

    def _join_rest(self, queue: Queue, watches: list[Watch]) -> Work[None]:
        """Let all watches except the first ITEMS take part in a queue that began."""
        pace = Pace()
        for watch in islice(watches, ITEMS, None):
            if queue.is_dropped:
                return
            _take_part(queue, watch, self.memory)
            if pace.is_full(1 + queue.held // 8):
                self.on_joined(queue)
                yield
        self.on_joined(queue)

    def _share_of(self, destination: Destination) -> Share:
        """Return the share of a queue of ``destination``. If a topic has a limit, all its durable subscriptions use the
        same share."""
        limit = self._policies.of(destination).memory_limit
        if limit is None:
            return Share(self.memory)
        share = self.shares.get(destination)
        if share is None:
            share = self.shares[destination] = Share(self.memory, limit)
        return share

    def virtual_queues(self, topic: str) -> Collection[Destination]:
        """Return the queues that get a copy of each message to the topic of that name."""
        return self._virtual.queues(topic)

    def is_fed(self, queue: Destination, topic: str) -> bool:
        """Return VirtualTopics.is_fed for this queue."""
        return self._virtual.is_fed(queue, topic)

    def is_selector_aware(self, queue: Destination, topic: str) -> bool:
        """Return whether the queue receives only messages that its consumers take."""
        return self._virtual.is_selector_aware(queue, topic)

    def needs_queue(self, destination: Destination) -> bool:
        """Return whether a consumer of that name with wildcards has a queue of the same name."""
        return self._virtual.needs_queue(destination)

    def asleep(self) -> Collection[Owner]:
        """Queues of the store that no client has named yet, as they were when the store was opened."""
        return self._asleep.values()

    def sleeping(self, destination: Destination) -> Owner:
        """Return the owner among ``asleep``. KeyError: there is none."""
        return self._asleep[destination]

    def names(self) -> list[Destination]:
        """Return the names of all destinations, including queues that no client has named yet."""
        return [*self.by_name, *self._asleep]

    def is_empty(self, destination: Destination) -> bool:
        """Return whether no client has named the queue yet, and the store has no message for it."""
        owner = self._asleep.get(destination)
        return owner is not None and not owner.count

    def exists(self, destination: Destination) -> bool:
        return destination in self.by_name or destination in self._asleep

    def _wake(self, destination: Destination) -> Queue | None:
        """Return the queue of that name, if the store has it and no client has named it yet."""
        owner = self._asleep.pop(destination, None)
        if owner is None:
            return None
        return self._add_queue(destination, owner.id, unread=owner.count, is_new=False)

    def wake_owner(self, owner: int) -> Queue | None:
        """Return the store's queue of that id, if no client has named it yet. Searches all such queues, so it is only
        for rare use."""
        for destination, each in self._asleep.items():
            if each.id == owner:
                return self._wake(destination)
        return None

    def existing(self, destination: Destination) -> Queue | Topic | None:
        """Return the queue or topic of that name, None if there is none. Nothing begins."""
        found = self.by_name.get(destination) or self._wake(destination)
        if isinstance(found, Queue):
            found.is_leaving = False
        return found

    def queue(self, destination: Destination) -> Queue:
        """Return the queue of that name, which must exist."""
        found = self.existing(destination)
        assert isinstance(found, Queue), "a queue without a user must exist"
        return found

    def begin_queue(self, destination: Destination, user: str | None) -> Queue:
        """Return the queue of that name, a new one if there is none. ClientError if there are too many destinations, if
        ``auto_create`` is off for a queue that does not exist, or if a temporary queue does not exist."""
        found = self.by_name.get(destination) or self._wake(destination)
        if found is None:
            self._check_may_begin(destination, user)
            return self._add_queue(destination, self._new_owner(destination))
        assert isinstance(found, Queue), "a topic has another kind in its name"
        found.is_leaving = False
        return found

    def _new_owner(self, destination: Destination) -> int:
        return self._new_queue(destination) if destination.kind is DestinationKind.QUEUE else 0

    def maker(self, destination: Destination) -> str | None:
        """Return the user that ``destination`` counts for."""
        return self._makers.get(destination)

    def has_room_for(self, destination: Destination, user: str | None) -> bool:
        """Return whether ``destination`` exists, or ``user`` may create one more. None: the user is unknown; all
        unknown users together may fill at most half of the room."""
        if self.exists(destination):
            return True
        most, there = self._settings.destinations_max, len(self.by_name) + len(self._asleep)
        # prove: room-after-a-restart "there < most // 2" -> "True"
        return there < most // 2 if user is None else self._made_by[user] < most - there

    def dead_letter_queue(self, destination: Destination, user: str | None) -> Queue:
        """Return the queue as ``begin_queue`` does, but without a limit: a message must not be lost because there are
        too many destinations."""
        found = self.by_name.get(destination) or self._wake(destination)
        if found is None:
            found = self._add_queue(destination, self._new_queue(destination))
            self._count(destination, user)  # prove: dead-letters-count
        assert isinstance(found, Queue), "a topic has another kind in its name"
        found.is_leaving = False
        found.is_dead_letter_queue = True
        return found

    def dead_letter_topic(self, destination: Destination, user: str | None) -> Topic:
        """Return the topic of that name without a limit, as ``dead_letter_queue`` does."""
        found = self.by_name.get(destination)
        if found is None:
            found = self._add_topic(destination)
            self._count(destination, user)
        assert isinstance(found, Topic), "a queue has another kind in its name"
        return found

    def topic(self, destination: Destination, user: str | None) -> Topic:
        """Return the topic of that name, a new one if there is none. Raises as ``begin_queue`` does."""
        found = self.by_name.get(destination)
        if found is None:
            self._check_may_begin(destination, user)
            return self._add_topic(destination)
        assert isinstance(found, Topic), "a queue has another kind in its name"
        return found

    def _add_topic(self, destination: Destination) -> Topic:
        recovery = self._policies.of(destination).recovery
        kept = None if recovery is None else Kept(recovery, self.memory, lambda: self.clock())
        topic = Topic(destination, self._watching[destination.kind], kept)
        self._enter(topic)
        if not is_advisory(destination):
            beginning = self._begin(topic)
            if not is_done(beginning):
                topic.beginning = beginning
                self._start(beginning)
            self.on_new(destination)
        return topic

    def _begin(self, topic: Topic) -> Work[None]:
        try:
            yield from self.on_topic(topic)
        finally:
            topic.beginning = None

    def route(self, destination: Destination, user: str | None) -> Queue | Topic:
        """Return the queue or topic that receives a message to ``destination``."""
        return self.topic(destination, user) if destination.is_topic else self.begin_queue(destination, user)

    def listeners_of(self, topic: Destination) -> tuple[Topic, Sequence[TopicSubscription]]:
        """Return an advisory topic and its listeners. If no client has named the topic, the result is a temporary
        object and the subscribers of matching patterns."""
        found = self.by_name.get(topic)
        if found is not None:
            assert isinstance(found, Topic), "a queue has another kind in its name"
            return found, tuple(found.subscribers)
        watching = self._watching[topic.kind]
        listeners = {watch.subscription: None for watch in watching.of(topic.name) if watch.may_read(topic)}
        return Topic(topic, watching), [each for each in listeners if isinstance(each, TopicSubscription)]

    def is_listened_to(self, topic: Destination, prefix: str) -> bool:
        """Return whether a client subscribes to ``topic``, by its name or by a pattern that begins with ``prefix``."""
        _, listeners = self.listeners_of(topic)
        if any(pattern.name.startswith(prefix) for each in listeners for pattern in self._patterns_or(each, topic)):
            return True
        found = self.by_name.get(topic)
        if isinstance(found, Topic) and any(part.consumers for part in found.durables.values()):
            return True
        return any(
            each.consumer is not None and each.subscribed.name.startswith(prefix) and each.lacks(topic)
            for each in self._of_patterns
        )

    def _patterns_or(self, subscription: Subscription, topic: Destination) -> list[Destination]:
        """Return the patterns of ``subscription``, or ``topic`` if it has none."""
        return self.patterns_of(subscription) or [topic]

    def create(self, destination: Destination, user: str | None) -> None:
        """Create ``destination`` if it does not exist, even with ``auto_create`` off. ClientError if there are too
        many."""
        if self.exists(destination):
            return
        self._check_is_not_ours(destination)
        self._check_quota(destination, user)
        if destination.is_topic:
            self._add_topic(destination)
        else:
            self._add_queue(destination, self._new_owner(destination))

    def add_temporary(self, destination: Destination, user: str | None) -> None:
        """Create a temporary destination; a repeated call, after a failover, is no error. ClientError if there are too
        many."""
        if destination not in self.by_name:
            self._check_quota(destination, user)
            if destination.is_topic:
                self._add_topic(destination)
            else:
                self._add_queue(destination, 0)

    def remove_unnamed(self, topic: Destination) -> None:
        """Remove the topic that no client names any more, unless a durable subscription uses it."""
        found = self.by_name.get(topic)
        if isinstance(found, Topic) and not found.durables:
            self.remove(found)

    def remove(self, target: Queue | Topic) -> None:
        """Delete ``target`` with all its messages. Only consumers with wildcards may still use it; they are
        removed from it."""
        destination = target.destination
        del self.by_name[destination]
        self.memory.add(Kind.STATE, -_bytes_of(destination))
        if destination.kind in self._names:
            names = self._names[destination.kind]
            nodes = names.count
            names.remove(destination.name, destination)
            self.memory.add(Kind.STATE, NODE_BYTES * (names.count - nodes))
        self.shares.pop(destination, None)
        self.idle.pop(destination, None)
        if destination in self.closed_to_producers or (isinstance(target, Queue) and target.is_paused):
            self.closed_to_producers.discard(destination)
            self.on_pause_ended(destination)
        user = self._makers.pop(destination, None)
        if user is not None:
            self._made_by[user] -= 1
            if not self._made_by[user]:
                del self._made_by[user]
        if isinstance(target, Topic):
            target.drop()
            return
        for consumer in list(target.users):
            target.close(consumer)
        self.by_owner.pop(target.owner, None)
        self._virtual.forget(destination)
        self._start(target.drop())

    def remember_idle(self, destination: Destination) -> None:
        """Remember that ``destination`` ended because it was unused."""
        if len(self.idle) >= IDLE_REMEMBERED_MAX:
            del self.idle[next(iter(self.idle))]
        self.idle[destination] = None

    def _check_may_begin(self, destination: Destination, user: str | None) -> None:
        self._check_is_not_ours(destination)
        if destination.kind > DestinationKind.TOPIC:
            raise refusal(
                f"There is no destination {destination}",
                "A temporary destination ends with the connection that made it.",
                ErrorKind.DESTINATION,
            )
        if not self._policies.of(destination).auto_create:
            raise refusal(
                f"There is no destination {destination}",
                "auto_create is off for it: a user with the admin right must create it first.",
                ErrorKind.DESTINATION,
            )
        self._check_quota(destination, user)

    def _check_is_not_ours(self, destination: Destination) -> None:
        if destination == PENDING:
            raise refusal(
                f"{destination} is reserved for the broker",
                "Scheduled messages wait there until they are due.",
                ErrorKind.DESTINATION,
            )

    def _check_quota(self, destination: Destination, user: str | None) -> None:
        """Check that there is room for ``destination``, and count it for ``user``, which creates it."""
        limit = self._settings.destinations_max
        left = limit - len(self.by_name) - len(self._asleep)
        if left <= 0:
            raise refusal(f"More than {limit} destinations (destinations_max)", kind=ErrorKind.RESOURCE)
        most = self._settings.user_destinations_max
        # prove: destinations-of-a-user "self._made_by[user] >= most" -> "self._made_by[user] > most"
        if user is not None and most is not None and self._made_by[user] >= most:
            raise refusal(
                f"User {user} made {most} destinations",
                f"user_destinations_max is {most}: remove some.",
                ErrorKind.RESOURCE,
            )
        if user is not None and self._made_by[user] >= left:
            raise refusal(
                f"User {user} made {self._made_by[user]} destinations, and only {left} are available",
                f"No user can have more than are still available of {limit} (destinations_max): remove some.",
                ErrorKind.RESOURCE,
            )
        memory = self.memory
        if not memory.has_room_for_state:
            raise refusal(
                "Destinations, subscriptions and connections use all of their memory",
                f"memory_limit of the broker is {memory.limit} bytes.",
                ErrorKind.RESOURCE,
            )
        entry = self._policies.entry(destination)
        most = None if entry is None else entry.policy.max_destinations
        # The destinations are counted here each time: a destination begins only once, and few have such a limit.
        if (
            entry is not None
            and most is not None
            and sum(self._policies.entry(each) is entry for each in self.names()) >= most
        ):
            raise refusal(
                f"More than {most} destinations match {entry.pattern}",
                f"max_destinations is {most} for them.",
                ErrorKind.RESOURCE,
            )
        self._count(destination, user)

    def _count(self, destination: Destination, user: str | None) -> None:
        if user is not None:
            self._makers[destination] = user
            self._made_by[user] += 1

    # ---- wildcards

    def watch(
        self,
        subscription: Subscription,
        pattern: Destination,
        may_read: Callable[[Destination], bool] = lambda destination: True,
    ) -> Work[None]:
        """Let ``subscription`` take part in all matching destinations, now and later, until ``unwatch``, except those
        that ``may_read`` excludes. Topics add the subscription when they are next used; existing queues are joined in
        steps. ClientError if the client would use too much memory: call ``unwatch`` then."""
        watch = Watch(subscription, may_read)
        matching = Pattern(pattern.name)
        holder = subscription.outlet.holder
        holder.add(Kind.STATE, WATCH_BYTES + NAME_BYTES * len(pattern.name))
        self._watching[pattern.kind].add(matching, watch)
        self._watched.setdefault(subscription, []).append((pattern, watch))
        if pattern.is_topic:
            return
        pace = Pace()
        found = yield from self._names_of(pattern.kind, pace)
        for destinations in found.matching(matching):
            for destination in destinations:
                if not subscription.is_open:
                    return
                queue = self.by_name.get(destination) or self._wake(destination)  # ``_wake`` lets it join
                if queue is None:
                    continue  # the queue has ended
                assert isinstance(queue, Queue), "a topic has another kind in its name"
                _take_part(queue, watch)
                if holder.by_kind[Kind.STATE] > self.memory.held_max and not self.memory.has_room_for_pairs:
                    raise refusal(
                        f"{pattern} matches more queues than there is memory for",
                        f"memory_limit of the broker is {self.memory.limit} bytes.",
                        ErrorKind.RESOURCE,
                    )
                if pace.is_full(_OPENED + queue.held):
                    yield
            if pace.is_full():
                yield

    def _enter(self, target: Queue | Topic) -> None:
        """Register ``target`` by its name."""
        destination = target.destination
        self.by_name[destination] = target
        self.memory.add(Kind.STATE, _bytes_of(destination))
        if destination.kind in self._names:
            self._name(self._names[destination.kind], destination)

    def _name(self, names: NameTrie[Destination], destination: Destination) -> None:
        """Register ``destination`` for look-ups by patterns."""
        nodes = names.count
        names.add(destination.name, destination)
        self.memory.add(Kind.STATE, NODE_BYTES * (names.count - nodes))

    def _names_of(self, kind: DestinationKind, pace: Pace) -> Work[NameTrie[Destination]]:
        found = self._names.setdefault(kind, NameTrie())  # later destinations are added, ended ones removed
        if kind not in self._named:
            for destination in self.names():
                if destination.kind is kind and self.exists(destination):
                    self._name(found, destination)
                if pace.is_full():
                    yield
            self._named.add(kind)
        return found

    def patterns_of(self, subscription: Subscription) -> list[Destination]:
        """Patterns of ``subscription``."""
        return [pattern for pattern, _ in self._watched.get(subscription, ())]

    def unwatch(self, subscription: Subscription) -> Work[None]:
        """Remove all patterns of ``subscription``, which is closed, and its part in the topics that they match."""
        watched = self._watched.pop(subscription, ())
        for pattern, watch in watched:
            self._watching[pattern.kind].remove(Pattern(pattern.name), watch)
            subscription.outlet.holder.add(Kind.STATE, -(WATCH_BYTES + NAME_BYTES * len(pattern.name)))
        for kind in {pattern.kind for pattern, _ in watched}:
            yield from self._watching[kind].forget(subscription)

    # ---- durable subscriptions

    def _durable_of(self, owner: Owner, name: str) -> DurableSubscriber:
        """Return the durable subscriber that the store's ``owner`` is a part of."""
        key = subscription_key(owner.client_id or "", name)
        durable = self.durables.get(key)
        if durable is None:
            subscribed = owner.destination if owner.pattern is None else owner.destination._replace(name=owner.pattern)
            # ActiveMQ keeps an empty selector, which takes all.
            make = SharedSubscriber if owner.client_id == CLIENT_ID else DurableSubscriber
            durable = make(owner.client_id or "", name, subscribed, owner.selector or None, owner.no_local)
            self.add_durable(durable)
        if durable.user is None:
            self.claim(durable, owner.user)
        if owner.user is None:
            durable.unclaimed.add(owner.destination)
        return durable

    def add_durable(self, durable: DurableSubscriber) -> None:
        """Add a durable subscriber without parts and user."""
        self.memory.add(Kind.STATE, _bytes_of_durable(durable))
        self.durables[subscription_key(durable.client_id, durable.name)] = durable
        self._durable_names.setdefault(durable.client_id, {})[durable.name] = None
        if durable.is_of_pattern:
            self._of_patterns.append(durable)

    def claim(self, durable: DurableSubscriber, user: str | None) -> None:
        """Make ``user`` the user of a durable subscriber that has none; None: it stays without a user."""
        durable.user = user
        self.users.add(durable.client_id, user)

    def add_part(
        self,
        durable: DurableSubscriber,
        destination: Destination,
        owner: int,
        selector_text: str | None,
        *,
        unread: int = 0,
    ) -> DurableSubscription:
        """Add ``destination`` to ``durable``. ``unread``: number of its messages in the store if the part is not new. A
        part whose stored selector is not valid here takes every message, because messages that it skipped could not
        be recovered."""
        key = subscription_key(durable.client_id, durable.name)
        selector = None
        if selector_text is not None:
            try:
                selector = compile_selector(selector_text)
            except ClientError as error:
                log.warning("durable subscription %s takes every message: %s", key, error.message)
        part = DurableSubscription(
            destination,
            owner,
            self._settings,
            self._share_of(destination),
            durable.client_id,
            durable.name,
            key,
            selector=selector,
            no_local=durable.is_no_local,
            unread=unread,
            is_prioritized=self._policies.of(destination).prioritized_messages,
            is_shared=isinstance(durable, SharedSubscriber),
        )
        durable.parts[destination] = part
        self.memory.add(Kind.STATE, PART_BYTES)
        topic = self.by_name.get(destination) or self._add_topic(destination)
        assert isinstance(topic, Topic), "a queue has another kind in its name"
        topic.add_durable(part)
        self.by_owner[owner] = part
        return part

    def durable_names(self, client_id: str) -> tuple[str, ...]:
        """Names of the durable subscriptions of that client id."""
        return tuple(self._durable_names.get(client_id, ()))

    def of_patterns(self) -> list[DurableSubscriber]:
        """Durable subscribers that also take part in topics that begin later."""
        return list(self._of_patterns)

    def is_there(self, topic: Topic, durable: DurableSubscriber) -> bool:
        """Return whether both still exist."""
        key = subscription_key(durable.client_id, durable.name)
        return self.by_name.get(topic.destination) is topic and self.durables.get(key) is durable

    def remove_durable(self, durable: DurableSubscriber) -> None:
        """Delete ``durable``. The caller has closed its consumer, and removes each of its parts, too."""
        del self.durables[subscription_key(durable.client_id, durable.name)]
        self.users.remove(durable.client_id, durable.user)
        self.memory.add(Kind.STATE, -_bytes_of_durable(durable))
        names = self._durable_names[durable.client_id]
        del names[durable.name]
        if not names:
            del self._durable_names[durable.client_id]
        if durable.is_of_pattern:
            self._of_patterns.remove(durable)

    def remove_part(self, part: DurableSubscription) -> None:
        """Delete ``part`` with all its messages."""
        topic = self.by_name[part.destination]
        assert isinstance(topic, Topic), "a queue has another kind in its name"
        topic.remove_durable(part)
        del self.by_owner[part.owner]
        self.memory.add(Kind.STATE, -PART_BYTES)
        self._start(part.drop())

    def parts(self) -> Iterator[DurableSubscription]:
        """Parts of all durable subscribers; those that begin or end meanwhile may be included or not."""
        return (part for durable in list(self.durables.values()) for part in list(durable.parts.values()))

    def queues(self) -> list[Queue]:
        return [each for each in self.by_name.values() if isinstance(each, Queue)]

    def topics(self) -> list[Topic]:
        return [each for each in self.by_name.values() if isinstance(each, Topic)]
