"""A message that was read from a journal, sent again and understood by the broker's own STOMP is the same message."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.core.commands import Send
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.client.frames import connect_frame, send_frame, send_head
from tandemmq.journal.format import encode_batch
from tandemmq.pipeline.columns import COLUMNS, MESSAGES
from tandemmq.pipeline.rows import FAILFAST, rows
from tandemmq.pipeline.sending.sends import LEFT_OUT, ORIGINAL_ID, Unsendable, destination_of, sending_of
from tandemmq.pipeline.sending.slices import BEHIND_SECONDS_MAX, Pace
from tandemmq.pipeline.stores import journal_files
from tandemmq.store.records.commands import encode_add
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short, decode_properties, encode_properties
from tests.support.prove import SEED

QUEUE = Destination(DestinationKind.QUEUE, "orders")
NOW = 5


def row_of(directory: Path, message: Message) -> dict[str, Any]:
    """The message's row, with the times that a plan has."""
    directory.mkdir()
    content, _ = encode_batch([encode_add(message, encode_message(message))])
    (directory / "db-1.log").write_bytes(content.ljust(64 << 10, b"\0"))
    [file] = journal_files([str(directory)], is_tail_wanted=True)
    [row] = rows(file, MESSAGES, FAILFAST)
    named = dict(zip([name for name, _ in COLUMNS[MESSAGES]], row, strict=True))
    for name in ("sent", "expires"):
        named[f"{name}_ms"] = None if named[name] is None else named[name] // 1000
    return named


def sent_again(directory: Path, message: Message, **options: Any) -> Message:
    """Return the message id under which a broker recognises the repetition."""
    sending = sending_of(row_of(directory, message), "replay-1-0:7", **options)
    session = StompSession("ID:b", lambda: NOW, secret=lambda: "secret")
    [connect] = session.receive(connect_frame({"accept-version": "1.2", "host": "/"}))
    session.connected(connect, "s")  # type: ignore[arg-type]
    frame = send_frame(
        send_head(sending.destination, sending.headers), b"receipt:1\n", sending.body, is_bytes=sending.is_bytes
    )
    [command] = session.receive(frame)
    assert isinstance(command, Send)
    assert command.message.message_id == "ID:replay-1-0:1:1:7"
    return command.message


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (BodyKind.TEXT, "zwölf".encode()),
        (BodyKind.TEXT, b""),
        (BodyKind.TEXT, b"a\0b"),
        (BodyKind.BYTES, b"reads as a text"),
        (BodyKind.BYTES, b""),
        (BodyKind.BYTES, bytes(range(256))),
    ],
)
def test_a_body_is_the_same_to_the_byte_and_of_the_same_kind(tmp_path: Path, kind: BodyKind, body: bytes) -> None:
    again = sent_again(tmp_path / "a", Message(QUEUE, "ID:p:1:1:1", body, kind, persistent=True))
    assert (again.body, again.body_kind) == (body, kind)


def test_headers_of_a_sent_message_are_unchanged(tmp_path: Path) -> None:
    message = Message(
        Destination(DestinationKind.TOPIC, "news:of\\today"),
        "ID:p:1:1:1",
        b"x",
        BodyKind.TEXT,
        persistent=True,
        priority=7,
        expiration=1_900_000_000_000,
        timestamp=1_700_000_000_001,
        properties={"colour": "a:b\\c\nd", "count": 3},
        correlation_id="c:1",
        reply_to=Destination(DestinationKind.TEMP_QUEUE, "ID:x:1"),
        type="order",
        group_id="g",
        group_sequence=-1,
    )
    again = sent_again(tmp_path / "a", message)
    same = "destination persistent priority expiration timestamp correlation_id reply_to type group_id group_sequence"
    for name in same.split():
        assert getattr(again, name) == getattr(message, name), name
    assert again.properties == {"colour": "a:b\\c\nd", "count": "3", ORIGINAL_ID: "ID:p:1:1:1"}


def test_it_may_go_elsewhere_and_need_not_end(tmp_path: Path) -> None:
    message = Message(
        QUEUE, "ID:p:1:1:1", b"x", BodyKind.TEXT, expiration=1, properties={ORIGINAL_ID: "ID:first:1:1:1"}
    )
    again = sent_again(tmp_path / "a", message, to="/topic/late", is_unending=True)
    assert again.destination == Destination(DestinationKind.TOPIC, "late")
    assert (again.expiration, again.persistent) == (0, False)
    assert again.properties == {ORIGINAL_ID: "ID:first:1:1:1"}


def test_a_property_is_not_taken_for_a_header(tmp_path: Path) -> None:
    properties: dict[str, Any] = dict.fromkeys(sorted(LEFT_OUT), "1")
    again = sent_again(
        tmp_path / "a", Message(QUEUE, "ID:p:1:1:1", b"x", BodyKind.BYTES, properties={**properties, "a": "b"})
    )
    assert again.properties == {"a": "b", ORIGINAL_ID: "ID:p:1:1:1"}
    assert (again.destination, again.body_kind, again.priority) == (QUEUE, BodyKind.BYTES, 4)


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"a": 1, "b": Long(2), "c": Short(3), "d": Byte(4), "e": 1.5, "f": Float(0.1), "g": True, "h": Char("x")},
        {"text": "zwölf", "digits": "12", "none": None, "raw": b"\0\xff", "list": [1, 2], "in": {"deeper": "x"}},
        {"order": [1, "two", 3]},
        {"control": "a\0b"},
    ],
)
def test_a_map_is_the_same_type_by_type(tmp_path: Path, entries: dict[str, Any]) -> None:
    message = Message(QUEUE, "ID:p:1:1:1", encode_properties(entries), BodyKind.MAP)
    again = sent_again(tmp_path / "a", message)
    assert again.body_kind is BodyKind.MAP
    assert encode_properties(decode_properties(again.body)) == encode_properties(entries)


@pytest.mark.parametrize(
    "message",
    [
        Message(QUEUE, "ID:p:1:1:1", b"\0\1x", BodyKind.OBJECT),
        Message(QUEUE, "ID:p:1:1:1", b"", BodyKind.STREAM),
        Message(Destination(DestinationKind.TEMP_QUEUE, "ID:x:1"), "ID:p:1:1:1", b"x", BodyKind.TEXT),
        Message(QUEUE, "ID:p:1:1:1", encode_properties({"both": ["a\0b", 1, "c"]}), BodyKind.MAP),
    ],
)
def test_a_message_that_stomp_cannot_express_is_not_sent(tmp_path: Path, message: Message) -> None:
    with pytest.raises(Unsendable):
        sent_again(tmp_path / "a", message)


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("orders", DestinationKind.QUEUE, "orders"),
        ("queue://a/b", DestinationKind.QUEUE, "a/b"),
        ("/topic/news", DestinationKind.TOPIC, "news"),
        ("topic://news", DestinationKind.TOPIC, "news"),
    ],
)
def test_destinations_are_named_as_operators_name_them(text: str, kind: DestinationKind, name: str) -> None:
    assert destination_of(text) == Destination(kind, name)


@pytest.mark.parametrize("text", ["", "queue://", "/temp-queue/a", "ftp://a", "/orders"])
def test_a_message_without_a_destination_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        destination_of(text)


# ---- A rate is a limit, even if a sleep takes too long


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_messages_go_one_by_one_at_the_rate() -> None:
    clock = Clock()
    pace = Pace(50, clock)
    went = []
    for _ in range(200):
        clock.now += pace.take()
        went.append(clock.now)
    assert went[-1] - went[0] >= 199 / 50 - 1e-6


def test_no_stretch_of_time_has_more_than_the_rate() -> None:
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    clock = Clock()
    pace = Pace(100, clock)
    went = []
    for _ in range(2000):
        clock.now += pace.take() + (chance.random() if chance.random() < 0.02 else 0.0)
        went.append(clock.now)
    for start in range(len(went)):
        for stop in (start + 1, start + 10, start + 100):
            if stop < len(went):
                assert stop - start <= 100 * (went[stop] - went[start] + BEHIND_SECONDS_MAX) + 1 + 1e-6


def test_without_a_rate_nobody_waits() -> None:
    pace = Pace(None, Clock())
    assert [pace.take() for _ in range(1000)] == [0.0] * 1000
