"""Policy of one destination: ActiveMQ's policyEntry as a value. Pure.

One entry applies to a destination, the most specific one whose pattern matches; entries are not merged
(PolicyMap.getEntryFor). A setting that the entry omits has its default, even if a less specific entry sets it.

Times in ms, sizes in bytes. None means that there is no such limit, or that the broker's own applies. Entries of
[[destinations]] are copied here by name (`broker.settings.policies`); a test compares the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Final

from tandemmq.broker.core.delivery import Entry
from tandemmq.broker.core.names import MQTT_PRIVATE, Pattern, is_private, specificity
from tandemmq.broker.core.topics.recovery import Recovery
from tandemmq.store.records.message import TIME_MAX, Destination, DestinationKind

#: Prefetch that a Java client sends without settings (ActiveMQPrefetchPolicy): the broker cannot distinguish it from an
#: explicit one.
CLIENT_QUEUE_PREFETCH: Final = 1_000
CLIENT_BROWSER_PREFETCH: Final = 500
CLIENT_TOPIC_PREFETCH: Final = 32_767
CLIENT_DURABLE_PREFETCH: Final = 100

#: A delay of more than 30 years is a mistake.
DELAY_MAX: Final = 10**12

#: Maximum length of the name of a durable subscription's own dead letter queue; beyond it, the topic's is used.
DURABLE_NAME_MAX: Final = 500

#: Number of destinations whose policy is cached; beyond it the cache is cleared.
REMEMBERED_MAX: Final = 10_000

#: Maximum number of waiting messages that are examined for an eviction, the oldest first.
LOOKED_AT_MAX: Final = 1_000


# Index: whether it is a queue.
_QUEUE_OR_TOPIC: Final = (DestinationKind.TOPIC, DestinationKind.QUEUE)


#: Target of dead letters whose configured target would be a queue of the broker's own.
DEFAULT_TARGET: Final = Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ")


class DeadLetterKind(Enum):
    """Target of dead letters (IndividualDeadLetterStrategy, SharedDeadLetterStrategy, DiscardingDeadLetterStrategy)."""

    INDIVIDUAL = "individual"
    SHARED = "shared"
    DISCARDING = "discarding"


@dataclass(frozen=True, slots=True)
class DeadLetterStrategy:
    """Treatment of a message that no consumer could take. ``enable_audit``: a message that several durable
    subscriptions of a topic give up becomes one dead letter."""

    kind: DeadLetterKind = DeadLetterKind.INDIVIDUAL
    dead_letter_queue: str = "ActiveMQ.DLQ"
    queue_prefix: str = "ActiveMQ.DLQ.Queue."
    queue_suffix: str = ""
    topic_prefix: str = "ActiveMQ.DLQ.Topic."
    topic_suffix: str = ""
    process_expired: bool = True
    process_non_persistent: bool = False
    expiration: int = 0  # of the copies, from their creation; 0: none
    # For INDIVIDUAL; False: the dead letters go to a topic.
    use_queue_for_queue_messages: bool = True
    use_queue_for_topic_messages: bool = True
    destination_per_durable_subscriber: bool = False
    enable_audit: bool = True

    def target(self, destination: Destination, subscription_key: str | None = None) -> Destination | None:
        """Return the target for dead letters of ``destination``, or of one of its durable subscriptions; None: they are
        dropped. It may be ``destination`` itself: a dead letter that is refused again is dropped. No configured name
        leads to a queue of the broker's own."""
        target = self._target(destination, subscription_key)
        return DEFAULT_TARGET if target is not None and is_private(target) else target

    def _target(self, destination: Destination, subscription_key: str | None) -> Destination | None:
        if self.kind is DeadLetterKind.DISCARDING:
            return None
        if self.kind is DeadLetterKind.SHARED:
            return Destination(DestinationKind.QUEUE, self.dead_letter_queue)
        if not destination.is_topic:
            kind = _QUEUE_OR_TOPIC[self.use_queue_for_queue_messages]
            return Destination(kind, f"{self.queue_prefix}{destination.name}{self.queue_suffix}")
        name = f"{self.topic_prefix}{destination.name}{self.topic_suffix}"
        if self.destination_per_durable_subscriber and subscription_key is not None:
            own_name = f"{self.topic_prefix}{destination.name}.{subscription_key}{self.topic_suffix}"
            name = own_name if len(own_name) <= DURABLE_NAME_MAX else name
        return Destination(_QUEUE_OR_TOPIC[self.use_queue_for_topic_messages], name)

    def wants(self, *, is_persistent: bool, is_expired: bool) -> bool:
        """Return whether such a message is kept at all (AbstractDeadLetterStrategy.isSendToDeadLetterQueue)."""
        if self.kind is DeadLetterKind.DISCARDING:
            return False
        return (is_persistent or self.process_non_persistent) and (not is_expired or self.process_expired)


@dataclass(frozen=True, slots=True)
class RedeliveryPolicy:
    """Delays and number of redeliveries of a refused message (org.apache.activemq.RedeliveryPolicy).

    It applies to redeliveries by the broker: STOMP's NACK with "requeue". A Java client counts and waits by itself.
    """

    maximum_redeliveries: int | None = 6  # None: no limit
    initial_redelivery_delay: int = 0
    redelivery_delay: int = 0
    use_exponential_back_off: bool = False
    back_off_multiplier: float = 5.0
    maximum_redelivery_delay: int | None = None

    def is_over(self, redeliveries: int) -> bool:
        """Return whether the next refusal makes a dead letter of a message after ``redeliveries`` redeliveries."""
        return self.maximum_redeliveries is not None and redeliveries >= self.maximum_redeliveries

    def delay(self, redeliveries: int) -> int:
        """Return the delay of a refused message after ``redeliveries`` earlier redeliveries
        (RedeliveryPolicy.getNextRedeliveryDelay, from getInitialRedeliveryDelay on)."""
        if redeliveries <= 0:
            return self.initial_redelivery_delay
        if not self.use_exponential_back_off or self.back_off_multiplier <= 1:
            return self.redelivery_delay
        delay = self.initial_redelivery_delay
        for _ in range(redeliveries):
            before, delay = delay, self._next(delay)
            if delay in (before, DELAY_MAX):
                break
        return delay

    def _next(self, delay: int) -> int:
        if delay <= 0:
            return self.redelivery_delay
        grown = int(min(delay * self.back_off_multiplier, DELAY_MAX))
        most = self.maximum_redelivery_delay
        return grown if most is None or grown <= most else max(most, self.redelivery_delay)


@dataclass(frozen=True, slots=True)
class AbortSlow:
    """Conditions to close a slow consumer (AbortSlowConsumerStrategy, AbortSlowAckConsumerStrategy)."""

    max_slow_duration: int | None = 30_000  # time without a break; None: no limit
    max_slow_count: int | None = None  # times that it became slow; None: no limit
    max_time_since_last_ack: int | None = None  # time without an acknowledgement of its deliveries
    ignore_idle_consumers: bool = True  # for the last: a consumer without deliveries is not slow
    abort_connection: bool = False  # False: only the consumer is closed


class EvictionKind(Enum):
    """Message that a slow topic consumer loses, if it is not simply the oldest (messageEvictionStrategy): the oldest of
    the lowest priority; or the oldest that a younger one with the same property replaces."""

    LOWEST_PRIORITY = "oldest_message_with_lowest_priority"
    UNIQUE_PROPERTY = "unique_property"


@dataclass(frozen=True, slots=True)
class Eviction:
    """``property_name`` is for UNIQUE_PROPERTY."""

    kind: EvictionKind
    property_name: str = ""

    def choose(self, pending: Sequence[Entry]) -> int:
        """Return the place of the message that is lost: never that of the newest."""
        older = [entry.message for entry in islice(pending, min(LOOKED_AT_MAX, len(pending) - 1))]
        if self.kind is EvictionKind.LOWEST_PRIORITY:
            return min(range(len(older)), key=lambda place: older[place].priority)
        values = [(message.properties or {}).get(self.property_name) for message in (*older, pending[-1].message)]
        last = {value: place for place, value in enumerate(values)}
        replaced = (place for place, value in enumerate(values) if value is not None and last[value] != place)
        return next(replaced, 0)


@dataclass(frozen=True, slots=True)
class DestinationPolicy:
    """Policy of a destination; the defaults apply if there is no entry."""

    queue_prefetch: int = 1_000
    queue_browser_prefetch: int = 500
    topic_prefetch: int = 32_767
    durable_topic_prefetch: int = 100

    memory_limit: int | None = None
    max_message_size: int | None = None  # body and properties of one message
    producer_flow_control: bool = True
    send_fail_if_no_space: bool = False
    send_fail_if_no_space_after_timeout: int | None = None
    blocked_producer_warning_interval: int = 30_000

    dead_letter: DeadLetterStrategy = field(default_factory=DeadLetterStrategy)
    redelivery: RedeliveryPolicy = field(default_factory=RedeliveryPolicy)
    expire_messages_period: int = 1_000  # 0: an expired message is removed only when it is reached
    ttl_ceiling: int = 0  # maximum lifetime of a message that expires; 0: no maximum
    zero_expiration_override: int = 0  # lifetime of a message without expiration; 0: forever

    prioritized_messages: bool = False
    all_consumers_exclusive_by_default: bool = False
    use_consumer_priority: bool = True
    pending_message_limit: int | None = None  # for one topic consumer; beyond it the oldest are dropped
    pending_multiplier: float | None = None  # or this multiple of its prefetch
    eviction: Eviction | None = None  # None: the oldest are dropped
    recovery: Recovery | None = None  # messages that topics keep for retroactive consumers
    always_retroactive: bool = False  # every consumer is retroactive
    use_prefetch_extension: bool = True
    consumers_before_dispatch_starts: int = 0
    time_before_dispatch_starts: int = 0
    abort_slow: AbortSlow | None = None

    auto_create: bool = True
    max_destinations: int | None = None  # maximum number that match the entry's pattern
    gc_inactive_destinations: bool = False
    inactive_timeout_before_gc: int = 60_000

    advisory_for_consumed: bool = False
    advisory_for_delivery: bool = False
    advisory_for_dispatched: bool = False
    advisory_for_discarding_messages: bool = False
    advisory_for_slow_consumers: bool = False
    advisory_when_full: bool = False
    send_advisory_if_no_consumers: bool = False
    include_body_for_advisory: bool = False

    def prefetch(
        self, requested: int | None, *, is_topic: bool, is_durable: bool = False, is_browser: bool = False
    ) -> int:
        """Return the prefetch of a consumer. ``requested``: the prefetch that its client requested; None: no request.

        A client's prefetch applies, except the default that Java clients send without a setting
        (PolicyEntry.configurePrefetch).
        """
        if is_browser:
            ours, unsaid = self.queue_browser_prefetch, CLIENT_BROWSER_PREFETCH
        elif is_durable:
            ours, unsaid = self.durable_topic_prefetch, CLIENT_DURABLE_PREFETCH
        elif is_topic:
            ours, unsaid = self.topic_prefetch, CLIENT_TOPIC_PREFETCH
        else:
            ours, unsaid = self.queue_prefetch, CLIENT_QUEUE_PREFETCH
        return ours if requested is None or requested == unsaid else requested

    def pending_limit(self, prefetch: int) -> int | None:
        """Return the number of messages that may wait for a topic's consumer of that prefetch; None: the broker's bound
        applies."""
        if self.pending_multiplier is None:
            return self.pending_message_limit
        return int(prefetch * self.pending_multiplier)

    def expiration(self, now: int, expiration: int) -> int:
        """Return the expiration of a message that arrived at ``now`` with ``expiration`` (0: never). Do not call it for
        dead letters (TimeStampingBrokerPlugin: a ceiling does not end a message without expiration)."""
        if not expiration:
            if not self.zero_expiration_override:
                return 0
            expiration = min(now + self.zero_expiration_override, TIME_MAX)  # ``now`` is a client's value
        return min(expiration, now + self.ttl_ceiling) if self.ttl_ceiling else expiration


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A pattern for destinations of one kind, and their policy."""

    kind: DestinationKind
    pattern: str
    policy: DestinationPolicy


#: Policy of the broker's own queues: messages there stay until they are removed, whatever the entries say.
PRIVATE: Final = PolicyEntry(
    DestinationKind.QUEUE,
    f"{MQTT_PRIVATE}>",
    DestinationPolicy(
        dead_letter=DeadLetterStrategy(DeadLetterKind.DISCARDING),
        redelivery=RedeliveryPolicy(None),
        expire_messages_period=0,
    ),
)


class Policies:
    """All entries, the most specific one first; their order in the settings has no effect."""

    def __init__(self, entries: Iterable[PolicyEntry] = (), default: DestinationPolicy | None = None) -> None:
        self.default: Final = default or DestinationPolicy()
        self.entries: Final = tuple(sorted(entries, key=lambda entry: specificity(entry.pattern)))
        self._patterns = tuple((entry.kind, Pattern(entry.pattern), entry) for entry in self.entries)
        self._remembered: dict[Destination, PolicyEntry | None] = {}
        # Policies whose prefetches apply since they were changed, by entry; None: the default's.
        self._prefetches: dict[tuple[DestinationKind, str] | None, DestinationPolicy] = {}

    def take_prefetches(self, other: Policies) -> None:
        """Apply the prefetches of ``other`` from now on, for entries that are in both, and for the default."""
        self._prefetches = {(entry.kind, entry.pattern): entry.policy for entry in other.entries}
        self._prefetches[None] = other.default

    def prefetch(
        self,
        destination: Destination,
        requested: int | None,
        *,
        is_topic: bool,
        is_durable: bool = False,
        is_browser: bool = False,
    ) -> int:
        """Return ``DestinationPolicy.prefetch`` of the policy that applies to ``destination`` now."""
        entry = self.entry(destination)
        key = None if entry is None else (entry.kind, entry.pattern)
        policy = self._prefetches.get(key, self.default if entry is None else entry.policy)
        return policy.prefetch(requested, is_topic=is_topic, is_durable=is_durable, is_browser=is_browser)

    def any(self, question: Callable[[DestinationPolicy], object]) -> bool:
        """Return whether ``question`` is true of any policy."""
        return any(question(policy) for policy in (self.default, *(entry.policy for entry in self.entries)))

    def of(self, destination: Destination) -> DestinationPolicy:
        """Return the policy of ``destination``. Costs one dictionary look-up."""
        entry = self.entry(destination)
        return self.default if entry is None else entry.policy

    def entry(self, destination: Destination) -> PolicyEntry | None:
        """Return the entry that applies to ``destination``; None: the default does. ``max_destinations`` counts per
        entry."""
        try:
            return self._remembered[destination]
        except KeyError:
            pass
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        kind, name = destination
        found = next((e for of, pattern, e in self._patterns if of is kind and pattern.matches(name)), None)
        if is_private(destination):
            found = PRIVATE
        self._remembered[destination] = found
        return found
