"""The STOMP session: the command for each frame, and the bytes for each call of the broker."""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.core.commands import (
    Abort,
    Ack,
    AckMode,
    AckOfMessage,
    Begin,
    ClientError,
    Commit,
    Connect,
    Disconnect,
    Nack,
    ProtocolFailure,
    Send,
    Subscribe,
    Unsubscribe,
)
from tandemmq.broker.protocols.stomp.dialects import V10, V11, V12
from tandemmq.broker.protocols.stomp.frames import HEAD_PIECE_BYTES, FrameParser, Limits
from tandemmq.broker.protocols.stomp.messages import QUICK_READ_BYTES_MAX
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.properties import encode_properties
from tests.support.compiled import COUNTS_CALLS
from tests.support.protocols.commands import one
from tests.support.protocols.stomp_peer import StompPeer

pytestmark = pytest.mark.promise("stomp-versions", "stomp-acknowledges")

NOW = 1_700_000_000_000
QUEUE = DestinationKind.QUEUE
TOPIC = DestinationKind.TOPIC
BYTES = BodyKind.BYTES


def new_session(limits: Limits | None = None) -> StompSession:
    return StompSession("ID:a-1-1", lambda: NOW, limits or Limits(), secret=lambda: "secret")


def connected_session(version: str = "1.2") -> StompSession:
    session = new_session()
    command = one(Connect, session.receive(f"CONNECT\naccept-version:{version}\nhost:/\n\n\0".encode()))
    session.connected(command, "ID:a-1-1")
    session.take()
    return session


def frames_of(session: StompSession) -> list[tuple[str, dict[str, str], bytes]]:
    """Return the frames that the session wrote, read by a client of its version."""
    parser = FrameParser(Limits())
    parser.dialect = {"1.0": V10, "1.1": V11, "1.2": V12}[session.version]
    parser.feed(session.take().replace(b"MESSAGE\n", b"SEND\n").replace(b"ERROR\n", b"SEND\n"))
    frames = []
    while parser.data:
        if (frame := parser.next_frame()) is not None:
            frames.append(frame)
    return frames


def described(value: Any) -> Any:
    """A command as plain values, to compare it."""
    if isinstance(value, Message):
        names = (
            *("destination", "message_id", "body", "body_kind", "persistent", "priority", "expiration", "timestamp"),
            *("properties", "correlation_id", "reply_to", "type", "group_id", "group_sequence"),
        )
        return {name: getattr(value, name) for name in names}
    if isinstance(value, ClientError):
        return (value.message, value.is_fatal, value.receipt)
    if isinstance(value, Destination):
        return value
    named = is_dataclass(value) and [each.name for each in fields(value)]
    # Compiled code has another word for its slots.
    names = named or getattr(type(value), "__mypyc_attrs__", None) or getattr(type(value), "__slots__", None)
    if names is None:
        return value
    return (type(value).__name__, {name: described(getattr(value, name)) for name in names})


def sent(body: bytes, kind: BodyKind = BodyKind.TEXT, destination: str = "a", **fields: Any) -> Message:
    queue = Destination(QUEUE, destination)
    id = fields.pop("id", "ID:a-1-1:-1:1:1")
    return Message(queue, id, body, kind, timestamp=fields.pop("timestamp", NOW), **fields)


def frame(command: str, *headers: str, body: bytes = b"") -> bytes:
    return "\n".join((command, *headers, "", "")).encode() + body + b"\0"


def send(*headers: str, body: bytes = b"", to: str = "/queue/a") -> bytes:
    return frame("SEND", f"destination:{to}", *headers, body=body)


def subscribe(*headers: str, to: str = "/queue/a") -> bytes:
    return frame("SUBSCRIBE", "id:s", f"destination:{to}", *headers)


def transformed(form: str, body: bytes, **properties: str) -> Message:
    """Return bodies that stay texts."""
    return sent(body, properties={"transformation": form, **properties})


ALL = ("1.0", "1.1", "1.2")
NEWER = ("1.1", "1.2")
A, TOPIC_A = Destination(QUEUE, "a"), Destination(TOPIC, "a")
DURABLE = Subscribe("s", TOPIC_A, durable_name="d", selector="convert_string_expressions:a = 'b'")
MINE = Subscribe("s", TOPIC_A, AckMode.INDIVIDUAL, prefetch=1, durable_name="d", no_local=True)
OTHERS = Subscribe("s", TOPIC_A, prefetch=7, durable_name="d", no_local=True)
ARTEMIS, ENDED = Subscribe("s", TOPIC_A, durable_name="d"), Unsubscribe(None, durable_name="d")
OURS = "activemq.subscriptionName:d", "activemq.noLocal:true"
THEIRS = "durable-subscription-name:d", "no-local:true"
EVERYTHING = sent(
    b"hi",
    persistent=True,
    priority=7,
    expiration=5,
    timestamp=6,
    correlation_id="c",
    reply_to=Destination(TOPIC, "r"),
    type="y",
    group_id="g",
    group_sequence=3,
    properties={"colour": "red", "content-type": "text/plain"},
)
SAID = (
    *("persistent:true", "receipt:r", "transaction:t", "priority:7", "expires:5", "timestamp:6", "correlation-id:c"),
    *("reply-to:/topic/r", "type:y", "JMSXGroupID:g", "JMSXGroupSeq:3", "colour:red", "content-type:text/plain"),
    *("message-id:mine", "JMSXUserID:me", "redelivered:true", "subscription:0"),
)
ASKED = (
    *("selector: n > 3 ", "browser:true", "activemq.exclusive:true", "activemq.retroactive:true"),
    *("activemq.priority:-7", "activemq.prefetchSize:0"),
)
GRANTED = Subscribe(
    "s",
    Destination(QUEUE, "a.>,topic://b"),
    selector="convert_string_expressions:n > 3",
    is_browser=True,
    is_exclusive=True,
    is_retroactive=True,
    priority=-7,
    prefetch=1,
)
JSON = b'{"map":{"entry":{"string":"n","int":3}}}'
NO_MAP = {"transformation-error": "an object with only the name 'map' is expected"}
SAMPLES: list[tuple[str, tuple[str, ...], bytes, object]] = [
    ("a text", ALL, send(body=b"hi"), Send(sent(b"hi"))),
    ("bytes, when content-length is given", ALL, send("content-length:3", body=b"h\0i"), Send(sent(b"h\0i", BYTES))),
    ("everything a SEND may say", ALL, send(*SAID, body=b"hi"), Send(EVERYTHING, "t", "r")),
    (
        "amq-msg-type overrides content-length",
        ALL,
        send("content-length:2", "amq-msg-type:text", body=b"hi"),
        Send(sent(b"hi", properties={"content-length": "2", "amq-msg-type": "text"})),
    ),
    (
        "amq-msg-type overrides its absence",
        ALL,
        send("amq-msg-type:bytes", body=b"hi"),
        Send(sent(b"hi", BYTES, properties={"amq-msg-type": "bytes"})),
    ),
    (
        "a client that numbers its messages gives them their ids",
        ALL,
        send("tandemmq-send-id:Loader_1.a-b:42", "message-id:mine", body=b"hi"),
        Send(sent(b"hi", id="ID:Loader_1.a-b:1:1:42")),
    ),
    ("UTF-8 is text", ALL, send(body="\u00e4".encode()), Send(sent("\u00e4".encode()))),
    ("other bytes are not", ALL, send(body=b"\xff"), Send(sent(b"\xff", BYTES))),
    ("persistent is a word", ALL, send("persistent:false"), Send(sent(b""))),
    ("persistent is a word in any letter case", ALL, send("persistent:True"), Send(sent(b"", persistent=True))),
    ("persistent is a word in any letter case", ALL, send("persistent:FALSE"), Send(sent(b""))),
    ("blanks around a number", ALL, send("priority: +5 "), Send(sent(b"", priority=5))),
    ("SUBSCRIBE in Artemis's words", ALL, subscribe("durable-subscriber-name:d", to="/topic/a"), ARTEMIS),
    ("UNSUBSCRIBE in Artemis's words", ALL, frame("UNSUBSCRIBE", "durable-subscriber-name:d"), ENDED),
    ("ACK of a message-id", ("1.2",), frame("ACK", "id:ID\\cx", "receipt:r"), AckOfMessage("ID:x", False, None, "r")),
    ("NACK of a message-id", ("1.2",), frame("NACK", "id:x", "transaction:t"), AckOfMessage("x", True, "t")),
    ("priorities end at 9", ALL, send("priority:12"), Send(sent(b"", priority=9))),
    ("a reply-to that names no destination", ALL, send("reply-to:me"), Send(sent(b"", properties={"reply-to": "me"}))),
    ("no prefix: a queue of the whole name", ALL, send(to="/foo/bar"), Send(sent(b"", destination="/foo/bar"))),
    ("blanks around a name", ("1.2",), send(to=" /queue/a "), Send(sent(b""))),
    ("a star within a word is a letter", ALL, send(to="/queue/a*b"), Send(sent(b"", destination="a*b"))),
    (
        "SUBSCRIBE",
        ALL,
        subscribe("ack:client", "receipt:r", to="/topic/a.b"),
        Subscribe("s", Destination(TOPIC, "a.b"), AckMode.CLIENT, receipt="r"),
    ),
    ("SUBSCRIBE without an id", ("1.0",), frame("SUBSCRIBE", "destination:/queue/a"), Subscribe("/queue/a", A)),
    ("an unknown ack mode is auto", ALL, subscribe("ack:often"), Subscribe("s", A)),
    (
        "SUBSCRIBE in ActiveMQ's words",
        ALL,
        subscribe("ack:client-individual", "activemq.prefetchSize:1", *OURS, "browser:false", to="/topic/a"),
        MINE,
    ),
    ("SUBSCRIBE in others' words", ALL, subscribe("prefetch-count:7", *THEIRS, to="/topic/a"), OTHERS),
    ("SUBSCRIBE with all that ActiveMQ knows", NEWER, subscribe(*ASKED, to="/queue/a.>,/topic/b"), GRANTED),
    ("a durable one with a selector", ALL, subscribe(OURS[0], "selector:a = 'b'", to="/topic/a"), DURABLE),
    ("a selector of blanks, and RabbitMQ's 0", ALL, subscribe("selector:", "prefetch-count:0"), Subscribe("s", A)),
    (
        "SEND to several",
        ALL,
        send(to="/queue/a, /queue/b,c,/topic/d,/remote-temp-topic/x-1"),
        Send(sent(b"", destination="a,b,c,topic://d,temp-topic://x-1")),
    ),
    (
        "SEND to another's temporary queue, with a reply to one",
        ALL,
        send("reply-to:/remote-temp-queue/x-1"),
        Send(sent(b"", reply_to=Destination(DestinationKind.TEMP_QUEUE, "x-1"))),
    ),
    (
        "a map of JSON",
        ALL,
        send("transformation:jms-map-json", body=JSON),
        Send(sent(encode_properties({"n": 3}), BodyKind.MAP, properties={"transformation": "jms-map-json"})),
    ),
    (
        "a map that is none stays a text",
        ALL,
        send("transformation:jms-map-json", body=b"[]"),
        Send(transformed("jms-map-json", b"[]", **NO_MAP)),
    ),
    (
        "a form that only the broker can choose stays a text",
        ALL,
        send("transformation:jms-xml", body=b"<a/>"),
        Send(transformed("jms-xml", b"<a/>", **{"transformation-error": "Unknown transformation: jms-xml"})),
    ),
    (
        "what has a content-length is not transformed",
        ALL,
        send("transformation:jms-object-xml", "content-length:4", body=b"<a/>"),
        Send(sent(b"<a/>", BYTES, properties={"transformation": "jms-object-xml"})),
    ),
    (
        "UNSUBSCRIBE of a durable name alone",
        ALL,
        frame("UNSUBSCRIBE", "id:gone", OURS[0], "receipt:r"),
        Unsubscribe(None, durable_name="d", receipt="r"),
    ),
    ("BEGIN", ALL, frame("BEGIN", "transaction:t", "receipt:r"), Begin("t", "r")),
    ("COMMIT", ALL, frame("COMMIT", "transaction:t", "receipt:r"), Commit("t", "r")),
    ("ABORT", ALL, frame("ABORT", "transaction:t", "receipt:r"), Abort("t", "r")),
    ("DISCONNECT", ALL, frame("DISCONNECT", "receipt:r"), Disconnect("r")),
    ("CR LF", ("1.0", "1.2"), b"SEND\r\ndestination:/queue/a\r\n\r\nhi\0", Send(sent(b"hi"))),
]

SEND_IDS = {
    "without a producer": ":1",
    "without a number": "p:",
    "that is one name": "p",
    "with a colon in its producer": "ID:p:1",
    "with zeros before its number": "p:01",
    "below zero": "p:-1",
    "beyond 64 bits": "p:9223372036854775808",
    "that is empty": "",
}


@COUNTS_CALLS
@pytest.mark.parametrize(("end", "kind"), [(b"x", BodyKind.TEXT), (b"\xff", BodyKind.BYTES)])
def test_a_long_text_that_is_no_map_is_checked_in_pieces(end: bytes, kind: BodyKind) -> None:
    called: list[Any] = []
    (command,) = StompPeer().session.receive(send("transformation:jms-map-json", body=b"x" * 1_000_000 + end))
    assert isinstance(command, Send)
    assert command.translate is not None
    sys.setprofile(lambda frame, event, what: called.append(what))
    try:
        command.translate()
    finally:
        sys.setprofile(None)
    assert command.message.body_kind is kind
    assert called.count(time.sleep) > 100, "other threads have the interpreter meanwhile"


@pytest.mark.parametrize(
    ("entries", "kind"), [(b'{"string":"k","int":3}', BodyKind.MAP), (b"{}", BodyKind.TEXT)], ids=["a map", "none"]
)
def test_a_long_map_is_read_where_the_engine_has_it_read(entries: bytes, kind: BodyKind) -> None:
    body = b'{"map":{"entry":' + entries + b"}}"
    found = []
    for blanks in (0, QUICK_READ_BYTES_MAX):
        client = StompPeer()
        data = send("transformation:jms-map-json", "receipt:r", "transaction:t", body=body + b" " * blanks)
        (command,) = client.session.receive(data)
        assert isinstance(command, Send)
        assert (command.translate is not None) is (blanks > 0)
        if command.translate is not None:
            assert command.message.body_kind is BodyKind.TEXT
            command.translate()
            command.translate = None
        assert (command.receipt, command.transaction, command.message.body_kind) == ("r", "t", kind)
        command.message.body = command.message.body.rstrip(b" ")
        found.append(described(command))
    assert found[0] == found[1]


OBJECT = send("transformation:jms-object-xml", "receipt:r", body=b"<a/>")
REFUSALS: list[tuple[str, tuple[str, ...], bytes, str]] = [
    ("options", ALL, subscribe("receipt:r", to="/queue/a?b=c"), "has options"),
    ("a composite of nothing", ALL, send("receipt:r", to="/queue/a,"), "has no name"),
    ("a temporary queue without a name", ALL, send("receipt:r", to="/temp-queue/"), "has no name"),
    ("no name", ALL, send("receipt:r", to="/queue/"), "has no name"),
    ("a browser of 1.0", ("1.0",), subscribe("browser:true", "receipt:r"), "Queue browsers need STOMP 1.1"),
    *(
        (
            f"a consumer's priority of {value}",
            ALL,
            subscribe(f"activemq.priority:{value}", "receipt:r"),
            "activemq.priority has the value",
        )
        for value in ("128", "-129", "high", "9" * 5000)
    ),
    ("an object", ALL, OBJECT, "'jms-object-xml' is refused"),
    ("a priority in words", ALL, send("priority:high", "receipt:r"), "priority has the value 'high'"),
    *(
        (
            f"a send id {name}",
            ALL,
            send(f"tandemmq-send-id:{value}", "receipt:r"),
            f"tandemmq-send-id has the value {value!r}",
        )
        for name, value in SEND_IDS.items()
    ),
    (
        "a send id of a long producer",
        ALL,
        send(f"tandemmq-send-id:{'p' * 129}:1", "receipt:r"),
        "tandemmq-send-id has the value 'pppp",
    ),
    ("an unknown message type", ALL, send("amq-msg-type:map", "receipt:r"), "message type 'map'"),
    ("an unknown subscription", ALL, frame("UNSUBSCRIBE", "id:x", "receipt:r"), "No subscription matched 'x'"),
    ("an unknown id", ("1.2",), frame("ACK", "id:7-1", "receipt:r"), "Unexpected ACK received for id [7-1]"),
    ("an unknown id", ("1.2",), frame("NACK", "id:7-1", "receipt:r"), "Unexpected NACK received for id [7-1]"),
    *(
        (f"a number that is none, {name}", ALL, send(f"{name}:{value}", "receipt:r"), f"{name} has the value")
        for name, value in (("priority", "٣"), ("expires", "1_000"), ("JMSXGroupSeq", "१"), ("timestamp", "1e3"))
    ),
    *(
        (f"persistent {value!r}", ALL, send(f"persistent:{value}", "receipt:r"), "persistent has the value")
        for value in ("yes", "1", "", "truE!")
    ),
    ("a durable name that is empty", ALL, subscribe("durable-subscriber-name:", "receipt:r"), "name is empty"),
    ("a consumer's priority in other digits", ALL, subscribe("activemq.priority:٣", "receipt:r"), "has the value"),
    ("a message-id", ALL[:2], frame("ACK", "subscription:0", "message-id:x", "receipt:r"), "message-id [x]"),
    ("NACK in 1.0", ("1.0",), frame("NACK", "message-id:x", "receipt:r"), "STOMP 1.0 has no NACK"),
]

FAILURES: list[tuple[str, tuple[str, ...], bytes, str]] = [
    ("an unknown command", ALL, frame("SENT", "receipt:r"), "Unknown STOMP command: 'SENT'"),
    ("a command in small letters", ALL, frame("send", "receipt:r"), "Unknown STOMP command"),
    ("a server's command", ALL, frame("RECEIPT", "receipt:r"), "Unknown STOMP command"),
    ("SEND without destination", ALL, frame("SEND", "receipt:r"), "SEND lacks the header destination"),
    ("SUBSCRIBE to nothing", ALL, frame("SUBSCRIBE", "id:0", "receipt:r"), "lacks the header destination"),
    ("SUBSCRIBE without id", NEWER, frame("SUBSCRIBE", "destination:/queue/a", "receipt:r"), "lacks the header id"),
    ("a prefetch in words", ALL, subscribe("prefetch-count:x", "receipt:r"), "prefetch"),
    ("UNSUBSCRIBE without id", NEWER, frame("UNSUBSCRIBE", "receipt:r"), "UNSUBSCRIBE lacks the header id"),
    ("ACK without id", ("1.2",), frame("ACK", "receipt:r"), "ACK lacks the header id"),
    ("ACK without message-id", ALL[:2], frame("ACK", "subscription:0", "receipt:r"), "lacks the header message-id"),
    ("ACK without subscription", ("1.1",), frame("ACK", "message-id:0", "receipt:r"), "lacks the header subscription"),
    ("BEGIN without transaction", ALL, frame("BEGIN", "receipt:r"), "BEGIN lacks the header transaction"),
    ("a body beyond its content-length", ALL, send("content-length:1", "receipt:r", body=b"ab"), "not as long as its"),
    ("a content-length in words", ALL, send("content-length:x", "receipt:r", body=b"ab"), "Not a content-length"),
    ("a length without end", ALL, send(f"content-length:{1 << 32}", "receipt:r"), "The maximum frame length"),
]


def cases(table: list[tuple[str, tuple[str, ...], bytes, Any]]) -> Any:
    return pytest.mark.parametrize(
        ("version", "data", "expected"),
        [
            pytest.param(version, *rest, id=f"{name}, {version}")
            for name, versions, *rest in table
            for version in versions
        ],
    )


@cases(SAMPLES)
def test_a_frame_becomes_its_command_however_it_comes(version: str, data: bytes, expected: object) -> None:
    """Whole, byte by byte, and with bytes behind it."""
    for pieces in ([data], [bytes([byte]) for byte in data], [data + b"\nSEND\nhalf:", b"a frame"]):
        session = connected_session(version)
        commands = [command for piece in pieces for command in session.receive(piece)]
        assert [described(command) for command in commands] == [described(expected)]


@cases(REFUSALS)
def test_a_refusal_is_reported_and_the_session_continues(version: str, data: bytes, expected: str) -> None:
    session = connected_session(version)
    refused, understood = session.receive(data + b"SEND\ndestination:/queue/a\n\nx\0")
    assert isinstance(refused, ProtocolFailure)
    assert expected in refused.error.message
    assert (refused.error.is_fatal, refused.error.receipt) == (False, "r")
    assert isinstance(understood, Send)


@cases(FAILURES)
def test_a_failure_is_told_and_nothing_after_it_counts(version: str, data: bytes, expected: str) -> None:
    session = connected_session(version)
    failure = one(ProtocolFailure, session.receive(data + b"SEND\ndestination:/queue/a\n\nx\0"))
    assert expected in failure.error.message
    assert (failure.error.is_fatal, failure.error.receipt) == (True, "r")
    assert session.receive(b"SEND\ndestination:/queue/a\n\nx\0") == []


@pytest.mark.parametrize("length", [(), ("content-length:2000",)])
def test_a_frame_over_the_limit_is_refused_alone_with_its_transaction(length: tuple[str, ...]) -> None:
    session = new_session(Limits(frame_bytes_max=1_000))
    one(Connect, session.receive(frame("CONNECT")))
    long = send("receipt:r", "transaction:t", *length, body=b"x" * 2_000)
    failure, understood = session.receive(long + send(body=b"x"))
    assert isinstance(failure, ProtocolFailure)
    assert (failure.error.is_fatal, failure.error.receipt, failure.transaction) == (False, "r", "t")
    assert "1000 bytes" in failure.error.detail
    assert isinstance(understood, Send)


def test_a_frame_over_the_limit_before_connect_is_the_end() -> None:
    session = new_session(Limits(frame_bytes_max=1_000))
    failure = one(ProtocolFailure, session.receive(frame("CONNECT", body=b"x" * 2_000) + frame("CONNECT")))
    assert failure.error.is_fatal


class TestConnect:
    @pytest.mark.parametrize(
        ("accepted", "version"),
        [
            ("", "1.0"),
            ("accept-version:1.0\n", "1.0"),
            ("accept-version:1.1,1.0\n", "1.1"),
            ("accept-version:1.1, 1.2,2.0\n", "1.2"),
        ],
    )
    def test_the_highest_common_version_is_spoken(self, accepted: str, version: str) -> None:
        session = new_session()
        command = one(
            Connect, session.receive(f"STOMP\n{accepted}login:me\npasscode:a:b\\c\nclient-id:c\n\n\0".encode())
        )
        assert (command.login, command.passcode, command.client_id) == ("me", "a:b\\c", "c")
        session.connected(command, "c")
        name, headers, _ = frames_of(session)[0]
        assert (name, headers["version"], headers["session"]) == ("CONNECTED", version, "c")

    def test_connected_is_not_escaped_and_answers_the_receipt(self) -> None:
        session = new_session()
        command = one(
            Connect,
            session.receive(b"CONNECT\naccept-version:1.2\nreceipt:r:1\nrequest-id:q\nheart-beat:2000,3000\n\n\0"),
        )
        session.connected(command, "ID:a-1-1")
        assert session.take() == (
            b"CONNECTED\nversion:1.2\nsession:ID:a-1-1\nserver:TandemMQ\nheart-beat:3000,2000\n"
            b"receipt-id:r:1\nresponse-id:q\n\n\0\n"
        )
        assert (session.send_interval_ms, session.receive_interval_ms) == (3000, 2000)

    @pytest.mark.parametrize(
        ("headers", "connectors", "intervals"),
        [
            (("accept-version:1.2", "heart-beat:1,1"), "0,0", (500, 1)),  # no more often than the broker can
            (("accept-version:1.1", "heart-beat:1000,2000"), "0,0", (2000, 1000)),
            (("accept-version:1.0", "heart-beat:1000,2000"), "0,0", (0, 0)),  # it has none
            (("heart-beat:often",), "0,0", (0, 0)),
            (("heart-beat:1000,2000",), "3000,4000", (4000, 3000)),
            ((), "3000,4000", (4000, 3000)),
        ],
    )
    def test_heart_beats_are_those_that_were_asked_for_or_the_connectors(
        self, headers: tuple[str, ...], connectors: str, intervals: tuple[int, int]
    ) -> None:
        session = StompSession(
            "ID:a-1-1", lambda: NOW, Limits(), default_heart_beat=connectors, secret=lambda: "secret"
        )
        session.receive(frame("CONNECT", *headers))
        assert (session.send_interval_ms, session.receive_interval_ms) == intervals

    def test_frames_may_follow_connect_at_once(self) -> None:
        """The frames are interpreted when the user is known."""
        session = new_session()
        one(Connect, session.receive(b"CONNECT\naccept-version:1.2\n\n\0SEND\ndestination:/queue/a\\cb\n\n\0"))
        assert session.has_more
        send = one(Send, session.receive(b""))
        assert send.message.destination.name == "a:b"

    @pytest.mark.parametrize(
        ("user", "producer"),
        [
            (None, "p"),
            ("ann", "p@ann"),
            ("ann@corp", "p@~" + hashlib.sha256(b"ann@corp").hexdigest()),
            ("~ann", "p@~" + hashlib.sha256(b"~ann").hexdigest()),
            ("", "p@~" + hashlib.sha256(b"").hexdigest()),
        ],
    )
    def test_each_user_has_numbers_of_his_own(self, user: str | None, producer: str) -> None:
        session = new_session()
        (connect,) = session.receive(
            b"CONNECT\naccept-version:1.2\n\n\0SEND\ndestination:/queue/a\ntandemmq-send-id:p:7\n\n\0"
        )
        session.connected(connect, "s", user)
        send = one(Send, session.receive(b""))
        assert send.message.message_id == f"ID:{producer}:1:1:7"

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"SEND\ndestination:/queue/a\n\n\0", "SEND was sent before CONNECT"),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\0", "Unknown STOMP command: 'GET / HTTP/1.1'"),
            (
                b"CONNECT\naccept-version:3.0\n\n\0",
                "Invalid protocol version [3.0], supported versions are: 1.0, 1.1, 1.2",
            ),
            (b"CONNECT\naccept-version:1.2\nheart-beat:often\n\n\0", "Invalid heart-beat header 'often'"),
            (b"CONNECT\naccept-version:1.2\nheart-beat:-1,0\n\n\0", "Invalid heart-beat header '-1,0'"),
            (b"CONNECT\naccept-version:1.2\nheart-beat:+1,0\n\n\0", "Invalid heart-beat header '+1,0'"),
            ("CONNECT\naccept-version:1.2\nheart-beat:٣,1_0\n\n\0".encode(), "Invalid heart-beat header '٣,1_0'"),
            (b"\x16\x03\x01\x02\x00\x01\n\n\0", "ended before its headers"),
        ],
    )
    def test_no_other_start_is_understood(self, data: bytes, message: str) -> None:
        session = new_session()
        failure = session.receive(data)[-1]
        assert isinstance(failure, ProtocolFailure)
        assert message in failure.error.message
        session.fail(failure.error)
        assert frames_of(session)[0][1]["version"] == "1.0,1.1,1.2"

    @pytest.mark.parametrize(
        ("versions", "kept"), [("1.0", "x"), ("1.1", " x\t"), ("1.0,1.2", " x\t"), ("1.0, 1.2 ", " x\t")]
    )
    def test_blanks_of_login_and_passcode_count_where_they_do_in_headers(self, versions: str, kept: str) -> None:
        session = new_session()
        command = one(Connect, session.receive(frame("CONNECT", f"accept-version:{versions}", "login: x\t",
                                                     "passcode: x\t", "client-id: c ")))  # fmt: skip
        assert (command.login, command.passcode, command.client_id) == (kept, kept, "c")

    def test_a_connection_is_opened_once(self) -> None:
        failure = one(ProtocolFailure, connected_session().receive(b"CONNECT\n\n\0"))
        assert "CONNECT was sent twice" in failure.error.message


def test_the_id_of_an_acknowledgement_has_ascii_digits() -> None:
    session = subscribed_session("1.2")
    for command in ("ACK", "NACK"):
        assert one(AckOfMessage, session.receive(frame(command, "id:1-٤"))).message_id == "1-٤"
        failure = one(ProtocolFailure, session.receive(frame(command, f"id:1-{'4' * 30}")))
        assert "Unexpected" in failure.error.message


def subscribed_session(version: str, mode: str = "client", id: str = "s:1") -> StompSession:
    session = connected_session(version)
    escaped = id if version == "1.0" else id.replace(":", "\\c")
    session.receive(f"SUBSCRIBE\nid:{escaped}\ndestination:/queue/a\nack:{mode}\n\n\0".encode())
    return session


def message(sequence: int = 1, **fields: Any) -> Message:
    fields.setdefault("body", b"hi")
    return Message(fields.pop("destination", Destination(QUEUE, "a")), f"ID:x:1:1:{sequence}", **fields)


class TestMessage:
    @pytest.mark.parametrize("version", ALL)
    def test_a_plain_message_has_the_headers_of_activemq(self, version: str) -> None:
        session = subscribed_session(version)
        session.deliver("s:1", 4, message(timestamp=NOW), 0, AckMode.CLIENT)
        ((_, headers, body),) = frames_of(session)
        expected = {"subscription": "s:1", "message-id": "ID:x:1:1:1", "destination": "/queue/a", "expires": "0"}
        expected |= {"priority": "4", "timestamp": str(NOW), "content-length": "2"}
        assert (headers, body) == (expected | ({"ack": "1-4"} if version == "1.2" else {}), b"hi")

    @pytest.mark.parametrize("version", ALL)
    def test_all_headers_of_a_message_are_written(self, version: str) -> None:
        session = subscribed_session(version, "auto")
        full = message(
            destination=TOPIC_A, persistent=True, priority=9, expiration=12, timestamp=13, correlation_id="c", type="y",
            reply_to=Destination(QUEUE, "r"), user_id="u", original_destination=Destination(QUEUE, "o"),
            properties={"colour": "red", "flag": True, "none": None, "n": 3, "x": 1.5, "b": b"b", "ack": "no"},
        )  # fmt: skip
        session.deliver("s:1", 1, full, 1, AckMode.AUTO)
        ((_, headers, _),) = frames_of(session)
        said = "subscription:s:1 redelivered:true message-id:ID:x:1:1:1 destination:/topic/a expires:12 priority:9"
        said += " timestamp:13 content-length:2 persistent:true correlation-id:c reply-to:/queue/r type:y JMSXUserID:u"
        said += " original-destination:/queue/o colour:red flag:true none: n:3 x:1.5 b:b"
        assert headers == dict(each.split(":", 1) for each in said.split())

    def test_headers_of_the_sender_come_back(self) -> None:
        session = subscribed_session("1.2", "auto")
        data = b"SEND\ndestination:/queue/a\na\\nb:x\\cy\\r\nreply-to:me\n\nhi\0"
        send = one(Send, session.receive(data))
        session.deliver("s:1", 1, send.message, 0, AckMode.AUTO)
        ((_, headers, _),) = frames_of(session)
        assert (headers["a\nb"], headers["reply-to"]) == ("x:y\r", "me")

    def test_a_send_id_does_not_come_back(self) -> None:
        """A bridge copies all headers; the message that it makes of them is no duplicate of the one it got."""
        session = subscribed_session("1.2", "auto")
        send = one(Send, session.receive(b"SEND\ndestination:/queue/a\ntandemmq-send-id:p\\c1\ncolour:red\n\nhi\0"))
        assert send.message.properties == {"colour": "red"}
        named = message(properties={"tandemmq-send-id": "p:1", "colour": "red"})  # what a JMS client might call so
        for each in (send.message, named):
            session.deliver("s:1", 1, each, 0, AckMode.AUTO)
        for _, headers, _ in frames_of(session):
            assert headers["colour"] == "red"
            assert "tandemmq-send-id" not in headers

    def test_1_0_says_its_values_as_they_are(self) -> None:
        session = subscribed_session("1.0", "auto")
        session.deliver("s:1", 1, message(properties={"a": "b:\\c", "evil": "x\nack:1\0"}), 0, AckMode.AUTO)
        data = session.take()
        assert b"message-id:ID:x:1:1:1\n" in data
        assert b"a:b:\\c\n" in data
        assert b"evil:x ack:1 \n" in data

    def test_one_message_is_written_for_versions_that_differ(self) -> None:
        shared = message()
        for version, written in (("1.2", b"ID\\cx"), ("1.0", b"ID:x"), ("1.1", b"ID\\cx")):
            session = subscribed_session(version, "auto")
            session.deliver("s:1", 1, shared, 0, AckMode.AUTO)
            assert written in session.take()

    @pytest.mark.parametrize("kind", [BodyKind.MAP, BodyKind.OBJECT, BodyKind.STREAM, BodyKind.NONE])
    def test_a_java_object_has_no_body(self, kind: BodyKind) -> None:
        session = subscribed_session("1.2", "auto")
        session.deliver("s:1", 1, message(body_kind=kind, body=b"java"), 0, AckMode.AUTO)
        ((_, headers, body),) = frames_of(session)
        assert (headers["content-length"], body) == ("0", b"")

    def test_a_body_may_hold_anything(self) -> None:
        session = subscribed_session("1.1", "auto")
        session.deliver("s:1", 1, message(body=b"a\0\n\nb", body_kind=BodyKind.TEXT), 0, AckMode.AUTO)
        assert frames_of(session)[0][2] == b"a\0\n\nb"

    def test_a_subscription_without_an_id_is_told_apart_by_its_destination(self) -> None:
        session = connected_session("1.0")
        session.receive(b"SUBSCRIBE\ndestination:/queue/a\n\n\0")
        session.deliver("/queue/a", 1, message(), 0, AckMode.AUTO)
        assert "subscription" not in frames_of(session)[0][1]
        closed = one(Unsubscribe, session.receive(b"UNSUBSCRIBE\ndestination:/queue/a\n\n\0"))
        assert closed.id == "/queue/a"


class TestAcknowledgement:
    def test_1_2_repeats_the_ack_header(self) -> None:
        session = subscribed_session("1.2")
        for tag in (1, 2):
            session.deliver("s:1", tag, message(tag), 0, AckMode.CLIENT)
        ids = [headers["ack"] for _, headers, _ in frames_of(session)]
        ack, nack = session.receive(f"ACK\nid:{ids[0]}\ntransaction:t\nreceipt:r\n\n\0NACK\nid:{ids[1]}\n\n\0".encode())
        assert described(ack) == described(Ack("s:1", 1, "t", "r"))
        assert described(nack) == described(Nack("s:1", 2))

    @pytest.mark.parametrize("version", ["1.0", "1.1"])
    @pytest.mark.parametrize(("mode", "known"), [("client", [3]), ("client-individual", [1, 3])])
    def test_older_versions_name_the_message(self, version: str, mode: str, known: list[int]) -> None:
        session = subscribed_session(version, mode, "s")
        for tag in (1, 2, 3):
            session.deliver("s", tag, message(tag), 0, AckMode(mode))

        def ack(sequence: int) -> object:
            id = f"ID:x:1:1:{sequence}"
            if version == "1.1":
                id = id.replace(":", "\\c") + "\nsubscription:s"
            return session.receive(f"ACK\nmessage-id:{id}\n\n\0".encode())[0]

        assert described(ack(2)) == described(Ack("s", 2))
        assert [tag for tag in (1, 2, 3) if isinstance(ack(tag), Ack)] == known

    def test_a_redelivered_message_has_its_new_tag(self) -> None:
        session = subscribed_session("1.1", "client", "s")
        session.deliver("s", 1, message(1), 0, AckMode.CLIENT)
        session.deliver("s", 2, message(2), 0, AckMode.CLIENT)
        session.deliver("s", 3, message(1), 1, AckMode.CLIENT)
        (ack,) = session.receive(b"ACK\nsubscription:s\nmessage-id:ID\\cx\\c1\\c1\\c1\n\n\0")
        assert described(ack) == described(Ack("s", 3))

    def test_after_abort_a_message_may_be_acknowledged_again(self) -> None:
        session = subscribed_session("1.1", "client", "s")
        session.deliver("s", 1, message(1), 0, AckMode.CLIENT)
        ack = b"ACK\nsubscription:s\nmessage-id:ID\\cx\\c1\\c1\\c1\n%b\n\0"
        in_transaction = ack % b"transaction:t\n"
        begin, commit, abort = (word + b"\ntransaction:t\n\n\0" for word in (b"BEGIN", b"COMMIT", b"ABORT"))
        commands = session.receive(begin + in_transaction + abort + begin + in_transaction + commit + ack % b"")
        assert [type(command) for command in commands] == [Begin, Ack, Abort, Begin, Ack, Commit, ProtocolFailure]

    @pytest.mark.parametrize("version", ["1.1", "1.2"])
    @pytest.mark.parametrize("command", ["ACK", "NACK", "SEND"])
    def test_a_refused_part_of_a_transaction_names_it(self, version: str, command: str) -> None:
        session = subscribed_session(version, "auto", "s")
        rest = "destination:/queue/\ntransaction:t\nid:9-7\nsubscription:s\nmessage-id:x\n\n\0"
        assert one(ProtocolFailure, session.receive(f"{command}\n{rest}".encode())).transaction == "t"

    def test_an_id_of_a_closed_subscription_means_nothing_to_the_next(self) -> None:
        session = subscribed_session("1.2")
        session.receive(b"UNSUBSCRIBE\nid:s\\c1\n\n\0")
        session.receive(b"SUBSCRIBE\nid:s\\c1\ndestination:/queue/a\nack:client\n\n\0")
        one(ProtocolFailure, session.receive(b"ACK\nid:1-1\n\n\0"))


class TestSubscribe:
    def test_others_may_have_their_turn_after_each_selector(self) -> None:
        session = connected_session("1.2")
        data = b"".join(b"SUBSCRIBE\nid:%d\ndestination:/queue/a\nselector:n = %d\n\n\0" % (n, n) for n in range(3))
        one(Subscribe, session.receive(data))
        for _ in range(2):
            assert session.has_more
            one(Subscribe, session.receive(b""))
        assert [type(command) for command in session.receive(b"SEND\ndestination:/queue/a\n\n\0")] == [Send]


class TestUnsubscribe:
    def test_deliveries_go_on_until_it_is_carried_out(self) -> None:
        session = subscribed_session("1.2", id="s")
        data = b"UNSUBSCRIBE\nid:s\n\n\0SUBSCRIBE\nid:s\ndestination:/queue/b\nack:client\n\n\0ACK\nid:1-7\n\n\0"
        one(Unsubscribe, session.receive(data))
        assert session.has_more
        session.deliver("s", 7, message(), 0, AckMode.CLIENT)
        assert frames_of(session)[0][1]["ack"] == "1-7"
        commands = session.receive(b"")
        assert [type(command) for command in commands] == [Subscribe, ProtocolFailure]
        assert not session.has_more

    def test_bytes_may_come_before_the_rest_was_asked_for(self) -> None:
        session = subscribed_session("1.2", id="s")
        session.receive(b"UNSUBSCRIBE\nid:s\n\n\0BEGIN\ntransac")
        (begin,) = session.receive(b"tion:t\n\n\0")
        assert described(begin) == described(Begin("t"))


class TestWords:
    def test_a_receipt_is_given_back_as_it_came(self) -> None:
        session = connected_session("1.2")
        send = one(Send, session.receive(b"SEND\ndestination:/queue/a\nreceipt:r\\c\\n1\n\n\0"))
        session.receipt(send.receipt or "")
        assert session.take() == b"RECEIPT\nreceipt-id:r\\c\\n1\n\n\0\n"

    @pytest.mark.parametrize(
        ("detail", "length"), [("Do this instead.", b""), ("Do this\0instead.", b"content-length:27\n")]
    )
    def test_an_error_contains_the_mistake_and_the_advice(self, detail: str, length: bytes) -> None:
        session = connected_session("1.2")
        session.fail(ClientError("no: never", detail, receipt="7"))
        assert session.take() == (
            b"ERROR\nmessage:no\\c never\ncontent-type:text/plain\nreceipt-id:7\n%b\nno: never\n%b\n\0\n"
            % (length, detail.encode())
        )

    def test_words_come_in_order_and_are_counted_until_taken(self) -> None:
        session = connected_session()
        session.receipt("1")
        session.heart_beat()
        session.receipt("2")
        pending = session.pending_bytes
        data = session.take()
        assert data == b"RECEIPT\nreceipt-id:1\n\n\0\n\nRECEIPT\nreceipt-id:2\n\n\0\n"
        assert (pending, session.pending_bytes, session.take()) == (len(data), 0, b"")

    def test_frames_after_disconnect_are_ignored(self) -> None:
        session = connected_session()
        commands = session.receive(b"DISCONNECT\nreceipt:r\n\n\0SEND\ndestination:/queue/a\n\n\0")
        assert [type(command) for command in commands] == [Disconnect]
        assert session.receive(b"SEND\ndestination:/queue/a\n\n\0") == []


_words = [
    *(b"CONNECT\n", b"SEND\n", b"SUBSCRIBE\n", b"UNSUBSCRIBE\n", b"ACK\n", b"NACK\n", b"BEGIN\n", b"COMMIT\n"),
    *(b"accept-version:1.1\n", b"destination:/queue/a\n", b"id:0\n", b"id:1-1\n", b"ack:client\n", b"receipt:r\n"),
    *(b"transaction:t\n", b"content-length:3\n", b"message-id:x\n", b"subscription:0\n", b"\\c", b"\n", b"\n\0", b"\0"),
    *(b"browser:true\n", b"activemq.priority:1\n", b"selector:a = 1\n", b"destination:/temp-queue/a,\n", b"<map/>"),
    *(b"transformation:jms-map-xml\n", b"transformation:jms-map-json\n", b"reply-to:/temp-topic/b\n", b'{"map":""}'),
    *(b"priority:1_0\n", b"priority:" + b"9" * 5000 + b"\n", b"id:1-" + b"9" * 5000 + b"\n", b"heart-beat:1,1\n"),
]


@given(
    version=st.sampled_from([None, "1.0", "1.1", "1.2"]),
    pieces=st.lists(st.sampled_from(_words) | st.binary(max_size=20), max_size=40),
)
def test_any_bytes_are_commands_or_a_failure(version: str | None, pieces: list[bytes]) -> None:
    session = new_session() if version is None else connected_session(version)
    for piece in pieces:
        for command in session.receive(piece):
            if isinstance(command, ProtocolFailure):
                session.fail(command.error)
    session.take()


def test_a_subscription_that_the_broker_ends_is_told_as_an_error() -> None:
    session = subscribed_session("1.2", id="s")
    session.take()
    session.close_consumer("s", ClientError("too slow", "What it held goes to others.", is_fatal=False))
    told = session.take()
    assert told.startswith(b"ERROR\nmessage:too slow\n")
    assert b"What it held goes to others." in told
    one(Subscribe, session.receive(b"SUBSCRIBE\nid:s\ndestination:/queue/b\n\n\0"))


@pytest.mark.parametrize("name", ["JMSXUserID:admin", "redelivered:true", "a\nredelivered", " JMSXUserID"])
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_no_header_can_be_forged_by_a_property_name(name: str, version: str) -> None:
    session = connected_session(version)
    session.receive(b"SUBSCRIBE\nid:0\ndestination:/queue/a\n\n\0")
    there = Destination(QUEUE, "a")
    message = Message(there, "ID:m:1:1:1", b"x", properties={name: "mine", "colour": "red"})
    session.deliver("0", 1, message, 0, AckMode.AUTO)
    ((_, headers, _),) = frames_of(session)
    assert headers["colour"] == "red"
    assert "redelivered" not in headers
    assert "JMSXUserID" not in headers
    assert headers.get(name) == (None if version == "1.0" else "mine")


def test_1_0_unsubscribes_by_destination_what_has_an_id() -> None:
    session = connected_session("1.0")
    session.receive(subscribe() + frame("SUBSCRIBE", "destination:/queue/b"))
    for name, id in (("/queue/b", "/queue/b"), ("/queue/a", "s")):
        assert one(Unsubscribe, session.receive(frame("UNSUBSCRIBE", f"destination:{name}"))).id == id
        session.receive(b"")
    refused = one(ProtocolFailure, session.receive(frame("UNSUBSCRIBE", "destination:/queue/a")))
    assert not refused.error.is_fatal


def test_an_id_that_is_taken_stays_what_it_was() -> None:
    session = connected_session()
    session.receive(b"SUBSCRIBE\nid:0\ndestination:/queue/a\n\n\0")
    refused = one(ProtocolFailure, session.receive(b"SUBSCRIBE\nid:0\ndestination:/queue/b\nbrowser:true\n\n\0"))
    assert not refused.error.is_fatal
    session.nothing("0")
    assert b"destination:/queue/a\n" in session.take()


def test_of_subscriptions_that_were_refused_nothing_is_kept() -> None:
    session = connected_session()
    for number in range(100):
        session.receive(b"SUBSCRIBE\nid:%d\ndestination:/queue/a\n\n\0" % number)
        error = ClientError("no", is_fatal=False)
        error.refused_id = str(number)
        session.fail(error)
    assert not session._subscriptions
    assert not session._ordinals


def test_the_end_of_what_a_client_says_is_a_farewell() -> None:
    assert new_session().peer_disconnect() is None
    session = connected_session()
    assert isinstance(session.peer_disconnect(), Disconnect)
    session.receive(b"DISCONNECT\n\n\0")
    assert session.peer_disconnect() is None


def test_long_frames_take_a_step_each() -> None:
    session = connected_session()
    said = b"SEND\ndestination:/queue/a\n" + b"".join(b"h%d:%s\n" % (n, b"x" * 9_000) for n in range(8)) + b"\n\0"
    came = [len(session.receive(3 * said))]
    while session.has_more:
        came.append(len(session.receive(b"")))
    assert max(came) == 1
    assert sum(came) == 3
    assert len(came) > 3 * len(said) // (HEAD_PIECE_BYTES + 10_000), "and long heads take several"


def test_the_headers_of_a_frame_that_is_not_whole_are_counted() -> None:
    session = connected_session()
    session.receive(b"SEND\ndestination:/queue/a\n" + b"".join(b"h%d:%s\n" % (n, b"x" * 9_000) for n in range(8)))
    while session.has_more:
        assert session.receive(b"") == []
    assert session.unfinished_bytes > 8 * 9_000
    assert len(session.receive(b"\n\0")) == 1
    assert session.unfinished_bytes == 0


@pytest.mark.parametrize("version", ALL)
def test_a_long_head_is_a_message_however_it_is_cut(version: str) -> None:
    head = b"".join(b"h%d:%s\n" % (n, b"\\c\\n" * 2_000) for n in range(8))
    said = send(body=b"1") + b"SEND\ndestination:/queue/a\n%b\n2\0" % head + send(body=b"3")
    for size in (len(said), 1_000, 1):
        session = connected_session(version)
        came = []
        for start in range(0, len(said), size):
            came += session.receive(said[start : start + size])
            while session.has_more:
                came += session.receive(b"")
        assert [command.message.body for command in came] == [b"1", b"2", b"3"]
        value = (came[1].message.properties or {})["h7"]
        assert value == (r"\c\n" if version == "1.0" else ":\n") * 2_000
