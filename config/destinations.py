"""The tables [[destinations]]: what holds for the destinations that a pattern names, as ActiveMQ's policyEntry has it.

The most specific entry that matches holds, and it alone: what it does not say has its default, also where a less
specific entry says it. What becomes of those attributes of a policyEntry that are none of ours stands in
`config.policy_entries`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tandemmq.config.section import AnyCase, Section, Subject, without
from tandemmq.config.store import Pattern
from tandemmq.config.units import Bytes, BytesOrUnlimited, Count, Milliseconds, Unit, count, milliseconds

PREFETCH_MAX: Final = 32_767
NO_LIMIT: Final = -1


def _or_none(parse: Callable[[object], int]) -> BeforeValidator:
    """-1 is ActiveMQ's word for no limit."""

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
    """A dead letter queue for each destination, one for all, or none: dead letters are dropped."""
    dead_letter_queue: Annotated[str, without("*>,?", "the name of one queue")] = "ActiveMQ.DLQ"
    """`shared`: the queue."""
    queue_prefix: Prefix = "ActiveMQ.DLQ.Queue."
    """`individual`: stands in front of a queue's name, and makes the dead ones'."""
    queue_suffix: Prefix = ""
    """`individual`: stands behind it."""
    topic_prefix: Prefix = "ActiveMQ.DLQ.Topic."
    """`individual`: the same for a topic's name."""
    topic_suffix: Prefix = ""
    """`individual`: the same."""
    process_expired: bool = True
    """Messages that have expired are dead letters; false: dropped."""
    process_non_persistent: bool = False
    """Messages that are not persistent are dead letters, too, and persistent ones then."""
    expiration: Milliseconds = 0
    """Dead letters themselves live so long; 0: for ever."""
    use_queue_for_queue_messages: bool = True
    """`individual`: dead letters of queues are in a queue; false: they are sent to a topic."""
    use_queue_for_topic_messages: bool = True
    """`individual`: the same for those of topics."""
    destination_per_durable_subscriber: bool = False
    """`individual`: each durable subscription has dead letters of its own; `.<client id>:<name>` follows the topic's
    name."""
    enable_audit: bool = True
    """What several durable subscriptions of a topic give up becomes one dead letter; false: one each."""

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        for key in ("queue_prefix", "topic_prefix"):
            if self.type == "individual" and not getattr(self, key) and not getattr(self, key.replace("pre", "suf")):
                raise ValueError(f"{key} to be something: a destination cannot be its own dead letter queue")
        return self


class RedeliverySettings(Section):
    maximum_redeliveries: CountOrNone = 6
    """So often a message comes again before it is a dead letter; -1: for ever."""
    initial_redelivery_delay: Milliseconds = 1_000
    """Before it comes again for the first time."""
    redelivery_delay: Milliseconds = 1_000
    """Before it comes again after that."""
    use_exponential_back_off: bool = False
    """Each delay is `back_off_multiplier` times the last one."""
    back_off_multiplier: Annotated[float, AfterValidator(_multiplier)] = 5.0
    """See there."""
    maximum_redelivery_delay: MillisecondsOrNone = -1
    """To no more than this; -1: there is no most."""


class SlowConsumerSettings(Section):
    type: Annotated[Literal["abort_slow_consumer", "abort_slow_ack_consumer"], AnyCase] = "abort_slow_consumer"
    """Slow is whose prefetch is used up (`abort_slow_consumer`), or who acknowledges nothing."""
    max_slow_duration: MillisecondsOrNone = 30_000
    """Slow for so long without a break, it is cut off; -1: however long."""
    max_slow_count: CountOrNone = -1
    """Slow so often, it is cut off; -1: however often."""
    max_time_since_last_ack: Milliseconds = Field(30_000, ge=1)
    """`abort_slow_ack_consumer`: so long without an acknowledgement is slow."""
    ignore_idle_consumers: bool = True
    """`abort_slow_ack_consumer`: who was given nothing has nothing to acknowledge."""
    abort_connection: bool = False
    """Its connection is closed, not the consumer alone."""


class PendingLimitSettings(Section):
    limit: CountOrNone = -1
    """So many messages wait for one topic consumer, then the oldest go; -1: the broker's own bound."""

    multiplier: Annotated[float, AfterValidator(_multiplier)] | None = None
    """Instead of `limit`: so many times the consumer's prefetch."""


class EvictionSettings(Section):
    type: Annotated[Literal["oldest", "oldest_message_with_lowest_priority", "unique_property"], AnyCase] = "oldest"
    """Which message a topic's consumer loses that does not keep up: the oldest, the oldest of the lowest priority, or
    the oldest that a younger one with the same value of `property_name` replaces."""
    property_name: str = ""
    """`unique_property`: the property."""

    @model_validator(mode="after")
    def _has_a_property(self) -> Self:
        if (self.type == "unique_property") != bool(self.property_name):
            raise ValueError("property_name, of unique_property and of nothing else")
        return self


class RecoverySettings(Section):
    type: Annotated[Literal["fixed_count", "last_image", "timed", "fixed_sized", "retained_message"], AnyCase] = (
        "fixed_count"
    )
    """What a topic keeps, in memory, for consumers that ask for what they missed (`consumer.retroactive=true`): the
    last messages, the last one, those of a while, those of so many bytes, or the last that says `ActiveMQ.Retain`.
    10,000 messages and 8 MiB at most."""
    maximum_size: Bytes | None = Field(None, ge=1)
    """`fixed_count`: so many messages, 100 by default; `fixed_sized`: so many bytes, 64 KiB."""
    recover_duration: Milliseconds = Field(60_000, ge=1)
    """`timed`: so long."""


class DestinationSettings(Subject):
    kinds = ("queue", "topic", "temp_queue", "temp_topic")

    queue: Pattern | None = None
    """It holds for queues by this pattern: `ORDERS.>`, `*.IN`."""
    topic: Pattern | None = None
    """Or for topics by this pattern."""
    temp_queue: bool = False
    """Or for all temporary queues."""
    temp_topic: bool = False
    """Or for all temporary topics."""

    queue_prefetch: Count | None = Field(None, le=PREFETCH_MAX)
    """Unacknowledged messages a queue's consumer may have that asks for no other number. Default:
    `broker.queue_prefetch`."""
    queue_browser_prefetch: Count = Field(500, ge=1, le=PREFETCH_MAX)
    """The same for a browser."""
    topic_prefetch: Count | None = Field(None, ge=1, le=PREFETCH_MAX)
    """The same for a topic's consumer. Default: `broker.topic_prefetch`."""
    durable_topic_prefetch: Count | None = Field(None, ge=1, le=PREFETCH_MAX)
    """The same for a durable subscriber. Default: `broker.durable_topic_prefetch`."""

    memory_limit: BytesOrUnlimited = 0
    """Memory that one destination's messages may take of the broker's; 0: the broker's alone holds."""
    max_message_size: BytesOrUnlimited = 0
    """A longer message is refused; 0: as long as a frame may be (`wireFormat.maxFrameSize`)."""
    producer_flow_control: bool = True
    """A producer waits when `memory_limit` is reached. False: what is not persistent is refused then, what is
    persistent waits on disk."""
    send_fail_if_no_space: bool = False
    """It does not wait: the send fails, with the limit and since when."""
    send_fail_if_no_space_after_timeout: MillisecondsOrNone = -1
    """It waits so long at most, then the send fails; -1: as long as it takes."""
    blocked_producer_warning_interval: Milliseconds = 30_000
    """A producer that waits is warned of so often; 0: never."""

    dead_letter_strategy: DeadLetterSettings = DeadLetterSettings()
    redelivery: RedeliverySettings | None = None
    expire_messages_period: Milliseconds = 1_000
    """Messages that have expired are looked for so often; 0: they go when they are met."""
    ttl_ceiling: Milliseconds = 0
    """A message that ends lives no longer (TimeStampingBrokerPlugin); 0: as long as it says."""
    zero_expiration_override: Milliseconds = 0
    """A message that says no end lives so long (TimeStampingBrokerPlugin); 0: for ever."""

    prioritized_messages: bool = False
    """Messages of a higher priority come first."""
    all_consumers_exclusive_by_default: bool = False
    """One consumer at a time gets all messages, as if it had asked to be exclusive."""
    use_consumer_priority: bool = True
    """Consumers of a higher priority are served first."""
    pending_message_limit_strategy: PendingLimitSettings = PendingLimitSettings()
    message_eviction_strategy: EvictionSettings = EvictionSettings()
    subscription_recovery_policy: RecoverySettings | None = None
    always_retroactive: bool = False
    """Each consumer is given what its topic kept."""
    use_prefetch_extension: bool = True
    """A consumer that acknowledges in a transaction, or late, is given more than its prefetch once it says that it was
    shown what it has. False: a transaction longer than the prefetch does not end."""
    consumers_before_dispatch_starts: Count = 0
    """A queue gives out nothing before it has so many consumers, or the time below is up."""
    time_before_dispatch_starts: Milliseconds = 0
    """Or before its first consumer is so old; 0 with a number of consumers: 1 s."""
    slow_consumer_strategy: SlowConsumerSettings | None = None

    auto_create: bool = True
    """A destination comes about when it is used first; false: that use is refused."""
    max_destinations: CountOrNone = -1
    """So many destinations may come about by this pattern; -1: as many as the broker may have."""
    gc_inactive_destinations: bool = False
    """A destination without messages, consumers and producers is deleted."""
    inactive_timeout_before_gc: Milliseconds = Field(60_000, ge=1)
    """When it was so for so long."""

    advisory_for_consumed: bool = False
    """An advisory for each message that is acknowledged."""
    advisory_for_delivery: bool = False
    """For each that arrives in a queue or topic."""
    advisory_for_dispatched: bool = False
    """For each that is given to a consumer."""
    advisory_for_discarding_messages: bool = False
    """For each that is dropped for a slow consumer."""
    advisory_for_slow_consumers: bool = False
    """For each consumer that becomes slow."""
    advisory_when_full: bool = False
    """When a limit is reached."""
    send_advisory_if_no_consumers: bool = False
    """For each message of a topic, not persistent, that nobody listens to: with that message."""
    include_body_for_advisory: bool = False
    """Advisories about a message carry its body."""


def different(entries: tuple[Subject, ...]) -> tuple[Subject, ...]:
    """Entries of different subjects, or the pattern that stands twice is named."""
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        if entry.subject in seen:
            kind, pattern = entry.subject
            raise ValueError(f'one entry for each pattern, and {kind} = "{pattern}" stands twice')
        seen.add(entry.subject)
    return entries


Destinations = Annotated[tuple[DestinationSettings, ...], AfterValidator(different)]
