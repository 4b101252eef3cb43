"""The interpreter: any command in any form and back; any bytes to a command or a reason; limits, by name."""

# proves: fields-of-a-command-are-bounded

from __future__ import annotations

import random
import struct
import tracemalloc
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandemmq.broker.protocols.openwire import hot
from tandemmq.broker.protocols.openwire.codec import NESTING_MAX, STORED, WireFormat
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.schema import (
    ActiveMQTextMessage,
    BrokerInfo,
    Command,
    ConnectionInfo,
    ConsumerInfo,
    ControlCommand,
    DataArrayResponse,
    DataResponse,
    ExceptionResponse,
    IntegerResponse,
    KeepAliveInfo,
    MessageAck,
    MessageDispatch,
    ProducerAck,
    RemoveInfo,
    Response,
    SessionInfo,
    TransactionInfo,
    WireFormatInfo,
)
from tandemmq.broker.protocols.openwire.types import (
    DESCRIPTIONS,
    VERSION_MAX,
    ConnectionId,
    ConsumerId,
    Description,
    ProducerId,
    SessionId,
    Throwable,
)
from tandemmq.store.records import loose
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tests.support.fuzz import openwire as fuzz
from tests.support.protocols.openwire.samples import COMMANDS, structure
from tests.support.protocols.openwire.vectors import vectors

QUEUE = Destination(DestinationKind.QUEUE, "TEST.Q")
PRODUCER = ProducerId("ID:c", 1, 2)


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=30)
def test_any_command_in_any_form_comes_back_as_it_was(row: Description, seed: int) -> None:
    dice = random.Random(seed)
    version = dice.randint(row.since, VERSION_MAX)
    is_tight, is_cached, cache_size = dice.random() < 0.5, dice.random() < 0.5, dice.choice((1, 2, 3, 1024))
    reading, writing = (
        WireFormat(version, is_tight=is_tight, is_cached=is_cached, has_stack_traces=True, cache_size=cache_size)
        for _ in range(2)
    )
    for _ in range(3):
        command = structure(dice, row, version)
        frame = writing.encode(command)
        assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
        assert reading.decode(frame) == command


def test_the_table_names_every_field_of_every_class_and_no_other() -> None:
    for row in DESCRIPTIONS.values():
        named = [field.name for field in row.fields]
        if is_dataclass(row.cls):
            expected = [field.name for field in dataclass_fields(row.cls)]
            assert named == (expected[2:] if row.cls is WireFormatInfo else expected)
        else:
            assert sorted(named) == sorted(set(row.cls._fields) - ({"kind"} if row.cls is Destination else set()))


# ---- any bytes


@given(
    st.binary(max_size=200),
    st.sampled_from(sorted(DESCRIPTIONS)),
    st.integers(1, VERSION_MAX),
    st.booleans(),
    st.booleans(),
)
@example(b"\x80\xff\xff", 10, 11, True, False)
@example(b"\xc0", 10, 11, True, False)
@example(b"\x80\x00", 10, 11, True, False)
@example(b"", 10, 11, True, False)
def test_any_bytes_are_a_command_or_refused(
    body: bytes, number: int, version: int, is_tight: bool, is_cached: bool
) -> None:
    wire = WireFormat(version, is_tight=is_tight, is_cached=is_cached, has_stack_traces=True)
    try:
        command = wire.decode(struct.pack(">iB", len(body) + 1, number) + body)
    except WireError:
        return
    assert isinstance(command, Command)


@given(st.integers(0, 1 << 32))
@settings(max_examples=4)
def test_frames_of_clients_changed_anyhow_are_commands_or_refused(seed: int) -> None:
    outcome = fuzz.run(seed, 400)
    assert 0 < outcome["read"] < outcome.total()


@pytest.mark.parametrize(
    "name", ["MessageAck-standard", "ConsumerInfo", "ExceptionResponse-stackTrace", "BrokerInfo-peers"]
)
def test_a_frame_cut_short_anywhere_is_refused(name: str) -> None:
    for vector in vectors():
        if vector.name != name:
            continue
        frame = vector.frames[0]
        for length in range(5, len(frame)):
            with pytest.raises(WireError):
                vector.wire_format().decode(struct.pack(">i", length - 4) + frame[4:length])


# ---- limits and mistakes, by name


def stored(number: int, body: bytes) -> bytes:
    return loose.frame(number, b"\0\0\0\1\0" + body)


ID = b"\1\x78\1\0\1a"  # ConnectionId a


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "a frame of 0 bytes holds no command"),
        (b"\0\0\0\1", "a frame of 4 bytes holds no command"),
        (b"\0\0\0\5\x0a", "a frame claims 5 bytes and has 1"),
        (b"\0\0\0\1\0", "unknown data type 0 in OpenWire 11"),
        (b"\0\0\0\1\x63", "unknown data type 99 in OpenWire 11"),
        (b"\0\0\0\1\x5c", "unknown data type 92 in OpenWire 11"),  # BrokerSubscriptionInfo: 12
        (b"\0\0\0\5\x64\1\0\1q", "ActiveMQQueue is not a command"),
        (stored(10, b"\0"), "1 bytes too many after KeepAliveInfo"),
        (stored(14, b"\1\0\2a"), "ControlCommand.command: a length of 2 bytes where the frame has 1 left"),
        (stored(14, b"\1\0"), "ControlCommand.command: the frame ends too early"),
        (stored(14, b"\1\0\1\xff"), "ControlCommand.command: a string is not UTF-8"),
        (stored(4, b"\1\x79\0" + bytes(8)), "SessionInfo.session_id: SessionId.connection_id: a name is missing"),
        (stored(4, b"\1\x7a\1\0\1a" + bytes(16)), "SessionInfo.session_id: SessionId expected, ConsumerId found"),
        (stored(12, b"\1\x7c\1\0\1a" + bytes(8)), "RemoveInfo.object_id: ConnectionId or SessionId or ConsumerId"),
        (stored(4, b"\1\x01"), "SessionInfo.session_id: WireFormatInfo.magic: a length of 8 bytes"),
        (loose.frame(1, b"ActiveMX"), "WireFormatInfo.magic: not OpenWire: b'ActiveMX' instead of b'ActiveMQ'"),
        (stored(33, bytes(4) + b"\1\xff\xff"), "DataArrayResponse.data: an array of -1"),
        (stored(33, bytes(4) + b"\1\x7f\xff\0"), "DataArrayResponse.data: the frame ends too early"),
        (stored(18, bytes(5) + b"\0\0\0\1\xff\xff\xff\xff"), "ConnectionControl.token: a length of -1 bytes"),
        (stored(18, bytes(5) + b"\0\0\0\1\x7f\xff\xff\xff"), "ConnectionControl.token: a length of 2147483647 bytes"),
        (
            stored(7, ID + b"\1\x6f" + bytes(9)),
            "TransactionInfo.transaction_id: LocalTransactionId.connection_id: Conn",
        ),
    ],
)
def test_an_invalid_frame_is_described(frame: bytes, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        STORED.decode(frame)
    assert str(caught.value).startswith(reason)


def test_objects_are_nested_to_a_limit() -> None:
    response = Response()
    for _ in range(NESTING_MAX):
        response = DataResponse(data=response)
    assert STORED.decode(STORED.encode(response)) == response
    with pytest.raises(WireError, match=f"objects are nested deeper than {NESTING_MAX}"):
        STORED.decode(STORED.encode(DataResponse(data=response)))


def test_causes_are_nested_to_a_limit() -> None:
    wire = WireFormat(has_stack_traces=True)
    cause = None
    for _ in range(NESTING_MAX + 1):
        cause = Throwable("java.io.IOException", "x", (), cause)
    assert wire.decode(wire.encode(ExceptionResponse(exception=cause))) == ExceptionResponse(exception=cause)
    cause = Throwable("java.io.IOException", "x", (), cause)
    with pytest.raises(WireError, match=f"causes are nested deeper than {NESTING_MAX}"):
        wire.decode(wire.encode(ExceptionResponse(exception=cause)))


def test_a_length_that_lies_allocates_nothing() -> None:
    frame = stored(18, bytes(5) + b"\0\0\0\1\x7f\xff\xff\xff" + bytes(1000))
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            STORED.decode(frame)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_an_array_takes_no_more_than_its_booleans_are_worth() -> None:
    wire = WireFormat(is_tight=True)
    count = 0x7FFF
    frame = wire.encode(DataArrayResponse(data=(None,) * count))
    decoded = wire.decode(frame)
    assert isinstance(decoded, DataArrayResponse)
    assert decoded.data == (None,) * count
    bits, body = frame[8:-10], frame[-10:]  # behind 80 and their count; command id, correlation id, count
    fewer = bits[: len(bits) // 2]
    with pytest.raises(WireError, match="the booleans end too early"):
        wire.decode(loose.frame(33, b"\x80" + struct.pack(">H", len(fewer)) + fewer + body))


def test_a_marshalled_object_within_a_tight_frame_is_refused() -> None:
    wire = WireFormat(is_tight=True)
    frame = bytearray(wire.encode(MessageDispatch(message=ActiveMQTextMessage())))
    # bits: response required, consumer, destination, message, then whether it is a separate frame
    frame[6] |= 1 << 4
    with pytest.raises(WireError, match="ActiveMQTextMessage is a frame within a frame"):
        wire.decode(bytes(frame))


def test_cache_indexes_must_have_been_told_and_fit() -> None:
    wire = WireFormat(is_cached=True, cache_size=10)
    with pytest.raises(WireError, match="cache index 3 was never defined"):
        wire.decode(stored(4, b"\0\0\3"))
    with pytest.raises(WireError, match="cache index 10, below 10 expected"):
        wire.decode(stored(4, b"\1\0\x0a\0"))
    with pytest.raises(WireError, match="SessionId expected, ConnectionId found"):
        wire.decode(stored(4, b"\1\0\1" + ID))


def test_an_object_told_with_index_minus_one_is_not_kept() -> None:
    wire = WireFormat(is_cached=True)
    session = b"\1\x79\1\0\1a" + bytes(8)
    assert wire.decode(stored(4, b"\1\xff\xff" + session)) == SessionInfo(1, session_id=SessionId("a", 0))
    with pytest.raises(WireError, match="cache index -1 was never defined"):
        wire.decode(stored(4, b"\0\xff\xff"))


def test_ids_of_the_same_parts_are_not_taken_for_each_other_by_the_cache() -> None:
    reading, writing = WireFormat(is_cached=True), WireFormat(is_cached=True)
    ids = [ConnectionId("a"), SessionId("a", 1), ConsumerId("a", 1, 2), ProducerId("a", 1, 2), ConnectionId("a")]
    for id in ids:
        found = reading.decode(writing.encode(RemoveInfo(object_id=id)))
        assert isinstance(found, RemoveInfo)
        assert (type(found.object_id), found.object_id) == (type(id), id)


def test_the_cache_is_sent_again_after_a_frame_that_could_not_be_written() -> None:
    reading, writing = WireFormat(is_cached=True), WireFormat(is_cached=True)
    with pytest.raises(WireError, match=r"ConnectionInfo\.client_id: a string of 70000 bytes, at most 65535"):
        writing.encode(ConnectionInfo(connection_id=ConnectionId("a"), client_id="x" * 70_000))
    command = ConnectionInfo(connection_id=ConnectionId("a"))
    assert reading.decode(writing.encode(command)) == command


@pytest.mark.parametrize(
    ("wire", "command", "reason"),
    [
        (WireFormat(2), ProducerAck(), "unknown data type 19 in OpenWire 2"),
        (WireFormat(is_tight=True), ControlCommand(command="x" * 0x8000), "a string of 32768 bytes, at most 32767"),
        (WireFormat(), ControlCommand(command="x" * 0x10000), "a string of 65536 bytes, at most 65535"),
        (WireFormat(), ConsumerInfo(priority=128), "ConsumerInfo.priority: "),
        (WireFormat(), ConsumerInfo(prefetch_size=1 << 31), "ConsumerInfo.prefetch_size: "),
        (WireFormat(), Response(correlation_id=1 << 31), "Response: "),
        (WireFormat(), ProducerAck(producer_id=ProducerId("x" * 0x10000, 1, 1)), "ProducerAck: "),
        (WireFormat(), DataArrayResponse(data=(None,) * 0x8000), "DataArrayResponse.data: "),
        (WireFormat(is_tight=True), BrokerInfo(peer_broker_infos=(BrokerInfo(),) * 0x7000), "booleans, at most 32767"),
    ],
)
def test_a_value_that_does_not_fit_is_not_written(wire: WireFormat, command: Command, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.encode(command)
    assert reason in str(caught.value)


def test_a_connection_is_shown_without_its_password() -> None:
    info = ConnectionInfo(client_id="c", user_name="u", password="secret")
    assert "secret" not in repr(info)
    assert "secret" not in repr(DataResponse(data=info))


# ---- the short ways

I32 = st.integers(-(1 << 31), (1 << 31) - 1)


def interpreted(frame: bytes) -> Command | None:
    """Return the result of the interpreter alone for a stored frame."""
    wire = WireFormat()
    wire.is_stored_form = False
    try:
        return wire.decode(frame)
    except WireError:
        return None


ACKS = [
    v.frames[0] for v in vectors() if v.name.startswith("MessageAck") and not v.is_tight and v.version in (10, 11, 12)
]


@given(st.sampled_from(ACKS), st.integers(5, 300), st.integers(0, 255), st.booleans())
def test_an_ack_read_the_short_way_is_what_the_interpreter_reads(
    frame: bytes, at: int, octet: int, whole: bool
) -> None:
    STORED.decode(ACKS[0])  # so that the ids are known
    changed = bytearray(frame)
    if at < len(frame):
        changed[at] = octet
    elif whole:
        changed[0:4] = struct.pack(">i", len(changed) - 3)
        changed.append(octet)
    data = bytes(changed)
    short = hot.read_message_ack(data)
    assert_same(short, data)


TRANSACTIONS = [
    STORED.encode(TransactionInfo(5, True, ConnectionId("ID:c"), id, 2))
    for id in (LocalTransactionId("ID:c", 3), XaTransactionId(1, b"global", b"branch"))
]


@given(st.sampled_from(TRANSACTIONS), st.integers(5, 60), st.integers(0, 255), st.booleans())
def test_a_transaction_read_the_short_way_is_what_the_interpreter_reads(
    frame: bytes, at: int, octet: int, whole: bool
) -> None:
    assert STORED.decode(frame) == interpreted(frame)
    assert hot.read_transaction_info(frame) is not None, "the ids are known now"
    changed = bytearray(frame)
    if at < len(frame):
        changed[at] = octet
    elif whole:
        changed[0:4] = struct.pack(">i", len(changed) - 3)
        changed.append(octet)
    data = bytes(changed)
    assert_same(hot.read_transaction_info(data), data)


def assert_same(short: Command | None, frame: bytes) -> None:
    """``short`` is what the interpreter reads, unless it is left to the interpreter."""
    if short is not None:
        assert short == interpreted(frame)
        assert all(type(a) is type(b) for a, b in zip(vars_of(short), vars_of(interpreted(frame)), strict=True))


def vars_of(command: Command | None) -> list[Any]:
    assert isinstance(command, MessageAck | TransactionInfo)
    return [getattr(command, field.name) for field in dataclass_fields(command)]


@given(I32, st.booleans(), I32, I32, st.none() | st.builds(ProducerId, st.text(max_size=9), I32, I32))
def test_the_hot_writers_give_the_bytes_of_the_interpreter(
    number: int, required: bool, correlation: int, result: int, producer: ProducerId | None
) -> None:
    slow = WireFormat()
    slow.is_stored_form = False
    for command in (
        KeepAliveInfo(number, required),
        Response(number, required, correlation),
        IntegerResponse(number, required, correlation, result),
        ProducerAck(number, required, producer, result),
    ):
        assert type(command) in hot.WRITERS
        assert STORED.encode(command) == slow.encode(command)


# ---- limits of a frame's memory


def test_a_frame_of_more_fields_than_allowed_is_refused_before_they_are_read() -> None:
    nulls = (None,) * 1_000
    brokers = (BrokerInfo(),) * 100
    of_broker = len(next(row for row in DESCRIPTIONS.values() if row.cls is BrokerInfo).fields_in(11))
    for command, fields in (
        (DataArrayResponse(data=nulls), 1_004),
        (DataArrayResponse(data=(DataArrayResponse(data=nulls),) * 3), 3_019),
        (BrokerInfo(peer_broker_infos=brokers), 100 + 101 * of_broker),
        (ControlCommand(command="\u20ac" * 8_000), 3 + 3_000),
        (ControlCommand(command="x" * 24_000), 3),
    ):
        for is_tight in (False, True):
            wire = WireFormat(11, is_tight=is_tight)
            frame = wire.encode(command)
            assert wire.decode(frame, fields) == command
            with pytest.raises(WireError, match=f"more than {fields - 1} fields and objects"):
                wire.decode(frame, fields - 1)
            assert wire.decode(frame) == command
