"""Conversion of the tables [[destinations]] to the policies that the engine reads; [broker] applies to all others."""

from __future__ import annotations

from typing import Final

from tandemmq.broker.core.policies import (
    AbortSlow,
    DeadLetterKind,
    DeadLetterStrategy,
    DestinationPolicy,
    Eviction,
    EvictionKind,
    Policies,
    PolicyEntry,
    RedeliveryPolicy,
)
from tandemmq.broker.core.topics.recovery import Recovery, RecoveryKind
from tandemmq.broker.settings.copying import SettingsCopy
from tandemmq.config.destinations import (
    NO_LIMIT,
    DeadLetterSettings,
    DestinationSettings,
    EvictionSettings,
    RecoverySettings,
    RedeliverySettings,
    SlowConsumerSettings,
)
from tandemmq.config.settings import BrokerSettings, Settings
from tandemmq.store.records.message import DestinationKind

_IN_BROKER: Final = "its default is the key of [broker]"
_TABLE: Final = "it is a table of its own"
_KIND: Final = "it is an Enum, from the key `type`"
_IN_ENTRY: Final = "PolicyEntry"
_OWN_COPY: Final = "a copy of its own, in this module"

POLICY: Final = SettingsCopy(
    DestinationSettings,
    DestinationPolicy,
    computed={
        "queue_prefetch": _IN_BROKER,
        "topic_prefetch": _IN_BROKER,
        "durable_topic_prefetch": _IN_BROKER,
        "dead_letter": _TABLE,
        "redelivery": _TABLE,
        "pending_message_limit": _TABLE,
        "pending_multiplier": _TABLE,
        "eviction": _TABLE,
        "recovery": _TABLE,
        "abort_slow": _TABLE,
    },
    elsewhere={
        "queue": _IN_ENTRY,
        "topic": _IN_ENTRY,
        "temp_queue": _IN_ENTRY,
        "temp_topic": _IN_ENTRY,
        "dead_letter_strategy": _OWN_COPY,
        "pending_message_limit_strategy": "the fields pending_message_limit and pending_multiplier",
        "message_eviction_strategy": _OWN_COPY,
        "subscription_recovery_policy": _OWN_COPY,
        "slow_consumer_strategy": _OWN_COPY,
    },
)
DEAD_LETTER: Final = SettingsCopy(
    DeadLetterSettings, DeadLetterStrategy, computed={"kind": _KIND}, elsewhere={"type": "the field kind"}
)
REDELIVERY: Final = SettingsCopy(RedeliverySettings, RedeliveryPolicy)
EVICTION: Final = SettingsCopy(
    EvictionSettings, Eviction, computed={"kind": _KIND}, elsewhere={"type": "the field kind"}
)
RECOVERY: Final = SettingsCopy(
    RecoverySettings,
    Recovery,
    computed={
        "kind": _KIND,
        "maximum_count": "the key maximum_size counts messages or bytes, by the kind",
        "maximum_size": "the same; its default depends on the kind",
    },
    elsewhere={"type": "the field kind"},
)
ABORT_SLOW: Final = SettingsCopy(
    SlowConsumerSettings,
    AbortSlow,
    computed={"max_time_since_last_ack": "one of the two types has none"},
    elsewhere={"type": "the field max_time_since_last_ack"},
)


def policies_of(settings: Settings) -> Policies:
    """Return the policies of all destinations."""
    broker = settings.broker
    default = DestinationPolicy(
        queue_prefetch=broker.queue_prefetch,
        topic_prefetch=broker.topic_prefetch,
        durable_topic_prefetch=broker.durable_topic_prefetch,
        redelivery=RedeliveryPolicy(broker.maximum_redeliveries),
    )
    return Policies((_entry(entry, broker) for entry in settings.destinations), default)


def _entry(entry: DestinationSettings, broker: BrokerSettings) -> PolicyEntry:
    kind, pattern = entry.subject
    return PolicyEntry(DestinationKind[kind.upper()], pattern, _policy(entry, broker))


def _policy(entry: DestinationSettings, broker: BrokerSettings) -> DestinationPolicy:
    dead, pending = entry.dead_letter_strategy, entry.pending_message_limit_strategy
    return POLICY(
        entry,
        queue_prefetch=broker.queue_prefetch if entry.queue_prefetch is None else entry.queue_prefetch,
        topic_prefetch=entry.topic_prefetch or broker.topic_prefetch,
        durable_topic_prefetch=entry.durable_topic_prefetch or broker.durable_topic_prefetch,
        dead_letter=DEAD_LETTER(dead, kind=DeadLetterKind(dead.type)),
        redelivery=_redelivery(entry.redelivery, broker),
        pending_message_limit=None if pending.limit == NO_LIMIT else pending.limit,
        pending_multiplier=pending.multiplier,
        eviction=_eviction(entry.message_eviction_strategy),
        recovery=_recovery(entry.subscription_recovery_policy),
        abort_slow=_abort_slow(entry.slow_consumer_strategy),
    )


def _redelivery(table: RedeliverySettings | None, broker: BrokerSettings) -> RedeliveryPolicy:
    return RedeliveryPolicy(broker.maximum_redeliveries) if table is None else REDELIVERY(table)


def _eviction(table: EvictionSettings) -> Eviction | None:
    return None if table.type == "oldest" else EVICTION(table, kind=EvictionKind(table.type))


def _recovery(table: RecoverySettings | None) -> Recovery | None:
    if table is None:
        return None
    usual = Recovery(RecoveryKind(table.type))
    return RECOVERY(
        table,
        kind=usual.kind,
        maximum_count=table.maximum_size or usual.maximum_count,
        maximum_size=table.maximum_size or usual.maximum_size,
    )


def _abort_slow(table: SlowConsumerSettings | None) -> AbortSlow | None:
    if table is None:
        return None
    is_by_ack = table.type == "abort_slow_ack_consumer"
    return ABORT_SLOW(table, max_time_since_last_ack=table.max_time_since_last_ack if is_by_ack else None)
