"""Copies of one message for several queues are none of each other; the same one twice in a queue is."""

# proves: a-copy-is-there-once

from __future__ import annotations

import pytest

from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.state.copies import Copies


def add(owner: int, id: str = "ID:c:1:1:1", *, is_audited: bool = True) -> AddMessage:
    message = Message(Destination(DestinationKind.QUEUE, f"q{owner}"), id)
    return AddMessage(message, (owner,), b"", is_audited=is_audited)


def told(copies: Copies, *adds: AddMessage) -> list[bool]:
    found = [copies.is_duplicate(each) for each in adds]
    assert found == [each.is_duplicate for each in adds]
    return found


def test_copies_for_several_queues_are_stored_each() -> None:
    copies = Copies(lambda add: False, lambda add: False)
    assert told(copies, add(1), add(2), add(3)) == [False, False, False]


def test_the_second_for_a_queue_is_a_duplicate() -> None:
    copies = Copies(lambda add: False, lambda add: False)
    assert told(copies, add(1), add(1), add(2), add(2)) == [False, True, False, True]


def test_a_further_one_that_its_queue_has_is_a_duplicate() -> None:
    copies = Copies(lambda add: False, lambda add: add.owners == (2,))
    assert told(copies, add(1), add(2), add(3)) == [False, True, False]


def test_what_came_before_is_a_duplicate_in_all_queues() -> None:
    copies = Copies(lambda add: True, lambda add: False)
    assert told(copies, add(1), add(2)) == [True, True]


@pytest.mark.parametrize("came_before", [True, False])
def test_what_is_not_audited_never_came_before(came_before: bool) -> None:
    copies = Copies(lambda add: came_before, lambda add: came_before)
    assert told(copies, add(1, is_audited=False), add(1, is_audited=False)) == [False, False]
