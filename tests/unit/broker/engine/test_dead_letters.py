"""NACK, redelivery limits, expiry, and dead letters."""

# proves: copies-have-letters-of-their-own

from __future__ import annotations

import pytest

from tandemmq.broker.core.commands import Ack, AckMode, Nack, Send, Undeliverable
from tandemmq.broker.core.policies import DeadLetterKind, DeadLetterStrategy, DestinationPolicy
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tests.unit.broker.engine.conftest import DLQ, PRICES

pytestmark = pytest.mark.promise("dead-letter-with-cause", "redelivery-is-bounded")

TOPIC_DLQ = Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ.Topic.prices")


def test_a_refused_message_is_a_dead_letter_at_once(harness):
    client, dlq_client = harness.consumer(ack=AckMode.INDIVIDUAL), harness.client()
    client.store(*"abc").nack("b", receipt="r")
    assert client.receipts == []
    harness.turn()
    dlq_client.subscribe("d", DLQ)
    assert (client.receipts, harness.figures()["unacknowledged"]) == (["r"], 2)
    letter = dlq_client.session.delivered[0].message
    assert (letter.body, letter.original_destination.name) == (b"b", "orders")
    assert letter.message_id == client.last("b").message.message_id
    assert letter.properties["dlqDeliveryFailureCause"] == "refused by NACK after 0 redeliveries"


def test_of_two_trials_at_once_each_counts_dead_letters_until_its_own_end(harness):
    client = harness.consumer(ack=AckMode.INDIVIDUAL)
    with harness.engine.watching_dead_letters() as first:
        with harness.engine.watching_dead_letters():
            pass
        client.store("a").nack("a").turn()
    assert list(first.values()) == [1]


@pytest.mark.parametrize("stomp_nack", ["dlq", "requeue"])
def test_with_the_mode_client_all_up_to_it_are_refused(make_harness, stomp_nack):
    harness = make_harness(stomp_nack=stomp_nack)
    client, dlq_client = harness.consumer(ack=AckMode.CLIENT), harness.client()
    for body in "abc":
        client.send(body, persistent=body != "b").turn()
    client.nack("b", receipt="r")
    assert client.receipts == ([] if stomp_nack == "dlq" else ["r"])
    harness.turn()
    dlq_client.subscribe("d", DLQ)
    assert client.receipts == ["r"]
    assert client.bodies == ["a", "b", "c"] if stomp_nack == "dlq" else ["a", "b", "c", "a", "b"]
    assert dlq_client.bodies == (["a"] if stomp_nack == "dlq" else [])
    assert harness.figures()["unacknowledged"] == (1 if stomp_nack == "dlq" else 3)


def test_dead_letters_that_are_refused_stay_with_who_did(harness):
    client, dlq_client = harness.consumer(ack=AckMode.CLIENT), harness.client()
    client.store(*"abc").nack("c").turn()
    dlq_client.subscribe("d", DLQ, ack=AckMode.CLIENT)
    assert dlq_client.bodies == ["a", "b", "c"], "in their order"
    dlq_client.handle(Nack("d", 2, None, "r"))
    assert (dlq_client.receipts, list(dlq_client.client.subscriptions["d"].unacked)) == (["r"], [1, 2, 3])
    dlq_client.handle(Ack("d", 3, None, "a")).turn()
    assert dlq_client.receipts == ["r", "a"]


def test_with_requeue_a_refused_message_comes_again_until_the_limit(make_harness):
    harness = make_harness(stomp_nack="requeue", maximum_redeliveries=2)
    client, dlq_client = harness.consumer(prefetch=1), harness.consumer("d", DLQ)
    client.send("a").store("b")
    for _ in range(3):
        client.nack("a").turn()
    assert client.bodies == ["a", "a", "a", "b"]
    assert [each.redelivered for each in client.session.delivered] == [False, True, True, False]
    assert dlq_client.bodies == ["a"]


@pytest.mark.parametrize("is_audited", [True, False])
def test_two_durable_subscriptions_make_one_dead_letter_unless_configured(make_harness, is_audited):
    harness = make_harness(DestinationPolicy(dead_letter=DeadLetterStrategy(enable_audit=is_audited)))
    one, two, dlq_client = harness.client("one"), harness.client("two"), harness.client()
    for each in (one, two):
        each.subscribe("s", PRICES, durable_name="d")
    one.store(*"ab", destination=PRICES).nack("a").nack("b")
    two.nack("b").nack("a", receipt="r")
    dlq_client.subscribe("d", TOPIC_DLQ).turn()
    letters = [each.message for each in dlq_client.session.delivered]
    assert [letter.body for letter in letters] == ([b"a", b"b"] if is_audited else [b"a", b"b", b"b", b"a"])
    assert len({letter.message_id for letter in letters}) == len(letters)
    assert (two.receipts, harness.stored()) == (["r"], len(letters))


def test_a_retried_message_can_be_a_dead_letter_again(harness):
    one, dlq_client = harness.consumer("s", PRICES, durable_name="d", client_id="one"), harness.client()
    one.handle(Send(Message(PRICES, "ID:kept:1:1:1", b"a", persistent=True))).turn().nack("a").turn()
    harness.fail_over()
    one = harness.consumer("s", PRICES, durable_name="d", client_id="one")
    one.handle(Send(Message(PRICES, "ID:other:1:1:1", b"a", persistent=True))).turn().nack("a")
    dlq_client = harness.consumer("d", TOPIC_DLQ).turn()
    assert dlq_client.bodies == ["a", "a"]


def test_each_durable_subscription_may_have_dead_letters_of_its_own(make_harness):
    strategy = DeadLetterStrategy(destination_per_durable_subscriber=True, topic_suffix=".dead")
    harness = make_harness(DestinationPolicy(dead_letter=strategy))
    one, two, dlq_client = harness.client("one"), harness.client("two"), harness.client()
    for each in (one, two):
        each.subscribe("s", PRICES, durable_name="d")
    one.store("a", destination=PRICES).nack("a")
    two.nack("a")
    for client_id in ("one", "two"):
        name = f"ActiveMQ.DLQ.Topic.prices.{client_id}:d.dead"
        dlq_client.subscribe(client_id, Destination(DestinationKind.QUEUE, name))
    harness.turn()
    assert [each.subscription for each in dlq_client.session.delivered] == ["one", "two"]


@pytest.mark.parametrize("is_persistent", [True, False])
def test_dead_letters_may_be_sent_to_a_topic(make_harness, is_persistent):
    strategy = DeadLetterStrategy(use_queue_for_queue_messages=False, process_non_persistent=True)
    harness = make_harness(DestinationPolicy(dead_letter=strategy))
    client, plain, keeper = harness.client(), harness.client(), harness.client("keeper")
    dead = Destination(DestinationKind.TOPIC, DLQ.name)
    client.subscribe(ack=AckMode.INDIVIDUAL)
    plain.subscribe("p", dead, AckMode.AUTO)
    client.send("a", persistent=is_persistent).turn().nack("a", receipt="first")
    assert plain.bodies == [] if is_persistent else ["a"]
    harness.turn()
    assert (plain.bodies, client.receipts) == (["a"], ["first"])
    keeper.subscribe("k", dead, durable_name="d")
    client.send("b", persistent=is_persistent).turn().nack("b", receipt="second").turn()
    assert (plain.bodies, keeper.bodies, client.receipts) == (["a", "b"], ["b"], ["first", "second"])
    assert harness.stored() == 1
    keeper.ack("b").turn()
    assert harness.stored() == 0


def test_a_dead_letter_queue_by_another_name_has_no_dead_letters(make_harness):
    strategy = DeadLetterStrategy(queue_prefix="DEAD.", expiration=1_000)
    harness = make_harness(DestinationPolicy(dead_letter=strategy))
    harness.client().send("a", expiration=2_000).turn()
    harness.tick(3_000)
    assert harness.figures("DEAD.orders")["messages"] == 1
    harness.wait(3)
    assert harness.stored() == 0


def test_an_expired_message_is_a_dead_letter_when_it_would_be_delivered(harness):
    client, dlq_client = harness.client(), harness.client()
    client.send("a", expiration=2_000).send("b", expiration=9_000)
    client.send("c", expiration=2_000, persistent=False).turn()
    harness.now = 2_000
    client.subscribe().turn()
    dlq_client.subscribe("d", DLQ)
    assert client.bodies == ["b"]
    letter = dlq_client.session.delivered[0].message
    assert (letter.body, letter.expiration, letter.properties["originalExpiration"]) == (b"a", 0, 2_000)
    assert harness.counts["expired_total"] == 2


def test_a_tick_looks_at_a_bounded_number_of_messages(make_harness):
    harness = make_harness(expiry_entries_per_tick=3)
    client = harness.client()
    for name in ("one", "two"):
        client.send_all("abc", Destination(DestinationKind.QUEUE, name), expiration=2_000)
    harness.turn()
    harness.tick(3_000)
    assert harness.counts["expired_total"] == 3
    harness.tick(3_000)
    assert harness.counts["expired_total"] == 6


def test_a_topic_subscriber_does_not_get_what_expired_while_it_waited(harness):
    client = harness.consumer("s", PRICES, AckMode.AUTO)
    client.has_space = False
    client.send("a", PRICES, expiration=2_000).send("b", PRICES)
    harness.now = 3_000
    client.regain_space()
    assert client.bodies == ["b"]


@pytest.mark.parametrize("ack", [AckMode.AUTO, AckMode.INDIVIDUAL])
def test_an_undeliverable_message_is_a_dead_letter_and_the_next_is_delivered(harness, ack):
    client, dlq_client = harness.client(), harness.client()
    deliver = client.session.deliver

    def refuse(subscription, tag, message, redeliveries, mode):
        if message.body == b"bad":
            raise Undeliverable("a text body claims 5 bytes and has 2")
        return deliver(subscription, tag, message, redeliveries, mode)

    client.session.deliver = refuse
    client.subscribe(ack=ack, prefetch=1).store("bad", "good")
    dlq_client.subscribe("d", DLQ).turn()
    assert client.bodies == ["good"]
    assert client.is_connected
    assert dlq_client.bodies == ["bad"]
    cause = dlq_client.session.delivered[0].message.properties["dlqDeliveryFailureCause"]
    assert "a text body claims 5 bytes and has 2" in cause
    assert harness.figures()["messages"] == (0 if ack is AckMode.AUTO else 1)


def test_letters_of_two_copies_in_a_queue_that_all_share_have_ids_of_their_own(make_harness):
    """The store identifies a message of a queue by its id. With the same id, the second letter would be a duplicate
    after a crash."""
    shared = DeadLetterStrategy(kind=DeadLetterKind.SHARED)
    harness = make_harness(DestinationPolicy(dead_letter=shared))
    client, dlq_client = harness.client(), harness.client()
    client.send("x", Destination(DestinationKind.QUEUE, "a,b")).turn()
    for name in ("a", "b"):
        client.subscribe(name, Destination(DestinationKind.QUEUE, name)).nack("x")
    harness.turn()
    dlq_client.subscribe("d", Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ"))
    letters = [each.message for each in dlq_client.session.delivered]
    assert len({letter.message_id for letter in letters}) == 2
    assert {letter.properties["originalMessageId"] for letter in letters} == {client.last("x").message.message_id}
    assert {letter.original_destination.name for letter in letters} == {"a", "b"}
