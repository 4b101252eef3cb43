"""The store over a real directory: what was durable is there again, in order, whatever the ending was."""

# proves: journal-end, live-files, pins, upkeep

from __future__ import annotations

import os

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.operations import AddMessage, AddSubscription, Atomic, RemoveMessage, RemoveOwner
from tandemmq.store.records.commands import (
    encode_add,
    encode_commit,
    encode_remove,
    encode_subscription,
    encode_unsubscribe,
)
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.settings import StoreSettings
from tests.support.store.store_harness import Q, Term

T = Destination(DestinationKind.TOPIC, "T.A")


@pytest.mark.parametrize("ending", ["close", "crash"])
def test_what_was_acknowledged_does_not_come_back(directory: str, ending: str) -> None:
    term = Term(directory)
    added = term.add_durably(30)
    term.take(added[::2])
    getattr(term, ending)()
    with Term(directory) as again:
        assert again.bodies() == [f"body {n}".encode() for n in range(2, 31, 2)]


def test_the_journal_alone_rebuilds_everything(directory: str) -> None:
    with Term(directory) as term:
        added = term.add_durably(30)
        term.take(added[:10])
    os.rename(f"{directory}/index", f"{directory}/away")
    with Term(directory) as again:
        assert again.bodies() == [f"body {n}".encode() for n in range(11, 31)]
    os.rename(f"{directory}/away", f"{directory}-away")


def test_a_page_sees_what_came_before_it_and_nothing_that_was_removed(directory: str) -> None:
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


def test_a_transaction_happens_whole(directory: str) -> None:
    term = Term(directory)
    old = term.add_durably(3)
    owner = term.store.queue(Q)
    transaction = LocalTransactionId("ID:c", 1)
    parts: list[AddMessage | RemoveMessage] = []
    for body in (b"one", b"two"):
        message = term.message(body=body)
        parts.append(AddMessage(message, (owner,), encode_add(message, encode_message(message), transaction)))
    first = old[0]
    parts.append(
        RemoveMessage(
            owner,
            first.order_key,
            first.location,
            first.message.message_id,
            encode_remove(Q, first.message.message_id, transaction),
            size=first.size,
        )
    )
    term.store.append(Atomic(parts, encode_commit(transaction)))
    term.wait_durable(4)
    assert term.bodies() == [b"body 2", b"body 3", b"one", b"two"]
    term.crash()
    with Term(directory) as again:
        assert again.bodies() == [b"body 2", b"body 3", b"one", b"two"]


def test_durable_subscriptions_hold_what_each_has_not_acknowledged(directory: str) -> None:
    term = Term(directory)
    owners = []
    for name in ("s1", "s2"):
        owner = term.store.subscription("c", name, T)
        owners.append(owner)
        term.store.append(AddSubscription(owner, encode_subscription(T, "c", name)))
    added = [term.add(T, owners=tuple(owners)) for _ in range(4)]
    term.wait_durable(6)
    term.remove(added[0], owners[0], "c:s1")
    term.wait_durable(7)
    term.crash()
    again = Term(directory)
    assert sorted((o.client_id, o.subscription_name, o.count) for o in again.owners) == [("c", "s1", 3), ("c", "s2", 4)]
    one = again.store.subscription("c", "s1", T)
    again.store.append(RemoveOwner(one, encode_unsubscribe(T, "c", "s1")))
    again.wait_durable(1)
    again.crash()
    with Term(directory) as third:
        assert [(o.subscription_name, o.count) for o in third.owners] == [("s2", 4)]


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
    term.crash()  # the process dies, the machine does not
    with Term(directory, settings=settings) as again:
        assert len(again.bodies()) == 10


def test_the_periodic_strategy_syncs_what_lies_around_when_nothing_comes(directory: str) -> None:
    settings = StoreSettings(
        journal_disk_sync_strategy="periodic", journal_disk_sync_interval=0.05, fence_check_interval=0.02
    )
    with Term(directory, settings=settings) as term:
        before = term.store.figures.syncs
        term.add_durably(3)
        term.wait(lambda: term.store.figures.syncs > before)


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
def test_what_this_term_wrote_is_compared_when_it_is_read(directory: str, is_read_before: bool) -> None:
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


def test_what_it_was_given_to_do_is_what_comes_back(directory: str) -> None:
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
