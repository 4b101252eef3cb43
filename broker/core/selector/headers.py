"""Names in selectors that mean a field of the message's header, not a property (PropertyExpression in ActiveMQ)."""

from __future__ import annotations

import functools
from typing import Final

from tandemmq.broker.core.selector.values import Evaluate, Value
from tandemmq.store.records.message import Message
from tandemmq.store.records.properties import Long

#: Id of the stored message, which the admin API shows. JMSMessageID may be an id that the client chose, which need not
#: be unique. (Jakarta Messaging reserves names that begin with JMS_ and the name of a provider for this provider.)
STORED_ID: Final = "JMS_TandemMQ_MessageID"
# Caches of one text. So the text of a message's destination, and the hash of the text, are computed once for all
# conditions: the text may be long, because a client may choose any length for JMSReplyTo.
_destination = functools.lru_cache(maxsize=1)(str)
_reply = functools.lru_cache(maxsize=1)(str)


def _reply_to(message: Message) -> Value:
    return None if message.reply_to is None else _reply(message.reply_to)


def _message_id(message: Message) -> Value:
    """Return the id that JMS clients see (MessageId.toString)."""
    text = message.text_view
    if text is None:
        return message.message_id
    return text if text.startswith("ID:") else f"ID:{text}"


def _user_id(message: Message) -> Value:
    if message.user_id is not None:
        return message.user_id
    properties = message.quick_properties
    return properties.get("JMSXUserID") if properties else None


# The last entries are constant: this broker belongs to no network of brokers, and it tests selectors before dispatch.
HEADERS: dict[str, Evaluate] = {
    "JMSDestination": lambda message: _destination(message.original_destination or message.destination),
    "JMSReplyTo": _reply_to,
    "JMSType": lambda message: message.type,
    "JMSDeliveryMode": lambda message: "PERSISTENT" if message.persistent else "NON_PERSISTENT",
    "JMSPriority": lambda message: message.priority,
    "JMSMessageID": _message_id,
    STORED_ID: lambda message: message.message_id,
    "JMSTimestamp": lambda message: Long(message.timestamp),
    "JMSCorrelationID": lambda message: message.correlation_id,
    "JMSExpiration": lambda message: Long(message.expiration),
    "JMSRedelivered": lambda message: message.redelivery_counter > 0,
    "JMSXDeliveryCount": lambda message: message.redelivery_counter + 1,
    "JMSXGroupID": lambda message: message.group_id,
    "JMSXGroupSeq": lambda message: message.group_sequence,
    "JMSXUserID": _user_id,
    "JMSXGroupFirstForConsumer": lambda message: False,
    "JMSXProducerTXID": lambda message: None,
    "JMSActiveMQBrokerInTime": lambda message: None,
    "JMSActiveMQBrokerOutTime": lambda message: Long(0),
    "JMSActiveMQBrokerPath": lambda message: "null",
}


def property_of(name: str) -> Evaluate:
    """Return the function that reads ``name`` in a message: a header field or a property. The function returns None if
    the message does not have it."""
    header = HEADERS.get(name)
    if header is not None:
        return header

    def evaluate(message: Message) -> Value:
        properties = message.quick_properties
        return None if properties is None else properties.get(name)

    return evaluate
