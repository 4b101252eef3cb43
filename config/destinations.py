"""The tables [[destinations]]: what holds for the destinations that a pattern names, as ActiveMQ's policyEntry has it.

The most specific entry that matches holds, and it alone: what it does not say has its default, also where a less
specific entry says it. What becomes of those attributes of a policyEntry that are none of ours stands in
`config.policy_entries`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from config.section import AnyCase, Section, wrong
from config.store import Pattern
from config.units import Bytes, Count, Milliseconds, Unit, count, milliseconds

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
            raise wrong(f"{error}, or -1") from error

    return BeforeValidator(read)


CountOrNone = Annotated[int, _or_none(count), Unit("")]
MillisecondsOrNone = Annotated[int, _or_none(milliseconds), Unit("ms or -1")]


def _queue_name(name: str) -> str:
    if not name or any(character.isspace() or character in "*>,?" for character in name):
        raise wrong("the name of one queue")
    return name


def _prefix(prefix: str) -> str:
    if any(character.isspace() or character in "*>,?" for character in prefix):
        raise wrong("the beginning of a queue's name")
    return prefix


def _multiplier(number: float) -> float:
    if not 0 < number < math.inf:
        raise wrong("a number greater than 0")
    return number


Prefix = Annotated[str, AfterValidator(_prefix)]


class DeadLetterSettings(Section):
    type: Annotated[Literal["individual", "shared", "discarding"], AnyCase] = Field(
        "individual",
        description="A dead letter queue for each destination, one for all, or none: dead letters are dropped.",
    )
    dead_letter_queue: Annotated[str, AfterValidator(_queue_name)] = Field(
        "ActiveMQ.DLQ", description="`shared`: the queue."
    )
    queue_prefix: Prefix = Field(
        "ActiveMQ.DLQ.Queue.", description="`individual`: stands in front of a queue's name, and makes the dead ones'."
    )
    queue_suffix: Prefix = Field("", description="`individual`: stands behind it.")
    topic_prefix: Prefix = Field("ActiveMQ.DLQ.Topic.", description="`individual`: the same for a topic's name.")
    topic_suffix: Prefix = Field("", description="`individual`: the same.")
    process_expired: bool = Field(True, description="Messages that have expired are dead letters; false: dropped.")
    process_non_persistent: bool = Field(
        False, description="Messages that are not persistent are dead letters, too, and persistent ones then."
    )
    expiration: Milliseconds = Field(0, description="Dead letters themselves live so long; 0: for ever.")

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        for key in ("queue_prefix", "topic_prefix"):
            if self.type == "individual" and not getattr(self, key) and not getattr(self, key.replace("pre", "suf")):
                raise wrong(f"{key} to be something: a destination cannot be its own dead letter queue")
        return self


class RedeliverySettings(Section):
    maximum_redeliveries: CountOrNone = Field(
        6, description="So often a message comes again before it is a dead letter; -1: for ever."
    )
    initial_redelivery_delay: Milliseconds = Field(1_000, description="Before it comes again for the first time.")
    redelivery_delay: Milliseconds = Field(1_000, description="Before it comes again after that.")
    use_exponential_back_off: bool = Field(False, description="Each delay is `back_off_multiplier` times the last one.")
    back_off_multiplier: Annotated[float, AfterValidator(_multiplier)] = Field(5.0, description="See there.")
    maximum_redelivery_delay: MillisecondsOrNone = Field(-1, description="To no more than this; -1: there is no most.")


class SlowConsumerSettings(Section):
    type: Annotated[Literal["abort_slow_consumer", "abort_slow_ack_consumer"], AnyCase] = Field(
        "abort_slow_consumer",
        description="Slow is whose prefetch is used up (`abort_slow_consumer`), or who acknowledges nothing.",
    )
    max_slow_duration: MillisecondsOrNone = Field(
        30_000, description="Slow for so long without a break, it is cut off; -1: however long."
    )
    max_slow_count: CountOrNone = Field(-1, description="Slow so often, it is cut off; -1: however often.")
    max_time_since_last_ack: Milliseconds = Field(
        30_000, ge=1, description="`abort_slow_ack_consumer`: so long without an acknowledgement is slow."
    )
    ignore_idle_consumers: bool = Field(
        True, description="`abort_slow_ack_consumer`: who was given nothing has nothing to acknowledge."
    )
    abort_connection: bool = Field(False, description="Its connection is closed, not the consumer alone.")


class PendingLimitSettings(Section):
    limit: CountOrNone = Field(
        -1, description="So many messages wait for one topic consumer, then the oldest go; -1: the broker's own bound."
    )


class DestinationSettings(Section):
    queue: Pattern | None = Field(None, description="It holds for queues by this pattern: `ORDERS.>`, `*.IN`.")
    topic: Pattern | None = Field(None, description="Or for topics by this pattern.")
    temp_queue: bool = Field(False, description="Or for all temporary queues.")
    temp_topic: bool = Field(False, description="Or for all temporary topics.")

    queue_prefetch: Count | None = Field(
        None,
        le=PREFETCH_MAX,
        description="Unacknowledged messages a queue's consumer may have that asks for no other number. Default: "
        "`broker.queue_prefetch`.",
    )
    queue_browser_prefetch: Count = Field(500, ge=1, le=PREFETCH_MAX, description="The same for a browser.")
    topic_prefetch: Count | None = Field(
        None,
        ge=1,
        le=PREFETCH_MAX,
        description="The same for a topic's consumer. Default: `broker.topic_prefetch`.",
    )
    durable_topic_prefetch: Count | None = Field(
        None,
        ge=1,
        le=PREFETCH_MAX,
        description="The same for a durable subscriber. Default: `broker.durable_topic_prefetch`.",
    )

    memory_limit: Bytes = Field(
        0, description="Memory that one destination's messages may take of the broker's; 0: the broker's alone holds."
    )
    max_message_size: Bytes = Field(
        0, description="A longer message is refused; 0: as long as a frame may be (`wireFormat.maxFrameSize`)."
    )
    producer_flow_control: bool = Field(
        True,
        description="A producer waits when `memory_limit` is reached. False: what is not persistent is refused then, "
        "what is persistent waits on disk.",
    )
    send_fail_if_no_space: bool = Field(
        False, description="It does not wait: the send fails, with the limit and since when."
    )
    send_fail_if_no_space_after_timeout: MillisecondsOrNone = Field(
        -1, description="It waits so long at most, then the send fails; -1: as long as it takes."
    )
    blocked_producer_warning_interval: Milliseconds = Field(
        30_000, description="A producer that waits is warned of so often; 0: never."
    )

    dead_letter_strategy: DeadLetterSettings = DeadLetterSettings()  # type: ignore[call-arg]
    redelivery: RedeliverySettings | None = None
    expire_messages_period: Milliseconds = Field(
        1_000, description="Messages that have expired are looked for so often; 0: they go when they are met."
    )
    ttl_ceiling: Milliseconds = Field(
        0,
        description="A message that ends lives no longer (TimeStampingBrokerPlugin); 0: as long as it says.",
    )
    zero_expiration_override: Milliseconds = Field(
        0, description="A message that says no end lives so long (TimeStampingBrokerPlugin); 0: for ever."
    )

    prioritized_messages: bool = Field(False, description="Messages of a higher priority come first.")
    all_consumers_exclusive_by_default: bool = Field(
        False, description="One consumer at a time gets all messages, as if it had asked to be exclusive."
    )
    use_consumer_priority: bool = Field(True, description="Consumers of a higher priority are served first.")
    pending_message_limit_strategy: PendingLimitSettings = PendingLimitSettings()  # type: ignore[call-arg]
    slow_consumer_strategy: SlowConsumerSettings | None = None

    auto_create: bool = Field(
        True, description="A destination comes about when it is used first; false: that use is refused."
    )
    max_destinations: CountOrNone = Field(
        -1, description="So many destinations may come about by this pattern; -1: as many as the broker may have."
    )
    gc_inactive_destinations: bool = Field(
        False, description="A destination without messages, consumers and producers is deleted."
    )
    inactive_timeout_before_gc: Milliseconds = Field(60_000, ge=1, description="When it was so for so long.")

    advisory_for_consumed: bool = Field(False, description="An advisory for each message that is acknowledged.")
    advisory_for_delivery: bool = Field(False, description="For each that is given to a consumer.")
    advisory_for_discarding_messages: bool = Field(False, description="For each that is dropped for a slow consumer.")
    advisory_for_slow_consumers: bool = Field(False, description="For each consumer that becomes slow.")
    advisory_when_full: bool = Field(False, description="When a limit is reached.")
    send_advisory_if_no_consumers: bool = Field(
        False, description="For each message of a topic, not persistent, that nobody listens to: with that message."
    )
    include_body_for_advisory: bool = Field(False, description="Advisories about a message carry its body.")

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if sum((self.queue is not None, self.topic is not None, self.temp_queue, self.temp_topic)) != 1:
            raise wrong("one of queue, topic, temp_queue and temp_topic")
        return self

    @property
    def subject(self) -> tuple[str, str]:
        """The kind of destination, as the key is called, and the pattern."""
        if self.queue is not None:
            return "queue", self.queue
        if self.topic is not None:
            return "topic", self.topic
        return ("temp_queue" if self.temp_queue else "temp_topic"), ">"


def different(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    """Entries of different subjects, or the pattern that stands twice is named."""
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        if entry.subject in seen:
            kind, pattern = entry.subject
            raise wrong(f'one entry for each pattern, and {kind} = "{pattern}" stands twice')
        seen.add(entry.subject)
    return entries


Destinations = Annotated[tuple[DestinationSettings, ...], AfterValidator(different)]
