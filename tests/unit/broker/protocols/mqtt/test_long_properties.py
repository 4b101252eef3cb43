"""Messages of JMS clients with more properties than any MQTT client sends."""

# proves: mqtt-decodes-no-long-properties

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.protocols.mqtt.messages import QOS, RETAIN, is_retain, message_of, properties_of, qos_of
from tandemmq.broker.protocols.mqtt.packets import Publish
from tandemmq.broker.protocols.mqtt.properties import USER_BYTES_MAX, USER_PROPERTIES_MAX, Properties
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.types import MessageId
from tandemmq.store.records.frames import QUICK_PROPERTIES_MAX, accept_frame, open_message
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import encode_properties
from tests.support.protocols.openwire.peer import PRODUCER, QUEUE


def sent(properties: dict[str, Any]) -> Message:
    wire = schema.ActiveMQBytesMessage(
        1, False, producer_id=PRODUCER, destination=QUEUE, message_id=MessageId(None, PRODUCER, 1, 0)
    )
    wire.marshalled_properties = encode_properties(properties)
    return accept_frame(STORED.encode(wire), 1, 2).message


@pytest.mark.parametrize("more", [0, 1])
def test_properties_that_take_long_are_not_decoded_on_the_loop(more: int) -> None:
    own: dict[str, Any] = {QOS: 2, RETAIN: True}
    count = QUICK_PROPERTIES_MAX - len(own) + more
    message = sent({**own, **{f"p{number}": "x" for number in range(count)}})
    found = qos_of(message), is_retain(message), len(properties_of(message, 0).user)
    assert found == ((0, False, 0) if more else (2, True, count))


def test_a_publish_keeps_its_qos_and_properties_in_the_store() -> None:
    size = USER_BYTES_MAX // USER_PROPERTIES_MAX - 8
    user = tuple((f"n{number:03}", "x" * size) for number in range(USER_PROPERTIES_MAX - 1))
    for properties in (user, (*user, user[0])):  # the last one: a name twice
        publish = Publish("a", b"", 2, True, False, 1, Properties(user=properties))
        message = message_of(publish, Destination(DestinationKind.TOPIC, "a"), "ID:a:1", 0)
        stored = open_message(encode_message(message))
        assert (qos_of(stored), is_retain(stored), properties_of(stored, 0).user) == (2, True, properties)
