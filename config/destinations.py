"""The tables [[destinations]] and [[virtual_destinations]].

[[destinations]]: policies for the destinations that a pattern matches, as ActiveMQ's policyEntry.

Only the most specific matching entry applies: keys that it omits have their default, even if a less specific entry sets
them. `config.policy_entries` has the conversion of the other attributes of a policyEntry.

[[virtual_destinations]]: destinations that forward messages, as ActiveMQ's compositeQueue, compositeTopic,
virtualTopic and mirroredQueue. If a table defines virtual topics, ActiveMQ's default, ``VirtualTopic.>``, no longer
applies (VirtualDestinationInterceptor).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tandemmq.config.section import (
    AnyCase,
    Bytes,
    BytesOrUnlimited,
    Count,
    Milliseconds,
    Section,
    Subject,
    Unit,
    count,
    milliseconds,
    without,
)
from tandemmq.config.store import Pattern

PREFETCH_MAX: Final = 32_767
NO_LIMIT: Final = -1


def _or_none(parse: Callable[[object], int]) -> BeforeValidator:
    """Make a validator that also accepts -1, ActiveMQ's value for no limit."""

    def read(value: object) -> int:
        if value in (NO_LIMIT, str(NO_LIMIT)) and not isinstance(value, bool):
            return NO_LIMIT
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{error}, or -1") from error

    return BeforeValidator(read)


CountOrNone = Annotated[int, _or_none(count), Unit("", unlimited=NO_LIMIT)]
MillisecondsOrNone = Annotated[int, _or_none(milliseconds), Unit("ms or -1", unlimited=NO_LIMIT)]


def _multiplier(number: float) -> float:
    if not 0 < number < math.inf:
        raise ValueError("a number greater than 0")
    return number


Prefix = Annotated[str, without("*>,?", "the beginning of a queue's name", may_be_empty=True)]


class DeadLetterSettings(Section):
    type: Annotated[Literal["individual", "shared", "discarding"], AnyCase] = "individual"
    """`individual`: a dead letter queue for each destination. `shared`: one for all. `discarding`: dead letters are
    dropped."""
    dead_letter_queue: Annotated[str, without("*>,?", "the name of one queue")] = "ActiveMQ.DLQ"
    """`shared`: name of the queue."""
    queue_prefix: Prefix = "ActiveMQ.DLQ.Queue."
    """`individual`: text before the name of a queue in the name of its dead letter queue."""
    queue_suffix: Prefix = ""
    """`individual`: text after it."""
    topic_prefix: Prefix = "ActiveMQ.DLQ.Topic."
    """`individual`: text before the name of a topic."""
    topic_suffix: Prefix = ""
    """`individual`: text after it."""
    process_expired: bool = True
    """Expired messages become dead letters. False: they are dropped."""
    process_non_persistent: bool = False
    """Non-persistent messages become dead letters, too. These are persistent."""
    expiration: Milliseconds = 0
    """Time to live of dead letters; 0: no end."""
    use_queue_for_queue_messages: bool = True
    """`individual`: dead letters of queues go to a queue. False: to a topic."""
    use_queue_for_topic_messages: bool = True
    """`individual`: dead letters of topics go to a queue. False: to a topic."""
    destination_per_durable_subscriber: bool = False
    """`individual`: a dead letter queue for each durable subscription; `.<client id>:<name>` is added to the name of
    the topic."""
    enable_audit: bool = True
    """A message that several durable subscriptions of a topic give up becomes one dead letter. False: one for each."""

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        for key in ("queue_prefix", "topic_prefix"):
            if self.type == "individual" and not getattr(self, key) and not getattr(self, key.replace("pre", "suf")):
                raise ValueError(f"a {key} that is not empty: a destination cannot be its own dead letter queue")
        return self


class RedeliverySettings(Section):
    maximum_redeliveries: CountOrNone = 6
    """Number of redeliveries before a message is moved to the dead letter queue; -1: no limit."""
    initial_redelivery_delay: Milliseconds = 1_000
    """Delay of the first redelivery."""
    redelivery_delay: Milliseconds = 1_000
    """Delay of the following ones."""
    use_exponential_back_off: bool = False
    """Multiply each delay by `back_off_multiplier`."""
    back_off_multiplier: Annotated[float, AfterValidator(_multiplier)] = 5.0
    """Factor for `use_exponential_back_off`."""
    maximum_redelivery_delay: MillisecondsOrNone = -1
    """Longest delay; -1: no limit."""


class SlowConsumerSettings(Section):
    type: Annotated[Literal["abort_slow_consumer", "abort_slow_ack_consumer"], AnyCase] = "abort_slow_consumer"
    """Consumers that count as slow: those with a full prefetch (`abort_slow_consumer`), or those that do not
    acknowledge (`abort_slow_ack_consumer`)."""
    max_slow_duration: MillisecondsOrNone = 30_000
    """Time without a break after which a slow consumer is removed; -1: never."""
    max_slow_count: CountOrNone = -1
    """Number of times that a consumer can become slow before it is removed; -1: no limit."""
    max_time_since_last_ack: Milliseconds = Field(30_000, ge=1)
    """`abort_slow_ack_consumer`: time without an acknowledgement after which a consumer is slow."""
    ignore_idle_consumers: bool = True
    """`abort_slow_ack_consumer`: a consumer without unacknowledged messages is not slow."""
    abort_connection: bool = False
    """Close the connection of the consumer instead of removing the consumer."""


class PendingLimitSettings(Section):
    limit: CountOrNone = -1
    """Maximum number of messages that wait for one topic consumer; then the oldest are dropped. -1: the limit of the
    broker."""

    multiplier: Annotated[float, AfterValidator(_multiplier)] | None = None
    """Instead of `limit`: this many times the consumer's prefetch."""


class EvictionSettings(Section):
    type: Annotated[Literal["oldest", "oldest_message_with_lowest_priority", "unique_property"], AnyCase] = "oldest"
    """Message that a slow topic consumer loses: the oldest, the oldest of the lowest priority, or the oldest that a
    newer one with the same value of `property_name` replaces."""
    property_name: str = ""
    """`unique_property`: the property."""

    @model_validator(mode="after")
    def _has_a_property(self) -> Self:
        if (self.type == "unique_property") != bool(self.property_name):
            raise ValueError("property_name with unique_property, and only with it")
        return self


class RecoverySettings(Section):
    type: Annotated[Literal["fixed_count", "last_image", "timed", "fixed_sized", "retained_message"], AnyCase] = (
        "fixed_count"
    )
    """Messages that a topic keeps in memory for consumers with `consumer.retroactive=true`: the last messages, the last
    one, those of a period, those of a number of bytes, or the last one with `ActiveMQ.Retain`. At most 10,000 messages
    and 8 MiB."""
    maximum_size: Bytes | None = Field(None, ge=1)
    """`fixed_count`: number of messages, 100 by default. `fixed_sized`: bytes, 64 KiB by default."""
    recover_duration: Milliseconds = Field(60_000, ge=1)
    """`timed`: the period."""


class DestinationSettings(Subject):
    kinds = ("queue", "topic", "temp_queue", "temp_topic")

    queue: Pattern | None = None
    """Applies to queues of this pattern: `ORDERS.>`, `*.IN`."""
    topic: Pattern | None = None
    """Applies to topics of this pattern."""
    temp_queue: bool = False
    """Applies to all temporary queues."""
    temp_topic: bool = False
    """Applies to all temporary topics."""

    queue_prefetch: Count | None = Field(None, le=PREFETCH_MAX)
    """Maximum number of unacknowledged messages of a queue's consumer that requests no other number. Default:
    `broker.queue_prefetch`."""
    queue_browser_prefetch: Count = Field(500, ge=1, le=PREFETCH_MAX)
    """The same for a browser."""
    topic_prefetch: Count | None = Field(None, ge=1, le=PREFETCH_MAX)
    """The same for a topic's consumer. Default: `broker.topic_prefetch`."""
    durable_topic_prefetch: Count | None = Field(None, ge=1, le=PREFETCH_MAX)
    """The same for a durable subscriber. Default: `broker.durable_topic_prefetch`."""

    memory_limit: BytesOrUnlimited = 0
    """Maximum memory for the messages of one destination; 0: only `broker.memory_limit` applies."""
    max_message_size: BytesOrUnlimited = 0
    """Longest message; longer ones are refused. 0: as long as a frame (`wireFormat.maxFrameSize`)."""
    producer_flow_control: bool = True
    """A producer waits when `memory_limit` is reached. False: non-persistent messages are then refused, persistent ones
    wait on disk."""
    send_fail_if_no_space: bool = False
    """The send fails at once instead of waiting. The error states the limit and since when it is reached."""
    send_fail_if_no_space_after_timeout: MillisecondsOrNone = -1
    """Longest wait of a producer; then the send fails. -1: no limit."""
    blocked_producer_warning_interval: Milliseconds = 30_000
    """Interval of warnings about a waiting producer; 0: none."""

    dead_letter_strategy: DeadLetterSettings = DeadLetterSettings()
    redelivery: RedeliverySettings | None = None
    expire_messages_period: Milliseconds = 1_000
    """Interval of the search for expired messages; 0: they are removed when they are reached."""
    ttl_ceiling: Milliseconds = 0
    """Longest time to live of a message with an expiration (TimeStampingBrokerPlugin); 0: no limit."""
    zero_expiration_override: Milliseconds = 0
    """Time to live of a message without an expiration (TimeStampingBrokerPlugin); 0: no end."""

    prioritized_messages: bool = False
    """Deliver messages of higher priority first."""
    all_consumers_exclusive_by_default: bool = False
    """Deliver all messages to one consumer at a time, as if each consumer were exclusive."""
    use_consumer_priority: bool = True
    """Serve consumers of higher priority first."""
    pending_message_limit_strategy: PendingLimitSettings = PendingLimitSettings()
    message_eviction_strategy: EvictionSettings = EvictionSettings()
    subscription_recovery_policy: RecoverySettings | None = None
    always_retroactive: bool = False
    """Each consumer first receives what its topic kept (`subscription_recovery_policy`)."""
    use_prefetch_extension: bool = True
    """A consumer that acknowledges late or in a transaction can receive more than its prefetch after it reports what
    was delivered. False: a transaction with more messages than the prefetch cannot complete."""
    consumers_before_dispatch_starts: Count = 0
    """Number of consumers that a queue needs before it delivers; `time_before_dispatch_starts` limits the wait."""
    time_before_dispatch_starts: Milliseconds = 0
    """Longest wait for them, from the first consumer on; 0 with a number of consumers: 1 s."""
    slow_consumer_strategy: SlowConsumerSettings | None = None

    auto_create: bool = True
    """Create a destination at its first use. False: that use is refused."""
    max_destinations: CountOrNone = -1
    """Maximum number of destinations of this pattern that can be created; -1: only the broker's limit applies."""
    gc_inactive_destinations: bool = False
    """Delete a destination that has no messages, consumers or producers."""
    inactive_timeout_before_gc: Milliseconds = Field(60_000, ge=1)
    """Time without them before it is deleted."""

    advisory_for_consumed: bool = False
    """Send an advisory for each acknowledged message."""
    advisory_for_delivery: bool = False
    """Send one for each message that arrives in a queue or topic."""
    advisory_for_dispatched: bool = False
    """Send one for each message that is given to a consumer."""
    advisory_for_discarding_messages: bool = False
    """Send one for each message that is dropped for a slow consumer."""
    advisory_for_slow_consumers: bool = False
    """Send one for each consumer that becomes slow."""
    advisory_when_full: bool = False
    """Send one when a limit is reached."""
    send_advisory_if_no_consumers: bool = False
    """Send one, with the message, for each non-persistent message of a topic that has no consumer."""
    include_body_for_advisory: bool = False
    """Include the body of the message in advisories about it."""


def different(entries: tuple[Subject, ...]) -> tuple[Subject, ...]:
    """Return ``entries`` if their subjects differ. ValueError names the pattern that occurs twice."""
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        if entry.subject in seen:
            kind, pattern = entry.subject
            raise ValueError(f'one entry for each pattern, but {kind} = "{pattern}" occurs twice')
        seen.add(entry.subject)
    return entries


Destinations = Annotated[tuple[DestinationSettings, ...], AfterValidator(different)]


FORWARDS_MAX: Final = 100
DEFAULT_PREFIXES: Final = {"virtual_topic": "Consumer.*.", "mirrored_queue": "VirtualTopic.Mirror."}


Name = Annotated[str, without("*>,?", "the name of one destination")]
Part = Annotated[str, without(">,?", "a part of a destination's name, in which * is any word", may_be_empty=True)]


class ForwardSettings(Subject):
    queue: Name | None = None
    """Forward messages to this queue."""
    topic: Name | None = None
    """Forward messages to this topic."""
    selector: str | None = None
    """Forward only messages that match this selector. Default: all."""


class VirtualDestinationSettings(Subject):
    kinds = ("composite_queue", "composite_topic", "mirrored_queue", "virtual_topic")

    composite_queue: Pattern | None = None
    """Messages to queues of this pattern are forwarded (`forward_to`)."""
    composite_topic: Pattern | None = None
    """Messages to topics of this pattern are forwarded (`forward_to`)."""
    mirrored_queue: Pattern | None = None
    """Messages to queues of this pattern are also sent to the topic `<prefix><queue><postfix>`."""
    virtual_topic: Pattern | None = None
    """Topics of this pattern feed queues `<prefix><topic><postfix>`. Default without such a table: `VirtualTopic.>`."""
    forward_to: tuple[ForwardSettings, ...] = Field((), max_length=FORWARDS_MAX)
    forward_only: bool = True
    """A composite destination keeps no message itself."""
    send_when_not_matched: bool = False
    """The destination keeps the messages that no forward selects, and only these, whatever `forward_only` is."""
    prefix: Part | None = None
    """Text before the name. Default: `Consumer.*.` for virtual topics, `VirtualTopic.Mirror.` for mirrored queues."""
    postfix: Part = ""
    """Text after the name."""
    selector_aware: bool = False
    """A queue of a virtual topic receives only messages that one of its consumers selects."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        kind, _ = self.subject
        if kind.startswith("composite") != bool(self.forward_to):
            raise ValueError("forward_to with composite destinations, and only with them")
        if kind == "mirrored_queue" and "*" in f"{self.prefix}{self.postfix}":
            raise ValueError("a prefix and a postfix without *, because they name one topic")
        if kind in DEFAULT_PREFIXES and not self.named_prefix and not self.postfix:
            raise ValueError("a prefix or a postfix, because a destination cannot forward to itself")
        return self

    @property
    def named_prefix(self) -> str:
        return DEFAULT_PREFIXES.get(self.subject[0], "") if self.prefix is None else self.prefix


VirtualDestinations = Annotated[tuple[VirtualDestinationSettings, ...], AfterValidator(different)]
