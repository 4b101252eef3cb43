"""Reasons for a journal file: every holder is named with its figures, and every byte has an owner."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.operations import AddMessage, AddSubscription, PagedMessage, PrepareTransaction
from tandemmq.store.records.commands import encode_add, encode_prepare, encode_remove, encode_subscription
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import XaTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state.state import State
from tandemmq.store.tools.check import check
from tandemmq.store.tools.inspect import read_headers
from tandemmq.store.tools.why.explain import Place, copy_facts, explain
from tandemmq.store.tools.why.inventory import UNKNOWN
from tandemmq.store.tools.why.offline import read_state
from tandemmq.store.tools.why.report import FileWhy, Why
from tandemmq.store.tools.why.verdict import Graph
from tests.support.prove import SEED
from tests.support.store.store_harness import KIB, RESTLESS, STILL, Q, Term

pytestmark = pytest.mark.promise("bytes-are-explained")

FILE_BYTES = 64 * KIB
EU = Destination(DestinationKind.QUEUE, "ORDERS.EU")
BUSY = Destination(DestinationKind.QUEUE, "BUSY")
T = Destination(DestinationKind.TOPIC, "PRICES")
XID = XaTransactionId(5, b"global", b"branch")
# The harness's messages were sent in 1970; the request comes this many ms later.
NINE_DAYS = 9 * 86_400_000 + 5_000

R = TypeVar("R")


def why_online(term: Term, only: int | None = None, consumers: dict[str, int] | None = None) -> Why:
    term.end_turn()
    files = JournalFiles(term.directory)

    def ask(function: Callable[[State], R]) -> R:
        return term.store.ask(function).result(10)

    place = Place(files, FILE_BYTES, True)
    return explain(ask, place, read_headers(files), NINE_DAYS, consumers=consumers, only=only)


def why_offline(directory: str, only: int | None = None) -> Why:
    with read_state(directory, is_live=False) as follower:
        place = Place(JournalFiles(directory), FILE_BYTES, False)
        return explain(lambda function: function(follower.state), place, follower.epoch_history, NINE_DAYS, only=only)


def churn(term: Term, messages: int = 30) -> None:
    """About a file's worth of messages that come and go."""
    owner = term.store.queue(BUSY)
    term.take(term.add_durably(messages, BUSY, body=b"x" * 2000), owner)


def file_of(why: Why, file: int) -> FileWhy:
    return next(known for known in why.files if known.file == file)


class Placed(Term):
    """A term that knows its directory."""

    def __init__(self, directory: str, broker: str = "a", settings: StoreSettings = STILL) -> None:
        super().__init__(directory, broker, settings)
        self.directory = directory


def test_a_forgotten_message_is_named_with_its_age_and_what_moving_it_frees(directory: str) -> None:
    term = Placed(directory)
    (forgotten,) = term.add_durably(1, EU, body=b"y" * 100)
    for _ in range(4):
        churn(term)
    file = forgotten.location >> 32

    found = file_of(why_online(term, consumers={"queue://BUSY": 2}), file)

    (holder,) = found.holders
    assert (holder.destination, holder.count, holder.bytes) == ("queue://ORDERS.EU", 1, forgotten.size)
    assert holder.consumers == 0
    assert holder.oldest is not None
    assert (holder.oldest.message_id, holder.oldest.timestamp) == (forgotten.message.message_id, 1)
    assert holder.oldest.offset == forgotten.location & 0xFFFFFFFF
    assert (found.state, found.moves, found.frees) == ("held", forgotten.size, found.bytes)
    assert found.action == (
        "1 message of queue://ORDERS.EU, oldest 9 days, no consumer: consume or purge it, "
        f"or `tandemmq store compact` moves {forgotten.size} B and frees 64 KiB"
    )
    term.close()


def test_a_compaction_frees_the_predicted_bytes(directory: str) -> None:
    term = Placed(directory)
    for _ in range(6):
        term.add_durably(1, EU)
        churn(term)
    before = why_online(term)
    sparse = [known for known in before.files if known.state == "held"]
    assert not before.is_bound_held
    assert sparse
    assert all("`tandemmq store compact` moves" in known.action for known in sparse)

    asked = term.store.compact()
    term.wait(asked.done, 20)
    after = why_online(term)

    assert after.is_bound_held
    gone = {known.file for known in before.files} - {known.file for known in after.files}
    assert {known.file for known in sparse if known.file in asked.result().files} <= gone
    assert after.live_messages == before.live_messages == 6
    assert all("`tandemmq store compact`" not in known.action for known in after.files), "there is nothing to gain"
    term.close()


def test_acknowledgements_lead_to_the_file_that_must_be_removed_first(directory: str) -> None:
    term = Placed(directory, settings=RESTLESS)
    old = term.add_durably(2, EU, body=b"kept and acknowledged later")
    churn(term)
    before = len(term.durable_operations)
    acknowledged = term.remove(old[1], term.store.queue(EU))
    term.wait_durable(before + 1)
    position = term.store.ask(lambda state: state.position).result(10)
    assert position is not None
    holding, held_down = position.file, old[0].location >> 32
    assert acknowledged.order_key >> 64 == held_down
    churn(term)
    churn(term)

    why = why_online(term)
    found = file_of(why, holding)

    assert held_down in found.pins
    assert (found.roots, found.live_messages) == ([held_down], 0)
    assert holding in file_of(why, held_down).pinned_by
    assert found.frees >= found.bytes + file_of(why, held_down).bytes, "with the root all that waits for it goes"
    assert f"refer to records in db-{held_down}.log" in found.action
    assert why_online(term, holding).files[0].acknowledgements["queue://ORDERS.EU"] == 1
    term.close()


def test_a_durable_subscriber_is_named_with_what_it_has_pending_and_its_record(directory: str) -> None:
    term = Placed(directory)
    owner = term.store.subscription("billing", "three", T)
    term.store.append(AddSubscription(owner, encode_subscription(T, "billing", "three")))
    pending = [term.add(T, body=b"t" * 100, owners=(owner,)) for _ in range(3)]
    term.wait(lambda: pending[-1] in term.durable_operations)
    churn(term, 40)

    found = file_of(why_online(term, consumers={"billing:three": 1}), pending[0].location >> 32)

    (holder,) = (each for each in found.holders if each.client_id is not None)
    assert (holder.destination, holder.client_id, holder.subscription_name) == ("topic://PRICES", "billing", "three")
    assert (holder.count, holder.consumers) == (3, 1)
    assert [(each.client_id, each.subscription_name) for each in found.subscriptions] == [("billing", "three")]
    assert "3 messages of topic://PRICES for billing:three, oldest 9 days, 1 consumer" in found.action
    assert "the record of durable subscription billing:three" in found.action
    term.close()


def test_a_prepared_transaction_is_named_with_its_age(directory: str) -> None:
    term = Placed(directory)
    owner = term.store.queue(Q)
    (old,) = term.add_durably(1)
    message = term.message()
    payload = encode_add(message, encode_message(message), XID)
    remove = term.remove(old, owner)
    del term.turn[:], term.store._turn[:]
    remove.payload = encode_remove(Q, old.message.message_id, XID)
    term.do(PrepareTransaction(XID, [AddMessage(message, (owner,), payload), remove], encode_prepare(XID)))
    churn(term, 40)

    found = file_of(why_online(term), old.location >> 32)

    (transaction,) = found.transactions
    assert (transaction.key, transaction.is_prepared) == (XID.key, True)
    assert (transaction.operations, transaction.operations_total, transaction.since) == (2, 2, 1)
    assert f"2 operations of prepared transaction {XID.key}, 9 days old" in found.action
    assert "commit or roll back the prepared transactions" in found.action
    term.close()


def test_the_first_file_of_an_epoch_waits_for_all_before_it(directory: str) -> None:
    term = Placed(directory)
    (kept,) = term.add_durably(1, EU)
    term.close()
    term = Placed(directory, "b")
    first = term.store.epoch
    churn(term)
    churn(term)

    found = file_of(why_online(term), first)

    assert (found.fences_before, found.roots) == ([kept.location >> 32], [kept.location >> 32])
    assert "it is the fence of a promotion, so it is removed after all older files" in found.action
    term.close()


def test_the_tail_and_removable_files_are_distinguished(directory: str) -> None:
    term = Placed(directory)
    for _ in range(3):
        churn(term)
    term.add_durably(2, EU)
    why = why_online(term)
    assert why.files[-1].action == "the master writes to it; 2 messages of queue://ORDERS.EU, oldest 9 days"
    assert [known.state for known in why.files][-1] == "tail"
    assert why.reclaimable == [known.file for known in why.files if known.state == "reclaimable"]
    assert why.reclaimable
    assert why.reclaimable_bytes == sum(file_of(why, file).bytes for file in why.reclaimable)
    term.close()
    assert {known.state for known in why_offline(directory).files} <= {"held", "reclaimable"}, "nobody writes"


def test_every_byte_of_the_directory_is_explained(directory: str) -> None:
    term = Placed(directory)
    term.add_durably(3)
    term.close()
    Placed(directory, "b").close()
    names = (
        "lock", "db.data", "db.redo", ".next-gone", ".listing-gone", "quarantine/db-3.log.0", "data-archive/db-1.log",
    )  # fmt: skip
    for name in (*names, f".doctor-{0:032x}/synced"):
        path = Path(directory, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"1234567")
    Path(directory, "index", "a.aside-1").mkdir()
    Path(directory, "holiday.jpg").write_bytes(b"12345")

    why = why_offline(directory)

    on_disk = sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
    assert sum(thing.bytes for thing in why.things) == on_disk
    assert why.journal_bytes == next(thing.bytes for thing in why.things if thing.kind == "journal")
    assert {thing.name for thing in why.things if thing.kind == UNKNOWN} == {"holiday.jpg"}
    kinds = {thing.name: thing.kind for thing in why.things}
    assert kinds["index/a/"] == kinds["index/b/"] == "index"
    assert (kinds["index/a.aside-1/"], kinds["data-archive/"]) == ("aside", "archive")
    assert (kinds[".next-gone"], kinds[".listing-gone"]) == ("next", "listing")


def test_reading_changes_nothing_and_gives_the_result_of_the_running_store(directory: str) -> None:
    term = Placed(directory)
    for _ in range(3):
        term.add_durably(2, EU)
        churn(term)
    running = why_online(term)
    term.crash()
    before = _snapshot(directory)

    from_index = why_offline(directory)

    assert _snapshot(directory) == before
    for path in Path(directory, "index").rglob("*"):
        if path.is_file():
            path.unlink()
    from_journal = why_offline(directory)
    for known in running.files:
        if known.state != "tail":
            assert _gist(file_of(from_index, known.file)) == _gist(known)
            assert _gist(file_of(from_journal, known.file)) == _gist(known)


def _snapshot(directory: str) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in Path(directory).rglob("*") if path.is_file()
    }


def _gist(file: FileWhy) -> tuple[object, ...]:
    holders = [(each.destination, each.count, each.bytes, each.oldest) for each in file.holders]
    return file.live_bytes, file.live_messages, holders, file.pins, file.roots, file.frees


def test_a_damaged_journal_is_explained_as_far_as_it_can_be_read(unchecked: str) -> None:
    term = Placed(unchecked)
    (kept,) = term.add_durably(1, EU)
    churn(term)
    churn(term)
    term.crash()
    path = JournalFiles(unchecked).path(kept.location >> 32)
    with open(path, "r+b") as file:
        file.seek((kept.location & 0xFFFFFFFF) + 20)
        file.write(b"\xff\xff")
    before = _snapshot(unchecked)

    with read_state(unchecked, is_live=False) as follower:
        place = Place(JournalFiles(unchecked), FILE_BYTES, False)
        why = explain(lambda function: function(follower.state), place, follower.epoch_history, NINE_DAYS)
        damage = [str(each) for each in follower.damages]

    assert _snapshot(unchecked) == before, "nothing is put into quarantine by one who only asks"
    assert kept.message.message_id in " ".join(damage)
    assert why.live_messages == 0
    assert not check(unchecked).is_clean


def test_the_explanation_agrees_with_the_rule_of_reclaiming(directory: str) -> None:
    """Random work; then, for each file, emptying its roots frees just what the store's own rule frees."""
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    compared = 0
    for epoch in range(3):
        term = Placed(directory, f"broker-{epoch % 2}", RESTLESS)
        owner = term.store.queue(EU)
        held: list[AddMessage | PagedMessage] = list(term.page(owner).messages)
        for _ in range(20):
            held += term.add_durably(chance.randrange(1, 12), EU, body=b"z" * chance.randrange(10, 6000))
            mortal = [operation for operation in held if not operation.message.message_id.endswith("7")]
            going = [operation for operation in mortal if chance.random() < 0.5]
            before = len(term.durable_operations)
            for operation in going:
                held.remove(operation)
                term.remove(operation, owner)
            term.wait_durable(before + len(going))
        compared += term.store.ask(partial(_compare, directory=directory)).result(30)
        term.close()
        assert check(directory).is_clean
    assert compared > 10, "there were files to speak of"


def _compare(state: State, directory: str) -> int:
    files = JournalFiles(directory)
    sizes = {file: files.size(file) for file in files.list()}
    epoch_history: EpochHistory = read_headers(files)
    facts = copy_facts(lambda function: function(state), epoch_history, sizes, is_written=True)
    graph = Graph(facts, epoch_history)
    assert graph.freed_with(set()) == set()
    for file, roots in graph.roots.items():
        expected = set(state.reclaimable(epoch_history.first_of_epoch, facts.tail, frozenset(roots)))
        assert graph.freed_with(roots) | facts.reclaimable == expected, f"db-{file}.log, roots {roots}"
        if file < facts.tail:
            assert file in expected, f"db-{file}.log goes when {roots} are empty"
    return len(graph.roots)
