"""Client ids that several connections of one user share (AMQP: connections of one container)."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, Connect, ErrorKind, FindDurable, ShareClientId
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import ORDERS, PRICES, Client, shorten_steps
from tests.unit.broker.engine.conftest import Harness as WithSteps
from tests.unit.broker.security.test_client_ids import FakeSessions, Harness, durable, with_sessions


@pytest.fixture
def secured() -> Harness:
    harness = Harness(EngineSettings())
    harness.sessions = FakeSessions()
    harness.user("root", None, client_id="maker").send("", PRICES)  # the topic is there
    return with_sessions(harness)


def sharing(harness: Any, user: str, id: str = "till") -> Any:
    client = harness.user(user, None)
    client.session.survives_errors = True
    return client.handle(ShareClientId(id, "shared")).turn()


def kinds(client: Any) -> list[ErrorKind]:
    return [each.kind for each in client.session.errors]


def subscribe(client: Any, name: str = "d") -> Any:
    return client.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name=name, receipt="begun").turn()


def test_connections_of_one_user_share_a_client_id(secured: Harness) -> None:
    one, two = sharing(secured, "alice"), sharing(secured, "alice")
    subscribe(one, "d")
    subscribe(two, "e")
    secured.user("root", None).send("a", PRICES)
    secured.turn()
    assert (one.bodies, two.bodies) == (["a"], ["a"])
    two.handle(ShareClientId("till", "again")).turn()
    assert two.receipts == ["shared", "begun", "again"]


def test_a_newer_connection_takes_a_subscription_over(secured: Harness) -> None:
    one, two = sharing(secured, "alice"), sharing(secured, "alice")
    subscribe(one)
    secured.user("root", None).send("a", PRICES)
    secured.turn()
    subscribe(two)
    assert one.session.events[-1] == ("closed", "s")
    assert kinds(one) == [ErrorKind.TAKEN_OVER]
    assert (two.bodies, two.receipts[-1]) == (["a"], "begun")
    assert not one.is_closed
    assert not one.client.subscriptions


def test_a_connection_that_is_alone_with_its_client_id_loses_nothing(secured: Harness) -> None:
    alone, sharer = secured.come("alice"), sharing(secured, "alice")
    subscribe(alone)
    subscribe(sharer)
    assert (kinds(sharer), list(alone.client.subscriptions)) == ([ErrorKind.STATE], ["s"])


def test_an_operator_takes_no_subscription_over(secured: Harness) -> None:
    # proves: only-its-user-takes-a-subscription-over
    alice = sharing(secured, "alice")
    subscribe(alice)
    root = sharing(secured, "root")
    subscribe(root)
    assert (kinds(root), list(alice.client.subscriptions)) == ([ErrorKind.STATE], ["s"])


def test_other_terms_take_no_subscription_over(secured: Harness) -> None:
    # proves: a-used-one-is-not-replaced
    one, two = sharing(secured, "alice"), sharing(secured, "alice")
    subscribe(one)
    secured.user("root", None).send("a", PRICES)
    secured.turn()
    two.subscribe("s", PRICES, durable_name="d", selector="n = 1").turn()
    assert (kinds(two), list(two.client.subscriptions)) == ([ErrorKind.STATE], [])
    one.unsubscribe("s").turn()
    subscribe(one)
    assert (kinds(one), one.bodies) == ([], ["a", "a"])


@pytest.mark.parametrize("state", ["a durable subscription", "a shared one", "a session"])
def test_another_users_client_id_is_not_shared(secured: Harness, state: str) -> None:
    # proves: a-shared-client-id-is-its-owners
    if state == "a session":
        secured.sessions.users["till"] = "alice"
    elif state == "a shared one":
        sharing(secured, "alice").subscribe("s", PRICES, share="#", has_terms=True, durable_name="d").turn().vanish()
        secured.turn()
    else:
        durable(secured)
    mallory = sharing(secured, "mallory")
    assert kinds(mallory) == [ErrorKind.SECURITY]
    assert mallory.client.id is None
    subscribe(mallory)
    assert kinds(mallory)[1:] == [ErrorKind.CLIENT_ID]


@pytest.mark.parametrize("share", [None, "#"])
def test_a_client_id_that_was_free_gets_one_owner(secured: Harness, share: str | None) -> None:
    # proves: a-client-id-has-one-owner
    mallory, alice = sharing(secured, "mallory"), sharing(secured, "alice")
    alice.subscribe("s", PRICES, share=share, has_terms=True, durable_name="d").turn()
    subscribe(mallory, "e")
    assert (kinds(alice), kinds(mallory)) == ([], [ErrorKind.SECURITY])


def test_an_id_that_was_free_is_not_used_beside_its_owner(secured: Harness) -> None:
    mallory = secured.come("mallory")
    mallory.session.survives_errors = True
    secured.sessions.users["till"] = "alice"
    alice = sharing(secured, "alice")
    subscribe(alice)
    subscribe(mallory, "e")
    assert (kinds(alice), kinds(mallory)) == ([], [ErrorKind.SECURITY])


def test_a_client_id_that_another_user_is_connected_with_is_not_shared(secured: Harness) -> None:
    # proves: a-client-id-in-use-is-not-shared
    alice = secured.come("alice")
    mallory = sharing(secured, "mallory")
    assert kinds(mallory) == [ErrorKind.CLIENT_ID]
    assert kinds(sharing(secured, "alice")) == []
    subscribe(alice)
    assert kinds(alice) == []
    alice.vanish()
    secured.turn()
    assert secured.come("alice").is_connected


def test_a_client_id_that_another_user_shares_is_not_connected(secured: Harness) -> None:
    # proves: a-shared-client-id-is-in-use
    ones = [sharing(secured, "alice") for _ in range(2)]
    for each in ones:
        assert [one.kind for one in secured.come("mallory").session.errors] == [ErrorKind.CLIENT_ID]
        each.vanish()
        secured.turn()
    assert secured.come("mallory").is_connected


def test_its_owner_shares_a_client_id_that_an_operator_is_connected_with(secured: Harness) -> None:
    durable(secured)
    root = secured.come("root")
    alice = sharing(secured, "alice")
    subscribe(alice)
    assert (root.is_connected, kinds(alice), alice.receipts[-1]) == (True, [], "begun")


def test_users_of_one_client_id_do_not_share_a_volatile_subscription(secured: Harness) -> None:
    # proves: a-volatile-share-has-one-user
    def join(client: Any, id: str = "s", share: str = "#volatile/till/s", **options: Any) -> Any:
        return client.subscribe(id, PRICES, share=share, has_terms=True, **options).turn()

    alice, mallory = sharing(secured, "alice"), sharing(secured, "mallory")
    join(alice)
    join(mallory)
    assert kinds(mallory) == [ErrorKind.SECURITY]
    join(sharing(secured, "alice"))
    for client in (alice, mallory):
        join(client, "g", "#volatile//s", is_global=True)
    assert (kinds(alice), list(mallory.client.subscriptions)) == ([], ["g"])


def test_no_client_id_makes_the_key_of_a_shared_subscription(secured: Harness) -> None:
    # proves: no-client-id-reaches-shared-ones, shared-ones-are-no-clients
    share, id = "#durable/app:1/s", f"{CLIENT_ID}:#durable/app"
    alice = sharing(secured, "alice", "app:1")
    alice.subscribe("s", PRICES, share=share, has_terms=True, durable_name="s").turn().vanish()
    mallory = secured.user("mallory", None, client_id=id)
    assert [each.kind for each in mallory.session.errors] == [ErrorKind.CLIENT_ID]
    mallory = sharing(secured, "mallory", id)
    assert (kinds(mallory), mallory.client.id) == ([ErrorKind.CLIENT_ID], None)
    mallory.client.id = id  # as if it were not refused
    mallory.unsubscribe(None, durable_name="1/s").turn()
    mallory.handle(FindDurable("1/s", False, "found")).turn()
    subscribe(mallory, "1/s")
    assert kinds(mallory) == [ErrorKind.CLIENT_ID] * 4
    assert [each.name for each in secured.engine.inventory.destinations.durables.values()] == [share]


def test_the_brokers_own_client_id_is_not_shared(secured: Harness) -> None:
    assert kinds(sharing(secured, "alice", CLIENT_ID)) == [ErrorKind.CLIENT_ID]
    assert kinds(sharing(secured, "alice", "x" * 20_000)) == [ErrorKind.CLIENT_ID]


def test_a_connection_comes_with_a_client_id_that_others_share(secured: Harness) -> None:
    sharing(secured, "alice")
    client = Client(secured, secured.connection_id())
    client.handle(Connect("till", "alice")).turn()
    assert client.is_connected


# ---- one of them does something while another has not ended


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
