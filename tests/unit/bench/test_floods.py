"""The bytes of floods are valid: the broker's parsers read them, or report a limit."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tandemmq.bench.floods import FLOODS
from tandemmq.broker.protocols.mqtt.packets import Connect, Subscribe
from tandemmq.broker.protocols.mqtt.parser import PacketParser
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.stomp.frames import FrameParser, Limits
from tandemmq.broker.protocols.stomp.maps import read_xml

FIELDS_MAX = 10_000


def commands(data: bytes) -> Iterator[Any]:
    """Yield the commands of whole OpenWire frames."""
    at = 0
    while at < len(data):
        end = at + 4 + struct.unpack_from(">i", data, at)[0]
        yield STORED.decode(data[at:end], FIELDS_MAX)
        at = end


def greeted(name: str) -> bytes:
    greets = FLOODS[name].greets
    assert greets is not None, "it says who it is first"
    return greets(0)


@pytest.mark.parametrize("name", ["properties", "emoji", "frames-90mb"])
def test_a_flood_of_openwire_is_messages_of_its_own_producer(name: str) -> None:
    *_, producer = commands(greeted(name))
    first, second = (next(commands(FLOODS[name].says(turn))) for turn in (0, 1))
    assert first.producer_id == producer.producer_id
    assert first.message_id != second.message_id, "or the second one would be a duplicate"
    assert (name == "properties") == (first.marshalled_properties is not None)


def test_nulls_are_refused_for_their_number() -> None:
    with pytest.raises(WireError, match="fields"):
        next(commands(FLOODS["nulls"].says(0)))
    assert len(list(commands(greeted("nulls")))) == 4
    assert isinstance(next(commands(greeted("nulls"))), schema.WireFormatInfo)


@pytest.mark.parametrize("name", [name for name, flood in FLOODS.items() if flood.port == "stomp" and flood.greets])
def test_a_flood_of_stomp_is_frames_within_the_limits(name: str) -> None:
    flood = FLOODS[name]
    parser = FrameParser(Limits())
    parser.feed(greeted(name) + flood.listens)
    while (frame := parser.next_frame()) is not None:
        assert frame[0] in ("CONNECT", "SUBSCRIBE")
    parser.feed(flood.says(0))
    frame = None
    while frame is None and parser.data:
        frame = parser.next_frame()
    assert (frame is None) == flood.is_held, "what is held is not whole"
    assert frame is None or frame[0] == "SEND"


def test_strangers_send_only_line_ends_and_unknown_commands() -> None:
    parser = FrameParser(Limits())
    parser.feed(FLOODS["strangers"].says(0))
    assert parser.next_frame() is None
    parser.feed(FLOODS["connects"].says(0))
    frame = parser.next_frame()
    assert frame is not None
    assert frame[0] == "unknown"


def test_maps_are_as_long_as_they_may_be() -> None:
    body = FLOODS["maps"].says(0).partition(b"\n\n")[2][:-1]
    assert len(read_xml(body)) == 16_000
    with pytest.raises(ValueError, match="the maximum is"):
        read_xml(FLOODS["map-xml"].says(0).partition(b"\n\n")[2][:-1])


def test_a_hello_is_the_beginning_of_one() -> None:
    incoming = ssl.MemoryBIO()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    incoming.write(FLOODS["hellos"].says(0))
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    assert not incoming.pending


def test_a_flood_of_mqtt_subscribes_to_999_patterns() -> None:
    parser = PacketParser(1 << 20)
    parser.feed(greeted("filters") + FLOODS["filters"].says(0))
    assert isinstance(parser.next_packet(), Connect)
    while (packet := parser.next_packet()) is None:
        assert parser.is_reading
    assert isinstance(packet, Subscribe)
    assert len(packet.filters) == 999


def test_bytes_of_the_admin_port_are_a_request() -> None:
    assert FLOODS["admin-bytes"].says(0).endswith(b"\r\n\r\n")
