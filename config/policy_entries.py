"""What becomes of every attribute of ActiveMQ's policyEntry, and of the strategies that stand in it.

The table of ``config.destinations``, as `config.kahadb_properties` is that of the store: an attribute is a setting of
ours by the same name, is read as another one, holds anyway, or is refused with the reason and what to set instead.
Nothing is taken and then ignored. `docs/policies.md` is printed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemmq.config.kahadb_property import Outcome, Property, accepted, always, mapped, never, properties, refused

PREFIX: Final = "destinations"


_CURSORS: Final = (
    "What waits beyond a window in memory is always paged from the store's own journal; set memory_limit, and "
    "broker.memory_limit."
)
_PAGES: Final = "Queues are read in pages of a fixed size, and of less when memory is short; set broker.memory_limit."
_AUDIT: Final = (
    "Of the store: what a producer sends again is known there for every destination; set "
    "store.failover_producers_audit_depth and store.max_failover_producers_to_track."
)
_NETWORK: Final = "There are no networks of brokers here: a pair shares one store."
_WIRING: Final = "A Java object that ActiveMQ's own configuration wires in; there is nothing to wire here."

_POLICY_ENTRY: Final = {
    ("queue", "–"): accepted("As there; several names with commas between them are several entries here."),
    ("topic", "–"): accepted("As there."),
    ("tempQueue", "`false`"): accepted("As there."),
    ("tempTopic", "`false`"): accepted("As there."),
    ("destination", "–"): refused("Say queue, topic, temp_queue or temp_topic."),
    ("queuePrefetch", "`1000`"): accepted("As there: where a client asks for no other number than its own default."),
    ("queueBrowserPrefetch", "`500`"): accepted(),
    ("topicPrefetch", "`32767`"): accepted(),
    ("durableTopicPrefetch", "`100`"): accepted(),
    ("usePrefetchExtension", "`true`"): accepted(),
    ("memoryLimit", "`0`"): accepted("As there; 0: the broker's limit alone holds."),
    ("producerFlowControl", "`true`"): accepted(),
    ("sendFailIfNoSpace", "`false`"): accepted(),
    ("sendFailIfNoSpaceAfterTimeout", "`-1`"): accepted(),
    ("blockedProducerWarningInterval", "`30000`"): accepted(),
    ("cursorMemoryHighWaterMark", "`70`"): refused(_CURSORS),
    ("storeUsageHighWaterMark", "`100`"): refused("Of the volume, for all destinations: set store.disk_reserve."),
    ("minimumMessageSize", "`1024`"): refused("Messages are counted by what they take."),
    ("deadLetterStrategy", "`sharedDeadLetterStrategy`"): accepted("A table; its `type` is `individual` by default."),
    ("sendDuplicateFromStoreToDLQ", "`false`"): never("A store does not hold a message twice, so none is found there."),
    ("persistJMSRedelivered", "`false`"): never(
        "How often a message was delivered is written when it comes back; nothing is written before a first delivery."
    ),
    ("expireMessagesPeriod", "`30000`"): accepted("As there. What is to expire is known without a search."),
    ("maxExpirePageSize", "`400`"): refused("All that has expired in memory goes, in slices that hold up nobody."),
    ("prioritizedMessages", "`false`"): accepted("All ten priorities count, for the queue as a whole: see above."),
    ("allConsumersExclusiveByDefault", "`false`"): accepted(),
    ("useConsumerPriority", "`true`"): accepted(),
    ("strictOrderDispatch", "`false`"): never(
        "Consumers take turns; one that is to get all until it is full asks for a higher priority or to be exclusive."
    ),
    ("dispatchPolicy", "–"): refused("Consumers of one priority take turns. A client may ask for a priority."),
    ("lazyDispatch", "`false`"): never("Deliveries of one turn are written together anyway."),
    ("optimizedDispatch", "`false`"): always("There is no thread to save: the loop gives out what it took in."),
    ("consumersBeforeDispatchStarts", "`0`"): accepted(),
    ("timeBeforeDispatchStarts", "`0`"): accepted(),
    ("messageGroupMapFactory", "`cached`"): refused(
        "The owner of each group is known, for as many groups as memory allows."
    ),
    ("messageGroupMapFactoryType", "`cached`"): refused("The owner of each group is known by the group's name."),
    ("pendingMessageLimitStrategy", "–"): accepted("A table with `limit`."),
    ("messageEvictionStrategy", "–"): accepted("A table; its `type` is `oldest` by default."),
    ("slowConsumerStrategy", "–"): accepted("A table; its `type` is `abort_slow_consumer` by default."),
    ("pendingQueuePolicy", "–"): refused(_CURSORS),
    ("pendingDurableSubscriberPolicy", "–"): refused(_CURSORS),
    ("pendingSubscriberPolicy", "–"): refused(_CURSORS),
    ("subscriptionRecoveryPolicy", "–"): accepted("A table with a `type`. For plain consumers, not for durable ones."),
    ("alwaysRetroactive", "`false`"): accepted(),
    ("useCache", "`true`"): always("What arrives while there is room in memory is not read back from disk."),
    ("maxPageSize", "`200`"): refused(_PAGES),
    ("maxBrowsePageSize", "`400`"): refused("A browser is shown the whole queue, by pages of its own."),
    ("enableAudit", "`true`"): always(
        "What a producer sends again after a failover is never given out twice. " + _AUDIT
    ),
    ("maxAuditDepth", "`10000`"): refused(_AUDIT),
    ("maxQueueAuditDepth", "`10000`"): refused(_AUDIT),
    ("maxProducersToAudit", "`64`"): refused(_AUDIT),
    ("doOptimzeMessageStorage", "`true`"): always("Messages are held as the bytes that go to disk and to clients."),
    ("optimizeMessageStoreInFlightLimit", "`10`"): refused("Part of doOptimzeMessageStorage, which always holds."),
    ("reduceMemoryFootprint", "`false`"): always("Messages are held as bytes, and taken apart when somebody asks."),
    ("useTopicSubscriptionInflightStats", "`true`"): always("The figures cost nothing."),
    ("maxDestinations", "`-1`"): accepted(),
    ("gcInactiveDestinations", "`false`"): accepted(),
    ("inactiveTimeoutBeforeGC", "`60000`"): accepted(),
    ("inactiveTimoutBeforeGC", "`60000`"): mapped(
        "destinations.inactive_timeout_before_gc", "ActiveMQ's older spelling."
    ),
    ("gcWithNetworkConsumers", "`false`"): never(_NETWORK),
    ("networkBridgeFilterFactory", "–"): refused(_NETWORK),
    ("advisoryForConsumed", "`false`"): accepted(),
    ("advisoryForDelivery", "`false`"): accepted("As there: when the destination has the message."),
    ("advisoryForDispatched", "`false`"): accepted("As ActiveMQ 6 has it."),
    ("advisoryForDiscardingMessages", "`false`"): accepted(),
    ("advisoryForFastProducers", "`false`"): never(
        "A producer that is too fast waits, and status and log say so; set advisory_when_full to have it as a message."
    ),
    ("advisoryForSlowConsumers", "`false`"): accepted(),
    ("advisoryWhenFull", "`false`"): accepted(),
    ("sendAdvisoryIfNoConsumers", "`false`"): accepted(),
    ("includeBodyForAdvisory", "`false`"): accepted(),
    ("advancedNetworkStatisticsEnabled", "`false`"): never(_NETWORK),
    ("advancedMessageStatisticsEnabled", "`false`"): refused("status and metrics count messages for each destination."),
    ("allowTempDestinationStealing", "`false`"): never(
        "A temporary destination is read by the connection that made it."
    ),
    ("messageInterceptorStrategy", "–"): refused("Java code of the operator's; nothing of a broker here runs any."),
}

_DEAD_LETTER_AUDIT: Final = "Of enableAudit: the last 100,000 dead letters of durable subscriptions are known."
_DEAD_LETTER: Final = {
    ("deadLetterQueue", "`queue://ActiveMQ.DLQ`"): accepted("The queue's name."),
    ("queuePrefix", "`ActiveMQ.DLQ.Queue.`"): accepted(),
    ("queueSuffix", "–"): accepted(),
    ("topicPrefix", "`ActiveMQ.DLQ.Topic.`"): accepted(),
    ("topicSuffix", "–"): accepted(),
    ("useQueueForQueueMessages", "`true`"): accepted(),
    ("useQueueForTopicMessages", "`true`"): accepted(),
    ("destinationPerDurableSubscriber", "`false`"): accepted(
        "As there, and each has its own: ActiveMQ's audit, unless it is off, drops all but the first."
    ),
    ("processExpired", "`true`"): accepted(),
    ("processNonPersistent", "`false`"): accepted(),
    ("expiration", "`0`"): accepted(),
    ("enableAudit", "`true`"): accepted(
        "Of what several subscriptions of a topic give up one dead letter is kept. Of a queue's messages each is: "
        "what was brought back from there and fails again is a dead letter again, where ActiveMQ drops it."
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
    ("useCollisionAvoidance", "`false`"): never("Messages that come again do not collide."),
    ("collisionAvoidancePercent", "`15`"): refused("Part of useCollisionAvoidance."),
    ("preDispatchCheck", "`true`"): always("What came again too often is a dead letter before it is given out."),
    **{
        (name, "–"): refused("The entry in which the table stands says for what it holds.")
        for name in ("destination", "queue", "topic", "tempQueue", "tempTopic")
    },
}

_SLOW_CONSUMER: Final = {
    ("maxSlowDuration", "`30000`"): accepted(),
    ("maxSlowCount", "`-1`"): accepted(),
    ("maxTimeSinceLastAck", "`30000`"): accepted(),
    ("ignoreIdleConsumers", "`true`"): accepted(),
    ("abortConnection", "`false`"): accepted(),
    ("checkPeriod", "`30000`"): refused("Each consumer is looked at every second."),
    ("ignoreNetworkConsumers", "`true`"): always(_NETWORK),
    ("brokerService", "–"): refused(_WIRING),
    ("name", "–"): refused(_WIRING),
}

_PENDING_LIMIT: Final = {
    ("limit", "`-1`"): accepted(),
    ("multiplier", "`0.5`"): accepted("That of prefetchRatePendingMessageLimitStrategy."),
}

_EVICTION: Final = {
    ("propertyName", "–"): accepted("That of uniquePropertyMessageEvictionStrategy."),
    ("evictExpiredMessagesHighWatermark", "`1000`"): refused("1,000 messages are looked at, the oldest."),
}

_RECOVERY: Final = {
    ("maximumSize", "`100`, `65536`"): accepted("Of fixedCount and fixedSized."),
    ("recoverDuration", "`60000`"): accepted("Of timed."),
    ("useSharedBuffer", "`true`"): refused("Of fixedSized: each topic keeps its own."),
    ("query", "–"): refused("Of queryBased, which is Java code of the operator's."),
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
    "messageEvictionStrategy (`[destinations.message_eviction_strategy]`)": properties(
        f"{PREFIX}.message_eviction_strategy", _EVICTION
    ),
    "subscriptionRecoveryPolicy (`[destinations.subscription_recovery_policy]`)": properties(
        f"{PREFIX}.subscription_recovery_policy", _RECOVERY
    ),
}
ALL: Final = tuple(found for group in GROUPS.values() for found in group)
#: By key, those that are not plain settings of ours.
SPECIAL: Final[Mapping[str, Property]] = {found.key: found for found in ALL if found.outcome is not Outcome.ACCEPTED}
