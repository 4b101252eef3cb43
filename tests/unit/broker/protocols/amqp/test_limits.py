"""Limits for AMQP clients (docs/formats/amqp.md): a refusal has a condition, and its text names the limit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.attached_links import HANDLE_MAX, LinkTable
from tandemmq.broker.protocols.amqp.codec import PERFORMATIVE_VALUES_MAX, write_composite
from tandemmq.broker.protocols.amqp.errors import DECODE_ERROR, FRAMING_ERROR, RESOURCE_LIMIT, AmqpError
from tandemmq.broker.protocols.amqp.frames import frame_of
from tandemmq.broker.protocols.amqp.incoming import ENVELOPE_BYTES_MAX, PROPERTIES_MAX
from tandemmq.broker.protocols.amqp.links import CREDIT
from tandemmq.broker.protocols.amqp.schema import Accepted, Composite
from tandemmq.broker.protocols.amqp.sections import SECTIONS_MAX
from tandemmq.broker.protocols.amqp.session import LINKS_MAX, SESSION_BYTES
from tandemmq.broker.protocols.amqp.types import NESTING_MAX, VALUES_MAX, Symbol
from tandemmq.store.records.message import BodyKind
from tests.support.broker.amqp_wire import LIMITS, AmqpWire, header, section, value
from tests.unit.broker.engine.conftest import Harness
from tests.unit.broker.protocols.amqp.conftest import Make

BEGIN = schema.Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)


def closed(wire: AmqpWire, performative: Composite, *, channel: int = 0) -> tuple[str, str | None]:
    """Send a performative; return condition and text of the close that answers it."""
    found = wire.exchange(performative, channel=channel)[-1].performative
    assert isinstance(found, schema.Close)
    assert isinstance(found.error, schema.Error)
    assert wire.is_closed
    return found.error.condition, found.error.description


def refused(wire: AmqpWire, encoded: bytes) -> tuple[str, str]:
    """Send a message; return condition and text of its outcome. The next message is accepted."""
    (answer,) = wire.send(encoded)
    assert wire.send(value("next"))[0].state == Accepted()
    return answer.state.error.condition, answer.state.error.description


def sender(number: int, handle: int = 0) -> schema.Attach:
    return schema.Attach(
        name=f"l{number}", handle=handle, role=False, source=schema.Source(), target=schema.Target(address="q")
    )


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


# ---- sessions and links


def test_the_channel_number_is_limited(make: Make) -> None:
    wire = make()
    assert wire.connect().channel_max == 1_023
    wire.begin(1_023)
    assert closed(wire, BEGIN, channel=1_024) == (FRAMING_ERROR, "the channel 1024 is above channel-max")


def test_links_of_a_session_are_limited(connect: Make) -> None:
    wire = connect()
    for handle in range(wire.begin(1).handle_max + 1):
        assert isinstance(wire.exchange(sender(handle, handle))[0].performative, schema.Attach)
    assert closed(wire, sender(0, 1_024)) == (FRAMING_ERROR, "the handle 1024 is above handle-max")


@pytest.mark.timeout(60)
def test_links_of_a_connection_are_limited(make: Make) -> None:
    wire = make()
    wire.connect()
    links = wire.begin().handle_max + 1
    sessions = LINKS_MAX // links
    for channel in range(1, sessions + 1):
        wire.begin(channel)
    for channel in range(sessions):
        attaches = [frame_of(channel, write_composite(sender(channel * links + each, each))) for each in range(links)]
        wire.receive(b"".join(attaches))
        assert sum(each.target is not None for each in wire.all_of(schema.Attach)) == links
    (detach,) = [each.performative for each in wire.exchange(sender(LINKS_MAX), channel=sessions)][1:]
    assert isinstance(detach, schema.Detach)
    assert detach.error == schema.Error(RESOURCE_LIMIT, "a connection has 4096 links at most")
    wire.exchange(schema.Detach(0, True), channel=0)
    wire.exchange(schema.Detach(0, True), channel=sessions)
    (attach, _) = wire.exchange(sender(LINKS_MAX), channel=sessions)
    assert attach.performative.target is not None  # type: ignore[union-attr]


def test_memory_for_handles_is_limited() -> None:
    """The client attaches links that are refused, and never detaches them."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        table = LinkTable(HANDLE_MAX)
        for handle in range(HANDLE_MAX + 1):
            table.check_free(handle)
            assert table.take_handle(handle) == handle
            table.note_detached(handle)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < SESSION_BYTES
    with pytest.raises(AmqpError, match="leaves no handle"):
        table.take_handle(7)
    table.free_handle(900)
    assert table.take_handle(7) == 900
    assert table.finish_detach(7)
    assert not table.finish_detach(7)
    table.check_free(7)


def test_link_names_are_limited(connect: Make) -> None:
    attach = sender(0)
    attach.name = "n" * 1_025
    detach = connect().exchange(attach)[1].performative
    assert isinstance(detach, schema.Detach)
    assert detach.error == schema.Error(RESOURCE_LIMIT, "the name of a link has 1024 characters at most")


def test_sessions_count_against_the_memory_limit(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness(memory_limit=100 * SESSION_BYTES)
    wire = AmqpWire(harness)
    wire.connect()
    for channel in range(200):
        answers = wire.exchange(BEGIN, channel=channel)
        if wire.is_closed:
            break
    assert 0 < channel < 100
    close = answers[-1].performative
    assert isinstance(close, schema.Close)
    assert isinstance(close.error, schema.Error)
    assert close.error.condition == RESOURCE_LIMIT
    wire.vanish()
    assert wire.holder.bytes == 0


@pytest.mark.parametrize(("frame_bytes_max", "is_named"), [(512, False), (4_096, True)])
def test_brokers_are_listed_only_if_the_list_fits_into_a_frame(
    make: Make, frame_bytes_max: int, is_named: bool
) -> None:
    uris = [f"amqp://broker-{each}.example.org:5672" for each in range(9)]
    wire = make(limits=type(LIMITS)("broker", failover_uris=uris))
    opened = wire.connect(max_frame_size=frame_bytes_max)
    assert opened.properties is not None
    assert ("failover-server-list" in opened.properties) is is_named
    assert wire.begin()


# ---- values


@pytest.mark.parametrize(
    "found",
    [
        {Symbol(f"k{each}"): each for each in range(PERFORMATIVE_VALUES_MAX // 2)},
        {Symbol("k"): list(range(PERFORMATIVE_VALUES_MAX))},
    ],
)
def test_values_of_a_performative_are_limited(make: Make, connect: Make, found: dict[Any, Any]) -> None:
    attach = sender(0)
    attach.properties = found
    assert closed(connect(), attach) == (DECODE_ERROR, "there are too many values")
    wire = make()
    wire.log_in()
    close = wire.open(properties=found)[-1]
    assert (close.error.condition, close.error.description) == (DECODE_ERROR, "there are too many values")


def test_nesting_of_a_performative_is_limited(connect: Make) -> None:
    attach = sender(0)
    attach.properties = {Symbol("k"): nested(NESTING_MAX + 1)}
    assert closed(connect(), attach) == (DECODE_ERROR, f"values are nested deeper than {NESTING_MAX}")


@pytest.mark.parametrize(
    ("encoded", "error"),
    [
        (section(0x74, {"k": nested(NESTING_MAX)}), (DECODE_ERROR, "values are nested deeper than 32")),
        (section(0x74, {"k": [1] * VALUES_MAX}), (DECODE_ERROR, "there are too many values")),
        (
            section(0x72, {Symbol("k"): [1] * (VALUES_MAX // 2)}) + section(0x74, {"k": [1] * (VALUES_MAX // 2)}),
            (DECODE_ERROR, "there are too many values"),
        ),
        (section(0x70, [[1] * PERFORMATIVE_VALUES_MAX]), (DECODE_ERROR, "there are too many values")),
        (
            section(0x74, {f"k{each}": 1 for each in range(PROPERTIES_MAX + 1)}),
            (RESOURCE_LIMIT, "a message has more than 1000 properties"),
        ),
        (
            section(0x78, {Symbol("k"): b"x" * ENVELOPE_BYTES_MAX}),
            (RESOURCE_LIMIT, "a message has 1048596 bytes outside its body; 1048576 are allowed"),
        ),
        *(
            (section(late, {}) + early, (DECODE_ERROR, f"the section 0x{early[2]:x} of a message comes too late"))
            for late, early in [(0x72, header(durable=True)), (0x74, section(0x72, {})), (0x78, value("x"))]
        ),
        (section(0x75, b"") * (SECTIONS_MAX + 1), (DECODE_ERROR, "a message has more than 1000 sections")),
    ],
    ids=[
        "nesting",
        "values",
        "values of all maps",
        "values of the header",
        "properties",
        "envelope",
        "late header",
        "late annotations",
        "late body",
        "sections",
    ],
)
def test_parts_of_a_message_are_limited(make: Make, encoded: bytes, error: tuple[str, str]) -> None:
    wire = make(limits=type(LIMITS)("broker", message_bytes_max=4 << 20, frame_bytes_max=4 << 20))
    wire.connect()
    wire.begin()
    wire.sender()
    assert refused(wire, encoded) == error


def test_a_deeply_nested_body_is_not_decoded(connect: Make) -> None:
    wire = connect()
    wire.sender()
    assert wire.send(value(nested(NESTING_MAX + 20)))[0].state == Accepted()


# ---- deliveries


def test_the_credit_of_a_sender_is_limited(connect: Make) -> None:
    wire = connect()
    assert wire.sender()[1].link_credit == CREDIT


def test_unsettled_deliveries_of_a_receiver_are_limited(connect: Make, harness: Harness) -> None:
    harness.client().store(*range(9), body_kind=BodyKind.TEXT)
    wire = connect(limits=type(LIMITS)("broker", unsettled_max=4))
    assert len(wire.receiver(credit=1 << 31)) == 1 + 4
    (flow,) = wire.flow(1, 1 << 31, delivery_count=4, next_incoming_id=4, echo=True)
    assert flow.available == 0  # the credit stays, and nothing is delivered
    assert not wire.dispose(0, Accepted())  # less than half of the limit is free
    assert len(wire.dispose(1, Accepted())) == 2
