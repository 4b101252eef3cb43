"""Messages whose properties are long headers: these are written beside the loop."""

# proves: long-heads-are-written-beside-the-loop

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.stomp.dialects import V12
from tandemmq.broker.protocols.stomp.messages import QUICK_HEAD_BYTES_MAX, TakesLong, encode
from tandemmq.store.records.frames import QUICK_PROPERTIES_MAX
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message, PropertyValue
from tests.support.protocols.stomp_peer import StompPeer
from tests.unit.broker.protocols.stomp.test_compressed import sent

Properties = dict[str, PropertyValue]


def message(properties: Properties) -> Message:
    made = Message(Destination(DestinationKind.QUEUE, "a"), "ID:a:1", b"body", BodyKind.TEXT)
    made.properties = properties
    return made


def opened(properties: Properties) -> Message:
    return sent(schema.ActiveMQBytesMessage, b"body", is_compressed=False, properties=properties)


SHORT: Properties = {f"h{number}": ":" * 1_000 for number in range(10)}
LONG: Properties = {f"h{number}": ":" * 10_000 for number in range(20)}
MANY: Properties = {f"h{number}": True for number in range(QUICK_PROPERTIES_MAX + 1)}


@pytest.mark.parametrize("make", [message, opened])
@pytest.mark.parametrize(("properties", "is_long"), [(SHORT, False), (LONG, True), (MANY, True)])
def test_long_heads_are_written_beside_the_loop(
    make: Callable[[Properties], Message], properties: Properties, is_long: bool
) -> None:
    client = StompPeer()
    client.subscribe()
    headers, body = client.sees(make(properties))
    assert client.was_prepared is is_long
    assert body == b"body"
    assert {name: headers[name] for name in properties} == {
        name: "true" if value is True else value for name, value in properties.items()
    }


def test_one_long_property_is_written_beside_the_loop_and_in_pieces() -> None:
    value = "a:\\\n" * QUICK_HEAD_BYTES_MAX
    made = opened({"h": value})
    with pytest.raises(TakesLong):
        encode(made, V12, is_quick=True)
    head, _ = encode(made, V12)
    assert f"\nh:{V12.escape(value)}\n".encode() in head
