"""``user_stored_bytes_max``: what one user may have stored, however it is sent, and what the broker does with it."""

# proves: ended-transaction-counts-no-more, open-transactions-count, repeated-messages-wait-for-room
# proves: stored-bytes-of-a-user, copies-count-for-the-sender

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.core.commands import (
    Ack,
    AckMode,
    AddDestination,
    Connect,
    ErrorKind,
    Move,
    Nack,
    RemoveDestination,
)
from tandemmq.broker.core.names import MQTT_RETAINED
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.store.operations import PrepareTransaction
from tandemmq.store.records.altered import altered
from tandemmq.store.records.commands import encode_prepare
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.tools.check import check
from tests.support.broker.engine_term import EngineTerm
from tests.support.prove import SEED, rounds
from tests.unit.broker.engine.conftest import DLQ, ORDERS, PRICES, XA, Client
from tests.unit.broker.engine.test_branches import unheard
from tests.unit.broker.security.test_connection_ids import Everybody, Secured

LIMIT = 4000
BODY = "x" * 1000
FIT = 3  # messages of that body
BOTH = Destination(DestinationKind.QUEUE, "orders,others")
OTHERS = Destination(DestinationKind.QUEUE, "others")
STATE = Destination(DestinationKind.QUEUE, "ActiveMQ.MQTT.Session.ann")
TEMPORARY = Destination(DestinationKind.TEMP_QUEUE, "ID:ann:1:1")


@pytest.fixture
def harness() -> Secured:
    return Secured(EngineSettings(user_stored_bytes_max=LIMIT))


def used(harness: Any, user: str = "ann") -> int:
    return int(harness.engine.stored.used(user))


def stored(harness: Any, user: str = "ann") -> int:
    """Return the bytes that the store holds for a user, by a count of its content."""
    return int(harness.store.user_balance(user) + harness.store.taken[user])


def check_counts(harness: Any, *users: str) -> None:
    """No message is in progress: the count equals the bytes in the store."""
    harness.turn()
    for user in users:
        assert used(harness, user) == stored(harness, user)


def is_refused(client: Any, user: str = "ann") -> bool:
    for error in client.session.errors[:1]:
        assert (error.kind, user in error.message) == (ErrorKind.RESOURCE, True)
        assert f"user_stored_bytes_max is {LIMIT}" in error.detail
    return bool(client.session.errors)


def durable(client: Any, name: str = "d", topic: Destination = PRICES) -> Any:
    return client.subscribe(name, topic, AckMode.INDIVIDUAL, durable_name=name)


def plain(client: Any) -> None:
    client.send(BODY).turn()


def with_receipt(client: Any) -> None:
    client.send(BODY, receipt="r").turn()


def to_several(client: Any) -> None:
    client.send(BODY[:500], BOTH).turn()


def to_topic(client: Any) -> None:
    client.send(BODY, PRICES).turn()


def in_transaction(client: Any) -> None:
    client.begin().send(BODY, transaction="t")
    client.commit().turn()


def scheduled(client: Any) -> None:
    client.send(BODY[:800], persistent=False, properties={"AMQ_SCHEDULED_DELAY": 60_000}).turn()


WAYS: dict[str, Callable[[Any], None]] = {
    "plain": plain,
    "with a receipt": with_receipt,
    "to several queues": to_several,
    "to a topic with durable subscriptions": to_topic,
    "in a transaction": in_transaction,
    "scheduled": scheduled,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_user_stores_no_more_than_its_limit(harness: Secured, way: str) -> None:
    watcher = harness.user("eve", "ID:eve:1", client_id="eve")
    harness.turn()
    durable(durable(watcher, "one"), "two")
    ann, bob = harness.user("ann", "ID:ann:1"), harness.user("bob", "ID:bob:1")
    harness.turn()
    for _ in range(FIT):
        WAYS[way](ann)
    assert not is_refused(ann)
    assert LIMIT - len(BODY) < used(harness)
    WAYS[way](ann)
    assert is_refused(ann)
    check_counts(harness, "ann")
    WAYS[way](bob)
    assert bob.session.errors == []
    harness.fail_over()
    again = harness.user("ann", "ID:ann:1")
    harness.turn()
    WAYS[way](again)
    assert is_refused(again), "the next master knows it"


@pytest.mark.parametrize(
    ("destination", "fields"),
    [(ORDERS, {"persistent": False}), (PRICES, {}), (TEMPORARY, {})],
    ids=["not persistent", "a topic that nobody keeps", "a temporary queue"],
)
def test_messages_that_are_not_stored_are_not_refused(
    harness: Secured, destination: Destination, fields: dict[str, Any]
) -> None:
    ann = harness.user("ann", "ID:ann:1")
    harness.turn()
    ann.store(*[BODY] * FIT)
    if destination is TEMPORARY:
        ann.handle(AddDestination(TEMPORARY))
    ann.store(BODY, destination=destination, **fields)
    assert ann.session.errors == []
    ann.store(BODY)
    assert is_refused(ann)


def acked(harness: Secured, ann: Any) -> None:
    consumer = harness.user("bob", "ID:bob:1").subscribe()
    harness.turn()
    consumer.ack(consumer.bodies[0])


def deleted(harness: Secured, ann: Any) -> None:
    ann.handle(RemoveDestination(ORDERS))


def expired(harness: Secured, ann: Any) -> None:
    harness.wait(3)
    harness.user("bob", "ID:bob:1").subscribe()


@pytest.mark.parametrize("gone", [acked, deleted, expired])
def test_removed_messages_do_not_count(harness: Secured, gone: Callable[[Secured, Any], None]) -> None:
    """Dead letters of what expired count for the user who sent it."""
    ann = harness.user("ann", "ID:ann:1")
    harness.turn()
    ann.store(*[BODY] * FIT, expiration=harness.now + 1500 if gone is expired else 0)
    gone(harness, ann)
    harness.turn()
    check_counts(harness, "ann", "bob")
    assert used(harness, "bob") == 0
    ann.store(BODY)
    assert is_refused(ann) == (gone is expired)


def dead_letter(harness: Secured, consumer: Any) -> Destination:
    consumer.nack(consumer.bodies[0])
    return DLQ


def moved(harness: Secured, consumer: Any) -> Destination:
    found = consumer.last(consumer.bodies[0])
    consumer.handle(Move("s", found.tag, altered(found.message, destination=OTHERS)))
    return OTHERS


@pytest.mark.parametrize("after_failover", [False, True])
@pytest.mark.parametrize("way", [dead_letter, moved])
def test_stored_messages_that_the_broker_moves_count_for_their_sender(
    harness: Secured, way: Callable[[Secured, Any], Destination], after_failover: bool
) -> None:
    ann = harness.user("ann", "ID:ann:1")
    harness.turn()
    ann.store(*[BODY] * FIT)
    if after_failover:
        harness.settings = replace(harness.settings, user_stored_bytes_max=LIMIT // 2)
        harness.fail_over()
    before = used(harness)
    consumer = harness.user("bob", "ID:bob:1").subscribe()
    harness.turn()
    destination = way(harness, consumer)
    harness.turn()
    assert harness.figures(destination.name)["messages"] == 1
    assert before <= used(harness) < before + 500
    assert used(harness, "bob") == 0
    check_counts(harness, "ann", "bob")


def test_a_repeated_message_waits_while_its_user_has_no_room(harness: Secured) -> None:
    ann = harness.user("ann", "ID:ann:1")
    harness.turn()
    schedule = {"AMQ_SCHEDULED_DELAY": 1000, "AMQ_SCHEDULED_PERIOD": 1000, "AMQ_SCHEDULED_REPEAT": 5}
    ann.store(BODY, properties=schedule)
    harness.wait(30)
    assert harness.figures()["messages"] == 2, "and what waits for its time is the third"
    consumer = harness.user("bob", "ID:bob:1").subscribe()
    for _ in range(5):
        harness.turn()
        for body in consumer.session.delivered:
            consumer.ack(body.body)
        harness.wait(130)
    assert len(consumer.bodies) == 6, "all of them come"
    check_counts(harness, "ann")


@pytest.mark.parametrize("end", ["commit", "abort", "vanish"])
def test_messages_sent_in_a_transaction_count_until_its_end(harness: Secured, end: str) -> None:
    ann, beside = harness.user("ann", "ID:ann:1"), harness.user("ann", "ID:ann:2")
    harness.turn()
    ann.begin()
    for _ in range(FIT):
        ann.send(BODY, transaction="t")
    beside.store(BODY[:-1])
    assert beside.session.errors == [], "the bodies alone have room for this one"
    beside.store(BODY)
    assert is_refused(beside)
    getattr(ann, end)()
    check_counts(harness, "ann")
    beside.session.errors.clear()
    beside.store(BODY)
    assert is_refused(beside) == (end == "commit")


@pytest.mark.parametrize("fields", [{}, {"persistent": False, "properties": {"AMQ_SCHEDULED_DELAY": 60_000}}])
def test_a_refusal_dooms_its_transaction(harness: Secured, fields: dict[str, Any]) -> None:
    ann = harness.user("ann", "ID:ann:1")
    harness.turn()
    ann.begin()
    for _ in range(FIT + 2):
        ann.send(BODY, transaction="t", **fields)
    assert "can only be aborted: Messages of user ann take" in ann.errors[0]
    ann.commit(receipt="c").turn()
    assert ann.receipts == []
    assert used(harness) == 0


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_branch_counts_over_a_failover(harness: Secured, is_commit: bool) -> None:
    ann = harness.user("ann", "ID:ann:1")
    harness.turn()
    ann.begin_branch()
    for _ in range(FIT):
        ann.send(BODY, transaction=XA.key)
    ann.prepare().turn()
    check_counts(harness, "ann")
    assert used(harness) > FIT * len(BODY)
    harness.fail_over()
    ann = harness.user("ann", "ID:ann:1")
    harness.turn()
    ann.store(BODY)
    assert is_refused(ann)
    (ann.commit_branch if is_commit else ann.abort_branch)()
    check_counts(harness, "ann")
    assert bool(used(harness)) == is_commit


def test_a_branch_whose_prepare_is_refused_counts_again(harness: Secured) -> None:
    ann = harness.user("ann", "ID:ann:1")
    harness.turn()
    ann.begin_branch()
    for _ in range(FIT):
        ann.send(BODY, transaction=XA.key)
    before = used(harness)
    unheard(harness, PrepareTransaction(XA, (), encode_prepare(XA)))
    ann.prepare().turn()
    assert used(harness) == before
    ann.abort_branch().turn()
    assert used(harness) == 0


def test_a_cron_entry_begins_no_run_while_its_user_has_no_room(harness: Secured) -> None:
    """A run waits in the store, although what it sends is not stored."""
    ann = harness.user("ann", "ID:ann:1")
    harness.turn()
    run = {"AMQ_SCHEDULED_DELAY": 3_600_000, "AMQ_SCHEDULED_PERIOD": 3_600_000, "AMQ_SCHEDULED_REPEAT": 5}
    ann.store(BODY, persistent=False, properties={"AMQ_SCHEDULED_CRON": "* * * * *", **run})
    for _ in range(FIT + 3):
        harness.wait(61)
    assert LIMIT - 2 * len(BODY) < used(harness) < LIMIT + len(BODY)
    check_counts(harness, "ann")


def by_mqtt(harness: Secured) -> Any:
    client: Any = Client(harness, harness.connection_id())
    return client.handle(Connect("ann", "ann", state=STATE))


def away(harness: Secured) -> Any:
    """The broker acts for it."""
    known = harness.user("ann", "ID:ann:2")
    harness.turn()
    principal = known.client.principal
    return Client(harness, harness.connection_id(), lambda it: harness.engine.opened_for(it, principal, STATE))


@pytest.mark.parametrize(("client", "limits"), [(by_mqtt, 1), (away, 2)])
def test_a_session_without_room_keeps_its_state_and_may_end_what_it_retained(
    harness: Secured, client: Callable[[Secured], Any], limits: int
) -> None:
    """Wills may have as much again; the next one waits for room."""
    ann = harness.user("ann", "ID:ann:1")
    harness.turn()
    while not is_refused(ann):
        ann.store(BODY[:1])
    session = client(harness)
    before = used(harness)
    assert before > LIMIT
    session.turn().send("a record", STATE).turn()
    assert used(harness) == before, "it counts for no user"
    session.send("", MQTT_RETAINED).turn()
    assert session.session.errors == []
    for _ in range(FIT * 4):
        session.send(BODY[:500]).turn()
    assert is_refused(session)
    assert -500 < used(harness) - limits * LIMIT < 500


def test_the_count_equals_the_bytes_in_the_store(harness: Secured) -> None:
    """In any order, by two users, with failovers. The store in memory, which counts again, is the quick model."""
    dice = random.Random(SEED)
    clients: list[Any] = []

    def begin() -> None:
        clients.extend(harness.user(user, f"ID:{user}:{harness.clients}") for user in ("ann", "bob"))
        harness.turn()
        for each in clients:
            each.subscribe(prefetch=3)
            each.begin()

    harness.settings = replace(harness.settings, user_stored_bytes_max=20_000)
    harness.begin_term()
    begin()
    for _ in range(rounds(300, 3000)):
        client = dice.choice(clients)
        body = "y" * dice.randrange(2000)
        what = dice.randrange(10)
        if what < 3:
            client.send(body, dice.choice((ORDERS, BOTH, PRICES)))
        elif what < 5:
            client.send(body, transaction="t")
        elif what == 5:
            getattr(client, dice.choice(("commit", "abort")))()
            client.begin()
        elif what < 8 and client.session.delivered:
            delivered = client.session.delivered.pop()
            client.handle((Ack if what == 6 else Nack)(delivered.subscription, delivered.tag))
        elif what == 8 and dice.random() < 0.2:
            client.handle(RemoveDestination(dice.choice((ORDERS, DLQ))))
        elif what == 9 and dice.random() < 0.2:
            harness.fail_over()
            clients.clear()
            begin()
        if dice.random() < 0.3:
            harness.turn()
    for each in clients:
        each.abort()
    check_counts(harness, "ann", "bob")
    assert used(harness)


# ---- on the real store


class LimitedTerm(EngineTerm):
    """A term with users."""

    engine_settings = EngineSettings(user_stored_bytes_max=LIMIT)
    access = Everybody()

    def user(self, name: str) -> Any:
        client: Any = Client(self, f"ID:{name}-{self.store.epoch}")  # type: ignore[arg-type]
        client.handle(Connect(None, name))
        return client


def test_another_broker_goes_on_counting(tmp_path: Path) -> None:
    """The broker ends as by kill -9, and its successor counts from the journal."""
    directory = str(tmp_path / "data")
    term = LimitedTerm(directory)
    ann = term.user("ann")
    for number in range(FIT + 1):
        ann.send(BODY, receipt=str(number))
        if number < FIT:
            term.wait(lambda number=number: str(number) in ann.receipts)
    assert is_refused(ann)
    term.crash()
    for broker in "bc":
        term = successor(directory, broker)
        if broker == "b":
            term.crash()
    bob = term.user("bob").subscribe()
    term.wait(lambda: len(bob.bodies) == FIT)
    bob.ack(BODY, receipt="acked")
    term.wait(lambda: "acked" in bob.receipts)
    ann = term.user("ann").send(BODY, receipt="r")
    term.wait(lambda: "r" in ann.receipts)
    term.crash()
    assert not check(directory).problems


def successor(directory: str, broker: str) -> LimitedTerm:
    term = LimitedTerm(directory, broker)
    assert is_refused(term.user("ann").send(BODY))
    return term
