"""A copy differs only in the requested fields. The bytes of its body are those of the original."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.admin.api.message_work import retried
from tandemmq.broker.core.policies import DestinationPolicy
from tandemmq.broker.core.scheduling.schedule import CRON, JOB_ID, Schedule
from tandemmq.broker.core.scheduling.scheduled_message import Due, again, occurrence, pending, run_of, shown
from tandemmq.broker.engine.dead_letters import CAUSE_PROPERTY, dead_letter
from tandemmq.store.records import altered as records_altered
from tandemmq.store.records import loose
from tandemmq.store.records.altered import (
    EXPIRATION_PROPERTY,
    ORIGINAL_ID_PROPERTY,
    PartMessage,
    altered,
    of_user,
    with_own_id,
)
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.fields import read_fields
from tandemmq.store.records.frames import OpenedMessage, open_message
from tandemmq.store.records.message import (
    HEADER,
    TIME_MAX,
    BodyKind,
    Destination,
    DestinationKind,
    Message,
    PropertyValue,
    unread,
)
from tandemmq.store.records.openwire import decode_message, encode_message
from tandemmq.store.records.properties import Byte, Long, Short, encode_properties
from tandemmq.store.records.stored import encode_stored
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
    own_id = {} if copy.message_id == message.message_id else {"text_view": None}
    assert fields_of(copy) == before | changes | own_id | {"properties_added": added}
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
    elif copy.body_kind is not BodyKind.BLOB:
        assert copy.beginning(3) == own.beginning(3)
    assert (copy.properties_bytes, copy.marshalled_properties) == (own.properties_bytes, own.marshalled_properties)
    assert abs(copy.size - own.size) < 20 + len(QUEUE.name)
    letter = altered(copy, destination=DEAD, properties_added={"cause": "x"})
    assert fields_of(letter) == fields_of(altered(own, destination=DEAD, properties_added={"cause": "x"}))


def test_a_copy_of_a_message_counted_before_shares_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_value_that_does_not_fit_into_a_frame_is_refused() -> None:
    message = open_message(FRAMES[MESSAGES[0]])

    with pytest.raises(Unencodable):
        altered(message, expiration=1 << 63)
    with pytest.raises(Unencodable):
        altered(message, destination=Destination(DestinationKind.QUEUE, "x" * (loose.STRING_BYTES_MAX + 1)))
    with pytest.raises(Unencodable):
        altered(message, properties_added={"x": 1 << 64})


# What a frame may say though Java would take more bytes for it: plain UTF-8 beyond U+FFFF, and NUL as one byte.
UNITS = (b"a", b"\0", b"\xc3\xa4", b"\xf0\x9f\x98\x80", b"\xed\xa0\xbd")
RAW_TEXTS = st.builds(
    lambda unit, part, head: (head + unit * (loose.STRING_BYTES_MAX * part // (16 * len(unit))))[
        : loose.STRING_BYTES_MAX // len(unit) * len(unit)
    ],
    st.sampled_from(UNITS),
    st.sampled_from((0, 1, 16)),
    st.sampled_from((b"", b"x" * 12)),
)
OURS = (CAUSE_PROPERTY, EXPIRATION_PROPERTY, ORIGINAL_ID_PROPERTY, JOB_ID, CRON, "tandemmqScheduledTime")
VALUES = st.sampled_from(
    (None, True, Byte(-1), Short(7), 1 << 40, Long(3), 0.5, "text", "\U0001f600" * 8191, b"\0", [1, {"in": ["x"]}])
)
TIMES = st.sampled_from((0, 1, 1_700_000_000_000, TIME_MAX, -TIME_MAX - 1))
OTHER = Destination(DestinationKind.QUEUE, "other")
DUE = Due(1_700_000_000_000, 3, "job", "user")
NOW = 1_700_000_000_000
NEW_ID = "ID:broker-1:2:3:4"
AGES = DestinationPolicy(ttl_ceiling=1 << 60, zero_expiration_override=1 << 60)


def scheduled(change: Callable[[Message], Message]) -> Callable[[Message], Message]:
    return lambda message: change(pending(message, DUE))


WAYS: dict[str, Callable[[Message], Message]] = {
    "for another destination": lambda message: altered(
        message, destination=OTHER, original_destination=message.destination
    ),
    "kept of a composite": lambda message: altered(message, original_destination=message.destination),
    "as an original": lambda message: altered(message, is_original=True),
    "counted": lambda message: altered(message, redelivery_counter=2),
    "aged": lambda message: altered(message, expiration=AGES.expiration(message.timestamp, message.expiration)),
    "of a user": lambda message: of_user(message, "user"),
    "with its own id": lambda message: with_own_id(message, NEW_ID, destination=OTHER),
    "dead": lambda message: dead_letter(message, DEAD, "why", NEW_ID, NOW),
    "retried": lambda message: retried(dead_letter(message, DEAD, "why")),
    "retried as it is": retried,
    "pending": scheduled(lambda waiting: waiting),
    "pending again": scheduled(lambda waiting: again(waiting, DUE, NEW_ID)),
    "in a run": scheduled(lambda waiting: run_of(waiting, DUE, NEW_ID)),
    "due": scheduled(lambda waiting: occurrence(waiting, Schedule(repeat=1), NOW, NEW_ID)),
    "shown": scheduled(lambda waiting: shown(waiting, OTHER, NEW_ID)),
}


def raw_string(text: bytes) -> bytes:
    return b"\1" + len(text).to_bytes(2, "big") + text


def raw_destination(name: bytes) -> bytes:
    return bytes((1, loose.DESTINATION_BASE)) + raw_string(name)


@st.composite
def strange_frames(draw: st.DrawFn) -> bytes:
    """Frames that are read, with names that are as long as may be, and longer if Java wrote them."""
    message = Message(
        QUEUE,
        draw(st.sampled_from(("ID:a:1:1:1", "foreign:0:0:0"))),
        draw(st.sampled_from((b"", b"body", bytes(5_000)))),
        draw(st.sampled_from((BodyKind.BYTES, BodyKind.MAP))),
        persistent=draw(st.booleans()),
        priority=draw(st.sampled_from((-128, 4, 127))),
        expiration=draw(TIMES),
        timestamp=draw(TIMES),
        group_id="group",
        correlation_id="correlation",
        redelivery_counter=draw(st.sampled_from((0, (1 << 31) - 1))),
    )
    frame = encode_message(message)
    marks, _, _ = read_fields(unread(), frame, 11)
    entries = draw(
        st.lists(st.tuples(RAW_TEXTS | st.sampled_from([name.encode() for name in OURS]), VALUES), max_size=5)
    )
    properties = len(entries).to_bytes(4, "big")
    for name, value in entries:
        properties += raw_string(name)[1:] + encode_properties({"": value})[6:]
    fields = b"".join(
        (
            frame[4 : marks[0]],
            raw_destination(draw(RAW_TEXTS)),
            frame[marks[1] : marks[2]],
            draw(st.one_of(st.just(loose.NULL), RAW_TEXTS.map(raw_destination))),
            frame[marks[3] : marks[5]],
            raw_string(draw(RAW_TEXTS)),
            bytes(4),
            raw_string(draw(RAW_TEXTS)),
            frame[marks[6] : marks[8]],
            loose.blob(properties),
            frame[marks[9] :],
        )
    )
    return len(fields).to_bytes(4, "big") + fields


@given(strange_frames(), st.sampled_from(sorted(WAYS)))
def test_each_copy_of_any_frame_can_be_made_and_stored(frame: bytes, way: str) -> None:
    message = open_message(frame)
    before = fields_of(message)

    copy = WAYS[way](message)

    assert encode_stored(copy)
    assert copy.raw is not None
    assert fields_of(decode_message(copy.raw)) == fields_of(copy), "its frame says the same"
    for name in ("group_id", "correlation_id", "reply_to", "priority", "body", "body_kind"):
        assert getattr(copy, name) == before[name]
    kept, said = before["properties_added"], shape(copy.properties)
    assert not [name for name in kept if name not in said and name not in (*OURS, "originalDeliveryMode")]
    assert not [name for name in kept if name in said and name not in OURS and said[name] != kept[name]]


def test_a_name_that_java_has_no_room_for_keeps_its_bytes() -> None:
    name = b"\xf0\x9f\x98\x80" * (loose.STRING_BYTES_MAX // 4)
    properties = b"\0\0\0\2" + len(name).to_bytes(2, "big") + name + b"\1\1"
    properties += encode_properties({CAUSE_PROPERTY: "its client's"})[4:]
    frame = encode_message(Message(QUEUE, "ID:a:1:1:1", b"body", properties={"x": 1}))
    frame = frame.replace(loose.blob(encode_properties({"x": 1})), loose.blob(properties))
    message = open_message((len(frame) - 4).to_bytes(4, "big") + frame[4:])

    letter = dead_letter(message, DEAD, "why")

    assert letter.properties is not None
    assert (letter.properties.pop(name.decode()), letter.properties[CAUSE_PROPERTY]) == (True, "why")
    assert letter.raw is not None
    assert name in letter.raw


def test_a_name_of_a_destination_keeps_its_bytes_wherever_it_moves() -> None:
    name = b"\xf0\x9f\x98\x80" * (loose.STRING_BYTES_MAX // 4)
    frame = encode_message(Message(QUEUE, "ID:a:1:1:1", b"body"))
    frame = frame.replace(loose.destination(QUEUE), raw_destination(name))
    message = open_message((len(frame) - 4).to_bytes(4, "big") + frame[4:])

    copy = altered(message, destination=OTHER, original_destination=message.destination)
    back = retried(copy)

    assert (copy.original_destination, back.destination) == (message.destination, message.destination)
    assert copy.raw is not None
    assert back.raw is not None
    assert name in copy.raw
    assert name in back.raw


def test_no_time_is_beyond_what_a_frame_has_room_for() -> None:
    young = Message(QUEUE, "ID:a:1:1:1", b"body", timestamp=TIME_MAX)
    old = Message(QUEUE, "ID:a:1:1:1", b"body", timestamp=1, expiration=TIME_MAX)
    waiting = pending(open_message(encode_message(old)), DUE)

    assert WAYS["aged"](open_message(encode_message(young))).expiration == TIME_MAX
    assert occurrence(waiting, None, NOW, NEW_ID).expiration == TIME_MAX
