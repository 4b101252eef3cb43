"""The lockstep decoder gives the rows of the scalar one for any journal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandemmq.pipeline import columns
from tandemmq.pipeline.arrow import record_batches
from tandemmq.pipeline.rows import FAILFAST, MODES, PERMISSIVE, Malformed, rows
from tandemmq.pipeline.stores import journal_files
from tandemmq.pipeline.walk import JournalFile
from tandemmq.store.records.acknowledgements import AckType, MessageAck, encode_ack
from tandemmq.store.records.commands import (
    encode_add,
    encode_commit,
    encode_prepare,
    encode_producer_audit,
    encode_remove,
    encode_rollback,
    encode_subscription,
    encode_trace,
    encode_update,
    with_sender,
)
from tandemmq.store.records.hints import with_copy_hint, with_operation_hint
from tandemmq.store.records.marks import encode_clock, encode_gone
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.protobuf import bytes_field, encode_varint
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tests.support.pipeline.pipeline_journals import add, write_foreign
from tests.support.tree import FRAMES_FILE

pytestmark = pytest.mark.promise("pipeline-reads-beside")

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

TABLES = (columns.RECORDS, columns.MESSAGES, columns.ACKS)
# of real clients and brokers, versions 1 to 12, each body kind, compressed and with properties
FRAMES = {
    name: bytes.fromhex(frame) for name, frame in json.loads(FRAMES_FILE.read_text()).items() if "Message" in name
}


def scalar(file: JournalFile, table: str, mode: str, *, payload: bool) -> Any:
    """The table as the scalar decoder reads it; a text where it cannot be read."""
    from tandemmq.pipeline.blocks import array

    try:
        found = list(rows(file, table, mode, payload=payload))
    except Malformed as error:
        return str(error)
    schema = columns.arrow_schema(table)
    return pa.table([array([row[i] for row in found], field.type) for i, field in enumerate(schema)], schema=schema)


def lockstep(file: JournalFile, table: str, mode: str, *, payload: bool, **bounds: int) -> Any:
    from tandemmq.pipeline.arrow import record_batches

    try:
        batches = list(record_batches(file, table, None, mode, payload=payload, **bounds))
    except Malformed as error:
        return str(error)
    for batch in batches:
        batch.validate(full=True)
        assert 0 < batch.num_rows <= bounds.get("rows_max", 10_000)
    return pa.Table.from_batches(batches, columns.arrow_schema(table)).combine_chunks()


def same(file: JournalFile, tables: Iterable[str] = TABLES, mode: str = PERMISSIVE, **bounds: int) -> None:
    for table in tables:
        expected = scalar(file, table, mode, payload=True)
        found = lockstep(file, table, mode, payload=True, **bounds)
        if isinstance(expected, str) or isinstance(found, str):
            assert found == expected
        elif not found.equals(expected):
            assert found.to_pylist() == expected.to_pylist()


NAMES = st.sampled_from(["q", "orders.eu", "größe", "x" * 130, "ActiveMQ.DLQ", "", "half\ud83d"])
IDS = st.one_of(
    st.builds("ID:host-{}:1:{}:{}".format, st.integers(1, 3), st.integers(1, 300), st.integers(1, 10**19)),
    st.sampled_from(["foreign", "a:b", "ID:ö:1:1:1", "::", "7", "ID:h:1:1:" + "9" * 30, "x" * 200, "ID:h:1:1:0"]),
)
DESTINATIONS = st.builds(Destination, st.sampled_from(DestinationKind), NAMES)
SENDERS = st.sampled_from((None, None, None, "ann"))
TRANSACTIONS = st.one_of(
    st.builds(LocalTransactionId, st.sampled_from(["ID:c-1", "", "ü", "c" * 140]), st.integers(-(2**63), 2**63 - 1)),
    st.builds(LocalTransactionId, st.just("ID:c-1"), st.integers(0, 2**29)),
    st.builds(XaTransactionId, st.integers(-5, 5), st.binary(max_size=5), st.binary(max_size=5)),
)
TEXTS = st.none() | st.sampled_from(["", "c-1", "grün", "\ud83d", "k" * 300])
TIMES = st.sampled_from([0, -1, 1_700_000_000_123, 253_402_300_799_999, 253_402_300_800_000, 2**63 - 1])
BODIES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(str.encode),
    st.sampled_from(
        ["나라 흐림".encode(), b"\0", "😀".encode(), b"z" * 20_000, b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80"]
    ),
)
PROPERTIES = st.none() | st.dictionaries(
    st.sampled_from(["colour", "größe", "n"]), st.sampled_from(["red", "\ud83d", 7, 2.5, True, None, b"ab"])
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from([BodyKind.TEXT, *BodyKind]))
    stored = Message(
        draw(DESTINATIONS),
        draw(IDS),
        b"\0\0\0" if kind is BodyKind.BLOB else draw(BODIES),
        kind,
        persistent=draw(st.booleans()),
        priority=draw(st.sampled_from([4, 0, 9, -1, 120])),
        timestamp=draw(TIMES),
    )
    if draw(st.booleans()):
        stored.correlation_id = draw(TEXTS)
        stored.type = draw(TEXTS)
        stored.group_id = draw(TEXTS)
        stored.user_id = draw(TEXTS)
        stored.group_sequence = draw(st.integers(-1, 3))
        stored.reply_to = draw(st.none() | DESTINATIONS)
        stored.original_destination = draw(st.none() | DESTINATIONS)
        stored.redelivery_counter = draw(st.integers(0, 3))
        stored.expiration = draw(TIMES)
        stored.properties = draw(PROPERTIES)
    return stored


@st.composite
def adds(draw: st.DrawFn) -> bytes:
    stored = draw(messages())
    frame = draw(st.sampled_from(sorted(FRAMES.values()))) if draw(st.integers(0, 3)) == 0 else encode_message(stored)
    payload = with_sender(encode_add(stored, frame, draw(st.none() | TRANSACTIONS)), draw(SENDERS))
    return with_operation_hint(payload, 7 << 32) if draw(st.integers(0, 9)) == 0 else payload


@st.composite
def updates(draw: st.DrawFn) -> bytes:
    stored = draw(messages())
    payload = with_sender(encode_update(stored, encode_message(stored)), draw(SENDERS))
    return with_copy_hint(payload, 2**65, 7) if draw(st.booleans()) else payload


@st.composite
def removes(draw: st.DrawFn) -> bytes:
    destination, message_id = draw(DESTINATIONS), draw(IDS)
    ack = draw(st.sampled_from([None, b"", b"noise", b"made"]))
    transaction = draw(st.none() | TRANSACTIONS)
    if ack == b"made":
        cause = draw(st.none() | st.just(("java.lang.Throwable", "too often")))
        kind = draw(st.sampled_from([*map(int, AckType), 99]))
        consumer = draw(st.sampled_from([None, "ID:c:1:2", "ID:ö:1:2"]))
        made = MessageAck(destination, message_id, consumer, transaction, kind, message_id, 3, cause)
        ack = encode_ack(made)
    return encode_remove(destination, message_id, transaction, draw(st.sampled_from([None, "c:n", "ü", ""])), ack)


OTHERS = st.one_of(
    st.builds(encode_commit, TRANSACTIONS),
    st.builds(encode_prepare, TRANSACTIONS),
    st.builds(encode_rollback, TRANSACTIONS),
    st.builds(encode_trace, st.sampled_from([None, "hello", "TANDEMMQ-CLOCK x"])),
    st.builds(encode_clock, st.integers(0, 2**45)),
    st.builds(encode_gone, st.just([3])),
    st.builds(encode_producer_audit, st.binary(max_size=30)),
    st.builds(encode_subscription, st.just(Destination(DestinationKind.TOPIC, "t")), st.just("c"), st.just("n")),
    st.binary(max_size=12),
)


def long_varint(value: int, size: int) -> bytes:
    """A varint with bytes that it does not need."""
    short = encode_varint(value)
    return short if len(short) >= size else short[:-1] + bytes([short[-1] | 0x80, *[0x80] * (size - len(short) - 1), 0])


@st.composite
def oddly_written(draw: st.DrawFn) -> bytes:
    """Return fields of an add or a remove in an order, a number and with lengths of varints that no broker writes."""
    size = st.integers(1, 6)

    def field(tag: int, value: bytes) -> bytes:
        return bytes([tag]) + long_varint(len(value), draw(size)) + value

    stored = Message(Destination(DestinationKind.QUEUE, "q"), "ID:h:1:1:1", b"body", BodyKind.TEXT, timestamp=5)
    destination = b"\x08" + long_varint(0, draw(size)) + field(0x12, b"q")
    message_id = draw(st.sampled_from([b"ID:h:1:1:1", b"7", b"", b":", b"ID:h:1:1:1x"]))
    fields = [field(0x12, destination), field(0x1A, message_id), field(0x22, encode_message(stored))]
    fields += [b"\x28" + long_varint(draw(st.integers(0, 300)), draw(size)), b"\x30" + long_varint(1, draw(size))]
    if draw(st.booleans()):
        connection = field(0x0A, b"ID:c") + b"\x08" + long_varint(draw(st.integers(0, 2**40)), draw(size))
        fields.insert(0, field(0x0A, field(0x0A, connection)))
    if draw(st.booleans()):
        fields = draw(st.permutations(fields))
    if draw(st.booleans()):
        fields = draw(st.lists(st.sampled_from(fields)))
    body = b"".join(fields)
    return bytes([draw(st.sampled_from([1, 1, 2]))]) + long_varint(len(body), draw(size)) + body


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    payload = bytearray(draw(adds() | removes() | updates()))
    for _ in range(draw(st.integers(0, 3))):
        payload[draw(st.integers(0, min(len(payload), 300) - 1))] = draw(st.integers(0, 255))
    return bytes(payload[: draw(st.integers(1, len(payload)))]) if draw(st.integers(0, 3)) == 0 else bytes(payload)


PAYLOADS = st.one_of(adds(), adds(), removes(), removes(), OTHERS, updates(), oddly_written(), bent())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(
    st.lists(st.lists(PAYLOADS, min_size=1, max_size=8), min_size=1, max_size=4),
    st.sampled_from([None, 1, 2, 3, 6, 9, 10, 11, 12]),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=2),
    st.sampled_from(MODES),
    st.sampled_from([1, 3, 10_000]),
    st.sampled_from([1, 100, 8 << 20]),
)
def test_both_decoders_read_the_same(
    tmp_path: Path,
    batches: list[list[bytes]],
    openwire: int | None,
    damage: list[tuple[int, int]],
    mode: str,
    rows_max: int,
    bytes_max: int,
) -> None:
    path = tmp_path / "db-1.log"
    write_foreign(path, batches, size=0)
    content = bytearray(path.read_bytes())
    for place, value in damage:
        content[place % len(content)] = value
    path.write_bytes(content)
    file = JournalFile(str(path), "s", 1, len(content), epoch=7, openwire=openwire)
    same(file, mode=mode, rows_max=rows_max, bytes_max=bytes_max)


def test_the_first_damage_is_the_one_that_is_told(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    unsound = encode_add(Message(Destination(DestinationKind.QUEUE, "q"), "ID:h:1:1:1"), b"\x17 no message")
    write_foreign(path, [[unsound], [unsound], [unsound]], size=0)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # and the batch in the middle does not verify
    path.write_bytes(content)
    file = JournalFile(str(path), "s", 1, len(content), epoch=7)

    for rows_max in (1, 10_000):
        told = lockstep(file, columns.MESSAGES, FAILFAST, payload=True, rows_max=rows_max)
        assert "sound in no version" in told
        assert told == scalar(file, columns.MESSAGES, FAILFAST, payload=True)


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_frames_of_real_clients_read_the_same(tmp_path: Path, name: str) -> None:
    path = tmp_path / "db-1.log"
    payload = encode_add(Message(Destination(DestinationKind.QUEUE, "q"), "ID:h:1:1:1"), FRAMES[name])
    write_foreign(path, [[payload, payload], [payload]])
    for openwire in (None, int(name.rpartition("v")[2])):
        same(JournalFile(str(path), "s", 1, path.stat().st_size, openwire=openwire))


def test_message_ids_of_any_form_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    ids = [b"7", b"ID:h:1:1:1", b"", b"7", b":", b"x:", b":5", b"a:-5", b"a:0x", b"a:" + b"9" * 18, b"a:" + b"9" * 19]
    destination = bytes_field(0x12, b"\x08\x00" + bytes_field(0x12, b"q"))
    frame = encode_message(plain_message())
    bodies = [destination + bytes_field(0x1A, each) + bytes_field(0x22, frame) + b"\x28\4\x30\0" for each in ids]
    write_foreign(path, [[b"\1" + encode_varint(len(body)) + body for body in bodies]])
    same(JournalFile(str(path), "s", 1, path.stat().st_size, openwire=11))


def test_a_store_of_ours_reads_the_same(store: Path) -> None:
    for file in journal_files([str(store)], is_tail_wanted=True):
        same(file)
        same(file, mode=FAILFAST, rows_max=7, bytes_max=2000)


def plain_message(**fields: Any) -> Message:
    options = {"persistent": True, "timestamp": 1_700_000_000_123, **fields}
    return Message(Destination(DestinationKind.QUEUE, "orders"), "ID:h-1:1:1:77", b"ab", BodyKind.TEXT, **options)


FULL = {
    "correlation_id": "c",
    "type": "t",
    "group_id": "g",
    "user_id": "u",
    "reply_to": Destination(DestinationKind.TOPIC, "r"),
    "original_destination": Destination(DestinationKind.QUEUE, "o"),
    "properties": {"n": 1},
}
BENT = {
    "add": lambda: [encode_add(m, encode_message(m)) for m in [plain_message()]],
    "full add": lambda: [encode_add(m, encode_message(m)) for m in [plain_message(**FULL)]],
    "transacted add": lambda: [
        encode_add(m, encode_message(m), LocalTransactionId("ID:c", 300)) for m in [plain_message()]
    ],
    "remove": lambda: [
        encode_remove(
            Destination(DestinationKind.TOPIC, "t"),
            "ID:h-1:1:1:77",
            LocalTransactionId("ID:c", 300),
            "c:n",
            encode_ack(MessageAck(Destination(DestinationKind.TOPIC, "t"), "ID:h-1:1:1:77")),
        ),
        encode_remove(Destination(DestinationKind.QUEUE, "q"), "ID:h-1:1:1:77"),
        encode_commit(LocalTransactionId("ID:c", 300)),
    ],
}


@pytest.mark.parametrize("openwire", [9, 11])
@pytest.mark.parametrize("name", sorted(BENT))
def test_whichever_byte_is_wrong_both_read_the_same(tmp_path: Path, name: str, openwire: int) -> None:
    path = tmp_path / "db-1.log"
    bent_ones = [
        payload[:place] + bytes([value]) + payload[place + 1 :]
        for payload in BENT[name]()
        for place, byte in enumerate(payload)
        for value in sorted({0, 1, 2, 0x7F, 0x80, 0xFF, byte - 1 & 0xFF, byte + 1 & 0xFF, byte ^ 0x80})
    ]
    # each behind a sound one, so that what is shared between rows is shared with these
    write_foreign(path, [[BENT[name]()[0], *bent_ones]])
    same(JournalFile(str(path), "s", 1, path.stat().st_size, openwire=openwire))


@pytest.mark.parametrize("fields", [{}, FULL])
def test_wherever_a_frame_ends_both_read_the_same(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = tmp_path / "db-1.log"
    message = plain_message(**fields)
    frame = encode_message(message)
    cut = []
    for size in range(4, len(frame) + 4):
        claimed = (size - 4).to_bytes(4, "big")
        cut.append(encode_add(message, claimed + frame[4:size].ljust(size - 4, b"\0")))
        cut.append(encode_add(message, frame[:size]))
    write_foreign(path, [cut])
    for openwire in (3, 9, 10, 11):
        same(JournalFile(str(path), "s", 1, path.stat().st_size, openwire=openwire))


def test_nearly_all_of_a_journal_is_read_at_once(store: Path) -> None:
    from tandemmq.pipeline.blocks import blocks
    from tandemmq.pipeline.lockstep_messages import messages
    from tandemmq.pipeline.lockstep_tables import acks, records
    from tandemmq.pipeline.message_rows import STORED
    from tandemmq.pipeline.rows import REMOVED
    from tandemmq.pipeline.walk import walk

    file = journal_files([str(store)])[0]
    (block,) = blocks(walk(file), 10_000)
    fits = records(block, file, 11).fits
    assert not fits[0], "the header of the file"
    assert fits[1:].all()
    assert messages(block.of_kinds(STORED), file, 11, payload=False).fits.all()
    assert acks(block.of_kinds(REMOVED), file, 11).fits.all()


# ---- Record batches hold the rows as they are, in the types that Spark gives the table, and no more than they may


def plain(value: object) -> object:
    """A value of Arrow as rows have it."""
    return int(value.timestamp() * 1_000_000) if hasattr(value, "timestamp") else value


@pytest.mark.parametrize("table", columns.TABLES)
def test_batches_hold_the_rows(store: Path, table: str) -> None:
    for file in journal_files([str(store)], is_tail_wanted=True):
        found = pa.Table.from_batches(record_batches(file, table, rows_max=7))
        assert found.schema == columns.arrow_schema(table)
        assert [tuple(map(plain, row.values())) for row in found.to_pylist()] == list(rows(file, table))


def test_batches_are_bounded_in_rows_and_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    sizes = [100] * 9 + [5000, 100]
    write_foreign(path, [[add(number, b"z" * size)] for number, size in enumerate(sizes, start=1)])
    file = JournalFile(str(path), "s", 1, path.stat().st_size)
    assert [b.num_rows for b in record_batches(file, columns.RECORDS, rows_max=4)] == [4, 4, 3]
    # a text counts twice: as bytes and as text
    assert [b.num_rows for b in record_batches(file, columns.MESSAGES, bytes_max=850)] == [4, 4, 1, 1, 1]


def test_only_the_columns_that_are_wanted_are_made(store: Path) -> None:
    file = journal_files([str(store)])[0]
    (found,) = record_batches(file, columns.RECORDS, ["command", "offset"])
    assert found.schema.names == ["command", "offset"]
    (counted,) = record_batches(file, columns.RECORDS, [])
    assert (counted.num_rows, counted.num_columns) == (found.num_rows, 0)


def test_half_a_character_does_not_stop_a_read(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    halves = {"half\ud83d": "other\ude00"}
    transaction = LocalTransactionId("c\ud83d", 1)
    write_foreign(path, [[add(1, properties=halves, correlation_id="\ud83d"), encode_commit(transaction)]])
    file = JournalFile(str(path), "s", 1, path.stat().st_size)
    (messages,) = record_batches(file, columns.MESSAGES)
    assert messages.column("properties").to_pylist() == [[("half?", "other?")]]
    assert messages.column("correlation_id").to_pylist() == ["?"]
    (records,) = record_batches(file, columns.RECORDS)
    assert records.column("transaction").to_pylist() == [None, "TX:c?:1"]
