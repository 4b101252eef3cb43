"""The checker detects an index that has other messages than the journal, whatever the index counts."""

# proves: one-too-many-is-found

from __future__ import annotations

import pytest

from tandemmq.store.operations import AddMessage, RemoveMessage
from tandemmq.store.records.commands import encode_remove
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.state.state import State
from tandemmq.store.tools.check import check
from tests.support.store.store_harness import Q, Term


def adding(term: Term) -> AddMessage:
    """Return an AddMessage for a message that counts for no user."""
    message = term.message()
    return AddMessage(message, (term.store.queue(Q),), encode_stored(message))


@pytest.mark.parametrize("which", [0, 1])
def test_a_message_that_an_index_has_and_does_not_count_is_found(unchecked: str, which: int) -> None:
    """The removal of the message named another place in the order."""
    with Term(unchecked) as term:
        added = [term.do(adding(term)) for _ in range(2)]
        id, place = added[which].message.message_id, added[which].order_key + 1
        payload = encode_remove(Q, id)
        term.do(RemoveMessage(added[0].owners[0], place, added[which].location, id, payload, size=added[which].size))
    problems = check(unchecked).problems
    assert [each for each in problems if each.endswith(f"{Q} has {id}, which the journal does not hold")], problems


def test_a_wrong_count_is_found(unchecked: str) -> None:
    def count_one_more(state: State) -> None:
        [owner] = state.owners.values()
        owner.count += 1

    with Term(unchecked) as term:
        term.do(adding(term))
        term.store.ask(count_one_more).result(10)
        term.do(adding(term))
    problems = check(unchecked).problems
    assert [each for each in problems if each.endswith(f"{Q}: 3 messages are counted, 2 by the journal")], problems
