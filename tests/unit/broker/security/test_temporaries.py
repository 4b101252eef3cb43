"""Temporary destinations: with rights, only clients that may know their names get advisories about them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import tandemmq.broker.core.advisor
from tandemmq.broker.core.access import OpenAccess
from tandemmq.broker.core.commands import AckMode, AddDestination, ErrorKind, RemoveDestination
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import message_of
from tandemmq.broker.security.rights import Grant
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import ORDERS, advisor
from tests.unit.broker.security.conftest import RuledAccess
from tests.unit.broker.security.test_connection_ids import Secured

pytestmark = pytest.mark.promise("temporary-destinations")

EVERYBODY = frozenset({"*"})
OPERATORS = frozenset({"operators"})
RIGHTS = [
    Grant(DestinationKind.QUEUE, "orders", EVERYBODY, EVERYBODY, EVERYBODY),
    Grant(DestinationKind.QUEUE, "sales", OPERATORS, OPERATORS, OPERATORS),
    Grant(DestinationKind.TOPIC, "ActiveMQ.Advisory.>", OPERATORS, network=OPERATORS),
]
SALES = Destination(DestinationKind.QUEUE, "sales")


class Harness(Secured):
    access = RuledAccess({"root": OPERATORS}, RIGHTS)

    def come(self, name: str, *topics: str) -> Any:
        """``name`` connects, and listens to advisories, as Java clients do."""
        client = self.user(name, f"ID:{name}-{self.clients}")
        self.turn()
        for topic in topics or ("TempQueue,ActiveMQ.Advisory.TempTopic",):
            destination = Destination(DestinationKind.TOPIC, f"ActiveMQ.Advisory.{topic}")
            client.subscribe(f"a {topic}", destination, AckMode.AUTO)
        self.turn()
        return client

    def temporary(self, client: Any, kind: DestinationKind = DestinationKind.TEMP_QUEUE) -> Destination:
        made = Destination(kind, f"{client.client.connection_id}:{next(numbers)}")
        client.handle(AddDestination(made))
        self.turn()
        return made


numbers = itertools.count(1)


@pytest.fixture
def harness() -> Harness:
    return Harness(EngineSettings(), advisor=advisor())


def heard(client: Any) -> list[tuple[str, str]]:
    """Return the names in its advisories, and whether they began or ended."""
    found = []
    for delivered in client.session.delivered:
        if delivered.message.raw is None:
            continue
        told = message_of(delivered.message.raw).data_structure
        if isinstance(told, schema.DestinationInfo) and told.destination.kind > DestinationKind.TOPIC:
            is_there = told.operation_type == schema.DestinationOperation.ADD
            found.append((told.destination.name, "began" if is_there else "ended"))
    return found


@pytest.mark.parametrize("kind", [DestinationKind.TEMP_QUEUE, DestinationKind.TEMP_TOPIC])
@pytest.mark.parametrize("pattern", [(), ("*",), (">",)])
def test_its_users_clients_and_operators_hear_of_it(
    harness: Harness, kind: DestinationKind, pattern: tuple[str]
) -> None:
    clients = {name: harness.come(name, *pattern) for name in ("ann", "ann's other", "bob", "root")}
    clients["ann's other"] = harness.come("ann", *pattern)
    made = harness.temporary(clients["ann"], kind)
    clients["ann"].handle(RemoveDestination(made))
    harness.turn()
    both = [(made.name, "began"), (made.name, "ended")]
    assert {name: heard(client) for name, client in clients.items()} == {
        "ann": both,
        "ann's other": both,
        "bob": [],
        "root": both,
    }


def test_a_later_subscriber_gets_the_same_advisories(harness: Harness) -> None:
    made = harness.temporary(harness.come("ann"))
    assert heard(harness.come("ann")) == [(made.name, "began")]
    assert heard(harness.come("bob")) == []
    assert heard(harness.come("bob", ">")) == []
    assert heard(harness.come("root", ">")) == [(made.name, "began")]


def test_a_client_that_gets_the_name_hears_of_its_creation_first_and_of_its_end(harness: Harness) -> None:
    """Java clients send only to temporary destinations that were announced to them."""
    bob, eve, ann = harness.come("bob"), harness.come("eve"), harness.come("ann")
    bob.subscribe("s", ORDERS, AckMode.AUTO)
    made = harness.temporary(ann)
    for _ in range(2):
        ann.send("question", ORDERS, reply_to=made)
    harness.turn()
    assert [message.destination for message in (each.message for each in bob.session.delivered)] == [
        Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.TempQueue"),
        ORDERS,
        ORDERS,
    ]
    bob.send("answer", made, persistent=False)
    assert bob.errors == []
    ann.vanish()
    harness.turn()
    assert heard(bob) == [(made.name, "began"), (made.name, "ended")]
    assert heard(eve) == []


def test_the_remembered_names_are_bounded_and_end(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tandemmq.broker.core.advisor, "KNOWN_MAX", 2)
    bob, ann = harness.come("bob"), harness.come("ann")
    bob.subscribe("s", ORDERS, AckMode.AUTO)
    for _ in range(4):
        ann.send("question", ORDERS, reply_to=harness.temporary(ann))
        harness.turn()
    advising = harness.engine._advising
    rights = advising._rights
    assert [len(each) for each in rights.known.values()] == [2]
    assert sum(map(len, rights.knowing.values())) == 2
    bob.vanish()
    ann.vanish()
    assert (rights.known, rights.knowing, rights.owners, advising._by_outlet) == ({}, {}, {}, {})


def test_everybody_hears_of_all_where_there_are_no_rights(harness: Harness) -> None:
    harness.access = OpenAccess(is_everywhere=True)
    harness.fail_over()
    bob, ann = harness.come("bob"), harness.come("ann")
    made = harness.temporary(ann)
    assert heard(bob) == [(made.name, "began")]


@pytest.mark.parametrize(
    ("topic", "who_may"),
    [
        ("Connection", {"root"}),
        ("Consumer.Queue.orders", {"root", "eve"}),
        ("Producer.Queue.orders", {"root", "eve"}),
        ("Consumer.Queue.sales", {"root"}),
        ("Producer.Topic.orders", {"root"}),
        ("Consumer.Queue.ID:ann-1:1", {"root"}),
        ("FULL.orders", {"root"}),
        ("NoConsumer.Queue.orders", {"root"}),
        ("Queue", {"root", "eve"}),
        ("TempTopic", {"root", "eve"}),
    ],
)
def test_advisories_about_connections_need_their_own_right(harness: Harness, topic: str, who_may: set[str]) -> None:
    for name in ("root", "eve"):
        client = harness.come(name, topic)
        kinds = [error.kind for error in client.session.errors]
        assert kinds == ([] if name in who_may else [ErrorKind.SECURITY]), name


def test_a_pattern_comes_to_no_more(harness: Harness) -> None:
    """No advisory now, nor when a subscription begins and gets the present state."""
    eve, root = harness.come("eve", ">"), harness.come("root", ">")
    ann = harness.come("ann")
    root.subscribe("s", SALES)
    ann.subscribe("s", ORDERS)
    late = harness.come("eve", ">")
    told = [{each.message.destination.name for each in client.session.delivered} for client in (eve, root, late)]
    prefix = "ActiveMQ.Advisory."
    assert told[0] == {f"{prefix}{name}" for name in ("Consumer.Queue.orders", "Queue", "MasterBroker")}
    assert told[1] >= told[0] | {f"{prefix}Connection", f"{prefix}Consumer.Queue.sales"}
    assert told[2] == told[0]
