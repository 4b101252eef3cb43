"""Make the copy of a message that no consumer could take. The policy names its queue (core.policies).

Copies are as RegionBroker.sendToDeadLetterQueue makes them: the original destination is kept, the expiration is
removed, a property states the cause.
"""

from __future__ import annotations

from tandemmq.store.records.altered import ORIGINAL_ID_PROPERTY, altered
from tandemmq.store.records.message import Destination, Message, PropertyValue
from tandemmq.store.records.properties import Long

CAUSE_PROPERTY = "dlqDeliveryFailureCause"
EXPIRATION_PROPERTY = "originalExpiration"
DELIVERY_MODE_PROPERTY = "originalDeliveryMode"


def dead_letter(
    message: Message, target: Destination, cause: str, message_id: str | None = None, expiration: int = 0
) -> Message:
    """Return the copy for the queue ``target``.

    The copy keeps its id, or gets ``message_id``: several durable subscriptions may each give up the same message, and
    the store identifies a message of a queue by its id.
    """
    added: dict[str, PropertyValue] = {CAUSE_PROPERTY: cause}
    if message.expiration:
        added[EXPIRATION_PROPERTY] = Long(message.expiration)
    if not message.persistent:
        added[DELIVERY_MODE_PROPERTY] = "NON_PERSISTENT"
    if message_id is not None:
        added[ORIGINAL_ID_PROPERTY] = message.message_id
    return altered(
        message,
        destination=target,
        original_destination=message.destination,
        message_id=message_id,
        properties_added=added,
        expiration=expiration,
        persistent=True,
        redelivery_counter=0,
    )
