"""Turns that go through the journal's CommitQueue: they are reported in order, with the same results as other turns."""

# proves: journal-end, reported-in-its-order, completion-is-as-old-as-its-check, halted-delivers-nothing
# proves: lost-turn-ends-the-store, lost-writes-nothing-more, nothing-to-write-takes-the-inbox
# proves: cleared-before-the-inbox, copies-take-the-inbox, submitted-commit-is-written
# proves: submitted-has-its-place-in-the-commit
# proves: unmatched-acks-take-the-inbox, native-interrupted-takes-no-more, native-proof-is-passed-on

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from tandemmq.journal.errors import Deposed
from tandemmq.journal.files import JournalFiles
from tandemmq.store.operations import AddMessage, Atomic, Operation, Page, RemoveMessage
from tandemmq.store.records.commands import encode_add, encode_commit, encode_remove
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId
from tandemmq.store.standby import Standby
from tandemmq.store.state.state import State
from tandemmq.store.store import Store
from tandemmq.store.threads import OsInbox, OsThreads
from tandemmq.store.writer.journal_end import NoProof
from tests.support.journal import journal_native
from tests.support.prove import SEED
from tests.support.store.queued_term import QueuedTerm
from tests.support.store.store_harness import KIB, SMALL, Q, Term

native = journal_native.native
pytestmark = pytest.mark.usefixtures("native")

LOCAL = LocalTransactionId("ID:c", 1)
QUEUES = tuple(Destination(DestinationKind.QUEUE, f"Q.{number}") for number in range(3))


def removal(term: Term, added: AddMessage, transaction: TransactionId | None = None) -> RemoveMessage:
    message = added.message
    payload = encode_remove(message.destination, message.message_id, transaction)
    owner = term.store.queue(message.destination)
    return RemoveMessage(owner, added.order_key, added.location, message.message_id, payload, size=added.size)


def sent(
    term: Term, transaction: TransactionId | None = None, destination: Destination = Q, body: bytes = b"x"
) -> AddMessage:
    """Part of an atomic operation: what a client sends, with an id that the broker made for it."""
    message = term.message(destination, body)
    payload = encode_add(message, encode_message(message), transaction)
    return AddMessage(message, (term.store.queue(destination),), payload, is_new=True)


class Work:
    """Random turns of a term, and what they handed over."""

    def __init__(self, term: QueuedTerm, chance: random.Random) -> None:
        self._term = term
        self._chance = chance
        self._held: list[AddMessage] = []
        self._transactions = 0
        self.handed_over: list[Operation] = []

    def _add(self) -> None:
        body = b"x" * self._chance.choice((1, 200))
        self.handed_over.append(self._term.add(self._chance.choice(QUEUES), body))

    def _remove(self) -> None:
        if self._held:
            self._append(removal(self._term, self._held.pop(self._chance.randrange(len(self._held)))))

    def _remove_at_once(self) -> None:
        if self._held:
            self._append(Atomic([removal(self._term, self._held.pop())]))

    def _commit(self) -> None:
        """Commit sends and acknowledgements together, in a transaction or without one; there may be none."""
        self._transactions += 1
        local = LocalTransactionId("ID:c", self._transactions) if self._chance.random() < 0.7 else None
        parts: list[AddMessage | RemoveMessage] = []
        for _ in range(self._chance.choice((0, 1, 1, 2, 5))):
            if self._held and self._chance.random() < 0.5:
                parts.append(removal(self._term, self._held.pop(), local))
            else:
                body = b"x" * self._chance.choice((1, 200))
                parts.append(sent(self._term, local, self._chance.choice(QUEUES), body))
        self._append(Atomic(parts, None if local is None else encode_commit(local)))

    def _page(self) -> None:
        self._append(Page(self._term.store.queue(self._chance.choice(QUEUES)), 0, 5, 1 << 20))

    def _append(self, operation: Operation) -> None:
        self._term.store.append(operation)
        self.handed_over.append(operation)

    def turn(self) -> None:
        """Three of four have nothing but messages that are added and removed, alone or together."""
        deeds = [self._add, self._add, self._add, self._remove, self._remove, self._commit, self._remove_at_once]
        if self._chance.random() < 0.25:
            deeds.append(self._page)
        for _ in range(self._chance.choice((1, 1, 1, 5, 80))):
            self._chance.choice(deeds)()
        self._term.end_turn()

    def wait(self) -> None:
        before = len(self._term.durable_operations)
        self._term.wait(lambda: len(self._term.durable_operations) >= len(self.handed_over))
        came = self._term.durable_operations[before:]
        for each in came:
            parts = each.operations if isinstance(each, Atomic) else (each,)
            self._held += [part for part in parts if isinstance(part, AddMessage)]


def test_all_submitted_operations_are_reported_in_order_and_stored(directory: str) -> None:
    """Turns of every kind, one after the other and many at once."""
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    # A new file, and a mark of the time, now and then: between them the queue is closed.
    settings = replace(SMALL, journal_max_file_length=16 * KIB, clock_mark_interval=0.1, max_async_jobs=50)
    through_the_queue = 0
    for broker in ("a", "b"):
        term = QueuedTerm(directory, broker, settings)
        work = Work(term, chance)
        for _ in range(100):
            work.turn()
            if chance.random() < 0.7:
                work.wait()
        work.wait()
        assert term.durable_operations == work.handed_over
        through_the_queue += term.served
        left = {queue: term.bodies(queue) for queue in QUEUES}
        term.close() if chance.random() < 0.5 else term.crash()
        with Term(directory, broker, settings) as again:
            assert {queue: again.bodies(queue) for queue in QUEUES} == left
    assert through_the_queue > 5


def page(term: QueuedTerm) -> Page:
    """A Page in a separate turn, which the queue does not take."""
    page = Page(term.store.queue(Q), 0, 1, 1 << 20)
    term.store.append(page)
    term.end_turn()
    return page


def test_inbox_items_come_after_earlier_submissions(directory: str) -> None:
    term = QueuedTerm.opened(directory)
    before = len(term.durable_operations)
    added = term.add()
    term.end_turn()
    asked = page(term)
    while not term.submissions._reports:  # until the thread has reported the page
        time.sleep(0.001)
    term.poll()
    assert term.durable_operations[before:] == [added, asked]
    term.close()


def test_submissions_come_after_earlier_inbox_items(directory: str) -> None:
    """However much that was: the thread takes a part of its inbox, and the queue is closed until it has the rest."""
    term = QueuedTerm.opened(directory, max_async_jobs=3)
    before = len(term.durable_operations)
    operations: list[Operation] = [page(term) for _ in range(10)]
    time.sleep(0.05)
    operations.append(term.add())
    term.wait(lambda: len(term.durable_operations) >= before + len(operations))
    assert term.durable_operations[before:] == operations
    term.close()


def test_without_proof_nothing_comes_back_and_the_store_is_lost(directory: str) -> None:
    term = QueuedTerm.opened(directory)
    before = len(term.durable_operations)
    term.has_proof = False
    term.add()
    assert isinstance(term.wait_lost(), NoProof)
    term.has_proof = True
    term.end_turn()
    term.poll()
    assert len(term.durable_operations) == before
    term.crash()


@pytest.mark.parametrize("commit", [None, encode_commit(LOCAL)])
def test_an_empty_transaction_comes_back(directory: str, commit: bytes | None) -> None:
    """Alone, and in a turn with a message. It writes nothing."""
    term = QueuedTerm.opened(directory)
    position = term.position
    term.do(Atomic((), commit))
    assert term.position == position
    added = term.add()
    term.do(Atomic((), commit))
    assert added in term.durable_operations
    term.close()
    with Term(directory) as again:
        assert again.bodies().count(added.message.body) == 1


def queued(term: QueuedTerm, *operations: Operation) -> int:
    """Hand them over in one turn when the queue is open; return how many batches of the queue it was."""
    term.wait_open()
    before = term.served
    for each in operations:
        term.store.append(each)
    term.wait(lambda: operations[-1] in term.durable_operations)
    return term.served - before


@pytest.mark.parametrize("transaction", [None, LOCAL])
def test_a_commit_is_one_batch_of_the_queue_and_has_the_places_that_a_replay_gives_it(
    directory: str, transaction: LocalTransactionId | None
) -> None:
    term = QueuedTerm.opened(directory)
    taken, left = term.add_durably(2)
    records = term.store.figures.records
    parts = [sent(term, transaction), removal(term, taken, transaction), sent(term, transaction)]
    commit = None if transaction is None else encode_commit(transaction)
    between = sent(term)
    behind = sent(term)
    assert queued(term, between, Atomic(parts, commit), behind) == 1
    term.store.check_fence_soon()
    placed = {each.order_key: each.message.message_id for each in (left, between, parts[0], parts[2], behind)}
    page = term.page(term.store.queue(Q))
    held = {each.order_key: each.message.message_id for each in page.messages}
    assert held.items() >= placed.items()
    assert taken.message.message_id not in held.values()
    assert term.store.figures.records - records >= 5 + (commit is not None)
    term.crash()
    with Term(directory) as again:
        page = again.page(again.store.queue(Q))
        assert {each.order_key: each.message.message_id for each in page.messages} == held


def test_copies_of_a_message_for_one_queue_are_both_there(directory: str) -> None:
    """The second gets another id: a replay would take it for the first."""
    term = QueuedTerm.opened(directory)
    copy = sent(term)
    other = AddMessage(copy.message, copy.owners, copy.payload, is_new=True)
    assert queued(term, Atomic((copy, other))) == 0
    term.crash()
    with Term(directory) as again:
        assert again.bodies().count(copy.message.body) == 2


class LateInbox(OsInbox):
    """Gets an item at the moment when its thread has found it empty; ``late`` puts it. ``empties``: how often it was
    found empty."""

    def __init__(self) -> None:
        self.late: list[Callable[[], object]] = []
        self.empties = 0

    def get_nowait(self) -> Any:
        try:
            return super().get_nowait()
        except Empty:
            self._found_empty()
            raise

    def empty(self) -> bool:
        found = super().empty()
        if found:
            self._found_empty()
        return found

    def _found_empty(self) -> None:
        self.empties += 1
        if self.late:
            self.late.pop()()


class LateThreads(OsThreads):
    def inbox(self) -> LateInbox:
        return LateInbox()


@pytest.fixture
def late(directory: str) -> Iterator[tuple[QueuedTerm, LateInbox]]:
    """A term whose storage thread is in the queue, and its inbox."""
    settings = replace(SMALL, fence_check_interval=3600.0, clock_mark_interval=3600.0)
    threads = LateThreads()
    term = QueuedTerm.of(Standby(directory, f"{directory}/index", "a", settings, threads=threads), threads)
    term.wait_open()
    inbox = term.store._storage._inbox
    assert isinstance(inbox, LateInbox)
    yield term, inbox
    term.close()


def test_items_between_inbox_and_queue_are_processed_before_the_queue_opens(
    late: tuple[QueuedTerm, LateInbox],
) -> None:
    term, inbox = late
    answers: list[Future[int]] = []
    # The thread looks twice: behind what was served, and before it serves again.
    inbox.late += [lambda: answers.append(term.store.ask(lambda state: 7)), lambda: None]
    term.submissions.queue.interrupt()
    while not answers:
        time.sleep(0.001)
    assert answers[0].result(timeout=30.0) == 7


def test_an_item_behind_the_last_one_of_a_round_is_processed(late: tuple[QueuedTerm, LateInbox]) -> None:
    term, inbox = late
    answers: list[Future[int]] = []

    def put_late(state: State) -> None:
        inbox.late.append(lambda: answers.append(term.store.ask(lambda state: 7)))

    term.store.ask(put_late).result(30.0)  # the inbox is found empty after this item
    term.wait(lambda: bool(answers))
    assert answers[0].result(timeout=30.0) == 7


def test_an_interrupt_is_over_when_its_item_was_taken(late: tuple[QueuedTerm, LateInbox]) -> None:
    """The interrupt came while the thread was not in the queue. The thread enters the queue without another round. A
    round of the thread's own (its patience ended) may come between: then the test tries again."""
    term, inbox = late
    for _ in range(50):
        before = inbox.empties
        term.store.ask(lambda state: term.store.ask(lambda state: None)).result(30.0).result(30.0)
        added = sent(term)
        while not term.submissions.submit([added]):  # until the queue is open
            time.sleep(0.001)
        found_empty = inbox.empties - before
        term.wait(lambda added=added: added in term.durable_operations)
        if found_empty == 2:
            return
    raise AssertionError(f"each time another round: the inbox was found empty {found_empty} times")


class Tampered(list[AddMessage | RemoveMessage]):
    """Parts that cannot be read any more once the store has accepted them."""

    is_broken = False

    def __iter__(self) -> Iterator[AddMessage | RemoveMessage]:
        if self.is_broken:
            raise RuntimeError("it cannot be read")
        return super().__iter__()


def test_a_turn_that_cannot_be_handed_over_ends_the_store(directory: str) -> None:
    """The turn is neither in the queue nor in the inbox, so no later turn may be confirmed."""
    term = QueuedTerm.opened(directory)
    before = len(term.durable_operations)
    path = Path(JournalFiles(directory).path(1))
    content = path.read_bytes()
    parts = Tampered()
    term.add()
    term.store.append(Atomic(parts))
    parts.is_broken = True
    term.end_turn()
    assert str(term.lost) == "it cannot be read"
    term.add()
    page(term)
    with pytest.raises(RuntimeError, match="it cannot be read"):
        term.store.close()
    while not term.loop.empty():
        term.loop.get()()
    term.poll()
    assert len(term.durable_operations) == before
    assert path.read_bytes() == content


def wait_written(term: QueuedTerm) -> None:
    """Wait until one more batch is durable; the loop has not seen it yet."""
    term.add()
    term.end_turn()
    assert select.select([term.submissions.queue.fileno()], [], [], 30.0)[0]


@pytest.mark.parametrize("ends", [lambda store: store._lose(OSError("the disk failed")), Store.halt])
def test_a_store_that_is_lost_or_halted_reports_nothing_more(directory: str, ends: Callable[[Store], None]) -> None:
    term = QueuedTerm.opened(directory)
    before = len(term.durable_operations)
    wait_written(term)
    ends(term.store)
    term.poll()
    assert len(term.durable_operations) == before
    term.crash()


def test_a_completion_is_as_old_as_its_fence_check(directory: str) -> None:
    with QueuedTerm.opened(directory) as term:
        wait_written(term)
        written_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        term.poll()
        assert term.store.figures.last_fence_check <= written_at


def test_the_thread_that_writes_asks_for_the_proof(directory: str) -> None:
    """The loop asks, too, but may be late."""
    term = QueuedTerm.opened(directory)
    term.has_proof = False
    wait_written(term)
    term.submissions.queue.interrupt()
    term.loop.get(timeout=30.0)()
    assert isinstance(term.lost, NoProof)
    term.crash()


def test_a_successor_is_seen_before_anything_comes_back(directory: str) -> None:
    term = QueuedTerm.opened(directory)
    before = len(term.durable_operations)
    files = JournalFiles(directory)
    Path(files.path(files.list()[-1] + 1)).write_bytes(b"")
    term.add()
    assert isinstance(term.wait_lost(), Deposed)
    term.poll()
    assert len(term.durable_operations) == before
    term.crash()


def test_halted_nothing_is_written_or_comes_back(directory: str) -> None:
    term = QueuedTerm.opened(directory)
    before = len(term.durable_operations)
    path = Path(JournalFiles(directory).path(1))
    content = path.read_bytes()
    term.store.halt()
    term.add()
    term.end_turn()
    term.crash()
    term.poll()
    assert len(term.durable_operations) == before
    assert path.read_bytes() == content


def test_the_fence_check_of_a_queued_batch_lets_the_broker_speak(directory: str) -> None:
    with QueuedTerm.opened(directory) as term:
        term.store.figures.last_fence_check = -1e9
        assert not term.store.may_speak()
        term.add_durably(1)
        assert term.store.may_speak()


def test_a_store_that_ends_is_watched_no_more(directory: str) -> None:
    for end in (QueuedTerm.close, QueuedTerm.crash):
        term = QueuedTerm.opened(directory)
        end(term)
        while not term.loop.empty():
            term.loop.get()()
        assert not term.is_watched


@pytest.mark.parametrize("strategy", ["periodic", "never"])
def test_a_store_without_a_sync_for_each_batch_has_no_queue(directory: str, strategy: str) -> None:
    term = QueuedTerm(directory, settings=replace(SMALL, journal_disk_sync_strategy=strategy))  # type: ignore[arg-type]
    for _ in range(20):
        term.add_durably(1)
    assert term.served == 0
    term.close()
