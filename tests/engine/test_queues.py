"""Sending to and receiving from queues."""

from __future__ import annotations

from broker.core.commands import Ack, AckMode, AddDestination, Connect
from broker.core.policies import DestinationPolicy
from store.records.message import Destination, DestinationKind

ORDERS = Destination(DestinationKind.QUEUE, "orders")


def test_a_persistent_message_is_told_and_delivered_only_when_durable(house):
    client = house.client()
    client.subscribe(receipt="sub")
    client.send("a", receipt="r")
    assert client.session.told[1:] == [("receipt", "sub")]

    house.turn()

    assert client.session.told[2:] == [("receipt", "r"), ("message", "a")]
    assert house.stored() == 1


def test_a_non_persistent_message_is_told_and_delivered_at_once(house):
    client = house.client()
    client.subscribe()
    client.send("a", receipt="r", persistent=False)

    assert client.bodies == ["a"]
    assert client.receipts == ["r"]
    assert house.stored() == 0


def test_the_receipt_of_a_subscription_precedes_its_first_message(house):
    house.client().send("a")
    house.turn()
    client = house.client()

    client.subscribe(receipt="sub")

    assert client.session.told[1:] == [("receipt", "sub"), ("message", "a")]


def test_the_receipt_of_an_acknowledgement_comes_when_it_is_durable(house):
    client = house.client()
    client.subscribe()
    client.send("a")
    house.turn()

    client.ack("a", receipt="ack")
    assert client.receipts == []
    house.turn()

    assert client.receipts == ["ack"]
    assert house.stored() == 0


def test_client_mode_acknowledges_all_up_to_the_one_named(house):
    client = house.client()
    client.subscribe(ack=AckMode.CLIENT)
    for body in "abcd":
        client.send(body)
    house.turn()

    client.ack("c", receipt="r")
    house.turn()

    assert client.receipts == ["r"]
    assert house.stored() == 1
    assert house.figures()["unacknowledged"] == 1


def test_a_mixed_cumulative_acknowledgement_is_told_when_its_stored_part_is_durable(house):
    client = house.client()
    client.subscribe(ack=AckMode.CLIENT)
    client.send("a")
    house.turn()
    client.send("b", persistent=False)

    client.ack("b", receipt="r")
    assert client.receipts == []
    house.turn()

    assert client.receipts == ["r"]
    assert house.stored() == 0


def test_individual_mode_acknowledges_only_the_one_named(house):
    client = house.client()
    client.subscribe(ack=AckMode.INDIVIDUAL)
    for body in "abc":
        client.send(body)
    house.turn()

    client.ack("c")
    house.turn()

    assert house.stored() == 2


def test_auto_mode_acknowledges_at_delivery(house):
    client = house.client()
    client.subscribe(ack=AckMode.AUTO)
    client.send("a")

    house.turn()

    assert client.bodies == ["a"]
    assert house.stored() == 0


def test_an_unknown_acknowledgement_is_an_error_and_the_connection_stays(house):
    client = house.client()
    client.subscribe()

    client.handle(Ack("s", 7, None, "r"))

    assert client.errors == ["Unexpected ACK received for delivery 7 of subscription 's'"]
    assert client.session.errors[0].receipt == "r"
    assert not client.is_closed


def test_strict_errors_close_the_connection(make_house):
    house = make_house(stomp_strict_errors=True)
    client = house.client()
    client.subscribe()

    client.handle(Ack("s", 7))

    assert client.is_closed


def test_consumers_get_messages_in_turn(house):
    one, two, sender = house.client(), house.client(), house.client()
    one.subscribe()
    two.subscribe()

    for body in "abcdef":
        sender.send(body)
    house.turn()

    assert one.bodies == ["a", "c", "e"]
    assert two.bodies == ["b", "d", "f"]


def test_prefetch_bounds_what_is_not_acknowledged(house):
    client = house.client()
    client.subscribe(prefetch=2)
    for body in "abcd":
        client.send(body)
    house.turn()
    assert client.bodies == ["a", "b"]

    client.ack("a")

    assert client.bodies == ["a", "b", "c"]


def test_nothing_is_delivered_while_a_socket_does_not_take_it(house):
    client = house.client()
    client.subscribe(ack=AckMode.AUTO)
    client.has_room = False
    client.send("a")
    house.turn()
    assert client.bodies == []

    client.has_room = True
    house.engine.writable(client)

    assert client.bodies == ["a"]


def test_what_a_vanished_client_did_not_acknowledge_comes_again_in_its_old_order(house):
    client = house.client()
    client.subscribe(prefetch=3)
    for body in "abcdef":
        client.send(body)
    house.turn()
    client.ack("b")
    house.turn()

    client.vanish()
    other = house.client()
    other.subscribe()

    assert other.bodies == ["a", "c", "d", "e", "f"]
    assert [each.redelivered for each in other.session.delivered] == [True, True, True, False, False]


def test_what_was_not_acknowledged_before_unsubscribe_goes_to_others(house):
    client, other = house.client(), house.client()
    client.subscribe()
    client.send("a")
    house.turn()
    other.subscribe()

    client.unsubscribe(receipt="bye")

    assert client.receipts == ["bye"]
    assert other.bodies == ["a"]


def test_the_receipt_of_disconnect_follows_all_others_and_then_the_connection_ends(house):
    client = house.client()
    client.send("a", receipt="1")
    client.disconnect("2")
    client.send("b", receipt="3")
    assert client.receipts == []

    house.turn()

    assert client.receipts == ["1", "2"]
    assert client.is_closed
    assert house.stored() == 1


def test_nobody_speaks_to_a_client_that_vanished(house):
    client = house.client()
    client.send("a", receipt="1")
    client.vanish()

    house.turn()

    assert client.receipts == []
    assert house.stored() == 1


def test_another_engine_finds_what_the_store_holds(house):
    client = house.client()
    for body in "abc":
        client.send(body)
    house.turn()

    house.fail_over()
    assert house.figures()["messages"] == 3
    after = house.client()
    after.subscribe()
    after.send("d")
    after.send("e", persistent=False)
    house.turn()

    assert sorted(after.bodies) == ["a", "b", "c", "d", "e"]
    assert [body for body in after.bodies if body != "e"] == ["a", "b", "c", "d"]


def test_non_persistent_messages_beyond_their_memory_are_refused_by_the_name_of_the_limit(make_house):
    house = make_house(DestinationPolicy(producer_flow_control=False), memory_limit=2000)
    client = house.client()
    client.send("x" * 600, persistent=False, receipt="1")
    client.send("x" * 600, persistent=False, receipt="2")

    assert client.receipts == ["1"]
    assert "memory_limit of the broker is 2000 bytes" in client.session.errors[0].detail
    assert not client.is_closed


def test_memory_is_given_back_when_messages_are_gone(house):
    client = house.client()
    client.subscribe()
    for body in "abc":
        client.send(body)
        client.send(body + body, persistent=False)
    house.turn()
    for each in list(client.session.delivered):
        client.handle(Ack("s", each.tag))
    house.turn()

    assert house.counts["memory_stored_bytes"] == 0
    assert house.counts["memory_non_persistent_bytes"] == 0
    assert house.counts["messages"] == 0


def test_a_subscription_id_is_used_once(house):
    client = house.client()
    client.subscribe("s")
    client.subscribe("s")

    assert client.errors == ["Subscription 's' exists already"]
    assert client.is_connected


def test_a_client_id_belongs_to_one_connection(house):
    house.client("me")
    second = house.client("me")

    assert second.errors == ["Client id 'me' is connected already from ID:test-1-1:1"]
    assert second.is_closed


def test_a_client_id_may_be_taken_over_where_the_connector_says_so(house):
    first = house.client("me")
    second = house.client()
    second.handle(Connect("me", steals_client_id=True))
    house.turn()

    assert first.is_closed
    assert second.errors == []
    assert not second.is_closed
    assert house.client("me").errors != []  # the others still may not


def test_messages_to_a_temporary_queue_are_not_stored(house):
    client = house.client()
    client.handle(AddDestination(Destination(DestinationKind.TEMP_QUEUE, "t:1")))
    client.send("a", Destination(DestinationKind.TEMP_QUEUE, "t:1"), receipt="r")
    house.turn()

    assert client.receipts == ["r"]
    assert house.stored() == 0
    assert house.figures("t:1")["messages"] == 1
