"""NACK, redelivery limits, expiry, and where it all ends."""

from __future__ import annotations

import pytest

from broker.core.commands import Ack, AckMode, Nack, Undeliverable
from store.records.message import Destination, DestinationKind

DLQ = Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ.Queue.orders")
PRICES = Destination(DestinationKind.TOPIC, "prices")
TOPIC_DLQ = Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ.Topic.prices")


def test_a_refused_message_is_a_dead_letter_at_once(house):
    client, sexton = house.client(), house.client()
    client.subscribe(ack=AckMode.INDIVIDUAL)
    for body in "abc":
        client.send(body)
    house.turn()

    client.nack("b", receipt="r")
    assert client.receipts == []
    house.turn()
    sexton.subscribe("d", DLQ)

    assert client.receipts == ["r"]
    assert house.figures()["unacknowledged"] == 2
    letter = sexton.session.delivered[0].message
    assert letter.body == b"b"
    assert letter.original_destination.name == "orders"
    assert letter.message_id == client.last("b").message.message_id
    assert letter.properties["dlqDeliveryFailureCause"] == "refused by NACK after 0 redeliveries"


@pytest.mark.parametrize("stomp_nack", ["dlq", "requeue"])
def test_with_the_mode_client_all_up_to_it_are_refused(make_house, stomp_nack):
    house = make_house(stomp_nack=stomp_nack)
    client, sexton = house.client(), house.client()
    client.subscribe(ack=AckMode.CLIENT)
    for body in "abc":
        client.send(body, persistent=body != "b")
        house.turn()

    client.nack("b", receipt="r")
    assert client.receipts == ([] if stomp_nack == "dlq" else ["r"])
    house.turn()
    sexton.subscribe("d", DLQ)

    assert client.receipts == ["r"]
    assert client.bodies == ["a", "b", "c"] if stomp_nack == "dlq" else ["a", "b", "c", "a", "b"]
    assert sexton.bodies == (["a"] if stomp_nack == "dlq" else [])
    assert house.figures()["unacknowledged"] == (1 if stomp_nack == "dlq" else 3)


def test_dead_letters_that_are_refused_stay_with_who_did(house):
    client, sexton = house.client(), house.client()
    client.subscribe(ack=AckMode.CLIENT)
    for body in "abc":
        client.send(body)
    house.turn()
    client.nack("c")
    house.turn()
    sexton.subscribe("d", DLQ, ack=AckMode.CLIENT)
    assert sexton.bodies == ["a", "b", "c"], "in their order"
    sexton.handle(Nack("d", 2, None, "r"))
    assert sexton.receipts == ["r"]
    assert list(sexton.client.subscriptions["d"].unacked) == [1, 2, 3]
    sexton.handle(Ack("d", 3, None, "a"))
    house.turn()
    assert sexton.receipts == ["r", "a"]


def test_a_refused_non_persistent_message_is_dropped(house):
    client = house.client()
    client.subscribe()
    client.send("a", persistent=False)

    client.nack("a", receipt="r")
    house.turn()

    assert client.receipts == ["r"]
    assert house.counts["messages"] == 0
    assert house.counts["memory_non_persistent_bytes"] == 0


def test_with_requeue_a_refused_message_comes_again_until_the_limit(make_house):
    house = make_house(stomp_nack="requeue", maximum_redeliveries=2)
    client, sexton = house.client(), house.client()
    client.subscribe(prefetch=1)
    sexton.subscribe("d", DLQ)
    client.send("a")
    client.send("b")
    house.turn()

    for _ in range(3):
        client.nack("a")
        house.turn()

    assert client.bodies == ["a", "a", "a", "b"]
    assert [each.redelivered for each in client.session.delivered] == [False, True, True, False]
    assert sexton.bodies == ["a"]


def test_lost_connections_do_not_count_towards_the_limit(make_house):
    house = make_house(stomp_nack="requeue", maximum_redeliveries=1)
    house.client().send("a")
    house.turn()
    for _ in range(5):
        client = house.client()
        client.subscribe()
        assert client.bodies == ["a"]
        client.vanish()
    client = house.client()
    client.subscribe()

    client.nack("a")

    assert client.bodies == ["a", "a"]


def test_a_dead_letter_does_not_die_again(house):
    client, other = house.client(), house.client()
    client.send("a", DLQ)
    client.subscribe("d", DLQ)
    house.turn()

    client.nack("a", receipt="r")
    house.turn()
    assert client.receipts == ["r"]
    assert client.bodies == ["a"]
    client.vanish()
    other.subscribe("d", DLQ)

    assert other.bodies == ["a"]
    assert house.stored() == 1


def test_an_unknown_refusal_is_an_error_and_the_connection_stays(house):
    client = house.client()
    client.subscribe(ack=AckMode.AUTO)
    client.send("a")
    house.turn()

    client.nack("a")

    assert client.errors == ["Unexpected NACK received for delivery 1 of subscription 's'"]
    assert not client.is_closed


def test_each_durable_subscription_may_bury_its_own_copy(house):
    one, two, sexton = house.client("one"), house.client("two"), house.client()
    for each in (one, two):
        each.subscribe("s", PRICES, durable_name="d")
    one.send("a", PRICES)
    house.turn()

    one.nack("a")
    two.nack("a")
    sexton.subscribe("d", TOPIC_DLQ)
    house.turn()

    letters = [each.message for each in sexton.session.delivered]
    assert [letter.body for letter in letters] == [b"a", b"a"]
    assert len({letter.message_id for letter in letters}) == 2
    assert house.stored() == 2


def test_an_expired_message_is_a_dead_letter_when_it_would_be_delivered(house):
    client, sexton = house.client(), house.client()
    client.send("a", expiration=2_000)
    client.send("b", expiration=9_000)
    client.send("c", expiration=2_000, persistent=False)
    house.turn()
    house.now = 2_000

    client.subscribe()
    house.turn()
    sexton.subscribe("d", DLQ)

    assert client.bodies == ["b"]
    letter = sexton.session.delivered[0].message
    assert (letter.body, letter.expiration, letter.properties["originalExpiration"]) == (b"a", 0, 2_000)
    assert house.counts["expired_total"] == 2


def test_expired_messages_are_cleared_away_without_a_consumer(house):
    client = house.client()
    for body in "abc":
        client.send(body, expiration=2_000)
    client.send("d")
    house.turn()

    house.engine.tick(1_999)
    assert house.figures()["messages"] == 4
    house.engine.tick(2_000)
    house.turn()

    assert house.figures()["messages"] == 1
    assert house.figures(DLQ.name)["messages"] == 3


def test_a_tick_looks_at_a_bounded_number_of_messages(make_house):
    house = make_house(expiry_entries_per_tick=3)
    client = house.client()
    for name in ("one", "two"):
        for body in "abc":
            client.send(body, Destination(DestinationKind.QUEUE, name), expiration=2_000)
    house.turn()

    house.engine.tick(3_000)
    assert house.counts["expired_total"] == 3
    house.engine.tick(3_000)
    assert house.counts["expired_total"] == 6


def test_an_expired_dead_letter_is_gone(house):
    client = house.client()
    client.send("a", DLQ, expiration=2_000)
    house.turn()

    house.engine.tick(3_000)
    house.turn()

    assert house.stored() == 0


def test_a_topic_subscriber_does_not_get_what_expired_while_it_waited(house):
    client = house.client()
    client.subscribe("s", PRICES, AckMode.AUTO)
    client.has_room = False
    client.send("a", PRICES, expiration=2_000)
    client.send("b", PRICES)
    house.now = 3_000

    client.has_room = True
    house.engine.writable(client)

    assert client.bodies == ["b"]


@pytest.mark.parametrize("ack", [AckMode.AUTO, AckMode.INDIVIDUAL])
def test_what_cannot_be_told_is_a_dead_letter_and_the_next_one_comes(house, ack):
    client, sexton = house.client(), house.client()
    deliver = client.session.deliver

    def refuse(subscription, tag, message, redeliveries, mode):
        if message.body == b"bad":
            raise Undeliverable("a text body claims 5 bytes and has 2")
        return deliver(subscription, tag, message, redeliveries, mode)

    client.session.deliver = refuse
    client.subscribe(ack=ack, prefetch=1)
    for body in ("bad", "good"):
        client.send(body)
    house.turn()
    sexton.subscribe("d", DLQ)
    house.turn()
    assert client.bodies == ["good"]
    assert client.is_connected
    assert sexton.bodies == ["bad"]
    cause = sexton.session.delivered[0].message.properties["dlqDeliveryFailureCause"]
    assert "a text body claims 5 bytes and has 2" in cause
    assert house.figures()["messages"] == (0 if ack is AckMode.AUTO else 1)
