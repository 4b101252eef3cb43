"""The store over a real directory: durable operations are restored in order, after any end of the process."""

# proves: journal-end, live-files, pins, upkeep
# proves: id-of-a-part-is-known, page-with-more-behind, place-counts-every-record, prepare-is-synced

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.histogram import Histogram
from tandemmq.store.operations import AddMessage, AddSubscription, Atomic, PrepareTransaction, RemoveMessage
from tandemmq.store.records.commands import (
    encode_add,
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_subscription,
    subscription_key,
)
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.store import LINGERING_MAX
from tandemmq.store.tools.check import check
from tests.support.store.store_harness import Q, Term

T = Destination(DestinationKind.TOPIC, "T.A")
LOCAL = LocalTransactionId("ID:c", 1)
XID = XaTransactionId(1, b"global", b"branch")


def test_a_page_has_the_earlier_messages_that_were_not_removed(directory: str) -> None:
    term = Term(directory)
    added = term.add_durably(10)
    owner = term.store.queue(Q)
    term.remove(added[3], owner)
    page = term.page(owner, after=added[1].order_key, count=3)
    assert [p.message.body for p in page.messages] == [b"body 3", b"body 5", b"body 6"]
    assert not page.is_end
    rest = term.page(owner, after=page.messages[-1].order_key)
    assert [p.message.body for p in rest.messages] == [b"body 7", b"body 8", b"body 9", b"body 10"]
    assert rest.is_end
    term.close()


def test_checkpoints_change_nothing_that_can_be_seen(directory: str) -> None:
    settings = StoreSettings(journal_max_file_length=64 * 1024, checkpoint_records=20, fence_check_interval=0.01)
    term = Term(directory, settings=settings)
    expected = []
    for round_number in range(20):
        added = term.add_durably(30)
        term.take(added[: round_number + 5])
        expected += [operation.message.body for operation in added[round_number + 5 :]]
        assert term.bodies() == expected
    assert term.store.figures.checkpoints > 2
    term.crash()
    with Term(directory, settings=settings) as again:
        assert again.bodies() == expected


@pytest.mark.parametrize("strategy", ["periodic", "never"])
def test_other_sync_strategies_report_before_the_sync_and_survive_a_kill(directory: str, strategy: str) -> None:
    settings = StoreSettings(
        journal_disk_sync_strategy=strategy,
        journal_disk_sync_interval=3600.0,
        journal_max_file_length=64 * 1024,
        checkpoint_interval=3600.0,
        fence_check_interval=0.02,
    )
    term = Term(directory, settings=settings)
    syncs = term.store.figures.syncs
    for _ in range(10):
        term.add_durably(1)
    assert term.store.figures.syncs == syncs
    term.do(PrepareTransaction(XID, [], encode_prepare(XID)))
    assert term.store.figures.syncs == syncs + 1, "who prepared it decides for others, too"
    term.crash()  # the process dies, the machine does not
    with Term(directory, settings=settings) as again:
        assert len(again.bodies()) == 10


def test_a_message_has_the_place_that_a_replay_gives_it(directory: str) -> None:
    """A message before it is not wanted by a durable subscription. A copy of the message is found by its place."""
    term = Term(directory)
    owners = [term.store.subscription("c", name, T) for name in ("wants", "passes")]
    for owner, name in zip(owners, ("wants", "passes"), strict=True):
        term.do(AddSubscription(owner, encode_subscription(T, "c", name)))
    parts = []
    for destination, owner in ((T, owners[0]), (Q, term.store.queue(Q))):
        message = term.message(destination)
        parts.append(AddMessage(message, (owner,), encode_add(message, encode_message(message), LOCAL)))
    removal = encode_remove(T, parts[0].message.message_id, LOCAL, subscription_key("c", "passes"))
    parts[0].unmatched_acks = (removal,)
    term.do(Atomic(parts, encode_commit(LOCAL)))
    term.crash()
    with Term(directory) as again:
        (found,) = again.page(again.store.queue(Q)).messages
        assert found.order_key == parts[1].order_key


def test_a_lost_free_list_is_found_again_while_the_store_works(directory: str) -> None:
    settings = StoreSettings(checkpoint_records=100, fence_check_interval=0.01)
    with Term(directory, settings=settings) as term:
        for _ in range(6):
            term.take(term.add_durably(60))
    os.unlink(f"{directory}/index/a/db.free")
    with Term(directory, settings=settings) as again:
        assert again.store._storage._index.needs_free_page_recovery
        again.add_durably(150)
        again.wait(lambda: again.store.figures.checkpoints >= 1)
        assert not again.store._storage._index.needs_free_page_recovery


def test_a_message_that_cannot_be_read_is_left_out_of_its_page_and_counted(directory: str) -> None:
    settings = StoreSettings(checkpoint_records=10, fence_check_interval=0.01)
    term = Term(directory, settings=settings)
    added = term.add_durably(20)
    term.crash()
    with Term(directory, settings=settings) as again:
        again.bodies()  # everything was verified by now
        with open(JournalFiles(directory).path(added[7].location >> 32), "r+b") as file:
            file.seek(added[7].location & 0xFFFFFFFF)
            before = file.read(5)
            file.seek(-5, os.SEEK_CUR)
            file.write(b"\0\0\0\0\0")
            file.flush()
            bodies = [operation.message.body for operation in added]
            found = again.bodies()
            assert bodies[7] not in found
            assert set(found) < set(bodies)
            assert again.store.figures.damaged > 0
            file.seek(added[7].location & 0xFFFFFFFF)
            file.write(before)
        assert again.bodies() == bodies


@pytest.mark.parametrize("is_read_before", [False, True])
def test_records_of_this_term_are_compared_when_read(directory: str, is_read_before: bool) -> None:
    with Term(directory, settings=StoreSettings(checkpoint_records=10, fence_check_interval=0.01)) as term:
        added = [operation for _ in range(4) for operation in term.add_durably(5, body=b"x" * 3000)]
        if is_read_before:
            assert len(term.bodies()) == len(added)
        with open(JournalFiles(directory).path(added[7].location >> 32), "r+b") as file:
            file.seek((added[7].location & 0xFFFFFFFF) + added[7].size - 500)
            file.write(b"y")
            file.flush()
            found = term.bodies()
            assert set(found) == {b"x" * 3000}
            assert len(added) - 5 <= len(found) < len(added)
            file.seek(-1, os.SEEK_CUR)
            file.write(b"x")  # so that what remains of the store is sound


def test_the_reported_operations_are_the_submitted_ones(directory: str) -> None:
    """A client waits for a report when it gave much: for a queue that begins, none comes."""
    term = Term(directory)
    before = term.store.handed_over
    new = Destination(DestinationKind.QUEUE, "new")
    term.store.queue(new)
    assert term.store.handed_over == before
    term.add_durably(3, new)
    assert term.store.handed_over - before == len(term.durable_operations) == 3
    term.close()


def test_a_page_of_keys_has_those_that_are_still_there(directory: str) -> None:
    term = Term(directory)
    added = term.add_durably(10)
    owner = term.store.queue(Q)
    term.store.checkpoint()[0].result()
    added += term.add_durably(10)
    keys = [added[number].order_key for number in (17, 3, 12, 4, 0)]
    term.remove(added[4], owner)
    page = term.page(owner, keys=keys)
    assert [p.message.body for p in page.messages] == [b"body 1", b"body 4", b"body 13", b"body 18"]
    assert page.is_end
    some = term.page(owner, keys=keys, bytes_max=page.messages[0].size * 2)
    assert [p.message.body for p in some.messages] == [b"body 1", b"body 4"]
    assert not some.is_end
    term.close()


# ---- An acknowledgement for which no client waits is written with the next sync


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
    """End the turn of the loop, without a wait after it."""
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


def test_a_timer_after_the_hand_over_hands_nothing_over(term: Term) -> None:
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


# ---- Histograms, and what a store measures of itself by them


def test_values_are_counted_by_the_first_bound_that_is_not_smaller() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.note(value)
    assert histogram.figures() == {"buckets": [["1.0", 2], ["2.0", 3], ["+Inf", 4]], "sum": 10.0}


def test_two_are_summed_and_neither_changes() -> None:
    histogram = Histogram((1.0,))
    histogram.note(0.5)
    both = histogram.plus([1, 2], 9.0)
    assert (both.counts, both.sum) == ([2, 2], 9.5)
    assert (histogram.counts, histogram.sum) == ([1, 0], 0.5)


def test_a_store_measures_receipts_syncs_batches_and_checkpoints(tmp_path: Path) -> None:
    term = Term(str(tmp_path))
    term.store.queue(Q)
    term.end_turn()
    for _ in range(3):
        term.add()
    term.wait_durable(3)
    measured = term.store.measured()
    assert sum(measured["send_to_receipt_seconds"].counts) == 1, "of one turn one sample"
    assert sum(measured["journal_batch_records"].counts) == term.store.figures.batches
    assert measured["journal_batch_records"].sum == term.store.figures.records
    assert sum(measured["journal_sync_duration_seconds"].counts) == term.store.figures.syncs
    assert all(histogram.sum > 0 for name, histogram in measured.items() if name != "checkpoint_duration_seconds")
    (done,) = term.store.checkpoint()
    term.wait(done.done)
    assert sum(term.store.measured()["checkpoint_duration_seconds"].counts) == term.store.figures.checkpoints > 0
    term.close()


def test_the_next_turn_is_a_sample_when_the_last_one_came_back(tmp_path: Path) -> None:
    with Term(str(tmp_path)) as term:
        term.store.queue(Q)
        term.end_turn()
        for number in range(1, 4):
            added = term.add()
            term.wait_durable(number * 2 - 1)
            term.remove(added, term.store.queue(added.message.destination))
            term.wait_durable(number * 2)
        assert sum(term.store.measured()["send_to_receipt_seconds"].counts) == 3, "an acknowledgement is none"
