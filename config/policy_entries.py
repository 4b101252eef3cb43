"""What becomes of every attribute of ActiveMQ's policyEntry, and of the strategies that stand in it.

The table of ``config.destinations``, as `config.kahadb_properties` is that of the store: an attribute is a setting of
ours by the same name, is read as another one, holds anyway, or is refused with the reason and what to set instead.
Nothing is taken and then ignored. `docs/policies.md` is printed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from config.kahadb_property import Outcome, Property, snake_case

PREFIX: Final = "destinations"


def _key(name: str, table: str) -> str:
    key = snake_case(name.replace("TopicSubscription", "Topicsubscription").replace("GC", "Gc").replace("DLQ", "Dlq"))
    return f"{PREFIX}.{table}{key.replace('topicsubscription', 'topic_subscription')}"


def _accepted(name: str, default: str, here: str = "As there.", table: str = "") -> Property:
    return Property(name, default, Outcome.ACCEPTED, here, _key(name, table))


def _mapped(name: str, default: str, target: str, here: str, convert: Callable[[Any], Any] = lambda v: v) -> Property:
    return Property(name, default, Outcome.MAPPED, here, _key(name, ""), f"{PREFIX}.{target}", convert)


def _fixed(name: str, default: str, value: bool, here: str, table: str = "") -> Property:
    return Property(name, default, Outcome.FIXED, here, _key(name, table), values=(value,))


def _refused(name: str, default: str, here: str, table: str = "") -> Property:
    return Property(name, default, Outcome.REFUSED, here, _key(name, table))


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

POLICY_ENTRY: Final = (
    _accepted("queue", "–", "As there; several names with commas between them are several entries here."),
    _accepted("topic", "–", "As there."),
    _accepted("tempQueue", "`false`", "As there."),
    _accepted("tempTopic", "`false`", "As there."),
    _refused("destination", "–", "Say queue, topic, temp_queue or temp_topic."),
    _accepted("queuePrefetch", "`1000`", "As there: where a client asks for no other number than its own default."),
    _accepted("queueBrowserPrefetch", "`500`"),
    _accepted("topicPrefetch", "`32767`"),
    _accepted("durableTopicPrefetch", "`100`"),
    _fixed(
        "usePrefetchExtension",
        "`true`",
        True,
        "A consumer that acknowledges in a transaction, or late, is given more once it says that it was shown what it "
        "has: without, a transaction longer than its prefetch would never end.",
    ),
    _accepted("memoryLimit", "`0`", "As there; 0: the broker's limit alone holds."),
    _accepted("producerFlowControl", "`true`"),
    _accepted("sendFailIfNoSpace", "`false`"),
    _accepted("sendFailIfNoSpaceAfterTimeout", "`-1`"),
    _accepted("blockedProducerWarningInterval", "`30000`"),
    _refused("cursorMemoryHighWaterMark", "`70`", _CURSORS),
    _refused("storeUsageHighWaterMark", "`100`", "Of the volume, for all destinations: set store.disk_reserve."),
    _refused("minimumMessageSize", "`1024`", "Messages are counted by what they take."),
    _accepted("deadLetterStrategy", "`sharedDeadLetterStrategy`", "A table; its `type` is `individual` by default."),
    _fixed(
        "sendDuplicateFromStoreToDLQ",
        "`false`",
        False,
        "A store does not hold a message twice, so none is found there.",
    ),
    _fixed(
        "persistJMSRedelivered",
        "`false`",
        False,
        "That a message was given out before is known while its master lives; it is not written to the journal.",
    ),
    _accepted("expireMessagesPeriod", "`30000`", "As there. What is to expire is known without a search."),
    _refused("maxExpirePageSize", "`400`", "All that has expired in memory goes, in slices that hold up nobody."),
    _accepted("prioritizedMessages", "`false`", "All ten priorities count, for the queue as a whole: see above."),
    _accepted("allConsumersExclusiveByDefault", "`false`"),
    _accepted("useConsumerPriority", "`true`"),
    _fixed(
        "strictOrderDispatch",
        "`false`",
        False,
        "Consumers take turns; one that is to get all until it is full asks for a higher priority or to be exclusive.",
    ),
    _refused("dispatchPolicy", "–", "Consumers of one priority take turns. A client may ask for a priority."),
    _fixed("lazyDispatch", "`false`", False, "Deliveries of one turn are written together anyway."),
    _fixed("optimizedDispatch", "`false`", True, "There is no thread to save: the loop gives out what it took in."),
    _refused("consumersBeforeDispatchStarts", "`0`", "A queue gives out as soon as somebody takes."),
    _refused("timeBeforeDispatchStarts", "`0`", "A queue gives out as soon as somebody takes."),
    _refused(
        "messageGroupMapFactory", "`cached`", "The owner of each group is known, for as many groups as memory allows."
    ),
    _refused("messageGroupMapFactoryType", "`cached`", "The owner of each group is known by the group's name."),
    _accepted("pendingMessageLimitStrategy", "–", "A table with `limit`."),
    _refused("messageEvictionStrategy", "–", "The oldest go first, as with ActiveMQ's default."),
    _accepted("slowConsumerStrategy", "–", "A table; its `type` is `abort_slow_consumer` by default."),
    _refused("pendingQueuePolicy", "–", _CURSORS),
    _refused("pendingDurableSubscriberPolicy", "–", _CURSORS),
    _refused("pendingSubscriberPolicy", "–", _CURSORS),
    _refused(
        "subscriptionRecoveryPolicy",
        "–",
        "Topics keep nothing for those who come later. Make the subscription durable, or use a virtual topic.",
    ),
    _fixed("alwaysRetroactive", "`false`", False, "Topics keep nothing that a subscriber could be given in arrears."),
    _fixed("useCache", "`true`", True, "What arrives while there is room in memory is not read back from disk."),
    _refused("maxPageSize", "`200`", _PAGES),
    _refused("maxBrowsePageSize", "`400`", "A browser is shown the whole queue, by pages of its own."),
    _fixed(
        "enableAudit",
        "`true`",
        True,
        "What a producer sends again after a failover is never given out twice. " + _AUDIT,
    ),
    _refused("maxAuditDepth", "`10000`", _AUDIT),
    _refused("maxQueueAuditDepth", "`10000`", _AUDIT),
    _refused("maxProducersToAudit", "`64`", _AUDIT),
    _fixed("doOptimzeMessageStorage", "`true`", True, "Messages are held as the bytes that go to disk and to clients."),
    _refused("optimizeMessageStoreInFlightLimit", "`10`", "Part of doOptimzeMessageStorage, which always holds."),
    _fixed("reduceMemoryFootprint", "`false`", True, "Messages are held as bytes, and taken apart when somebody asks."),
    _fixed("useTopicSubscriptionInflightStats", "`true`", True, "The figures cost nothing."),
    _accepted("maxDestinations", "`-1`"),
    _accepted("gcInactiveDestinations", "`false`"),
    _accepted("inactiveTimeoutBeforeGC", "`60000`"),
    _mapped("inactiveTimoutBeforeGC", "`60000`", "inactive_timeout_before_gc", "ActiveMQ's older spelling."),
    _fixed("gcWithNetworkConsumers", "`false`", False, _NETWORK),
    _refused("networkBridgeFilterFactory", "–", _NETWORK),
    _accepted("advisoryForConsumed", "`false`"),
    _accepted("advisoryForDelivery", "`false`"),
    _accepted("advisoryForDiscardingMessages", "`false`"),
    _fixed(
        "advisoryForFastProducers",
        "`false`",
        False,
        "A producer that is too fast waits, and status and log say so; set advisory_when_full to have it as a message.",
    ),
    _accepted("advisoryForSlowConsumers", "`false`"),
    _accepted("advisoryWhenFull", "`false`"),
    _accepted("sendAdvisoryIfNoConsumers", "`false`"),
    _accepted("includeBodyForAdvisory", "`false`"),
)

_DEAD = "dead_letter_strategy."
DEAD_LETTER: Final = (
    _accepted("deadLetterQueue", "`queue://ActiveMQ.DLQ`", "The queue's name.", _DEAD),
    _accepted("queuePrefix", "`ActiveMQ.DLQ.Queue.`", table=_DEAD),
    _accepted("queueSuffix", "–", table=_DEAD),
    _accepted("topicPrefix", "`ActiveMQ.DLQ.Topic.`", table=_DEAD),
    _accepted("topicSuffix", "–", table=_DEAD),
    _fixed("useQueueForQueueMessages", "`true`", True, "Dead letters on a topic are lost to whom is late.", _DEAD),
    _fixed("useQueueForTopicMessages", "`true`", True, "Dead letters on a topic are lost to whom is late.", _DEAD),
    _fixed(
        "destinationPerDurableSubscriber",
        "`false`",
        False,
        "Dead letters of a topic's durable subscriptions are in one queue; a property says why each is.",
        _DEAD,
    ),
    _accepted("processExpired", "`true`", table=_DEAD),
    _accepted("processNonPersistent", "`false`", table=_DEAD),
    _accepted("expiration", "`0`", table=_DEAD),
    _fixed("enableAudit", "`true`", True, "A message becomes a dead letter once.", _DEAD),
    _refused("maxAuditDepth", "`2048`", "Part of enableAudit, which always holds.", _DEAD),
    _refused("maxProducersToAudit", "`64`", "Part of enableAudit, which always holds.", _DEAD),
)

_REDELIVERY = "redelivery."
REDELIVERY: Final = (
    _accepted("maximumRedeliveries", "`6`", table=_REDELIVERY),
    _accepted("initialRedeliveryDelay", "`1000`", table=_REDELIVERY),
    _accepted("redeliveryDelay", "`1000`", table=_REDELIVERY),
    _accepted("useExponentialBackOff", "`false`", table=_REDELIVERY),
    _accepted("backOffMultiplier", "`5.0`", table=_REDELIVERY),
    _accepted("maximumRedeliveryDelay", "`-1`", table=_REDELIVERY),
    _fixed("useCollisionAvoidance", "`false`", False, "Messages that come again do not collide.", _REDELIVERY),
    _refused("collisionAvoidancePercent", "`15`", "Part of useCollisionAvoidance.", _REDELIVERY),
    _fixed(
        "preDispatchCheck",
        "`true`",
        True,
        "What came again too often is a dead letter before it is given out.",
        _REDELIVERY,
    ),
    *(
        _refused(name, "–", "The entry in which the table stands says for what it holds.", _REDELIVERY)
        for name in ("destination", "queue", "topic", "tempQueue", "tempTopic")
    ),
)

_SLOW = "slow_consumer_strategy."
SLOW_CONSUMER: Final = (
    _accepted("maxSlowDuration", "`30000`", table=_SLOW),
    _accepted("maxSlowCount", "`-1`", table=_SLOW),
    _accepted("maxTimeSinceLastAck", "`30000`", table=_SLOW),
    _accepted("ignoreIdleConsumers", "`true`", table=_SLOW),
    _accepted("abortConnection", "`false`", table=_SLOW),
    _refused("checkPeriod", "`30000`", "Each consumer is looked at every second.", _SLOW),
    _fixed("ignoreNetworkConsumers", "`true`", True, _NETWORK, _SLOW),
    _refused("brokerService", "–", _WIRING, _SLOW),
    _refused("name", "–", _WIRING, _SLOW),
)

_PENDING = "pending_message_limit_strategy."
PENDING_LIMIT: Final = (
    _accepted("limit", "`-1`", table=_PENDING),
    _refused("multiplier", "`0.5`", "Of prefetchRatePendingMessageLimitStrategy: say the product, as limit.", _PENDING),
)

GROUPS: Final = {
    "policyEntry (`[[destinations]]`)": POLICY_ENTRY,
    "deadLetterStrategy (`[destinations.dead_letter_strategy]`)": DEAD_LETTER,
    "redeliveryPolicy (`[destinations.redelivery]`)": REDELIVERY,
    "slowConsumerStrategy (`[destinations.slow_consumer_strategy]`)": SLOW_CONSUMER,
    "pendingMessageLimitStrategy (`[destinations.pending_message_limit_strategy]`)": PENDING_LIMIT,
}
ALL: Final = tuple(found for group in GROUPS.values() for found in group)
#: By key, those that are not plain settings of ours.
SPECIAL: Final[Mapping[str, Property]] = {found.key: found for found in ALL if found.outcome is not Outcome.ACCEPTED}
