"""Delivery counts are complete, and a message that its consumers do not survive becomes a dead letter."""

# proves: late-page-has-no-end, suspect-is-counted-first, only-what-was-alone-dies, redeliveries-end

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import AckMode, Redelivered
from tandemmq.broker.core.delivery import REDELIVERIES_MAX
from tandemmq.broker.core.policies import DestinationPolicy, Policies, RedeliveryPolicy
from tandemmq.broker.engine import redelivery
from tandemmq.store.operations import CountDeliveries
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.broker.engine_term import EngineTerm
from tests.unit.broker.engine.conftest import come

pytestmark = pytest.mark.promise("redelivery-is-bounded")

DLQ = Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ.Queue.orders")
PRICES = Destination(DestinationKind.TOPIC, "prices")


def given(client: Any) -> list[tuple[str, int]]:
    """(body, redeliveries) of what it was given."""
    return [(each.body, each.redeliveries) for each in client.session.delivered]


def dead(harness: Any) -> list[str]:
    dlq_client = harness.consumer("d", DLQ, prefetch=100)
    harness.turn()
    bodies: list[str] = dlq_client.bodies
    dlq_client.disconnect()
    harness.turn()
    return bodies


def lose(harness: Any, client: Any) -> None:
    """Lose the consumer with its messages, and let a suspect's turn come."""
    client.vanish()
    harness.turn()
    harness.wait(2 * redelivery.POLL_SECONDS)


@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize("mode", [AckMode.CLIENT, AckMode.RANGE])
def test_a_message_that_kills_its_consumers_is_a_dead_letter(
    make_harness: Any, mode: AckMode, is_persistent: bool
) -> None:
    harness = make_harness(maximum_redeliveries=2)
    harness.client().store("a", persistent=is_persistent)
    for deliveries in range(3):
        client = harness.consumer(ack=mode)
        harness.wait(1)
        assert given(client) == [("a", deliveries)]
        lose(harness, client)
    assert harness.consumer().bodies == []
    assert dead(harness) == (["a"] if is_persistent else [])


def test_messages_delivered_beside_a_poison_message_are_acknowledged(make_harness: Any) -> None:
    """Three messages come back from each consumer; it is the second that kills."""
    harness = make_harness(maximum_redeliveries=2)
    harness.client().store(*"abc")
    for _ in range(2):
        lose(harness, harness.consumer())
    acknowledged = []
    for _ in range(20):
        client = harness.consumer()
        while not client.is_closed:
            before = len(client.bodies)
            harness.wait(1)
            if len(client.bodies) == before:
                break
            assert len(client.bodies) == before + 1, "one at a time"
            if client.bodies[-1] == "b":
                lose(harness, client)
            else:
                client.ack(client.bodies[-1])
                acknowledged.append(client.bodies[-1])
                harness.turn()
        else:
            continue
        break
    assert sorted(acknowledged) == ["a", "c"]
    assert dead(harness) == ["b"]
    assert harness.figures()["messages"] == 0


def test_suspects_of_other_queues_wait_for_none(make_harness: Any) -> None:
    """Suspects of the same queue do not wait for ever, either, if a consumer does not acknowledge one."""
    harness = make_harness(maximum_redeliveries=1)
    other = Destination(DestinationKind.QUEUE, "other")
    harness.client().store(*"ab")
    harness.client().store("c", destination=other)
    lose(harness, harness.consumer())
    lose(harness, harness.consumer("s", other))
    client, another = harness.consumer(), harness.consumer("s", other)
    harness.wait(1)
    assert (client.bodies, another.bodies) == (["a"], ["c"])
    harness.wait(redelivery.ALONE_MS_MAX / 1000)
    assert client.bodies == ["a", "b"]


@pytest.mark.parametrize("end", ["unsubscribe", "disconnect", "hang_up"])
def test_a_message_given_back_in_order_is_never_a_dead_letter(make_harness: Any, end: str) -> None:
    harness = make_harness(maximum_redeliveries=1)
    harness.client().store("a")
    for deliveries in (0, 1, 1, 1):
        client = harness.consumer()
        assert given(client) == [("a", deliveries)]
        harness.engine.hang_up(client.id) if end == "hang_up" else getattr(client, end)()
        harness.make_steps()
        harness.turn()
    assert dead(harness) == []


def test_a_count_goes_on_with_the_next_master(make_harness: Any) -> None:
    harness = make_harness(maximum_redeliveries=4)
    harness.client().store(*"ab")
    lose(harness, harness.consumer(prefetch=1))
    harness.fail_over()
    client = harness.consumer(prefetch=10)
    client.store("c")  # while what the new master finds is counted
    assert given(client) == [("a", 1), ("b", 0), ("c", 0)]


def test_redeliveries_of_a_lost_client_to_its_application_count(make_harness: Any) -> None:
    harness = make_harness(maximum_redeliveries=4)
    client = harness.consumer(ack=AckMode.RANGE)
    client.store(*"ab")
    for _ in range(2):
        client.handle(Redelivered("s", 1, 1))
    lose(harness, client)
    harness.fail_over()
    client = harness.consumer()
    harness.turn()
    assert given(client) == [("a", 3), ("b", 1)]


def test_a_message_that_kills_each_master_is_a_dead_letter(make_harness: Any) -> None:
    """A master is lost without a word as soon as it has given the message out."""
    harness = make_harness(maximum_redeliveries=2)
    harness.client().store("a")
    masters = 0
    while True:
        client = harness.consumer()
        harness.turn()
        harness.wait(1)
        if not client.bodies:
            break
        masters += 1
        assert masters < 10
        harness.begin_term()
    assert masters == 4
    assert dead(harness) == ["a"]


def test_a_message_delivered_once_is_not_written_again(harness: Any) -> None:
    harness.store.appended = []
    client = harness.consumer(prefetch=10)
    client.store(*range(50))
    for body in range(50):
        client.ack(str(body))
        harness.turn()
    assert not [each for each in harness.store.appended if isinstance(each, CountDeliveries)]


def test_the_counts_written_for_one_consumer_are_bounded(make_harness: Any) -> None:
    harness = make_harness(prefetch_max=2_000)
    client = harness.consumer(prefetch=2_000)
    client.store(*range(redelivery.COUNTED_MAX + 50))
    assert len(client.bodies) == redelivery.COUNTED_MAX + 50
    harness.store.appended = []
    lose(harness, client)
    counts = [each.counts for each in harness.store.appended if isinstance(each, CountDeliveries)]
    assert sum(map(len, counts)) == redelivery.COUNTED_MAX
    assert max(map(len, counts)) == redelivery.COUNTED_AT_ONCE
    assert {number for each in counts for number in each.values()} == {1}


def test_of_many_that_are_lost_at_once_the_first_messages_are_written(make_harness: Any) -> None:
    harness = make_harness(window_bytes=1 << 27)
    size = redelivery.COUNTED_ALL_BYTES_MAX // 6
    clients = [harness.consumer(prefetch=3) for _ in range(5)]
    clients[0].store(*("x" * size for _ in range(15)))
    harness.store.appended = []
    for client in clients:
        client.vanish()
    harness.turn()
    written = [len(each.counts) for each in harness.store.appended if isinstance(each, CountDeliveries)]
    assert sum(written) == 3 * 2 + 2, "two of each, which are 8 MiB, as far as 16 MiB go; then the first of each"


def test_the_messages_counted_by_a_new_master_are_bounded(make_harness: Any) -> None:
    harness = make_harness(prefetch_max=2_000)
    found = redelivery.FOUND_MAX + 50
    harness.client().store(*range(found))
    harness.fail_over()
    harness.store.appended = []
    client = harness.consumer(prefetch=2_000)
    client.store("new")
    assert given(client) == [(str(body), 0) for body in [*range(found), "new"]]
    counts = [each.counts for each in harness.store.appended if isinstance(each, CountDeliveries)]
    assert sum(map(len, counts)) == redelivery.FOUND_MAX


def test_a_counter_that_a_client_sends_at_its_end_harms_no_store(directory: str) -> None:
    """A queue whose messages come again without end, as one of dead letters: what the store writes has room in Java."""

    class Endless(EngineTerm):
        policies = Policies((), DestinationPolicy(redelivery=RedeliveryPolicy(None)))

    term = Endless(directory)
    client = come(term, "c").send("a", redelivery_counter=REDELIVERIES_MAX, receipt="sent").subscribe(ack=AckMode.RANGE)
    term.wait(lambda: client.bodies == ["a"])
    client.handle(Redelivered("s", 1, 1))
    client.unsubscribe()
    again = come(term, "d").subscribe()
    assert given(again) == [("a", REDELIVERIES_MAX)]
    again.ack("a", receipt="acknowledged")
    term.wait(lambda: again.receipts == ["acknowledged"])
    term.close()
