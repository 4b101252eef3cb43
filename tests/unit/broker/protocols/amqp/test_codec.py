"""Codec of AMQP types, composites and frames."""

# proves: amqp-values-cost-bytes

from __future__ import annotations

import math
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.protocols.amqp import schema, types
from tandemmq.broker.protocols.amqp.codec import read_composite, write_composite
from tandemmq.broker.protocols.amqp.errors import DECODE_ERROR, FRAMING_ERROR, INVALID_FIELD, AmqpError, DecodeError
from tandemmq.broker.protocols.amqp.frames import EMPTY, SASL, FrameCutter, frame_of
from tandemmq.broker.protocols.amqp.types import (
    NESTING_MAX,
    Array,
    Decimal,
    Described,
    Reader,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
    encode,
)
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short


def decode(data: bytes) -> Any:
    """Return the value of these bytes. Raises DecodeError if other bytes follow."""
    reader = Reader(data)
    found = reader.value()
    if reader.at != len(data):
        raise DecodeError("bytes follow a value")
    return found


# Encodings of the specification (part 1, 1.6), each with its value.
WIRE = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("5600", False),
    ("5601", True),
    ("50ff", UByte(255)),
    ("60ffff", UShort(65535)),
    ("43", UInt(0)),
    ("5201", UInt(1)),
    ("70ffffffff", UInt(0xFFFFFFFF)),
    ("44", ULong(0)),
    ("53ff", ULong(255)),
    ("80ffffffffffffffff", ULong((1 << 64) - 1)),
    ("5180", Byte(-128)),
    ("618000", Short(-32768)),
    ("54ff", -1),
    ("7180000000", -(1 << 31)),
    ("55ff", Long(-1)),
    ("818000000000000000", Long(-(1 << 63))),
    ("723f800000", Float(1.0)),
    ("823ff0000000000000", 1.0),
    ("7400000001", Decimal(b"\0\0\0\1")),
    ("7300000041", Char("A")),
    ("83ffffffffffffffff", Timestamp(-1)),
    ("98" + "0f" * 16, Uuid(b"\x0f" * 16)),
    ("a00161", b"a"),
    ("b00000000161", b"a"),
    ("a102c3a4", "ä"),
    ("a30161", Symbol("a")),
    ("45", []),
    ("c00301" + "5401", [1]),
    ("d00000000600000001" + "5401", [1]),
    ("c10602a10161" + "5401", {"a": 1}),
    ("e0050350010203", Array((UByte(1), UByte(2), UByte(3)))),
    ("e0020341", Array((True, True, True))),
    ("0053245401", Described(ULong(0x24), 1)),
]


@pytest.mark.parametrize(("wire", "value"), WIRE)
def test_examples_of_the_specification_are_decoded(wire: str, value: Any) -> None:
    found = decode(bytes.fromhex(wire))
    assert found == value
    assert type(found) is type(value)
    with pytest.raises(DecodeError):
        decode(bytes.fromhex(wire) + b"\x40")
    reader = Reader(bytes.fromhex(wire) + b"\x41")
    reader.value()
    assert reader.value() is True


@pytest.mark.parametrize("wire", [each[0] for each in WIRE])
def test_a_truncated_value_is_refused(wire: str) -> None:
    whole = bytes.fromhex(wire)
    for stop in range(len(whole)):
        with pytest.raises(DecodeError):
            decode(whole[:stop])


SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 255).map(UByte),
    st.integers(0, 65535).map(UShort),
    st.integers(0, 0xFFFFFFFF).map(UInt),
    st.integers(0, (1 << 64) - 1).map(ULong),
    st.integers(-128, 127).map(Byte),
    st.integers(-32768, 32767).map(Short),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1).map(Long),
    st.floats(width=32, allow_nan=False).map(Float),
    st.floats(allow_nan=False),
    st.integers(-(1 << 63), (1 << 63) - 1).map(Timestamp),
    st.binary(min_size=16, max_size=16).map(Uuid),
    st.sampled_from((4, 8, 16)).flatmap(lambda size: st.binary(min_size=size, max_size=size)).map(Decimal),
    st.characters(max_codepoint=0xD7FF).map(Char),
    st.binary(max_size=600),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=300),
    st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol),
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.text("abc", max_size=3), inner, max_size=5),
        st.builds(Described, st.integers(0, 300).map(ULong), inner),
        st.lists(st.integers(-5, 500), max_size=300).map(lambda items: Array(tuple(items))),
        st.lists(st.text("ab", max_size=3).map(Symbol), max_size=5).map(lambda items: Array(tuple(items))),
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Return whether two values, and all values in them, are equal and have the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, Described)) or (isinstance(one, tuple) and not isinstance(one, Array)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(VALUES)
def test_encoded_values_are_decoded_unchanged(value: Any) -> None:
    written = encode(value)
    assert same(decode(written), value)
    reader = Reader(written + b"\x41", 0)
    if not isinstance(value, Described):
        reader.skip()
        assert reader.at == len(written)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused(data: bytes) -> None:
    with suppress(DecodeError):
        decode(data)


def test_number_and_nesting_of_values_are_limited() -> None:
    zeros = bytes.fromhex("f00000000503938700" + "43")
    with pytest.raises(DecodeError, match="too many"):
        decode(zeros)
    with pytest.raises(DecodeError, match="nested"):
        decode(b"\0" * 10_000)
    nested = encode(1)
    for _ in range(NESTING_MAX + 1):
        nested = types.encode_list([nested])
    with pytest.raises(DecodeError, match="nested"):
        decode(nested)


def test_values_without_bytes_are_limited_by_the_number_of_bytes() -> None:
    assert decode(bytes.fromhex("e0020341")).items == (True, True, True)
    array = bytes.fromhex("f000000005000003e840")  # 1,000 nulls
    with pytest.raises(DecodeError, match="too many"):
        Reader(array).value()
    with pytest.raises(DecodeError, match="too many"):
        Reader(bytes(990) + array, 990).value()
    assert len(Reader(array + bytes(991)).value().items) == 1_000


@pytest.mark.parametrize(
    "wire", ["c10402450145", "c1020140", "c10904a1016140" + "a1016140", "e004010000534041", "a301ff", "a101ff", "5602"]
)
def test_invalid_values_are_refused(wire: str) -> None:
    with pytest.raises(DecodeError):
        decode(bytes.fromhex(wire))


@pytest.mark.parametrize("value", [object(), UByte(256), Array((1, "a")), ULong(1 << 64)])
def test_a_value_without_an_amqp_type_is_not_encoded(value: Any) -> None:
    with pytest.raises(ValueError, match=r"type|fit"):
        encode(value)


# ---- composites

COMPOSITES = [
    schema.Open("a", max_frame_size=512, idle_time_out=7, desired_capabilities=("x", "y"), properties={Symbol("p"): 1}),
    schema.Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=2, remote_channel=3),
    schema.Attach(name="l", handle=0, role=True, source=schema.Source(address="q"), target=schema.Target()),
    schema.Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3, handle=4, link_credit=5, drain=True),
    schema.Transfer(handle=0, delivery_id=1, delivery_tag=b"t", settled=False, more=True),
    schema.Disposition(role=True, first=1, last=9, settled=True, state=schema.Accepted()),
    schema.Detach(0, True, schema.Error(Symbol("amqp:not-found"), "why", {Symbol("k"): "v"})),
    schema.End(),
    schema.Close(schema.Error("amqp:internal-error")),
    schema.Modified(True, True),
    schema.Properties(message_id=ULong(7), to="queue://a", creation_time=5, group_sequence=1),
    schema.Header(durable=True, priority=9, ttl=0xFFFFFFFF, delivery_count=1),
    schema.SaslMechanisms(("PLAIN",)),
    schema.SaslOutcome(4),
]


@pytest.mark.parametrize("found", COMPOSITES)
def test_a_composite_is_decoded_unchanged(found: schema.Composite) -> None:
    assert read_composite(Reader(write_composite(found))) == found


def test_descriptors_can_be_symbols_and_wide_numbers() -> None:
    by_symbol = b"\0" + encode(Symbol("amqp:end:list")) + b"\x45"
    by_number = b"\0\x80" + struct.pack(">Q", 0x17) + b"\x45"
    assert read_composite(Reader(by_symbol)) == read_composite(Reader(by_number)) == schema.End()


def test_a_field_for_several_symbols_accepts_a_single_one() -> None:
    wire = b"\0\x53\x40" + types.encode_list([encode(Symbol("PLAIN"))])
    assert read_composite(Reader(wire)) == schema.SaslMechanisms(("PLAIN",))


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ([], INVALID_FIELD),  # a mandatory field is missing
        ([UInt(1)], INVALID_FIELD),  # of another type
        (["a"] * 11, DECODE_ERROR),  # too many
        (["a", None, 7], INVALID_FIELD),
    ],
)
def test_a_composite_with_wrong_fields_is_refused(fields: list[Any], condition: str) -> None:
    wire = b"\0\x53\x10" + types.encode_list([encode(each) for each in fields])
    with pytest.raises(AmqpError) as error:
        read_composite(Reader(wire))
    assert error.value.condition == condition


def test_an_unknown_composite_is_refused() -> None:
    with pytest.raises(DecodeError, match="0x99"):
        read_composite(Reader(b"\0\x53\x99\x45"))


# ---- frames

FRAMES = [EMPTY, frame_of(3, b"abc"), frame_of(0, b"x" * 500), struct.pack(">IBBHI", 13, 3, 0, 1, 0) + b"y"]


@given(st.data())
def test_frames_are_cut_in_any_order_of_calls(data: st.DataObject) -> None:
    bodies = data.draw(st.lists(st.binary(max_size=40), max_size=8))
    rest = SASL + b"".join(frame_of(number, body) for number, body in enumerate(bodies))
    cutter, fed, cut, found, header = FrameCutter(48), 0, 0, 0, None
    while found < len(bodies) or header is None:
        if rest:
            piece, rest = rest[: (length := data.draw(st.integers(1, 30)))], rest[length:]
            cutter.feed(piece)
            fed += len(piece)
        for _ in range(data.draw(st.integers(0, 3)) if rest else len(bodies) + 1):
            if header is None:
                header = cutter.header()
                cut += len(header or b"")
                continue
            frame = cutter.next_frame()
            if frame is None:
                break
            if data.draw(st.booleans()) and rest:
                cutter.put_back(frame)
                break
            assert (frame.channel, frame.body, frame.size) == (found, bodies[found], 8 + len(bodies[found]))
            found += 1
            cut += frame.size
        assert cutter.pending_bytes == fed - cut
    assert header == SASL


def test_a_frame_may_have_the_maximum_length() -> None:
    cutter = FrameCutter(512)
    cutter.feed(frame_of(1, b"x" * 504) + frame_of(1, b"x" * 505)[:8])
    frame = cutter.next_frame()
    assert frame is not None
    assert frame.size == 512
    with pytest.raises(AmqpError, match="513 bytes, and 512 are allowed"):
        cutter.next_frame()


def frames_in(pieces: list[bytes]) -> list[tuple[int, bytes]]:
    """Return channel and body of each frame; at the end, the number of bytes that are left."""
    cutter = FrameCutter()
    found = []
    for piece in pieces:
        cutter.feed(piece)
        while (frame := cutter.next_frame()) is not None:
            found.append((frame.channel, frame.body))
    found.append((cutter.pending_bytes, b""))
    return found


def test_frames_do_not_depend_on_the_received_pieces() -> None:
    whole = b"".join(FRAMES)
    expected = [(0, b""), (3, b"abc"), (0, b"x" * 500), (1, b"y")]
    assert frames_in([whole]) == [*expected, (0, b"")]
    assert frames_in([whole[at : at + 1] for at in range(len(whole))]) == [*expected, (0, b"")]
    assert frames_in([whole + b"\0\0"]) == [*expected, (2, b"")]
    for stop in range(len(whole)):
        assert frames_in([whole[:stop], whole[stop:]]) == [*expected, (0, b"")]


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">IBBH", 7, 2, 0, 0),
        struct.pack(">IBBH", 0, 2, 0, 0),
        struct.pack(">IBBH", 0xFFFFFFFF, 2, 0, 0),
        struct.pack(">IBBH", 20, 1, 0, 0),
        struct.pack(">IBBH", 20, 6, 0, 0),
        struct.pack(">IBBH", 20, 2, 2, 0),
    ],
)
def test_an_invalid_frame_head_is_refused_at_once(head: bytes) -> None:
    cutter = FrameCutter()
    cutter.feed(head)
    with pytest.raises(AmqpError) as error:
        cutter.next_frame()
    assert error.value.condition == FRAMING_ERROR


def test_nan_and_symbols_keep_their_types() -> None:
    assert math.isnan(decode(encode(math.nan)))
    assert encode(Symbol("a")) != encode("a")
