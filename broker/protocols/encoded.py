"""Messages that hold a whole encoded message of AMQP, and their form for clients of other protocols. Pure.

ActiveMQ's transformer ``native`` stores messages of AMQP in this form: a BytesMessage with the property
JMS_AMQP_NATIVE. The decoder is imported with the first such message.
"""

from __future__ import annotations

from typing import Final

from tandemmq.store.records.frames import OpenedMessage
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.properties import encode_entry

NATIVE: Final = "JMS_AMQP_NATIVE"
_IS_NATIVE: Final = encode_entry(NATIVE, True)
_BYTES: Final = BodyKind.BYTES


def is_encoded(message: Message) -> bool:
    """Return whether the body of a message is a whole encoded message of AMQP."""
    if message.body_kind is not _BYTES or not message.may_have_properties:
        return False
    if isinstance(message, OpenedMessage):
        return message.has_property(_IS_NATIVE)
    properties = message.properties
    return properties is not None and properties.get(NATIVE) is True


def decoded(message: Message, *, is_quick: bool) -> Message | None:
    """Return the form of a message that ``is_encoded``, as ActiveMQ's transformer ``jms`` makes it: with the same
    header, and the body that JMS has for it. A message is returned as it is if JMS has no form for its body, or if it
    is damaged or compressed. With ``is_quick``, None is returned for one that takes more than a millisecond or two."""
    from tandemmq.broker.protocols.amqp.decoded import decode

    return decode(message, is_quick=is_quick)
