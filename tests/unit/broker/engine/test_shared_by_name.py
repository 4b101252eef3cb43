"""Shared subscriptions of JMS: all consumers of a name have the same topic and the same selector."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import ErrorKind, FindDurable, FoundDurable
from tandemmq.broker.core.names import MQTT_SHARES
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.topics.shared import CLIENT_ID, Holding
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES
from tests.unit.broker.engine.test_shared_subscriptions import records, send, shares
from tests.unit.broker.security.test_client_ids import Harness as Ruled
from tests.unit.broker.security.test_connection_ids import Secured

OTHER = Destination(DestinationKind.TOPIC, "other.one")
SHARE = "#d/me/s"


def join(client: Any, id: str = "s", destination: Destination = PRICES, **options: Any) -> Any:
    """Subscribe to the shared subscription of SHARE."""
    options.setdefault("durable_name", "d")
    return client.subscribe(id, destination, share=SHARE, has_terms=True, receipt=id, **options).turn()


def kinds(client: Any) -> list[ErrorKind]:
    return [each.kind for each in client.session.errors]


def find(client: Any, name: str = "d", *, is_global: bool = False) -> FoundDurable:
    command = FindDurable(name, is_global, "found")
    client.handle(command).turn()
    return command.found


def test_consumers_with_one_selector_share_what_it_selects(harness: Any) -> None:
    one, two = (join(harness.client(), durable_name=None, selector="n > 1") for _ in range(2))
    harness.client().send_all(range(2), PRICES, properties={"n": 1}).turn()
    harness.client().send_all("abcd", PRICES, properties={"n": 2}).turn()
    assert sorted((one.bodies, two.bodies)) == [["a", "c"], ["b", "d"]]


@pytest.mark.parametrize("other", [{"destination": OTHER}, {"selector": "n = 1"}])
@pytest.mark.parametrize("name", [None, "d"])
def test_other_terms_are_refused_while_it_is_used(harness: Any, other: dict[str, Any], name: str | None) -> None:
    client = join(harness.client("me"), durable_name=name)
    join(client, "t", durable_name=name, **other)
    assert kinds(client) == [ErrorKind.STATE]
    send(harness, "a")
    assert client.bodies == ["a"]
    assert list(client.client.subscriptions) == ["s"]


@pytest.mark.parametrize("other", [{"destination": OTHER}, {"selector": "n IS NULL"}])
def test_other_terms_begin_an_unused_one_anew(harness: Any, other: dict[str, Any]) -> None:
    client = join(harness.client("me")).unsubscribe("s").turn()
    send(harness, "a")
    join(client, "t", **other)
    destination = other.get("destination", PRICES)
    assert shares(harness) == [(SHARE, destination.name, 0)]
    send(harness, "b", destination=destination)
    assert (client.bodies, kinds(client)) == (["b"], [])
    client.unsubscribe("t", durable_name="d").turn()
    assert records(harness) == []


def test_one_that_may_not_begin_again_still_exists(harness: Any) -> None:
    # proves: a-refused-client-keeps-its-share
    client = join(harness.client("me")).unsubscribe("s").turn()
    send(harness, "a")
    memory = harness.engine.memory
    limit, memory.limit = memory.limit, 1
    join(client, selector="n = 1")
    assert kinds(client) == [ErrorKind.RESOURCE]
    memory.limit = limit
    join(client)
    assert client.bodies == ["a"]


def test_it_keeps_its_terms_over_a_failover(harness: Any) -> None:
    join(harness.client("me"), selector="n = 1").vanish()
    harness.fail_over()
    client = harness.client("me")
    found = find(client)
    assert (found.destination, found.selector, found.is_shared) == (PRICES, "n = 1", True)
    harness.client().send("a", PRICES, properties={"n": 1}).send("b", PRICES).turn()
    join(client, selector="n = 1")
    assert client.bodies == ["a"]
    join(client, "t")
    assert kinds(client) == [ErrorKind.STATE]


def test_it_is_not_deleted_while_it_has_consumers(harness: Any) -> None:
    # proves: a-used-share-is-kept
    one, two = join(harness.client("me")), harness.client("you")
    join(one, "t")
    one.unsubscribe(None, durable_name="d", unless_used=True)
    one.unsubscribe("s", durable_name="d", unless_used=True).turn()
    assert kinds(one) == [ErrorKind.STATE] * 2
    assert list(one.client.subscriptions) == ["t"], "its own consumer is closed all the same"
    two.unsubscribe(None, durable_name="d", unless_used=True).turn()
    assert kinds(two) == [ErrorKind.DESTINATION], "another client id has no such subscription"
    one.unsubscribe("t", durable_name="d", unless_used=True, receipt="gone").turn()
    assert (one.receipts[-1], records(harness)) == ("gone", [])


@pytest.mark.parametrize("is_shared_first", [True, False])
def test_a_name_is_shared_or_not(harness: Any, is_shared_first: bool) -> None:
    client = harness.client("me")
    if is_shared_first:
        join(client).subscribe("t", PRICES, durable_name="d").turn()
    else:
        join(client.subscribe("t", PRICES, durable_name="d").turn())
    assert kinds(client) == [ErrorKind.STATE]


# ---- global subscriptions, and look-ups of subscriptions


def test_a_global_one_is_used_by_every_client(harness: Any) -> None:
    one = join(harness.client("one"), is_global=True)
    one.vanish()
    send(harness, "a")
    harness.fail_over()
    two = harness.client()
    assert find(two, is_global=True).destination == PRICES
    join(two, is_global=True)
    assert two.bodies == ["a"]
    assert records(harness) == sorted([(CLIENT_ID, MQTT_SHARES.name), (CLIENT_ID, "prices")])
    two.unsubscribe("s", durable_name="d", is_global=True, unless_used=True, receipt="gone").turn()
    assert (two.receipts[-1], records(harness)) == ("gone", [])


def test_a_global_name_is_not_the_name_of_a_client_id(harness: Any) -> None:
    client = harness.client("me").subscribe("t", PRICES, durable_name="d").turn()
    join(client, is_global=True)
    assert not kinds(client)
    found = find(client)
    assert (found.is_shared, find(client, is_global=True).is_shared) == (False, True)
    find(client, "e", is_global=True)
    assert kinds(client) == [ErrorKind.DESTINATION]


def test_another_user_does_not_use_a_global_one() -> None:
    harness = Secured(EngineSettings())
    ann, bob = harness.user("ann", None), harness.user("bob", None)
    join(ann, is_global=True)
    join(bob, is_global=True)
    find(bob, is_global=True)
    bob.unsubscribe(None, durable_name="d", is_global=True)
    harness.turn()
    assert kinds(bob) == [ErrorKind.SECURITY] * 3


def test_an_operator_deletes_the_shared_subscription_of_another_user() -> None:
    harness = Ruled(EngineSettings())
    ann, root, bob = (harness.user(name, None) for name in ("ann", "root", "bob"))
    root.send("", PRICES).turn()  # creates the topic
    join(ann, is_global=True).unsubscribe("s").turn()
    for client in (bob, root):
        client.unsubscribe(None, durable_name="d", is_global=True, unless_used=True, receipt="gone").turn()
    assert (kinds(bob), root.receipts, records(harness)) == ([ErrorKind.SECURITY], ["gone"], [])


def test_one_membership_is_found_by_its_share(harness: Any) -> None:
    join(harness.client("me"))
    found = harness.engine.inventory.membership(CLIENT_ID, SHARE)
    assert (found.client_id, found.name) == ("me", "d")
    assert harness.engine.inventory.membership("me", "d") is None
    assert harness.engine.inventory.membership(CLIENT_ID, "#d/me/other") is None
    reads = harness.count_reads(Holding, "share")
    assert harness.engine.inventory.membership(CLIENT_ID, SHARE) is found
    assert not reads.count, "no holding is examined"
    for client_id in ("one", "two"):
        harness.client(client_id).subscribe("s", PRICES, share=SHARE, has_terms=True, durable_name="e").turn()
    assert harness.engine.inventory.membership(CLIENT_ID, SHARE) is None


def test_a_durable_subscription_is_found_with_its_terms(harness: Any) -> None:
    client = harness.client("me")
    client.subscribe("t", PRICES, durable_name="d", selector="n = 1", no_local=True).turn()
    found = find(client)
    assert (found.destination, found.selector, found.no_local, found.is_shared) == (PRICES, "n = 1", True, False)
    assert client.receipts == ["found"]
    stranger = harness.client("you")
    find(stranger)
    assert kinds(stranger) == [ErrorKind.DESTINATION]
