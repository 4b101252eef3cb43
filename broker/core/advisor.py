"""Facts that the broker publishes on advisory topics; the listeners of these topics, and their rights. Pure.

The engine reports an event as a plain fact, and only if ``Audience.is_there``. An :class:`Advisor` knows the topic of
the fact, and builds the message only if that topic has a listener::

    if audience.is_there:
        topic = advisor.topic(fact)
        if topic is not None and audience.has_listener(topic.name):
            publish(advisor.message(fact, topic))

A new subscription to the topic of a :class:`Subject` receives the present state at once; other subscriptions do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from tandemmq.broker.core.access import Operation, PrivateAccess, is_admin
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.memory import ANNOUNCED_BYTES, Kind
from tandemmq.broker.core.names import ADVISORY_TOPICS, Pattern, is_wildcard, split
from tandemmq.store.records.message import Destination, DestinationKind, Message

# Maximum number of names of temporary destinations that are recorded as known to a client.
KNOWN_MAX = 1_000
# The right ``network`` for one of these topics covers all temporary destinations of that kind.
_TEMPORARY_TOPICS = {
    DestinationKind.TEMP_QUEUE: Destination(DestinationKind.TOPIC, f"{ADVISORY_TOPICS}TempQueue"),
    DestinationKind.TEMP_TOPIC: Destination(DestinationKind.TOPIC, f"{ADVISORY_TOPICS}TempTopic"),
}

# ---- facts


@dataclass(frozen=True, slots=True)
class ConnectionFact:
    """A client connected (``is_there``) or left. ``connection_id``: name that the client chose for the connection, if
    any. ``user``: the logged-in user, which no advisory shows."""

    connection_id: str
    is_there: bool
    client_id: str | None = None
    login: str | None = None
    peer: str = ""
    user: str | None = None


@dataclass(frozen=True, slots=True)
class DestinationFact:
    """A destination was created or deleted. ``connection_id``: the owner, if the destination is temporary."""

    destination: Destination
    is_there: bool
    connection_id: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerFact:
    """A producer started or ended. ``count``: producers that its destination has now."""

    connection_id: str
    id: str
    destination: Destination | None
    is_there: bool
    count: int


@dataclass(frozen=True, slots=True)
class ConsumerFact:
    """A consumer started or ended. ``count``: consumers that its destination has now."""

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
    """Event of a message; the values are the names of the advisory topics (AdvisorySupport)."""

    EXPIRED = "Expired"
    NO_CONSUMER = "NoConsumer"
    DELIVERED = "MessageDelivered"
    CONSUMED = "MessageConsumed"
    DISPATCHED = "MessageDispatched"
    DISCARDED = "MessageDiscarded"
    DEAD_LETTER = "MessageDLQd"


@dataclass(frozen=True, slots=True)
class MessageFact:
    """An event of ``message`` on ``destination``. ``has_body``: the advisory includes the body of the message.

    ``consumer``: connection id and subscription id of the consumer concerned; ``discarded``: number of that consumer's
    messages dropped so far.
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
    """A producer is held back because its destination is full."""

    connection_id: str
    id: str
    destination: Destination


@dataclass(frozen=True, slots=True)
class FullFact:
    """``destination`` reached the limit called ``limit``; ``used`` is its present use."""

    destination: Destination
    limit: str
    used: int


@dataclass(frozen=True, slots=True)
class MasterFact:
    """The broker became the master."""


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
    """Topic that sends the present state to a new listener (AdvisoryBroker.addConsumer); the values are the words of
    the topic."""

    CONNECTIONS = "Connection"
    QUEUES = "Queue"
    TOPICS = "Topic"
    TEMP_QUEUES = "TempQueue"
    TEMP_TOPICS = "TempTopic"
    PRODUCERS = "Producer"
    CONSUMERS = "Consumer"
    MASTER = "MasterBroker"  # a broker has no clients when it becomes master: later subscribers get this


# The topics of these subjects continue with the destination's kind and name.
_OF_DESTINATIONS = frozenset((Subject.PRODUCERS, Subject.CONSUMERS))


class Advisor(Protocol):
    """Makes the messages for facts."""

    def topic(self, fact: Fact) -> Destination | None:
        """Return the topic for ``fact``; None: there is none (see ``names.has_advisories``)."""

    def message(self, fact: Fact, topic: Destination) -> Message:
        """Return the message to publish on the topic: not persistent; consumers of all protocols may receive it."""


# ---- listeners


class Audience:
    """Subscriptions that may receive advisories. ``is_there``: True if there is one. Read it directly, on hot paths
    too."""

    __slots__ = ("_names", "_patterns", "is_there")

    def __init__(self) -> None:
        self.is_there = False
        self._names: Counter[str] = Counter()
        self._patterns: dict[str, Pattern] = {}

    def joined(self, parts: Iterable[Destination]) -> None:
        """Add a subscription of ``parts`` (the parts of a composite name; each may have wildcards)."""
        for name in _advisory_names(parts):
            self._names[name] += 1
            if is_wildcard(name):
                self._patterns[name] = Pattern(name)
        self.is_there = bool(self._names)

    def left(self, parts: Iterable[Destination]) -> None:
        """Remove a subscription that ``joined`` added."""
        for name in _advisory_names(parts):
            self._names[name] -= 1
            if self._names[name] <= 0:
                del self._names[name]
                self._patterns.pop(name, None)
        self.is_there = bool(self._names)

    def names(self, topic: str) -> bool:
        """Return whether a subscription names the topic without wildcards."""
        return topic in self._names

    def has_listener(self, topic: str) -> bool:
        """Return whether a subscription, by name or pattern, listens to the topic."""
        return topic in self._names or any(pattern.matches(topic) for pattern in self._patterns.values())


def subjects(part: Destination) -> frozenset[Subject]:
    """Return the subjects whose present state a new subscription of ``part``, which may have wildcards, receives. The
    listener's pattern selects the facts, as it selects other messages."""
    if not any(_advisory_names((part,))):
        return frozenset()
    words = part.name.split(".")
    # A pattern matches some producer or consumer topic if its first words allow for those of the topic.
    head = Pattern(".".join(words[:3])) if len(words) > 3 or is_wildcard(part.name) else None
    deep = () if head is None else (each for each in _OF_DESTINATIONS if head.matches(ADVISORY_TOPICS + each.value))
    whole = Pattern(part.name)
    plain = (each for each in Subject if whole.matches(ADVISORY_TOPICS + each.value))
    return frozenset(plain) - _OF_DESTINATIONS | frozenset(deep)


def _advisory_names(parts: Iterable[Destination]) -> list[str]:
    """Return the names in ``parts`` that may be advisory topics."""
    found = []
    for part in parts:
        if part.is_topic:
            first, _, rest = part.name.partition(".")
            second = rest.partition(".")[0]
            if first == ">" or (first in ("ActiveMQ", "*") and second in ("Advisory", "*", ">")):
                found.append(part.name)
    return found


# ---- rights


class AdvisoryRights:
    """Selects the clients that get an advisory, and its content: it reveals no more than the receiver may read.

    If rights are configured, a client gets an advisory about a destination if its user may read that destination, and
    one about a connection if the connection belongs to its own user. The user must be able to read every part of a
    composite destination, and all that a pattern matches, because the advisory contains the whole name. Selectors and
    client ids are omitted, unless the user has the right ``network`` there. An admin gets everything. The right to read
    the advisory topic is required as well.

    Temporary destinations have no rights. A client gets advisories about one if its user owns it, if the client was
    given its name as the address of a reply, or if its user has the right ``network`` for the advisory topic.
    ``are_there``: False if no rights are configured; then every client gets everything, without a check here."""

    def __init__(self, access: PrivateAccess) -> None:
        self.are_there = access.has_rights
        self._access = access
        self.owners: dict[Destination, Client] = {}  # owners of temporary destinations
        # The clients, and the temporary destinations whose names they were given, in both directions.
        self.known: dict[Client, dict[Destination, None]] = {}
        self.knowing: dict[Destination, set[Client]] = {}

    def shown(self, client: Client, fact: Fact) -> Fact | None:
        """Return the part of ``fact`` that ``client`` gets: the same object, one with less content, or None."""
        if not self.may_hear(client, fact):
            return None  # prove: advisories-of-what-may-be-read "None" -> "fact"
        return fact if self._may_see_all(client, fact) else without_details(fact)

    def may_hear(self, client: Client, fact: Fact) -> bool:
        """Return whether ``client`` gets that advisory."""
        if not self.are_there or isinstance(fact, MasterFact):
            return True
        if isinstance(fact, ConnectionFact):
            return fact.user == client.principal.name or self._is_admin(client)
        if fact.destination is None:  # a producer without a destination
            return self._is_admin(client)
        # prove: all-parts-may-be-read "_parts(fact.destination)" -> "(fact.destination,)"
        return all(self._may_hear_of(client, part) for part in _parts(fact.destination))

    def _may_hear_of(self, client: Client, part: Destination) -> bool:
        if part.kind > DestinationKind.TOPIC:
            return self.may_know(client, part)
        # prove: a-pattern-may-be-read-as-a-whole "READ_ALL" -> "READ"
        return self._access.may(client.principal, Operation.READ_ALL, part) or self._is_admin(client)

    def _may_see_all(self, client: Client, fact: Fact) -> bool:
        """Return whether ``client``, which gets ``fact``, may see its selectors and client ids."""
        if not (self.are_there and isinstance(fact, ConsumerFact | DurableFact)):
            return True
        parts = [_TEMPORARY_TOPICS.get(part.kind, part) for part in _parts(fact.destination)]
        return all(self._access.may(client.principal, Operation.NETWORK, part) for part in parts) or self._is_admin(
            client
        )

    def _is_admin(self, client: Client) -> bool:
        return is_admin(self._access, client.principal)

    # ---- temporary destinations

    def may_know(self, client: Client, temporary: Destination) -> bool:
        """Return whether ``client`` gets advisories about that temporary destination."""
        owner = self.owners.get(temporary)
        if owner is not None and owner.principal.name == client.principal.name:
            return True
        if client in self.knowing.get(temporary, ()):
            return True
        of = _TEMPORARY_TOPICS[temporary.kind]
        return self._access.may(client.principal, Operation.NETWORK, of) or self._is_admin(client)

    def give(self, client: Client, temporary: Destination) -> None:
        """Record that ``client`` is given the name of a temporary destination."""
        known = self.known.setdefault(client, {})
        known[temporary] = None
        self.knowing.setdefault(temporary, set()).add(client)
        client.holder.add(Kind.STATE, ANNOUNCED_BYTES)
        if len(known) > KNOWN_MAX:
            self._forget(client, next(iter(known)))

    def left(self, client: Client) -> None:
        """Forget the names that ``client``, which left, was given."""
        for temporary in list(self.known.get(client, ())):
            self._forget(client, temporary)

    def ended(self, destination: Destination) -> None:
        """Forget a destination that has ended, temporary or not."""
        if self.owners.pop(destination, None) is not None:
            for client in list(self.knowing.get(destination, ())):
                self._forget(client, destination)

    def _forget(self, client: Client, temporary: Destination) -> None:
        """Forget that ``client`` was given that name."""
        known, knowing = self.known[client], self.knowing[temporary]
        client.holder.add(Kind.STATE, -ANNOUNCED_BYTES)
        del known[temporary]
        knowing.discard(client)
        if not known:
            del self.known[client]
        if not knowing:
            del self.knowing[temporary]


def _parts(destination: Destination) -> tuple[Destination, ...]:
    """Return the parts of a destination. The name was checked before, so it can be split."""
    return split(destination) if "," in destination.name else (destination,)


def without_details(fact: Fact) -> Fact:
    """Return ``fact`` without selectors and client ids."""
    if isinstance(fact, ConsumerFact):
        # prove: selectors-are-not-for-all "selector=None" -> "selector=fact.selector"
        return replace(fact, selector=None, client_id=None)
    return replace(fact, client_id="") if isinstance(fact, DurableFact) else fact
