"""Written records are read back unchanged; a cut or changed record is RecordDamaged and nothing else."""

# proves: branch-has-acks

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.store.records import loose
from tandemmq.store.records.acknowledgements import (
    AckType,
    MessageAck,
    SubscriptionInfo,
    decode_ack,
    decode_subscription_info,
    encode_ack,
    encode_subscription_info,
)
from tandemmq.store.records.commands import (
    AddMessage,
    Commit,
    Prepare,
    RemoveDestination,
    RemoveMessage,
    Rewritten,
    Rollback,
    Subscription,
    Trace,
    UpdateMessage,
    decode,
    encode,
    encode_add,
    encode_remove,
    encode_subscription,
    encode_unsubscribe,
    encode_update,
    stored_message,
    trailing,
)
from tandemmq.store.records.errors import RecordDamaged, Unencodable
from tandemmq.store.records.frames import open_message
from tandemmq.store.records.message import HEADER, BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import decode_message, encode_message
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short, decode_properties, encode_properties
from tandemmq.store.records.remembered import CACHE_ENTRIES_MAX, CACHED_BYTES_MAX, remember
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId, transaction_of_key
from tandemmq.store.records.utf import decode_modified, encode_modified, modified_of_utf8, utf8_of_modified

pytestmark = pytest.mark.promise("bytes-are-activemqs")

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
DESTINATIONS = st.builds(Destination, st.sampled_from(DestinationKind), TEXT)
SEQUENCES = st.one_of(st.integers(0, 10**6), I64)
MESSAGE_IDS = st.builds("{}:{}:{}:{}".format, TEXT, I64, I64, SEQUENCES)
LOCAL = st.builds(LocalTransactionId, TEXT, I64)
XA = st.builds(XaTransactionId, I32, st.binary(max_size=64), st.binary(max_size=64))
TRANSACTIONS = st.one_of(LOCAL, XA)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    I64,
    st.floats(allow_nan=False),
    TEXT,
    st.binary(max_size=40),
    st.builds(Byte, st.integers(-128, 127)),
    st.builds(Short, st.integers(-(2**15), 2**15 - 1)),
    st.builds(Long, I64),
    st.builds(Float, st.floats(width=32, allow_nan=False)),
    st.builds(Char, st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
PROPERTIES = st.dictionaries(TEXT, VALUES, max_size=6)


def shape(value: Any) -> Any:
    """A value with its types: Byte(1) is not 1. A plain int beyond 32 bits is a long to Java."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    if type(value) is int and not -(2**31) <= value < 2**31:
        return (Long, value)
    return (type(value), value)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from([kind for kind in BodyKind if kind is not BodyKind.BLOB]))
    body = draw(TEXT).encode() if kind is BodyKind.TEXT else draw(st.binary(max_size=200))
    return Message(
        draw(DESTINATIONS),
        draw(MESSAGE_IDS),
        body,
        kind,
        persistent=draw(st.booleans()),
        priority=draw(st.integers(0, 9)),
        expiration=draw(I64),
        timestamp=draw(I64),
        properties=draw(PROPERTIES) or None,
        correlation_id=draw(st.none() | TEXT),
        reply_to=draw(st.none() | DESTINATIONS),
        type=draw(st.none() | TEXT),
        group_id=draw(st.none() | TEXT),
        group_sequence=draw(I32),
        user_id=draw(st.none() | TEXT),
        redelivery_counter=draw(st.integers(0, 2**31 - 1)),
        original_destination=draw(st.none() | DESTINATIONS),
    )


@given(messages())
def test_a_message_comes_back_with_all_its_fields(message: Message) -> None:
    frame = encode_message(message)
    assert message.raw is None, "nobody needs it but the store, which has it"

    again = decode_message(frame)

    for name in {*HEADER, "body", "properties"} - {"broker_sequence"}:
        assert shape(getattr(again, name)) == shape(getattr(message, name)), name
    assert encode_message(again) == frame


@given(messages())
@settings(max_examples=10)
def test_a_frame_cut_anywhere_is_damaged(message: Message) -> None:
    frame = encode_message(message)

    for length in range(len(frame)):
        with pytest.raises(RecordDamaged):
            decode_message(frame[:length])
        resized = (length - 4).to_bytes(4, "big", signed=True) + frame[4:length]
        with pytest.raises(RecordDamaged):
            decode_message(resized)


@given(messages(), st.data())
def test_a_bent_frame_is_read_or_damaged(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode_message(message))
    for _ in range(3):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))

    try:
        decode_message(bytes(frame), data.draw(st.integers(1, 12)))
    except RecordDamaged:
        pass


def test_a_property_that_is_equal_to_another_is_written_by_its_type() -> None:
    values: list[Any] = [1, True, Short(1), Byte(1), Long(1), 1.0]
    for value in [*values, *reversed(values)]:
        assert shape(decode_properties(encode_properties({"n": value}))) == shape({"n": value})


@pytest.mark.parametrize("size", [8190, 8191, 65535, 70000])
@pytest.mark.parametrize("character", ["a", "é", "😀"])
def test_long_strings_are_properties_too(size: int, character: str) -> None:
    properties = {"top": character * size, "nested": [character * size]}

    assert decode_properties(encode_properties(properties)) == properties


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, object(), 1j, Byte(128), Short(40000), Char("ab"), Float(1e300)]
)
def test_a_property_that_java_has_no_type_for_is_refused(value: Any) -> None:
    with pytest.raises(Unencodable):
        encode_properties({"name": value})


def test_properties_nested_without_end_are_refused() -> None:
    nested: Any = []
    for _ in range(100):
        nested = [nested]

    with pytest.raises(Unencodable):
        encode_properties({"deep": nested})
    with pytest.raises(RecordDamaged):
        decode_properties(b"\0\0\0\1\0\1a" + b"\x0c\0\0\0\1" * 100_000)


@pytest.mark.parametrize(
    "change",
    [{"expiration": 2**63}, {"timestamp": -(2**63) - 1}, {"group_sequence": 2**31}, {"correlation_id": "é" * 40_000}],
)
def test_a_message_that_openwire_has_no_room_for_is_refused(change: dict[str, Any]) -> None:
    message = Message(Destination(DestinationKind.QUEUE, "q"), "ID:a:1:1:1", **change)

    with pytest.raises(Unencodable):
        encode_message(message)


# ---- ids


@pytest.mark.parametrize(
    "odd", ["plain", "", "a:b", "ID:x:1:1:007", "ID:x:1:1:+7", "ID:x:1:1:٣", "ID:x:1:1:9999999999999999999", "é:1:1:"]
)
def test_a_foreign_id_is_stored_under_a_key_that_activemq_computes_alike(odd: str) -> None:
    destination = Destination(DestinationKind.QUEUE, "q")
    message = Message(destination, odd)
    frame = encode_message(message)

    added = decode(encode_add(message, frame))
    removed = decode(encode_remove(destination, odd))

    assert isinstance(added, AddMessage)
    assert isinstance(removed, RemoveMessage)
    assert added.message_id == removed.message_id == decode_message(frame).message_id == loose.producer_key(odd)
    assert loose.string(odd) in frame  # what a JMS client is shown
    assert loose.producer_key(loose.producer_key(odd)) == loose.producer_key(odd)


@pytest.mark.parametrize("kind", [BodyKind.TEXT, BodyKind.BYTES, BodyKind.MAP])
def test_the_id_of_a_client_is_kept_beside_the_key(kind: BodyKind) -> None:
    message = Message(Destination(DestinationKind.QUEUE, "q"), "ID:a:-1:1:7", b"", kind)
    encode_stored(message)  # what is remembered of a message without such an id has no effect
    message.text_view = "é"
    added = decode(encode_stored(message))
    assert isinstance(added, AddMessage)
    assert added.message_id == "ID:a:-1:1:7"
    for found in (decode_message(added.message), open_message(added.message)):
        assert (found.message_id, found.text_view, found.broker_sequence) == ("ID:a:-1:1:7", "é", 7)
    message.text_view = None
    assert open_message(encode_message(message)).text_view is None


@given(MESSAGE_IDS)
def test_ids_of_kahadbs_form_stay_as_they_are(message_id: str) -> None:
    assert loose.producer_key(message_id) == message_id
    assert loose.key_bytes(message_id) == loose.key_bytes(message_id) == message_id.encode()


def test_more_names_than_are_remembered_change_nothing() -> None:
    for number in range(CACHE_ENTRIES_MAX + 10):
        destination = Destination(DestinationKind.QUEUE, f"q{number}" + "x" * 600 * (number % 50 == 0))
        message = Message(destination, f"ID:{number}:1:1:1")
        command = decode(encode_add(message, encode_message(message)))
        assert isinstance(command, AddMessage)
        assert (command.destination, command.message_id) == (destination, message.message_id)
        assert decode_message(command.message).destination == destination


def test_a_cache_has_an_end_and_keeps_nothing_big() -> None:
    cache: dict[int, bytes] = {}

    for number in range(CACHE_ENTRIES_MAX + 1):
        remember(cache, number, b"", 0)
    remember(cache, -1, b"", CACHED_BYTES_MAX + 1)

    assert cache == {CACHE_ENTRIES_MAX: b""}


# ---- text


@given(st.binary(max_size=60))
def test_any_body_survives_java_text(body: bytes) -> None:
    modified = modified_of_utf8(body)
    assert utf8_of_modified(modified, 0, len(modified)) == body


@given(st.text(st.characters(), max_size=60))
def test_modified_utf8_has_no_nul_and_no_four_byte_forms(text: str) -> None:
    data = encode_modified(text)

    assert 0 not in data
    assert not any(byte >= 0xF0 for byte in data)
    java = text.encode("utf-16-be", "surrogatepass")
    assert decode_modified(data).encode("utf-16-be", "surrogatepass") == java


# ---- commands

ADDS = st.builds(
    AddMessage,
    DESTINATIONS,
    MESSAGE_IDS,
    st.binary(max_size=300),
    st.none() | TRANSACTIONS,
    st.integers(0, 9),
    st.booleans(),
    st.none() | TEXT,
)
INFOS = st.builds(SubscriptionInfo, TEXT, DESTINATIONS, TEXT, st.none() | TEXT, DESTINATIONS, st.none() | st.booleans())
COMMANDS = st.one_of(
    ADDS,
    st.builds(UpdateMessage, ADDS),
    st.builds(
        RemoveMessage, DESTINATIONS, MESSAGE_IDS, st.none() | TRANSACTIONS, st.none() | TEXT, st.none() | st.binary()
    ).filter(lambda remove: remove.ack or not isinstance(remove.transaction, XaTransactionId)),
    st.builds(Trace, st.none() | TEXT),
    st.builds(Prepare, TRANSACTIONS),
    st.builds(Commit, TRANSACTIONS),
    st.builds(Rollback, TRANSACTIONS),
    st.builds(RemoveDestination, DESTINATIONS),
    st.builds(Subscription, DESTINATIONS, TEXT, INFOS, st.booleans()),
    st.builds(Subscription, DESTINATIONS, TEXT, st.none(), st.just(False)),
    st.builds(Rewritten, I32, st.none() | I32, st.booleans()),
)


@given(COMMANDS, st.binary(max_size=5).filter(lambda stranger: stranger[:1] != b"\4"))
def test_a_command_comes_back_as_it_was(command: Any, stranger: bytes) -> None:
    payload = encode(command)

    for again in (decode(payload), decode(memoryview(payload)), decode(payload + stranger)):
        assert (type(again), again) == (type(command), command)


@given(COMMANDS)
@settings(max_examples=50)
def test_a_command_cut_anywhere_is_damaged(command: Any) -> None:
    payload = encode(command)

    for length in range(len(payload) - len(trailing(payload))):
        with pytest.raises(RecordDamaged):
            decode(payload[:length])


@given(COMMANDS, st.data())
def test_a_bent_command_is_read_or_damaged(command: Any, data: st.DataObject) -> None:
    payload = bytearray(encode(command))
    for _ in range(3):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))

    try:
        decode(bytes(payload))
    except RecordDamaged:
        pass


@given(st.binary(max_size=80))
def test_noise_is_read_or_damaged(noise: bytes) -> None:
    for reader in (decode, decode_message, decode_ack, decode_subscription_info, decode_properties):
        try:
            reader(noise)
        except RecordDamaged:
            pass


@given(messages(), st.none() | TRANSACTIONS)
@settings(max_examples=30)
def test_an_add_holds_the_message(message: Message, transaction: Any) -> None:
    frame = encode_message(message)

    command = decode(encode_add(message, frame, transaction))

    expected = AddMessage(message.destination, message.message_id, frame, transaction, message.priority, False)
    assert command == expected
    if transaction is None:
        assert decode(encode_update(message, frame)) == UpdateMessage(expected)


@given(messages(), st.none() | TRANSACTIONS, st.binary(max_size=5))
@settings(max_examples=30)
def test_the_message_of_a_record_is_found_without_the_rest(message: Message, transaction: Any, stranger: bytes) -> None:
    frame = encode_message(message)
    added = encode_add(message, frame, transaction)

    assert stored_message(added + stranger) == stored_message(encode_update(message, frame) + stranger) == frame
    for length in range(added.rindex(frame) + len(frame)):
        with pytest.raises(RecordDamaged):
            stored_message(added[:length])


@given(DESTINATIONS, TEXT, TEXT)
def test_a_subscription_is_named_after_client_and_name(destination: Destination, client_id: str, name: str) -> None:
    created = decode(encode_subscription(destination, client_id, name, "a > 1", no_local=True, retroactive=True))
    deleted = decode(encode_unsubscribe(destination, client_id, name))

    assert isinstance(created, Subscription)
    assert created.info == SubscriptionInfo(client_id, destination, name, "a > 1", destination, True)
    assert created.retroactive
    assert deleted == Subscription(destination, f"{client_id}:{name}", None)
    assert created.subscription_key == f"{client_id}:{name}"


@given(TRANSACTIONS)
def test_the_key_of_a_transaction_says_which(transaction: Any) -> None:
    again = transaction_of_key(transaction.key)

    assert (type(again), again) == (type(transaction), transaction)


def test_other_text_is_no_key_of_a_transaction() -> None:
    for text in ("", "TX:", "TX:a", "XID:[1,globalId=0,branchId=]", "elsewhere"):
        with pytest.raises(RecordDamaged):
            transaction_of_key(text)


@given(INFOS)
def test_subscription_info_comes_back(info: SubscriptionInfo) -> None:
    frame = encode_subscription_info(info)

    assert decode_subscription_info(frame) == info
    for length in range(len(frame)):
        with pytest.raises(RecordDamaged):
            decode_subscription_info(frame[:length])


@given(
    st.builds(
        MessageAck,
        DESTINATIONS,
        st.none() | MESSAGE_IDS,
        st.none() | st.builds("{}:{}:{}".format, TEXT, I64, I64),
        st.none() | TRANSACTIONS,
        st.integers(0, 6),
        st.none() | MESSAGE_IDS,
        I32,
        st.none() | st.tuples(TEXT, st.none() | TEXT),
    )
)
def test_acknowledgements_come_back(ack: MessageAck) -> None:
    frame = encode_ack(ack)

    assert decode_ack(frame) == ack
    for length in range(len(frame)):
        with pytest.raises(RecordDamaged):
            decode_ack(frame[:length])


@pytest.mark.parametrize("ack", [None, b"", b"given"])
@pytest.mark.parametrize("transaction", [None, LocalTransactionId("ID:a", 1), XaTransactionId(7, b"g", b"b")])
def test_acknowledgements_of_a_branch_have_a_frame_that_activemq_can_read(transaction: Any, ack: bytes | None) -> None:
    destination = Destination(DestinationKind.QUEUE, "q")
    found = decode(encode_remove(destination, "ID:x:1:1:1", transaction, None, ack))
    assert isinstance(found, RemoveMessage)
    if ack or not isinstance(transaction, XaTransactionId):
        assert found.ack == ack
    else:
        assert found.ack is not None
        type = AckType.STANDARD if ack is None else AckType.UNMATCHED
        assert decode_ack(found.ack) == MessageAck(destination, "ID:x:1:1:1", None, transaction, type, "ID:x:1:1:1")


def test_flags_are_not_taken_for_numbers() -> None:
    flags: list[dict[str, Any]] = [{"a": True, "b": True}, {"a": True, "b": 1}, {"a": 1, "b": 1}]
    flags += [{"b": True, "a": True}, {"a": True, "b": False}, {}, {"a": True}, dict.fromkeys("abcde", True)]
    for _ in range(2):  # the second time some come from a cache
        for each in flags:
            found = decode_properties(encode_properties(each))
            assert list(found.items()) == list(each.items())
            assert list(map(type, found.values())) == list(map(type, each.values()))
