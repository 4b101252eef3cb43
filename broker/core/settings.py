"""Options and bounds of the engine, as plain values; this module does not know their source.

The operator's settings are copied here by name (`broker.settings.engine`, which also names the bounds that no setting
changes). Only tests use the defaults of options that the operator can set; a test compares them with those of the
operator's settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.broker.core.virtual_destinations import VirtualDestinations

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Options and bounds of an engine. Sizes are in bytes: of a record in the journal, or of a message in memory, with
    Python's overhead."""

    # Effect of a NACK: "dlq" dead letter at once (ActiveMQ), "requeue" back to the queue (RabbitMQ).
    stomp_nack: str = "dlq"
    # Redeliveries before a message becomes a dead letter: after refusals (with "requeue") or losses of its consumer.
    maximum_redeliveries: int = 6
    # Every ERROR closes its connection.
    stomp_strict_errors: bool = False
    # Unacknowledged messages a consumer may have; ActiveMQ's defaults.
    queue_prefetch: int = 1000
    topic_prefetch: int = 32_767
    durable_topic_prefetch: int = 100
    # Maximum prefetch that a client may request.
    prefetch_max: int = 32_767

    # Limits of the head of a queue, which is held in memory; messages after it wait in the store.
    window_messages: int = 2000
    window_bytes: int = 8 * MIB
    # Amount read back at once when the window is less than half full.
    page_messages: int = 500
    page_bytes: int = 4 * MIB
    # All memory held for clients (broker.core.memory).
    memory_limit: int = 256 * MIB
    # Messages that wait for one slow topic subscriber. Beyond these limits the oldest are dropped, and counted.
    topic_pending_messages: int = 32_767
    topic_pending_bytes: int = 8 * MIB

    # Bounds of one open transaction, and number of open transactions of a connection.
    transaction_operations_max: int = 10_000
    transaction_bytes_max: int = 32 * MIB
    transactions_max: int = 100

    # The client id of an authenticated user must begin with the user's name.
    client_id_begins_with_user: bool = False
    # Messages name their sender.
    populate_jmsx_user_id: bool = False

    # Destinations that forward messages.
    virtual_destinations: VirtualDestinations = field(default_factory=VirtualDestinations)

    # Maximum repeats of a scheduled message.
    max_scheduler_repeat_allowed: int = 1000

    # Bounds of one user; None: no limit.
    user_connections_max: int | None = None
    user_destinations_max: int | None = None
    user_stored_bytes_max: int | None = None
    # Subscriptions of one connection; destinations of the broker.
    subscriptions_max: int = 1000
    destinations_max: int = 100_000
    # Entries examined in one tick for expired messages.
    expiry_entries_per_tick: int = 20_000
