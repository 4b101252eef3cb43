"""Durable and shared subscriptions of AMQP clients."""

# proves: amqp-shares-are-apart, amqp-errors-end-no-durable

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.errors import INVALID_FIELD, LINK_STOLEN, NOT_FOUND, RESOURCE_LOCKED
from tandemmq.broker.protocols.amqp.opening import SHARED_SUBS, SOLE_CONNECTION
from tandemmq.broker.protocols.amqp.schema import NEVER, SESSION_END, Detach
from tandemmq.broker.protocols.amqp.types import Described, Symbol
from tandemmq.store.records.message import BodyKind
from tests.support.broker.amqp_wire import AmqpWire, Pieces, bodies, selector, value
from tests.unit.broker.engine.conftest import PRICES, Client, Harness
from tests.unit.broker.protocols.amqp.conftest import Make

NO_LOCAL = {Symbol("no-local"): Described(Symbol("apache.org:no-local-filter:list"), [])}
ALL = schema.Flow(incoming_window=999, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=99, drain=True)


def publish(harness: Harness, *texts: str, **fields: Any) -> None:
    fields.setdefault("persistent", True)
    harness.client().store(*texts, destination=PRICES, body_kind=BodyKind.TEXT, **fields).vanish()


def durable(wire: AmqpWire, name: str = "sub", **fields: Any) -> list[Any]:
    """Attach a link with this name to a durable subscription."""
    fields.setdefault("durable", 2)
    return wire.receiver("topic://prices", name=name, expiry_policy=NEVER, **fields)


def shared(wire: AmqpWire, name: str = "sub", *, is_global: bool = False, **fields: Any) -> list[Any]:
    """Attach a link with this name to a shared subscription."""
    capabilities = ("topic", "shared", "global") if is_global else ("topic", "shared")
    return wire.receiver("topic://prices", name=name, capabilities=capabilities, **fields)


def look_up(wire: AmqpWire, name: str = "sub", *, handle: int = 8, capabilities: tuple[str, ...] = ()) -> list[Any]:
    """Attach a link without a source, as Qpid JMS does before it unsubscribes."""
    attach = schema.Attach(
        name=name, handle=handle, role=True, target=schema.Target(), desired_capabilities=capabilities
    )
    return [each.performative for each in wire.exchange(attach)]


def received(wire: AmqpWire) -> list[Any]:
    """Return the messages that the link with handle 1 receives now."""
    return bodies(wire.exchange(ALL))


def durables(harness: Harness) -> list[tuple[str | None, str | None]]:
    """Return client id and name of each durable subscription in the store."""
    return sorted((each.client_id, each.subscription_name) for each in harness.store.owners() if each.client_id)


# ---- durable subscriptions


@pytest.mark.parametrize(("durability", "pieces"), [(1, Pieces.WHOLE), (2, Pieces.BYTES)])
@pytest.mark.parametrize("end", [Detach(1, False), schema.End(), schema.Close(), None])
def test_a_durable_subscription_collects_messages_while_its_client_is_away(
    connect: Make, harness: Harness, durability: int, pieces: Pieces, end: Any
) -> None:
    wire = connect(pieces=pieces)
    (attach,) = durable(wire, durable=durability)
    assert (attach.source.durable, attach.source.expiry_policy) == (durability, NEVER)
    assert attach.source.capabilities == ("topic",)
    if end is None:
        wire.vanish()
    else:
        wire.exchange(end)
    publish(harness, "a", "b")
    assert durables(harness) == [("me", "sub")]
    again = connect()
    durable(again)
    assert received(again) == ["a", "b"]


@pytest.mark.parametrize("fields", [{"echo": True}, {"drain": True}])
def test_a_flow_of_a_link_is_answered_after_its_attach(connect: Make, fields: dict[str, bool]) -> None:
    wire = connect()
    source = schema.Source(address="topic://prices", durable=2)
    attach = schema.Attach(name="sub", handle=1, role=True, source=source, target=schema.Target())
    flow = schema.Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=2, **fields)
    answers = [each.performative for each in wire.exchange(attach, flow)]
    assert [type(each).__name__ for each in answers] == ["Attach", "Flow"]


def test_the_close_of_a_link_deletes_its_durable_subscription(connect: Make, harness: Harness) -> None:
    wire = connect()
    durable(wire)
    publish(harness, "a")
    (detach,) = wire.exchange(Detach(1, True))
    assert detach.performative == Detach(1, True)
    assert (durables(harness), harness.stored()) == ([], 0)


def test_an_error_of_the_client_deletes_no_durable_subscription(connect: Make, harness: Harness) -> None:
    wire = connect()
    durable(wire)
    flow = schema.Flow(
        incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, properties={Symbol("txn-id"): b"1"}
    )
    (detach,) = wire.exchange(flow)
    assert isinstance(detach.performative, Detach)
    assert detach.performative.closed
    assert detach.performative.error is not None
    wire.exchange(Detach(1, True))
    assert durables(harness) == [("me", "sub")]


def test_a_durable_subscription_is_the_same_for_other_protocols(connect: Make, harness: Harness) -> None:
    stomp = harness.client("me").subscribe("s", PRICES, durable_name="sub").turn()
    stomp.vanish()
    publish(harness, "a")
    wire = connect()
    durable(wire)
    assert received(wire) == ["a"]


def test_other_containers_have_other_subscriptions(connect: Make, harness: Harness) -> None:
    one, two = connect("one"), connect("two")
    for wire in (one, two):
        durable(wire)
    publish(harness, "a")
    assert (received(one), received(two)) == (["a"], ["a"])
    assert durables(harness) == [("one", "sub"), ("two", "sub")]


def test_a_durable_subscription_survives_a_failover(connect: Make, make: Make, harness: Harness) -> None:
    wire = connect()
    durable(wire, filter=selector("n = 1"))
    wire.vanish()
    harness.fail_over()
    publish(harness, "a", properties={"n": 1})
    publish(harness, "b", properties={"n": 2})
    again = connect()
    durable(again, filter=selector("n = 1"))
    assert received(again) == ["a"]


def test_another_selector_replaces_a_durable_subscription(connect: Make, harness: Harness) -> None:
    wire = connect()
    durable(wire)
    wire.exchange(Detach(1, False))
    publish(harness, "a")
    durable(wire, filter=selector("n IS NULL"))
    publish(harness, "b")
    assert received(wire) == ["b"]


def test_a_durable_subscription_can_have_no_local(connect: Make, harness: Harness) -> None:
    wire = connect()
    (attach,) = durable(wire, filter=NO_LOCAL)
    assert list(attach.source.filter) == ["no-local"]
    wire.sender("topic://prices")
    wire.send(value("mine"))
    publish(harness, "theirs")
    assert received(wire) == ["theirs"]


def test_a_queue_has_no_durable_subscriptions(connect: Make, harness: Harness) -> None:
    wire = connect()
    (attach,) = wire.receiver("queue://orders", durable=2)
    assert (attach.source.durable, attach.source.expiry_policy) == (0, SESSION_END)
    assert durables(harness) == []


def test_a_subscription_without_a_name_is_refused(connect: Make) -> None:
    for name, capabilities in (("", ("topic",)), ("|2", ("topic", "shared"))):
        wire = connect()
        attach = schema.Attach(
            name=name,
            handle=1,
            role=True,
            source=schema.Source(address="prices", durable=2, capabilities=capabilities),
            target=schema.Target(),
        )
        detach = wire.exchange(attach)[1].performative
        assert isinstance(detach, Detach)
        assert detach.error.condition == INVALID_FIELD


# ---- owners


def test_connections_of_one_container_can_have_durable_subscriptions(connect: Make, harness: Harness) -> None:
    one, two = connect(), connect()
    durable(one, "one")
    durable(two, "two")
    publish(harness, "a")
    assert (received(one), received(two)) == (["a"], ["a"])


def test_a_newer_connection_of_a_container_steals_a_durable_subscription(connect: Make, harness: Harness) -> None:
    old, new = connect(), connect()
    durable(old)
    publish(harness, "a")
    assert received(old) == ["a"]
    durable(new)
    (detach,) = old.all_of(Detach)
    assert (detach.handle, detach.closed, detach.error.condition) == (1, True, LINK_STOLEN)
    assert not old.exchange(Detach(1, True)), "this detach answers that of the broker, and ends nothing"
    assert received(new) == ["a"]
    assert not old.is_closed


def test_a_sole_connection_can_have_a_durable_subscription(make: Make, harness: Harness) -> None:
    wire = make()
    opened = wire.connect(desired_capabilities=(SOLE_CONNECTION,))
    assert SHARED_SUBS in opened.offered_capabilities
    wire.begin()
    (attach,) = durable(wire)
    assert attach.source.durable == 2


def test_the_container_id_of_a_sole_connection_is_refused_for_other_subscriptions(
    make: Make, connect: Make, harness: Harness
) -> None:
    alone = make()
    alone.connect(desired_capabilities=(SOLE_CONNECTION,))
    alone.begin()
    durable(alone)
    wire = connect()
    attach, detach = durable(wire)
    assert attach.source is None
    assert detach.error.condition == RESOURCE_LOCKED
    wire.receiver("topic://prices", handle=2)
    assert not wire.is_closed


def test_the_container_id_of_the_broker_is_refused_for_subscriptions(connect: Make, harness: Harness) -> None:
    _, detach = durable(connect(CLIENT_ID))
    assert detach.error.condition == INVALID_FIELD


def test_a_refused_attach_has_a_reason_even_after_a_detach(connect: Make) -> None:
    wire = connect(CLIENT_ID)
    attach = schema.Attach(
        name="sub",
        handle=1,
        role=True,
        source=schema.Source(address="topic://prices", durable=2),
        target=schema.Target(),
    )
    answer, detach = (each.performative for each in wire.exchange(attach, Detach(1, True)))
    assert isinstance(answer, schema.Attach)
    assert answer.source is None
    assert isinstance(detach, Detach)
    assert detach.error.condition == INVALID_FIELD


# ---- shared subscriptions


@pytest.mark.parametrize("durability", [0, 2])
@pytest.mark.parametrize("is_global", [False, True])
def test_consumers_of_a_shared_subscription_share_its_messages(
    connect: Make, harness: Harness, durability: int, is_global: bool
) -> None:
    # Link names of Qpid JMS for two consumers of one connection.
    first, second = ("sub|global-volatile1", "sub|global-volatile2") if is_global else ("sub|volatile1", "sub|2")
    wire = connect()
    (attach,) = shared(wire, first, is_global=is_global, durable=durability)
    expected = ("topic", "shared", "global") if is_global else ("topic", "shared")
    assert attach.source.capabilities == expected
    shared(wire, second, handle=2, is_global=is_global, durable=durability)
    wire.flow(1, 9)
    wire.flow(2, 9)
    publish(harness, *"abcd")
    handles = [each.handle for each in wire.all_of(schema.Transfer)]
    assert sorted(handles) == [1, 1, 2, 2]


def test_a_shared_durable_subscription_collects_messages_until_its_last_consumer_closes_it(
    connect: Make, harness: Harness
) -> None:
    wire = connect()
    shared(wire, durable=2)
    shared(wire, "sub|2", handle=2, durable=2)
    (detach,) = wire.exchange(Detach(2, True))
    assert detach.performative == Detach(2, True), "the other consumer keeps the subscription"
    wire.exchange(Detach(1, False))
    publish(harness, "a")
    shared(wire, durable=2)
    assert received(wire) == ["a"]
    wire.exchange(Detach(1, True))
    assert (durables(harness), harness.stored()) == ([], 0)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_shared_subscription_that_is_not_durable_ends_with_its_last_consumer(
    connect: Make, harness: Harness, is_closed: bool
) -> None:
    wire = connect()
    shared(wire)
    wire.exchange(Detach(1, is_closed))
    publish(harness, "a")
    assert durables(harness) == []


def test_only_global_subscriptions_are_shared_by_containers(connect: Make, harness: Harness) -> None:
    for is_global in (False, True):
        one, two = connect("one"), connect("two")
        for wire in (one, two):
            shared(wire, is_global=is_global)
            wire.flow(1, 9)
        publish(harness, "a", "b")
        counts = [len(wire.all_of(schema.Transfer)) for wire in (one, two)]
        assert counts == ([1, 1] if is_global else [2, 2])


@pytest.mark.parametrize(
    ("one", "two"), [(("a/b", "c"), ("a", "b/c")), (("a%2Fb", "c"), ("a/b", "c")), (("a", "b"), ("a", "c"))]
)
def test_shared_subscriptions_with_similar_names_are_separate(
    connect: Make, harness: Harness, one: tuple[str, str], two: tuple[str, str]
) -> None:
    wires = []
    for container, name in (one, two):
        wires.append(connect(container))
        shared(wires[-1], name)
        wires[-1].flow(1, 9)
    publish(harness, "a", "b")
    assert [len(wire.all_of(schema.Transfer)) for wire in wires] == [2, 2]


def test_a_durable_and_a_volatile_shared_subscription_of_one_name_are_separate(connect: Make, harness: Harness) -> None:
    wire = connect()
    shared(wire)
    shared(wire, "sub|2", handle=2, durable=2)
    wire.flow(1, 9)
    wire.flow(2, 9)
    publish(harness, "a")
    assert len(wire.all_of(schema.Transfer)) == 2


def test_shared_subscriptions_of_mqtt_are_separate(connect: Make, harness: Harness) -> None:
    mqtt = Client(harness, harness.connection_id()).connect("mqtt")
    mqtt.subscribe("s", PRICES, AckMode.AUTO, share="sub").turn()
    wire = connect()
    shared(wire, is_global=True)
    publish(harness, "a")
    assert (mqtt.bodies, received(wire)) == (["a"], ["a"])


@pytest.mark.parametrize("is_shared_first", [True, False])
def test_a_name_cannot_be_shared_and_not_shared(connect: Make, is_shared_first: bool) -> None:
    wire = connect()
    attaches = [lambda name, handle: shared(wire, name, handle=handle, durable=2)]
    attaches.append(lambda name, handle: durable(wire, name, handle=handle))
    if not is_shared_first:
        attaches.reverse()
    attaches[0]("sub", 1)
    wire.exchange(Detach(1, False))
    attach, detach = attaches[1]("sub", 2)
    assert attach.source is None
    assert detach.error.condition == RESOURCE_LOCKED


@pytest.mark.parametrize("durability", [0, 2])
def test_consumers_of_a_shared_subscription_must_have_one_selector(connect: Make, durability: int) -> None:
    wire = connect()
    shared(wire, durable=durability)
    attach, detach = shared(wire, "sub|2", handle=2, durable=durability, filter=selector("n = 1"))
    assert attach.source is None
    assert detach.error.condition == RESOURCE_LOCKED


def test_no_local_is_refused_for_a_shared_subscription(connect: Make) -> None:
    _, detach = shared(connect(), filter=NO_LOCAL)
    assert detach.error.condition == INVALID_FIELD


# ---- links without a source


def test_a_link_without_a_source_looks_up_a_durable_subscription(connect: Make) -> None:
    wire = connect()
    durable(wire, filter={**selector("n = 1"), **NO_LOCAL})
    wire.exchange(Detach(1, False))
    (attach,) = look_up(wire)
    source = attach.source
    assert (source.address, source.durable, source.expiry_policy) == ("topic://prices", 2, NEVER)
    assert source.filter == {**selector("n = 1"), **NO_LOCAL}
    (detach,) = wire.exchange(Detach(8, False))
    assert detach.performative == Detach(8, False)
    assert len(look_up(wire)) == 1, "the subscription still exists"


@pytest.mark.parametrize("kind", ["plain", "shared", "global"])
def test_the_close_of_a_link_without_a_source_deletes_the_durable_subscription(
    connect: Make, harness: Harness, kind: str
) -> None:
    wire = connect()
    name, capabilities = ("sub|global", ("shared", "global")) if kind == "global" else ("sub", ())
    if kind == "plain":
        durable(wire)
    else:
        shared(wire, name, durable=2, is_global=kind == "global")
    wire.exchange(Detach(1, False))
    (attach,) = look_up(wire, name, capabilities=capabilities)
    assert attach.source.address == "topic://prices"
    (detach,) = wire.exchange(Detach(8, True))
    assert detach.performative == Detach(8, True)
    assert durables(harness) == []
    attach, detach = look_up(wire, name, capabilities=capabilities)
    assert (attach.source, detach.closed, detach.error.condition) == (None, True, NOT_FOUND)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_subscription_with_consumers_is_not_deleted(connect: Make, harness: Harness, is_shared: bool) -> None:
    wire = connect()
    if is_shared:
        shared(wire, "sub|2", durable=2)
    else:
        durable(wire, "sub")
    other = connect()
    look_up(other)
    (detach,) = other.exchange(Detach(8, True))
    assert isinstance(detach.performative, Detach)
    assert detach.performative.error.condition == RESOURCE_LOCKED
    publish(harness, "a")
    assert received(wire) == ["a"]


def test_a_link_without_a_source_gets_no_messages(connect: Make, harness: Harness) -> None:
    wire = connect()
    durable(wire)
    wire.exchange(Detach(1, False))
    publish(harness, "a")
    look_up(wire, handle=1)
    *_, flow = (each.performative for each in wire.exchange(ALL))
    assert isinstance(flow, schema.Flow)
    assert (flow.drain, flow.link_credit) == (True, 0)
    assert not wire.is_closed


def test_a_link_without_a_source_that_is_detached_at_once_is_answered_in_order(connect: Make) -> None:
    wire = connect()
    durable(wire)
    attach = schema.Attach(name="else", handle=8, role=True, target=schema.Target())
    for closed in (False, True):
        answers = [each.performative for each in wire.exchange(attach, Detach(8, closed))]
        assert [type(each) for each in answers] == [schema.Attach, Detach]
        assert answers[1].error.condition == NOT_FOUND  # type: ignore[union-attr]
