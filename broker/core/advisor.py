"""What the broker tells those who listen to its advisory topics: the facts, and who is listening. Pure.

The engine says what happened as a plain fact, and only if ``Audience.is_there``; an :class:`Advisor` knows on which
topic that is told, and builds the message if somebody hears that topic. So nobody pays for what nobody wants to know::

    if audience.is_there:
        topic = advisor.topic(fact)
        if topic is not None and audience.hears(topic.name):
            publish(advisor.message(fact, topic))

Whoever subscribes to the topic of a :class:`Subject` is told at once what there is already, and nobody else is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from broker.core.names import ADVISORY_TOPICS, Pattern, is_wildcard
from store.records.message import Destination, Message

# ---- facts


@dataclass(frozen=True, slots=True)
class ConnectionFact:
    """A client came (``is_there``) or went. ``connection_id`` is the client's own name of it, if it has one."""

    connection_id: str
    is_there: bool
    client_id: str | None = None
    login: str | None = None
    peer: str = ""


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
    """Something happened to ``message`` of ``destination``. ``has_body``: its body is told, too.

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
    """What a new listener is told the present state of (AdvisoryBroker.addConsumer)."""

    CONNECTIONS = auto()
    QUEUES = auto()
    TOPICS = auto()
    TEMP_QUEUES = auto()
    TEMP_TOPICS = auto()
    PRODUCERS = auto()
    CONSUMERS = auto()
    MASTER = auto()


# Without their prefix. The last two have further words behind them.
_SUBJECTS = {
    "Connection": Subject.CONNECTIONS,
    "Queue": Subject.QUEUES,
    "Topic": Subject.TOPICS,
    "TempQueue": Subject.TEMP_QUEUES,
    "TempTopic": Subject.TEMP_TOPICS,
    # When a broker becomes master nobody is connected to it yet: whoever asks afterwards is told.
    "MasterBroker": Subject.MASTER,
}
_SUBJECTS_BY_DESTINATION = {"Producer": Subject.PRODUCERS, "Consumer": Subject.CONSUMERS}


class Advisor(Protocol):
    """Makes messages of facts."""

    def topic(self, fact: Fact) -> Destination | None:
        """Where ``fact`` is told; None: nowhere (advisory topics are not advised about)."""

    def message(self, fact: Fact, topic: Destination) -> Message:
        """What is published there. Not persistent; consumers of all protocols may have it."""


# ---- who listens


class Audience:
    """The subscriptions that may hear advisories. ``is_there``: is there any? Read it directly, on hot paths too."""

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

    def hears(self, topic: str) -> bool:
        """Whether somebody listens to the topic of that name."""
        return topic in self._names or any(pattern.matches(topic) for pattern in self._patterns.values())


def subjects(part: Destination) -> frozenset[Subject]:
    """Of what a new subscription of ``part``, which may have wildcards, is to be told the present state. Which of the
    facts are on its topics the listener's pattern says, as for any other message."""
    if not any(_advisory_names((part,))):
        return frozenset()
    name = part.name
    if not is_wildcard(name):
        words = name[len(ADVISORY_TOPICS) :].split(".", 1)
        table = _SUBJECTS if len(words) == 1 else _SUBJECTS_BY_DESTINATION
        found = table.get(words[0])
        return frozenset() if found is None else frozenset((found,))
    pattern = Pattern(name)
    plain = {subject for word, subject in _SUBJECTS.items() if pattern.matches(ADVISORY_TOPICS + word)}
    # A pattern hears of some producer or consumer if its first words allow for theirs.
    head = Pattern(".".join(name.split(".")[:3]))
    deep = {subject for word, subject in _SUBJECTS_BY_DESTINATION.items() if head.matches(ADVISORY_TOPICS + word)}
    return frozenset(plain | deep)


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
