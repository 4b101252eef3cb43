"""What the broker tells those who listen to its advisory topics: the facts, and who is listening. Pure.

The engine says what happened as a plain fact, and only if ``Audience.is_there``; an :class:`Advisor` knows on which
topic that gets it, and builds the message only if that topic has a listener::

    if audience.is_there:
        topic = advisor.topic(fact)
        if topic is not None and audience.hears(topic.name):
            publish(advisor.message(fact, topic))

A new subscription to the topic of a :class:`Subject` gets the present state at once; other subscriptions do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tandemmq.broker.core.names import ADVISORY_TOPICS, Pattern, is_wildcard
from tandemmq.store.records.message import Destination, Message

# ---- facts


@dataclass(frozen=True, slots=True)
class ConnectionFact:
    """A client came (``is_there``) or went. ``connection_id`` is the client's own name of it, if it has one; ``user``
    the user that it is, which no message shows."""

    connection_id: str
    is_there: bool
    client_id: str | None = None
    login: str | None = None
    peer: str = ""
    user: str | None = None


@dataclass(frozen=True, slots=True)
class DestinationFact:
    """A destination came into being or was deleted. ``connection_id``: whose it is, if it is temporary."""

    destination: Destination
    is_there: bool
    connection_id: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerFact:
    """A producer came or went. ``count``: so many has its destination now."""

    connection_id: str
    id: str
    destination: Destination | None
    is_there: bool
    count: int


@dataclass(frozen=True, slots=True)
class ConsumerFact:
    """A consumer came or went. ``count``: so many has its destination now."""

    connection_id: str
    id: str
    destination: Destination
    is_there: bool
    count: int
    client_id: str | None = None
    durable_name: str | None = None
    selector: str | None = None
    prefetch: int = 0
    priority: int = 0
    is_browser: bool = False
    is_exclusive: bool = False
    is_retroactive: bool = False
    no_local: bool = False


@dataclass(frozen=True, slots=True)
class DurableFact:
    """A durable subscription was deleted."""

    connection_id: str
    client_id: str
    name: str
    destination: Destination
    count: int


class MessageEvent(Enum):
    """What may happen to a message; the values are the names of the advisory topics (AdvisorySupport)."""

    EXPIRED = "Expired"
    NO_CONSUMER = "NoConsumer"
    DELIVERED = "MessageDelivered"
    CONSUMED = "MessageConsumed"
    DISPATCHED = "MessageDispatched"
    DISCARDED = "MessageDiscarded"
    DEAD_LETTER = "MessageDLQd"


@dataclass(frozen=True, slots=True)
class MessageFact:
    """Something happened to ``message`` of ``destination``. ``has_body``: the advisory carries its body, too.

    ``consumer``: connection id and subscription id of the consumer it is about; ``discarded``: how many of that
    consumer's were dropped so far.
    """

    event: MessageEvent
    message: Message
    destination: Destination
    consumer: tuple[str, str] | None = None
    discarded: int = 0
    has_body: bool = False


@dataclass(frozen=True, slots=True)
class SlowConsumerFact:
    connection_id: str
    id: str
    destination: Destination


@dataclass(frozen=True, slots=True)
class FastProducerFact:
    """A producer is held back: what it sends to is full."""

    connection_id: str
    id: str
    destination: Destination


@dataclass(frozen=True, slots=True)
class FullFact:
    """``destination`` reached the limit called ``limit``; ``used`` is what it uses of it."""

    destination: Destination
    limit: str
    used: int


@dataclass(frozen=True, slots=True)
class MasterFact:
    """This broker is the master now."""


Fact = (
    ConnectionFact
    | DestinationFact
    | ProducerFact
    | ConsumerFact
    | DurableFact
    | MessageFact
    | SlowConsumerFact
    | FastProducerFact
    | FullFact
    | MasterFact
)


class Subject(Enum):
    """What a new listener gets the present state of (AdvisoryBroker.addConsumer); the values are the words of its
    topic."""

    CONNECTIONS = "Connection"
    QUEUES = "Queue"
    TOPICS = "Topic"
    TEMP_QUEUES = "TempQueue"
    TEMP_TOPICS = "TempTopic"
    PRODUCERS = "Producer"
    CONSUMERS = "Consumer"
    MASTER = "MasterBroker"  # no client is connected yet when a broker becomes master: later subscribers get it


# Their topics have further words behind theirs.
_OF_DESTINATIONS = frozenset((Subject.PRODUCERS, Subject.CONSUMERS))


class Advisor(Protocol):
    """Makes messages of facts."""

    def topic(self, fact: Fact) -> Destination | None:
        """The topic for ``fact``; None: there is none (see ``names.is_told_of``)."""

    def message(self, fact: Fact, topic: Destination) -> Message:
        """What is published there. Not persistent; consumers of all protocols may have it."""


# ---- who listens


class Audience:
    """The subscriptions that may receive advisories. ``is_there``: is there any? Read it directly, on hot paths too."""

    __slots__ = ("_names", "_patterns", "is_there")

    def __init__(self) -> None:
        self.is_there = False
        self._names: Counter[str] = Counter()
        self._patterns: dict[str, Pattern] = {}

    def joined(self, parts: Iterable[Destination]) -> None:
        """A subscription of ``parts`` (what a composite name names; each may have wildcards) begins."""
        for name in _advisory_names(parts):
            self._names[name] += 1
            if is_wildcard(name):
                self._patterns[name] = Pattern(name)
        self.is_there = bool(self._names)

    def left(self, parts: Iterable[Destination]) -> None:
        """It ends."""
        for name in _advisory_names(parts):
            self._names[name] -= 1
            if self._names[name] <= 0:
                del self._names[name]
                self._patterns.pop(name, None)
        self.is_there = bool(self._names)

    def names(self, topic: str) -> bool:
        """Whether somebody asks for the topic by its name."""
        return topic in self._names

    def has_listener(self, topic: str) -> bool:
        """Whether somebody listens to the topic of that name."""
        return topic in self._names or any(pattern.matches(topic) for pattern in self._patterns.values())


def subjects(part: Destination) -> frozenset[Subject]:
    """Whose present state a new subscription of ``part``, which may have wildcards, is to get. Which of the
    facts are on its topics the listener's pattern says, as for any other message."""
    if not any(_advisory_names((part,))):
        return frozenset()
    words = part.name.split(".")
    # A pattern matches some producer or consumer topic if its first words allow for theirs.
    head = Pattern(".".join(words[:3])) if len(words) > 3 or is_wildcard(part.name) else None
    deep = () if head is None else (each for each in _OF_DESTINATIONS if head.matches(ADVISORY_TOPICS + each.value))
    whole = Pattern(part.name)
    plain = (each for each in Subject if whole.matches(ADVISORY_TOPICS + each.value))
    return frozenset(plain) - _OF_DESTINATIONS | frozenset(deep)


def _advisory_names(parts: Iterable[Destination]) -> list[str]:
    """Those names among ``parts`` that may be of advisory topics."""
    found = []
    for part in parts:
        if part.is_topic:
            first, _, rest = part.name.partition(".")
            second = rest.partition(".")[0]
            if first == ">" or (first in ("ActiveMQ", "*") and second in ("Advisory", "*", ">")):
                found.append(part.name)
    return found
