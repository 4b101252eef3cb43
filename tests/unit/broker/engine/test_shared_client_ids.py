"""Client ids that several connections of one user share (AMQP: connections of one container)."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, Connect, ErrorKind, ShareClientId
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tests.unit.broker.engine.conftest import PRICES, Client
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


def test_the_brokers_own_client_id_is_not_shared(secured: Harness) -> None:
    assert kinds(sharing(secured, "alice", CLIENT_ID)) == [ErrorKind.CLIENT_ID]
    assert kinds(sharing(secured, "alice", "x" * 20_000)) == [ErrorKind.CLIENT_ID]


def test_a_connection_comes_with_a_client_id_that_others_share(secured: Harness) -> None:
    sharing(secured, "alice")
    client = Client(secured, secured.connection_id())
    client.handle(Connect("till", "alice")).turn()
    assert client.is_connected
