"""Decoding of encoded messages, as ActiveMQ's transformer ``native`` stores them, for clients of other protocols."""

# proves: amqp-bombs-are-not-decoded

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.bodies import (
    KEPT_BYTES_MAX,
    ORIGINAL_ENCODING,
    QUICK_BYTES_MAX,
    QUICK_VALUES_BYTES_MAX,
)
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.types import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, Uuid
from tandemmq.broker.protocols.encoded import NATIVE, decoded, is_encoded
from tandemmq.broker.protocols.mqtt.messages import TakesLong as MqttTakesLong
from tandemmq.broker.protocols.mqtt.messages import payload_of, properties_of
from tandemmq.broker.protocols.openwire import schema as openwire
from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.types import MessageId
from tandemmq.broker.protocols.stomp.destinations import write_destination
from tandemmq.broker.protocols.stomp.dialects import V12
from tandemmq.broker.protocols.stomp.messages import TakesLong as StompTakesLong
from tandemmq.broker.protocols.stomp.messages import encode as encode_stomp
from tandemmq.store.records.altered import PartMessage, altered
from tandemmq.store.records.frames import accept_frame, open_message
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message, PropertyValue
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import Byte, Long, Short, decode_stream, encode_properties, encode_stream
from tests.support.broker.amqp_wire import header, section, value
from tests.support.protocols.openwire.peer import PRODUCER, Peer, opened

QUEUE = Destination(DestinationKind.QUEUE, "TEST.Q")
DATA, SEQUENCE = 0x75, 0x76
UUID = Uuid(bytes(range(16)))
JAVA_OBJECT = "application/x-java-serialized-object"


def properties(**fields: Any) -> bytes:
    return write_composite(schema.Properties(**fields))


def native(encoded: bytes, named: dict[str, PropertyValue] | None = None) -> Message:
    """Return a message as ActiveMQ's transformer ``native`` stores it."""
    return Message(QUEUE, "ID:a:1:1:7", encoded, BodyKind.BYTES, properties={NATIVE: True, **(named or {})})


def forms(message: Message) -> list[Message]:
    """Return the message as it was sent, as it is after a restart, and as a copy in memory for another destination."""
    stored = open_message(encode_message(message))
    copy = altered(stored, destination=QUEUE)
    return [message, stored, copy]


def decoded_alike(message: Message) -> Message:
    """Return the decoded message, and check that it is the same for each form."""
    found = [decoded(each, is_quick=False) for each in forms(message)]
    assert all(each is not None and each.body == found[0].body for each in found)  # type: ignore[union-attr]
    assert found[0] is not None
    return found[0]


@pytest.mark.parametrize(
    ("body", "content_type", "kind", "content", "encoding"),
    [
        (b"", None, BodyKind.BYTES, b"", 1),
        (b"", "text/plain", BodyKind.TEXT, b"", 1),
        (b"", "image/png", BodyKind.NONE, b"", 1),
        (b"", JAVA_OBJECT, BodyKind.OBJECT, b"", 1),
        (section(DATA, b"\xff"), None, BodyKind.BYTES, b"\xff", 2),
        (section(DATA, b"a"), "text/plain; charset=UTF-8", BodyKind.TEXT, b"a", 2),
        (section(DATA, b"a"), "application/x+xml", BodyKind.TEXT, b"a", 2),
        (section(DATA, b"a"), "text/plain; charset=latin-1", BodyKind.BYTES, b"a", 2),
        (section(DATA, b"\xff"), "text/plain", BodyKind.BYTES, b"\xff", 2),
        (section(DATA, b"\xac\xed"), JAVA_OBJECT, BodyKind.OBJECT, b"\xac\xed", 2),
        (section(DATA, b"a" * 300) + section(DATA, b"b"), None, BodyKind.BYTES, b"a" * 300 + b"b", 2),
        (section(SEQUENCE, [1]) + section(SEQUENCE, ["a", b"b"]), None, BodyKind.STREAM,
         encode_stream([1, "a", b"b"]), 3),
        (value(None), None, BodyKind.TEXT, b"", 4),
        (value("ä"), None, BodyKind.TEXT, "ä".encode(), 5),
        (value("a" * 300), None, BodyKind.TEXT, b"a" * 300, 5),
        (value(b"\0" * 300), None, BodyKind.BYTES, b"\0" * 300, 6),
        (value(b"\xac\xed"), JAVA_OBJECT, BodyKind.OBJECT, b"\xac\xed", 6),
        (value({"a": 1, "b": b"x"}), None, BodyKind.MAP, encode_properties({"a": 1, "b": b"x"}), 7),
        (value({"u": UUID, "n": [UByte(200)]}), None, BodyKind.MAP,
         encode_properties({"u": "00010203-0405-0607-0809-0a0b0c0d0e0f", "n": [Short(200)]}), 7),
        (value([]), None, BodyKind.STREAM, b"", 8),
        (value([Byte(1), None, Timestamp(5)]), None, BodyKind.STREAM, encode_stream([Byte(1), None, Long(5)]), 8),
    ],
)  # fmt: skip
def test_a_body_is_decoded_to_its_jms_form(
    body: bytes, content_type: str | None, kind: BodyKind, content: bytes, encoding: int
) -> None:
    found = decoded_alike(native((properties(content_type=Symbol(content_type)) if content_type else b"") + body))
    assert (found.body_kind, found.body) == (kind, content)
    assert found.properties == {ORIGINAL_ENCODING: encoding}
    assert type(found.properties[ORIGINAL_ENCODING]) is Short
    assert not is_encoded(found)


@pytest.mark.parametrize(
    "encoded",
    [
        value(5),
        value(UUID),
        value(Described(ULong(99), "x")),
        value({1: 2}),
        value({"a": Array((1,))}),
        value([[1]]),
        value([{"a": 1}]),
        value(Array((1, 2))),
        b"\0\x53\x77\xa1\1\xff",
        b"nonsense",
        value("x")[:-1],
    ],
)
def test_a_body_without_a_jms_form_is_not_decoded(encoded: bytes) -> None:
    for message in forms(native(encoded)):
        assert is_encoded(message)
        assert decoded(message, is_quick=True) is message


def test_a_compressed_message_is_not_decoded() -> None:
    """A JMS client can send any body with any properties."""
    stream = zlib.compress(value("x" * 100_000))
    wire = openwire.ActiveMQBytesMessage(
        1, False, producer_id=PRODUCER, destination=QUEUE, message_id=MessageId(None, PRODUCER, 1, 0)
    )
    wire.content = len(value("x" * 100_000)).to_bytes(4, "big") + stream
    wire.compressed = True
    wire.marshalled_properties = encode_properties({NATIVE: True})
    message = accept_frame(STORED.encode(wire), 1, 2).message
    assert is_encoded(message)
    for is_quick in (True, False):
        assert decoded(message, is_quick=is_quick) is message


def test_header_and_properties_stay_after_decoding() -> None:
    message = native(header(durable=True) + value("x"), {"colour": "red", "JMS_AMQP_HEADER": True})
    fields = (
        ("persistent", True), ("priority", 7), ("expiration", 8), ("timestamp", 9), ("correlation_id", "c"),
        ("reply_to", QUEUE), ("type", "t"), ("group_id", "g"), ("group_sequence", 3), ("user_id", "u"),
        ("redelivery_counter", 2), ("original_destination", QUEUE), ("broker_sequence", 11), ("text_view", "v"),
    )  # fmt: skip
    for name, known in fields:
        setattr(message, name, known)
    found = decoded_alike(message)
    assert found.properties == {"colour": "red", "JMS_AMQP_HEADER": True, ORIGINAL_ENCODING: 5}
    assert [(name, getattr(found, name)) for name, _ in fields] == list(fields)
    assert (found.message_id, found.destination) == (message.message_id, message.destination)


def test_only_encoded_messages_are_decoded() -> None:
    body = value("x")
    for named in (None, {}, {NATIVE: False}, {NATIVE: "true"}, {"a": NATIVE}):
        for message in forms(Message(QUEUE, "ID:a:1:1:1", body, BodyKind.BYTES, properties=named)):
            assert not is_encoded(message)
    assert not is_encoded(Message(QUEUE, "ID:a:1:1:1", body, BodyKind.TEXT, properties={NATIVE: True}))


@pytest.mark.parametrize("size", [KEPT_BYTES_MAX // 2, KEPT_BYTES_MAX * 2])
def test_a_copy_in_memory_is_decoded(size: int) -> None:
    _, stored, copy = forms(native(value("x" * size)))
    for message in (stored, copy):
        assert isinstance(message, PartMessage) is (message is not stored)
        found = decoded(message, is_quick=True)
        assert found is not None
        assert found.body == b"x" * size
        assert (decoded(message, is_quick=True) is found) is (size < KEPT_BYTES_MAX)


@pytest.mark.parametrize("sequences", [1, 100])
def test_long_lists_are_not_decoded_on_the_event_loop(sequences: int) -> None:
    """The limit applies to all lists of a message together."""
    one = section(SEQUENCE, [True] * (QUICK_VALUES_BYTES_MAX // sequences))
    for message in forms(native(one * sequences)):
        assert decoded(message, is_quick=True) is None
    (found, *_) = forms(native(one * (sequences // 2)))
    assert decoded(found, is_quick=True) is not None


def test_a_long_encoded_message_does_not_stay_in_memory() -> None:
    message = native(section(0x72, {Symbol("x-a"): "x" * KEPT_BYTES_MAX}) + value("x"))
    found = decoded(message, is_quick=False)
    assert found is not None
    assert (found.body, decoded(message, is_quick=False) is found) == (b"x", False)


# ---- protocols


def test_stomp_clients_get_the_text_and_the_properties() -> None:
    for message in forms(native(properties(content_type=Symbol("text/plain")) + section(DATA, b"text"), {"a": "b"})):
        head, body = encode_stomp(message, V12, None, write_destination, inflated_bytes_max=1 << 20)
        assert body == b"text"
        lines = set(head.splitlines())
        assert {b"a:b", b"destination:/queue/TEST.Q", b"message-id:ID\\ca\\c1\\c1\\c7", b"content-length:4"} <= lines
        assert not any(each.startswith(b"JMS_AMQP_NATIVE") for each in lines)


def test_mqtt_clients_get_the_text() -> None:
    for message in forms(native(value("text"), {"a": "b"})):
        assert payload_of(message, 1 << 20, is_quick=True) == b"text"
        found = properties_of(message, 0)
        assert found.payload_format == 1
        assert ("a", "b") in found.user
        assert not any(name == NATIVE for name, _ in found.user)


@pytest.mark.parametrize("version", [12, 6])
def test_openwire_clients_get_the_text_and_the_message_id(version: int) -> None:
    for message in forms(native(value("text"), {"a": "b"})):
        peer = Peer()
        peer.connect(version)
        peer.open()
        message.broker_sequence = 5
        assert peer.deliver(1, message) is None
        dispatch = peer.hear(openwire.MessageDispatch)
        assert isinstance(dispatch.message, openwire.ActiveMQTextMessage)
        assert dispatch.message.content == b"\0\0\0\4text"
        id = dispatch.message.message_id
        assert id is not None
        assert str(id.producer_id) == "ID:a:1:1"
        assert id.producer_sequence_id == 7


def test_a_long_message_is_decoded_on_a_thread() -> None:
    long = (
        (native(section(DATA, b"x" * (QUICK_BYTES_MAX + 1))), b"x" * (QUICK_BYTES_MAX + 1)),
        (native(value(["x" * QUICK_VALUES_BYTES_MAX])), encode_stream(["x" * QUICK_VALUES_BYTES_MAX])),
    )
    for message, body in long:
        for each in forms(message):
            with pytest.raises(StompTakesLong):
                encode_stomp(each, V12, None, write_destination, inflated_bytes_max=1 << 30, is_quick=True)
            with pytest.raises(MqttTakesLong):
                payload_of(each, 1 << 30, is_quick=True)
            peer = opened()
            prepare = peer.deliver(1, each)
            assert prepare is not None
            assert peer.session.pending_bytes == 0
            prepare()
            assert peer.deliver(1, each) is None
            dispatch = peer.hear(openwire.MessageDispatch)
            assert dispatch.message is not None
            assert dispatch.message.content == body


def test_a_prepared_delivery_is_dropped_with_its_consumer() -> None:
    peer = opened()
    message = native(section(DATA, b"x" * (QUICK_BYTES_MAX + 1)))
    prepare = peer.deliver(1, message)
    assert prepare is not None
    prepare()
    peer.session.drop_prepared()
    assert peer.deliver(1, message) is not None, "it is prepared anew"


@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_can_be_shown(data: bytes, is_quick: bool) -> None:
    message = native(b"\0\x53\x77" + data)
    found = decoded(message, is_quick=is_quick)
    assert found is not None
    if found is not message and found.body_kind is BodyKind.STREAM:
        decode_stream(found.body)
    encode_message(found)


def test_unsigned_numbers_of_a_map_become_signed() -> None:
    found = decoded_alike(native(value({"a": UInt(0xFFFFFFFF), "b": ULong((1 << 64) - 1)})))
    assert found.body == encode_properties({"a": 0xFFFFFFFF, "b": -1}).replace(
        b"\5\xff\xff\xff\xff", b"\6" + b"\xff" * 8
    )
