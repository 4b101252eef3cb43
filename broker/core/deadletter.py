"""What becomes of a message that nobody could take: ActiveMQ's individual dead letter strategy.

A stored message of queue ``orders`` goes to queue ``ActiveMQ.DLQ.Queue.orders``, one of a durable subscription of
topic ``prices`` to queue ``ActiveMQ.DLQ.Topic.prices``; a non-persistent one is dropped (processNonPersistent is
off). Copies as RegionBroker.sendToDeadLetterQueue makes them: the original destination is kept, expiration is taken
off, the cause stands in a property.
"""

from __future__ import annotations

from broker.core.queue import DEAD_LETTER_QUEUE
from store.records.message import Destination, DestinationKind, Message

CAUSE_PROPERTY = "dlqDeliveryFailureCause"
EXPIRATION_PROPERTY = "originalExpiration"
MESSAGE_ID_PROPERTY = "originalMessageId"


def dead_letter_destination(destination: Destination) -> Destination:
    """Where dead letters of ``destination`` go."""
    kind = "Topic" if destination.is_topic else "Queue"
    return Destination(DestinationKind.QUEUE, f"{DEAD_LETTER_QUEUE}.{kind}.{destination.name}")


def dead_letter(message: Message, cause: str, message_id: str | None = None) -> Message:
    """The copy that goes to the dead letter queue.

    It keeps its id, or gets ``message_id``: several durable subscriptions may each give up the same message, and
    the store knows a message of one queue by its id.
    """
    properties = dict(message.properties or {})
    properties[CAUSE_PROPERTY] = cause
    if message.expiration:
        properties[EXPIRATION_PROPERTY] = message.expiration
    if message_id is not None:
        properties[MESSAGE_ID_PROPERTY] = message.message_id
    return Message(
        dead_letter_destination(message.destination),
        message.message_id if message_id is None else message_id,
        message.body,
        message.body_kind,
        persistent=True,
        priority=message.priority,
        timestamp=message.timestamp,
        properties=properties,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        type=message.type,
        group_id=message.group_id,
        group_sequence=message.group_sequence,
        user_id=message.user_id,
        original_destination=message.destination,
    )
