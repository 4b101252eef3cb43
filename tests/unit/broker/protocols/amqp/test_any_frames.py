"""Arbitrary frames of one client: nothing is raised, and another client is not affected."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.core.commands import AckMode, Connect, LogIn
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.frames import frame_of
from tandemmq.broker.protocols.amqp.schema import UINT_MAX, Composite
from tandemmq.broker.protocols.amqp.session import AmqpSession
from tandemmq.broker.protocols.amqp.types import Described, Symbol
from tests.support.broker.amqp_wire import LIMITS, AmqpWire, header, selector, value
from tests.support.prove import SEED, rounds
from tests.unit.broker.engine.conftest import ORDERS, Harness
from tests.unit.broker.protocols.amqp.conftest import Make
from tests.unit.broker.protocols.amqp.test_codec import SIMPLE, VALUES

FRAMES = rounds(1_500, 100_000)
# Small numbers, which match existing handles and deliveries, and numbers at the ends of their ranges.
NUMBERS = (0, 1, 2, 3, 7, 255, UINT_MAX - 1, UINT_MAX, 1 << 31)
STATES = (
    None, schema.Accepted(), schema.Released(), schema.Rejected(), schema.Modified(True), schema.Modified(True, True),
    schema.Received(0, 0),
)  # fmt: skip


ADDRESSES = ("orders", "topic://prices", "queue://a,topic://b", "", "temp-queue://x", "a.*", "topic://>")
NAMES = ("a", "b", "a|2", "|", "")
CAPABILITIES = ((), ("shared",), ("shared", "global"), ("global", "x"))
PAYLOADS = (b"", value("x"), header(durable=True, ttl=1) + value([1]), b"\0\x53", value("y" * 900))


def any_frame(dice: random.Random) -> tuple[Composite, bytes]:
    """Return a random performative of a session, and its payload."""

    def number() -> int:
        return dice.choice(NUMBERS)

    def maybe() -> int | None:
        return dice.choice((None, *NUMBERS))

    def flag() -> bool:
        return dice.random() < 0.3

    handle = dice.choice((0, 0, 1, 1, 2, 3))
    kind = dice.randrange(8)
    if kind == 0:
        address = dice.choice(ADDRESSES)
        role = flag()
        browser, coordinator = schema.Source(address="orders", distribution_mode="copy"), schema.Coordinator()
        plain = schema.Source(address=address)
        kept = schema.Source(
            address="topic://prices", durable=dice.choice((0, 1, 2, 9)), capabilities=dice.choice(CAPABILITIES),
            filter=dice.choice((None, selector("a = 1"))),
        )  # fmt: skip
        return schema.Attach(
            name=dice.choice(NAMES), handle=handle, role=role, snd_settle_mode=dice.randrange(4),
            rcv_settle_mode=dice.randrange(3), desired_capabilities=dice.choice(CAPABILITIES),
            source=dice.choice((None, schema.Source(dynamic=True), browser, plain, kept)),
            target=dice.choice((None, schema.Target(dynamic=True), schema.Target(address=address), coordinator)),
            initial_delivery_count=maybe(),
        ), b""  # fmt: skip
    if kind == 1:
        return schema.Detach(handle, flag()), b""
    if kind in (2, 3):
        return schema.Flow(
            next_incoming_id=maybe(), incoming_window=number(), next_outgoing_id=number(), outgoing_window=number(),
            handle=dice.choice((None, handle)), delivery_count=maybe(), link_credit=maybe(), drain=flag(), echo=flag(),
        ), b""  # fmt: skip
    if kind in (4, 5):
        transfer = schema.Transfer(
            handle=handle, delivery_id=maybe(), delivery_tag=b"t", settled=flag(), more=flag(), aborted=flag(),
            message_format=maybe(), resume=flag(),
        )  # fmt: skip
        return transfer, dice.choice(PAYLOADS)
    if kind == 6:
        return schema.Disposition(
            role=not flag(), first=number(), last=maybe(), settled=flag(), state=dice.choice(STATES)
        ), b""
    begin = schema.Begin(next_outgoing_id=number(), incoming_window=number(), outgoing_window=1)
    return dice.choice((schema.End(), begin)), b""


@pytest.mark.timeout(300)
def test_arbitrary_frames_do_not_affect_other_clients(harness: Harness, connect: Make) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    good = harness.client().subscribe("mine", ORDERS, AckMode.INDIVIDUAL)
    sent = 0
    wire: AmqpWire | None = None
    for number in range(FRAMES):
        if wire is None or wire.is_closed:
            wire = connect(f"c{number % 3}", window=dice.choice((0, 1, 1 << 20)))
        performative, payload = any_frame(dice)
        data = frame_of(dice.choice((0, 0, 0, 0, 1)), write_composite(performative) + payload)
        wire.receive(data if dice.random() < 0.97 else data[:4] + bytes((dice.randrange(256),)) + data[5:])
        wire.output()
        if number % 10 == 0:
            sent += 1
            good.send(f"good {sent}", receipt=f"r{sent}").turn()
            assert good.receipts[-1] == f"r{sent}"
    assert wire is not None
    wire.vanish()
    assert good.errors == []
    assert wire.holder.bytes == 0


PIECES = st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40)), max_size=8)


@given(PIECES)
@settings(deadline=None, max_examples=100)
def test_arbitrary_frame_bodies_never_raise(frames: list[tuple[int, bytes]]) -> None:
    wire: Any = _session()
    for channel, body in frames:
        wire.receive(frame_of(channel, body))
        wire.take()


@given(role=st.booleans(), address=VALUES, other=VALUES, key=SIMPLE, descriptor=SIMPLE)
@settings(deadline=None, max_examples=100)
def test_an_arbitrary_terminus_is_answered(role: bool, address: Any, other: Any, key: Any, descriptor: Any) -> None:
    wire = _session()
    codes = (Symbol("apache.org:selector-filter:string"), Symbol("apache.org:no-local-filter:list"), descriptor)
    filters = {
        key: Described(codes[0], "a = 1"),
        Symbol("n"): Described(codes[1], other),
        "o": Described(codes[2], other),
    }
    outcome = schema.Modified(message_annotations={Symbol("a"): other})
    source = schema.Source(address=address, filter=filters, default_outcome=outcome, outcomes=("amqp:accepted:list",))
    target = schema.Target(address=address, dynamic_node_properties={Symbol("a"): other})
    attach = schema.Attach(name="l", handle=0, role=role, source=source, target=target, properties={Symbol("p"): other})
    for command in wire.receive(frame_of(0, write_composite(attach))):
        receipt = getattr(command, "receipt", None)
        if receipt is not None:
            wire.receipt(receipt)
    assert not wire.has_more or wire.receive(b"") is not None
    wire.take()


def _session() -> Any:
    session = AmqpSession("ID:a-1-1", lambda: 1, limits=LIMITS, secret=lambda: "secret")
    (login,) = session.receive(b"AMQP\3\1\0\0" + frame_of(0, write_composite(schema.SaslInit("ANONYMOUS")), 1))
    assert isinstance(login, LogIn)
    session.receipt(login.receipt)
    (connect,) = session.receive(b"AMQP\0\1\0\0" + frame_of(0, write_composite(schema.Open("me"))))
    assert isinstance(connect, Connect)
    session.connected(connect, "s")
    begin = schema.Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    session.receive(frame_of(0, write_composite(begin)))
    return session
