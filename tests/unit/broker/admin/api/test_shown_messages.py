"""One message in the API: its JSON is bounded whatever the client sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.admin.api.shown_messages import (
    BODY_BYTES_MAX,
    DECODED_BYTES_MAX,
    LISTED_BYTES_MAX,
    PREVIEW_CHARACTERS_MAX,
    PROPERTIES_BYTES_MAX,
    TEXT_CHARACTERS_MAX,
    in_list,
    whole,
)
from tandemmq.broker.engine.dead_letters import CAUSE_PROPERTY
from tandemmq.broker.protocols.encoded import NATIVE
from tandemmq.store.records.frames import frame_of, open_message
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tests.support.broker.amqp_wire import value

QUEUE = Destination(DestinationKind.QUEUE, "orders")
ESCAPES = "\x01" * TEXT_CHARACTERS_MAX
#: As JSON each of its characters takes six bytes.
WORST = 6
OTHER_TEXTS_BYTES = 8 * WORST * TEXT_CHARACTERS_MAX


def message(body: bytes = b"x", kind: BodyKind = BodyKind.TEXT, **more: Any) -> Message:
    return Message(QUEUE, "ID:a:1:1:1", body, kind, **more)


MESSAGES: dict[str, Callable[[], Message]] = {
    "900 headers": lambda: message(properties={f"h{number}": ESCAPES for number in range(900)}),
    "very many headers": lambda: message(properties={f"h{number}": number for number in range(20_000)}),
    "long texts": lambda: message(correlation_id=ESCAPES * 9, type=ESCAPES * 9, group_id=ESCAPES * 9),
    "a long text": lambda: message(b"\x01" * (3 * BODY_BYTES_MAX)),
    "a long text of another script": lambda: message("日本語".encode() * BODY_BYTES_MAX),
    "long bytes": lambda: message(b"\xff" * (3 * BODY_BYTES_MAX), BodyKind.BYTES),
}


@pytest.mark.parametrize("is_opened", [False, True])
def test_an_encoded_message_of_amqp_is_shown_decoded(is_opened: bool) -> None:
    made = message(value("tëxt"), BodyKind.BYTES, properties={NATIVE: True, "a": "b"})
    shown = open_message(frame_of(made)) if is_opened else made
    read = whole(shown)
    assert (read["body"], read["body_kind"], read["size"]) == ("tëxt", "text", shown.size)
    assert read["properties"] == {"a": "b", "JMS_AMQP_ORIGINAL_ENCODING": 5}
    assert in_list(shown, 1)["preview"] == "tëxt"
    assert whole(message(value(5), BodyKind.BYTES, properties={NATIVE: True}))["body_kind"] == "bytes"


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("name", MESSAGES)
def test_the_json_of_any_message_is_bounded(name: str, is_opened: bool) -> None:
    made = MESSAGES[name]()
    shown = open_message(frame_of(made)) if is_opened else made
    row = in_list(shown, 1)
    assert len(json.dumps(row)) <= LISTED_BYTES_MAX + WORST * PREVIEW_CHARACTERS_MAX + OTHER_TEXTS_BYTES + 1000
    read = whole(shown)
    assert len(json.dumps(read)) <= PROPERTIES_BYTES_MAX + WORST * BODY_BYTES_MAX + OTHER_TEXTS_BYTES + 1000
    assert read["is_cut"] == (len(made.body) > BODY_BYTES_MAX)
    if read["body"] is not None:
        assert made.body.decode().startswith(read["body"])
        assert row["preview"] == read["body"][:PREVIEW_CHARACTERS_MAX]


@pytest.mark.parametrize(
    ("properties", "left_out"),
    [
        ({"colour": "red"}, 0),
        ({f"h{number}": "x" * 1000 for number in range(30)}, 14),
        ({f"h{number}": "x" * 1000 for number in range(DECODED_BYTES_MAX // 1000 + 1)}, None),
    ],
)
def test_omitted_properties_are_counted(properties: dict[str, Any], left_out: int | None) -> None:
    row = in_list(open_message(frame_of(message(properties=properties))), 1)
    assert row["properties_left_out"] == left_out
    assert len(row["properties"]) == (0 if left_out is None else len(properties) - left_out)


def test_the_cause_of_a_dead_letter_is_shown_before_other_properties() -> None:
    row = in_list(message(properties={**{f"h{number}": "x" * 1000 for number in range(30)}, CAUSE_PROPERTY: "why"}), 1)
    assert (row["cause"], row["properties"][CAUSE_PROPERTY]) == ("why", "why")


def test_the_beginning_of_a_text_ends_between_characters() -> None:
    opened = open_message(frame_of(message("aé日".encode())))
    assert [opened.beginning(length) for length in (1, 2, 3, 5, 6)] == [  # type: ignore[attr-defined]
        (b"a", True),
        (b"a", True),
        ("aé".encode(), True),
        ("aé".encode(), True),
        ("aé日".encode(), False),
    ]
