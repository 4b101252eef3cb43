"""Every frame that ActiveMQ wrote: read, compared with what it means, written again, cut out of any stream."""

from __future__ import annotations

import re
import struct
import zlib
from typing import Any

import pytest

from tandemmq.broker.protocols.openwire.codec import message_of, stored_frame
from tandemmq.broker.protocols.openwire.schema import ActiveMQBytesMessage, Command, WireFormatInfo, WireMessage
from tandemmq.broker.protocols.openwire.types import (
    DESCRIPTIONS,
    BrokerId,
    ConnectionId,
    MessageId,
    Throwable,
    number_of,
)
from tandemmq.broker.protocols.openwire.wireformat import properties_of
from tandemmq.store.records.openwire import decode_message
from tandemmq.store.records.properties import Char, decode_properties
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tests.support.protocols.openwire.vectors import Vector, vectors

pytestmark = pytest.mark.promise("jms-works-unmodified")

NAMES = sorted({vector.name for vector in vectors()})


def named(name: str) -> list[Vector]:
    return [vector for vector in vectors() if vector.name == name]


def test_the_table_of_samples_covers_all_versions_and_forms() -> None:
    forms = {(vector.version, vector.is_tight, vector.is_cached) for vector in vectors()}
    assert {version for version, _, _ in forms} == set(range(1, 13))
    assert {(is_tight, is_cached) for _, is_tight, is_cached in forms} == {(a, b) for a in (0, 1) for b in (0, 1)}
    assert len(vectors()) == 1838


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_is_read_and_written_again_byte_by_byte_the_same(name: str) -> None:
    for vector in named(name):
        reading, writing = vector.wire_format(), vector.wire_format()
        for frame in vector.frames:
            assert writing.encode(reading.decode(frame)) == frame, str(vector)


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_means_what_its_description_says(name: str) -> None:
    for vector in named(name):
        if "note" in vector.fields:
            continue
        command = vector.wire_format().decode(vector.frames[0])
        assert not list(differences(vector.fields, command, vector)), str(vector)


def test_later_frames_of_a_connection_refer_to_earlier_ones() -> None:
    for vector in named("stream-cacheHits"):
        wire = vector.wire_format()
        commands = [wire.decode(frame) for frame in vector.frames]
        assert [type(command).__name__ for command in commands] == [
            "ConnectionInfo",
            "SessionInfo",
            "ProducerInfo",
            "ActiveMQTextMessage",
            "ActiveMQTextMessage",
            "RemoveInfo",
            "RemoveInfo",
        ]
        _, _, producer, one, two, remove_producer, remove_connection = commands
        for message, sequence in ((one, 7), (two, 8)):
            assert message.producer_id == producer.producer_id
            assert message.destination == producer.destination
            assert message.message_id == MessageId(None, producer.producer_id, sequence, 0)
        assert remove_producer.object_id == producer.producer_id
        assert remove_connection.object_id == ConnectionId(producer.producer_id.connection_id)


def test_long_boolean_streams_are_counted_as_java_counts_them() -> None:
    for name, peers in (("BrokerInfo-100peers", 100), ("BrokerInfo-600peers", 600)):
        for vector in named(name):
            info = vector.wire_format().decode(vector.frames[0])
            assert [peer.broker_name for peer in info.peer_broker_infos] == ["n"] * peers


def test_a_message_of_any_form_becomes_the_frame_that_the_store_keeps() -> None:
    stored = {
        vector.name: vector.frames[0]
        for vector in vectors()
        if (vector.version, vector.is_tight, vector.is_cached) == (12, False, False)
    }
    seen = 0
    for vector in vectors():
        command = vector.wire_format().decode(vector.frames[0])
        if not isinstance(command, WireMessage):
            continue
        frame = stored_frame(command)
        if vector.version >= 10:  # later ones have fields that earlier ones lack
            assert frame == stored[vector.name], str(vector)
        if command.data_structure is None:  # advisories, which are not stored
            assert decode_message(frame).message_id == command.message_id.key
        again = vector.wire_format()
        assert again.encode(message_of(frame)) == vector.frames[0], str(vector)
        seen += 1
    assert seen > 300


# ---- comparing with the descriptions, whose names are Java's


def differences(expected: dict[str, Any], actual: Any, vector: Vector) -> list[str]:
    """Return the parts of a description that differ. Fields that the vector's version does not have are skipped."""
    fields = {field.name for field in DESCRIPTIONS[number_of(actual)].fields_in(vector.version)}
    wrong = []
    for name, value in expected.items():
        if name in _DERIVED:
            if name == "messageIdTextView" and vector.version < 10:
                continue
            found = _DERIVED[name](actual)
        else:
            attribute = _RENAMED.get(name) or snake(name)
            assert hasattr(actual, attribute), f"{type(actual).__name__} has no {name}"
            if attribute not in fields:
                continue
            found = getattr(actual, attribute)
        if not is_same(value, found, vector):
            wrong.append(f"{name}: {value!r} expected, {found!r} found")
    return wrong


def is_same(expected: Any, actual: Any, vector: Vector) -> bool:
    if isinstance(expected, list):
        return len(expected) == len(actual) and all(map(is_same, expected, actual, [vector] * len(expected)))
    if isinstance(actual, Throwable):
        traces = [list(frame) for frame in actual.stack]
        return (
            expected["class"] == actual.class_name
            and expected["message"] == actual.message
            and (not vector.has_stack_traces or is_same(expected["stackTrace"], traces, vector))
            and (not vector.has_stack_traces or is_same(expected["cause"], actual.cause, vector))
        )
    if isinstance(expected, dict) and not isinstance(actual, dict):
        if len(expected) == 1:
            ((name, value),) = expected.items()
            if name == DESCRIPTIONS[number_of(actual)].name:
                return is_same(value, actual, vector)
        if isinstance(actual, LocalTransactionId):
            return expected == actual._asdict() or expected == {
                "value": actual.value,
                "connectionId": actual.connection_id,
            }
        if isinstance(actual, XaTransactionId):
            return expected == {
                "formatId": actual.format_id,
                "globalTransactionId": actual.global_id.hex(),
                "branchQualifier": actual.branch.hex(),
            }
        return not differences(expected, actual, vector)
    if isinstance(expected, str) and actual is not None and not isinstance(actual, str):
        return expected in texts(actual)
    return bool(expected == actual)


def texts(value: Any) -> tuple[str, ...]:
    """The ways in which descriptions write a value."""
    if isinstance(value, ConnectionId | BrokerId):
        return (value.value,)
    if isinstance(value, MessageId):
        return (value.key or "",)
    if isinstance(value, bytes):
        ends = f"{value[:1].hex()}*{len(value)}"
        return (value.hex(), value.decode("latin-1"), ends)
    return (str(value),)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def content(message: WireMessage) -> bytes | None:
    if not message.compressed or message.content is None:
        return message.content
    if not isinstance(message, ActiveMQBytesMessage):
        return zlib.decompress(message.content)
    # The length first; and its whole buffer deflated, noise at the end included.
    (length,) = struct.unpack_from(">i", message.content)
    return zlib.decompress(message.content[4:])[:length]


def text(message: WireMessage) -> str | None:
    data = content(message)
    if data is None:
        return None
    (length,) = struct.unpack_from(">i", data)
    assert length == len(data) - 4
    return data[4:].decode("utf-8", "surrogatepass").encode("utf-16-be", "surrogatepass").decode("utf-16-be")


def properties(command: Command) -> dict[str, Any] | None:
    if isinstance(command, WireFormatInfo):
        return properties_of(command) or None
    assert isinstance(command, WireMessage)
    return None if command.marshalled_properties is None else decode_properties(command.marshalled_properties)


def map_entries(message: WireMessage) -> dict[str, Any]:
    data = content(message)
    assert data is not None
    marked = {bytes: lambda value: f"bytes:{value.hex()}", Char: lambda value: f"char:{value}"}
    return {key: marked.get(type(value), lambda it: it)(value) for key, value in decode_properties(data).items()}


_RENAMED = {"jmsType": "type", "transactionType": "type", "recievedByDFBridge": "received_by_df_bridge"}
_DERIVED = {
    "type": lambda command: type(command).__name__,
    "properties": properties,
    "text": text,
    "content": content,
    "map": map_entries,
    "items": lambda message: ITEMS if message.content == ITEMS_BYTES else message.content,
    "object": lambda message: OBJECT if (message.content or b"").startswith(b"\xac\xed\0\5") else message.content,
    "brokerSequenceId": lambda message: message.message_id.broker_sequence_id,
    "messageIdTextView": lambda message: message.message_id.text_view,
    "lastBrokerSequenceId": lambda ack: ack.last_message_id.broker_sequence_id,
}
ITEMS = [True, "byte:7", "short:-2", "char:Q", 5, "long:6", "float:0.5", "double:0.25", "s", None, "bytes:aabb"]
ITEMS_BYTES = bytes.fromhex(
    "0101 0207 04fffe 030051 0500000005 060000000000000006 083f000000 073fd0000000000000 09000173 00 0a00000002aabb"
)
OBJECT = "java.lang.Integer:5 (Java serialization stream)"
