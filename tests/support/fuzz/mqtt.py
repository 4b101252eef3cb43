"""The packet parser against bytes that no client sends: ``python -m tests.support.fuzz.mqtt [--seed N] [--cases N]``.

Given any bytes, in any pieces, the parser answers with packets or with an MqttError; never with another exception, and
never with more memory or time than the bytes are worth. A packet that was read is written by a client as it is, and is
then read as the same.

The cases are streams of a client, changed: bits turned, pieces cut out, doubled or brought in from elsewhere, lengths
replaced by those at the ends of their ranges.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

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
from tandemmq.broker.protocols.mqtt.reasons import MqttError
from tests.support.protocols.mqtt.client_packets import encode

PACKET_BYTES_MAX = 1 << 16
# Of a packet, what the parser keeps beside its bytes while it is not whole.
KEPT_BYTES_MAX = 8
EDGES = [
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\0\0",
    b"\xff\xff",
    b"\xff\xff\x03",
    b"\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80",
]
_MESSAGE = Properties(
    payload_format=1,
    message_expiry=60,
    content_type="text/plain",
    response_topic="answers/1",
    correlation_data=b"\0\1\2",
    user=(("a", "1"), ("a", "2"), ("", "ß")),
)


class Outcome(NamedTuple):
    packets: int
    refusals: Counter[str]
    slowest_seconds: float


def samples(version: Version) -> list[Packet]:
    """Packets that a client sends after its CONNECT: of all kinds, and with all properties."""
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
    """CONNECTs, the second one with all properties."""
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


def run(seed: int, cases: int) -> Outcome:
    """Raises what the parser should not have raised, with the case in a note."""
    dice = random.Random(seed)
    worlds = [
        tuple([encode(each, version) for each in packets(version)] for packets in (greetings, samples))
        for version in Version
    ]
    every = [packet for hellos, others in worlds for packet in hellos + others]
    packets, slowest = 0, 0.0
    refusals: Counter[str] = Counter()
    for case in range(cases):
        hellos, others = dice.choice(worlds)
        hello = dice.choice(hellos)
        if dice.random() < 0.3:
            hello = mutated(dice, hello, every)
        rest = [dice.choice(others) for _ in range(dice.randrange(4))]
        stream = hello + b"".join(mutated(dice, each, every) if dice.random() < 0.6 else each for each in rest)
        began = time.process_time()
        try:
            packets += feed(dice, stream)
        except MqttError as error:
            refusals[error.reason.name] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, case {case}: {stream.hex()}")
            raise
        slowest = max(slowest, time.process_time() - began)
    return Outcome(packets, refusals, slowest)


def feed(dice: random.Random, stream: bytes) -> int:
    """How many packets the stream held; raises MqttError where it stops being MQTT."""
    parser = PacketParser(PACKET_BYTES_MAX)
    packets = 0
    while stream:
        length = dice.choice((1, 7, len(stream)))
        parser.feed(stream[:length])
        stream = stream[length:]
        while (packet := parser.next_packet()) is not None:
            assert parser.version is not None
            look(parser.version, packet)
            packets += 1
        assert parser.unfinished_bytes <= PACKET_BYTES_MAX + KEPT_BYTES_MAX
    return packets


def look(version: Version, packet: Packet) -> None:
    """What was read can be shown, and written and read again as the same."""
    repr(packet)
    twin = PacketParser(2 * PACKET_BYTES_MAX)
    if not isinstance(packet, Connect):
        twin.version = version
    twin.feed(encode(packet, version))
    assert twin.next_packet() == packet, f"written and read again, {packet} is another"


def mutated(dice: random.Random, packet: bytes, others: Sequence[bytes]) -> bytes:
    data = bytearray(packet)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        if len(data) < 3:
            break
        at = dice.randrange(len(data))
        match dice.randrange(6):
            case 0:
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                data[at] = dice.randrange(256)
            case 2:
                edge = dice.choice(EDGES)
                data[at : at + len(edge)] = edge
            case 3:
                del data[at : at + dice.randrange(1, 20)]
            case 4:
                data[at:at] = data[at : at + dice.randrange(1, 60)] * dice.choice((1, 2, 50))
            case _:
                other = dice.choice(others)
                start = dice.randrange(len(other))
                data[at:at] = other[start : start + dice.randrange(1, 100)]
    # Mostly a length that fits, so that what is behind it is looked at.
    if dice.random() < 0.9 and len(data) >= 2:
        body = data[2:] if packet[1] < 0x80 else data[3:]
        length, encoded = len(body), bytearray()
        while length >= 0x80:
            encoded.append(length & 0x7F | 0x80)
            length >>= 7
        data = data[:1] + encoded + bytes((length,)) + body
    return bytes(data)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--cases", type=int, default=100_000)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.cases} cases")
    outcome = run(options.seed, options.cases)
    print(f"{outcome.packets} packets, slowest case {outcome.slowest_seconds * 1000:.1f} ms; refused:")
    for what, count in outcome.refusals.most_common():
        print(f"  {count:8} {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
