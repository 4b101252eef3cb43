"""Mapping of AMQP messages to messages of the broker, and back (docs/formats/amqp.md)."""

# proves: amqp-ids-of-clients-are-no-keys, amqp-usual-ends-with-its-body, amqp-usual-has-no-expiration

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import Undeliverable
from tandemmq.broker.core.selector import compile_selector
from tandemmq.broker.protocols.amqp import incoming, schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.errors import DECODE_ERROR, AmqpError
from tandemmq.broker.protocols.amqp.incoming import MESSAGE_FORMAT, Incoming, cached_envelope
from tandemmq.broker.protocols.amqp.outgoing import TakesLong, as_sent, encode
from tandemmq.broker.protocols.amqp.sections import SECTIONS_MAX
from tandemmq.broker.protocols.amqp.types import (
    VALUES_MAX,
    Array,
    Described,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)
from tandemmq.broker.protocols.amqp.types import encode as encode_value
from tandemmq.broker.protocols.encoded import NATIVE
from tandemmq.store.records.altered import EXPIRATION_PROPERTY, altered
from tandemmq.store.records.frames import open_message
from tandemmq.store.records.message import HEADER, BodyKind, Destination, DestinationKind, Message, PropertyValue
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short, decode_properties, encode_properties
from tests.support.broker.amqp_wire import header, section, sections_of, value

NOW = 1_700_000_000_000
QUEUE = Destination(DestinationKind.QUEUE, "orders")
DATA, SEQUENCE, VALUE = 0x75, 0x76, 0x77
UUID = Uuid(bytes(range(16)))


ID = "ID:a-1-1:-1:1:1"


def mapped(encoded: bytes, message_format: int = 0) -> Message:
    """Return the broker's message for an encoded message from an AMQP client. If its envelope is remembered, the next
    message with this envelope is the same."""
    found = Incoming(encoded, NOW)
    message = found.message(QUEUE, ID, message_format)
    envelope = b"" if message_format else found.remember(message, b"")
    if envelope and found.remember(message, envelope):
        usual = cached_envelope(encoded, len(envelope))
        assert usual is not None
        assert usual.marshalled == encode_properties(message.properties or {})
        assert fields_of(usual.message(QUEUE, ID, encoded)) == fields_of(message)
    return message


def fields_of(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in (*HEADER, "body", "properties")}


def encoded_again(message: Message, redeliveries: int = 0, *, is_quick: bool = True) -> bytes:
    """Return the encoded message for an AMQP client."""
    pieces = encode(message, redeliveries, NOW, 1 << 20, is_quick=is_quick)
    sent = as_sent(message, redeliveries)
    assert sent is None or pieces == ([sent], 0)
    return b"".join(pieces[0])


def restored(message: Message) -> Message:
    """Return the message after a restart."""
    return open_message(encode_message(message))


def properties(**fields: Any) -> bytes:
    return write_composite(schema.Properties(**fields))


def encoded_sections(message: Message) -> dict[int, Any]:
    """Return the sections that an AMQP client gets, before and after a restart."""
    found = encoded_again(message)
    assert found == encoded_again(restored(message))
    return sections_of(found)


# ---- the envelope


def test_a_header_is_mapped() -> None:
    message = mapped(
        header(durable=True, priority=12, ttl=0xFFFFFFFF, delivery_count=3, first_acquirer=True) + value(1)
    )
    assert (message.persistent, message.priority, message.expiration) == (True, 9, NOW + 0xFFFFFFFF)
    assert message.redelivery_counter == 3
    plain = mapped(value("x"))
    assert (plain.persistent, plain.priority, plain.expiration) == (False, 4, 0)
    assert mapped(header(ttl=0) + value("x")).expiration == 0


def test_properties_are_mapped_in_both_directions() -> None:
    found = {
        "message_id": "id-1",
        "user_id": b"me",
        "to": "elsewhere",
        "subject": "kind",
        "reply_to": "topic://back",
        "correlation_id": ULong(7),
        "content_type": Symbol("application/json"),
        "content_encoding": Symbol("gzip"),
        "absolute_expiry_time": Timestamp(NOW + 5_000),
        "creation_time": Timestamp(NOW - 5),
        "group_id": "g",
        "group_sequence": UInt(0xFFFFFFFF),
        "reply_to_group_id": "h",
    }
    encoded = properties(**found) + section(DATA, b"{}")
    message = mapped(encoded)
    assert (message.type, message.group_id, message.group_sequence) == ("kind", "g", -1)
    assert message.reply_to == Destination(DestinationKind.TOPIC, "back")
    assert (message.correlation_id, message.timestamp, message.expiration) == ("AMQP_ULONG:7", NOW - 5, NOW + 5_000)
    assert (message.message_id, message.text_view, message.user_id) == ("ID:a-1-1:-1:1:1", "id-1", None)
    assert message.properties == {
        "JMS_AMQP_PROPERTIES": True,
        "JMS_AMQP_ContentType": "application/json",
        "JMS_AMQP_ContentEncoding": "gzip",
        "JMS_AMQP_ReplyToGroupID": "h",
        NATIVE: True,
    }
    assert (message.body, message.body_kind) == (encoded, BodyKind.BYTES)
    assert encoded_again(message) == encoded_again(restored(message)) == header(ttl=5_000) + encoded


@pytest.mark.parametrize(
    ("id", "text"),
    [
        ("x", "x"),
        ("", ""),
        ("ID:a", "ID:a"),
        ("AMQP_UUID:x", "AMQP_STRING:AMQP_UUID:x"),
        (ULong(1 << 63), "AMQP_ULONG:9223372036854775808"),
        (UUID, "AMQP_UUID:00010203-0405-0607-0809-0a0b0c0d0e0f"),
        (b"\0\xff", "AMQP_BINARY:00FF"),
        (b"", "AMQP_BINARY:"),
    ],
)
def test_ids_become_texts_and_keep_their_types(id: Any, text: str) -> None:
    message = restored(mapped(properties(message_id=id, correlation_id=id) + value("x")))
    assert (message.text_view, message.correlation_id) == (text, text)
    by_jms = Message(QUEUE, "ID:a:1:1:1", b"", correlation_id=text)  # as the transformer jms stores it
    by_jms.text_view = text
    listed = encoded_sections(by_jms)[0x73]
    assert (listed[0], listed[5]) == (id, id)
    assert (type(listed[0]), type(listed[5])) == (type(id), type(id))


@pytest.mark.parametrize("text", ["AMQP_ULONG:z", "AMQP_UUID:1", "AMQP_BINARY:x"])
def test_a_text_that_is_no_valid_id_is_a_string(text: str) -> None:
    by_jms = Message(QUEUE, "ID:a:1:1:1", b"")
    by_jms.text_view = text
    assert encoded_sections(by_jms)[0x73][0] == text


def test_two_messages_can_have_one_message_id() -> None:
    encoded = properties(message_id="same") + value("x")
    one = Incoming(encoded, NOW).message(QUEUE, "ID:a:-1:1:1", 0)
    two = Incoming(encoded, NOW).message(QUEUE, "ID:a:-1:1:2", 0)
    assert (one.message_id, two.message_id) == ("ID:a:-1:1:1", "ID:a:-1:1:2")
    assert one.text_view == two.text_view == "same"
    assert [restored(each).message_id for each in (one, two)] == [one.message_id, two.message_id]


@pytest.mark.parametrize(
    ("text", "matches"), [("JMSMessageID = 'ID:7'", True), ("JMSMessageID = '7'", False), ("a = 'b'", True)]
)
def test_selectors_match_the_values_that_jms_clients_get(text: str, matches: bool) -> None:
    message = mapped(properties(message_id="7") + section(0x74, {"a": "b"}) + value("x"))
    assert compile_selector(text).matches(message) is matches
    assert compile_selector(text).matches(restored(message)) is matches


def test_values_are_mapped_to_java_types() -> None:
    named: dict[str, Any] = {
        "null": None, "boolean": True, "byte": Byte(-1), "short": Short(2), "int": 3, "long": Long(4),
        "float": Float(1.5), "double": 2.5, "char": Char("c"), "string": "s", "symbol": Symbol("y"),
        "ubyte": UByte(127),
        "ubyte2": UByte(128),
        "ushort": UShort(9), "ushort2": UShort(0xFFFF), "uint": UInt(9), "uint2": UInt(0xFFFFFFFF), "ulong": ULong(9),
        "ulong2": ULong((1 << 64) - 1), "binary": b"a\\\xff",
    }  # fmt: skip
    message = mapped(section(0x74, named) + value("x"))
    assert message.properties is not None
    found = {name: each for name, each in message.properties.items() if name in named}
    assert found == {
        **{name: named[name] for name in ("null", "boolean", "byte", "short", "int", "long")},
        **{name: named[name] for name in ("float", "double", "char")},
        "string": "s", "symbol": "y", "ubyte": 127, "ubyte2": 128, "ushort": 9, "ushort2": 0xFFFF, "uint": 9,
        "uint2": 0xFFFFFFFF, "ulong": 9, "ulong2": -1, "binary": "a\\x5c\\xff",
    }  # fmt: skip
    assert [type(found[name]) for name in ("ubyte", "ubyte2", "ushort", "ushort2", "uint", "uint2", "ulong")] == [
        *(Byte, Short, Short, int, int, Long, Long)
    ]


def test_annotations_and_footers_become_properties() -> None:
    rest = section(0x72, {Symbol("x-opt-jms-msg-type"): Byte(7), Symbol("x-a"): "b"})
    rest += value("x") + section(0x78, {Symbol("f"): UInt(1)})
    message = mapped(section(0x71, {Symbol("hop"): 1}) + rest)
    assert message.properties == {
        "JMS_AMQP_MA_x-opt-jms-msg-type": 7,
        "JMS_AMQP_MA_x-a": "b",
        "JMS_AMQP_FT_f": 1,
        NATIVE: True,
    }
    assert encoded_again(message) == rest


@pytest.mark.parametrize(
    ("annotations", "is_kept"),
    [
        ({Symbol("x-opt-jms-msg-type"): Byte(5), Symbol("x-opt-jms-dest"): Byte(1)}, True),
        ({Symbol("x-a"): True, Symbol("x-b"): None, UInt(5): "left out"}, True),
        ({Symbol("x-a"): ["b"]}, False),
        ({Symbol(f"x-{number}"): number for number in range(9)}, False),
        ({Symbol("x-a"): "b", Symbol("x-opt-delivery-time"): Long(NOW + 2_000)}, False),
    ],
)
def test_annotations_have_the_same_effect_in_each_message(annotations: dict[Any, Any], is_kept: bool) -> None:
    encoded = section(0x72, annotations) + value("x")

    def at(now: int, head: bytes = b"") -> list[tuple[str, type, object]]:
        found = Incoming(head + encoded, now).message(QUEUE, "ID:a-1-1:-1:1:1", 0).properties or {}
        return [(name, type(each), each) for name, each in found.items()]

    incoming.cached_annotations.clear()
    alone = at(NOW)
    incoming.cached_annotations.clear()
    assert at(NOW, header(first_acquirer=True)) != alone
    assert len(incoming.cached_annotations) == is_kept
    assert at(NOW) == alone
    known = at(NOW + 500)
    incoming.cached_annotations.clear()
    assert at(NOW + 500) == known


def test_values_of_annotations_count_in_each_message() -> None:
    encoded = section(0x72, {Symbol("x-a"): 1}) + section(0x74, {"k": [1] * (VALUES_MAX - 4)}) + value("x")
    for _ in range(2):
        with pytest.raises(AmqpError, match="values"):
            mapped(encoded)


def test_a_message_mapped_by_activemq_is_encoded_with_its_sections() -> None:
    named: dict[str, PropertyValue] = {
        "JMS_AMQP_MA_x-a": "b", "JMS_AMQP_FT_f": 1, "a": "b", "JMS_AMQP_HEADER": True, "JMS_AMQP_PROPERTIES": True,
        "JMS_AMQP_FirstAcquirer": False, "JMS_AMQP_ContentType": "text/plain", "JMS_AMQP_ContentEncoding": "gzip",
        "JMS_AMQP_ReplyToGroupID": "h",
    }  # fmt: skip
    again = encoded_sections(Message(QUEUE, "ID:a:1:1:1", b"x", properties=named))
    assert again[0x70] == [None, None, None, False]
    assert again[0x72] == {"x-a": "b", "x-opt-jms-dest": 0, "x-opt-jms-msg-type": 3}
    assert again[0x73] == ["ID:a:1:1:1", None, "queue://orders", *[None] * 3, "text/plain", "gzip", *[None] * 4, "h"]
    assert (again[0x74], again[0x78]) == ({"a": "b"}, {"f": 1})


def test_a_message_format_is_kept() -> None:
    message = mapped(value("x"), 0x80000000)
    assert message.properties is not None
    assert message.properties[MESSAGE_FORMAT] == 0x80000000
    assert encode(message, 0, NOW, 1 << 20, is_quick=True)[1] == 0x80000000


@pytest.mark.parametrize(
    ("annotations", "delay"),
    [
        ({"x-opt-delivery-delay": None}, None),
        ({"x-opt-delivery-delay": Long(700)}, 700),
        ({"x-opt-delivery-delay": UInt(700)}, 700),
        ({"x-opt-delivery-delay": Long(0)}, None),
        ({"x-opt-delivery-time": Long(NOW + 300)}, 300),
        ({"x-opt-delivery-time": Timestamp(NOW + 300)}, 300),
        ({"x-opt-delivery-time": Long(NOW - 1)}, None),
        ({"x-opt-delivery-delay": Long(700), "x-opt-delivery-time": Long(NOW + 300)}, 300),
        ({"x-opt-delivery-time": Long(NOW + 300), "x-opt-delivery-delay": Long(700)}, 300),
        ({"x-opt-delivery-time": Long(NOW - 1), "x-opt-delivery-delay": Long(700)}, None),
        ({"x-opt-delivery-delay": Long(700), "x-opt-delivery-time": Long(NOW - 1)}, None),
    ],
)
def test_a_delivery_is_delayed(annotations: dict[str, Any], delay: int | None) -> None:
    message = mapped(section(0x72, {Symbol(name): each for name, each in annotations.items()}) + value("x"))
    assert message.properties is not None
    assert message.properties.get("AMQ_SCHEDULED_DELAY") == delay


def test_a_delivery_is_repeated() -> None:
    annotations = {
        "x-opt-delivery-repeat": UInt(3),
        "x-opt-delivery-period": UInt(500),
        "x-opt-delivery-cron": "* * * * *",
    }
    message = mapped(section(0x72, {Symbol(name): each for name, each in annotations.items()}) + value("x"))
    assert message.properties is not None
    found = {name: each for name, each in message.properties.items() if name.startswith("AMQ_SCHEDULED_")}
    assert found == {"AMQ_SCHEDULED_REPEAT": 3, "AMQ_SCHEDULED_PERIOD": 500, "AMQ_SCHEDULED_CRON": "* * * * *"}
    assert (type(found["AMQ_SCHEDULED_REPEAT"]), type(found["AMQ_SCHEDULED_PERIOD"])) == (int, Long)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("x-opt-delivery-delay", True),
        ("x-opt-delivery-time", "soon"),
        ("x-opt-delivery-cron", 5),
        ("x-opt-delivery-repeat", []),
    ],
)
def test_an_annotation_of_another_type_is_refused(name: str, given: Any) -> None:
    with pytest.raises(AmqpError) as caught:
        mapped(section(0x72, {Symbol(name): given}) + value("x"))
    assert caught.value.condition == DECODE_ERROR


@pytest.mark.parametrize("annotation", [{"x-opt-delivery-repeat": Long(0)}, {"x-opt-delivery-repeat": Long(1 << 31)}])
def test_a_repetition_out_of_range_is_ignored(annotation: dict[str, Any]) -> None:
    message = mapped(section(0x72, {Symbol(name): each for name, each in annotation.items()}) + value("x"))
    assert "AMQ_SCHEDULED_REPEAT" not in (message.properties or {})


def test_only_amqp_clients_get_values_without_a_java_type() -> None:
    named = {"u": UUID, "t": Timestamp(5), "n": 1, "a": Array((1,)), "long": bytes(4_097), "JMSXGroupID": "g",
             "JMSXUserID": "u", "JMS_AMQP_NATIVE": False, "x" * 70_000: 1}  # fmt: skip
    encoded = section(0x72, {ULong(5): 1, Symbol("a"): Array((1,))}) + section(0x74, named) + value("x")
    message = mapped(encoded)
    assert message.properties == {"u": "00010203-0405-0607-0809-0a0b0c0d0e0f", "t": 5, "n": 1, NATIVE: True}
    assert message.group_id is None
    assert encoded_again(message) == encoded_again(restored(message)) == encoded


def test_descriptors_of_sections_can_be_symbols() -> None:
    def named(name: str, content: Any) -> bytes:
        return b"\0" + encode_value(Symbol(name)) + encode_value(content)

    message = mapped(
        named("amqp:header:list", [True])
        + named("amqp:properties:list", [None, None, None, "subject"])
        + named("amqp:application-properties:map", {"a": 1})
        + named("amqp:amqp-value:*", "x")
    )
    assert (message.persistent, message.type, (message.properties or {})["a"]) == (True, "subject", 1)


@pytest.mark.parametrize(
    "encoded", [bytes.fromhex("00800000000000000077"), b"\0\xa3\1x", b"\0\x80" + bytes(7) + b"\x75"]
)
def test_a_section_without_a_value_is_refused(encoded: bytes) -> None:
    with pytest.raises(AmqpError) as caught:
        mapped(encoded)
    assert caught.value.condition == DECODE_ERROR
    stored = Message(QUEUE, "ID:x", encoded, BodyKind.BYTES, properties={NATIVE: True})
    with pytest.raises(Undeliverable):
        encoded_again(stored)


@pytest.mark.parametrize(("priority", "given"), [(-1, 0), (300, 255)])
def test_a_priority_of_another_protocol_is_limited_to_a_ubyte(priority: int, given: int) -> None:
    message = Message(QUEUE, "ID:x", b"x", BodyKind.BYTES, priority=priority)
    assert sections_of(encoded_again(message))[0x70][1] == given


def test_the_priority_of_the_header_is_kept() -> None:
    """ActiveMQ's transformer raw does not map the priority."""
    encoded = header(durable=True, priority=7) + value("x")
    message = Message(QUEUE, "ID:x", encoded, BodyKind.BYTES, properties={NATIVE: True}, persistent=True)
    assert encoded_again(message) == encoded


# ---- byte for byte


BODIES = [
    b"",
    section(DATA, b"a") + section(DATA, b"b"),
    section(SEQUENCE, [1]) + section(SEQUENCE, [2]),
    value([1, "a"]),
    value(UUID),
    value(Described(ULong(99), Described(Symbol("deep"), "x"))),
    value({1: 2}),
    value({UInt(1): [Array((1, 2))]}),
    value("x" * 300),
    bytes.fromhex("00800000000000000077b10000000178"),  # wider encodings than needed
]
ENVELOPES = [
    b"",
    header(),
    header(durable=False, priority=4),
    bytes.fromhex("005370d00000000a00000005425004404243"),  # all fields, all with their defaults
    header(durable=True, priority=200),
    section(0x72, {}) + properties(message_id=UUID, user_id=b"me", to="a") + section(0x74, {"u": UUID}),
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("envelope", ENVELOPES)
def test_a_message_arrives_byte_for_byte(envelope: bytes, body: bytes) -> None:
    encoded = envelope + body + section(0x78, {Symbol("f"): b"sum"})
    message = mapped(encoded)
    for each in (message, restored(message)):
        assert encoded_again(each) == encoded
        again = encoded_again(each, 2)
        assert again.endswith(body + section(0x78, {Symbol("f"): b"sum"}))
        assert sections_of(again)[0x70][4] == 2


BODIES = (section(DATA, b"{}"), section(DATA, b"x" * 300), value(b"x"), value("x" * 300))


@pytest.mark.parametrize("body", BODIES)
def test_messages_with_a_known_envelope_need_no_decoder(body: bytes) -> None:
    envelope = header(durable=True) + properties(subject=f"kind {len(body)} {body[3]}", reply_to="topic://back")
    found = Incoming(envelope + body, NOW)
    message = found.message(QUEUE, ID, 0)
    assert found.remember(message, b"") == envelope
    assert cached_envelope(envelope + body, len(envelope)) is None, "it came once"
    assert found.remember(message, envelope) == envelope
    for other in BODIES:
        usual = cached_envelope(envelope + other, len(envelope))
        assert usual is not None
        assert fields_of(usual.message(QUEUE, "other", envelope + other)) == fields_of(
            Incoming(envelope + other, NOW + 500).message(QUEUE, "other", 0)
        )
    assert as_sent(mapped(envelope + body), 0) == envelope + body
    for at in range(len(envelope), len(envelope) + min(len(body), 16)):
        for wrong in (0, 0x40, 0x53, 0x75, 0xA0, 0xB1, 0xFF):
            damaged = bytearray(envelope + body)
            damaged[at] = wrong
            usual = cached_envelope(bytes(damaged), len(envelope))
            if usual is not None:
                same = Incoming(bytes(damaged), NOW).message(QUEUE, ID, 0)
                assert fields_of(usual.message(QUEUE, ID, bytes(damaged))) == fields_of(same)
    for end in (body + section(DATA, b"2"), body + b"\0", body[:-1], value(1), b""):
        assert cached_envelope(envelope + end, len(envelope)) is None


@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        header(ttl=5_000),
        properties(message_id="1"),
        properties(absolute_expiry_time=Timestamp(NOW + 5_000)),
        properties(creation_time=Timestamp(NOW)),
        properties(correlation_id="1"),
        properties(group_id="g"),
        section(0x72, {Symbol("x-opt-delivery-time"): Timestamp(NOW + 5_000)}),
        section(0x72, {Symbol("x-opt-delivery-delay"): ULong(5_000)}),
        section(0x74, {"number": 1}),
        properties(subject="x" * 256),
        section(DATA, b"1"),
    ],
)
def test_envelopes_that_differ_each_time_are_not_remembered(envelope: bytes) -> None:
    found = Incoming(envelope + section(DATA, b"{}"), NOW)
    message = found.message(QUEUE, ID, 0)
    assert not found.remember(message, envelope)
    assert not found.remember(message, found.remember(message, envelope))


def test_a_header_with_outdated_values_is_replaced() -> None:
    encoded = header(durable=True, priority=200, ttl=5_000, first_acquirer=True, delivery_count=3) + value("x")
    message = mapped(encoded)
    assert encoded_again(message, 3) == encoded
    changed = altered(message, persistent=False, expiration=NOW + 90)
    assert encoded_again(changed) == header(durable=False, priority=200, ttl=90, first_acquirer=True) + value("x")
    late = b"".join(encode(message, 3, NOW + 9_000, 1 << 20, is_quick=True)[0])
    assert sections_of(late)[0x70][2] == 1


@pytest.mark.parametrize("ttl", [None, 5_000])
def test_a_dead_letter_does_not_expire(ttl: int | None) -> None:
    named = {"message_id": "i", "creation_time": Timestamp(NOW)}
    start = header(durable=True, ttl=ttl)
    message = mapped(start + properties(absolute_expiry_time=Timestamp(NOW + 5_000), **named) + value("x"))
    added: dict[str, PropertyValue] = {EXPIRATION_PROPERTY: Long(message.expiration)}
    letter = altered(restored(message), expiration=0, properties_added=added)
    assert encoded_again(letter) == header(durable=True) + properties(**named) + value("x")
    if ttl is not None:  # also after an operator has moved it back
        again = altered(letter, properties_removed=(EXPIRATION_PROPERTY,))
        assert encoded_again(again) == encoded_again(letter)
    assert encoded_again(altered(mapped(value("x")), properties_added=added)) == value("x")


def test_a_message_without_a_header_gets_one_if_needed() -> None:
    message = mapped(section(0x71, {Symbol("a"): 1}) + value([1]))
    assert encoded_again(message) == value([1])
    assert encoded_again(message, 1) == header(delivery_count=1) + value([1])


# ---- messages of other protocols


def test_a_message_of_another_protocol_is_encoded() -> None:
    message = Message(
        Destination(DestinationKind.TOPIC, "news"),
        "ID:x:1:1:1",
        b"text",
        BodyKind.TEXT,
        persistent=True,
        timestamp=NOW,
        properties={"a": "b", "AMQ_SCHEDULED_DELAY": Long(5), "n": Short(1)},
        reply_to=Destination(DestinationKind.TEMP_QUEUE, "ID:x:1"),
        user_id="joe",
    )
    found = encoded_sections(message)
    assert found[0x70] == [True]
    assert found[0x72] == {"x-opt-jms-msg-type": 5, "x-opt-jms-dest": 1, "x-opt-jms-reply-to": 2}
    assert found[0x73][:5] == ["ID:x:1:1:1", b"joe", "topic://news", None, "temp-queue://ID:x:1"]
    assert found[0x74] == {"a": "b", "n": 1}
    assert found[VALUE] == "text"


@pytest.mark.parametrize(
    ("kind", "body", "code", "given", "type"),
    [
        (BodyKind.NONE, b"", None, None, 0),
        (BodyKind.OBJECT, b"\xac\xed", DATA, b"\xac\xed", 1),
        (BodyKind.MAP, encode_properties({"a": [1, {"b": None}]}), VALUE, {"a": [1, {"b": None}]}, 2),
        (BodyKind.MAP, b"", VALUE, {}, 2),
        (BodyKind.BYTES, b"x", DATA, b"x", 3),
        (BodyKind.STREAM, b"\x05\0\0\0\x07\x09\0\1a\x01\1", VALUE, [7, "a", True], 4),
        (BodyKind.TEXT, b"x", VALUE, "x", 5),
        (BodyKind.TEXT, b"\xed\xa0\x80", VALUE, "?", 5),
    ],
)
def test_bodies_of_other_protocols_are_encoded(
    kind: BodyKind, body: bytes, code: int | None, given: Any, type: int
) -> None:
    found = sections_of(encoded_again(Message(QUEUE, "a:1:1:1", body, kind)))
    assert found.get(code) == given  # type: ignore[arg-type]
    assert found[0x72]["x-opt-jms-msg-type"] == type
    if kind is BodyKind.OBJECT:
        assert found[0x73][6] == "application/x-java-serialized-object"


@pytest.mark.parametrize(
    ("kind", "body"), [(BodyKind.MAP, b"\0"), (BodyKind.STREAM, b"\x63"), (BodyKind.STREAM, b"\x05\0")]
)
def test_a_damaged_body_is_undeliverable(kind: BodyKind, body: bytes) -> None:
    with pytest.raises(Undeliverable):
        encoded_again(Message(QUEUE, "a:1:1:1", body, kind))


def test_a_long_map_is_not_encoded_on_the_event_loop() -> None:
    body = encode_properties({str(each): each for each in range(4_000)})
    sent = Message(QUEUE, "a:1:1:1", body, BodyKind.MAP)
    for message in (sent, restored(sent)):
        with pytest.raises(TakesLong):
            encoded_again(message)
        assert sections_of(encoded_again(message, is_quick=False))[VALUE] == decode_properties(body)


# ---- any bytes


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_mapped_or_refused(data: bytes) -> None:
    try:
        message = mapped(data)
    except AmqpError:
        return
    encoded_again(message)


SECTIONS = st.lists(
    st.one_of(
        st.sampled_from(
            [header(durable=True), properties(message_id="i"), section(0x74, {"a": 1}), section(DATA, b"x"), value("v")]
        ),
        st.binary(max_size=4),
    ),
    max_size=6,
).map(b"".join)


@given(SECTIONS)
def test_arbitrary_sections_are_mapped_or_refused(data: bytes) -> None:
    try:
        message = mapped(data)
    except AmqpError:
        return
    sections_of(encoded_again(message))


def test_the_number_of_sections_is_limited() -> None:
    with pytest.raises(AmqpError) as error:
        mapped(section(DATA, b"") * (SECTIONS_MAX + 1))
    assert error.value.condition == DECODE_ERROR
