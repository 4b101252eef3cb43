"""A complete conversation: in any pieces, lost after any byte, and with each of its frames truncated at any byte."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import pytest

from tandemmq.broker.core.slices import at_once
from tandemmq.broker.protocols.amqp import frames, schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.frames import FRAME_HEAD_BYTES, frame_of
from tandemmq.broker.protocols.amqp.schema import Accepted, Composite, Disposition, Flow, Transfer
from tandemmq.broker.protocols.amqp.types import Symbol
from tests.support.broker.amqp_wire import AmqpWire, header, section, selector, value
from tests.unit.broker.engine.conftest import Harness
from tests.unit.broker.protocols.amqp.conftest import Make


def encoded(performative: Composite, payload: bytes = b"", *, type: int = 0) -> bytes:
    return frame_of(0, write_composite(performative) + payload, type)


MESSAGE: Final = (
    header(durable=True, ttl=60_000)
    + write_composite(schema.Properties(message_id="m", to="orders", subject="s", content_type=Symbol("text/plain")))
    + section(0x74, {"n": 1})
    + value("body")
)
FLOW: Final = Flow(
    next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=2
)
#: The complete input from a client: each element is a header or a frame.
CONVERSATION: Final = (
    frames.SASL,
    encoded(schema.SaslInit("PLAIN", b"\0user\0word", "host"), type=1),
    frames.AMQP,
    encoded(schema.Open("me", hostname="host", idle_time_out=60_000, properties={Symbol("product"): "test"})),
    frames.EMPTY,
    encoded(schema.Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)),
    encoded(
        schema.Attach(
            name="s", handle=0, role=False, source=schema.Source(), target=schema.Target(address="orders"),
            initial_delivery_count=0,
        )
    ),
    encoded(
        schema.Attach(
            name="r", handle=1, role=True, target=schema.Target(),
            source=schema.Source(address="orders", filter=selector("n = 1"), default_outcome=schema.Modified(True)),
        )
    ),
    encoded(FLOW),
    encoded(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", message_format=0, more=True), MESSAGE[:20]),
    encoded(Transfer(handle=0, more=False), MESSAGE[20:]),
    encoded(Disposition(role=True, first=0, last=0, settled=False, state=Accepted())),
    encoded(Flow(
        next_incoming_id=1, incoming_window=9, next_outgoing_id=2, outgoing_window=9, handle=1, delivery_count=1,
        link_credit=3, drain=True,
    )),
    encoded(schema.Detach(0, True)),
    encoded(schema.Detach(1, False)),
    encoded(schema.End()),
    encoded(schema.Close(schema.Error("amqp:connection:forced", "enough"))),
)  # fmt: skip
WHOLE: Final = b"".join(CONVERSATION)
TRAILING: Final = b"AMQP\0\0\0\1 and more bytes after the close"


def answers_to(wire: AmqpWire, *pieces: bytes) -> bytes:
    """Return the broker's answers to these pieces. The broker has a turn after each piece."""
    answers = b""
    for each in pieces:
        wire.receive(each)
        answers += wire.output()
    return answers


def check_nothing_is_left(harness: Harness, wire: AmqpWire) -> None:
    """Close the connection, and check that nothing of it is left."""
    wire.vanish()
    assert (wire.holder.bytes, wire.session.unfinished_bytes) == (0, 0)
    for queue in at_once(harness.engine.statistics())["queues"]:
        assert (queue["consumers"], queue["unacknowledged"]) == (0, 0)


@pytest.fixture
def expected(make: Make) -> bytes:
    """Return the broker's answers to the conversation, with a turn after each frame."""
    wire = make()
    answers = answers_to(wire, *CONVERSATION)
    assert wire.is_closed
    assert answers.endswith(encoded(schema.Close()))
    assert answers.count(b"body") == 1
    return answers


def test_a_conversation_can_arrive_in_any_pieces_and_with_trailing_bytes(make: Make, expected: bytes) -> None:
    assert answers_to(make(), *(WHOLE[at : at + 1] for at in range(len(WHOLE)))) == expected
    assert answers_to(make(), *CONVERSATION[:-1], CONVERSATION[-1] + TRAILING) == expected
    # Each piece is the end of one frame and the beginning of the next.
    for size in range(1, FRAME_HEAD_BYTES):
        ends = [each[size:] + after[:size] for each, after in pairwise(CONVERSATION)]
        assert answers_to(make(), CONVERSATION[0][:size], *ends, CONVERSATION[-1][size:]) == expected


@pytest.mark.parametrize("number", range(len(CONVERSATION)))
def test_each_frame_can_arrive_in_two_pieces(
    make_harness: Callable[..., Harness], expected: bytes, number: int
) -> None:
    frame = CONVERSATION[number]
    for at in range(1, len(frame)):
        pieces = *CONVERSATION[:number], frame[:at], frame[at:], *CONVERSATION[number + 1 :]
        assert answers_to(AmqpWire(make_harness()), *pieces) == expected


def test_a_connection_can_be_lost_after_any_byte(make_harness: Callable[..., Harness]) -> None:
    for at in range(len(WHOLE)):
        harness = make_harness()
        wire = AmqpWire(harness)
        wire.receive(WHOLE[:at])
        check_nothing_is_left(harness, wire)


@pytest.mark.parametrize("number", [at for at, each in enumerate(CONVERSATION) if each[:4] != b"AMQP"])
def test_a_frame_truncated_at_any_byte_ends_only_its_connection(
    make_harness: Callable[..., Harness], number: int
) -> None:
    """The size field is that of the truncated frame, so the following bytes are frames. Another client can still send
    a message after each."""
    *before, frame = CONVERSATION[: number + 1]
    for stop in range(FRAME_HEAD_BYTES + 1, len(frame)):  # a frame without a body is a heart-beat
        harness = make_harness()
        other = AmqpWire(harness)
        other.connect("other")
        other.begin()
        other.sender("other")
        wire = AmqpWire(harness)
        answers_to(wire, *before)
        cut = stop.to_bytes(4, "big") + frame[4:stop]
        answer = answers_to(wire, cut, *CONVERSATION[number + 1 :])
        assert answer
        assert wire.is_closed
        assert [each.state for each in other.send(value("x"))] == [Accepted()]
        check_nothing_is_left(harness, wire)
