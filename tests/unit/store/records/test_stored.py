"""The record that stores a message is the same, whether it is made in one piece or of its parts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.store.records import loose, stored
from tandemmq.store.records.commands import AddMessage, decode, destination_field, encode_add, encode_remove
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message, PropertyValue
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import Short, encode_properties
from tandemmq.store.records.protobuf import varint
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId

QUEUES = [Destination(DestinationKind.QUEUE, "a"), Destination(DestinationKind.TOPIC, "prices.ü")]
IDS = [
    "ID:x-1-1:-1:1:1",
    "ID:x-1-1:-1:1:2",
    "ID:x-1-1:-1:1:0",
    f"ID:x-1-1:-1:1:{10**18 - 1}",  # the longest number that is read in C
    f"ID:x-1-1:-1:1:{10**18}",
    "ID:x-1-1:-1:1:9223372036854775807",
    "ID:x-1-1:-1:1:",
    "ID:é:1:1:1",
    "ID:y:1:1:007",
    "foreign",
    "a:b:c:d",
    ":1",
    "1",
    "",
]
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    rare: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.sampled_from([{}, {"n": 5}, {"n": True}, {"n": Short(5)}, {"n": "ü", "b": b"x" * 9}]),
                "correlation_id": st.just("c"),
                "reply_to": st.just(QUEUES[0]),
                "type": st.just("t"),
                "group_id": st.just("g"),
                "group_sequence": st.integers(-1, 3),
                "user_id": st.just("u"),
                "original_destination": st.just(QUEUES[1]),
                "redelivery_counter": st.integers(0, 3),
            },
        )
        if draw(st.booleans())
        else st.just({})
    )
    kind = draw(st.sampled_from([BodyKind.TEXT, BodyKind.BYTES, BodyKind.MAP, BodyKind.BLOB, BodyKind.NONE]))
    body = draw(st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode), st.just(b"x" * 3000)))
    message = Message(
        draw(st.sampled_from(QUEUES)),
        draw(st.sampled_from(IDS)),
        body,
        kind,
        persistent=draw(st.booleans()),
        priority=draw(st.integers(-128, 127)),
        expiration=draw(LONGS),
        timestamp=draw(LONGS),
        **rare,
    )
    message.broker_sequence = draw(st.sampled_from([0, 5, (1 << 63) - 1]))
    message.text_view = draw(st.sampled_from([None, None, "", "ID:client", "ü\0"]))
    return message


@given(messages())
def test_it_is_what_its_parts_make(message: Message) -> None:
    for _ in range(2):  # what repeats is known by the second
        assert encode_stored(message) == encode_add(message, encode_message(message))


@pytest.mark.parametrize(
    "change", [{"priority": 128}, {"priority": -129}, {"expiration": 1 << 63}, {"timestamp": -(1 << 63) - 1}], ids=str
)
def test_a_number_that_has_no_room_is_named(change: dict[str, int]) -> None:
    for _ in range(2):
        with pytest.raises(Unencodable, match=r"ID:x-1-1:-1:1:1 is out of range|message ID:x-1-1:-1:1:1"):
            encode_stored(Message(QUEUES[0], IDS[0], b"x", **{"timestamp": 1, **change}))


@pytest.mark.parametrize("text", [None, "ID:client"])
@pytest.mark.parametrize("transaction", [None, LocalTransactionId("c-1", 7), XaTransactionId(257, b"\1\2\3", b"\xff")])
def test_the_usual_message_is_made_in_one_piece(transaction: TransactionId | None, text: str | None) -> None:
    properties: dict[str, PropertyValue] = {"ActiveMQ.MQTT.QoS": 1}
    message = Message(QUEUES[0], IDS[0], b"text", BodyKind.TEXT, persistent=True, timestamp=1, properties=properties)
    message.text_view = text
    encode_stored(message)
    made = stored._encode_plain(message, transaction)
    assert made == encode_add(message, encode_message(message), transaction)
    command = decode(made)
    assert isinstance(command, AddMessage)
    assert command.message == encode_message(message)
    assert stored._encode_plain(Message(QUEUES[0], IDS[0], b"text", type="t"), None) is None
    assert stored._encode_plain(Message(QUEUES[0], IDS[0], "ü".encode(), BodyKind.TEXT), None) is None
    framed = Message(QUEUES[0], IDS[0], b"text", raw=encode_message(message))
    assert encode_stored(framed) == encode_add(framed, encode_message(message))


@pytest.mark.parametrize("message_id", IDS)
def test_a_removal_is_the_same_for_all_ids(message_id: str) -> None:
    loose.split_key(message_id)  # from now on its producer is known
    key = loose.producer_key(message_id).encode()
    fields = destination_field(QUEUES[0]) + b"\x1a" + varint(len(key)) + key
    assert encode_remove(QUEUES[0], message_id) == b"\2" + varint(len(fields)) + fields


def test_encoded_properties_that_are_known_are_used() -> None:
    properties: dict[str, PropertyValue] = {"n": 5}
    message = Message(QUEUES[0], IDS[0], b"x", properties=properties)
    expected = encode_stored(message)
    message.marshalled = encode_properties(properties)
    assert encode_stored(message) == expected
    message.properties = {"n": 6}
    assert encode_stored(message) != expected
