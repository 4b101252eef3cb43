"""A producer's frame is unchanged except for the bytes that a broker sets, and decodes to the same message."""

from __future__ import annotations

import dataclasses
import json
import logging
import struct
import tracemalloc
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.schema import WireMessage
from tandemmq.broker.protocols.openwire.types import BrokerId
from tandemmq.store.operations import AddMessage
from tandemmq.store.records import fields, loose
from tandemmq.store.records.commands import encode_add
from tandemmq.store.records.errors import RecordDamaged, RecordTooLarge
from tandemmq.store.records.frames import PATH_MAX, UNREADABLE, accept_frame, frame_of, nested_message, open_message
from tandemmq.store.records.message import HEADER, BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import INFLATED_BYTES_MAX, decode_message, encode_message
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId
from tests.support.store.store_harness import Term
from tests.support.tree import FRAMES_FILE

FRAMES = {name: bytes.fromhex(frame) for name, frame in json.loads(FRAMES_FILE.read_text()).items()}
MESSAGES = sorted(
    name for name in FRAMES if "Message" in name and "Ack" not in name and int(name.rpartition(" v")[2]) >= 10
)
TEXT = next(FRAMES[name] for name in MESSAGES if name.startswith("ActiveMQTextMessage-properties"))
CONNECTION = "ID:host-5001-1700000000000-1:1"
QUEUE = Destination(DestinationKind.QUEUE, "TEST.Q")


def fields_of(message: Message) -> dict[str, Any]:
    properties = {name: (type(value), value) for name, value in (message.properties or {}).items()}
    return {name: getattr(message, name) for name in HEADER} | {"body": message.body, "properties": properties}


@pytest.mark.parametrize("name", MESSAGES)
def test_an_opened_message_equals_a_decoded_one(name: str) -> None:
    frame = FRAMES[name]

    opened = open_message(frame)

    assert fields_of(opened) == fields_of(decode_message(frame))
    assert (opened.raw, opened.size, encode_message(opened)) == (frame, len(frame), frame)
    assert bytes(nested_message(opened)) == frame[4:]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_reads_the_same_after_another_with_the_same_producer_and_destination(name: str) -> None:
    frame = FRAMES[name]
    fields._heads.clear()
    first = fields_of(open_message(frame))
    assert fields_of(open_message(frame)) == first
    damaged = frame[: len(frame) // 2]
    damaged = struct.pack(">i", len(damaged) - 4) + damaged[4:]
    for _ in range(2):
        with pytest.raises(RecordDamaged):
            open_message(damaged)


@pytest.mark.parametrize("name", [name for name in MESSAGES if "wide" not in name and "foreign" not in name])
def test_a_message_without_a_producer_is_read(name: str) -> None:
    frame = FRAMES[name]
    end = loose.read_producer_id(frame, fields.PRODUCER_AT)[1]
    frame = struct.pack(">i", len(frame) - 4 - (end - fields.PRODUCER_AT - 1)) + (
        frame[4 : fields.PRODUCER_AT] + b"\0" + frame[end:]
    )
    opened = open_message(frame)
    assert opened.message_id == open_message(FRAMES[name]).message_id
    assert opened.destination == open_message(FRAMES[name]).destination


@pytest.mark.parametrize("name", MESSAGES)
def test_an_accepted_message_differs_only_in_fields_of_the_broker(name: str) -> None:
    frame = FRAMES[name]
    before = decode_message(frame)

    accepted = accept_frame(frame, 0x0102030405060708, 0x1122334455667788)

    message = accepted.message
    assert (accepted.command_id, accepted.is_response_required) == struct.unpack_from(">i?", frame, 5)
    assert accepted.producer_id == message.message_id.rpartition(":")[0] or "foreign" in name or "wide" in name
    assert accepted.transaction == (LocalTransactionId(CONNECTION, 1) if "transacted" in name else None)
    assert message.broker_sequence == 0x0102030405060708
    expected = fields_of(before) | {"broker_sequence": 0x0102030405060708}
    assert fields_of(message) == expected
    raw = message.raw
    assert raw is not None
    assert fields_of(decode_message(raw)) == expected
    assert raw.count(bytes.fromhex("0102030405060708")) == 1
    assert raw.count(bytes.fromhex("1122334455667788")) == 2, "arrival and broker-in time"
    if accepted.transaction is None and "wide" not in name:  # that one has an original transaction id
        changed = {at for at, (a, b) in enumerate(zip(frame, raw, strict=True)) if a != b}
        assert len(changed) <= 5 + 3 * 8
    assert accept_frame(raw, 0x0102030405060708, 0x1122334455667788).message.raw == raw
    assert accept_frame(BytesIO(frame), 0x0102030405060708, 0x1122334455667788).message.raw == raw


def test_a_long_frame_is_there_once_more_while_it_is_accepted() -> None:
    body = bytes(8 << 20)
    frame = encode_message(Message(Destination(DestinationKind.QUEUE, "q"), "ID:a:1:1:1", body, BodyKind.BYTES))
    tracemalloc.start()
    try:
        accept_frame(frame, 1, 2)
        assert tracemalloc.get_traced_memory()[1] < 1.1 * len(frame)
    finally:
        tracemalloc.stop()


def test_a_long_body_is_copied_once_when_it_is_written() -> None:
    message = Message(QUEUE, "ID:a:1:1:1", bytes(8 << 20), BodyKind.BYTES, properties={"a": 1})
    tracemalloc.start()
    try:
        frame = encode_message(message)
        assert tracemalloc.get_traced_memory()[1] < 1.1 * len(frame)
    finally:
        tracemalloc.stop()
    assert decode_message(frame).body == message.body


# proves: a-gathered-frame-is-not-copied
def test_a_long_frame_that_was_gathered_is_accepted_in_place() -> None:
    body = bytes(8 << 20)
    message = Message(QUEUE, "ID:a:1:1:1", body)
    frame = BytesIO()
    frame.write(encode_message(message))
    assert frame.getvalue()  # has as much room as it needs from now on
    tracemalloc.start()
    try:
        accept_frame(frame, 1, 2)
        assert tracemalloc.get_traced_memory()[1] < 0.1 * len(body)
    finally:
        tracemalloc.stop()


TRANSACTIONS: list[TransactionId] = [LocalTransactionId(CONNECTION, 7), XaTransactionId(5, b"global", b"branch")]


@pytest.mark.parametrize("transaction", TRANSACTIONS)
@pytest.mark.parametrize("original", [None, LocalTransactionId(CONNECTION, 6)])
def test_transaction_ids_are_cut_out(transaction: TransactionId, original: TransactionId | None) -> None:
    plain = encode_message(Message(QUEUE, f"{CONNECTION}:1:1:9", b"body", properties={"a": 1}))
    producer = len(loose.producer_id(CONNECTION, 1, 1))
    transaction_at = 10 + producer + len(loose.destination(QUEUE))
    original_at = transaction_at + 2 + 3 + producer + 16
    assert (plain[transaction_at], plain[original_at]) == (0, 0)
    fields = (
        plain[4:transaction_at]
        + loose.transaction_id(transaction)
        + plain[transaction_at + 1 : original_at]
        + loose.transaction_id(original)
        + plain[original_at + 1 :]
    )
    frame = len(fields).to_bytes(4, "big") + fields

    accepted = accept_frame(frame, 3, 4)

    assert accepted.transaction == transaction
    assert accepted.message.raw == accept_frame(plain, 3, 4).message.raw
    assert accepted.message.raw == accept_frame(BytesIO(frame), 3, 4).message.raw
    assert (accepted.message.body, accepted.message.properties) == (b"body", {"a": 1})


@given(st.sampled_from(MESSAGES), st.data())
def test_a_bent_frame_is_accepted_or_damaged(name: str, data: st.DataObject) -> None:
    frame = bytearray(FRAMES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    bent = bytes(frame)

    try:
        message = accept_frame(bent, 1, 2).message
    except RecordDamaged:
        with pytest.raises(RecordDamaged):
            accept_frame(BytesIO(bent), 1, 2)
        return
    assert accept_frame(BytesIO(bent), 1, 2).message.raw == message.raw

    assert message.raw is not None
    assert fields_of(open_message(message.raw)) == fields_of(message), "what was taken can be read"


@given(st.sampled_from(MESSAGES), st.data())
def test_a_frame_of_another_length_is_damaged(name: str, data: st.DataObject) -> None:
    frame = FRAMES[name]
    length = data.draw(st.integers(0, len(frame) - 1))
    resized = (length - 4).to_bytes(4, "big", signed=True) + frame[4:length]
    longer = (len(frame) - 3).to_bytes(4, "big") + frame[4:] + b"\0"

    for wrong in (frame[:length], resized, frame + b"\0", longer):
        with pytest.raises(RecordDamaged):
            accept_frame(wrong, 1, 2)
        with pytest.raises(RecordDamaged):
            open_message(wrong)


@given(st.binary(max_size=200), st.sampled_from(range(23, 30)))
def test_any_bytes_are_damaged_or_a_message(noise: bytes, type: int) -> None:
    for frame in (noise, (len(noise) + 1).to_bytes(4, "big") + bytes((type,)) + noise):
        try:
            accept_frame(frame, 1, 2)
        except RecordDamaged:
            continue


def test_an_old_layout_is_decoded_at_once() -> None:
    frame = FRAMES["ActiveMQTextMessage-properties v9"]

    message = open_message(frame, 9)

    assert message.raw is None
    assert fields_of(message) == fields_of(decode_message(frame, 9))


# ---- invalid frames that no reader may fail on


@pytest.fixture(autouse=True)
def nothing_was_logged() -> None:
    UNREADABLE._told.clear()


def test_properties_that_cannot_be_read_count_as_none(caplog: pytest.LogCaptureFixture) -> None:
    frame = bytearray(encode_message(Message(QUEUE, f"{CONNECTION}:1:1:9", b"body", properties={"name": "value"})))
    frame[frame.index(b"\0\4name") + 6] = 99
    message = open_message(bytes(frame))

    with caplog.at_level(logging.ERROR):
        found = [message.properties, message.properties]

    assert (found, message.body) == ([None, None], b"body")
    assert [record.getMessage() for record in caplog.records] == [
        f"the properties of message {CONNECTION}:1:1:9 cannot be read, and count as none: unknown property type 99"
    ]
    with pytest.raises(RecordDamaged):
        decode_message(bytes(frame))


def test_thousands_that_cannot_be_read_are_one_line_of_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    frame = bytearray(
        encode_message(Message(QUEUE, "ID:c:1:1:9", b"text", BodyKind.TEXT, properties={"name": "value"}))
    )
    frame[frame.index(b"\0\4name") + 6] = 99
    frame[frame.index(b"text") - 1] += 1

    with caplog.at_level(logging.ERROR):
        for _ in range(2_000):
            message = open_message(bytes(frame))
            assert (message.properties, message.body) == (None, b"")

    assert [record.getMessage().split()[1] for record in caplog.records] == ["properties", "body"]


def test_a_path_of_many_brokers_is_refused_to_a_client_and_read_from_a_store() -> None:
    message = STORED.decode(next(FRAMES[name] for name in MESSAGES if name.startswith("ActiveMQTextMessage")))
    assert isinstance(message, WireMessage)
    for name in ("broker_path", "cluster"):
        for path, is_taken in (
            ([BrokerId("ID:some-host-1")] * PATH_MAX, True),
            ([None] * (PATH_MAX + 1), False),
            ([BrokerId("x" * 60_000)] * 3, False),
        ):
            frame = STORED.encode(dataclasses.replace(message, **{name: tuple(path)}))
            assert open_message(frame).message_id
            if is_taken:
                accept_frame(frame, 1, 2)
            else:
                with pytest.raises(RecordTooLarge, match="path or cluster"):
                    accept_frame(frame, 1, 2)


def test_a_text_of_another_length_counts_as_empty(caplog: pytest.LogCaptureFixture) -> None:
    frame = bytearray(encode_message(Message(QUEUE, f"{CONNECTION}:1:1:9", b"text", BodyKind.TEXT)))
    frame[frame.index(b"text") - 1] += 1
    message = open_message(bytes(frame))

    with caplog.at_level(logging.ERROR):
        found = [message.body, message.body]

    assert found == [b"", b""]
    assert len(caplog.records) == 1


def test_a_bomb_is_not_inflated(caplog: pytest.LogCaptureFixture) -> None:
    frame = bytearray(next(FRAMES[name] for name in MESSAGES if name.startswith("ActiveMQBytesMessage-compressed")))
    start = frame.index(b"\x78\x9c") - 4
    frame[start : start + 4] = (INFLATED_BYTES_MAX + 1).to_bytes(4, "big")

    message = accept_frame(bytes(frame), 1, 2).message

    assert message.body == b""
    assert "claims 104857601 bytes" in caplog.text
    assert message.raw is not None
    assert bytes(frame[start:]).startswith(message.raw[start : start + 20]), "its consumers get what was sent"


def test_a_compressed_body_stays_compressed_until_asked_for() -> None:
    frame = next(FRAMES[name] for name in MESSAGES if name.startswith("ActiveMQBytesMessage-compressed"))

    message = open_message(frame)

    assert (message.size, message.body, message.raw) == (len(frame), b"a" * 64, frame)


def test_a_message_of_another_protocol_gets_its_frame_once() -> None:
    message = Message(QUEUE, f"{CONNECTION}:1:1:9", b"body")
    message.broker_sequence = 77

    nested = nested_message(message)

    frame = frame_of(message)
    assert nested.obj is frame, "made once, for who comes next"
    assert message.raw is None, "and not kept beside the body"
    assert open_message(frame).broker_sequence == 77
    assert encode_message(message) == frame


# ---- What a JMS producer sent is what the journal holds and what a page gives back: the same bytes


@pytest.fixture
def term(tmp_path: Path) -> Iterator[Term]:
    with Term(str(tmp_path)) as term:
        yield term


def test_a_frame_comes_back_from_the_journal_as_it_was_taken(term: Term) -> None:
    owner = term.store.queue(QUEUE)
    taken = [accept_frame(FRAMES[name], number, 2).message for number, name in enumerate(MESSAGES, 1)]
    raws = [message.raw for message in taken]

    for message in taken:
        term.store.append(AddMessage(message, (owner,), encode_add(message, encode_message(message))))
    term.wait_durable(len(taken))
    paged = [each.message for each in term.page(owner).messages]

    assert [message.raw for message in paged] == raws
    assert [bytes(nested_message(message)) for message in paged] == [raw[4:] for raw in raws if raw]
    assert [message.broker_sequence for message in paged] == list(range(1, len(taken) + 1))
    assert [(message.body, message.properties) for message in paged] == [
        (message.body, message.properties) for message in taken
    ]


def test_an_unreadable_body_is_sent_to_clients_that_decode_it_themselves(term: Term) -> None:
    frame = bytearray(FRAMES["ActiveMQTextMessage-compressed v12"])
    frame[frame.index(b"\x78\x9c") + 8] ^= 0xFF
    message = accept_frame(bytes(frame), 1, 2).message
    owner = term.store.queue(QUEUE)

    term.store.append(AddMessage(message, (owner,), encode_add(message, encode_message(message))))
    (paged,) = term.page(owner).messages

    assert (paged.message.raw, paged.message.body) == (message.raw, b"")
    assert term.store.figures.damaged == 0
