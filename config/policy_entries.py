"""Treatment of each attribute of ActiveMQ's policyEntry and of its strategies.

This table belongs to ``config.destinations``, as `config.kahadb_properties` does to the store: an attribute is a
setting of the same name, is read as another one, is fixed, or is refused with the reason and the setting to use
instead. No attribute is ignored. `docs/policies.md` is generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemmq.config.kahadb_property import Outcome, Property, accepted, always, mapped, never, properties, refused

PREFIX: Final = "destinations"


_CURSORS: Final = (
    "Messages beyond the window in memory are always paged from the journal. Set memory_limit and broker.memory_limit."
)
_PAGES: Final = "Pages have a fixed size, smaller if memory is short. Set broker.memory_limit."
_AUDIT: Final = (
    "The store detects resent messages for all destinations. Set store.failover_producers_audit_depth and "
    "store.max_failover_producers_to_track."
)
_NETWORK: Final = "There are no networks of brokers."
_WIRING: Final = "A Java object of ActiveMQ's configuration."

_POLICY_ENTRY: Final = {
    ("queue", "–"): accepted("Several names, separated by commas, become several entries."),
    ("topic", "–"): accepted(),
    ("tempQueue", "`false`"): accepted(),
    ("tempTopic", "`false`"): accepted(),
    ("destination", "–"): refused("Set queue, topic, temp_queue or temp_topic."),
    ("queuePrefetch", "`1000`"): accepted("For clients that keep the default of their library."),
    ("queueBrowserPrefetch", "`500`"): accepted(),
    ("topicPrefetch", "`32767`"): accepted(),
    ("durableTopicPrefetch", "`100`"): accepted(),
    ("usePrefetchExtension", "`true`"): accepted(),
    ("memoryLimit", "`0`"): accepted("0: only the broker's limit."),
    ("producerFlowControl", "`true`"): accepted(),
    ("sendFailIfNoSpace", "`false`"): accepted(),
    ("sendFailIfNoSpaceAfterTimeout", "`-1`"): accepted(),
    ("blockedProducerWarningInterval", "`30000`"): accepted(),
    ("cursorMemoryHighWaterMark", "`70`"): refused(_CURSORS),
    ("storeUsageHighWaterMark", "`100`"): refused("The limit is per volume. Set store.disk_reserve."),
    ("minimumMessageSize", "`1024`"): refused("Messages count with their real size."),
    ("deadLetterStrategy", "`sharedDeadLetterStrategy`"): accepted("A table. Default `type`: `individual`."),
    ("sendDuplicateFromStoreToDLQ", "`false`"): never("The store holds no message twice."),
    ("persistJMSRedelivered", "`false`"): never(
        "The delivery count is written when a message is returned, not before its first delivery."
    ),
    ("expireMessagesPeriod", "`30000`"): accepted(),
    ("maxExpirePageSize", "`400`"): refused("All expired messages in memory are removed, in small steps."),
    ("prioritizedMessages", "`false`"): accepted("All ten priorities, for the whole queue. See above."),
    ("allConsumersExclusiveByDefault", "`false`"): accepted(),
    ("useConsumerPriority", "`true`"): accepted(),
    ("strictOrderDispatch", "`false`"): never(
        "Consumers take turns. Use a higher consumer priority, or an exclusive consumer."
    ),
    ("dispatchPolicy", "–"): refused("Consumers of one priority take turns. A client can request a priority."),
    ("lazyDispatch", "`false`"): never("Deliveries of one turn of the event loop are written together."),
    ("optimizedDispatch", "`false`"): always("The event loop dispatches directly."),
    ("consumersBeforeDispatchStarts", "`0`"): accepted(),
    ("timeBeforeDispatchStarts", "`0`"): accepted(),
    ("messageGroupMapFactory", "`cached`"): refused("The owner of each group is kept in memory, if there is room."),
    ("messageGroupMapFactoryType", "`cached`"): refused("The owner of each group is found by the name of the group."),
    ("pendingMessageLimitStrategy", "–"): accepted("A table with `limit`."),
    ("messageEvictionStrategy", "–"): accepted("A table. Default `type`: `oldest`."),
    ("slowConsumerStrategy", "–"): accepted("A table. Default `type`: `abort_slow_consumer`."),
    ("pendingQueuePolicy", "–"): refused(_CURSORS),
    ("pendingDurableSubscriberPolicy", "–"): refused(_CURSORS),
    ("pendingSubscriberPolicy", "–"): refused(_CURSORS),
    ("subscriptionRecoveryPolicy", "–"): accepted("A table with a `type`. Not for durable consumers."),
    ("alwaysRetroactive", "`false`"): accepted(),
    ("useCache", "`true`"): always("A message that arrives while memory has room is not read from disk."),
    ("maxPageSize", "`200`"): refused(_PAGES),
    ("maxBrowsePageSize", "`400`"): refused("A browser sees the whole queue, in pages."),
    ("enableAudit", "`true`"): always("A message that is resent after a failover is not delivered twice. " + _AUDIT),
    ("maxAuditDepth", "`10000`"): refused(_AUDIT),
    ("maxQueueAuditDepth", "`10000`"): refused(_AUDIT),
    ("maxProducersToAudit", "`64`"): refused(_AUDIT),
    ("doOptimzeMessageStorage", "`true`"): always("Messages are held as the bytes on disk and on the wire."),
    ("optimizeMessageStoreInFlightLimit", "`10`"): refused("Part of doOptimzeMessageStorage, which is fixed."),
    ("reduceMemoryFootprint", "`false`"): always("Messages are held as bytes and decoded on demand."),
    ("useTopicSubscriptionInflightStats", "`true`"): always("Always counted."),
    ("maxDestinations", "`-1`"): accepted(),
    ("gcInactiveDestinations", "`false`"): accepted(),
    ("inactiveTimeoutBeforeGC", "`60000`"): accepted(),
    ("inactiveTimoutBeforeGC", "`60000`"): mapped(
        "destinations.inactive_timeout_before_gc", "ActiveMQ's older spelling."
    ),
    ("gcWithNetworkConsumers", "`false`"): never(_NETWORK),
    ("networkBridgeFilterFactory", "–"): refused(_NETWORK),
    ("advisoryForConsumed", "`false`"): accepted(),
    ("advisoryForDelivery", "`false`"): accepted("Sent when the destination has the message."),
    ("advisoryForDispatched", "`false`"): accepted("As in ActiveMQ 6."),
    ("advisoryForDiscardingMessages", "`false`"): accepted(),
    ("advisoryForFastProducers", "`false`"): never(
        "A producer without room waits; status and log name it. For an advisory, set advisory_when_full."
    ),
    ("advisoryForSlowConsumers", "`false`"): accepted(),
    ("advisoryWhenFull", "`false`"): accepted(),
    ("sendAdvisoryIfNoConsumers", "`false`"): accepted(),
    ("includeBodyForAdvisory", "`false`"): accepted(),
    ("advancedNetworkStatisticsEnabled", "`false`"): never(_NETWORK),
    ("advancedMessageStatisticsEnabled", "`false`"): refused("status and metrics count messages per destination."),
    ("allowTempDestinationStealing", "`false`"): never(
        "Only the connection that created a temporary destination reads it."
    ),
    ("messageInterceptorStrategy", "–"): refused("The broker runs no Java code."),
}

_DEAD_LETTER_AUDIT: Final = (
    "Part of enableAudit, which remembers the last 100,000 dead letters of durable subscriptions."
)
_DEAD_LETTER: Final = {
    ("deadLetterQueue", "`queue://ActiveMQ.DLQ`"): accepted("The queue's name."),
    ("queuePrefix", "`ActiveMQ.DLQ.Queue.`"): accepted(),
    ("queueSuffix", "–"): accepted(),
    ("topicPrefix", "`ActiveMQ.DLQ.Topic.`"): accepted(),
    ("topicSuffix", "–"): accepted(),
    ("useQueueForQueueMessages", "`true`"): accepted(),
    ("useQueueForTopicMessages", "`true`"): accepted(),
    ("destinationPerDurableSubscriber", "`false`"): accepted(
        "Each subscriber gets a dead letter. (ActiveMQ's audit drops all but the first.)"
    ),
    ("processExpired", "`true`"): accepted(),
    ("processNonPersistent", "`false`"): accepted(),
    ("expiration", "`0`"): accepted(),
    ("enableAudit", "`true`"): accepted(
        "Several subscriptions of a topic make one dead letter. Queues have no such audit: a retried message that "
        "fails again becomes a dead letter again. (ActiveMQ drops it.)"
    ),
    ("maxAuditDepth", "`2048`"): refused(_DEAD_LETTER_AUDIT),
    ("maxProducersToAudit", "`64`"): refused(_DEAD_LETTER_AUDIT),
}

_REDELIVERY: Final = {
    ("maximumRedeliveries", "`6`"): accepted(),
    ("initialRedeliveryDelay", "`1000`"): accepted(),
    ("redeliveryDelay", "`1000`"): accepted(),
    ("useExponentialBackOff", "`false`"): accepted(),
    ("backOffMultiplier", "`5.0`"): accepted(),
    ("maximumRedeliveryDelay", "`-1`"): accepted(),
    ("useCollisionAvoidance", "`false`"): never("Redeliveries do not collide."),
    ("collisionAvoidancePercent", "`15`"): refused("Part of useCollisionAvoidance."),
    ("preDispatchCheck", "`true`"): always("The limit is checked before delivery."),
    **{
        (name, "–"): refused("The enclosing entry sets the destinations.")
        for name in ("destination", "queue", "topic", "tempQueue", "tempTopic")
    },
}

_SLOW_CONSUMER: Final = {
    ("maxSlowDuration", "`30000`"): accepted(),
    ("maxSlowCount", "`-1`"): accepted(),
    ("maxTimeSinceLastAck", "`30000`"): accepted(),
    ("ignoreIdleConsumers", "`true`"): accepted(),
    ("abortConnection", "`false`"): accepted(),
    ("checkPeriod", "`30000`"): refused("Consumers are checked every second."),
    ("ignoreNetworkConsumers", "`true`"): always(_NETWORK),
    ("brokerService", "–"): refused(_WIRING),
    ("name", "–"): refused(_WIRING),
}

_PENDING_LIMIT: Final = {
    ("limit", "`-1`"): accepted(),
    ("multiplier", "`0.5`"): accepted("Of prefetchRatePendingMessageLimitStrategy."),
}

_EVICTION: Final = {
    ("propertyName", "–"): accepted("Of uniquePropertyMessageEvictionStrategy."),
    ("evictExpiredMessagesHighWatermark", "`1000`"): refused("The oldest 1,000 messages are checked."),
}

_RECOVERY: Final = {
    ("maximumSize", "`100`, `65536`"): accepted("Only for fixedCount and fixedSized."),
    ("recoverDuration", "`60000`"): accepted("Of timed."),
    ("useSharedBuffer", "`true`"): refused("An option of fixedSized. Each topic has its own buffer."),
    ("query", "–"): refused("An option of queryBased, which is Java code."),
}

POLICY_ENTRY: Final = properties(PREFIX, _POLICY_ENTRY)
DEAD_LETTER: Final = properties(f"{PREFIX}.dead_letter_strategy", _DEAD_LETTER)
REDELIVERY: Final = properties(f"{PREFIX}.redelivery", _REDELIVERY)
SLOW_CONSUMER: Final = properties(f"{PREFIX}.slow_consumer_strategy", _SLOW_CONSUMER)
PENDING_LIMIT: Final = properties(f"{PREFIX}.pending_message_limit_strategy", _PENDING_LIMIT)
EVICTION: Final = properties(f"{PREFIX}.message_eviction_strategy", _EVICTION)
RECOVERY: Final = properties(f"{PREFIX}.subscription_recovery_policy", _RECOVERY)

GROUPS: Final = {
    "policyEntry (`[[destinations]]`)": POLICY_ENTRY,
    "deadLetterStrategy (`[destinations.dead_letter_strategy]`)": DEAD_LETTER,
    "redeliveryPolicy (`[destinations.redelivery]`)": REDELIVERY,
    "slowConsumerStrategy (`[destinations.slow_consumer_strategy]`)": SLOW_CONSUMER,
    "pendingMessageLimitStrategy (`[destinations.pending_message_limit_strategy]`)": PENDING_LIMIT,
    "messageEvictionStrategy (`[destinations.message_eviction_strategy]`)": EVICTION,
    "subscriptionRecoveryPolicy (`[destinations.subscription_recovery_policy]`)": RECOVERY,
}
ALL: Final = tuple(found for group in GROUPS.values() for found in group)
#: Attributes that are not plain settings here, by key.
SPECIAL: Final[Mapping[str, Property]] = {found.key: found for found in ALL if found.outcome is not Outcome.ACCEPTED}
