"""A durable subscription belongs to the user who made it, also while the user is not connected."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.access import OpenAccess, Operation, refused_operation
from tandemmq.broker.core.commands import AckMode, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES
from tests.unit.broker.security.test_connection_ids import Everybody, Secured

pytestmark = pytest.mark.promise("ids-have-owners")

OTHER = Destination(DestinationKind.TOPIC, "other")


class Ruled(Everybody):
    """Access in which only root may delete."""

    has_rights = True

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        if operation is Operation.REMOVE and principal.name != "root":
            raise refused_operation(principal, operation, destination)


class Harness(Secured):
    access = Ruled()

    def subscriber(self, name: str) -> Any:
        """``name`` comes with the client id that ann's program has."""
        return self.user(name, None, client_id="shop")


@pytest.fixture
def harness() -> Harness:
    harness = Harness(EngineSettings())
    ann = harness.subscriber("ann")
    ann.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    harness.turn()
    ann.vanish()
    harness.user("writer", "ID:w:1").send("m", PRICES)
    harness.turn()
    return harness


def refused(client: Any) -> list[ErrorKind]:
    return [error.kind for error in client.session.errors]


@pytest.mark.parametrize("destination", [PRICES, OTHER])
def test_another_user_can_neither_take_over_nor_move_nor_end_the_subscription(
    harness: Harness, destination: Destination
) -> None:
    """Bob, too, has one under that client id, as a former version allowed it."""
    ann = harness.subscriber("ann")
    ann.subscribe("s", OTHER, AckMode.INDIVIDUAL, durable_name="bob's")
    harness.turn()
    next(each for each in harness.store._owners.values() if each.subscription_name == "bob's").user = "bob"
    harness.fail_over()
    bob = harness.subscriber("bob")
    bob.subscribe("s", destination, AckMode.INDIVIDUAL, durable_name="d")
    bob.unsubscribe(None, durable_name="d")
    harness.turn()
    assert refused(bob) == [ErrorKind.SECURITY] * 2
    assert bob.bodies == []
    bob.vanish()
    ann = harness.subscriber("ann")
    ann.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    harness.turn()
    assert ann.bodies == ["m"]


def test_a_user_with_admin_rights_on_its_topic_may_use_it(harness: Harness) -> None:
    root = harness.subscriber("root")
    root.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    harness.turn()
    assert root.bodies == ["m"]
    root.unsubscribe("s")
    root.unsubscribe(None, durable_name="d")
    harness.turn()
    assert refused(root) == []
    assert harness.stored() == 0


def test_it_stays_its_makers_when_an_operator_used_it(harness: Harness) -> None:
    root = harness.subscriber("root")
    root.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    harness.turn()
    root.vanish()
    ann = harness.subscriber("ann")
    ann.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    harness.turn()
    assert refused(ann) == []


@pytest.mark.parametrize("has_pending", [False, True])
def test_one_from_before_users_were_kept_becomes_its_first_users(harness: Harness, has_pending: bool) -> None:
    """The pending messages are acknowledged first, because ActiveMQ skips messages before a rewritten record."""
    for owner in harness.store._owners.values():
        owner.user = None
    if not has_pending:
        harness.store._messages[next(iter(harness.store._owners))].clear()
    harness.fail_over()
    bob = harness.subscriber("bob")
    bob.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    harness.turn()
    assert [owner.user for owner in harness.store.owners()] == [None if has_pending else "bob"]
    if has_pending:
        bob.ack("m")
        harness.turn()
        bob.vanish()
        harness.turn()
    harness.fail_over()
    ann = harness.subscriber("ann")
    ann.unsubscribe(None, durable_name="d")
    assert refused(ann) == [ErrorKind.SECURITY]


def test_it_is_nobodys_where_a_name_proves_nothing() -> None:
    harness = Harness(EngineSettings())
    harness.access = OpenAccess(is_everywhere=True)
    harness.fail_over()
    one = harness.subscriber("one")
    one.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    harness.turn()
    assert [owner.user for owner in harness.store.owners()] == [None]


def test_it_is_its_makers_until_it_ends(harness: Harness) -> None:
    ann = harness.subscriber("ann")
    ann.unsubscribe(None, durable_name="d")
    harness.turn()
    ann.vanish()
    bob = harness.subscriber("bob")
    bob.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    harness.turn()
    assert refused(bob) == []
