"""A durable subscription belongs to the user who made it, also while he is away."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.access import OpenAccess, Operation, Principal, refused_operation
from broker.core.commands import AckMode, Connect, ErrorKind
from broker.core.settings import EngineSettings
from store.records.message import Destination, DestinationKind
from tests.engine.conftest import PRICES, Client
from tests.security.test_connection_ids import Everybody, Secured

OTHER = Destination(DestinationKind.TOPIC, "other")


class Ruled(Everybody):
    """Nobody but root may delete."""

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        if operation is Operation.REMOVE and principal.name != "root":
            raise refused_operation(principal, operation, destination)


class House(Secured):
    access = Ruled()

    def subscriber(self, name: str) -> Any:
        """``name`` comes with the client id that ann's program has."""
        self.clients += 1
        client: Any = Client(self, f"ID:test-1-{self.clients}")
        client.handle(Connect("shop", login=name))
        return client


@pytest.fixture
def house() -> House:
    house = House(EngineSettings())
    ann = house.subscriber("ann")
    ann.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    house.turn()
    ann.vanish()
    house.user("writer", "ID:w:1").send("m", PRICES)
    house.turn()
    return house


def refused(client: Any) -> list[ErrorKind]:
    return [error.kind for error in client.session.errors]


@pytest.mark.parametrize("destination", [PRICES, OTHER])
@pytest.mark.parametrize("is_after_failover", [False, True])
def test_nobody_else_takes_it_over_moves_or_ends_it(
    house: House, destination: Destination, is_after_failover: bool
) -> None:
    if is_after_failover:
        house.fail_over()
    bob = house.subscriber("bob")
    bob.subscribe("s", destination, AckMode.INDIVIDUAL, durable_name="d")
    bob.unsubscribe(None, durable_name="d")
    house.turn()
    assert refused(bob) == [ErrorKind.SECURITY] * 2
    assert bob.bodies == []
    bob.vanish()
    ann = house.subscriber("ann")
    ann.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    house.turn()
    assert ann.bodies == ["m"]


def test_who_has_admin_rights_on_its_topic_may(house: House) -> None:
    root = house.subscriber("root")
    root.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    house.turn()
    assert root.bodies == ["m"]
    root.unsubscribe("s")
    root.unsubscribe(None, durable_name="d")
    house.turn()
    assert refused(root) == []
    assert house.stored() == 0


def test_it_stays_its_makers_when_an_operator_used_it(house: House) -> None:
    root = house.subscriber("root")
    root.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    house.turn()
    root.vanish()
    ann = house.subscriber("ann")
    ann.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    house.turn()
    assert refused(ann) == []


@pytest.mark.parametrize("has_pending", [False, True])
def test_one_from_before_users_were_kept_becomes_its_first_users(house: House, has_pending: bool) -> None:
    """What was pending is acknowledged first: ActiveMQ passes over what stands in front of a record written anew."""
    for owner in house.store._owners.values():
        owner.user = None
    if not has_pending:
        house.store._messages[next(iter(house.store._owners))].clear()
    house.fail_over()
    bob = house.subscriber("bob")
    bob.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    house.turn()
    assert [owner.user for owner in house.store.owners()] == [None if has_pending else "bob"]
    if has_pending:
        bob.ack("m")
        house.turn()
        bob.vanish()
        house.turn()
    house.fail_over()
    ann = house.subscriber("ann")
    ann.unsubscribe(None, durable_name="d")
    assert refused(ann) == [ErrorKind.SECURITY]


def test_it_is_nobodys_where_a_name_proves_nothing() -> None:
    house = House(EngineSettings())
    house.access = OpenAccess(is_everywhere=True)
    house.fail_over()
    one = house.subscriber("one")
    one.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    house.turn()
    assert [owner.user for owner in house.store.owners()] == [None]


def test_it_is_its_makers_until_it_ends(house: House) -> None:
    ann = house.subscriber("ann")
    ann.unsubscribe(None, durable_name="d")
    house.turn()
    ann.vanish()
    bob = house.subscriber("bob")
    bob.subscribe("s", PRICES, AckMode.INDIVIDUAL, durable_name="d")
    house.turn()
    assert refused(bob) == []
