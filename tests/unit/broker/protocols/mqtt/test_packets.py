"""The packet codec: the examples of the standards, any packets in any pieces, invalid packets, and the limits."""

# proves: user-properties-are-limited-in-bytes

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.protocols.mqtt import packets
from tandemmq.broker.protocols.mqtt.packets import (
    Acknowledgement,
    Authentication,
    Connect,
    Disconnect,
    Filter,
    Packet,
    PacketType,
    PingRequest,
    Publish,
    Subscribe,
    Unsubscribe,
    Version,
    Will,
)
from tandemmq.broker.protocols.mqtt.parser import FILTER_BYTES_AT_ONCE, FILTERS_AT_ONCE, FILTERS_MAX, PacketParser
from tandemmq.broker.protocols.mqtt.properties import NONE, USER_BYTES_MAX, USER_PROPERTIES_MAX, Properties, write_text
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError, Reason, has_return_code, return_code
from tests.support.fuzz import mqtt as fuzz
from tests.support.protocols.mqtt.client_packets import ServerPacket, decode, decode_all, encode, framed
from tests.support.prove import SEED

V3_1, V3_1_1, V5 = Version.V3_1, Version.V3_1_1, Version.V5
VERSIONS = [V3_1, V3_1_1, V5]
PACKET_BYTES_MAX = 1 << 20


def parser_of(version: Version | None, packet_bytes_max: int = PACKET_BYTES_MAX) -> PacketParser:
    """A parser behind a CONNECT of that version."""
    parser = PacketParser(packet_bytes_max)
    if version is not None:
        parser.feed(encode(Connect(version, "c", True, 0, None, None, None, NONE)))
        assert isinstance(parser.next_packet(), Connect)
    return parser


def parse(pieces: list[bytes], version: Version | None = None) -> list[Packet]:
    return fetch(parser_of(version), pieces)


def fetch(parser: PacketParser, pieces: list[bytes]) -> list[Packet]:
    found = []
    for piece in pieces:
        parser.feed(piece)
        while (packet := parser.next_packet()) is not None or parser.is_reading:
            if packet is not None:
                found.append(packet)
    return found


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


FIGURE_3_6 = Connect(V3_1_1, "id", True, 10, Will("w", b"W", 1, False, NONE), "u", b"p", NONE)
PAYLOAD_3_6 = "0002 6964 0001 77 0001 57 0001 75 0001 70"
SAMPLES: list[tuple[str, Version | None, str, list[Packet]]] = [
    # MQTT 3.1.1, Figure 3.6, with a payload
    ("CONNECT of 3.1.1", None, f"101A 0004 4D515454 04 CE 000A {PAYLOAD_3_6}", [FIGURE_3_6]),
    (
        # MQTT 5.0, 3.1.2.12, with a payload
        "CONNECT of 5.0",
        None,
        "1021 0004 4D515454 05 CE 000A 05 11 0000000A 0002 6964 00 0001 77 0001 57 0001 75 0001 70",
        [Connect(V5, "id", True, 10, Will("w", b"W", 1, False, NONE), "u", b"p", Properties(session_expiry=10))],
    ),
    (
        "CONNECT of 3.1, with flags that it does not use, and neither user name nor password in spite of theirs",
        None,
        "1F10 0006 4D5149736470 03 EB 003C 0002 6964",
        [Connect(V3_1, "id", True, 60, None, None, None, NONE)],
    ),
    (
        "CONNECT of 3.1 whose password is missing",
        None,
        "1012 0006 4D5149736470 03 C0 003C 0001 69 0001 75",
        [Connect(V3_1, "i", False, 60, None, "u", None, NONE)],
    ),
    (
        "a client identifier that the server is to choose",
        None,
        "100C 0004 4D515454 04 02 0000 0000",
        [Connect(V3_1_1, "", True, 0, None, None, None, NONE)],
    ),
    (
        "in 5.0 also without clean start, and a password alone",
        None,
        "1010 0004 4D515454 05 40 0000 00 0000 0001 70",
        [Connect(V5, "", False, 0, None, None, b"p", NONE)],
    ),
    # MQTT 3.1.1, Figure 3.11, and 5.0, Figure 3-9
    ("PUBLISH of 3.1.1", V3_1_1, "3207 0003 612F62 000A", [Publish("a/b", b"", 1, False, False, 10, NONE)]),
    ("PUBLISH of 5.0", V5, "3208 0003 612F62 000A 00", [Publish("a/b", b"", 1, False, False, 10, NONE)]),
    ("PUBLISH of QoS 0", V3_1_1, "3107 0003 612F62 6869", [Publish("a/b", b"hi", 0, True, False, 0, NONE)]),
    ("PUBLISH again", V5, "3C09 0003 612F62 000A 00 21", [Publish("a/b", b"!", 2, False, True, 10, NONE)]),
    ("DUP with QoS 0 in 3.1", V3_1, "3805 0003 612F62", [Publish("a/b", b"", 0, False, True, 0, NONE)]),
    (
        "PUBLISH with an alias alone",
        V5,
        "3007 0000 03 230001 21",
        [Publish("", b"!", 0, False, False, 0, Properties(topic_alias=1))],
    ),
    ("PUBACK", V3_1_1, "4002 000A", [Acknowledgement(PacketType.PUBACK, 10, 0, NONE)]),
    ("PUBREC with a reason", V5, "5003 000A 10", [Acknowledgement(PacketType.PUBREC, 10, 0x10, NONE)]),
    ("PUBREL", V5, "6202 000A", [Acknowledgement(PacketType.PUBREL, 10, 0, NONE)]),
    ("PUBREL again in 3.1", V3_1, "6A02 000A", [Acknowledgement(PacketType.PUBREL, 10, 0, NONE)]),
    (
        "PUBCOMP with properties",
        V5,
        "7008 000A 92 04 1F 0001 78",
        [Acknowledgement(PacketType.PUBCOMP, 10, 0x92, Properties(reason_string="x"))],
    ),
    # MQTT 3.1.1, Figure 3.22, and 5.0, 3.8.3
    (
        "SUBSCRIBE of 3.1.1",
        V3_1_1,
        "820E 000A 0003 612F62 01 0003 632F64 02",
        [Subscribe(10, (Filter("a/b", 1, False, False, 0), Filter("c/d", 2, False, False, 0)), NONE)],
    ),
    (
        "SUBSCRIBE of 5.0",
        V5,
        "8211 000A 02 0B 7F 0003 612F62 01 0003 632F64 2E",
        [
            Subscribe(
                10,
                (Filter("a/b", 1, False, False, 0), Filter("c/d", 2, True, True, 2)),
                Properties(subscription_ids=(127,)),
            )
        ],
    ),
    (
        "SUBSCRIBE of 3.1 has bits that it does not use",
        V3_1,
        "8A08 000A 0003 612F62 FD",
        [Subscribe(10, (Filter("a/b", 1, False, False, 0),), NONE)],
    ),
    # MQTT 3.1.1, Figure 3.30
    ("UNSUBSCRIBE", V3_1_1, "A20C 000A 0003 612F62 0003 632F64", [Unsubscribe(10, ("a/b", "c/d"), NONE)]),
    ("PINGREQ", V3_1_1, "C000", [PingRequest()]),
    ("DISCONNECT", V3_1_1, "E000", [Disconnect(0, NONE)]),
    ("DISCONNECT with a reason", V5, "E001 04", [Disconnect(4, NONE)]),
    ("DISCONNECT with properties", V5, "E007 00 05 11 00000001", [Disconnect(0, Properties(session_expiry=1))]),
    ("AUTH", V5, "F006 18 04 15 0001 78", [Authentication(0x18, Properties(authentication_method="x"))]),
    # MQTT 5.0, 1.5.4: A, then U+2A6D4; and a byte order mark that is a character as any other
    ("a string", V5, "3008 0005 41F0AA9B94 00", [Publish("A\U0002a6d4", b"", 0, False, False, 0, NONE)]),
    ("U+FEFF", V5, "3006 0003 EFBBBF 00", [Publish("\ufeff", b"", 0, False, False, 0, NONE)]),
    ("a longer remaining length in 3.1.1", V3_1_1, "C0808000", [PingRequest()]),
]


@pytest.mark.parametrize(("version", "data", "expected"), [s[1:] for s in SAMPLES], ids=[s[0] for s in SAMPLES])
def test_a_sample_is_read_in_any_pieces(version: Version | None, data: str, expected: list[Packet]) -> None:
    whole = bytes.fromhex(data)
    assert parse([whole], version) == expected
    assert parse(single_bytes(whole), version) == expected
    for cut in range(len(whole)):
        assert parse([whole[:cut], whole[cut:]], version) == expected
    assert parse([whole + b"\xc0", b"\0"], version) == [*expected, PingRequest()]


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_any_packets_come_out_as_they_went_in_however_they_were_cut(version: Version, data: st.DataObject) -> None:
    following = data.draw(st.permutations(fuzz.samples(version)))
    expected = [data.draw(st.sampled_from(fuzz.greetings(version))), *following]
    stream = b"".join(encode(packet, version) for packet in expected)
    assert parse([stream]) == expected
    assert parse(single_bytes(stream)) == expected
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    parser = PacketParser(PACKET_BYTES_MAX)
    assert fetch(parser, [*pieces, b"\x30\x7f"]) == expected
    assert parser.unfinished_bytes == 2


def connect(rest: str, flags: str = "02", level: str = "05", name: str = "0004 4D515454") -> str:
    """A CONNECT, with what stands behind its keep alive."""
    return framed(0x10, bytes.fromhex(f"{name} {level} {flags} 0000 {rest}")).hex()


def of(first: int, body: str) -> str:
    return framed(first, bytes.fromhex(body)).hex()


MALFORMED, PROTOCOL = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR
UNSUPPORTED, BAD_ID = Reason.UNSUPPORTED_PROTOCOL_VERSION, Reason.CLIENT_IDENTIFIER_NOT_VALID
BAD_TOPIC, BAD_FILTER = Reason.TOPIC_NAME_INVALID, Reason.TOPIC_FILTER_INVALID
MISTAKES: list[tuple[str, Version | None, str, Reason]] = [
    ("the first packet is PINGREQ", None, "C000", PROTOCOL),
    ("the first packet is of HTTP", None, b"GET / HTTP/1.1\r\n".hex(), PROTOCOL),
    ("a second CONNECT", V5, connect("00 0001 69"), PROTOCOL),
    *((f"a client sends type {kind}", V5, of(kind << 4, "0001"), PROTOCOL) for kind in (2, 9, 11, 13)),
    ("packet type 0", V5, "0000", MALFORMED),
    ("packet type 15 in 3.1.1", V3_1_1, "F000", MALFORMED),
    # the remaining length
    ("five bytes of length", V5, "3080808080", MALFORMED),
    ("the length of a variable byte integer that is too long", V3_1_1, "30FFFFFFFF01", MALFORMED),
    ("a length of two bytes for one", V5, "C08000", MALFORMED),
    ("a length of three bytes for two", V5, "30FF8000", MALFORMED),
    ("a CONNECT with a length of two bytes for one", None, "108D00 0004 4D515454 05 02 0000 00 0000", MALFORMED),
    # flags
    *(
        (f"flags of type {kind}", version, of(kind << 4 | (0 if kind in (6, 8, 10) else 2), "0001"), MALFORMED)
        for kind in (4, 5, 6, 7, 8, 10, 12, 14)
        for version in (V3_1_1, V5)
    ),
    ("flags of AUTH", V5, "F100", MALFORMED),
    ("flags of CONNECT", None, "11" + connect("00 0001 69")[2:], MALFORMED),
    *((f"QoS 3 of PUBLISH in {version.name}", version, "3605 0001 61 0001", MALFORMED) for version in VERSIONS),
    ("DUP with QoS 0", V5, "3804 0001 61 00", MALFORMED),
    ("DUP with QoS 0 in 3.1.1", V3_1_1, "3803 0001 61", MALFORMED),
    # CONNECT
    ("another protocol", None, connect("00 0001 69", name="0004 4D515455"), UNSUPPORTED),
    ("the old name with the new level", None, connect("0001 69", level="04", name="0006 4D5149736470"), UNSUPPORTED),
    ("level 6", None, connect("00 0001 69", level="06"), UNSUPPORTED),
    ("level 3 with the new name", None, connect("0001 69", level="03"), UNSUPPORTED),
    ("the reserved flag", None, connect("00 0001 69", "03"), MALFORMED),
    ("the reserved flag in 3.1.1", None, connect("0001 69", "03", "04"), MALFORMED),
    ("QoS 3 of a will", None, connect("00 0001 69 00 0001 77 0000", "1E"), MALFORMED),
    ("QoS of no will", None, connect("00 0001 69", "0A"), MALFORMED),
    ("retain of no will", None, connect("0001 69", "22", "04"), MALFORMED),
    ("no topic of the will", None, connect("00 0001 69", "06"), MALFORMED),
    ("an empty topic of the will", None, connect("00 0001 69 00 0000 0000", "06"), BAD_TOPIC),
    ("a wildcard as the topic of the will", None, connect("0001 69 0001 23 0000", "06", "04"), BAD_TOPIC),
    ("a user name that is missing", None, connect("00 0001 69", "82"), MALFORMED),
    ("a password that is missing", None, connect("0001 69 0001 75", "C2", "04"), MALFORMED),
    ("a user name without its flag", None, connect("00 0001 69 0001 75"), MALFORMED),
    ("a password without a user name in 3.1.1", None, connect("0001 69 0001 70", "42", "04"), MALFORMED),
    ("a user name that is not UTF-8", None, connect("00 0001 69 0001 FF", "82"), MALFORMED),
    ("no client identifier", None, connect("00"), MALFORMED),
    ("an empty client identifier without clean session", None, connect("0000", "00", "04"), BAD_ID),
    ("an empty client identifier in 3.1", None, connect("0000", "02", "03", "0006 4D5149736470"), BAD_ID),
    ("CONNECT ends before its flags", None, "1007 0004 4D515454 05", MALFORMED),
    ("data without a method", None, connect("04 16 0001 78 0001 69"), PROTOCOL),
    # strings
    ("a surrogate", V5, of(0x30, "0003 EDA080 00"), MALFORMED),
    ("U+0000", V5, of(0x30, "0003 610062 00"), MALFORMED),
    ("U+0000 in 3.1.1", V3_1_1, of(0x30, "0001 00"), MALFORMED),
    ("an overlong encoding", V5, of(0x30, "0002 C080 00"), MALFORMED),
    ("UTF-8 cut off", V3_1_1, of(0x30, "0001 C3"), MALFORMED),
    ("a string longer than its packet", V5, of(0x30, "0005 61"), MALFORMED),
    # PUBLISH
    ("no topic", V5, of(0x30, "00"), MALFORMED),
    ("no room for a packet identifier", V5, of(0x32, "0001 61 00"), MALFORMED),
    ("no properties", V5, of(0x30, "0001 61"), MALFORMED),
    ("packet identifier 0", V5, of(0x32, "0001 61 0000 00"), PROTOCOL),
    ("packet identifier 0 in 3.1.1", V3_1_1, of(0x34, "0001 61 0000"), PROTOCOL),
    ("an empty topic in 3.1.1", V3_1_1, of(0x30, "0000"), BAD_TOPIC),
    ("an empty topic and no alias", V5, of(0x30, "0000 00"), PROTOCOL),
    ("a wildcard as a topic", V5, of(0x30, "0003 612F23 00"), BAD_TOPIC),
    ("another wildcard as a topic", V3_1, of(0x30, "0003 612F2B"), BAD_TOPIC),
    ("alias 0", V5, of(0x30, "0001 61 03 230000"), Reason.TOPIC_ALIAS_INVALID),
    ("a wildcard as the response topic", V5, of(0x30, "0001 61 04 08 0001 23"), PROTOCOL),
    ("an empty response topic", V5, of(0x30, "0001 61 03 08 0000"), PROTOCOL),
    ("a subscription identifier of a client", V5, of(0x30, "0001 61 02 0B01"), PROTOCOL),
    ("payload format 2", V5, of(0x30, "0001 61 02 0102"), PROTOCOL),
    # acknowledgements
    *(
        (f"packet identifier 0 of type {kind}", V5, of(kind << 4 | (kind == 6) << 1, "0000"), PROTOCOL)
        for kind in (4, 5, 6, 7)
    ),
    ("an acknowledgement of nothing", V3_1_1, "4001 00", MALFORMED),
    ("a reason code in 3.1.1", V3_1_1, "4003 0001 00", MALFORMED),
    ("a reason code that PUBACK does not have", V5, "4003 0001 92", PROTOCOL),
    ("a reason code that PUBREC does not have", V5, "5003 0001 01", PROTOCOL),
    ("a reason code that PUBREL does not have", V5, "6203 0001 80", PROTOCOL),
    ("a reason code that PUBCOMP does not have", V5, "7003 0001 10", PROTOCOL),
    ("bytes behind an acknowledgement", V5, "4005 0001 00 00 00", MALFORMED),
    # SUBSCRIBE and UNSUBSCRIBE
    *(
        (f"SUBSCRIBE to nothing in {version.name}", version, of(0x82, "0001" + "00" * (version is V5)), PROTOCOL)
        for version in VERSIONS
    ),
    *(
        (f"UNSUBSCRIBE from nothing in {version.name}", version, of(0xA2, "0001" + "00" * (version is V5)), PROTOCOL)
        for version in VERSIONS
    ),
    ("packet identifier 0 of SUBSCRIBE", V5, of(0x82, "0000 00 0001 61 00"), PROTOCOL),
    ("packet identifier 0 of UNSUBSCRIBE", V3_1_1, of(0xA2, "0000 0001 61"), PROTOCOL),
    ("QoS 3 of a subscription", V5, of(0x82, "0001 00 0001 61 03"), PROTOCOL),
    ("QoS 3 of a subscription in 3.1.1", V3_1_1, of(0x82, "0001 0001 61 03"), MALFORMED),
    ("QoS 3 of a subscription in 3.1", V3_1, of(0x82, "0001 0001 61 03"), MALFORMED),
    ("no options", V5, of(0x82, "0001 00 0001 61"), MALFORMED),
    ("reserved bits beside the QoS", V3_1_1, of(0x82, "0001 0001 61 04"), MALFORMED),
    ("reserved options", V5, of(0x82, "0001 00 0001 61 40"), MALFORMED),
    ("retain handling 3", V5, of(0x82, "0001 00 0001 61 30"), PROTOCOL),
    ("no local of a shared subscription", V5, of(0x82, "0001 00 000A 2473686172652F672F61 04"), PROTOCOL),
    ("a shared subscription of nothing", V5, of(0x82, "0001 00 0008 2473686172652F67 00"), BAD_FILTER),
    ("an empty filter", V5, of(0x82, "0001 00 0000 00"), BAD_FILTER),
    ("a wildcard beside something", V3_1_1, of(0x82, "0001 0002 6123 00"), BAD_FILTER),
    ("a filter that is not UTF-8", V3_1_1, of(0x82, "0001 0001 FF 00"), MALFORMED),
    ("an empty filter of UNSUBSCRIBE", V5, of(0xA2, "0001 00 0000"), BAD_FILTER),
    ("a filter of UNSUBSCRIBE that is not UTF-8", V3_1_1, of(0xA2, "0001 0001 FF"), MALFORMED),
    ("a wildcard beside something in UNSUBSCRIBE", V3_1_1, of(0xA2, "0001 0002 2B61"), BAD_FILTER),
    ("subscription identifier 0", V5, of(0x82, "0001 02 0B00 0001 61 00"), PROTOCOL),
    ("two subscription identifiers", V5, of(0x82, "0001 04 0B010B02 0001 61 00"), PROTOCOL),
    # DISCONNECT, AUTH and the rest
    ("a payload of PINGREQ", V5, "C00100", MALFORMED),
    ("a payload of DISCONNECT in 3.1.1", V3_1_1, "E00100", MALFORMED),
    ("a reason code that only a server has", V5, "E0018B", PROTOCOL),
    ("an unknown reason code", V5, "E00105", PROTOCOL),
    ("a server reference of a client", V5, of(0xE0, "00 04 1C 0001 78"), MALFORMED),
    ("AUTH without a reason", V5, "F000", PROTOCOL),
    ("AUTH of success by a client", V5, of(0xF0, "00 04 15 0001 78"), PROTOCOL),
    ("AUTH without a method", V5, of(0xF0, "18 00"), PROTOCOL),
    # properties
    ("an unknown property", V5, of(0x30, "0001 61 02 0401"), MALFORMED),
    ("a property of another packet", V5, of(0x30, "0001 61 05 11 00000001"), MALFORMED),
    ("a property twice", V5, of(0x30, "0001 61 04 0101 0101"), PROTOCOL),
    ("a property of CONNECT twice", None, connect("06 210001 210001 0001 69"), PROTOCOL),
    ("properties longer than their packet", V5, of(0x30, "0001 61 05 0101"), MALFORMED),
    ("a property longer than the properties", V5, of(0x30, "0001 61 03 02 0000"), MALFORMED),
    ("a property that reaches into the payload", V5, of(0x30, "0001 61 03 03 0001 78"), MALFORMED),
    ("a length of properties in too many bytes", V5, of(0x30, "0001 61 8000"), MALFORMED),
    ("a length of properties of five bytes", V5, of(0x30, "0001 61 8080808000"), MALFORMED),
    ("a user property that is not UTF-8", V5, of(0x30, "0001 61 06 26 0001FF 0000"), MALFORMED),
    ("receive maximum 0", None, connect("03 210000 0001 69"), PROTOCOL),
    ("maximum packet size 0", None, connect("05 27 00000000 0001 69"), PROTOCOL),
    ("request problem information 2", None, connect("02 1702 0001 69"), PROTOCOL),
    ("request response information 2", None, connect("02 1902 0001 69"), PROTOCOL),
    ("a will delay among the properties of CONNECT", None, connect("05 18 00000001 0001 69"), MALFORMED),
    ("a topic alias of a will", None, connect("00 0001 69 03 230001 0001 77 0000", "06"), MALFORMED),
]


@pytest.mark.parametrize(("version", "data", "reason"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
@pytest.mark.parametrize("cut", [lambda data: [data], single_bytes], ids=["whole", "byte by byte"])
def test_a_mistake_has_its_reason_code(cut, version: Version | None, data: str, reason: Reason) -> None:
    with pytest.raises(MqttError) as caught:
        parse(cut(bytes.fromhex(data)), version)
    assert caught.value.reason is reason
    assert caught.value.message


@pytest.mark.parametrize("first", ["00", "20", "36", "38", "90", "83", "10"])
def test_a_packet_that_no_client_may_send_is_refused_before_it_is_complete(first: str) -> None:
    for rest in ("", "FF", "FFFF7F", "7F0001"):
        parser = parser_of(V5)
        parser.feed(bytes.fromhex(first + rest))
        with pytest.raises(MqttError) as caught:
            parser.next_packet()
        assert caught.value.reason in (MALFORMED, PROTOCOL)


def test_a_packet_beyond_the_limit_is_refused_by_its_header_alone() -> None:
    parser = parser_of(V5, 200)
    fits = encode(Publish("a", b"x" * 193, 0, False, False, 0, NONE))
    assert len(fits) == 200
    assert len(fetch(parser, [fits, *single_bytes(fits)])) == 2
    assert parser.unfinished_bytes == 0
    parser.feed(encode(Publish("a", b"x" * 194, 0, False, False, 0, NONE))[:3])
    with pytest.raises(MqttError) as caught:
        parser.next_packet()
    assert caught.value.reason is Reason.PACKET_TOO_LARGE


def test_the_limit_may_change_between_two_packets() -> None:
    parser = parser_of(V3_1_1, 30)
    ping = encode(PingRequest())
    large = encode(Publish("a", b"x" * 100, 0, False, False, 0, NONE), V3_1_1)
    parser.feed(ping + large)
    assert parser.next_packet() == PingRequest()
    parser.packet_bytes_max = 200
    assert isinstance(parser.next_packet(), Publish)


@pytest.mark.parametrize(
    ("packet", "most"),
    [
        (lambda count: Subscribe(1, (Filter("a", 0, False, False, 0),) * count, NONE), FILTERS_MAX),
        (lambda count: Unsubscribe(1, ("a",) * count, NONE), FILTERS_MAX),
        (
            lambda count: Publish("a", b"", 0, False, False, 0, Properties(user=(("a", "b"),) * count)),
            USER_PROPERTIES_MAX,
        ),
    ],
    ids=["SUBSCRIBE", "UNSUBSCRIBE", "user properties"],
)
def test_no_packet_has_more_parts_than_the_limit(packet: Callable[[int], Packet], most: int) -> None:
    assert parse([encode(packet(most))], V5) == [packet(most)]
    with pytest.raises(MqttError) as caught:
        parse([encode(packet(most + 1))], V5)
    assert caught.value.reason is Reason.QUOTA_EXCEEDED


@pytest.mark.promise("others-are-served")
@pytest.mark.parametrize("bytes_of_each", [1, 1_000])
@pytest.mark.parametrize("kind", [Subscribe, Unsubscribe])
def test_very_many_filters_of_one_packet_are_read_in_steps(kind: type[Packet], bytes_of_each: int) -> None:
    text = "a" * bytes_of_each
    each: Any = Filter(text, 0, False, False, 0) if kind is Subscribe else text
    packet = kind(1, (each,) * FILTERS_MAX, NONE)
    parser = parser_of(V5, 1 << 21)
    parser.feed(encode(packet) + encode(PingRequest()))
    steps = 1
    while (found := parser.next_packet()) is None:
        assert parser.is_reading
        steps += 1
    at_once = min(FILTERS_AT_ONCE, FILTER_BYTES_AT_ONCE // bytes_of_each)
    assert steps >= FILTERS_MAX // at_once
    assert found == packet
    assert not parser.is_reading
    assert parser.next_packet() == PingRequest()


def test_bytes_that_come_while_filters_are_read_follow_their_packet() -> None:
    packet = Unsubscribe(1, ("a",) * FILTERS_MAX, NONE)
    parser = parser_of(V5)
    parser.feed(encode(packet))
    assert parser.next_packet() is None
    assert fetch(parser, [encode(PingRequest())]) == [packet, PingRequest()]


def test_user_properties_have_no_more_bytes_than_the_limit() -> None:
    value = "b" * (USER_BYTES_MAX // 8 - 5)  # with the name and two lengths: an eighth
    publish = Publish("a", b"", 0, False, False, 0, Properties(user=(("a", value),) * 8))
    assert parse([encode(publish)], V5) == [publish]
    with pytest.raises(MqttError) as caught:
        parse([encode(Publish("a", b"", 0, False, False, 0, Properties(user=(("a", value),) * 8 + (("", ""),))))], V5)
    assert caught.value.reason is Reason.QUOTA_EXCEEDED


def test_a_password_is_not_shown() -> None:
    packet = Connect(V5, "c", True, 0, None, "user", b"secret", NONE)
    assert "secret" not in repr(packet)
    assert "user" in repr(packet)
    proof = Properties(authentication_method="m", authentication_data=b"secret")
    assert repr(proof) == "Properties(authentication_method='m')"


# ---- packets of a server


CODES = [0, 1, 2, 0x87]
REFUSED, SAID = Reason.NOT_AUTHORIZED, Properties(reason_string="x", user=(("a", "b"), ("a", "c")))


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        (packets.connack(V3_1_1, session_present=True), "20020100"),
        (packets.connack(V3_1, session_present=True), "20020000"),
        (packets.connack(V5, session_present=True), "2003010000"),
        (packets.connack(V3_1_1, session_present=True, reason=REFUSED), "20020005"),
        (packets.connack(V5, session_present=True, reason=REFUSED), "2003008700"),
        (packets.acknowledgement(V3_1_1, PacketType.PUBACK, 258), "40020102"),
        (packets.acknowledgement(V5, PacketType.PUBREC, 258), "50020102"),
        (packets.acknowledgement(V5, PacketType.PUBREL, 258), "62020102"),
        (packets.acknowledgement(V5, PacketType.PUBCOMP, 258, 0x92), "7003010292"),
        (packets.acknowledgement(V3_1_1, PacketType.PUBACK, 258, 0x87), "40020102"),
        (packets.suback(V3_1_1, 10, CODES), "9006000a00010280"),  # MQTT-3.9.3-2: no failure but 0x80
        (packets.suback(V5, 10, CODES), "9007000a0000010287"),
        (packets.unsuback(V3_1_1, 10, [0, 0x11]), "b002000a"),
        (packets.unsuback(V5, 10, [0, 0x11]), "b005000a000011"),
        (packets.PINGRESP, "d000"),
        (packets.disconnect(Reason.NORMAL_DISCONNECTION), "e000"),
        (packets.disconnect(Reason.SESSION_TAKEN_OVER), "e0018e"),
    ],
)
def test_an_answer_has_the_shortest_form_of_its_version(answer: bytes, data: str) -> None:
    assert answer.hex() == data


@pytest.mark.parametrize(
    ("answer", "kind", "codes", "packet_id"),
    [
        (packets.connack(V5, properties=SAID), PacketType.CONNACK, [0], 0),
        (packets.acknowledgement(V5, PacketType.PUBACK, 258, 0x87, SAID), PacketType.PUBACK, [0x87], 258),
        (packets.disconnect(Reason.SERVER_MOVED, SAID), PacketType.DISCONNECT, [0x9D], 0),
    ],
)
def test_an_answer_has_properties(answer: bytes, kind: PacketType, codes: list[int], packet_id: int) -> None:
    assert decode_all(answer) == [ServerPacket(kind, codes, packet_id, SAID)]


def test_mqtt_3_has_return_codes_for_some_refusals() -> None:
    names: dict[int, set[str]] = {}
    for reason in Reason:
        if has_return_code(reason):
            names.setdefault(return_code(reason), set()).add(reason.name)
    assert names == {
        0: {"SUCCESS"},
        1: {"UNSUPPORTED_PROTOCOL_VERSION"},
        2: {"CLIENT_IDENTIFIER_NOT_VALID"},
        3: {"SERVER_UNAVAILABLE", "SERVER_BUSY", "SERVER_SHUTTING_DOWN", "QUOTA_EXCEEDED"}
        | {"USE_ANOTHER_SERVER", "SERVER_MOVED", "CONNECTION_RATE_EXCEEDED"},
        4: {"BAD_USER_NAME_OR_PASSWORD", "BAD_AUTHENTICATION_METHOD"},
        5: {"NOT_AUTHORIZED", "BANNED"},
    }
    assert return_code(Reason.UNSPECIFIED_ERROR) == 3


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ids", [(), (1,), (300, (1 << 28) - 1)])
def test_a_written_publish_can_be_read(version: Version, ids: tuple[int, ...]) -> None:
    for packet in fuzz.samples(version):
        if not isinstance(packet, Publish):
            continue
        if ids and version is V5:
            packet.properties = replace(packet.properties, subscription_ids=ids)
        size, flags = len(packet.payload), (packet.retain, packet.dup, packet.properties)
        head = packets.publish_head(version, write_text(packet.topic), size, packet.qos, packet.packet_id, *flags)
        fields = packet.topic, packet.payload, packet.qos, packet.retain, packet.dup
        expected = ServerPacket(PacketType.PUBLISH, [], packet.packet_id, packet.properties, False, *fields)
        assert decode(head + packet.payload + b"behind", version) == (expected, b"behind")


def test_a_stranger_gets_commands_or_a_reason_code_and_nothing_else() -> None:
    outcome = fuzz.run(SEED, 3_000)
    assert outcome.pop("read") > 0, f"seed {SEED}"
    assert len(outcome) > 3, f"seed {SEED}: {outcome}"
