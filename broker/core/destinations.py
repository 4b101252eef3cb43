"""All queues, topics and durable subscriptions of one engine, by name and by the store's id."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from broker.core.commands import ClientError, ErrorKind
from broker.core.durables import DurableSubscriber
from broker.core.memory import DESTINATION_BYTES, Kind, Memory, Share
from broker.core.names import Pattern, is_advisory
from broker.core.pending import PENDING
from broker.core.policies import Policies
from broker.core.queue import Queue
from broker.core.selector import compile_selector
from broker.core.settings import EngineSettings
from broker.core.slices import Pace, Work, at_once
from broker.core.subscription import Subscription
from broker.core.topic import DurableSubscription, Topic, TopicSubscription
from broker.core.trie import NameTrie
from broker.core.virtual_topics import VirtualTopics
from broker.core.watching import Watch, Watching
from store.operations import Owner
from store.records.commands import subscription_key
from store.records.message import Destination, DestinationKind

log = logging.getLogger(__name__)

# Queues that get what is sent to a virtual topic: Consumer.<anything>.VirtualTopic.<rest> (VirtualTopic's defaults).
NO_POLICIES = Policies(())
# What it takes to wake a queue and have somebody take part in it, in items of a step.
_OPENED = 4
# What it takes to have a durable subscription of the store take part in its topic, likewise.
_BEGUN = 8


def _take_part(queue: Queue, watch: Watch) -> None:
    if watch.subscription not in queue.consumers and watch.may_read(queue.destination):
        queue.open(watch.subscription)


class Destinations:
    """Queues and topics come into being when they are first named. ``new_queue`` gives a queue's id in the store.

    That holds for queues that the store has from before, too: clients wait while a master takes over, and there may be
    ten thousand (``asleep``). ``by_name`` and ``by_owner`` have those that were named; they are read directly on hot
    paths, and only this class changes them.

    Where a method takes a ``user``, he is who made what begins, and it counts as his until it ends; None: it is
    nobody's. Nobody may have more than are left for all.

    ``shares`` are what those with a ``memory_limit`` hold. ``on_topic`` is told of each topic that begins, ``on_new``
    of whatever begins, but both not of advisory topics. A subscription with wildcards (``watch``) takes part in what
    matches now, and in what begins later. ``pending`` is where the store keeps what waits for its time, if it does.
    """

    __slots__ = (
        "_asleep",
        "_made_by",
        "_makers",
        "_memory",
        "_named",
        "_names",
        "_new_queue",
        "_of_patterns",
        "_policies",
        "_settings",
        "_start",
        "_virtual",
        "_watched",
        "_watching",
        "by_name",
        "by_owner",
        "durables",
        "on_new",
        "on_topic",
        "pending",
        "shares",
    )

    def __init__(
        self,
        settings: EngineSettings,
        memory: Memory,
        new_queue: Callable[[Destination], int],
        owners: Iterable[Owner],
        policies: Policies = NO_POLICIES,
        on_new: Callable[[Destination], object] = lambda destination: None,
        start: Callable[[Work[None]], object] = at_once,
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._new_queue = new_queue
        self._policies = policies
        self.on_new = on_new
        self._start = start
        self.by_name: dict[Destination, Queue | Topic] = {}
        self.by_owner: dict[int, Queue] = {}
        self.on_topic: Callable[[Topic], object] = lambda topic: None
        self.durables: dict[str, DurableSubscriber] = {}
        self._of_patterns: list[DurableSubscriber] = []
        self.shares: dict[Destination, Share] = {}
        self._makers: dict[Destination, str] = {}
        self._made_by: Counter[str] = Counter()
        self._asleep: dict[Destination, Owner] = {}
        # Of the kinds that a pattern was asked for: a take-over of many queues does not wait for it.
        self._names: dict[DestinationKind, NameTrie[Destination]] = {}
        self._named: set[DestinationKind] = set()  # of which all names are there
        # What subscriptions with wildcards look for, in the order in which they came; and the patterns of each.
        self._watching = {kind: Watching() for kind in DestinationKind}
        self._watched: dict[Subscription, list[tuple[Destination, Watch]]] = {}
        self._virtual = VirtualTopics()
        self.pending: Owner | None = None
        at_once(self.take_over(owners))

    def take_over(self, owners: Iterable[Owner]) -> Work[None]:
        """What the store has from before is there, too. To be done before ``on_new`` and ``on_topic`` are set: nothing
        of it begins now."""
        pace = Pace()
        for owner in owners:
            items = 1
            if owner.destination == PENDING:
                self.pending = owner
            elif owner.subscription_name is None:
                self._asleep[owner.destination] = owner
                self._virtual.know(owner.destination)
            else:
                durable = self._durable_of(owner, owner.subscription_name)
                self.add_part(durable, owner.destination, owner.id, owner.selector or None, unread=owner.count)
                items = _BEGUN
            if pace.is_full(items):
                yield

    @property
    def memory(self) -> Memory:
        """What all of them count in."""
        return self._memory

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
        if owner:
            self.by_owner[owner] = queue
        self._enter(queue)
        for watch in self._watching[destination.kind].of(destination.name):
            _take_part(queue, watch)
        if is_new:
            self._virtual.know(destination)
            self.on_new(destination)
        return queue

    def _share_of(self, destination: Destination) -> Share:
        """What a queue of it counts in: those of one topic's durable subscriptions in the same, if it has a limit."""
        limit = self._policies.of(destination).memory_limit
        if limit is None:
            return Share(self._memory)
        share = self.shares.get(destination)
        if share is None:
            share = self.shares[destination] = Share(self._memory, limit)
        return share

    def virtual_queues(self, topic: str) -> Collection[Destination]:
        """The queues that get a copy of what is sent to the topic of that name."""
        return self._virtual.queues(topic)

    def asleep(self) -> Collection[Owner]:
        """The store's queues that nobody has named yet, as they were when it was opened."""
        return self._asleep.values()

    def names(self) -> list[Destination]:
        """Of everything there is, named since the start or not."""
        return [*self.by_name, *self._asleep]

    def is_empty(self, destination: Destination) -> bool:
        """Whether that is one of those that nobody has named yet, and the store has no message of it."""
        owner = self._asleep.get(destination)
        return owner is not None and not owner.count

    def exists(self, destination: Destination) -> bool:
        return destination in self.by_name or destination in self._asleep

    def _wake(self, destination: Destination) -> Queue | None:
        """The queue of that name, if the store has it and nobody has named it yet."""
        owner = self._asleep.pop(destination, None)
        if owner is None:
            return None
        return self._add_queue(destination, owner.id, unread=owner.count, is_new=False)

    def wake_owner(self, owner: int) -> Queue | None:
        """The store's queue of that id, if nobody has named it yet. Looks through all of those: for rare occasions."""
        for destination, each in self._asleep.items():
            if each.id == owner:
                return self._wake(destination)
        return None

    def queue(self, destination: Destination, user: str | None = None) -> Queue:
        """The queue of that name, a new one if there is none. ClientError when there are too many destinations, when
        nobody may make it by naming it, and for a temporary one that is not there (any more)."""
        found = self.by_name.get(destination) or self._wake(destination)
        if found is None:
            self._check_may_begin(destination, user)
            return self._add_queue(destination, self._new_owner(destination))
        assert isinstance(found, Queue), "a topic has another kind in its name"
        found.is_leaving = False
        return found

    def _new_owner(self, destination: Destination) -> int:
        return self._new_queue(destination) if destination.kind is DestinationKind.QUEUE else 0

    def dead_letter_queue(self, destination: Destination) -> Queue:
        """As ``queue``, but there is always room: a message must not be lost for want of a name."""
        found = self.by_name.get(destination) or self._wake(destination)
        if found is None:
            return self._add_queue(destination, self._new_queue(destination))
        assert isinstance(found, Queue), "a topic has another kind in its name"
        found.is_leaving = False
        return found

    def topic(self, destination: Destination, user: str | None = None) -> Topic:
        """As ``queue``."""
        found = self.by_name.get(destination)
        if found is None:
            self._check_may_begin(destination, user)
            return self._add_topic(destination)
        assert isinstance(found, Topic), "a queue has another kind in its name"
        return found

    def _add_topic(self, destination: Destination) -> Topic:
        topic = Topic(destination, self._watching[destination.kind])
        self._enter(topic)
        if not is_advisory(destination):
            self.on_topic(topic)
            self.on_new(destination)
        return topic

    def route(self, destination: Destination, user: str | None = None) -> Queue | Topic:
        """Where a message to ``destination`` goes."""
        return self.topic(destination, user) if destination.is_topic else self.queue(destination, user)

    def heard(self, topic: Destination) -> tuple[Topic, Sequence[TopicSubscription]]:
        """A topic, and who hears what is told there. One that nobody named is there for this alone, for those who
        subscribed to a pattern."""
        found = self.by_name.get(topic)
        if found is not None:
            assert isinstance(found, Topic), "a queue has another kind in its name"
            return found, found.audience
        watching = self._watching[topic.kind]
        hearing = {watch.subscription: None for watch in watching.of(topic.name) if watch.may_read(topic)}
        return Topic(topic, watching), [each for each in hearing if isinstance(each, TopicSubscription)]

    def create(self, destination: Destination, user: str | None = None) -> None:
        """It begins, if it is not there: also where naming it is not enough. ClientError when there are too many."""
        if self.exists(destination):
            return
        self._check_is_not_ours(destination)
        self._check_room(destination, user)
        if destination.is_topic:
            self._add_topic(destination)
        else:
            self._add_queue(destination, self._new_owner(destination))

    def add_temporary(self, destination: Destination, user: str | None = None) -> None:
        """A temporary one begins; again, after a failover, is no mistake. ClientError when there are too many."""
        if destination not in self.by_name:
            self._check_room(destination, user)
            if destination.is_topic:
                self._add_topic(destination)
            else:
                self._add_queue(destination, 0)

    def remove_unasked(self, topic: Destination) -> None:
        """Nobody has asked for that topic by its name any more, unless a durable subscription did."""
        found = self.by_name.get(topic)
        if isinstance(found, Topic) and not found.durables:
            self.remove(found)

    def remove(self, target: Queue | Topic) -> None:
        """It is deleted with all it held. It has no consumers any more but those with wildcards, which let go of it."""
        destination = target.destination
        del self.by_name[destination]
        self._memory.add(Kind.STATE, -DESTINATION_BYTES)
        if destination.kind in self._names:
            self._names[destination.kind].remove(destination.name, destination)
        self.shares.pop(destination, None)
        user = self._makers.pop(destination, None)
        if user is not None:
            self._made_by[user] -= 1
            if not self._made_by[user]:
                del self._made_by[user]
        if isinstance(target, Topic):
            for subscriber in list(target.subscribers):
                target.let_go(subscriber)
                del subscriber.topics[target]
            return
        for consumer in list(target.consumers):
            target.close(consumer)
            del consumer.queues[target]
        self.by_owner.pop(target.owner, None)
        self._virtual.forget(destination)
        self._start(target.drop())

    def _check_may_begin(self, destination: Destination, user: str | None) -> None:
        self._check_is_not_ours(destination)
        if destination.kind > DestinationKind.TOPIC:
            raise ClientError(
                f"There is no destination {destination}",
                "A temporary destination ends with the connection that made it.",
                is_fatal=False,
                kind=ErrorKind.DESTINATION,
            )
        if not self._policies.of(destination).auto_create:
            raise ClientError(
                f"There is no destination {destination}",
                "auto_create is off for it: somebody with the right to must create it first.",
                is_fatal=False,
                kind=ErrorKind.DESTINATION,
            )
        self._check_room(destination, user)

    def _check_is_not_ours(self, destination: Destination) -> None:
        if destination == PENDING:
            raise ClientError(
                f"{destination} is the broker's own",
                "Messages wait there for their time.",
                is_fatal=False,
                kind=ErrorKind.DESTINATION,
            )

    def _check_room(self, destination: Destination, user: str | None) -> None:
        """There is room for it, which ``user`` makes now: it counts as his."""
        limit = self._settings.destinations_max
        left = limit - len(self.by_name) - len(self._asleep)
        if left <= 0:
            raise ClientError(
                f"More than {limit} destinations (destinations_max)", is_fatal=False, kind=ErrorKind.RESOURCE
            )
        if user is not None and self._made_by[user] >= left:
            raise ClientError(
                f"User {user} made {self._made_by[user]} destinations, and {left} are left for all",
                f"Of the {limit} that there may be (destinations_max) nobody has more than are left: remove some.",
                is_fatal=False,
                kind=ErrorKind.RESOURCE,
            )
        memory = self._memory
        if memory.by_kind[Kind.STATE] > memory.free:
            raise ClientError(
                "Destinations, subscriptions and connections fill their memory",
                f"memory_limit of the broker is {memory.limit} bytes.",
                is_fatal=False,
                kind=ErrorKind.RESOURCE,
            )
        entry = self._policies.entry(destination)
        most = None if entry is None else entry.policy.max_destinations
        # Counted anew for each: it begins once, and those that have such a limit are few.
        if (
            entry is not None
            and most is not None
            and sum(self._policies.entry(each) is entry for each in self.names()) >= most
        ):
            raise ClientError(
                f"More than {most} destinations match {entry.pattern}",
                f"max_destinations is {most} for them.",
                is_fatal=False,
                kind=ErrorKind.RESOURCE,
            )
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
        """``subscription`` takes part in all that match, now and later, until ``unwatch``; but for what ``may_read``
        keeps from it. Topics find that out by themselves when they are next looked at; of queues, those that there are
        take some steps."""
        watch = Watch(subscription, may_read)
        matching = Pattern(pattern.name)
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
                queue = self.by_name.get(destination) or self._wake(destination)  # which opens it
                if queue is None:
                    continue  # it ended meanwhile
                assert isinstance(queue, Queue), "a topic has another kind in its name"
                _take_part(queue, watch)
                if pace.is_full(_OPENED + queue.held):
                    yield
            if pace.is_full():
                yield

    def _enter(self, target: Queue | Topic) -> None:
        """It is found by its name from now on."""
        destination = target.destination
        self.by_name[destination] = target
        self._memory.add(Kind.STATE, DESTINATION_BYTES)
        if destination.kind in self._names:
            self._names[destination.kind].add(destination.name, destination)

    def _names_of(self, kind: DestinationKind, pace: Pace) -> Work[NameTrie[Destination]]:
        found = self._names.setdefault(kind, NameTrie())  # what begins or ends meanwhile is entered or taken away
        if kind not in self._named:
            for destination in self.names():
                if destination.kind is kind and self.exists(destination):
                    found.add(destination.name, destination)
                if pace.is_full():
                    yield
            self._named.add(kind)
        return found

    def unwatch(self, subscription: Subscription) -> None:
        for pattern, watch in self._watched.pop(subscription, ()):
            self._watching[pattern.kind].remove(Pattern(pattern.name), watch)

    # ---- durable subscriptions

    def _durable_of(self, owner: Owner, name: str) -> DurableSubscriber:
        """Whose part the store's ``owner`` is."""
        key = subscription_key(owner.client_id or "", name)
        durable = self.durables.get(key)
        if durable is None:
            subscribed = owner.destination if owner.pattern is None else owner.destination._replace(name=owner.pattern)
            # ActiveMQ keeps an empty selector, which takes all.
            durable = self.add_durable(
                DurableSubscriber(owner.client_id or "", name, subscribed, owner.selector or None, owner.no_local)
            )
        durable.user = durable.user or owner.user
        if owner.user is None:
            durable.unclaimed.add(owner.destination)
        return durable

    def add_durable(self, durable: DurableSubscriber) -> DurableSubscriber:
        """It begins, without parts."""
        self.durables[subscription_key(durable.client_id, durable.name)] = durable
        if durable.is_of_pattern:
            self._of_patterns.append(durable)
        return durable

    def add_part(
        self,
        durable: DurableSubscriber,
        destination: Destination,
        owner: int,
        selector_text: str | None,
        *,
        unread: int = 0,
    ) -> DurableSubscription:
        """``durable`` is of this topic, too, from now on or (``unread``) from before. What was stored under a selector
        that is none to us takes every message: its subscriber can do without one, and nobody can bring back what was
        passed over."""
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
            durable.client_id,
            durable.name,
            key,
            self._settings,
            self._share_of(destination),
            selector=selector,
            unread=unread,
            is_prioritized=self._policies.of(destination).prioritized_messages,
        )
        durable.parts[destination] = part
        topic = self.by_name.get(destination) or self._add_topic(destination)
        assert isinstance(topic, Topic), "a queue has another kind in its name"
        topic.add_durable(part)
        self.by_owner[owner] = part
        return part

    def lacking(self, topic: Destination) -> list[DurableSubscriber]:
        """The durable subscribers whose patterns match a topic of which they have no part."""
        return [each for each in self._of_patterns if each.lacks(topic)]

    def remove_durable(self, durable: DurableSubscriber) -> None:
        """It is deleted; each of its parts is to be removed, too. Its consumer was closed before."""
        del self.durables[subscription_key(durable.client_id, durable.name)]
        if durable.is_of_pattern:
            self._of_patterns.remove(durable)

    def remove_part(self, part: DurableSubscription) -> None:
        """It is deleted with all it held."""
        self.topic(part.destination).remove_durable(part)
        del self.by_owner[part.owner]
        self._start(part.drop())

    def parts(self) -> list[DurableSubscription]:
        """Of all durable subscribers."""
        return [part for durable in self.durables.values() for part in durable.parts.values()]

    def queues(self) -> list[Queue]:
        return [each for each in self.by_name.values() if isinstance(each, Queue)]

    def topics(self) -> list[Topic]:
        return [each for each in self.by_name.values() if isinstance(each, Topic)]
