"""An advisory reveals no more than its receiver may read, however it subscribes."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, AddProducer
from tandemmq.broker.core.policies import DestinationPolicy, Policies, PolicyEntry
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.topics.recovery import Recovery, RecoveryKind
from tandemmq.broker.protocols.openwire.codec import message_of
from tandemmq.broker.security.rights import Grant
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import ORDERS, PRICES, advisor
from tests.unit.broker.security.conftest import RuledAccess
from tests.unit.broker.security.test_connection_ids import Secured

pytestmark = pytest.mark.promise("advisories", "rights")

WATCHERS, SHOPS, BROKERS, ADMINS = (frozenset({each}) for each in ("watchers", "shops", "brokers", "admins"))
EVERYBODY = frozenset({"*"})
OWNERS = frozenset({"owners"})
KINDS = (DestinationKind.QUEUE, DestinationKind.TOPIC)
RIGHTS = [
    # As in the examples of ActiveMQ: every client may read all advisory topics.
    Grant(DestinationKind.TOPIC, "ActiveMQ.Advisory.>", EVERYBODY, EVERYBODY, EVERYBODY),
    Grant(DestinationKind.TOPIC, ">", OWNERS | BROKERS, OWNERS, ADMINS | OWNERS, BROKERS),
    Grant(DestinationKind.QUEUE, ">", OWNERS | BROKERS | WATCHERS, OWNERS | SHOPS, ADMINS | OWNERS, BROKERS),
]
GROUPS = {"alice": OWNERS, "mallory": frozenset[str](), "reader": WATCHERS, "shop": SHOPS, "other": BROKERS}
GROUPS["root"] = ADMINS
CARD = "card = '4111'"
SECRETS = {"selector": CARD, "client id": "till 7", "connection": "ID:alice", "queue": "orders", "topic": "prices"}


class Harness(Secured):
    access = RuledAccess(GROUPS, RIGHTS)


@pytest.fixture
def harness() -> Harness:
    keeps = DestinationPolicy(recovery=Recovery(RecoveryKind.FIXED_COUNT))
    policies = Policies((PolicyEntry(DestinationKind.TOPIC, ">", keeps),))
    return Harness(EngineSettings(), policies=policies, advisor=advisor())


def alice_works(harness: Harness) -> None:
    alice = harness.user("alice", "ID:alice-1", client_id="till 7")
    harness.turn()
    alice.subscribe("s", ORDERS, AckMode.AUTO, selector=CARD)
    alice.subscribe("d", PRICES, AckMode.AUTO, selector=CARD, durable_name="d")
    alice.handle(AddProducer("1:1", ORDERS))
    harness.turn()
    alice.unsubscribe("d", durable_name="d")
    harness.turn()


CONSUMERS = "ActiveMQ.Advisory.Consumer.Queue.orders"
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "all": ("ActiveMQ.Advisory.>", {}),
    "everything": (">,ActiveMQ.Advisory.Queue", {}),
    "a wildcard": ("ActiveMQ.*.Consumer.>", {}),
    "names": (f"{CONSUMERS},ActiveMQ.Advisory.Consumer.Topic.prices,ActiveMQ.Advisory.Queue", {}),
    "what connects": ("ActiveMQ.Advisory.Connection,ActiveMQ.Advisory.Producer.Queue.orders", {}),
    "a durable name": (CONSUMERS, {"durable_name": "w"}),
    "a durable pattern": ("ActiveMQ.Advisory.>", {"durable_name": "w"}),
}
#: What each user hears at most, by any way.
HEARS = {
    "mallory": set[str](),
    "shop": set[str](),
    "reader": {"queue", "connection"},
    "other": {"queue", "topic", "connection", "client id", "selector"},
    "root": {"queue", "topic", "connection", "client id", "selector"},
}


def told(client: Any) -> str:
    """Return the text of all fields of all delivered messages."""
    return "".join(
        repr(message_of(each.message.raw)) for each in client.session.delivered if each.message.raw is not None
    )


def come(harness: Harness, user: str, name: str, **more: Any) -> Any:
    client = harness.user(user, f"ID:w-{user}-{harness.clients}", client_id=f"w-{user}-{harness.clients}")
    harness.turn()
    client.subscribe("w", Destination(DestinationKind.TOPIC, name), AckMode.AUTO, **more)
    harness.turn()
    return client


@pytest.mark.parametrize("is_there_before", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_no_way_reveals_more_than_may_be_read(harness: Harness, way: str, is_there_before: bool) -> None:
    # proves: advisories-of-what-may-be-read, selectors-are-not-for-all
    name, more = WAYS[way]
    clients = {user: come(harness, user, name, **more) for user in HEARS} if is_there_before else {}
    alice_works(harness)
    clients = clients or {user: come(harness, user, name, **more) for user in HEARS}
    for user, most in HEARS.items():
        found = {what for what, secret in SECRETS.items() if secret in told(clients[user])}
        assert found <= most, user
        if way == "all":
            assert found >= most - (set() if is_there_before else {"topic"}), user


ALL_ADVISORIES = "ActiveMQ.Advisory.>"
OPEN = frozenset({"open"})


class Parted(Secured):
    """dora may read everything, mallory what is open, and olga a single word of that."""

    access = RuledAccess(
        {"alice": OWNERS, "dora": ADMINS, "mallory": OPEN | BROKERS, "olga": BROKERS},
        [
            Grant(DestinationKind.TOPIC, ALL_ADVISORIES, EVERYBODY, EVERYBODY, EVERYBODY),
            *(Grant(kind, ">", OWNERS | ADMINS, OWNERS, OWNERS | ADMINS) for kind in KINDS),
            *(Grant(kind, "*", OWNERS, OWNERS, BROKERS, BROKERS) for kind in KINDS),
            *(Grant(kind, "open.>", OPEN, frozenset(), frozenset(), BROKERS) for kind in KINDS),
        ],
    )


@pytest.mark.parametrize("what", ["producer", "consumer", "durable"])
@pytest.mark.parametrize("name", ["open.a,secret.b", "secret.b,open.a", "*.secret.>", "open.a,topic://secret.b"])
@pytest.mark.parametrize("is_there_before", [True, False])
def test_of_all_that_a_name_names_each_must_be_readable(name: str, what: str, is_there_before: bool) -> None:
    # proves: all-parts-may-be-read, a-pattern-may-be-read-as-a-whole
    harness = Parted(EngineSettings(), advisor=advisor())
    users = ("dora", "mallory", "olga")
    clients = {user: come(harness, user, ALL_ADVISORIES) for user in users} if is_there_before else {}
    alice = harness.user("alice", "ID:alice-1", client_id="till 7")
    harness.turn()
    queue, topic = (Destination(kind, name) for kind in KINDS)
    if what == "producer":
        alice.handle(AddProducer("1:1", queue))
    elif what == "consumer":
        alice.subscribe("s", topic if "topic:" in name else queue, AckMode.AUTO, selector=CARD)
    else:
        alice.subscribe("d", topic, AckMode.AUTO, durable_name="d")
        harness.turn()
        alice.unsubscribe("d", durable_name="d")
    harness.turn()
    clients = clients or {user: come(harness, user, ALL_ADVISORIES) for user in users}
    heard = {user for user, client in clients.items() if "secret" in told(client)}
    assert heard <= {"dora"}
    if is_there_before and not alice.session.errors:
        assert heard, "one who may read all of it hears of it"


def test_kept_messages_of_an_advisory_topic_are_not_for_all(harness: Harness) -> None:
    """A policy has topics keep their messages for retroactive consumers."""
    # proves: kept-advisories-are-not-for-all
    come(harness, "root", CONSUMERS)
    alice_works(harness)
    assert CARD in told(come(harness, "root", CONSUMERS, is_retroactive=True))
    assert CARD not in told(come(harness, "reader", CONSUMERS, is_retroactive=True))


def test_a_connection_is_its_own_users_and_admins(harness: Harness) -> None:
    clients = {user: come(harness, user, "ActiveMQ.Advisory.Connection") for user in HEARS}
    harness.user("shop", "ID:shop-2", client_id="the other")
    harness.turn()
    assert {user for user, client in clients.items() if "the other" in told(client)} == {"shop", "root"}
