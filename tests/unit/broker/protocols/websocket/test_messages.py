"""What a STOMP session says is cut into messages at its frames, of text where it is UTF-8."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import AckMode, ClientError, Connect
from tandemmq.broker.protocols.stomp.session import SHARED_BODY_BYTES_MIN, StompSession
from tandemmq.broker.protocols.websocket.frames import BINARY, TEXT, head
from tandemmq.broker.protocols.websocket.messages import TEXT_BYTES_MAX, binary_messages, is_text, stomp_messages
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.support.protocols.commands import one

Q = Destination(DestinationKind.QUEUE, "a")
CONNECT = b"CONNECT\naccept-version:%b\nhost:/\n\n\0"


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


def session_of(version: bytes) -> StompSession:
    session = StompSession("c", lambda: 0, secret=lambda: "s")
    connect = one(Connect, session.receive(CONNECT % version))
    session.connected(connect, "c")
    session.receive(b"SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0")
    return session


bodies = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(str.encode),
    st.sampled_from(
        [b"\n\n\0\n", b"x" * SHARED_BODY_BYTES_MIN, b"\xff" * (SHARED_BODY_BYTES_MIN + 1), b"\0\n" * 20_000]
    ),
)


@given(
    st.sampled_from([b"1.0", b"1.1", b"1.2"]),
    st.lists(st.one_of(bodies, st.sampled_from(["beat", "receipt", "error"])), max_size=8),
    st.text(max_size=10),
    st.booleans(),
)
def test_each_frame_is_a_message_and_nothing_is_lost(
    version: bytes, said: list[bytes | str], value: str, is_in_parts: bool
) -> None:
    session = session_of(version)
    kinds = [TEXT]
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
