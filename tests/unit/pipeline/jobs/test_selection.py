"""Messages that a replay sends, their order, and the reasons why others are not sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tandemmq.pipeline.jobs.selection import selection
from tandemmq.pipeline.sending.request import UNACKNOWLEDGED, ReplayRequest

# Tests that compute with Spark have mark.service.

NOW_MS = 1_700_000_100_000


def at(second: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + second, UTC)


def stored(number: int, offset: int, **others: Any) -> dict[str, Any]:
    """The message ``number``, taken in second ``number``, in the queue orders of the store a."""
    return {
        "file": 1,
        "offset": offset,
        "command": "ADD_MESSAGE",
        "destination_type": "queue",
        "destination": "orders",
        "message_id": f"ID:p:{number}",
        "broker_in": at(number),
        "body_kind": "text",
        "body": b"x",
        **others,
    }


def ended(command: str, transaction: str, offset: int, **others: Any) -> dict[str, Any]:
    return {"file": 1, "offset": offset, "command": command, "transaction": transaction, **others}


def chosen(found: Any) -> list[tuple[str, int, int]]:
    """Return the sent messages in order: message, file and offset."""
    rows = [row for row in found.collect() if row.fate == "send"]
    rows.sort(key=lambda row: (row.destination, row.number))
    return [(row.message_id.removeprefix("ID:p:"), row.file, row.offset) for row in rows]


def fates(found: Any) -> dict[str, str]:
    return {row.message_id.removeprefix("ID:p:"): row.fate for row in found.collect()}


def test_each_message_is_sent_once_as_its_newest_version_has_it(frame: Callable[..., Any]) -> None:
    messages = frame(
        "messages",
        stored(1, 100),
        stored(2, 200),
        stored(1, 50, file=3, command="COPY"),
        stored(3, 300),
        stored(3, 350, command="UPDATE_MESSAGE"),
        stored(1, 400, destination="audit"),
        stored(1, 100, store="b"),
    )
    found = selection(messages, frame("records"), frame("acks"), ReplayRequest(), NOW_MS)
    assert chosen(found) == [("1", 1, 400), ("1", 3, 50), ("1", 1, 100), ("2", 1, 200), ("3", 1, 350)]


def test_the_order_is_that_of_the_journal_whatever_the_clock_did(frame: Callable[..., Any]) -> None:
    messages = frame(
        "messages",
        stored(5, 100),
        stored(2, 200),  # of a master whose clock was behind
        stored(7, 300),
        stored(6, 10, file=4, command="COPY"),  # its add went with its file
        stored(1, 20, file=4, command="COPY"),
    )
    found = selection(messages, frame("records"), frame("acks"), ReplayRequest(), NOW_MS)
    assert [number for number, _, _ in chosen(found)] == ["1", "5", "2", "6", "7"]
    assert [row.number for row in found.orderBy("number").collect()] == [1, 2, 3, 4, 5]


def test_a_message_of_a_transaction_is_there_when_that_was_committed(frame: Callable[..., Any]) -> None:
    messages = frame(
        "messages",
        stored(1, 100, transaction="XID:1"),
        stored(2, 110, transaction="XID:2"),
        stored(3, 120, transaction="XID:3"),
        stored(4, 130),
        stored(5, 500, transaction="XID:2"),  # the id comes again
        stored(6, 50, file=2, transaction="XID:4", command="UPDATE_MESSAGE"),
    )
    records = frame(
        "records",
        ended("PREPARE", "XID:1", 140),
        ended("COMMIT", "XID:1", 200),
        ended("ROLLBACK", "XID:2", 300),
        ended("COMMIT", "XID:2", 600),
        ended("COMMIT", "XID:3", 700, store="b"),
    )
    found = selection(messages, records, frame("acks"), ReplayRequest(), NOW_MS)
    assert chosen(found) == [("4", 1, 130), ("1", 1, 100), ("5", 1, 500), ("6", 2, 50)]
    assert fates(found) | {"2": "rolled_back", "3": "in_doubt"} == fates(found)
    assert fates(selection(messages, None, None, ReplayRequest(), NOW_MS))["1"] == "in_doubt", "Parquet has no outcomes"


def test_why_a_message_is_left(frame: Callable[..., Any]) -> None:
    messages = frame(
        "messages",
        stored(1, 100, expires=at(99)),
        stored(2, 200, expires=at(101)),
        stored(3, 300, body_kind="object"),
        stored(4, 400, body_kind=None, body=None),
        stored(5, 500, destination_type="temp-queue"),
        stored(6, 600, destination="ActiveMQ.Scheduler.Pending"),
        stored(7, 700, body=None),
        stored(8, 800, destination="ActiveMQ.MQTT.Session.c"),
    )
    expected = {
        "1": "expired",
        "2": "send",
        "3": "unsendable",
        "4": "unreadable",
        "5": "unsendable",
        "6": "scheduled",
        "7": "without_body",
        "8": "private",
    }
    assert fates(selection(messages, frame("records"), frame("acks"), ReplayRequest(), NOW_MS)) == expected
    kept = selection(messages, frame("records"), frame("acks"), ReplayRequest(is_expired_sent=True), NOW_MS)
    assert fates(kept) == {**expected, "1": "send"}


def test_only_the_chosen_messages_are_examined(frame: Callable[..., Any]) -> None:
    messages = frame(
        "messages",
        *(stored(number, 100 * number, type="a" if number % 2 else "b") for number in range(1, 9)),
        stored(3, 900, destination_type="topic", destination="news", type="a"),
        stored(3, 950, destination="news", type="a"),
    )
    request = ReplayRequest(("orders", "topic://news"), at(2), at(6), "type = 'a'")
    found = selection(messages, frame("records"), frame("acks"), request, NOW_MS)
    assert chosen(found) == [("3", 1, 900), ("3", 1, 300), ("5", 1, 500)]
    assert set(fates(found)) == {"3", "5"}


def test_acknowledged_messages_are_omitted_if_only_the_rest_is_requested(frame: Callable[..., Any]) -> None:
    topic = {"destination_type": "topic", "destination": "news"}
    messages = frame(
        "messages",
        stored(1, 100),
        stored(2, 110),
        stored(3, 120),
        stored(4, 130),
        stored(2, 900),  # sent back to the queue that it was taken from
        stored(5, 140, destination="gone"),
        stored(6, 60, **topic),
        stored(7, 150, **topic),
        stored(8, 160, **topic),
    )

    def removed(number: int, offset: int, **others: Any) -> dict[str, Any]:
        place = {"file": 1, "offset": offset, "destination_type": "queue", "destination": "orders"}
        return {**place, "message_id": f"ID:p:{number}", **others}

    acks = frame(
        "acks",
        removed(1, 200),
        removed(2, 210),
        removed(3, 220, transaction="XID:1"),
        removed(4, 230, transaction="XID:2"),
        removed(7, 240, subscription="c:one", **topic),
        removed(8, 250, subscription="c:one", **topic),
        removed(8, 260, subscription="c:two", **topic),
    )
    subscribed = {"command": "SUBSCRIPTION", **topic}
    records = frame(
        "records",
        ended("COMMIT", "XID:1", 300),
        ended("ROLLBACK", "XID:2", 310),
        {"file": 1, "offset": 400, "command": "REMOVE_DESTINATION", "destination_type": "queue", "destination": "gone"},
        {"file": 1, "offset": 70, "subscription": "c:one", **subscribed},
        {"file": 1, "offset": 80, "subscription": "c:two", **subscribed},
        {"file": 1, "offset": 90, "subscription": "c:gone", **subscribed},
        {"file": 1, "offset": 170, "subscription": "c:late", **subscribed},
        {"file": 1, "offset": 180, "subscription": "c:gone", **subscribed, "command": "UNSUBSCRIPTION"},
    )
    found = selection(messages, records, acks, ReplayRequest(only=UNACKNOWLEDGED), NOW_MS)
    assert {number for number, fate in fates(found).items() if fate == "send"} == {"2", "4", "7"}
    assert {number for number, fate in fates(found).items() if fate == "acknowledged"} == {"1", "3", "5", "6", "8"}
    with pytest.raises(ValueError, match="journals"):
        selection(messages, None, None, ReplayRequest(only=UNACKNOWLEDGED), NOW_MS)


def test_a_subscription_created_again_has_no_earlier_messages(frame: Callable[..., Any]) -> None:
    """One subscription was deleted and made again; the topic of the other one was removed."""
    news, gone = ({"destination_type": "topic", "destination": name} for name in ("news", "gone"))
    messages = frame(
        "messages", stored(1, 200, **news), stored(2, 500, **news), stored(3, 200, **gone), stored(4, 500, **gone)
    )
    declared = [
        {"file": 1, "offset": offset, "command": command, "subscription": name, **topic}
        for topic, offset, command, name in (
            (news, 100, "SUBSCRIPTION", "c:one"),
            (news, 300, "UNSUBSCRIPTION", "c:one"),
            (news, 400, "SUBSCRIPTION", "c:one"),
            (gone, 100, "SUBSCRIPTION", "c:one"),
            (gone, 300, "REMOVE_DESTINATION", None),
            (gone, 400, "SUBSCRIPTION", "c:one"),
        )
    ]
    found = selection(messages, frame("records", *declared), frame("acks"), ReplayRequest(only=UNACKNOWLEDGED), NOW_MS)
    assert fates(found) == {"1": "acknowledged", "2": "send", "3": "acknowledged", "4": "send"}


def test_a_moved_message_is_held_by_the_subscriptions_of_its_time(frame: Callable[..., Any]) -> None:
    """The record of the subscription was moved behind the message, whose copy stands behind that."""
    news = {"destination_type": "topic", "destination": "news"}
    copy = {"file": 2, "command": "COPY", **news}
    messages = frame(
        "messages", stored(1, 100, **news), stored(1, 200, **copy), stored(2, 120, **news), stored(2, 220, **copy)
    )
    records = frame("records", {"file": 2, "offset": 150, "command": "SUBSCRIPTION", "subscription": "c:one", **news})
    acks = frame("acks", {"file": 2, "offset": 230, "message_id": "ID:p:2", "subscription": "c:one", **news})
    found = selection(messages, records, acks, ReplayRequest(only=UNACKNOWLEDGED), NOW_MS)
    assert fates(found) == {"1": "send", "2": "acknowledged"}


def test_a_message_of_a_transaction_is_held_by_the_subscriptions_at_its_commit(frame: Callable[..., Any]) -> None:
    news = {"destination_type": "topic", "destination": "news"}
    messages = frame("messages", stored(1, 100, transaction="XID:1", **news), stored(2, 110, **news))
    records = frame(
        "records",
        {"file": 1, "offset": 150, "command": "SUBSCRIPTION", "subscription": "c:one", **news},
        ended("COMMIT", "XID:1", 200),
    )
    found = selection(messages, records, frame("acks"), ReplayRequest(only=UNACKNOWLEDGED), NOW_MS)
    assert fates(found) == {"1": "send", "2": "acknowledged"}
