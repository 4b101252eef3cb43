"""Advisory messages as clients of ActiveMQ know them (AdvisorySupport, AdvisoryBroker; openwire.md 15). Pure.

The event is a command of OpenWire in the message's ``dataStructure``; numbers are properties of the message. Clients of
other protocols see its properties, and STOMP clients the command as JSON.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from tandemmq.broker.core.advisor import (
    ConnectionFact,
    ConsumerFact,
    DestinationFact,
    DurableFact,
    Fact,
    FastProducerFact,
    FullFact,
    MasterFact,
    MessageEvent,
    MessageFact,
    ProducerFact,
    SlowConsumerFact,
)
from tandemmq.broker.core.names import ADVISORY_TOPICS, has_advisories
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import message_of, stored_frame
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.schema import DestinationOperation
from tandemmq.broker.protocols.openwire.types import ConnectionId, ConsumerId, MessageId, ProducerId
from tandemmq.store.records.altered import altered
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.frames import frame_of
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.properties import encode_properties

_KINDS = {
    DestinationKind.QUEUE: "Queue",
    DestinationKind.TOPIC: "Topic",
    DestinationKind.TEMP_QUEUE: "TempQueue",
    DestinationKind.TEMP_TOPIC: "TempTopic",
}
# A comma would make a composite of the topic's name.
_COMMA = "&sbquo;"
# The session of clients whose protocol has none: the broker's own, as for their messages (store.records.message_ids).
_BROKER_SESSION = -1
_TYPE = "Advisory"
# Names of producers and consumers in a conversation.
_NUMBERS = re.compile("(-?[0-9]{1,18}):(-?[0-9]{1,18})")
# Maximum length of a name: the topic's name fits into a string of OpenWire in each encoding.
_NAME_CHARS_MAX = 10_000


class Advisories:
    """Advisor of one term. ``connection_id``: a connection id that no client, no other broker and no other term has;
    the ids of the messages begin with it. ``sequences``: the broker's numbers of messages."""

    def __init__(
        self,
        connection_id: str,
        clock: Callable[[], int],
        sequences: Iterator[int],
        *,
        broker_id: str,
        broker_name: str,
        broker_url: str,
    ) -> None:
        self._producer = ProducerId(connection_id, 1, _BROKER_SESSION)
        self._clock = clock
        self._sequences = sequences
        self._sent = 0
        self._origin = {"originBrokerId": broker_id, "originBrokerName": broker_name, "originBrokerURL": broker_url}

    def topic(self, fact: Fact) -> Destination | None:
        """See Advisor."""
        name = _topic_name(fact)
        if name is None or len(name) > _NAME_CHARS_MAX:
            return None
        return Destination(DestinationKind.TOPIC, ADVISORY_TOPICS + name)

    def message(self, fact: Fact, topic: Destination) -> Message:
        """See Advisor. The message has its frame, and the broker's number."""
        if isinstance(fact, MessageFact) and fact.event is MessageEvent.NO_CONSUMER:
            # Subscribers of this topic get the message itself (BaseDestination.onMessageWithNoConsumers).
            return altered(fact.message, destination=topic, original_destination=fact.destination)
        structure, numbers = _contents(fact)
        self._sent += 1
        sequence = next(self._sequences)
        now = self._clock()
        properties: dict[str, Any] = {**self._origin, **numbers}
        advisory = schema.ActiveMQMessage(
            producer_id=self._producer,
            destination=topic,
            message_id=MessageId(None, self._producer, self._sent, sequence),
            timestamp=now,
            type=_TYPE,
            data_structure=structure,
            arrival=now,
            broker_in_time=now,
        )
        try:
            advisory.marshalled_properties = encode_properties(properties)
            frame = stored_frame(advisory)
        except (WireError, Unencodable):
            # A name is longer than 64 KiB. The advisory is sent without its properties.
            properties = {}
            advisory.data_structure = advisory.marshalled_properties = None
            frame = stored_frame(advisory)
        message = Message(
            topic,
            f"{self._producer}:{self._sent}",
            b"",
            BodyKind.NONE,
            priority=0,
            timestamp=now,
            properties=properties or None,
            type=_TYPE,
            raw=frame,
        )
        message.broker_sequence = sequence
        return message


_WORDS: dict[type[Fact], str] = {
    ProducerFact: "Producer",
    **dict.fromkeys((ConsumerFact, DurableFact), "Consumer"),
    SlowConsumerFact: "SlowConsumer",
    FastProducerFact: "FastProducer",
}


def _topic_name(fact: Fact) -> str | None:
    """Return the topic's name without the prefix that all have."""
    if isinstance(fact, ConnectionFact):
        return "Connection"
    if isinstance(fact, MasterFact):
        return "MasterBroker"
    destination = fact.destination
    if destination is None or not has_advisories(destination):
        return None  # an anonymous producer has no destination (AdvisoryBroker.addProducer)
    if isinstance(fact, DestinationFact):
        return _KINDS[destination.kind]
    name = destination.name.replace(",", _COMMA)
    if isinstance(fact, FullFact):
        return f"FULL.{name}"
    event = fact.event.value if isinstance(fact, MessageFact) else _WORDS[type(fact)]
    # Temporary destinations count as queues and topics.
    return f"{event}.{'Topic' if destination.is_topic else 'Queue'}.{name}"


def _contents(fact: Fact) -> tuple[object | None, dict[str, Any]]:
    """Return the command and the properties of the advisory."""
    if isinstance(fact, ConnectionFact):
        id = ConnectionId(fact.connection_id)
        if not fact.is_there:
            return schema.RemoveInfo(object_id=id), {}
        # Never the password.
        return (
            schema.ConnectionInfo(
                connection_id=id, client_id=fact.client_id, user_name=fact.login, client_ip=fact.peer
            ),
            {},
        )
    if isinstance(fact, DestinationFact):
        owner = None if fact.connection_id is None else ConnectionId(fact.connection_id)
        operation = DestinationOperation.ADD if fact.is_there else DestinationOperation.REMOVE
        return (
            schema.DestinationInfo(connection_id=owner, destination=fact.destination, operation_type=operation),
            {},
        )
    if isinstance(fact, ProducerFact):
        producer_id = _producer_id(fact.connection_id, fact.id)
        count = {"producerCount": fact.count}
        if fact.is_there:
            return schema.ProducerInfo(producer_id=producer_id, destination=fact.destination), count
        return schema.RemoveInfo(object_id=producer_id), count
    if isinstance(fact, ConsumerFact):
        count = {"consumerCount": fact.count}
        consumer = _consumer_info(fact)
        return (consumer if fact.is_there else schema.RemoveInfo(object_id=consumer.consumer_id)), count
    if isinstance(fact, DurableFact):
        return (
            schema.RemoveSubscriptionInfo(
                connection_id=ConnectionId(fact.connection_id), subscription_name=fact.name, client_id=fact.client_id
            ),
            {"consumerCount": fact.count},
        )
    if isinstance(fact, MessageFact):
        return _message_contents(fact)
    if isinstance(fact, SlowConsumerFact):
        consumer_id = _consumer_id(fact.connection_id, fact.id)
        return (
            schema.ConsumerInfo(consumer_id=consumer_id, destination=fact.destination),
            {"consumerId": str(consumer_id)},
        )
    if isinstance(fact, FastProducerFact):
        producer_id = _producer_id(fact.connection_id, fact.id)
        return (
            schema.ProducerInfo(producer_id=producer_id, destination=fact.destination),
            {"producerId": str(producer_id)},
        )
    if isinstance(fact, FullFact):
        return None, {"usageName": fact.limit, "usageCount": fact.used}
    return None, {}


def _message_contents(fact: MessageFact) -> tuple[schema.WireMessage, dict[str, Any]]:
    """Return the message itself, without its body unless that is wanted, and the properties."""
    message = fact.message
    inner = message_of(frame_of(message))
    if not fact.has_body:
        inner.content = None
        inner.compressed = False
    properties: dict[str, Any] = {
        "orignalMessageId": message.message_id,  # spelled as in AdvisorySupport
        "orignalDestination": str(fact.destination),
    }
    if fact.consumer is not None:
        properties["consumerId"] = str(_consumer_id(*fact.consumer))
    if fact.discarded:
        properties["discardedCount"] = fact.discarded
    return inner, properties


def _consumer_info(fact: ConsumerFact) -> schema.ConsumerInfo:
    return schema.ConsumerInfo(
        consumer_id=_consumer_id(fact.connection_id, fact.id),
        destination=fact.destination,
        prefetch_size=fact.prefetch,
        selector=fact.selector,
        client_id=fact.client_id,
        subscription_name=fact.durable_name,
        priority=max(-128, min(fact.priority, 127)),
        browser=fact.is_browser,
        exclusive=fact.is_exclusive,
        retroactive=fact.is_retroactive,
        no_local=fact.no_local,
    )


def _consumer_id(connection_id: str, id: str) -> ConsumerId:
    session, value = _numbers(id)
    return ConsumerId(connection_id, session, value)


def _producer_id(connection_id: str, id: str) -> ProducerId:
    session, value = _numbers(id)
    return ProducerId(connection_id, value, session)


def _numbers(id: str) -> tuple[int, int]:
    """Return session and value of an id. A subscription's name from another protocol becomes some number, always the
    same for the same name."""
    numbers = _NUMBERS.fullmatch(id)
    if numbers is not None:
        return int(numbers[1]), int(numbers[2])
    return _BROKER_SESSION, zlib.crc32(id.encode("utf-8", "surrogatepass"))
