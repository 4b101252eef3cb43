"""Durable subscriber: the subscription of one client id under one name, to one topic, to several, or to all that match
a pattern.

The store has it topic by topic, as KahaDB does (Topic.activate): for each matching topic there is a record with the
whole subscription, and a separate queue. If a pattern matched no topic when the subscription began, there is a record
for the topic ``names.PATTERNS``, to which no message is ever sent. From this record the next master gets the pattern,
and collects messages of topics that begin before the client returns. ActiveMQ has no such record, and forgets the
pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tandemmq.broker.core import names
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.topics.topic import DurableSubscription
from tandemmq.store.records.message import Destination


@dataclass(slots=True, eq=False, repr=False)
class DurableSubscriber:
    """Subscriber by name and client id. ``subscribed`` is the destination as the client named it; ``topics`` are the
    topics and patterns in it, ``parts`` its queue for each topic. ``record``: the store's number of its record for
    ``names.PATTERNS``; None: no such record. ``no_local`` None: unknown, because its record is older than OpenWire 11;
    its next consumer sets it."""

    client_id: str
    name: str
    subscribed: Destination
    selector_text: str | None
    no_local: bool | None
    parts: dict[Destination, DurableSubscription] = field(default_factory=dict, init=False)
    record: int | None = field(default=None, init=False)
    # Its user; None: no user has claimed it yet. Only ``Destinations.claim`` sets it.
    user: str | None = field(default=None, init=False)
    unclaimed: set[Destination] = field(default_factory=set, init=False)  # topics whose records lack the user
    _consumer: Subscription | None = field(default=None, init=False)
    _may_read: Callable[[Destination], bool] = field(init=False)
    topics: tuple[Destination, ...] = field(init=False)
    _patterns: tuple[names.Pattern, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._may_read = lambda topic: True
        self.topics = _topics(self.subscribed)
        self._patterns = tuple(names.Pattern(each.name) for each in self.topics if names.is_wildcard(each.name))

    @property
    def terms(self) -> tuple[tuple[Destination, ...], str | None, bool]:
        """Terms of the subscription: other terms under the same name mean another subscriber
        (TopicRegion.hasDurableSubChanged)."""
        return self.topics, self.selector_text, self.is_no_local

    @property
    def is_no_local(self) -> bool:
        """True if it never takes messages of its own client id. MQTT's No Local may change without a loss of collected
        messages (MQTT-3.8.4-4): there each consumer sets the value that applies from then on."""
        return bool(self.no_local) and not self.name.startswith(names.MQTT_GATHERING)

    @property
    def consumer(self) -> Subscription | None:
        """Consumer that takes its messages now; one at a time."""
        return self._consumer if self._consumer is not None and self._consumer.is_open else None

    @property
    def is_leaving(self) -> bool:
        """True while a closed consumer still holds messages or parts of this subscriber."""
        return self._consumer is not None and not self._consumer.is_open

    def left(self, subscription: Subscription) -> None:
        """Forget a consumer whose messages and parts are released."""
        if self._consumer is subscription:
            self._consumer = None

    def reserve(self, subscription: Subscription, may_read: Callable[[Destination], bool]) -> None:
        """Make ``subscription`` the one consumer; ``may_read`` tests which topics are open to it. ClientError when
        there is a consumer already."""
        self.check_unused()
        self._consumer = subscription
        self._may_read = may_read

    def may_read(self, topic: Destination) -> bool:
        """Return whether the consumer may read the topic. Without a consumer, True: messages are collected, even if a
        later consumer may not read them."""
        return self.consumer is None or self._may_read(topic)

    def check_unused(self) -> None:
        """Raise ClientError when it has a consumer."""
        if self.consumer is not None:
            raise ClientError(
                f"Durable consumer is in use for client: {self.client_id} and subscriptionName: {self.name}",
                "It has one consumer at a time.",
                kind=ErrorKind.STATE,
            )

    def lacks(self, topic: Destination) -> bool:
        """Return whether one of its patterns matches a topic of which it has no part."""
        return (
            topic.kind is self.subscribed.kind
            and topic not in self.parts
            and any(pattern.matches(topic.name) for pattern in self._patterns)
        )

    @property
    def missing(self) -> list[Destination]:
        """Topics that it names, of which it has no part."""
        kind = self.subscribed.kind
        named = (each for each in self.topics if each.kind is kind and not names.is_wildcard(each.name))
        return [each for each in named if each not in self.parts]

    @property
    def is_of_pattern(self) -> bool:
        """True if topics that begin later may belong to it."""
        return bool(self._patterns)


class UsersOfClientIds:
    """Users of the durable subscriptions and holdings (broker.core.topics.shared) of each client id, counted."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def of(self, client_id: str) -> Collection[str]:
        """Return the users who have durable subscriptions or holdings under that client id."""
        return self._counts.get(client_id, {}).keys()

    def add(self, client_id: str, user: str | None) -> None:
        if user is not None:
            self._counts.setdefault(client_id, Counter())[user] += 1

    def remove(self, client_id: str, user: str | None) -> None:
        if user is None:
            return
        counts = self._counts[client_id]
        counts[user] -= 1
        if not counts[user]:
            del counts[user]
        if not counts:
            del self._counts[client_id]


def _topics(subscribed: Destination) -> tuple[Destination, ...]:
    """Return the topics that ``subscribed`` names. A list that this broker would refuse (another broker stored it)
    counts as one topic."""
    if "," not in subscribed.name:
        return (subscribed,)
    try:
        return names.split(subscribed)
    except ClientError:
        return (subscribed,)
