"""Messages of JMS clients: what a STOMP client sees of them, compressed or with long headers, and what a broker
keeps."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, Undeliverable
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.types import MessageId
from tandemmq.broker.protocols.stomp.destinations import write_destination
from tandemmq.broker.protocols.stomp.dialects import V12
from tandemmq.broker.protocols.stomp.frames import Limits
from tandemmq.broker.protocols.stomp.messages import (
    KEPT_BYTES_MAX,
    QUICK_BYTES_MAX,
    QUICK_HEAD_BYTES_MAX,
    QUICK_MAP_BYTES_MAX,
    TakesLong,
    encode,
    encode_once,
)
from tandemmq.broker.protocols.stomp.session import SHARED_BODY_BYTES_MIN
from tandemmq.store.records.frames import QUICK_PROPERTIES_MAX, accept_frame
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message, PropertyValue
from tandemmq.store.records.properties import encode_properties
from tandemmq.store.records.utf import QUICK_SURROGATES_MAX, encode_modified
from tests.support.protocols.openwire.peer import PRODUCER, QUEUE
from tests.support.protocols.stomp_peer import StompPeer

LIMIT = 100_000
Sent = Callable[[int], tuple[Message, bytes, bytes]]


def sent(make: Any, content: bytes, *, is_compressed: bool = True, properties: dict[str, Any] | None = None) -> Message:
    wire = make(1, False, producer_id=PRODUCER, destination=QUEUE, message_id=MessageId(None, PRODUCER, 1, 0))
    wire.content = content
    wire.compressed = is_compressed
    wire.marshalled_properties = None if properties is None else encode_properties(properties)
    return accept_frame(STORED.encode(wire), 1, 2).message


def a_text(length: int) -> tuple[Message, bytes, bytes]:
    """A compressed message whose body has ``length`` bytes; the body, and the stream that it came in."""
    body = b"a" * length
    stream = zlib.compress(length.to_bytes(4, "big") + body)
    return sent(schema.ActiveMQTextMessage, stream), body, stream


def bytes_of(length: int) -> tuple[Message, bytes, bytes]:
    body = b"\xff" * length
    stream = zlib.compress(body)
    return sent(schema.ActiveMQBytesMessage, length.to_bytes(4, "big") + stream), body, stream


def client_of(transformation: str = "", limit: int = LIMIT) -> StompPeer:
    client = StompPeer(limits=Limits(frame_bytes_max=limit))
    client.subscribe(*([f"transformation:{transformation}"] if transformation else []))
    return client


@pytest.mark.parametrize("make", [a_text, bytes_of])
def test_a_body_within_the_limit_comes_inflated(make: Sent) -> None:
    message, body, _ = make(LIMIT - 4)
    headers, seen = client_of().sees(message)
    assert seen == body
    assert not headers.keys() & {"content-encoding", "transformation-error"}


@pytest.mark.parametrize("make", [a_text, bytes_of])
@pytest.mark.parametrize("length", [QUICK_BYTES_MAX - 4, QUICK_BYTES_MAX + 1, 12 * QUICK_BYTES_MAX])
def test_a_long_conversion_is_prepared_on_a_thread(make: Sent, length: int) -> None:
    message, body, _ = make(length)
    client = client_of(limit=100 << 20)
    _, seen = client.sees(message)
    assert seen == body
    assert client.was_prepared is (length > QUICK_BYTES_MAX)


def test_a_preparation_without_a_receiver_is_dropped() -> None:
    message, _, _ = a_text(2 * QUICK_BYTES_MAX)
    session = client_of(limit=100 << 20).session
    for _ in range(2):
        prepare = session.deliver("0", 1, message, 0, AckMode.AUTO)
        assert prepare is not None
        prepare()
        session.drop_prepared()


@pytest.mark.parametrize("is_long", [True, False])
def test_a_long_text_of_java_is_read_beside_the_loop(is_long: bool) -> None:
    """Java writes each character beyond the first 65,536 as two of three bytes."""
    text = "\U0001f600" * (QUICK_SURROGATES_MAX // 2 + is_long)
    written = encode_modified(text)
    content = len(written).to_bytes(4, "big") + written
    client = client_of(limit=100 << 20)
    _, seen = client.sees(sent(schema.ActiveMQTextMessage, content, is_compressed=False))
    assert seen == text.encode()
    assert client.was_prepared is is_long


@pytest.mark.parametrize("is_more", [True, False])
def test_many_properties_are_read_beside_the_loop(is_more: bool) -> None:
    client = client_of()
    properties = {"list": [1] * (QUICK_PROPERTIES_MAX - 1 + is_more)}
    headers, _ = client.sees(sent(schema.ActiveMQMessage, b"", is_compressed=False, properties=properties))
    assert headers["list"] == str(properties["list"])
    assert client.was_prepared is is_more


def test_lists_and_maps_in_properties_are_texts_as_java_prints_them() -> None:
    """Former fault: such properties ended the connection of one STOMP consumer after the other."""
    properties = {"list": [1, None, "a", [True]], "map": {"a": 1.0, "b": {}}, "none": None}
    headers, _ = client_of().sees(sent(schema.ActiveMQMessage, b"", is_compressed=False, properties=properties))
    assert headers["list"] == "[1, null, a, [true]]"
    assert headers["map"] == "{a=1.0, b={}}"
    assert headers["none"] == ""


@pytest.mark.parametrize("is_compressed", [True, False])
def test_a_map_is_written_beside_the_loop_unless_it_is_short(is_compressed: bool) -> None:
    for length in (10, QUICK_MAP_BYTES_MAX):
        entries = encode_properties({"a": "b" * length})
        client = client_of("jms-map-json")
        content = zlib.compress(entries) if is_compressed else entries
        _, seen = client.sees(sent(schema.ActiveMQMapMessage, content, is_compressed=is_compressed))
        assert b"b" * length in seen
        assert client.was_prepared is (is_compressed or length > 10)


def test_a_large_frame_is_taken_in_pieces_that_are_not_copied() -> None:
    body = b"x" * SHARED_BODY_BYTES_MIN
    client = client_of()
    for number in range(3):
        message = Message(QUEUE, f"ID:b:1:1:{number}", body if number == 1 else b"short")
        assert client.session.deliver("0", number, message, 0, AckMode.AUTO) is None
    pieces = client.session.take_parts()
    assert sum(piece is body for piece in pieces) == 1
    assert b"".join(pieces).count(b"MESSAGE\n") == 3
    assert client.session.take() == b""


@pytest.mark.parametrize("length", [LIMIT + 1, 100 * LIMIT])
@pytest.mark.parametrize("make", [a_text, bytes_of])
def test_a_longer_one_comes_as_it_was_sent_and_no_more_of_it_is_inflated(make: Sent, length: int) -> None:
    message, _, stream = make(length)
    client = client_of()
    tracemalloc.start()
    headers, seen = client.sees(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == stream
    assert headers["content-encoding"] == "deflate"
    assert f"{LIMIT} " in headers["transformation-error"]
    assert peak < 5 * LIMIT + 5 * len(stream)


def test_a_longer_map_comes_without_a_body_and_says_why() -> None:
    entries = encode_properties({"a": "b" * 2 * LIMIT})
    headers, seen = client_of("jms-map-json").sees(sent(schema.ActiveMQMapMessage, zlib.compress(entries)))
    assert seen == b""
    assert f"{LIMIT} " in headers["transformation-error"]


@pytest.mark.parametrize("make", [schema.ActiveMQTextMessage, schema.ActiveMQBytesMessage])
@pytest.mark.parametrize("content", [b"", b"\0\0", b"\0\0\0\5", b"\0\0\0\5not zlib"])
def test_a_body_that_cannot_be_decompressed_is_delivered_to_nobody(make: Any, content: bytes) -> None:
    client = client_of()
    with pytest.raises(Undeliverable):
        client.sees(sent(make, content))


@pytest.mark.parametrize(("length", "is_kept"), [(KEPT_BYTES_MAX // 2, True), (KEPT_BYTES_MAX + 1, False)])
def test_only_a_short_last_encoding_is_cached(length: int, is_kept: bool) -> None:
    message, _, _ = bytes_of(length)
    first, second = (encode_once(message, V12, None, write_destination, inflated_bytes_max=LIMIT) for _ in range(2))
    assert first == second
    assert (first[0] is second[0]) is is_kept


# ---- long headers are written beside the loop


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


# proves: long-heads-are-written-beside-the-loop
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


# proves: long-heads-are-written-beside-the-loop
def test_one_long_property_is_written_beside_the_loop_and_in_pieces() -> None:
    value = "a:\\\n" * QUICK_HEAD_BYTES_MAX
    made = opened({"h": value})
    with pytest.raises(TakesLong):
        encode(made, V12, is_quick=True)
    head, _ = encode(made, V12)
    assert f"\nh:{V12.escape(value)}\n".encode() in head
