"""Topic: each message goes to every present subscriber, and to each durable subscription's own queue.

A plain subscriber that does not keep up does not delay the others: the number of messages that wait for it is bounded;
the oldest are dropped and counted. A durable subscription is a queue of the store. It has at most one consumer at a
time, and also exists without a consumer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Final

from tandemmq.broker.core import names
from tandemmq.broker.core.charging import SELECTOR_BUDGET, takes
from tandemmq.broker.core.delivery import (
    REDELIVERIES_MAX,
    Delivery,
    Entry,
    Outlet,
    Selector,
    Subscription,
    volatile_entry,
)
from tandemmq.broker.core.memory import PENDING_BYTES, TOPIC_LINK_BYTES, Kind
from tandemmq.broker.core.policies import Eviction
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import ITEMS, WEIGHED_BYTES, Pace, Work
from tandemmq.broker.core.topics.matching import NO_AUDIENCE, Audience, Watching
from tandemmq.broker.core.topics.recovery import Kept
from tandemmq.store.operations import Page
from tandemmq.store.records.message import Destination, Message

# The deque of all subscriptions that have had no message yet: one for each would take 760 bytes.
_NO_ENTRIES: Final[deque[Entry]] = deque(maxlen=0)


@dataclass(slots=True, eq=False, repr=False)
class TopicSubscription(Subscription):
    """A plain subscription of a topic, or (a wildcard) of several. ``pending`` messages wait for credit or for the
    socket. ``unsifted`` messages are newer, and wait for a test by an expensive selector. ``dropped`` counts losses.
    ``topics`` are the topics that it names without a wildcard."""

    settings: InitVar[EngineSettings]
    _: KW_ONLY
    pending_limit: InitVar[int | None] = None
    eviction: Eviction | None = None
    topics: dict[Topic, None] = field(default_factory=dict, init=False)
    pending: deque[Entry] = field(init=False)
    unsifted: deque[Entry] = field(init=False)
    pending_bytes: int = field(default=0, init=False)
    unsifted_bytes: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    # Called at each loss, if set.
    on_drop: Callable[[TopicSubscription, Message], None] | None = field(default=None, init=False)
    # Earlier messages are being examined; new ones are ``unsifted`` until that ends.
    is_recovering: bool = field(default=False, init=False)
    # Called when the first message becomes ``unsifted``: call ``sift`` until there is none.
    on_unsifted: Callable[[TopicSubscription], None] | None = field(default=None, init=False)
    _messages_max: int = field(init=False)
    _unsifted_max: int = field(init=False)
    _bytes_max: int = field(init=False)

    def __post_init__(self, settings: EngineSettings, pending_limit: int | None) -> None:
        Subscription.__post_init__(self)
        self._messages_max = settings.topic_pending_messages if pending_limit is None else max(1, pending_limit)
        self._unsifted_max = settings.topic_pending_messages
        self._bytes_max = settings.topic_pending_bytes
        self.pending = self.unsifted = _NO_ENTRIES

    def hold(self, entry: Entry) -> int:
        """Keep ``entry`` waiting. Drop the oldest messages if there are too many, or if the client holds too much
        memory; return the number dropped. Nothing waits for a closed subscription."""
        if not self.is_open:
            return 0
        dropped = self.dropped
        if self.pending is _NO_ENTRIES:
            self.pending = deque()
        pending = self.pending
        pending.append(entry)
        self.pending_bytes += entry.weight
        self.keep(entry, PENDING_BYTES)
        # The newest message is never dropped, even if it is too large.
        while len(pending) > 1 and (
            len(pending) > self._messages_max or self.pending_bytes > self._bytes_max or not self.holder.has_space
        ):
            lost = self._next() if self.eviction is None else self._take(self.eviction.choose(pending))
            self.dropped += 1
            if self.on_drop is not None:
                self.on_drop(self, lost.message)
        return self.dropped - dropped

    def take_back(self, entry: Entry, *, is_seen: bool) -> Entry:
        """Make the entry of a delivery that comes back, and count it as held. The caller collects such entries for
        ``give_back``. ``is_seen``: the message reached an application, and counts as redelivered."""
        again = volatile_entry(entry.message)  # other subscriptions have the same entry
        again.redeliveries = min(entry.redeliveries + is_seen, REDELIVERIES_MAX)
        again.refusals = min(entry.refusals + is_seen, REDELIVERIES_MAX)
        self.keep(again, PENDING_BYTES)
        return again

    def give_back(self, entries: list[Entry], pace: Pace) -> Work[None]:
        """Let entries of ``take_back``, oldest first, wait before all others, or release them if the subscription has
        ended. They count for no limit: the client had them."""
        if self.is_open:
            if self.pending is _NO_ENTRIES:
                self.pending = deque()
            self.pending.extendleft(reversed(entries))
            self.pending_bytes += sum([entry.weight for entry in entries])
            return
        for entry in entries:
            self.let_go(entry, PENDING_BYTES)  # prove: what-returns-to-an-ended-subscription-is-released
            if pace.is_full():
                yield

    def put_off(self, entry: Entry) -> int:
        """Postpone the test of ``entry`` by the selector; ``sift`` charges its time to the client of this subscription.
        The oldest messages are dropped when there are too many. No limit of a policy applies, because the client is not
        slow. The loss is not reported, because the selector may not take the message. Returns the number dropped."""
        if not self.is_open:
            return 0
        dropped = self.dropped
        if self.unsifted is _NO_ENTRIES:
            self.unsifted = deque()
        unsifted = self.unsifted
        unsifted.append(entry)
        self.unsifted_bytes += entry.weight
        self.keep(entry, PENDING_BYTES)
        while len(unsifted) > 1 and (
            len(unsifted) > self._unsifted_max or self.unsifted_bytes > self._bytes_max or not self.holder.has_space
        ):
            self._next_unsifted()
            self.dropped += 1
        if len(unsifted) == 1:
            self._ask_for_sifting()
        return self.dropped - dropped

    def recovered(self) -> None:
        """End the recovery: all earlier messages are ``pending`` now, and the newer ones can be tested."""
        self.is_recovering = False
        self._ask_for_sifting()

    def _ask_for_sifting(self) -> None:
        if self.unsifted and not self.is_recovering and self.on_unsifted is not None:
            self.on_unsifted(self)

    def sift(self, now: int) -> Delivery | None:
        """Test the oldest ``unsifted`` message with the selector. A message that it takes is delivered now, or
        waits."""
        entry = self._next_unsifted()
        if 0 < entry.message.expiration <= now:
            return None
        if self.selector is not None and not self.selector.matches(entry.message):
            return None
        if self.pending or self.credit <= 0 or not self.outlet.is_writable:
            self.hold(entry)
            return None
        return self, self.hand(entry), entry

    def dispatch(self, now: int) -> list[Delivery]:
        """Return deliveries of waiting messages. The outlet is checked once: call again until nothing comes."""
        deliveries: list[Delivery] = []
        pending = self.pending
        if not self.outlet.is_writable:
            return deliveries
        while pending and self.credit > 0 and len(deliveries) < _ROUND_MESSAGES:
            entry = self._next()
            expiration = entry.message.expiration
            if not expiration or expiration > now:
                deliveries.append((self, self.hand(entry), entry))
        return deliveries

    def _take(self, place: int) -> Entry:
        """Take out the waiting message at ``place``."""
        self.pending.rotate(-place)
        entry = self._next()
        self.pending.rotate(place)
        return entry

    def _next(self) -> Entry:
        """Take out the oldest waiting message."""
        entry = self.pending.popleft()
        self.pending_bytes -= entry.weight
        self.let_go(entry, PENDING_BYTES)
        return entry

    def _next_unsifted(self) -> Entry:
        entry = self.unsifted.popleft()
        self.unsifted_bytes -= entry.weight
        self.let_go(entry, PENDING_BYTES)
        return entry

    def let_go_of_all(self, pace: Pace) -> Work[None]:
        """Release the ended subscription's waiting and unacknowledged messages."""
        while self.pending or self.unsifted:
            self._next() if self.pending else self._next_unsifted()
            if pace.is_full():
                yield
        self.clear()


def _is_expensive(selector: Selector | None) -> bool:
    return selector is not None and not selector.is_cheap


_ROUND_MESSAGES = 128
# Up to this number of ids, a search in the list is as fast as building a set.
_FEW = 8


@dataclass(slots=True, eq=False, repr=False)
class DurableSubscription(Queue):
    """Queue that a topic feeds for one named subscriber of one client id (broker.core.topics.durables)."""

    client_id: str
    name: str
    key: InitVar[str]
    _: KW_ONLY
    # Tested when a message arrives, with or without a consumer, so the queue holds only matching messages. Exception:
    # messages that ActiveMQ stored, because it tests at delivery.
    selector: Selector | None = None
    is_shared: bool = False  # any number of consumers
    # True if it takes no messages of connections of its client id, also while it has no consumer (Jakarta Messaging
    # 3.1, Session.createDurableConsumer; MQTT-3.8.3-3).
    no_local: bool = False
    # Non-persistent messages are not kept for an MQTT client that is not connected (MQTT 5.0, 4.1: not required for QoS
    # 0): their publisher would wait for a client that may never return.
    is_of_mqtt: bool = field(init=False)
    # Its consumer, from the moment of SUBSCRIBE; messages flow when it is in ``consumers``.
    subscription: Subscription | None = field(default=None, init=False)

    def __post_init__(self, key: str) -> None:
        Queue.__post_init__(self)
        self.subscription_key = key
        self.is_of_mqtt = self.name.startswith(names.MQTT_GATHERING)

    def reserve(self, subscription: Subscription) -> None:
        """Make ``subscription`` the one consumer, unless the queue is shared."""
        if self.is_shared:
            return
        assert self.subscription is None, "it has one consumer at a time"
        self.subscription = subscription
        subscription.queues[self] = None
        self.set_no_local(subscription)

    def set_no_local(self, subscription: Subscription) -> None:
        """Set whether its consumer takes messages of its own client."""
        self.no_local = subscription.no_local

    def has_room(self, message: Message) -> bool:
        """Return whether ``message``, which is not persistent, may wait here. A shared subscription drops messages that
        it does not take in time, like a plain one, so no sender waits for it."""
        return not self.is_shared or self.share.fits(message.size, self._settings.topic_pending_bytes)

    @property
    def is_selective(self) -> bool:
        """True if it may refuse a message."""
        return self.selector is not None or self.no_local or (self.is_of_mqtt and self.subscription is None)

    @property
    def is_expensive(self) -> bool:
        """True if the test of one message may take a noticeable part of a step."""
        return _is_expensive(self.selector)

    def wants(self, message: Message, sender: str | None) -> bool:
        """Return whether it takes a message that a connection of the client id ``sender`` sent; None: no client id."""
        if self.no_local and sender == self.client_id:
            return False
        if self.is_of_mqtt and self.subscription is None and not message.persistent:
            return False
        selector = self.selector
        if selector is None or selector.is_cheap:
            return selector is None or selector.matches(message)
        subscription = self.subscription
        if subscription is None and self.consumers:
            # One of those that share it; all of them have this selector.
            subscription = self.consumers[0]  # prove: shared-selectors-are-charged "self.consumers[0]" -> "None"
        return takes(selector, message, None if subscription is None else subscription.outlet.holder)

    def sift(self, page: Page) -> Work[list[Entry]]:
        """Remove from ``page`` the messages that the selector does not match, and return them. Call this before the
        queue takes the page (method ``page``), and remove the returned messages from the store before the next Page is
        read."""
        selector = self.selector
        unwanted: list[Entry] = []
        if selector is None or self.is_rereading:
            return unwanted
        pace = Pace()
        pace.begin()
        is_full = pace.is_full if selector.is_cheap else pace.is_over
        wanted = []
        for paged in page.messages:
            if selector.matches(paged.message):
                wanted.append(paged)
            else:
                unwanted.append(Entry(paged.message, paged.order_key, paged.location, paged.size, 0))
            if is_full(1 + paged.size // WEIGHED_BYTES):
                # Messages that become durable during the pause are only counted by the queue (window.py, rule 3) and
                # are not in this page. So the page is not the end, and the queue reads on.
                page.is_end = False  # prove: sifted-page-has-no-end
                yield
        page.messages = wanted
        self.unread -= len(unwanted)
        return unwanted

    def close(self, subscription: Subscription, came_back: deque[Entry] | None = None) -> Work[None]:
        freed = Queue.close(self, subscription, came_back)
        self.subscription = None
        return freed


@dataclass(slots=True, eq=False, repr=False)
class Topic:
    """Topic: its plain subscriptions (those that name it, and the audience of matching patterns), and its durable
    ones by key."""

    destination: Destination
    _watching: Watching
    kept: Kept | None = None  # for retroactive consumers
    _named_by: dict[TopicSubscription, None] = field(default_factory=dict, init=False)
    _matched: Audience = field(default=NO_AUDIENCE, init=False)
    _version: int = field(default=0, init=False)  # version of the patterns when ``_matched`` was read
    # Steps that add the topic to very many durable subscriptions with patterns; a sender completes them first.
    beginning: Work[None] | None = field(default=None, init=False)
    is_dropped: bool = field(default=False, init=False)
    durables: dict[str, DurableSubscription] = field(default_factory=dict, init=False)
    enqueued: int = field(default=0, init=False)
    dispatched: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    _owners: tuple[int, ...] | None = field(default=(), init=False)
    # True if publishing a message is divided into steps, because of very many durable subscriptions or expensive
    # selectors.
    is_wide: bool = field(default=False, init=False)
    # Number of subscriptions with an expensive selector: durable ones, and plain ones.
    _expensive: int = field(default=0, init=False)
    _expensive_plain: int = field(default=0, init=False)

    @property
    def owner(self) -> int:
        """Always 0: the store knows a topic only by its durable subscriptions."""
        return 0

    def __repr__(self) -> str:
        return f"<Topic {self.destination}, {len(self.subscribers)} subscribers, {len(self.durables)} durable>"

    @property
    def subscribers(self) -> Collection[TopicSubscription]:
        """Plain subscriptions: those that name it, in the order in which they came, and those with wildcards. The
        latter join at the next read: a pattern that matches a hundred thousand topics costs each of them one check."""
        matched = self._matched
        if self._version != self._watching.version and not self.is_dropped:
            matched = self._watching.audience(self.destination, matched, self._named_by)
            if matched.topics or matched is NO_AUDIENCE:
                self._matched, self._version = matched, self._watching.version
        if not matched.members:
            return self._named_by.keys()
        return (*self._named_by, *matched.members) if self._named_by else matched.members

    def open(self, subscription: TopicSubscription) -> None:
        """Add ``subscription``, which names the topic."""
        subscription.topics[self] = None
        subscription.outlet.holder.add(Kind.STATE, TOPIC_LINK_BYTES)
        self._named_by[subscription] = None
        self._expensive_plain += subscription.is_expensive

    def close(self, subscription: TopicSubscription) -> None:
        """Remove ``subscription``, which names the topic. It ends, or continues without this topic and keeps its
        messages."""
        del self._named_by[subscription]
        del subscription.topics[self]
        subscription.outlet.holder.add(Kind.STATE, -TOPIC_LINK_BYTES)
        self._expensive_plain -= subscription.is_expensive

    def drop(self) -> None:
        """Delete the topic."""
        self.is_dropped = True
        if self.kept is not None:
            self.kept.clear()
        for subscription in list(self._named_by):
            self.close(subscription)
        self._watching.leave(self._matched)
        self._matched = NO_AUDIENCE

    def add_durable(self, durable: DurableSubscription) -> None:
        durable.topic = self
        assert durable.subscription_key is not None, "a durable subscription has a key"
        self.durables[durable.subscription_key] = durable
        self._expensive += durable.is_expensive
        self._changed()

    def remove_durable(self, durable: DurableSubscription) -> None:
        assert durable.subscription_key is not None, "a durable subscription has a key"
        del self.durables[durable.subscription_key]
        self._expensive -= durable.is_expensive
        self._changed()

    def _changed(self) -> None:
        self._owners = None
        self.is_wide = self._expensive > 0 or len(self.durables) > ITEMS

    @property
    def expensive(self) -> int:
        """Number of plain subscribers with an expensive selector."""
        return self._expensive_plain + self._matched.expensive

    @property
    def owners(self) -> tuple[int, ...]:
        """Ids of its durable subscriptions. The object changes only when they do."""
        owners = self._owners
        if owners is None:
            owners = self._owners = tuple(each.owner for each in self.durables.values())
        return owners

    def takers(self, message: Message, sender: str | None) -> tuple[int, ...]:
        """Return the ids of the durable subscriptions that take a message from the client id ``sender``; None: no
        client id."""
        durables = self.durables.values()
        for durable in durables:
            if durable.is_selective:
                return tuple(each.owner for each in durables if each.wants(message, sender))
        return self.owners

    @property
    def shares(self) -> Iterable[Share]:
        """Memory shares of the durable subscriptions whose senders must wait."""
        return (durable.share for durable in self.durables.values() if not durable.is_shared)

    def unmatched(self, owners: Collection[int]) -> list[str]:
        """Return the keys of the durable subscriptions that are not among ``owners``."""
        if len(owners) > _FEW:
            owners = set(owners)
        return [key for key, each in self.durables.items() if each.owner not in owners]

    def publish(self, message: Message, origin: Outlet) -> list[Delivery]:
        """Give ``message`` to every plain subscriber: delivered now, or kept waiting."""
        return self.give(self.enter(message), origin, self.subscribers)

    def enter(self, message: Message) -> Entry:
        """Record a message that was sent here, and return its entry for the subscribers."""
        self.note(message)
        return volatile_entry(message)

    def note(self, message: Message) -> None:
        """Record a message as ``enter`` does, without subscribers."""
        self.enqueued += 1
        if self.kept is not None:
            self.kept.add(message)

    def give(self, entry: Entry, origin: Outlet, subscribers: Iterable[TopicSubscription]) -> list[Delivery]:
        """Give ``entry`` to each of ``subscribers``: delivered now, or kept waiting. Expensive selectors are evaluated
        while there is time for them; the others later."""
        deliveries: list[Delivery] = []
        message = entry.message
        for subscription in subscribers:
            outlet = subscription.outlet
            if subscription.no_local and outlet is origin:
                continue
            selector = subscription.selector
            if selector is not None:
                if subscription.unsifted or subscription.is_recovering:
                    self.dropped += subscription.put_off(entry)
                    continue
                if selector.is_cheap:
                    if not selector.matches(message):
                        continue
                else:
                    is_taken = SELECTOR_BUDGET.takes(selector, message, outlet.holder)
                    if is_taken is None:
                        self.dropped += subscription.put_off(entry)
                    if not is_taken:
                        continue
            if subscription.pending or subscription.credit <= 0 or not outlet.is_writable:
                self.dropped += subscription.hold(entry)
            else:
                deliveries.append((subscription, subscription.hand(entry), entry))
        self.dispatched += len(deliveries)
        return deliveries
