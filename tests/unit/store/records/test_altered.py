"""A copy differs in what was asked for, and in nothing else; the bytes of its body are those that came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandemmq.store.records import altered as records_altered
from tandemmq.store.records import loose
from tandemmq.store.records.altered import PartMessage, altered, of_user
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.frames import OpenedMessage, open_message
from tandemmq.store.records.message import HEADER, BodyKind, Destination, DestinationKind, Message, PropertyValue
from tandemmq.store.records.openwire import decode_message, encode_message
from tandemmq.store.records.properties import Byte, Long, Short
from tests.support.tree import FRAMES_FILE

FRAMES = {name: bytes.fromhex(frame) for name, frame in json.loads(FRAMES_FILE.read_text()).items()}
MESSAGES = sorted(
    name for name in FRAMES if "Message" in name and "Ack" not in name and int(name.rpartition(" v")[2]) >= 10
)
QUEUE = Destination(DestinationKind.QUEUE, "TEST.Q")
DEAD = Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ.Queue.TEST.Q")
CHANGES: list[dict[str, Any]] = [
    {},
    {"destination": DEAD},
    {"original_destination": Destination(DestinationKind.TOPIC, "Ünï")},
    {"message_id": "ID:dead-1:2:3:4"},
    {"message_id": "ID:foreign:0:0:0"},
    {"broker_sequence": 1 << 40},
    {"timestamp": 1 << 42},
    {"type": "tÿpe", "timestamp": 0},
    {"persistent": False, "expiration": 1 << 41, "redelivery_counter": 7},
    {
        "destination": DEAD,
        "original_destination": QUEUE,
        "message_id": "ID:dead-1:2:3:4",
        "expiration": 0,
        "persistent": True,
        "redelivery_counter": 0,
        "properties_added": {"dlqDeliveryFailureCause": "naïve 😀", "originalExpiration": Long(1 << 50)},
    },
]


def fields_of(message: Message) -> dict[str, Any]:
    left_out = ("raw", "properties", "shared_body")
    found = {name: getattr(message, name) for name in (*HEADER, "body", "properties", "raw") if name not in left_out}
    return found | {"properties_added": shape(message.properties)}


def shape(properties: dict[str, PropertyValue] | None) -> dict[str, Any]:
    return {name: (type(value), value) for name, value in (properties or {}).items()}


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("name", MESSAGES)
def test_a_copy_differs_in_what_was_asked_for(name: str, changes: dict[str, Any]) -> None:
    message = open_message(FRAMES[name])
    before = fields_of(message)

    copy = altered(message, **changes)

    added = before["properties_added"] | shape(changes.get("properties_added"))
    assert fields_of(copy) == before | changes | {"properties_added": added}
    assert copy.raw is not None
    assert fields_of(decode_message(copy.raw)) == fields_of(copy), "its frame says the same"
    assert (message.raw, fields_of(message)) == (FRAMES[name], before), "the original stays"


@pytest.mark.parametrize("name", MESSAGES)
def test_a_copy_without_a_change_has_the_same_bytes(name: str) -> None:
    message = open_message(FRAMES[name])

    copy = altered(message)

    assert copy.raw is not None
    frame = FRAMES[name]
    assert copy.raw == frame[:5] + bytes(5) + frame[10:], "but for the producer's command id"


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_becomes_that_of_a_user_and_of_nobody_again(name: str) -> None:
    message = open_message(FRAMES[name])
    before = fields_of(message)

    named = of_user(message, "änn")

    assert fields_of(named) == before | {"user_id": "änn"}
    assert named.raw is not None
    assert fields_of(decode_message(named.raw)) == fields_of(named), "its frame says the same"
    assert (message.raw, fields_of(message)) == (FRAMES[name], before), "the original stays"
    nameless = of_user(named, None)
    assert fields_of(nameless) == before | {"user_id": None}
    if message.user_id is None:
        assert nameless.raw == altered(message).raw


@pytest.mark.parametrize("changes", CHANGES)
def test_a_copy_of_what_no_frame_was_made_for_is_the_same_copy(changes: dict[str, Any]) -> None:
    message = Message(QUEUE, "ID:a:1:1:1", "tëxt".encode(), BodyKind.TEXT, properties={"by": Byte(1), "s": Short(2)})
    message.broker_sequence = 5
    frame = encode_message(message)

    copy, opened_copy = altered(message, **changes), altered(open_message(frame), **changes)

    assert fields_of(copy) == fields_of(opened_copy)
    assert copy.raw is None
    # What no frame was made for arrived when it was sent.
    if changes.get("message_id") != "ID:foreign:0:0:0" and "timestamp" not in changes:
        assert encode_message(copy) == opened_copy.raw


@pytest.mark.parametrize("name", MESSAGES)
def test_a_copy_for_another_destination_shares_the_frame(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    message = open_message(FRAMES[name])
    part = Destination(DestinationKind.QUEUE, "other")
    own = altered(message, destination=part, original_destination=QUEUE)
    monkeypatch.setattr(records_altered, "SHARED_BYTES_MIN", 0)

    copy = altered(message, destination=part, original_destination=QUEUE)
    again = altered(copy, destination=DEAD)

    assert isinstance(copy, PartMessage)
    assert isinstance(again, PartMessage)
    assert copy.whole is again.whole is message
    assert copy.shared_body is again.shared_body is message.shared_body
    assert copy.raw == own.raw
    assert fields_of(copy) == fields_of(own)
    assert isinstance(own, OpenedMessage)
    assert copy.is_compressed == own.is_compressed
    if copy.is_compressed:
        assert (copy.inflated(1 << 20), copy.deflated) == (own.inflated(1 << 20), own.deflated)
    assert abs(copy.size - own.size) < 20 + len(QUEUE.name)
    letter = altered(copy, destination=DEAD, properties_added={"cause": "x"})
    assert fields_of(letter) == fields_of(altered(own, destination=DEAD, properties_added={"cause": "x"}))


def test_what_is_held_already_counts_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_altered, "SHARED_BYTES_MIN", 0)
    message = open_message(FRAMES[MESSAGES[0]])
    message.holders = 1
    assert altered(message, destination=DEAD).shared_body is message.shared_body is None


def test_a_property_of_the_same_name_is_replaced() -> None:
    first = altered(open_message(FRAMES[MESSAGES[0]]), properties_added={"cause": "one", "kept": Byte(3)})

    copy = altered(first, properties_added={"cause": "two"})

    assert shape(copy.properties) == shape(first.properties) | {"cause": (str, "two")}
    assert copy.raw is not None
    assert b"one" not in copy.raw


@pytest.mark.parametrize("is_opened", [True, False])
def test_properties_are_removed_and_others_stay(is_opened: bool) -> None:
    message = Message(QUEUE, "ID:a:1:1:1", b"body", properties={"gone": 1, "kept": Short(2), "too": "x"})
    if is_opened:
        message = open_message(encode_message(message))

    fewer = altered(message, properties_removed=("gone", "unknown"))
    other = altered(message, properties_added={"gone": "back", "new": Byte(1)}, properties_removed=("gone", "too"))
    none = altered(fewer, properties_removed=("kept", "too"))

    for copy, expected in (
        (fewer, {"kept": Short(2), "too": "x"}),
        (other, {"kept": Short(2), "gone": "back", "new": Byte(1)}),
        (none, {}),
    ):
        assert shape(copy.properties) == shape(decode_message(encode_message(copy)).properties) == shape(expected)
    assert none.properties is None
    if is_opened:
        assert altered(none, properties_removed=("kept",)).raw == none.raw


@pytest.mark.parametrize("name", MESSAGES)
def test_a_copy_becomes_an_original(name: str) -> None:
    message = altered(open_message(FRAMES[name]), original_destination=DEAD)

    copy = altered(message, is_original=True)

    assert copy.original_destination is None
    assert copy.raw is not None
    assert fields_of(decode_message(copy.raw)) == fields_of(message) | {"original_destination": None}


def test_properties_that_cannot_be_read_make_room() -> None:
    frame = bytearray(encode_message(Message(QUEUE, "ID:a:1:1:1", b"body", properties={"name": "value"})))
    frame[frame.index(b"\0\4name") + 6] = 99

    copy = altered(open_message(bytes(frame)), properties_added={"cause": "why"})

    assert (copy.properties, copy.body) == ({"cause": "why"}, b"body")


def test_a_body_that_cannot_be_read_is_copied() -> None:
    name = next(name for name in MESSAGES if name.startswith("ActiveMQTextMessage-compressed"))
    frame = bytearray(FRAMES[name])
    start = frame.index(b"\x78\x9c")
    frame[start + 8] ^= 0xFF
    content = bytes(frame[start : start + 12])

    copy = altered(open_message(bytes(frame)), destination=DEAD)

    assert copy.raw is not None
    assert content in copy.raw


def test_what_a_frame_has_no_room_for_is_refused() -> None:
    message = open_message(FRAMES[MESSAGES[0]])

    with pytest.raises(Unencodable):
        altered(message, expiration=1 << 63)
    with pytest.raises(Unencodable):
        altered(message, destination=Destination(DestinationKind.QUEUE, "x" * (loose.STRING_BYTES_MAX + 1)))
    with pytest.raises(Unencodable):
        altered(message, properties_added={"x": 1 << 64})
