"""Subscriptions that consumers of any connections share: each message goes to one of them, and none is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.access import Operation, refused_operation
from tandemmq.broker.core.commands import AckMode, ErrorKind
from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES
from tandemmq.broker.core.names import MQTT_SHARES
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import at_once
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.broker.engine.inventory import Query
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import PRICES
from tests.unit.broker.security.test_connection_ids import Everybody, Secured

pytestmark = pytest.mark.promise("mqtt-shares")

TOPIC = DestinationKind.TOPIC
OTHER = Destination(TOPIC, "other.one")
ALL = Destination(TOPIC, ">")


def join(
    client: Any, name: str | None = "d", destination: Destination = PRICES, group: str = "g", **options: Any
) -> None:
    client.subscribe("s", destination, share=group, durable_name=name, receipt="joined", **options).turn()


def send(harness: Any, *bodies: str, destination: Destination = PRICES, persistent: bool = True) -> None:
    harness.client().store(*bodies, destination=destination, persistent=persistent).vanish()


def shares(harness: Any) -> list[tuple[str, str, int]]:
    """Name, topic and messages of each."""
    rows = at_once(harness.engine.inventory.subscriptions(Query(limit=100))).rows
    return [(row["name"], row["topic"], row["messages"]) for row in rows if row["client_id"] == CLIENT_ID]


def records(harness: Any) -> list[tuple[str | None, str]]:
    """Return the records in the store other than messages: the user of each subscription, and the topic."""
    return sorted((each.client_id or "", each.destination.name) for each in harness.store.owners())


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("name", [None, "d"])
def test_each_message_goes_to_one_of_those_who_share(harness: Any, persistent: bool, name: str | None) -> None:
    one, two, alone = harness.client("one"), harness.client("two"), harness.client()
    join(one, name)
    join(two, name)
    alone.subscribe("s", PRICES, AckMode.AUTO).turn()
    assert [each.receipts for each in (one, two)] == [["joined"]] * 2
    send(harness, *"abcdef", persistent=persistent)
    assert sorted((one.bodies, two.bodies)) == [["a", "c", "e"], ["b", "d", "f"]]
    assert alone.bodies == list("abcdef")


@pytest.mark.parametrize(("destination", "later"), [(PRICES, PRICES), (ALL, OTHER)])
def test_any_number_of_consumers_share_except_those_that_left(
    harness: Any, destination: Destination, later: Destination
) -> None:
    clients = [harness.client(str(number)) for number in range(4)]
    for each in clients:
        join(each, destination=destination)
    send(harness, *"abcd")
    assert sorted(each.bodies for each in clients) == [["a"], ["b"], ["c"], ["d"]]
    clients[0].ack(clients[0].bodies[0])
    clients[0].unsubscribe("s")
    send(harness, *"efg", destination=later)
    assert sorted(each.bodies[1:] for each in clients) == [[], ["e"], ["f"], ["g"]]


def test_groups_and_filters_are_apart_also_where_their_names_look_alike(harness: Any) -> None:
    other = Destination(TOPIC, "c")
    places = [(PRICES, "g"), (PRICES, "h"), (ALL, "g"), (Destination(TOPIC, "b:c"), "a"), (other, "a:b")]
    clients = [harness.client(str(number)) for number in range(len(places))]
    for client, (destination, group) in zip(clients, places, strict=True):
        join(client, destination=destination, group=group)
    send(harness, "a")
    send(harness, "x", destination=other)
    assert [each.bodies for each in clients] == [["a"], ["a"], ["a", "x"], [], ["x"]]


def test_a_member_without_room_is_skipped(harness: Any) -> None:
    one, two = harness.client("one"), harness.client("two")
    join(one, prefetch=1)
    join(two, prefetch=2)
    send(harness, *"abcd")
    assert (one.bodies, two.bodies) == (["a"], ["b", "c"])
    one.ack("a")
    assert one.bodies == ["a", "d"]


@pytest.mark.parametrize("name", [None, "d"])
@pytest.mark.parametrize("persistent", [True, False])
def test_the_messages_of_a_leaving_member_go_to_another_in_order(
    harness: Any, name: str | None, persistent: bool
) -> None:
    one, two = harness.client("one"), harness.client("two")
    join(one, name)
    send(harness, *"abc", persistent=persistent)
    one.ack("b")
    join(two, name, prefetch=10)
    send(harness, "d", persistent=persistent)
    one.vanish()
    send(harness, "e", persistent=persistent)
    assert two.bodies == ["d", "a", "c", "e"]
    assert [each.redelivered for each in two.session.delivered] == [False, True, True, False]


def test_messages_that_are_not_persistent_are_dropped_in_time_and_delay_nobody(make_harness: Any) -> None:
    harness = make_harness(topic_pending_bytes=3_000)
    one, sender = harness.client("one"), harness.client()
    join(one, prefetch=1)
    for number in range(20):
        sender.send(str(number) * 100, PRICES, persistent=False, receipt=str(number))
    sender.send("stored", PRICES, receipt="stored").turn()
    assert sender.receipts == [*map(str, range(20)), "stored"]
    waiting = shares(harness)[0][2]
    assert 1 < waiting < 20
    assert harness.counts["topic_messages_dropped_total"] == 20 + 1 - waiting
    while one.bodies[-1] != "stored":
        one.ack(one.bodies[-1])
    assert len(one.bodies) == waiting, "the others are the oldest, in their order"
    assert one.bodies == [*(str(number) * 100 for number in range(waiting - 1)), "stored"]


def test_a_shared_subscription_that_takes_nothing_does_not_fill_the_memory(make_harness: Any) -> None:
    harness = make_harness(memory_limit=30_000)
    one, sender = harness.client("one"), harness.client()
    join(one, prefetch=1)
    for number in range(50):
        sender.send("x" * 1_000, PRICES, persistent=False, receipt=str(number))
    harness.turn()
    assert sender.receipts == [str(number) for number in range(50)]
    assert harness.engine.memory.used <= harness.engine.memory.limit + ENTRY_OVERHEAD_BYTES


def test_it_ends_when_its_last_holder_unsubscribes(harness: Any) -> None:
    """For a restart see test_durable_restart."""
    for name in ("one", "two"):
        client = harness.client(name)
        join(client)
        client.vanish()
    send(harness, "a")
    one = harness.client("one").unsubscribe(None, durable_name="d", receipt="r").turn()
    assert (one.receipts, shares(harness)) == (["r"], [("g/prices", "prices", 1)]), "two holds it, who is away"
    two = harness.client("two")
    join(two)
    assert two.bodies == ["a"]
    two.unsubscribe("s", durable_name="d", receipt="r").turn()
    assert (two.receipts, shares(harness), records(harness)) == (["joined", "r"], [], [])
    assert harness.stored() == 0


@pytest.mark.parametrize("is_held", [False, True])
def test_one_that_nobody_holds_any_more_ends_with_its_last_user(harness: Any, is_held: bool) -> None:
    one, two = harness.client("one"), harness.client("two")
    join(one, "d" if is_held else None)
    join(two, None)
    one.unsubscribe("s", durable_name="d" if is_held else None).turn()
    send(harness, "a")
    assert two.bodies == ["a"]
    two.vanish().turn()
    assert (shares(harness), records(harness), harness.stored()) == ([], [], 0)
    three = harness.client()
    join(three, None)
    send(harness, "b")
    assert three.bodies == ["b"]


def test_a_returning_member_is_no_second_holder(harness: Any) -> None:
    for _ in range(2):
        one = harness.client("one")
        join(one)
        assert one.receipts == ["joined"]
        one.vanish()
    assert records(harness) == [(CLIENT_ID, "prices"), ("one", MQTT_SHARES.name)]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"group": "a/b"}, ErrorKind.DESTINATION), ({"group": ""}, ErrorKind.DESTINATION),
        ({"destination": Destination(TOPIC, "a,b")}, ErrorKind.DESTINATION),
        ({"destination": Destination(DestinationKind.QUEUE, "a")}, ErrorKind.DESTINATION),
        ({"selector": "a = 1"}, ErrorKind.SELECTOR), ({"no_local": True}, ErrorKind.SELECTOR),
        ({"group": "g" * 600}, ErrorKind.DESTINATION),
    ],
)  # fmt: skip
def test_an_invalid_share_is_refused(harness: Any, options: dict[str, Any], kind: ErrorKind) -> None:
    client = harness.client("one")
    join(client, **options)
    assert [error.kind for error in client.session.errors] == [kind]
    assert records(harness) == []


def test_a_name_is_of_one_durable_subscription(harness: Any) -> None:
    client = harness.client("one")
    join(client)
    client.subscribe("t", PRICES, durable_name="d").subscribe("u", PRICES, share="h", durable_name="d")
    client.subscribe("v", PRICES, durable_name="e")
    client.subscribe("w", PRICES, share="g", durable_name="e").turn()
    assert [error.kind for error in client.session.errors] == [ErrorKind.STATE] * 3


def test_no_client_is_called_as_they_are_kept(harness: Any) -> None:
    client = harness.client(CLIENT_ID)
    assert [error.kind for error in client.session.errors] == [ErrorKind.CLIENT_ID]
    assert client.is_closed


def test_the_topic_of_the_records_cannot_be_read_or_written(harness: Any) -> None:
    client = harness.client("one").send("a", MQTT_SHARES).subscribe("s", MQTT_SHARES)
    client.subscribe("t", MQTT_SHARES, durable_name="d")
    join(client, destination=MQTT_SHARES)
    assert [error.kind for error in client.session.errors] == [ErrorKind.SECURITY] * 4


class Ruled(Everybody):
    """Only ann may read topic prices."""

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        if operation is Operation.READ and destination == PRICES and principal.name != "ann":
            raise refused_operation(principal, operation, destination)


class Harness(Secured):
    access = Ruled()

    def come(self, name: str, client_id: str) -> Any:
        return self.user(name, None, client_id=client_id)


@pytest.fixture
def secured() -> Harness:
    return Harness(EngineSettings())


def test_a_client_without_the_right_to_read_cannot_join(secured: Harness) -> None:
    ann, bob = secured.come("ann", "one"), secured.come("bob", "two")
    join(ann)
    join(bob)
    assert [error.kind for error in bob.session.errors] == [ErrorKind.SECURITY]
    secured.come("writer", "w").send("a", PRICES).turn()
    ann.vanish().turn()
    assert (ann.bodies, bob.bodies) == (["a"], [])


def test_of_a_pattern_each_is_given_what_he_may_read(secured: Harness) -> None:
    ann, bob, writer = secured.come("ann", "one"), secured.come("bob", "two"), secured.come("writer", "w")
    for each in (bob, ann):
        join(each, destination=ALL)
    for body in "abcd":
        writer.send(body, PRICES).send(f"{body}{body}", OTHER)
    secured.turn()
    assert set("abcd") <= set(ann.bodies)
    assert set(bob.bodies) < {"aa", "bb", "cc", "dd"}
    assert bob.bodies
    ann.vanish().turn()
    assert set(bob.bodies) == {"aa", "bb", "cc", "dd"}


def test_a_later_member_gets_the_messages_that_it_may_read(secured: Harness) -> None:
    ann, bob, writer = secured.come("ann", "one"), secured.come("bob", "two"), secured.come("writer", "w")
    join(ann, destination=ALL, prefetch=1)
    for destination in (PRICES, OTHER):
        for body in "ab":
            writer.send(f"{body} of {destination.name}", destination)
    secured.turn()
    join(bob, destination=ALL)
    assert len(ann.bodies) == 1
    assert bob.bodies
    assert not [body for body in bob.bodies if body.endswith("of prices")]


def test_topics_that_nobody_of_them_may_read_are_not_gathered(secured: Harness) -> None:
    join(secured.come("bob", "two"), destination=ALL)
    secured.come("writer", "w").send("a", PRICES).turn()
    assert (shares(secured), secured.stored()) == ([], 0)


def test_another_user_does_not_come_with_its_client_id(secured: Harness) -> None:
    ann = secured.come("ann", "one")
    join(ann)
    ann.vanish().turn()
    secured.fail_over()
    bob = secured.come("bob", "one")
    assert [error.kind for error in bob.session.errors] == [ErrorKind.SECURITY]
    assert bob.is_closed
    assert shares(secured) == [("g/prices", "prices", 0)]
