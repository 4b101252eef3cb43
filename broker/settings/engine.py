"""Conversion of the operator's settings for the engine."""

from __future__ import annotations

from typing import Final

from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.process.machine import memory_bytes
from tandemmq.broker.settings.copying import SettingsCopy
from tandemmq.broker.settings.virtual_destinations import virtual_destinations
from tandemmq.config.settings import BrokerSettings, Settings

# Part of the machine's memory, if no limit is set: RabbitMQ's vm_memory_high_watermark.
MEMORY_PERCENT: Final = 40

ENGINE: Final = SettingsCopy(
    BrokerSettings,
    EngineSettings,
    computed={
        "memory_limit": "its default depends on the machine",
        "virtual_destinations": "they are tables of their own",
        "client_id_begins_with_user": "it is in [security]",
    },
    constant=(
        "prefetch_max",
        "window_messages",
        "window_bytes",
        "page_messages",
        "page_bytes",
        "topic_pending_messages",
        "topic_pending_bytes",
        "transaction_operations_max",
        "transaction_bytes_max",
        "transactions_max",
        "subscriptions_max",
        "destinations_max",
        "expiry_entries_per_tick",
    ),
    elsewhere={"name": "broker.wiring", "failover_uris": "broker.net.connectors"},
)


def engine_settings(settings: Settings) -> EngineSettings:
    return ENGINE(
        settings.broker,
        memory_limit=memory_limit(settings),
        virtual_destinations=virtual_destinations(settings.virtual_destinations),
        client_id_begins_with_user=settings.security.client_id_begins_with_user,
    )


def memory_limit(settings: Settings) -> int:
    """Return the limit, in bytes, of the memory that the broker holds for clients."""
    return settings.broker.memory_limit or memory_bytes() * MEMORY_PERCENT // 100
