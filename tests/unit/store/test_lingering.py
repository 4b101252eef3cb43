"""An acknowledgement that nobody waits for goes with what is to be synced anyhow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.store.operations import AddMessage, RemoveMessage
from tandemmq.store.records.commands import encode_remove
from tandemmq.store.store import LINGERING_MAX
from tandemmq.store.tools.check import check
from tests.support.store.store_harness import Q, Term


@pytest.fixture
def term(tmp_path: Path) -> Iterator[Term]:
    with Term(str(tmp_path)) as term:
        yield term
    report = check(str(tmp_path))
    assert report.is_clean, report.problems


def removal(term: Term, added: AddMessage, context: object | None = None) -> RemoveMessage:
    message_id = added.message.message_id
    payload = encode_remove(Q, message_id, None, None)
    owner = term.store.queue(Q)
    return RemoveMessage(owner, added.order_key, added.location, message_id, payload, context, added.size)


def end_this_turn(term: Term) -> None:
    """Without any time after it."""
    turn, term.turn[:] = list(term.turn), []
    for function in turn:
        function()


def test_it_waits_for_the_next_that_somebody_waits_for_and_shares_its_batch(term: Term) -> None:
    first, second = term.add_durably(2)
    batches = term.store.figures.batches

    removed = [removal(term, each) for each in (first, second)]
    for each in removed:
        term.store.append(each)

    assert term.turn == []
    assert len(term.later) == 1
    assert term.store.has_pending
    added = term.add()
    assert len(term.turn) == 1
    end_this_turn(term)
    term.wait_durable(5)
    assert term.durable_operations[2:] == [*removed, added]
    assert term.store.figures.batches == batches + 1


def test_it_waits_for_nobody_longer_than_its_time(term: Term) -> None:
    (added,) = term.add_durably(1)

    term.store.append(removal(term, added))
    for function in term.later:
        function()

    term.later.clear()
    term.wait_durable(2)
    assert not term.store.has_pending


@pytest.mark.parametrize("is_first", [False, True])
def test_one_with_a_receipt_waits_for_nothing(term: Term, is_first: bool) -> None:
    first, second = term.add_durably(2)

    for each in (removal(term, first, "receipt"), removal(term, second))[:: 1 if is_first else -1]:
        term.store.append(each)

    assert len(term.turn) == 1
    end_this_turn(term)
    term.wait_durable(4)


def test_so_many_are_a_batch_of_their_own(term: Term) -> None:
    added = term.add_durably(LINGERING_MAX + 1)

    for each in added[:-1]:
        term.store.append(removal(term, each))
    assert term.turn == []
    term.store.append(removal(term, added[-1]))

    assert len(term.turn) == 1
    end_this_turn(term)
    term.wait_durable(2 * LINGERING_MAX + 2)


def test_a_timer_that_comes_after_all_went_hands_nothing_over(term: Term) -> None:
    first, second = term.add_durably(2)
    term.store.append(removal(term, first))
    term.add()
    end_this_turn(term)
    term.wait(lambda: not term.store.has_pending)
    handed_over = term.store.handed_over

    term.end_turn()

    assert term.store.handed_over == handed_over
    term.store.append(removal(term, second))
    assert len(term.later) == 1
