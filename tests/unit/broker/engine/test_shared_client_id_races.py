"""Connections of one client id, of which one does something while another has not ended."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, ErrorKind
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import ORDERS, PRICES, shorten_steps
from tests.unit.broker.engine.conftest import Harness as WithSteps
from tests.unit.broker.engine.test_shared_client_ids import kinds, sharing, subscribe
from tests.unit.broker.security.test_client_ids import FakeSessions, Harness, with_sessions

COUNT = 10
EVERY = Destination(DestinationKind.TOPIC, "many.>")


class Stepped(Harness):
    loop = WithSteps.loop


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> Harness:
    harness = Stepped(EngineSettings())
    harness.sessions = FakeSessions()
    root = harness.user("root", None, client_id="maker")
    for each in (PRICES, *map(topic, range(COUNT))):  # the topics are there
        root.send("", each).turn()
    shorten_steps(monkeypatch, 1)
    return with_sessions(harness)


def topic(number: int) -> Destination:
    return Destination(DestinationKind.TOPIC, f"many.{number}")


def every(client: Any, **options: Any) -> Any:
    return client.subscribe("s", EVERY, AckMode.INDIVIDUAL, durable_name="d", receipt="begun", **options)


def send(harness: Harness, body: str, destination: Destination = PRICES) -> None:
    harness.user("root", None).send(body, destination).turn()


def send_to_every(harness: Harness) -> list[str]:
    for number in range(COUNT):
        send(harness, str(number), topic(number))
    return [str(number) for number in range(COUNT)]


def test_a_newer_connection_waits_until_a_lost_one_has_left(stepped: Harness) -> None:
    # proves: a-former-consumer-leaves-first
    one, two = sharing(stepped, "alice"), sharing(stepped, "alice")
    subscribe(one)
    send(stepped, "m")
    one.lose_socket()
    subscribe(two)
    assert (kinds(two), two.receipts[-1], two.bodies) == ([], "begun", ["m"])


def test_a_subscription_is_deleted_when_a_lost_connection_has_left(stepped: Harness) -> None:
    # proves: a-former-consumer-leaves-first
    one, two = sharing(stepped, "alice"), sharing(stepped, "alice")
    subscribe(one)
    send(stepped, "m")
    send(stepped, "order", ORDERS)
    one.subscribe("q", ORDERS, AckMode.INDIVIDUAL).turn()
    one.lose_socket()
    two.unsubscribe(None, durable_name="d", receipt="gone").turn()
    two.subscribe("q", ORDERS, AckMode.INDIVIDUAL).turn()
    assert (kinds(two), two.receipts[-1], two.bodies) == ([], "gone", ["order"])
    assert not stepped.engine.inventory.destinations.durables


def test_a_connection_that_is_lost_while_it_waits_takes_nothing(stepped: Harness) -> None:
    one, two, three = (sharing(stepped, "alice") for _ in range(3))
    every(one).turn()
    bodies = send_to_every(stepped)
    one.lose_socket()
    every(two)
    two.lose_socket()
    every(three).turn()
    assert (two.bodies, kinds(three), sorted(three.bodies)) == ([], [], bodies)
    assert not stepped.works


def test_a_subscription_that_is_taken_over_while_it_begins_is_the_newer_connections(stepped: Harness) -> None:
    # proves: what-was-taken-over-reserves-nothing
    one, two = sharing(stepped, "alice"), sharing(stepped, "alice")
    every(one).turn()
    one.unsubscribe("s").turn()
    every(one)
    every(two).turn()
    assert (kinds(one), kinds(two), two.receipts[-1]) == ([ErrorKind.TAKEN_OVER], [], "begun")
    assert sorted(send_to_every(stepped)) == sorted(two.bodies)


def test_a_subscription_begins_anew_when_its_deletion_is_complete(stepped: Harness) -> None:
    # proves: a-deletion-ends-first
    one, two = sharing(stepped, "alice"), sharing(stepped, "alice")
    every(one).turn()
    one.unsubscribe("s").turn()
    two.unsubscribe(None, durable_name="d", receipt="gone")
    last = topic(COUNT - 1)
    one.subscribe("s", last, durable_name="d", receipt="again").turn()
    assert (two.receipts[-1], kinds(one), one.receipts[-1]) == ("gone", [], "again")
    send_to_every(stepped)
    assert one.bodies == [str(COUNT - 1)]
    topics = stepped.engine.inventory.destinations.topics()
    assert [each.destination for each in topics if each.durables] == [last]


def test_a_subscription_is_replaced_once(stepped: Harness) -> None:
    one, two = sharing(stepped, "alice"), sharing(stepped, "alice")
    every(one).turn()
    one.unsubscribe("s").turn()
    every(one, selector="n IS NULL")
    every(two, selector="n IS NULL OR n = 1")
    stepped.turn()
    assert sorted(map(len, (one.session.errors, two.session.errors))) == [0, 1]
    winner = two if one.session.errors else one
    assert sorted(send_to_every(stepped)) == sorted(winner.bodies)


def test_a_client_id_that_got_an_owner_meanwhile_holds_no_share_of_another(stepped: Harness) -> None:
    # proves: who-joins-is-checked-last
    alice, again, mallory = (sharing(stepped, name) for name in ("alice", "alice", "mallory"))
    options = {"share": "#s", "has_terms": True}
    alice.subscribe("s", EVERY, **options).turn()
    alice.unsubscribe("s")  # no client holds it, so it ends in steps
    while stepped.engine.inventory.destinations.durables:
        stepped.turn(1)
    mallory.subscribe("t", EVERY, durable_name="t", **options)
    assert mallory.client.subscriptions, "it waits for the end"
    subscribe(again, "d")
    assert (kinds(again), kinds(mallory)) == ([], [ErrorKind.SECURITY])
