"""Frames of WebSocket are read however they come, what breaks the protocol is told with its code (RFC 6455), and what a
session says is cut into messages."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import AckMode, ClientError
from tandemmq.broker.protocols.stomp.session import SHARED_BODY_BYTES_MIN
from tandemmq.broker.protocols.websocket.frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    TEXT_BYTES_MAX,
    CloseCode,
    FrameParser,
    WebSocketError,
    binary_messages,
    close_frame,
    head,
    is_text,
    stomp_messages,
    unmasked,
)
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.broker.websocket_peer import client_frame
from tests.support.protocols.stomp_peer import StompPeer

pytestmark = pytest.mark.promise("websocket")

BYTES_MAX = 1 << 20
BROKEN, BEGUN = CloseCode.PROTOCOL_ERROR, client_frame(TEXT, b"a", is_final=False)


def read(pieces: Iterable[bytes], *, accepts_text: bool = True) -> tuple[bytes, FrameParser]:
    parser = FrameParser(BYTES_MAX, accepts_text=accepts_text)
    said = b""
    for piece in pieces:
        parser.feed(piece)
        while parser.read(3):
            pass
        said += parser.take()
    return said, parser


def one_by_one(data: bytes) -> list[bytes]:
    return [data[each : each + 1] for each in range(len(data))]


def refused(*pieces: bytes, accepts_text: bool = True) -> CloseCode:
    with pytest.raises(WebSocketError) as failure:
        read(pieces, accepts_text=accepts_text)
    assert failure.value.reason
    return failure.value.code


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 70_001])
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_a_message_of_any_length_is_read_whole_and_byte_by_byte(size: int, opcode: int) -> None:
    payload = bytes(each % 127 for each in range(size))
    frame = client_frame(opcode, payload)
    for pieces in ([frame], one_by_one(frame), [frame[:5], frame[5:], b""]):
        said, parser = read(pieces)
        assert said == payload
        assert not parser.waiting_bytes


@given(
    st.lists(st.tuples(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.booleans()), max_size=6),
    st.integers(0, 1 << 30),
)
def test_messages_in_fragments_with_pings_between_are_one_stream(
    messages: list[tuple[list[bytes], bool]], seed: int
) -> None:
    sent = b""
    for fragments, is_pinged in messages:
        for number, fragment in enumerate(fragments):
            sent += client_frame(0 if number else BINARY, fragment, is_final=number == len(fragments) - 1)
            sent += client_frame(PING, b"p") if is_pinged else b""
    random_ = random.Random(seed)
    cuts = sorted(random_.randrange(len(sent) + 1) for _ in range(random_.randrange(9)))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    said, parser = read(pieces)
    assert said == b"".join(fragment for fragments, _ in messages for fragment in fragments)
    assert parser.ping == (b"p" if any(is_pinged for _, is_pinged in messages) else None)


def test_the_last_ping_alone_has_to_be_answered() -> None:
    _, parser = read([client_frame(PING, b"1") + client_frame(PONG, b"x") + client_frame(PING, b"2")])
    assert parser.ping == b"2"


@pytest.mark.parametrize(
    ("payload", "code"), [(b"", 1005), (b"\x03\xe8", 1000), (b"\x0f\xa1bye", 4001), (b"\x03\xf3", 1011)]
)
def test_a_close_has_its_code_and_is_the_end(payload: bytes, code: int) -> None:
    for cut in (lambda data: [data], one_by_one):
        said, parser = read(cut(client_frame(TEXT, b"a") + client_frame(CLOSE, payload) + b"\xff" * 20))
        assert (said, parser.closed) == (b"a", code)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(b"\x81\x01a", BROKEN, id="no mask"),
        pytest.param(client_frame(TEXT, b"a", rsv=0x40), BROKEN, id="compressed"),
        pytest.param(client_frame(TEXT, b"a", rsv=0x10), BROKEN, id="a reserved bit"),
        pytest.param(client_frame(3, b"a"), BROKEN, id="an unknown opcode"),
        pytest.param(client_frame(0xB, b"a"), BROKEN, id="an unknown control opcode"),
        pytest.param(client_frame(0, b"a"), BROKEN, id="nothing goes on"),
        pytest.param(BEGUN + client_frame(TEXT, b"b"), BROKEN, id="a message within a message"),
        pytest.param(client_frame(PING, b"x" * 126), BROKEN, id="a long ping"),
        pytest.param(client_frame(PING, b"x", is_final=False), BROKEN, id="a ping in fragments"),
        pytest.param(b"\x82\xfe\x00\x7d", BROKEN, id="16 bits for 125"),
        pytest.param(b"\x82\xff" + struct.pack(">Q", 65_535), BROKEN, id="64 bits for 65,535"),
        pytest.param(b"\x82\xff" + struct.pack(">Q", 1 << 63), BROKEN, id="64 bits of length"),
        pytest.param(client_frame(CLOSE, b"\x03"), BROKEN, id="half a code"),
        pytest.param(client_frame(CLOSE, b"\x03\xed"), BROKEN, id="1005 is never sent"),
        pytest.param(client_frame(CLOSE, b"\x03\xe8\xff"), CloseCode.INVALID_PAYLOAD, id="a reason that is no text"),
        pytest.param(client_frame(TEXT, b"a\xff"), CloseCode.INVALID_PAYLOAD, id="no UTF-8"),
        pytest.param(client_frame(TEXT, "\u20ac".encode()[:2]), CloseCode.INVALID_PAYLOAD, id="half a character"),
    ],
)
def test_a_protocol_error_is_reported_with_its_code(sent: bytes, code: CloseCode) -> None:
    padding = b"\0" * 4  # of a head that is refused before its mask
    assert refused(sent + padding) == refused(*one_by_one(sent + padding)) == code


def test_a_message_that_is_too_long_is_refused_by_its_head_alone() -> None:
    long = b"\x82\xff" + struct.pack(">Q", BYTES_MAX + 1) + b"mask"
    assert refused(long) == CloseCode.MESSAGE_TOO_BIG
    half = client_frame(BINARY, b"x" * (BYTES_MAX // 2), is_final=False)
    more = client_frame(0, b"x" * (BYTES_MAX // 2), is_final=False)
    read([half, more])
    assert refused(half, more, client_frame(0, b"x")) == CloseCode.MESSAGE_TOO_BIG
    read([half, client_frame(0, b"")] * 5)  # each message for itself


def test_a_character_may_be_split_over_fragments() -> None:
    euro = "\u20ac".encode()
    said, _ = read([client_frame(TEXT, euro[:1], is_final=False), client_frame(0, euro[1:])])
    assert said == euro
    assert refused(client_frame(TEXT, euro[:1], is_final=False), client_frame(0, b"a")) == CloseCode.INVALID_PAYLOAD


def test_text_is_refused_where_all_is_binary() -> None:
    assert refused(client_frame(TEXT, b"a"), accepts_text=False) == CloseCode.UNSUPPORTED_DATA
    assert read([client_frame(BINARY, b"\xff")], accepts_text=False)[0] == b"\xff"


def test_messages_before_a_mistake_can_be_taken() -> None:
    parser = FrameParser(BYTES_MAX, accepts_text=True)
    parser.feed(client_frame(TEXT, b"a") + b"\xff\xff")
    with pytest.raises(WebSocketError):
        parser.read(9)
    assert parser.take() == b"a"


def test_no_part_of_an_incomplete_message_is_kept() -> None:
    parser = FrameParser(BYTES_MAX, accepts_text=True)
    frame = client_frame(BINARY, b"x" * 100_000)
    for start in range(0, len(frame) - 1000, 1000):
        parser.feed(frame[start : start + 1000])
        assert not parser.read(9)
        parser.take()
        assert not parser.waiting_bytes


@given(st.binary(max_size=2000))
def test_any_bytes_give_a_stream_or_a_code(data: bytes) -> None:
    parser = FrameParser(500, accepts_text=True)
    with suppress(WebSocketError):
        for piece in (data[:7], data[7:]):
            parser.feed(piece)
            while parser.read(5):
                pass
    assert len(parser.take()) <= len(data)


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
def test_a_mask_goes_on_and_off(payload: bytes, mask: bytes) -> None:
    expected = bytes(byte ^ mask[number % 4] for number, byte in enumerate(payload))
    assert unmasked(payload, mask) == expected
    assert unmasked(expected, mask) == payload


def test_our_heads_have_the_shortest_length() -> None:
    assert head(TEXT, 125) == b"\x81\x7d"
    assert head(BINARY, 126) == b"\x82\x7e\x00\x7e"
    assert head(BINARY, 65_536) == b"\x82\x7f" + struct.pack(">Q", 65_536)
    assert close_frame(CloseCode.NO_CODE) == b"\x88\x00"
    assert close_frame(1002, "\u20ac" * 60) == b"\x88\x7d\x03\xea" + ("\u20ac" * 41).encode()


# ---- the output of a STOMP session is cut into messages at its frames; they are text if they are UTF-8


Q = Destination(DestinationKind.QUEUE, "a")


def cut(messages: list[bytes | memoryview]) -> list[tuple[int, bytes]]:
    """Opcode and payload of each message."""
    data, found = b"".join(messages), []
    while data:
        kind, size, start = data[0] & 0x0F, data[1], 2
        if size > 125:
            start += 2 if size == 126 else 8
            size = int.from_bytes(data[2:start])
        assert len(data) >= start + size
        assert data.startswith(head(kind, size))
        found.append((kind, data[start : start + size]))
        data = data[start + size :]
    return found


bodies = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(str.encode),
    st.sampled_from(
        [b"\n\n\0\n", b"x" * SHARED_BODY_BYTES_MIN, b"\xff" * (SHARED_BODY_BYTES_MIN + 1), b"\0\n" * 20_000]
    ),
)


@given(
    st.sampled_from(["1.0", "1.1", "1.2"]),
    st.lists(st.one_of(bodies, st.sampled_from(["beat", "receipt", "error"])), max_size=8),
    st.text(max_size=10),
    st.booleans(),
)
def test_each_frame_is_a_message_and_nothing_is_lost(
    version: str, said: list[bytes | str], value: str, is_in_parts: bool
) -> None:
    client = StompPeer(version)
    client.subscribe(id="1")
    session = client.session
    kinds = []
    for tag, each in enumerate(said):
        if isinstance(each, bytes):
            message = Message(Q, "ID:m", body=each)
            message.properties = {"content-length": "7", "n\ncontent-length": value, "p": value}
            session.deliver("1", tag, message, 0, AckMode.CLIENT)
            kinds.append(TEXT if is_utf_8(each) else BINARY)
        else:
            if each == "beat":
                session.heart_beat()
            elif each == "receipt":
                session.receipt(f"r{value}")
            else:
                session.fail(ClientError(f"e{value}", value))
            kinds.append(TEXT)
    parts = list(session.take_parts()) if is_in_parts else [session.take()]
    found = cut(stomp_messages(parts))
    assert [kind for kind, _ in found] == kinds
    assert b"".join(payload for _, payload in found) == b"".join(parts)
    assert all(payload == b"\n" or payload.endswith(b"\0\n") for _, payload in found)
    deliveries = [each for each in said if isinstance(each, bytes)]
    messages = [payload for _, payload in found if payload.startswith(b"MESSAGE\n")]
    assert all(m.endswith(b"\n\n" + body + b"\0\n") for m, body in zip(messages, deliveries, strict=True))


def is_utf_8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_mqtt_says_all_in_one_message() -> None:
    assert cut(binary_messages([b"ab", memoryview(b"c" * 200)])) == [(BINARY, b"ab" + b"c" * 200)]


def test_a_very_long_body_is_text_if_it_is_ascii() -> None:
    assert is_text([b"head", b"x" * (TEXT_BYTES_MAX + 1), b"\0\n"], is_ascii=True)
    assert is_text([b"head", "\u00e4".encode() * 100_000 + b"\0\n"], is_ascii=True)
    assert not is_text(["\u00e4".encode() * (TEXT_BYTES_MAX // 2 + 1)], is_ascii=False)
    assert not is_text([b"head", b"\xc3"], is_ascii=True)
