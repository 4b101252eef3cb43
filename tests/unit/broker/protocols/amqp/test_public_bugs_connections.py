"""Connections and sessions: bugs that users reported for other brokers. Sources are in the docstrings."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.core.access import Credentials, OpenAccess
from tandemmq.broker.core.commands import ClientError, ErrorKind, Undecided
from tandemmq.broker.protocols.amqp import frames, schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.errors import FRAME_SIZE_TOO_SMALL, FRAMING_ERROR, INVALID_FIELD
from tandemmq.broker.protocols.amqp.frames import EARLY_FRAME_BYTES_MAX, FRAME_BYTES_MIN, frame_of
from tandemmq.broker.protocols.amqp.schema import UINT_MAX, Composite, Disposition, Flow, Transfer
from tandemmq.broker.protocols.amqp.types import Symbol
from tandemmq.store.records.message import BodyKind
from tests.support.broker.amqp_wire import AmqpWire, bodies, body_of, value
from tests.support.broker.wire import Pieces
from tests.unit.broker.engine.conftest import Client, Harness
from tests.unit.broker.protocols.amqp.conftest import Make

BEGIN = schema.Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
SENDER = schema.Attach(name="s", handle=0, role=False, source=schema.Source(), target=schema.Target(address="orders"))
RECEIVER = schema.Attach(name="r", handle=1, role=True, source=schema.Source(address="orders"), target=schema.Target())

SOLE_CONNECTION = Symbol("sole-connection-for-container")


@pytest.fixture
def writer(harness: Harness) -> Client:
    return harness.client()


def encoded(*performatives: Composite, channel: int = 0) -> bytes:
    return b"".join(frame_of(channel, write_composite(each)) for each in performatives)


def names(wire: AmqpWire) -> list[str]:
    return [type(each.performative).__name__ for each in wire.replies()]


# ---- open, idle time-outs


class Refusing(OpenAccess):
    """Access control that refuses every login."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(is_everywhere=True)
        self.error = error

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        then(self.error)


@pytest.mark.parametrize("pieces", Pieces)
def test_frames_after_a_refused_open_do_not_hide_the_reason(make: Make, pieces: Pieces) -> None:
    """ARTEMIS-2431: begin and attach after a refused open were carried out, and their error hid the reason."""
    wire = make(pieces=pieces)
    wire.log_in()
    wire.receive(frames.AMQP)
    wire.output()
    wire.receive(encoded(schema.Open("", max_frame_size=4_096), BEGIN, SENDER, RECEIVER))
    opened, close = [each.performative for each in wire.replies()]
    assert isinstance(close, schema.Close)
    assert isinstance(close.error, schema.Error)
    assert close.error.condition == INVALID_FIELD
    assert isinstance(opened, schema.Open)


def test_the_open_of_a_refusal_is_valid(make: Make) -> None:
    """QPID-8762: the open of a refusal had max-frame-size 0. AMQ-5655: it did not show the refusal."""
    wire = make()
    wire.log_in()
    opened, _ = wire.open("")
    assert opened.max_frame_size >= FRAME_BYTES_MIN
    assert opened.container_id == "broker"
    assert opened.properties["amqp:connection-establishment-failed"] is True


def test_a_refusal_names_a_container_id_in_use(make: Make) -> None:
    """AMQ-5655, AMQ-5801: to raise InvalidClientIDException, Qpid JMS needs the property and the error's info."""
    make().connect("one", desired_capabilities=(SOLE_CONNECTION,))
    wire = make()
    wire.log_in()
    opened, close = wire.open("one", desired_capabilities=(SOLE_CONNECTION,))
    assert opened.properties["amqp:connection-establishment-failed"] is True
    assert (close.error.condition, close.error.info) == (INVALID_FIELD, {"invalid-field": "container-id"})


def test_a_container_id_is_free_after_its_connection_is_lost(make: Make) -> None:
    """ARTEMIS-4476: the id of a lost connection stayed in use."""
    first = make()
    first.connect("one", desired_capabilities=(SOLE_CONNECTION,))
    first.vanish()
    assert make().connect("one", desired_capabilities=(SOLE_CONNECTION,)).properties is not None


def test_a_login_that_cannot_be_checked_has_a_temporary_outcome(make: Make, harness: Any) -> None:
    """ARTEMIS-1310 and Qpid JMS: after code 1 a client does not reconnect; after code 4 (temporary) it does."""
    harness.access = Refusing(Undecided("the directory does not answer", kind=ErrorKind.LOGIN))
    harness.begin_term()
    (outcome,) = make().log_in("PLAIN", b"\0a\0b")
    assert outcome.performative == schema.SaslOutcome(4)


def test_empty_frames_are_heart_beats_on_every_channel(connect: Make) -> None:
    """rabbitmq-amqp1.0 #6: empty frames closed the connection."""
    wire = connect()
    for channel in (0, 1, 0xFFFF):
        wire.receive(frame_of(channel, b""))
        wire.receive(struct.pack(">IBBHI", 12, 3, 0, channel, 0))  # with an extended header
    assert not wire.replies()
    assert not wire.is_closed


def test_the_announced_idle_time_out_is_half_of_the_limit(make: Make) -> None:
    """go-amqp #16: a client that sent exactly at the announced interval was disconnected. ``receive_interval_ms`` is
    the interval; the transport enforces twice this time."""
    wire = make()
    opened = wire.connect(idle_time_out=10_000)
    assert opened.idle_time_out == wire.session.receive_interval_ms == wire.session.limits.idle_ms // 2
    assert wire.session.send_interval_ms == 5_000


# ---- damaged bytes


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">iBBH", -1, 2, 0, 0),
        struct.pack(">IBBH", 0, 2, 0, 0),
        struct.pack(">IBBH", 7, 2, 0, 0),
        struct.pack(">IBBH", 0x7FFFFFFF, 2, 0, 0),
        struct.pack(">IBBH", 128 * 1024 + 1, 2, 0, 0),
        struct.pack(">IBBH", 16, 0, 0, 0),
        struct.pack(">IBBH", 16, 255, 0, 0),
        struct.pack(">IBBH", 16, 2, 9, 0),
    ],
)
def test_a_wrong_frame_size_ends_the_connection_at_once(connect: Make, head: bytes) -> None:
    """AMQ-5731, apache/activemq #2167, rabbitmq-server PR 17101: a crash, a hang, or memory for the stated size."""
    wire = connect()
    wire.receive(head)
    (close,) = wire.all_of(schema.Close)
    assert isinstance(close.error, schema.Error)
    assert close.error.condition == FRAMING_ERROR
    assert wire.is_closed
    assert wire.session.unfinished_bytes == 0


def test_the_size_of_frames_before_the_open_is_limited(make: Make) -> None:
    """AMQ-5731: memory for a large frame was used before the login."""
    wire = make()
    wire.receive(frames.SASL)
    wire.output()
    wire.receive(struct.pack(">IBBH", EARLY_FRAME_BYTES_MAX + 1, 2, 1, 0))
    assert wire.replies()[0].performative == schema.SaslOutcome(2)
    assert wire.is_closed


@pytest.mark.parametrize("greeting", [b"AMQP\0\0\x09\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x10\x26\0\4MQTT", bytes(64)])
def test_a_client_of_another_protocol_gets_the_header_and_is_disconnected(make: Make, greeting: bytes) -> None:
    """AMQ-5475: the connection of a client of another protocol was not closed."""
    wire = make()
    wire.receive(greeting)
    assert wire.output() == frames.SASL
    assert wire.is_closed


# ---- sessions, windows


def test_an_impossible_next_incoming_id_is_treated_as_absent(connect: Make, writer: Client) -> None:
    """rhea #426, AMQPNetLite #575 and #578: clients send a number before they get the begin; the session was ended."""
    writer.store(*range(3), body_kind=BodyKind.TEXT)
    for number in (0, 1, 77, 4_294_967_292, UINT_MAX):
        wire = connect(f"c{number}", window=2)
        wire.receiver()
        first = wire.flow(1, 1, window=2, next_incoming_id=number)
        assert [each.delivery_id for each in first] == [0]
        assert not wire.flow(None, None, window=1, next_incoming_id=1)
        assert len(wire.flow(1, 1, window=1, delivery_count=1, next_incoming_id=1)) == 1
        wire.vanish()


def test_ids_of_the_client_can_wrap(connect: Make, harness: Harness) -> None:
    """rabbitmq-amqp1.0 #9, fe2o3-amqp #382: counters that start near 2³² are serial numbers."""
    wire = connect()
    wire.exchange(schema.End())
    wire.begin(next_id=UINT_MAX)
    wire.sender(initial_delivery_count=UINT_MAX)
    wire.receive(
        b"".join(
            frame_of(0, write_composite(Transfer(handle=0, delivery_id=id, delivery_tag=b"t")) + value(str(id)))
            for id in (UINT_MAX, 0, 1)
        )
    )
    (disposition,) = wire.all_of(Disposition)
    assert (disposition.first, disposition.last, disposition.state) == (UINT_MAX, 1, schema.Accepted())
    (flow,) = wire.flow(0, None, echo=True)
    assert (flow.next_incoming_id, flow.delivery_count) == (2, 2)


def test_each_flow_renews_the_window_of_the_broker(connect: Make) -> None:
    """rabbitmq-server PR 13574: the window was not renewed, and consumption stopped after 65,535 transfers."""
    wire = connect()
    wire.sender()
    for number in range(1, 40):
        wire.send(value("x"), settled=True)
        (flow,) = wire.flow(None, None, echo=True)
        assert (flow.incoming_window, flow.next_incoming_id) == ((1 << 31) - 1, number)


def test_a_negative_window_stops_deliveries_until_it_opens(connect: Make, writer: Client) -> None:
    """rabbitmq-server #12816: a negative window caused a crash."""
    writer.store(*range(9), body_kind=BodyKind.TEXT)
    wire = connect(window=3)
    wire.receiver()
    assert len(wire.flow(1, 9, window=3)) == 3
    assert not wire.flow(None, None, window=1, next_incoming_id=0)  # the client got none of the 3: the window is -2
    assert not wire.flow(None, None, window=2, next_incoming_id=1)
    assert len(wire.flow(None, None, window=9, next_incoming_id=3)) == 6


def test_no_frame_exceeds_the_max_frame_size_of_the_client(make: Make, writer: Client) -> None:
    """AMQPNetLite #481: frames exceeded max-frame-size. fe2o3-amqp #382: split messages made window counters wrong."""
    for length in (0, 400, 430, 440, 450, 2_000):
        writer.store("x" * length, body_kind=BodyKind.TEXT)
    wire = make()
    wire.connect(max_frame_size=FRAME_BYTES_MIN)
    wire.begin(window=99)
    wire.receiver()
    wire.receive(encoded(Flow(incoming_window=99, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=6)))
    output = wire.output()
    sizes, at = [], 0
    while at < len(output):
        sizes.append(int.from_bytes(output[at : at + 4], "big"))
        at += sizes[-1]
    assert max(sizes) <= FRAME_BYTES_MIN
    (flow,) = wire.flow(None, None, window=9, next_incoming_id=len(sizes), echo=True)
    assert flow.next_outgoing_id == len(sizes)


@pytest.mark.parametrize("name", ["n" * 300, "n" * 1_000])
def test_an_answer_above_the_max_frame_size_ends_the_connection(make: Make, name: str) -> None:
    """AMQPNetLite #481 for performatives: the answer to an attach repeats the name and the selector of the client."""
    wire = make()
    wire.connect(max_frame_size=FRAME_BYTES_MIN)
    wire.begin()
    attach = schema.Attach(name=name, handle=0, role=True, source=schema.Source(address="q"), target=schema.Target())
    wire.receive(encoded(attach))
    (answer,) = [each.performative for each in wire.replies()]
    if len(name) < FRAME_BYTES_MIN:
        assert isinstance(answer, schema.Attach)
        assert not wire.is_closed
        return
    assert isinstance(answer, schema.Close)
    assert isinstance(answer.error, schema.Error)
    assert answer.error.condition == FRAME_SIZE_TOO_SMALL
    assert wire.is_closed


@pytest.mark.parametrize("windows", [[1] * 60, [2, 1, 3] * 20, [7] * 9])
def test_a_long_message_is_complete_with_any_sequence_of_windows(
    make: Make, writer: Client, windows: list[int]
) -> None:
    """ARTEMIS-5696: bytes were lost when the socket was full in the middle of a long message."""
    body = "".join(f"{number:07d}" for number in range(1_000))
    writer.store(body, "next", body_kind=BodyKind.TEXT)
    wire = make()
    wire.connect(max_frame_size=FRAME_BYTES_MIN)
    wire.begin(window=0)
    wire.receiver()
    wire.flow(1, 2, window=0)
    replies, taken = [], 0
    for window in windows:
        flow = Flow(next_incoming_id=taken, incoming_window=window, next_outgoing_id=0, outgoing_window=9)
        replies += [each for each in wire.exchange(flow) if isinstance(each.performative, Transfer)]
        assert len(replies) - taken <= window
        taken = len(replies)
    *parts, last = replies
    assert body_of(b"".join(each.payload for each in parts)) == body
    assert bodies([last]) == ["next"]


# ---- ends in unusual orders

UNUSUAL_ORDERS: list[list[Composite]] = [
    [SENDER, RECEIVER, schema.Detach(0), schema.Detach(1, True)],
    [RECEIVER, schema.Detach(1), schema.End()],
    [SENDER, RECEIVER, schema.End(), BEGIN, SENDER, RECEIVER, schema.End()],
    [RECEIVER, schema.Close()],
    [SENDER, schema.End(), schema.Close()],
    [RECEIVER, Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=9), schema.End()],
    [schema.End(), BEGIN, RECEIVER, schema.Detach(1, True), RECEIVER, schema.Detach(1), schema.Close()],
]


@pytest.mark.parametrize("order", UNUSUAL_ORDERS)
@pytest.mark.parametrize("is_lost", [False, True])
def test_no_consumer_outlives_its_link(
    connect: Make, harness: Harness, writer: Client, order: list[Composite], is_lost: bool
) -> None:
    """ARTEMIS-4476, -5800, -2597, AMQ-5484, AMQ-5431: ghost consumers, and links and sessions that leaked."""
    writer.store("one", body_kind=BodyKind.TEXT)
    wire = connect()
    wire.arrive(encoded(*order))
    if is_lost:
        harness.turn(2)
        wire.vanish()
    harness.turn()
    assert not wire.client or not wire.client.subscriptions
    assert (harness.figures()["consumers"], harness.figures()["unacknowledged"]) == (0, 0)
    wire.vanish()
    assert wire.holder.bytes == 0


def test_nothing_is_sent_on_a_session_that_has_ended(connect: Make, writer: Client) -> None:
    """AMQPNetLite #159: a detach was sent after the end, and after the close."""
    writer.store(*range(5), body_kind=BodyKind.TEXT)
    wire = connect()
    wire.sender()
    wire.receiver(credit=1)
    wire.receive(encoded(schema.Detach(0, True), schema.End(), schema.Close()))
    assert names(wire) == ["Detach", "End", "Close"]
    assert wire.output() == b""
