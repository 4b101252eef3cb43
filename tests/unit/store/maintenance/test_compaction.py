"""Sparse files are emptied: the disk stays within its bound, and nothing else changes."""

# proves: compaction, live-files, pins, upkeep, prepare-alone-moves, settles-only-the-newest-record
# proves: added-again-counts, id-prepared-again-is-another, id-used-again-is-another, settled-holds-what-is-behind
# proves: withheld-by-another

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import scan
from tandemmq.store.maintenance.compaction import CompactionReport
from tandemmq.store.operations import (
    AddMessage,
    AddSubscription,
    Atomic,
    EndTransaction,
    PrepareTransaction,
    RemoveMessage,
    RemoveOwner,
)
from tandemmq.store.records.commands import AddMessage as AddCommand
from tandemmq.store.records.commands import (
    UpdateMessage,
    decode,
    encode_add,
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_rollback,
    encode_subscription,
    encode_unsubscribe,
)
from tandemmq.store.records.hints import with_user_hint
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import XaTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.tools.check import check
from tests.support.store.foreign_store import ForeignStore
from tests.support.store.store_harness import KIB, Q, Term

pytestmark = pytest.mark.promise("disk-use-is-bounded")

T = Destination(DestinationKind.TOPIC, "T.A")
SETTINGS = StoreSettings(
    journal_max_file_length=64 * KIB,
    checkpoint_records=40,
    cleanup_interval=0.0,
    fence_check_interval=0.01,
    compaction_rate=1 << 30,
)
OFF = replace(SETTINGS, enable_compaction=False)
XID = XaTransactionId(5, b"branch", b"global")


def disk_bytes(directory: str) -> int:
    files = JournalFiles(directory)
    total = 0
    for file in files.list():
        try:
            total += files.size(file)
        except FileNotFoundError:  # reclaimed meanwhile
            pass
    return total


def live_bytes(term: Term) -> int:
    term.end_turn()
    return term.store.ask(lambda state: sum(held.live_bytes for held in state.files.values())).result(10)


def fill_sparsely(term: Term, files: int, destination: Destination = Q) -> list[AddMessage]:
    """Some files with one live message; all others are removed."""
    owner = term.store.queue(destination)
    kept = []
    while len(kept) < files:
        added = term.add_durably(30, destination, body=b"x" * 2000)
        kept.append(added[0])
        term.take(added[1:], owner)
    return kept


def compact(term: Term) -> CompactionReport:
    asked = term.store.compact()
    term.wait(asked.done, 20)
    return asked.result()


def within_bound(term: Term, directory: str) -> bool:
    return disk_bytes(directory) <= 2 * live_bytes(term) + 2 * 64 * KIB + 64 * KIB  # and the one prepared


def test_one_message_in_each_file_costs_no_files(directory: str) -> None:
    with Term(directory, settings=OFF) as term:
        kept = [operation.message.body for operation in fill_sparsely(term, 25)]
    assert disk_bytes(directory) > 20 * 64 * KIB, "without compaction every file stays"
    assert check(directory).is_clean
    term = Term(directory, settings=SETTINGS)
    assert compact(term).messages >= 20
    assert within_bound(term, directory)
    assert term.bodies() == kept
    assert disk_bytes(directory) < 4 * 64 * KIB
    term.close()
    assert check(directory).problems == []
    with Term(directory, "other", settings=SETTINGS) as term:  # from the journal alone
        assert term.bodies() == kept


def test_it_runs_by_itself_under_load_and_keeps_the_order(directory: str) -> None:
    term = Term(directory, settings=SETTINGS)
    kept = [operation.message.body for operation in fill_sparsely(term, 60)]
    term.wait(lambda: within_bound(term, directory))
    assert term.store.figures.compactions > 0
    assert term.bodies() == kept
    term.crash()
    term = Term(directory, settings=SETTINGS)
    assert term.bodies() == kept
    owner = term.store.queue(Q)
    term.take(term.page(owner).messages[::2], owner)
    assert term.bodies() == kept[1::2]
    term.close()


def test_a_removal_by_the_old_place_of_a_moved_message_succeeds(directory: str) -> None:
    with Term(directory, settings=SETTINGS) as term:
        kept = fill_sparsely(term, 10)
        compact(term)
        term.take(kept[:7])
        assert term.bodies() == [operation.message.body for operation in kept[7:]]


def test_files_removed_during_a_compaction_are_skipped(directory: str) -> None:
    with Term(directory, settings=OFF) as term:
        kept = fill_sparsely(term, 4)
    term = Term(directory, settings=replace(SETTINGS, compaction_rate=kept[0].size))  # a second a message
    owner = term.store.queue(Q)
    files = JournalFiles(directory).list()
    report = term.store.compact()
    term.wait(lambda: term.store.figures.bytes_copied > 0)
    before = len(term.durable_operations)
    for operation in kept[1:]:
        term.remove(operation, owner)
    term.wait_durable(before + len(kept) - 1)
    term.wait(term.store.checkpoint()[0].done)
    term.wait(lambda: not set(files[:-1]) & set(JournalFiles(directory).list()))
    assert not report.done(), "they went before their turn came"
    term.wait(report.done)
    assert term.bodies() == [kept[0].message.body]
    term.close()


def test_a_subscription_of_a_pattern_moves_topic_by_topic(directory: str) -> None:
    other, pattern = T._replace(name="T.OTHER"), T._replace(name="T.>")
    with Term(directory, settings=OFF) as term:
        expected = {}
        for topic in (T, other):
            owner = term.store.subscription("c", "wild", topic)
            payload = encode_subscription(topic, "c", "wild", "a = 1", subscribed=pattern)
            term.store.append(AddSubscription(owner, with_user_hint(payload, "ann")))
            topical = [term.add(topic, body=b"t" * 500, owners=(owner,)) for _ in range(20)]
            term.wait(lambda last=topical[-1]: last in term.durable_operations)
            for operation in topical[:10]:
                term.remove(operation, owner, "c:wild")
            expected[topic.name] = ([operation.message.message_id for operation in topical[10:]], "a = 1", "T.>", "ann")
        fill_sparsely(term, 10)
    with Term(directory, settings=SETTINGS) as term:
        compact(term)
        assert JournalFiles(directory).list()[0] > 5, "the files of the subscriptions' records are gone"
    for broker in ("a", "alone"):
        with Term(directory, broker, settings=SETTINGS) as term:
            found = {
                owner.destination.name: (
                    [paged.message.message_id for paged in term.page(owner.id).messages],
                    owner.selector,
                    owner.pattern,
                    owner.user,
                )
                for owner in term.owners
                if owner.subscription_name
            }
            assert found == expected, broker
        assert check(directory).problems == []


def test_durable_subscriptions_move_with_what_they_have_pending(directory: str) -> None:
    term = Term(directory, settings=OFF)
    one, two = term.store.subscription("c", "one", T), term.store.subscription("c", "two", T)
    for owner, name in ((one, "one"), (two, "two")):
        term.store.append(AddSubscription(owner, encode_subscription(T, "c", name)))
    topical = [term.add(T, body=b"t" * 500, owners=(one, two)) for _ in range(20)]
    term.wait(lambda: topical[-1] in term.durable_operations)
    for operation in topical[:10]:
        term.remove(operation, one, "c:one")
    for operation in topical[5:]:
        term.remove(operation, two, "c:two")
    fill_sparsely(term, 10)
    term.close()
    expected = {"one": [o.message.body for o in topical[10:]], "two": [o.message.body for o in topical[:5]]}
    with Term(directory, settings=SETTINGS) as term:
        compact(term)
        assert JournalFiles(directory).list()[0] > 5, "the files of the subscriptions' records are gone"
    for broker in ("a", "alone"):
        with Term(directory, broker, settings=SETTINGS) as term:
            found = {
                owner.subscription_name: [paged.message.body for paged in term.page(owner.id).messages]
                for owner in term.owners
                if owner.subscription_name
            }
            assert found == expected, broker
        assert check(directory).problems == []
    with Term(directory, "alone", settings=SETTINGS) as term:
        term.do(RemoveOwner(term.store.subscription("c", "two", T), encode_unsubscribe(T, "c", "two")))
        fill_sparsely(term, 12)
        compact(term)
    with Term(directory, "anew", settings=SETTINGS) as term:
        assert [owner.subscription_name for owner in term.owners if owner.subscription_name] == ["one"]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_prepared_transaction_moves_and_waits_for_its_outcome(directory: str, is_commit: bool) -> None:
    term = Term(directory, settings=OFF)
    owner = term.store.queue(Q)
    old = term.add_durably(2, body=b"old")
    message = term.message(body=b"prepared")
    payload = encode_add(message, encode_message(message), XID)
    remove = term.remove(old[0], owner)
    del term.turn[:], term.store._turn[:]
    remove.payload = encode_remove(Q, old[0].message.message_id, XID)
    term.do(PrepareTransaction(XID, [AddMessage(message, (owner,), payload), remove], encode_prepare(XID)))
    assert term.bodies() == [b"old"], "the removed one is withheld, the new one is not there yet"
    kept = [operation.message.body for operation in fill_sparsely(term, 10)]
    term.close()
    term = Term(directory, settings=SETTINGS)
    compact(term)
    assert JournalFiles(directory).list()[0] > 5
    term.crash()
    for broker in ("a", "alone"):
        with Term(directory, broker, settings=SETTINGS) as term:
            assert [(p.transaction, p.added, p.removed) for p in term.store.prepared()] == [(XID, 1, 1)]
            assert term.bodies() == [b"old", *kept]
        assert check(directory).problems == []
    term = Term(directory, settings=SETTINGS)
    owner = term.store.queue(Q)
    outcome = encode_commit(XID) if is_commit else encode_rollback(XID)
    end = EndTransaction(XID, is_commit, outcome)
    again = EndTransaction(XID, is_commit, outcome)
    term.store.append(end)
    term.do(again)
    assert again.is_unknown
    if is_commit:
        assert [(held, paged.message.body) for held, paged in end.added] == [(owner, b"prepared")]
        assert [held for held, _ in end.removed] == [owner]
        expected = [b"old", *kept, b"prepared"]
    else:
        assert [(held, paged.message.body) for held, paged in end.returned] == [(owner, b"old")]
        expected = [b"old", b"old", *kept]
    assert term.bodies() == expected
    fill_sparsely(term, 5, Destination(DestinationKind.QUEUE, "other"))
    compact(term)
    term.close()
    for broker in ("a", "anew"):
        with Term(directory, broker, settings=SETTINGS) as term:
            assert term.store.prepared() == []
            assert term.bodies() == expected
        assert check(directory).problems == []


def copies(directory: str) -> list[AddCommand]:
    """Return the copied messages in the journal."""
    files = JournalFiles(directory)
    batches = (batch for file in files.list() for batch in scan(files, file, on_corrupt=lambda _: None))
    records = (decode(payload) for batch in batches for _, payload in batch.records)
    return [record.add for record in records if isinstance(record, UpdateMessage)]


def test_the_copy_of_a_message_that_a_transaction_brought_is_in_no_transaction(directory: str) -> None:
    """The transaction has ended, so no later record states its outcome."""
    term = Term(directory, settings=OFF)
    message = term.message(body=b"prepared")
    payload = encode_add(message, encode_message(message), XID)
    prepare = PrepareTransaction(XID, [AddMessage(message, (term.store.queue(Q),), payload)], encode_prepare(XID))
    term.store.append(prepare)
    term.do(EndTransaction(XID, True, encode_commit(XID)))
    fill_sparsely(term, 3)
    term.close()
    with Term(directory, settings=SETTINGS) as term:
        compact(term)
    copied = copies(directory)
    assert message.message_id in [add.message_id for add in copied]
    assert {add.transaction for add in copied} == {None}


@pytest.mark.parametrize("is_of_this_term", [True, False])
def test_a_damaged_message_is_not_copied_and_its_file_stays(unchecked: str, is_of_this_term: bool) -> None:
    """A copy has a new checksum, so damaged bytes in it would count as sent."""
    files = JournalFiles(unchecked)
    term = Term(unchecked, settings=OFF)
    kept = fill_sparsely(term, 6)
    spoilt = kept[2]
    file, start = spoilt.location >> 32, spoilt.location & 0xFFFFFFFF
    content = Path(files.path(file)).read_bytes()
    at = content.index(b"xxxx", start)
    if not is_of_this_term:
        term.close()
        term = Term(unchecked, settings=SETTINGS)
    with open(files.path(file), "r+b") as stream:
        stream.seek(at)
        stream.write(b"y")
    with term:
        report = compact(term)
    assert file not in report.files
    assert len(report.files) >= 4
    assert file in files.list()
    assert spoilt.message.message_id not in [add.message_id for add in copies(unchecked)]


def reclaimed(directory: str) -> Sequence[int]:
    """The files that are left when a master gave up all that nothing needs."""
    with Term(directory, settings=OFF) as term:
        term.store.checkpoint()[0].result(20)
    return JournalFiles(directory).list()


def prepared(term: Term) -> None:
    message = term.message(body=b"prepared")
    payload = encode_add(message, encode_message(message), XID)
    term.do(PrepareTransaction(XID, [AddMessage(message, (term.store.queue(Q),), payload)], encode_prepare(XID)))


def test_an_old_index_knows_a_prepared_transaction_that_moved_twice(directory: str) -> None:
    """The copies between what it knows and what is there went before it read them."""
    term = Term(directory, settings=OFF)
    prepared(term)
    kept = [operation.message.body for operation in fill_sparsely(term, 3)]
    term.close()
    shutil.copytree(f"{directory}/index/a", f"{directory}/index/old")
    for _ in range(2):
        before = JournalFiles(directory).list()
        with Term(directory, settings=SETTINGS) as term:
            compact(term)
        assert not set(before) & set(JournalFiles(directory).list()), "all of it was moved"
    assert check(directory).problems == []
    with Term(directory, "old", settings=SETTINGS) as term:
        assert [(p.transaction, p.added) for p in term.store.prepared()] == [(XID, 1)]
        assert term.bodies() == kept


@pytest.mark.parametrize("again", ["prepared", "moved", "committed at once"])
def test_an_old_index_knows_a_transaction_whose_id_was_used_again(directory: str, again: str) -> None:
    """The outcome of the first one went with its file, which the journal says behind the second one."""
    with Term(directory, "old", settings=OFF) as term:
        prepared(term)
    with Term(directory, settings=replace(OFF, cleanup_interval=3600.0)) as term:
        term.store.checkpoint()[0].result(20)  # the last clean-up before the end
        term.do(EndTransaction(XID, False, encode_rollback(XID)))
        dense = fill_sparsely(term, 2)
        if again == "committed at once":
            message = term.message(body=b"second")
            payload = encode_add(message, encode_message(message), XID)
            term.do(Atomic([AddMessage(message, (term.store.queue(Q),), payload)], encode_commit(XID)))
        else:
            prepared(term)
        term.take(dense)
        if again == "moved":
            step = term.compaction_of(JournalFiles(directory).list()[-1])
            fill_sparsely(term, 1)
            while step():
                pass
    assert reclaimed(directory)[0] > 2, "what told of its outcome is gone"
    with Term(directory, settings=OFF) as term:
        known = (term.store.prepared(), term.bodies())
    with Term(directory, "old", settings=OFF) as term:
        assert (term.store.prepared(), term.bodies()) == known


def removes_prepared(term: Term, transaction: XaTransactionId) -> None:
    """The first message of the queue."""
    owner = term.store.queue(Q)
    (paged,) = term.page(owner, count=1).messages
    payload = encode_remove(Q, paged.message.message_id, transaction)
    removal = RemoveMessage(owner, paged.order_key, paged.location, paged.message.message_id, payload, size=paged.size)
    term.do(PrepareTransaction(transaction, [removal], encode_prepare(transaction)))


def test_an_old_index_withholds_what_another_transaction_removes_now(directory: str) -> None:
    """The former one was rolled back, and no file tells so any more."""
    with Term(directory, "old", settings=OFF) as term:
        term.add_durably(1)
        dense = fill_sparsely(term, 2)
        removes_prepared(term, XID)
        file = JournalFiles(directory).list()[-1]
    with Term(directory, settings=replace(OFF, cleanup_interval=3600.0)) as term:
        term.store.checkpoint()[0].result(20)  # the last clean-up before the end
        dense += fill_sparsely(term, 2)
        term.do(EndTransaction(XID, False, encode_rollback(XID)))
        dense += fill_sparsely(term, 2)
        removes_prepared(term, XID._replace(branch=b"another"))
        term.take(dense)
    assert file not in reclaimed(directory), "what told of its outcome is gone"
    with Term(directory, "old", settings=OFF) as term:
        assert term.bodies() == []


def subscribed(term: Term, name: str, selector: str | None = None) -> int:
    """Subscribe. A second call changes the terms of the same subscription."""
    owner = term.store.subscription("c", name, T)
    term.do(AddSubscription(owner, encode_subscription(T, "c", name, selector)))
    return owner


def test_a_subscription_that_changes_while_it_moves_keeps_the_record_before_what_it_holds(directory: str) -> None:
    with Term(directory, settings=OFF) as term:
        one = subscribed(term, "one")
        last = term.add(T, owners=(one,))
        term.wait(lambda: last in term.durable_operations)
        step = term.compaction_of(JournalFiles(directory).list()[0])
        assert step(), "its record is copied"
        assert step(), "what is pending is copied"
        subscribed(term, "one", "price > 1")
        step()
        record, (held,) = term.store.ask(
            lambda state: (state.owners[one].record_location, [each.location for _, each in state.entries(one, 0)])
        ).result(10)
        assert record < held


def test_a_prepare_that_stands_alone_in_its_file_moves(directory: str) -> None:
    """The layout is ActiveMQ's: each operation of the transaction is written when it is performed."""
    foreign = ForeignStore(Path(directory), records_per_file=1)
    foreign.send(Q, transaction=XID)
    foreign.prepare(XID)
    foreign.write()
    with Term(directory, settings=OFF) as term:
        assert term.compaction_of(2)()
        (places,) = term.store.ask(
            lambda state: [each.prepared_at >> 32 for each in state.transactions.values()]
        ).result(10)
        assert places > 2


def one_ended_while_old_was_away(directory: str) -> Term:
    with Term(directory, "old", settings=OFF) as term:
        subscribed(term, "one")
    term = Term(directory, settings=OFF)
    one = next(owner.id for owner in term.owners if owner.subscription_name == "one")
    term.do(RemoveOwner(one, encode_unsubscribe(T, "c", "one")))
    return term


@pytest.mark.parametrize("moves", [False, True])
def test_an_old_index_knows_a_subscription_that_ended_and_began_again(directory: str, moves: bool) -> None:
    """The record of its end was removed with its file: messages from between do not belong to the new one, even after
    it was moved."""
    term = one_ended_while_old_was_away(directory)
    two = subscribed(term, "two")
    for operation in fill_sparsely(term, 3):
        term.remove(operation, term.store.queue(Q))
    before = JournalFiles(directory).list()
    compact(term)
    for _ in range(3):
        term.add(T, owners=(two,))
    fill_sparsely(term, 1)
    one = subscribed(term, "one")
    last = [term.add(T, owners=(two, one)) for _ in range(2)][-1]
    term.wait(lambda: last in term.durable_operations)
    if moves:
        step = term.compaction_of(JournalFiles(directory).list()[-1])
        fill_sparsely(term, 1)
        while step():
            pass
    term.close()
    assert before[0] not in JournalFiles(directory).list(), "what told of its end is gone"
    with Term(directory, "old", settings=OFF) as term:
        held = {owner.subscription_name: owner.count for owner in term.owners if owner.subscription_name}
        assert held == {"one": 2, "two": 5}


def test_an_old_index_knows_a_message_that_was_removed_and_added_again(directory: str) -> None:
    """The message is like a retried dead letter: its removal went with its file, and the journal shows this after the
    second Add."""
    with Term(directory, "old", settings=OFF) as term:
        (first,) = term.add_durably(1)
    with Term(directory, settings=replace(OFF, cleanup_interval=3600.0)) as term:
        term.store.checkpoint()[0].result(20)  # the last clean-up before the end
        term.take(term.page(term.store.queue(Q)).messages)
        dense = fill_sparsely(term, 2)
        term.do(AddMessage(first.message, (term.store.queue(Q),), first.payload))
        term.take(dense)
    assert reclaimed(directory)[0] > first.location >> 32, "what told of its removal is gone"
    with Term(directory, "old", settings=OFF) as term:
        assert term.bodies() == [first.message.body]


@pytest.mark.parametrize("standby_checkpoints", [False, True])
def test_an_old_index_knows_a_subscription_that_was_created_again_with_other_terms(
    directory: str, standby_checkpoints: bool
) -> None:
    """The subscription holds the messages since it began, not only since its newest record: no file shows its end any
    more."""
    term = one_ended_while_old_was_away(directory)
    dense = fill_sparsely(term, 3)
    begins = JournalFiles(directory).list()[-2]
    two = subscribed(term, "two")
    term.add(T, owners=(two,))
    one = subscribed(term, "one")
    for number in range(3):  # in a file each
        last = term.add(T, owners=(two, one))
        term.wait(lambda last=last: last in term.durable_operations)  # type: ignore[misc]
        dense += fill_sparsely(term, 2)
        assert subscribed(term, "one", f"price > {number}") == one
    if standby_checkpoints:
        standby = Standby(directory, f"{directory}/index", "old", OFF)
        for _ in range(10):  # and makes checkpoints
            standby.follow()
        standby.close()
    for operation in dense:
        term.remove(operation, term.store.queue(Q))
    term.store.checkpoint()[0].result(20)
    term.close()
    assert JournalFiles(directory).list()[0] >= begins, "what told of its end is gone"
    with Term(directory, "old", settings=OFF) as term:
        held = {owner.subscription_name: owner.count for owner in term.owners if owner.subscription_name}
        assert held == {"one": 3, "two": 4}
