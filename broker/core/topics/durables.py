"""A durable subscriber: what one client id asked for under one name, of one topic, of several, or of all that match a
pattern.

The store knows it topic by topic, as KahaDB does (Topic.activate): of each topic that it has met there is a record with
all that was asked for in it, and a queue of its own. Of a pattern that had met none when it began there is such a
record of the topic ``names.PATTERNS``, to which nothing is ever sent: by it the next master knows the pattern, and
gathers from topics that begin before its client is back. ActiveMQ, which has no such record, forgets it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tandemmq.broker.core import names
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.topics.topic import DurableSubscription
from tandemmq.store.records.message import Destination


@dataclass(slots=True, eq=False, repr=False)
class DurableSubscriber:
    """One name of one client id. ``subscribed`` is the destination as the client named it; ``topics`` are the topics
    and patterns that it names, ``parts`` its queue of each topic. ``record``: the number in the store of its record of
    ``names.PATTERNS``; None: it has none. ``no_local`` None: it is not known, for its record is older than OpenWire 11;
    its next consumer says it."""

    client_id: str
    name: str
    subscribed: Destination
    selector_text: str | None
    no_local: bool | None
    parts: dict[Destination, DurableSubscription] = field(default_factory=dict, init=False)
    record: int | None = field(default=None, init=False)
    user: str | None = field(default=None, init=False)  # whose it is; None: nobody was there for it yet
    unclaimed: set[Destination] = field(default_factory=set, init=False)  # topics of which the store does not know that
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
        """What asks for anything else under the same name is another subscriber (TopicRegion.hasDurableSubChanged)."""
        return self.topics, self.selector_text, self.is_no_local

    @property
    def is_no_local(self) -> bool:
        """Whether it never takes what its client id sends. MQTT's No Local may change, and nothing that has gathered is
        lost by it (MQTT-3.8.4-4): there each consumer says anew what holds from then on."""
        return bool(self.no_local) and not self.name.startswith(names.MQTT_GATHERING)

    @property
    def consumer(self) -> Subscription | None:
        """Who takes its messages now; one at a time."""
        return self._consumer if self._consumer is not None and self._consumer.is_open else None

    def reserve(self, subscription: Subscription, may_read: Callable[[Destination], bool]) -> None:
        """``subscription`` is the one consumer from now on; ``may_read`` says which topics are open to it.
        ClientError when there is one."""
        self.check_unused()
        self._consumer = subscription
        self._may_read = may_read

    def may_read(self, topic: Destination) -> bool:
        """Whether the topic is open to its consumer. Without one it gathers; a later one may be kept from that."""
        return self.consumer is None or self._may_read(topic)

    def check_unused(self) -> None:
        """ClientError when it has a consumer."""
        if self.consumer is not None:
            raise ClientError(
                f"Durable consumer is in use for client: {self.client_id} and subscriptionName: {self.name}",
                "It has one consumer at a time.",
                kind=ErrorKind.STATE,
            )

    def lacks(self, topic: Destination) -> bool:
        """Whether a pattern of it matches a topic of which it has no part."""
        return (
            topic.kind is self.subscribed.kind
            and topic not in self.parts
            and any(pattern.matches(topic.name) for pattern in self._patterns)
        )

    @property
    def missing(self) -> list[Destination]:
        """The topics that it names, of which it has no part."""
        kind = self.subscribed.kind
        named = (each for each in self.topics if each.kind is kind and not names.is_wildcard(each.name))
        return [each for each in named if each not in self.parts]

    @property
    def is_of_pattern(self) -> bool:
        """Whether topics that begin later may be for it."""
        return bool(self._patterns)


def _topics(subscribed: Destination) -> tuple[Destination, ...]:
    """What it names. A list that could not be asked for here, for another broker stored it, names itself."""
    if "," not in subscribed.name:
        return (subscribed,)
    try:
        return names.split(subscribed)
    except ClientError:
        return (subscribed,)
