"""Bytes that the real KahaDB and OpenWire classes wrote: TandemMQ reads them, and writes the same bytes.

The records are those of KahaDB's shipped fixtures and of classes of 6.4.0-SNAPSHOT (OpenWire 11). The frames are from a
5.17.2 client.
"""

from __future__ import annotations

import json

import pytest

from tandemmq.store.records.acknowledgements import (
    MessageAck,
    SubscriptionInfo,
    decode_ack,
    decode_subscription_info,
    encode_ack,
    encode_subscription_info,
)
from tandemmq.store.records.commands import (
    AckMap,
    AddMessage,
    Commit,
    Prepare,
    ProducerAudit,
    RemoveDestination,
    RemoveMessage,
    Rewritten,
    Rollback,
    Schedule,
    Subscription,
    Trace,
    UpdateMessage,
    decode,
    encode,
    trailing,
)
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import HEADER, BodyKind, Destination, DestinationKind
from tandemmq.store.records.openwire import decode_message, detect_version, encode_message
from tandemmq.store.records.properties import Byte, Float, Long, Short
from tandemmq.store.records.protobuf import bytes_field, encode_varint
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tests.support.tree import FRAMES_FILE

pytestmark = pytest.mark.promise("bytes-are-activemqs")

TOPIC_A = Destination(DestinationKind.TOPIC, "T.A")
LOCAL = LocalTransactionId("ID:host-1-1-1:1", 1)

ADD = (
    "01e301120708001203512e411a1549443a686f73742d312d312d313a313a313a313a3122bc01000000b81c0000000001017b01000f49443a"
    "686f73742d312d312d313a31000000000000000100000000000000010164010003512e410000016e00017b01000f49443a686f73742d312d"
    "312d313a310000000000000001000000000000000100000000000000010000000000000000000000000000000100000000000000000400"
    "0000000000000000000100000007000000036f6e65000000000000000000000000000000000000000000000000000000000000000000"
    "000000000028043000"
)
REMOVE = (
    "02ce01120708001203512e411a1549443a686f73742d312d312d313a313a313a313a3122ab01000000a71600000000010164010003512e"
    "4100017a01000f49443a686f73742d312d312d313a310000000000000001000000000000000102016e00017b01000f49443a686f73742d"
    "312d312d313a310000000000000001000000000000000100000000000000010000000000000000016e00017b01000f49443a686f73742d"
    "312d312d313a3100000000000000010000000000000001000000000000000100000000000000000000000100"
)
ACK_MAP = (
    "aced0005737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f6164466163746f72490009746872"
    "6573686f6c6478703f4000000000000c77080000001000000001737200116a6176612e6c616e672e496e746567657212e2a0a4f7818738"
    "02000149000576616c7565787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b020000787000000001737200116a6176"
    "612e7574696c2e48617368536574ba44859596b8b7340300007870770c000000103f4000000000000171007e00047878"
)

RECORDS = {
    "commit": ("04170a150a130a0f49443a686f73742d312d312d313a310801", Commit(LOCAL)),
    "rollback": ("05180a160a140a0f49443a686f73742d312d312d313a3108ac02", Rollback(LOCAL._replace(value=300))),
    "prepare": ("03170a15121308f9ffffffffffffffff011201091a03010203", Prepare(XaTransactionId(-7, b"\1\2\3", b"\x09"))),
    "prepare with an empty branch": ("030b0a09120708051200" + "1a0104", Prepare(XaTransactionId(5, b"\4", b""))),
    "remove destination": ("06090a0708001203512e42", RemoveDestination(Destination(DestinationKind.QUEUE, "Q.B"))),
    "unsubscribe": ("07130a0708011203542e4112086369643a73756232", Subscription(TOPIC_A, "cid:sub2")),
    "subscribe": (
        "07420a0708011203542e4112086369643a737562311800222b00000027370100036369640165010003542e4101000561203d2031"
        "010004737562310165010003542e4101",
        Subscription(TOPIC_A, "cid:sub1", SubscriptionInfo("cid", TOPIC_A, "sub1", "a = 1", TOPIC_A, True)),
    ),
    "unmatched topic remove": (
        "022c120708011203542e411a1549443a686f73742d312d312d313a313a313a313a3522002a086369643a73756231",
        RemoveMessage(TOPIC_A, "ID:host-1-1-1:1:1:1:5", None, "cid:sub1", b""),
    ),
    "rewritten": ("100408021001", Rewritten(2, 1)),
    "trace": ("00250a23" + b"LOADED Wed Jul 08 16:03:02 GMT 2015".hex(), Trace("LOADED Wed Jul 08 16:03:02 GMT 2015")),
    "trace without text": ("0000", Trace(None)),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_the_real_classes_is_read_and_written_alike(name: str) -> None:
    written, command = RECORDS[name]

    decoded = decode(bytes.fromhex(written))

    assert (type(decoded), decoded) == (type(command), command)
    assert encode(command).hex() == written


def test_an_add_of_the_real_classes_is_read_and_written_alike() -> None:
    command = decode(bytes.fromhex(ADD))

    assert isinstance(command, AddMessage)
    assert command.destination == Destination(DestinationKind.QUEUE, "Q.A")
    assert command.message_id == "ID:host-1-1-1:1:1:1:1"
    assert (command.priority, command.priority_supported, command.transaction) == (4, False, None)
    message = decode_message(command.message)
    assert (message.body_kind, message.body, message.message_id) == (BodyKind.TEXT, b"one", command.message_id)
    assert message.persistent
    assert encode(command).hex() == ADD
    # The client requested a response, and the broker had not numbered it yet: all other bytes are the same.
    assert set(_differences(encode_message(message), command.message)) == {9, 110}


def test_an_update_holds_a_whole_add() -> None:
    payload = b"\x0a\xe6\x01\x0a\xe3\x01" + bytes.fromhex(ADD)[3:]

    command = decode(payload)

    assert isinstance(command, UpdateMessage)
    assert command.add == decode(bytes.fromhex(ADD))
    assert encode(command) == payload


def test_a_queue_remove_carries_an_acknowledgement() -> None:
    command = decode(bytes.fromhex(REMOVE))

    assert isinstance(command, RemoveMessage)
    assert (command.message_id, command.subscription_key) == ("ID:host-1-1-1:1:1:1:1", None)
    assert command.ack is not None
    ack = decode_ack(command.ack)
    first = last = "ID:host-1-1-1:1:1:1:1"
    assert ack == MessageAck(command.destination, last, "ID:host-1-1-1:1:1:1", None, 2, first, 1)
    assert encode(command).hex() == REMOVE


def test_a_subscription_of_version_6_has_no_no_local_flag() -> None:
    info = bytes.fromhex(
        "0000002e3701000474657374016501000a746573742e746f70696300010004746573740165" + "01000a746573742e746f706963"
    )

    decoded = decode_subscription_info(info)

    topic = Destination(DestinationKind.TOPIC, "test.topic")
    assert decoded == SubscriptionInfo("test", topic, "test", None, topic, no_local=None)
    assert encode_subscription_info(decoded) == info


def test_audits_and_maps_stay_bytes() -> None:
    ack_map = bytes.fromhex(ACK_MAP)
    body = bytes_field(0x0A, ack_map)

    assert decode(b"\x09" + encode_varint(len(body)) + body) == AckMap(ack_map)
    assert decode(b"\x08" + encode_varint(len(body)) + body) == ProducerAudit(ack_map)


def test_scheduler_commands_are_reported() -> None:
    assert decode(b"\x0f\x07\x0a\x05JobID") == Schedule(15, {1: "JobID"})
    added = decode(b"\x0b\x11\x0a\x01s\x12\x01j\x18\x05\x38\x03\x42\x03\xff\xfe\xfd\x48\x07")
    assert added == Schedule(11, {1: "s", 2: "j", 3: 5, 7: 3, 8: b"\xff\xfe\xfd", 9: 7})


def test_bytes_behind_a_command_are_ignored_but_can_be_had() -> None:
    payload = bytes.fromhex(RECORDS["commit"][0]) + b"private"

    assert decode(payload) == Commit(LOCAL)
    assert trailing(payload) == b"private"


def test_unknown_commands_and_fields_are_damage() -> None:
    for payload in (b"", b"\x28\x00", b"\x00\x02\x12\x00", b"\x04\x00", b"\x00\x05\x0a\x00"):
        with pytest.raises(RecordDamaged):
            decode(payload)


# ---- OpenWire frames of a real client

FRAMES = {name: bytes.fromhex(frame) for name, frame in json.loads(FRAMES_FILE.read_text()).items()}
QUEUE = Destination(DestinationKind.QUEUE, "TEST.Q")
CONNECTION = "ID:host-5001-1700000000000-1:1"


@pytest.mark.parametrize("version", [1, 2, 3, 6, 9, 10, 11, 12])
def test_a_text_message_of_a_java_client_is_read_in_every_version(version: int) -> None:
    frame = FRAMES[f"ActiveMQTextMessage-properties v{version}"]

    message = decode_message(frame, version)

    assert message.body.decode() == "héllo 😀"
    assert (message.message_id, message.destination) == (f"{CONNECTION}:1:1:7", QUEUE)
    assert message.reply_to == Destination(DestinationKind.TEMP_QUEUE, f"{CONNECTION}:1")
    assert (message.group_id, message.group_sequence, message.correlation_id) == ("g1", 2, "corr-1")
    assert (message.type, message.timestamp, message.priority) == ("order", 1700000000123, 4)
    assert message.properties is not None
    assert {name: (type(value), value) for name, value in message.properties.items()} == {
        "b": (bool, True),
        "s": (str, "str"),
        "d": (float, -2.25),
        "sh": (Short, -300),
        "f": (Float, 1.5),
        "by": (Byte, -5),
        "i": (int, 70000),
        "l": (Long, 5000000000),
        "n": (type(None), None),
    }


@pytest.mark.parametrize(("version", "layout"), [(1, 1), (2, 2), (3, 6), (6, 6), (9, 6), (10, 11), (11, 11), (12, 11)])
def test_the_version_of_a_store_shows_in_its_frames(version: int, layout: int) -> None:
    assert detect_version([FRAMES[f"ActiveMQTextMessage-properties v{version}"]]) == layout


def test_frames_of_two_versions_have_none_in_common() -> None:
    frames = [FRAMES["ActiveMQTextMessage-properties v9"], FRAMES["ActiveMQTextMessage-properties v11"]]

    assert detect_version(frames) is None


@pytest.mark.parametrize("kind", ["", "Text", "Bytes", "Map", "Stream", "Object", "Blob"])
def test_a_message_of_a_java_client_is_written_as_java_wrote_it(kind: str) -> None:
    frame = FRAMES[f"ActiveMQ{kind}Message{'-properties' if kind == 'Text' else ''} v11"]

    again = encode_message(decode_message(frame))

    assert _differences(again, frame).keys() <= {*range(6, 10), *range(136, 144), *_broker_in_time(again, kind)}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ActiveMQTextMessage-transacted", b"tx"),
        ("ActiveMQTextMessage-foreignId", b"x"),
        ("ActiveMQBytesMessage", b"\0\xff\x10\x2a"),
        ("ActiveMQBytesMessage-compressed", b"a" * 64),
        ("ActiveMQTextMessage-compressed", b"a" * 40),
        ("ActiveMQMapMessage-empty", b""),
    ],
)
def test_bodies_and_ids_come_out_of_all_dressings(name: str, body: bytes) -> None:
    frame = next(frame for key, frame in FRAMES.items() if key.startswith(f"{name} v"))

    message = decode_message(frame)

    assert (message.message_id, message.body) == (f"{CONNECTION}:1:1:7", body)


def test_nested_properties_keep_their_shape() -> None:
    message = decode_message(FRAMES["ActiveMQTextMessage-nestedProperties v12"])

    assert message.properties == {"m": {"k": [1, "x", {"z": False}]}, "bytes": message.properties["bytes"]}
    assert decode_message(encode_message(message)).properties == message.properties


def test_every_field_is_stepped_over_or_kept() -> None:
    message = decode_message(FRAMES["Message-wideFields v12"])

    assert message.message_id.startswith(f"{CONNECTION}:-1:4294967296:")
    assert message.original_destination == Destination(DestinationKind.QUEUE, "O")
    assert (message.expiration, message.priority, message.redelivery_counter) == (1700000000999, 9, 3)
    assert message.user_id == "u"
    again = decode_message(encode_message(message))
    kept = {*HEADER, "body", "properties"} - {"broker_sequence"}
    assert [getattr(again, name) for name in kept] == [getattr(message, name) for name in kept]


@pytest.mark.parametrize("version", [1, 2, 3, 6, 9, 10, 11, 12])
def test_an_acknowledgement_of_a_java_client_is_read_in_every_version(version: int) -> None:
    ack = decode_ack(FRAMES[f"MessageAck-standard v{version}"], version)

    assert ack == MessageAck(QUEUE, f"{CONNECTION}:1:1:9", f"{CONNECTION}:1:1", None, 2, f"{CONNECTION}:1:1:7", 3)
    assert decode_ack(encode_ack(ack)) == ack


def test_an_acknowledgement_carries_its_cause_and_its_transaction() -> None:
    poison = decode_ack(FRAMES["MessageAck-poison v11"])
    transacted = decode_ack(FRAMES["MessageAck-transacted-individual v11"])

    assert poison.poison_cause == ("java.lang.Throwable", "too many")
    assert transacted.transaction == LocalTransactionId(CONNECTION, 1)
    assert (decode_ack(encode_ack(poison)), decode_ack(encode_ack(transacted))) == (poison, transacted)


def test_a_compressed_body_that_is_cut_is_damage() -> None:
    frame = bytearray(FRAMES["ActiveMQTextMessage-compressed v12"])
    start = frame.index(b"\x78\x9c")
    frame[start + 8] ^= 0xFF

    with pytest.raises(RecordDamaged):
        decode_message(bytes(frame))


def _differences(one: bytes, other: bytes) -> dict[int, tuple[int, int]]:
    assert len(one) == len(other)
    return {at: (a, b) for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b}


def _broker_in_time(frame: bytes, kind: str) -> range:
    end = len(frame) - 9 - (27 if kind == "Blob" else 0)
    return range(end - 8, end)
