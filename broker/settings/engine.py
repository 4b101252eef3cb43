"""Conversion of the operator's settings for the engine, with the tables [[virtual_destinations]]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.selector import compile_selector
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.virtual_destinations import Composite, Forward, Mirrored, VirtualDestinations, VirtualTopic
from tandemmq.broker.process.machine import memory_bytes
from tandemmq.broker.settings.copying import SettingsCopy
from tandemmq.config.destinations import ForwardSettings, VirtualDestinationSettings
from tandemmq.config.errors import SettingsError
from tandemmq.config.settings import BrokerSettings, Settings
from tandemmq.store.records.message import Destination, DestinationKind

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


# ---- [[virtual_destinations]]


def virtual_destinations(tables: Sequence[VirtualDestinationSettings]) -> VirtualDestinations:
    """Return the destinations that forward messages. SettingsError for an invalid selector."""
    composites, mirrored, topics = [], [], []
    for number, text in enumerate(tables):
        kind, pattern = text.subject
        if kind == "virtual_topic":
            topics.append(VirtualTopic(pattern, text.named_prefix, text.postfix, text.selector_aware))
        elif kind == "mirrored_queue":
            mirrored.append(Mirrored(pattern, text.named_prefix, text.postfix))
        else:
            forwards = tuple(
                _forward(each, f"virtual_destinations[{number}].forward_to[{place}].selector")
                for place, each in enumerate(text.forward_to)
            )
            of = DestinationKind[kind.removeprefix("composite_").upper()]
            composites.append(Composite(of, pattern, forwards, text.forward_only, text.send_when_not_matched))
    return VirtualDestinations(composites, mirrored, topics or (VirtualTopic(),))


def _forward(value: ForwardSettings, key: str) -> Forward:
    if value.queue is not None:
        destination = Destination(DestinationKind.QUEUE, value.queue)
    else:
        assert value.topic is not None, "the settings were validated"
        destination = Destination(DestinationKind.TOPIC, value.topic)
    if value.selector is None:
        return Forward(destination)
    try:
        return Forward(destination, compile_selector(value.selector))
    except ClientError as error:
        raise SettingsError(key, value.selector, f"a selector: {error.message}") from error
