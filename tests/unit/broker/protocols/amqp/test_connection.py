"""AMQP connections: headers, SASL, open and close, sessions, and errors that end them."""

# proves: amqp-certificate-is-its-own-user

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.core.access import Credentials, OpenAccess
from tandemmq.broker.core.commands import ClientError, ErrorKind, ProtocolFailure, Undecided
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.protocols.amqp import frames, schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.errors import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    UNATTACHED_HANDLE,
    UNAUTHORIZED,
    ConnectionFailure,
)
from tandemmq.broker.protocols.amqp.frames import frame_of
from tandemmq.broker.protocols.amqp.opening import (
    ANONYMOUS_RELAY,
    CHANNEL_MAX,
    DELAYED_DELIVERY,
    SASL_AUTH,
    SASL_OK,
    SHARED_SUBS,
    SOLE_CONNECTION,
    AmqpLimits,
)
from tandemmq.broker.protocols.amqp.session import LINKS_MAX, WAITING_BYTES_MAX, AmqpSession
from tandemmq.broker.protocols.amqp.types import Symbol, UInt
from tandemmq.broker.security.logins import Anonymous, Logins
from tests.support.broker.amqp_wire import LIMITS, AmqpWire, Pieces, header, value
from tests.unit.broker.protocols.amqp.conftest import Make


class Refusing(OpenAccess):
    """Access control that refuses every login."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(is_everywhere=True)
        self.error = error

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        then(self.error)


OPEN = schema.Open("me", max_frame_size=1000, idle_time_out=4_000)


def failed(wire: AmqpWire, data: bytes) -> str:
    """Return the condition of the close that answers these bytes."""
    wire.receive(data)
    (close,) = wire.all_of(schema.Close)
    assert wire.is_closed
    assert isinstance(close.error, schema.Error)
    return close.error.condition


# ---- headers


@pytest.mark.parametrize(
    ("header", "logged"),
    [
        (b"AMQP\0\0\x09\x01", "0-9-1"),
        (b"AMQP\1\1\0\x0a", "0-9-1 or 0-10"),
        (b"AMQP\2\1\0\0", "protocol id 2"),
        (b"GET / HT", "does not speak AMQP"),
        (b"CONNECT\n", "does not speak AMQP"),
    ],
)
def test_a_wrong_header_is_answered_with_the_right_one(
    make: Make, header: bytes, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wire = make()
    wire.receive(header + b"more of it")
    assert wire.output() == frames.SASL
    assert wire.is_closed
    assert [each for each in caplog.messages if logged in each]


def test_a_connection_above_the_limit_gets_the_protocol_header() -> None:
    session = AmqpSession("ID:a-1-1", lambda: 1, limits=LIMITS, secret=lambda: "secret")
    session.fail(ClientError("Too many connections"))
    assert session.take() == frames.SASL


# ---- SASL


@pytest.mark.parametrize(
    ("mechanism", "response", "code"),
    [
        ("ANONYMOUS", None, 0),
        ("ANONYMOUS", b"trace", 0),
        ("PLAIN", b"\0user\0word", 0),
        ("PLAIN", b"user\0user\0word", 0),
        ("PLAIN", b"user\0word", 0),
        ("PLAIN", b"other\0user\0word", 1),
        ("PLAIN", b"\0\xff\0word", 1),
        ("PLAIN", b"\0user\0" + b"x" * 9_000, 1),
        ("EXTERNAL", None, 3),
        ("SCRAM-SHA-256", None, 3),
    ],
)
def test_a_login_is_answered_with_an_outcome(make: Make, mechanism: str, response: bytes | None, code: int) -> None:
    wire = make()
    (outcome,) = wire.log_in(mechanism, response)
    assert outcome.performative == schema.SaslOutcome(code)
    assert wire.is_closed is (code != 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ClientError("wrong", kind=ErrorKind.LOGIN), 1),
        (ClientError("not here", kind=ErrorKind.SECURITY), 1),
        (ClientError("many", kind=ErrorKind.RESOURCE), 4),
        (Undecided("no directory", kind=ErrorKind.LOGIN), 4),
    ],
)
def test_a_refused_login_shows_whether_it_can_be_tried_again(
    make: Make, harness: Any, error: ClientError, code: int
) -> None:
    harness.access = Refusing(error)
    harness.begin_term()
    wire = make()
    (outcome,) = wire.log_in("PLAIN", b"\0a\0b")
    assert outcome.performative == schema.SaslOutcome(code)
    assert wire.is_closed


def test_a_missing_login_has_a_temporary_outcome(make: Make) -> None:
    wire = make()
    wire.receive(frames.SASL)
    wire.output()
    wire.session.fail(ClientError("No CONNECT came", kind=ErrorKind.TIMEOUT))
    assert wire.replies()[0].performative == schema.SaslOutcome(4)


class Silent(OpenAccess):
    """Access control that answers no login."""

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None: ...


def test_input_before_the_answer_to_a_login_is_limited(make: Make, harness: Any) -> None:
    harness.access = Silent(is_everywhere=True)
    harness.begin_term()
    wire = make()
    init = frame_of(0, write_composite(schema.SaslInit("PLAIN", b"\0a\0b")), 1)
    wire.receive(frames.SASL + init + bytes(WAITING_BYTES_MAX))
    assert wire.session.unfinished_bytes == WAITING_BYTES_MAX
    (failure,) = wire.session.receive(b"1")
    assert isinstance(failure, ProtocolFailure)
    assert isinstance(failure.error, ConnectionFailure)
    assert failure.error.condition == RESOURCE_LIMIT
    assert wire.session.unfinished_bytes == 0
    assert not wire.session.receive(b"more")


# ---- open


@pytest.mark.parametrize("pieces", Pieces)
def test_a_client_can_pipeline_all_its_frames(make: Make, pieces: Pieces) -> None:
    wire = make(pieces=pieces)
    begin = schema.Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    attach = schema.Attach(
        name="l", handle=0, role=False, source=schema.Source(), target=schema.Target(address="orders")
    )
    data = b"".join(
        (
            frames.SASL,
            frame_of(0, write_composite(schema.SaslInit("ANONYMOUS")), 1),
            frames.AMQP,
            *(frame_of(0, write_composite(each)) for each in (OPEN, begin, attach, schema.Close())),
        )
    )
    wire.receive(data)
    answer = wire.output()
    assert answer.startswith(frames.SASL)
    assert frames.AMQP in answer
    wire.cutter.feed(answer[answer.index(frames.AMQP) + 8 :])
    names = [type(each.performative).__name__ for each in wire.replies()]
    assert names == ["Open", "Begin", "Attach", "Flow", "Close"]
    assert wire.is_closed


def test_an_open_is_answered(make: Make) -> None:
    wire = make()
    found = wire.connect(max_frame_size=1000, idle_time_out=4_000)
    assert (found.container_id, found.max_frame_size, found.channel_max) == ("broker", 128 * 1024, CHANNEL_MAX)
    assert found.idle_time_out == 15_000
    assert found.properties is not None
    assert found.properties["queue-prefix"] == "queue://"
    session = wire.session
    assert (session.is_connected, session.send_interval_ms, session.receive_interval_ms) == (True, 2_000, 15_000)
    session.heart_beat()
    assert wire.output() == frames.EMPTY


def test_a_connector_without_idle_limit_announces_none(make: Make) -> None:
    wire = make(limits=AmqpLimits("broker", idle_ms=0))
    assert wire.connect().idle_time_out is None
    assert (wire.session.send_interval_ms, wire.session.receive_interval_ms) == (0, 0)


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"container": ""}, INVALID_FIELD),
        ({"max_frame_size": 511}, INVALID_FIELD),
        ({"idle_time_out": 1}, NOT_ALLOWED),
        (
            {
                "desired_capabilities": (SOLE_CONNECTION,),
                "properties": {Symbol("sole-connection-enforcement-policy"): UInt(2)},
            },
            INVALID_FIELD,
        ),
        (
            {
                "desired_capabilities": (SOLE_CONNECTION,),
                "properties": {Symbol("sole-connection-enforcement-policy"): "close"},
            },
            INVALID_FIELD,
        ),
    ],
)
def test_the_answer_to_a_refused_open_shows_the_refusal(make: Make, fields: dict[str, Any], condition: str) -> None:
    wire = make()
    wire.log_in()
    opened, close = wire.open(**fields)
    assert opened.properties["amqp:connection-establishment-failed"] is True
    assert opened.max_frame_size >= 512
    assert close.error.condition == condition
    assert wire.is_closed


def test_frames_after_a_refused_open_are_ignored(make: Make) -> None:
    wire = make()
    wire.log_in()
    wire.receive(frames.AMQP)
    wire.output()
    begin = schema.Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    wire.receive(b"".join(frame_of(0, write_composite(each)) for each in (schema.Open(""), begin, schema.End())))
    assert [type(each.performative).__name__ for each in wire.replies()] == ["Open", "Close"]


def test_a_container_id_is_unique_if_the_client_requests_it(make: Make) -> None:
    first = make().connect("one", desired_capabilities=(SOLE_CONNECTION, "other"))
    assert first.offered_capabilities == (ANONYMOUS_RELAY, DELAYED_DELIVERY, SHARED_SUBS, SOLE_CONNECTION)
    assert make().connect("one").offered_capabilities == (ANONYMOUS_RELAY, DELAYED_DELIVERY, SHARED_SUBS)
    wire = make()
    wire.log_in()
    opened, close = wire.open("one", desired_capabilities=(SOLE_CONNECTION,))
    assert opened.properties["amqp:connection-establishment-failed"] is True
    assert (close.error.condition, close.error.info) == (INVALID_FIELD, {"invalid-field": "container-id"})


CLOSE_EXISTING = {
    "desired_capabilities": (SOLE_CONNECTION,),
    "properties": {Symbol("sole-connection-enforcement-policy"): UInt(1)},
}


def test_a_client_can_close_its_former_connection(make: Make) -> None:
    former = make()
    former.connect("one", desired_capabilities=(SOLE_CONNECTION,))
    opened = make().connect("one", **CLOSE_EXISTING)
    assert opened.offered_capabilities == (ANONYMOUS_RELAY, DELAYED_DELIVERY, SHARED_SUBS, SOLE_CONNECTION)
    (close,) = former.all_of(schema.Close)
    assert isinstance(close.error, schema.Error)
    assert (close.error.condition, close.error.info) == ("amqp:resource-locked", {"sole-connection-enforcement": True})
    assert former.is_closed


def test_a_client_cannot_close_a_connection_of_another_user(make: Make) -> None:
    other = make()
    other.log_in("PLAIN", b"\0other\0word")
    other.open("one", desired_capabilities=(SOLE_CONNECTION,))
    wire = make()
    wire.log_in("PLAIN", b"\0me\0word")
    _, close = wire.open("one", **CLOSE_EXISTING)
    assert close.error.condition == INVALID_FIELD
    assert not other.is_closed


def test_a_connector_that_steals_links_closes_the_former_connection(make: Make) -> None:
    limits = AmqpLimits("broker", steals_links=True)
    former, wire = make(limits=limits), make(limits=limits)
    former.connect("one", desired_capabilities=(SOLE_CONNECTION,))
    wire.connect("one", desired_capabilities=(SOLE_CONNECTION,))
    assert (former.is_closed, wire.is_closed) == (True, False)


def test_an_open_names_all_brokers(make: Make) -> None:
    uris = ["amqps://one:5671", "amqps://[::1]:5672?a=b"]
    wire = make(limits=AmqpLimits("broker", failover_uris=uris))
    properties = wire.connect().properties
    assert properties is not None
    assert properties["failover-server-list"] == [
        {"network-host": "one", "port": 5671, "scheme": "amqps"},
        {"network-host": "::1", "port": 5672, "scheme": "amqps"},
    ]
    uris.clear()
    properties = make(limits=wire.session.limits).connect().properties
    assert properties is not None
    assert "failover-server-list" not in properties


# ---- connections without SASL


@pytest.mark.parametrize("pieces", Pieces)
def test_an_anonymous_client_can_connect_without_sasl(make: Make, pieces: Pieces) -> None:
    wire = make(pieces=pieces)
    begin = schema.Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    wire.receive(frames.AMQP + b"".join(frame_of(0, write_composite(each)) for each in (OPEN, begin)))
    output = wire.output()
    assert output[:8] == frames.AMQP
    wire.cutter.feed(output[8:])
    assert [type(each.performative).__name__ for each in wire.replies()] == ["Open", "Begin"]


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (ClientError("anonymous", kind=ErrorKind.SECURITY), UNAUTHORIZED),
        (Undecided("later", kind=ErrorKind.SECURITY), RESOURCE_LIMIT),
    ],
)
def test_a_refused_client_without_sasl_gets_the_reason(
    make: Make, harness: Any, error: ClientError, condition: str
) -> None:
    harness.access = Refusing(error)
    harness.begin_term()
    wire = make()
    opened, close = wire.open()
    assert opened.properties["amqp:connection-establishment-failed"] is True
    assert close.error.condition == condition
    assert wire.is_closed


def test_a_connector_can_require_sasl(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    wire = make(limits=AmqpLimits("broker", allows_no_sasl=False))
    wire.receive(frames.AMQP)
    assert wire.output() == frames.SASL
    assert wire.is_closed
    assert [each for each in caplog.messages if "without SASL" in each]


# ---- certificates


class ByCertificate(OpenAccess):
    """Access control that logs in a client without a name as the subject of its certificate."""

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        then(Principal(credentials.login or credentials.certificate or "nobody", is_proved=True))


@pytest.mark.parametrize("response", [None, b"", b"CN=shop"])
def test_a_client_logs_in_by_its_certificate(make: Make, harness: Any, response: bytes | None) -> None:
    harness.access = ByCertificate(is_everywhere=True)
    harness.begin_term()
    wire = make(certificate="CN=shop")
    (outcome,) = wire.log_in("EXTERNAL", response)
    assert outcome.performative == schema.SaslOutcome(0)
    wire.open()
    assert wire.client.principal.name == "CN=shop"


@pytest.mark.parametrize(("mechanism", "response"), [("ANONYMOUS", None), ("PLAIN", b""), ("PLAIN", b"\0\0")])
def test_another_mechanism_does_not_use_the_certificate(
    make: Make, harness: Any, mechanism: str, response: bytes | None
) -> None:
    harness.access = ByCertificate(is_everywhere=True)
    harness.begin_term()
    wire = make(certificate="CN=shop")
    wire.log_in(mechanism, response)
    wire.open()
    assert wire.client.principal.name == "nobody"


def test_a_certificate_without_a_user_is_refused(make: Make, harness: Any, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("# no users\n")
    harness.access = Logins(users_file=str(users), anonymous=Anonymous(is_remote=True))
    harness.begin_term()
    for mechanism, code in (("EXTERNAL", SASL_AUTH), ("ANONYMOUS", SASL_OK)):
        (outcome,) = make(certificate="CN=shop").log_in(mechanism)
        assert outcome.performative == schema.SaslOutcome(code)


def test_external_is_offered_with_a_certificate_only(make: Make) -> None:
    for certificate, mechanisms in ((None, ("PLAIN", "ANONYMOUS")), ("CN=a", ("EXTERNAL", "PLAIN", "ANONYMOUS"))):
        wire = make(certificate=certificate)
        wire.receive(frames.SASL)
        wire.cutter.feed(wire.output()[8:])
        assert [each.performative for each in wire.replies()] == [schema.SaslMechanisms(mechanisms)]


def test_a_certificate_cannot_be_used_for_another_user(make: Make) -> None:
    (outcome,) = make(certificate="CN=shop").log_in("EXTERNAL", b"CN=bank")
    assert outcome.performative == schema.SaslOutcome(1)


# ---- errors


def test_frames_at_the_wrong_time_end_the_connection(connect: Make, make: Make) -> None:
    begin = frame_of(0, write_composite(schema.Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)))
    assert failed(connect(), frame_of(0, write_composite(OPEN))) == ILLEGAL_STATE
    assert failed(connect(), begin) == NOT_ALLOWED
    assert failed(connect(), frame_of(CHANNEL_MAX + 1, begin[8:])) == FRAMING_ERROR
    assert failed(connect(), frame_of(7, write_composite(schema.End()))) == NOT_ALLOWED
    assert failed(connect(), frame_of(0, write_composite(schema.SaslInit("PLAIN")))) == NOT_ALLOWED
    assert failed(connect(), frame_of(0, write_composite(schema.SaslInit("PLAIN")), 1)) == FRAMING_ERROR
    assert failed(connect(), b"\0\0\0\1\2\0\0\0") == FRAMING_ERROR
    wire = make()
    wire.log_in()
    wire.receive(frames.AMQP)
    wire.output()
    assert failed(wire, begin) == ILLEGAL_STATE


def test_damaged_bytes_end_only_their_connection(connect: Make) -> None:
    other = connect("other")
    whole = write_composite(schema.Flow(incoming_window=1, next_outgoing_id=1, outgoing_window=1, handle=3))
    for stop in range(1, len(whole)):
        wire = connect()
        wire.receive(frame_of(0, whole[:stop]))
        assert wire.is_closed
        assert wire.all_of(schema.Close)
    assert other.flow(None, None, echo=True)


def test_a_heart_beat_is_accepted_on_any_channel(connect: Make) -> None:
    wire = connect()
    wire.receive(frame_of(500, b"") + frame_of(0, b""))
    assert not wire.replies()
    assert not wire.is_closed


def test_a_channel_can_be_used_again_after_an_end(connect: Make) -> None:
    wire = connect()
    wire.sender()
    wire.receiver()
    (end,) = wire.exchange(schema.End())
    assert end.performative == schema.End()
    assert wire.begin().remote_channel == 0
    assert len(wire.sender()) == 2


def test_a_detach_is_answered_before_the_end(connect: Make) -> None:
    wire = connect()
    wire.sender()
    wire.receiver()
    wire.receiver(None, handle=2, dynamic=True)
    replies = wire.exchange(*(schema.Detach(handle, True) for handle in range(3)), schema.End())
    assert [type(each.performative).__name__ for each in replies] == ["Detach", "Detach", "Detach", "End"]


def test_a_begin_can_directly_follow_an_end(connect: Make) -> None:
    wire = connect()
    wire.sender()
    begin = schema.Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    replies = wire.exchange(schema.End(), begin)
    assert [type(each.performative).__name__ for each in replies] == ["End", "Begin"]


@pytest.mark.parametrize("pieces", Pieces)
def test_a_begin_waits_for_the_answer_to_the_end(connect: Make, pieces: Pieces) -> None:
    wire = connect(pieces=pieces)
    wire.sender()
    transfer = write_composite(schema.Transfer(handle=0, delivery_id=0, delivery_tag=b"1"))
    begin = schema.Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    attach = schema.Attach(name="l", handle=0, role=False, source=schema.Source(), target=schema.Target(address="a"))
    wire.receive(
        frame_of(0, transfer + header(durable=True) + value("x"))
        + b"".join(frame_of(0, write_composite(each)) for each in (schema.End(), begin, attach))
    )
    names = [type(each.performative).__name__ for each in wire.replies()]
    assert names == ["Disposition", "End", "Begin", "Attach", "Flow"]


def test_input_before_the_answer_to_an_end_is_limited(connect: Make) -> None:
    wire = connect()
    wire.sender()
    begin = schema.Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    wire.session.receive(b"".join(frame_of(0, write_composite(each)) for each in (schema.End(), begin)))
    assert wire.session.unfinished_bytes
    (failure,) = wire.session.receive(bytes(WAITING_BYTES_MAX))
    assert isinstance(failure, ProtocolFailure)
    assert wire.session.unfinished_bytes == 0


def test_an_error_of_a_session_ends_only_that_session(connect: Make) -> None:
    wire = connect()
    wire.begin(1)
    (end,) = wire.flow(9, 1)
    assert end.error.condition == UNATTACHED_HANDLE
    assert not wire.flow(9, 1)  # the client may have sent it before it got the end
    assert not wire.exchange(schema.End())
    assert wire.flow(None, None, channel=1, echo=True)
    wire.begin()
    wire.sender()
    assert wire.sender()[0].error.condition == HANDLE_IN_USE


def test_the_number_of_links_is_limited(connect: Make) -> None:
    wire = connect()
    wire.session.links = LINKS_MAX
    answer, detach = wire.sender()
    assert answer.target is None
    assert detach.error.condition == RESOURCE_LIMIT


def test_a_close_of_the_broker_has_the_reason(connect: Make) -> None:
    wire = connect()
    wire.session.fail(ClientError("taken over", kind=ErrorKind.TAKEN_OVER))
    (close,) = wire.all_of(schema.Close)
    assert close.error.condition == "amqp:resource-locked"


def test_input_after_a_close_is_ignored(connect: Make) -> None:
    wire = connect()
    wire.sender()
    wire.receive(frame_of(0, write_composite(schema.Close())) + frame_of(0, write_composite(OPEN)) + b"anything")
    (close,) = wire.replies()
    assert close.performative == schema.Close()
    assert wire.session.unfinished_bytes == 0


def test_messages_are_accepted_before_the_close_is_answered(connect: Make) -> None:
    wire = connect()
    wire.sender()
    transfer = schema.Transfer(handle=0, delivery_id=0, delivery_tag=b"1")
    wire.receive(frame_of(0, write_composite(transfer) + value("x")) + frame_of(0, write_composite(schema.Close())))
    assert [type(each.performative).__name__ for each in wire.replies()] == ["Disposition", "Close"]
