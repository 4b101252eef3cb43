"""Messages of AMQP and of the broker: what becomes of each section, both ways (docs/formats/amqp.md)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import Undeliverable
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.errors import DECODE_ERROR, AmqpError
from tandemmq.broker.protocols.amqp.incoming import (
    MAP_BYTES_MAX,
    MESSAGE_FORMAT,
    MESSAGE_ID,
    NATIVE,
    ORIGINAL_ENCODING,
    Incoming,
)
from tandemmq.broker.protocols.amqp.outgoing import TakesLong, encode
from tandemmq.broker.protocols.amqp.sections import SECTIONS_MAX
from tandemmq.broker.protocols.amqp.types import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, UShort, Uuid
from tandemmq.broker.protocols.mqtt.messages import payload_of
from tandemmq.broker.protocols.stomp.destinations import write_destination
from tandemmq.broker.protocols.stomp.dialects import V12
from tandemmq.broker.protocols.stomp.messages import encode as encode_stomp
from tandemmq.store.records.frames import open_message
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short, decode_properties, encode_properties
from tests.support.broker.amqp_wire import header, section, sections_of, value

NOW = 1_700_000_000_000
QUEUE = Destination(DestinationKind.QUEUE, "orders")
DATA, SEQUENCE, VALUE = 0x75, 0x76, 0x77
UUID = Uuid(bytes(range(16)))


def taken(encoded: bytes, message_format: int = 0) -> Message:
    """The message that an AMQP client sent."""
    return Incoming(encoded, NOW).message(QUEUE, "ID:a-1-1:-1:1:1", message_format)


def given_out(message: Message, redeliveries: int = 0, *, is_quick: bool = True) -> bytes:
    return b"".join(encode(message, redeliveries, NOW, 1 << 20, is_quick=is_quick)[0])


def through_the_store(message: Message) -> Message:
    return open_message(encode_message(message))


def properties(**fields: Any) -> bytes:
    return write_composite(schema.Properties(**fields))


def sent(message: Message) -> dict[int, Any]:
    """The sections that an AMQP client gets, also after a restart."""
    found = sections_of(given_out(message))
    assert found == sections_of(given_out(through_the_store(message)))
    return found


# ---- the envelope


def test_a_header_is_mapped() -> None:
    message = taken(header(durable=True, priority=12, ttl=0xFFFFFFFF, delivery_count=3, first_acquirer=True) + value(1))
    assert (message.persistent, message.priority, message.expiration) == (True, 9, NOW + 0xFFFFFFFF)
    assert message.redelivery_counter == 3
    plain = taken(value("x"))
    assert (plain.persistent, plain.priority, plain.expiration) == (False, 4, 0)
    assert taken(header(ttl=0) + value("x")).expiration == 0


def test_properties_are_mapped_and_come_back() -> None:
    found = {
        "message_id": "id-1",
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
    message = taken(properties(**found) + section(DATA, b"{}"))
    assert (message.type, message.group_id, message.group_sequence) == ("kind", "g", -1)
    assert message.reply_to == Destination(DestinationKind.TOPIC, "back")
    assert (message.correlation_id, message.timestamp, message.expiration) == ("AMQP_ULONG:7", NOW - 5, NOW + 5_000)
    assert message.message_id == "ID:a-1-1:-1:1:1"
    assert (message.body, message.body_kind) == (b"{}", BodyKind.TEXT)
    again = sent(message)
    assert again[DATA] == b"{}"
    listed = again[0x73]
    assert listed == [
        *("id-1", None, "queue://orders", "kind", "topic://back", 7, "application/json", "gzip"),
        *(NOW + 5_000, NOW - 5, "g", 0xFFFFFFFF, "h"),
    ]
    assert again[0x70] == [None, None, 5_000]


@pytest.mark.parametrize("id", ["x", "", "ID:a", "AMQP_UUID:x", "AMQP_ULONG:z", ULong(1 << 63), UUID, b"\0\xff", b""])
def test_ids_keep_their_type(id: Any) -> None:
    message = taken(properties(message_id=id, correlation_id=id) + value("x"))
    listed = sent(message)[0x73]
    assert (listed[0], listed[5]) == (id, id)
    assert (type(listed[0]), type(listed[5])) == (type(id), type(id))


def test_equal_message_ids_are_two_messages() -> None:
    encoded = properties(message_id="same") + value("x")
    one = Incoming(encoded, NOW).message(QUEUE, "ID:a:-1:1:1", 0)
    two = Incoming(encoded, NOW).message(QUEUE, "ID:a:-1:1:2", 0)
    assert one.message_id != two.message_id
    assert one.properties is not None
    assert one.properties[MESSAGE_ID] == "same"


def test_values_get_a_type_of_java() -> None:
    named: dict[str, Any] = {
        "null": None, "boolean": True, "byte": Byte(-1), "short": Short(2), "int": 3, "long": Long(4),
        "float": Float(1.5), "double": 2.5, "char": Char("c"), "string": "s", "symbol": Symbol("y"),
        "ubyte": UByte(127),
        "ubyte2": UByte(128),
        "ushort": UShort(9), "ushort2": UShort(0xFFFF), "uint": UInt(9), "uint2": UInt(0xFFFFFFFF), "ulong": ULong(9),
        "ulong2": ULong((1 << 64) - 1), "binary": b"a\\\xff",
    }  # fmt: skip
    message = taken(section(0x74, named) + value("x"))
    assert message.properties is not None
    found = {name: each for name, each in message.properties.items() if name in named}
    assert found == {
        **{name: named[name] for name in ("null", "boolean", "byte", "short", "int", "long")},
        **{name: named[name] for name in ("float", "double", "char")},
        "string": "s", "symbol": "y", "ubyte": 127, "ubyte2": 128, "ushort": 9, "ushort2": 0xFFFF, "uint": 9,
        "uint2": 0xFFFFFFFF, "ulong": 9, "ulong2": -1, "binary": "a\\x5C\\xFF",
    }  # fmt: skip
    assert [type(found[name]) for name in ("ubyte", "ubyte2", "ushort", "ushort2", "uint", "uint2", "ulong")] == [
        *(Byte, Short, Short, int, int, Long, Long)
    ]
    assert NATIVE not in message.properties
    assert sent(message)[0x74] == found


def test_annotations_and_footers_come_back() -> None:
    annotations = {Symbol("x-opt-jms-msg-type"): Byte(7), Symbol("x-a"): "b"}
    message = taken(
        section(0x71, {Symbol("hop"): 1}) + section(0x72, annotations) + value("x") + section(0x78, {Symbol("f"): 1})
    )
    again = sent(message)
    assert 0x71 not in again
    assert again[0x72] == {**annotations, "x-opt-jms-dest": 0}
    assert again[0x78] == {"f": 1}


def test_a_message_format_comes_back() -> None:
    message = taken(value("x"), 0x80000000)
    assert message.properties is not None
    assert message.properties[MESSAGE_FORMAT] == 0x80000000
    assert encode(message, 0, NOW, 1 << 20, is_quick=True)[1] == 0x80000000


@pytest.mark.parametrize(
    ("annotations", "delay"),
    [
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
    message = taken(section(0x72, {Symbol(name): each for name, each in annotations.items()}) + value("x"))
    assert message.properties is not None
    assert message.properties.get("AMQ_SCHEDULED_DELAY") == delay


def test_a_delivery_is_repeated() -> None:
    annotations = {"x-opt-delivery-repeat": UInt(3), "x-opt-delivery-period": 50, "x-opt-delivery-cron": "* * * * *"}
    message = taken(section(0x72, {Symbol(name): each for name, each in annotations.items()}) + value("x"))
    found = {name: each for name, each in (message.properties or {}).items() if name.startswith("AMQ_SCHEDULED_")}
    assert found == {"AMQ_SCHEDULED_REPEAT": 3, "AMQ_SCHEDULED_PERIOD": 50, "AMQ_SCHEDULED_CRON": "* * * * *"}
    assert [type(each) for each in found.values()] == [int, Long, str]  # as ActiveMQ stores them


def test_a_long_binary_property_stays_encoded() -> None:
    fits, long = (section(0x74, {"p": bytes(count)}) + value("x") for count in (4_096, 4_097))
    assert (taken(fits).properties or {})["p"] == "\\x00" * 4_096
    message = taken(long)
    assert message.properties is not None
    assert (message.properties.get("p"), message.properties[NATIVE], message.body) == (None, True, long)


@pytest.mark.parametrize(
    "encoded", [bytes.fromhex("00800000000000000077"), b"\0\xa3\1x", b"\0\x80" + bytes(7) + b"\x75"]
)
def test_a_section_without_a_value_is_damaged(encoded: bytes) -> None:
    with pytest.raises(AmqpError) as caught:
        taken(encoded)
    assert caught.value.condition == DECODE_ERROR
    stored = Message(QUEUE, "ID:x", encoded, BodyKind.BYTES, properties={NATIVE: True})
    with pytest.raises(Undeliverable):
        given_out(stored)


@pytest.mark.parametrize(("priority", "given"), [(-1, 0), (300, 255)])
@pytest.mark.parametrize("is_native", [True, False])
def test_a_priority_of_another_protocol_fits(priority: int, given: int, is_native: bool) -> None:
    native = {NATIVE: True} if is_native else {}
    message = Message(QUEUE, "ID:x", value("x"), BodyKind.BYTES, properties=native, priority=priority)
    assert sections_of(given_out(message))[0x70][1] == given


# ---- bodies


@pytest.mark.parametrize(
    ("body", "content_type", "kind", "stored", "encoding"),
    [
        (b"", None, BodyKind.BYTES, b"", 1),
        (b"", "text/plain", BodyKind.TEXT, b"", 1),
        (b"", "image/png", BodyKind.NONE, b"", 1),
        (section(DATA, b"\xff"), None, BodyKind.BYTES, b"\xff", 2),
        (section(DATA, b"a"), "text/plain; charset=UTF-8", BodyKind.TEXT, b"a", 2),
        (section(DATA, b"a"), "application/x+xml", BodyKind.TEXT, b"a", 2),
        (section(DATA, b"a"), "text/plain; charset=latin-1", BodyKind.BYTES, b"a", 2),
        (section(DATA, b"\xff"), "text/plain", BodyKind.BYTES, b"\xff", 2),
        (section(DATA, b"\xac\xed"), "application/x-java-serialized-object", BodyKind.OBJECT, b"\xac\xed", 2),
        (value(None), None, BodyKind.TEXT, b"", 4),
        (value("ä"), None, BodyKind.TEXT, "ä".encode(), 5),
        (value("a" * 300), None, BodyKind.TEXT, b"a" * 300, 5),
        (value(b"\0" * 300), None, BodyKind.BYTES, b"\0" * 300, 6),
        (value({"a": 1, "b": b"x"}), None, BodyKind.MAP, encode_properties({"a": 1, "b": b"x"}), 7),
    ],
)
def test_a_body_is_mapped_and_comes_back(
    body: bytes, content_type: str | None, kind: BodyKind, stored: bytes, encoding: int
) -> None:
    message = taken((properties(content_type=Symbol(content_type)) if content_type else b"") + body)
    assert (message.body_kind, message.body) == (kind, stored)
    assert message.properties is not None
    assert message.properties[ORIGINAL_ENCODING] == encoding
    assert type(message.properties[ORIGINAL_ENCODING]) is Short
    again = sent(message)
    kept = sections_of(body)
    assert {code: each for code, each in again.items() if code >= DATA} == kept


@pytest.mark.parametrize(
    "encoded",
    [
        section(DATA, b"a") + section(DATA, b"b"),
        section(SEQUENCE, [1]) + section(SEQUENCE, [2]),
        value([1, "a"]),
        value(UUID),
        value(Described(ULong(99), Described(Symbol("deep"), "x"))),
        value({1: 2}),
        value({"a": [1]}),
        value({"k": "x" * MAP_BYTES_MAX}),
        value(Array((1, 2))),
        section(0x74, {"u": UUID}) + value("x"),
        section(0x74, {"t": Timestamp(5)}) + value("x"),
        section(0x74, {"JMSXGroupID": "g"}) + value("x"),
        section(0x74, {"JMS_AMQP_NATIVE": True}) + value("x"),
        section(0x72, {Symbol("a"): Array((1,))}) + value("x"),
        section(0x72, {ULong(5): 1}) + value("x"),
        properties(user_id=b"me") + value("x"),
    ],
)
def test_what_jms_would_lose_stays_as_it_came(encoded: bytes) -> None:
    message = taken(header(durable=True, priority=200) + encoded)
    assert message.properties is not None
    assert (message.properties[NATIVE], message.body_kind) == (True, BodyKind.BYTES)
    assert (message.persistent, message.priority) == (True, 9)
    for each in (message, through_the_store(message)):
        whole = given_out(each)
        assert whole.endswith(encoded)
        assert sections_of(whole)[0x70] == [True, 200]
        again = sections_of(given_out(each, 2))
        assert again[0x70] == [True, 200, None, None, 2]


def test_selectors_see_what_stays_as_it_came() -> None:
    message = taken(section(0x74, {"u": UUID, "t": Timestamp(5), "n": 1, "a": Array((1,))}) + value("x"))
    assert message.properties is not None
    found = {name: message.properties.get(name) for name in "utna"}
    assert found == {"u": "00010203-0405-0607-0809-0a0b0c0d0e0f", "t": 5, "n": 1, "a": None}
    assert message.properties[NATIVE] is True


def test_a_message_without_header_gets_one_when_it_needs_it() -> None:
    message = taken(section(0x71, {Symbol("a"): 1}) + value([1]))
    assert given_out(message) == value([1])
    assert given_out(message, 1) == header(delivery_count=1) + value([1])


# ---- messages of other protocols


def test_a_message_of_another_protocol() -> None:
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
    found = sent(message)
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
def test_bodies_of_other_protocols(kind: BodyKind, body: bytes, code: int | None, given: Any, type: int) -> None:
    found = sections_of(given_out(Message(QUEUE, "a:1:1:1", body, kind)))
    assert found.get(code) == given  # type: ignore[arg-type]
    assert found[0x72]["x-opt-jms-msg-type"] == type
    if kind is BodyKind.OBJECT:
        assert found[0x73][6] == "application/x-java-serialized-object"


def test_other_protocols_get_the_text_and_the_properties() -> None:
    named = {"a": "b", "n": UInt(7)}
    for message in (taken(section(0x74, named) + value("text")), taken(section(0x74, named) + section(DATA, b"text"))):
        stored = through_the_store(message)
        head, body = encode_stomp(stored, V12, None, write_destination, inflated_bytes_max=1 << 20)
        assert body == b"text"
        assert {b"a:b", b"n:7", b"destination:/queue/orders"} <= set(head.splitlines())
        assert payload_of(stored, 1 << 20, is_quick=True) == b"text"


@pytest.mark.parametrize(
    ("kind", "body"), [(BodyKind.MAP, b"\0"), (BodyKind.STREAM, b"\x63"), (BodyKind.STREAM, b"\x05\0")]
)
def test_a_damaged_body_is_undeliverable(kind: BodyKind, body: bytes) -> None:
    with pytest.raises(Undeliverable):
        given_out(Message(QUEUE, "a:1:1:1", body, kind))


def test_what_takes_long_is_done_elsewhere() -> None:
    body = encode_properties({str(each): each for each in range(4_000)})
    message = through_the_store(Message(QUEUE, "a:1:1:1", body, BodyKind.MAP))
    with pytest.raises(TakesLong):
        given_out(message)
    assert sections_of(given_out(message, is_quick=False))[VALUE] == decode_properties(body)


# ---- any bytes


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = taken(data)
    except AmqpError:
        return
    given_out(message)


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
def test_sections_in_any_order_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = taken(data)
    except AmqpError:
        return
    sections_of(given_out(message))


def test_sections_are_bounded() -> None:
    with pytest.raises(AmqpError) as error:
        taken(section(DATA, b"") * (SECTIONS_MAX + 1))
    assert error.value.condition == DECODE_ERROR
