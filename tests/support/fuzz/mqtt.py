"""A fuzzer for the packet parser, with bytes that no client sends. A packet that was read and is written again must be
read as the same packet."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

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
from tandemmq.broker.protocols.mqtt.parser import PacketParser
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError
from tests.support.fuzz.any_bytes import mutated, pieces, try_all
from tests.support.protocols.mqtt.client_packets import encode

PACKET_BYTES_MAX = 1 << 16
# Memory that the parser needs for an incomplete packet in addition to its bytes.
KEPT_BYTES_MAX = 8
EDGES = [b"\0", b"\xff", b"\x7f", b"\x80", b"\0\0", b"\xff\xff", b"\xff\xff\x03", b"\xff\xff\xff\x7f", b"\x80" * 4]
_MESSAGE = Properties(
    payload_format=1,
    message_expiry=60,
    content_type="text/plain",
    response_topic="answers/1",
    correlation_data=b"\0\1\2",
    user=(("a", "1"), ("a", "2"), ("", "ß")),
)


def samples(version: Version) -> list[Packet]:
    """Return packets that a client sends after its CONNECT: all types, with all properties."""
    is_5 = version is Version.V5
    properties = _MESSAGE if is_5 else NONE
    reason = Properties(reason_string="so", user=(("a", "b"),)) if is_5 else NONE
    packets: list[Packet] = [
        Publish("a/b", b"payload", 0, True, False, 0, properties),
        Publish("$x/ß//", b"\0" * 300, 2, False, True, 7, NONE),
        *(Acknowledgement(kind, 7, 0, reason) for kind in (PacketType.PUBACK, PacketType.PUBREC)),
        *(Acknowledgement(kind, 7, 0x92 if is_5 else 0, NONE) for kind in (PacketType.PUBREL, PacketType.PUBCOMP)),
        Subscribe(
            9,
            (Filter("a/+", 1, is_5, is_5, 2 * is_5), Filter("$share/g/#", 0, False, False, 0)),
            Properties(subscription_ids=(300,)) if is_5 else NONE,
        ),
        Unsubscribe(10, ("a/+", "$share/g/#"), NONE),
        PingRequest(),
        Disconnect(4 if is_5 else 0, Properties(session_expiry=3) if is_5 else NONE),
    ]
    if is_5:
        packets += [
            Publish("", b"", 1, False, False, 8, Properties(topic_alias=3)),
            Authentication(0x18, Properties(authentication_method="m", authentication_data=b"d")),
        ]
    return packets


def greetings(version: Version) -> list[Packet]:
    """Return CONNECTs, the second one with all properties."""
    is_5 = version is Version.V5
    properties = Properties(
        session_expiry=9, receive_maximum=5, maximum_packet_size=1 << 17, topic_alias_maximum=7,
        request_problem_information=1, request_response_information=0, user=(("ß", ""),),
        authentication_method="m", authentication_data=b"\0\xff",
    )  # fmt: skip
    will = Will("wß", b"gone", 1, True, replace(_MESSAGE, will_delay=5) if is_5 else NONE)
    return [
        Connect(version, "client", True, 60, None, None, None, NONE),
        Connect(version, "clientß/#", False, 60, will, "üser", b"password", properties if is_5 else NONE),
    ]


def run(seed: int, cases: int) -> Counter[str]:
    worlds = [
        tuple([encode(each, version) for each in packets(version)] for packets in (greetings, samples))
        for version in Version
    ]
    every = [packet for hellos, others in worlds for packet in hellos + others]

    def make(dice: random.Random) -> tuple[str, Callable[[], int]]:
        hellos, others = dice.choice(worlds)
        chosen = [dice.choice(hellos), *(dice.choice(others) for _ in range(dice.randrange(4)))]
        stream = b"".join(
            changed(dice, each, every) if dice.random() < (0.6 if number else 0.3) else each
            for number, each in enumerate(chosen)
        )
        return stream.hex(), lambda: feed(dice, stream)

    return try_all(seed, cases, make, MqttError, lambda error: error.reason.name)  # type: ignore[attr-defined]


def feed(dice: random.Random, stream: bytes) -> int:
    """Return the number of packets in the stream. Raises MqttError at the first invalid bytes."""
    parser = PacketParser(PACKET_BYTES_MAX)
    packets = 0
    for piece in pieces(dice, stream):
        parser.feed(piece)
        while (packet := parser.next_packet()) is not None or parser.is_reading:
            if packet is None:
                continue
            assert parser.version is not None
            look(parser.version, packet)
            packets += 1
        assert parser.unfinished_bytes <= PACKET_BYTES_MAX + KEPT_BYTES_MAX
    return packets


def look(version: Version, packet: Packet) -> None:
    """Check that the packet can be printed, and is the same after it is written and read again."""
    repr(packet)
    twin = PacketParser(2 * PACKET_BYTES_MAX)
    if not isinstance(packet, Connect):
        twin.version = version
    twin.feed(encode(packet, version))
    while (again := twin.next_packet()) is None and twin.is_reading:
        pass
    assert again == packet, f"written and read again, {packet} is another"


def changed(dice: random.Random, packet: bytes, others: Sequence[bytes]) -> bytes:
    data = mutated(dice, packet, others, lambda dice: dice.choice(EDGES))
    # Mostly a correct length, so that the bytes after it are parsed.
    if dice.random() < 0.9 and len(data) >= 2:
        body = data[2:] if packet[1] < 0x80 else data[3:]
        length, encoded = len(body), bytearray()
        while length >= 0x80:
            encoded.append(length & 0x7F | 0x80)
            length >>= 7
        data = data[:1] + encoded + bytes((length,)) + body
    return bytes(data)
