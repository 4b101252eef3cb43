"""Delivery counts are in the record of a message from then on, for the next master, at its place in the order."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.store.operations import AddMessage, AddSubscription, CountDeliveries, PagedMessage
from tandemmq.store.records.commands import encode_add, encode_remove, encode_subscription
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tests.support.store.store_harness import SMALL, Q, Term

T = Destination(DestinationKind.TOPIC, "T")


def held(term: Term, owner: int) -> list[PagedMessage]:
    return term.page(owner).messages


def counted(term: Term) -> list[tuple[str, int]]:
    """(id, redeliveries) of what a queue holds, in order."""
    return [(each.message.message_id, each.message.redelivery_counter) for each in held(term, term.store.queue(Q))]


# proves: counts-leave-the-reserve
@pytest.mark.parametrize("has_index", [True, False])
def test_a_count_survives_and_the_order_stays(directory: str, has_index: bool) -> None:
    term = Term(directory)
    owner = term.store.queue(Q)
    added = term.add_durably(5)
    term.take(added[3:4])
    counts = {added[1].order_key: 3, added[3].order_key: 1, added[0].order_key: 1}
    term.do(CountDeliveries(owner, counts))
    term.do(CountDeliveries(owner, {added[1].order_key: 4}))
    expected = [
        (each.message.message_id, n) for each, n in zip(added, (1, 4, 0, 0, 0), strict=True) if each != added[3]
    ]
    assert counted(term) == expected
    term.take([added[4], added[0]])  # by the places that they had when they were added
    term.crash()
    if not has_index:
        shutil.rmtree(Path(directory, "index"))
    with Term(directory) as again:
        assert counted(again) == expected[1:3]


# proves: counts-leave-the-reserve
def test_on_a_full_disk_nothing_is_counted(directory: str) -> None:
    """A master that counts what it finds would use up the room that it needs to drain its queues."""
    with Term(directory) as term:
        added = term.add_durably(3)
    volume = os.statvfs(directory)
    full = replace(SMALL, disk_reserve=2 * volume.f_bavail * volume.f_frsize)
    with Term(directory, settings=full) as term:
        term.do(CountDeliveries(term.store.queue(Q), {each.order_key: 1 for each in added}))
        assert [count for _, count in counted(term)] == [0, 0, 0]


def test_counts_of_messages_of_several_subscriptions_are_not_written(directory: str) -> None:
    with Term(directory) as term:
        owners = tuple(term.store.subscription("c", name, T) for name in "ab")
        for owner, name in zip(owners, "ab", strict=True):
            term.do(AddSubscription(owner, encode_subscription(T, "c", name)))
        messages = [term.message(T) for _ in range(2)]
        for message, holders in zip(messages, (owners, owners[:1]), strict=True):
            others = (encode_remove(T, message.message_id, None, "c:b", b""),) if holders == owners[:1] else ()
            payload = encode_add(message, encode_message(message))
            term.do(AddMessage(message, holders, payload, unmatched_acks=others))
        keys = [each.order_key for each in held(term, owners[0])]
        term.do(CountDeliveries(owners[0], dict.fromkeys(keys, 2)))
        assert [each.message.redelivery_counter for each in held(term, owners[0])] == [0, 2]
        assert [each.message.redelivery_counter for each in held(term, owners[1])] == [0]
