"""Messages with ids of their clients that go through the queue: the outcome is the same as with a look-up."""

# proves: only-above-all-is-new, handed-over-is-noted, only-where-it-is-sure, handed-over-together-is-noted
# proves: only-the-newest-is-sure, newest-is-sorted, newest-of-the-audit, newest-of-the-index, newest-of-the-prepared
# proves: moved-parts-are-looked-up, unmatched-parts-take-the-inbox, newest-of-the-tails, submitted-is-known
# proves: nothing-above-the-newest, outcome-before-what-asks, unmatched-acks-take-the-inbox

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.store.operations import AddMessage, AddSubscription, Atomic, EndTransaction, Operation, PrepareTransaction
from tandemmq.store.records.commands import (
    encode_add,
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_rollback,
    encode_subscription,
    subscription_key,
)
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.message_ids import SEQUENCE_MAX, client_message_id
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId
from tandemmq.store.state.state import State
from tandemmq.store.tools.check import check
from tandemmq.store.writer import submissions
from tandemmq.store.writer.submissions import NewMessages
from tests.support.journal import journal_native
from tests.support.prove import SEED, rounds
from tests.support.store.queued_term import QueuedTerm
from tests.support.store.store_harness import KIB, SMALL, Q, Term

native = journal_native.native
XID = XaTransactionId(1, b"global", b"branch")
OTHER_QUEUE = Destination(DestinationKind.QUEUE, "Q.B")


def message_of(
    owner: int,
    number: int,
    producer: str = "p",
    destination: Destination = Q,
    transaction: TransactionId | None = None,
    *,
    id: str | None = None,
) -> AddMessage:
    """Return the message ``number`` as a client sends or resends it."""
    name = client_message_id(producer, number) if id is None else id
    message = Message(destination, name, b"x", BodyKind.BYTES, persistent=True, timestamp=1)
    payload = encode_add(message, encode_message(message), transaction)
    return AddMessage(message, (owner,), payload, is_audited=True)


class TestWhatTheLoopKnows:
    """Owner 1 by default."""

    @staticmethod
    def known(highest: int = 5, *, owners: Sequence[int] = (1,)) -> NewMessages:
        """Producer p is known up to ``highest``."""
        news = NewMessages()
        for owner in owners:
            asked = message_of(owner, highest - len(owners) + owner)
            assert not news.is_new(asked)
            assert asked.producer is not None
            asked.is_newest = True
            news.answered(asked)
        return news

    def test_a_higher_number_is_new_and_each_only_once(self) -> None:
        news = self.known()
        assert [number for number in (6, 9, 7, 9, 5, 1, 10) if news.is_new(message_of(1, number))] == [6, 9, 10]

    def test_the_first_one_of_each_producer_asks(self) -> None:
        news = self.known()
        other = message_of(1, 6, "other")
        assert not news.is_new(other)
        assert other.producer is not None

    def test_until_the_answer_comes_nothing_is_new(self) -> None:
        news = NewMessages()
        first, second = message_of(1, 1), message_of(1, 2)
        assert not news.is_new(first)
        assert not news.is_new(second)
        first.is_newest = True
        news.answered(first)
        assert not news.is_new(message_of(1, 2))
        assert news.is_new(message_of(1, 3))

    def test_an_answer_that_is_not_newest_has_no_effect(self) -> None:
        news = NewMessages()
        asked = message_of(1, 1)
        news.is_new(asked)
        news.answered(asked)
        assert not news.is_new(message_of(1, 2))

    def test_each_owner_has_ids_of_its_own(self) -> None:
        news = self.known()
        there = message_of(2, 6)
        assert not news.is_new(there)
        assert not news.is_new(message_of(1, 6)), "what went to another owner counts"
        there.is_newest = True
        news.answered(there)
        assert news.is_new(message_of(2, 7))
        assert not news.is_new(message_of(1, 7))
        assert news.is_new(message_of(1, 8))

    @pytest.mark.parametrize("is_prepared", [False, True])
    def test_operations_handed_over_together_count(self, is_prepared: bool) -> None:
        news = self.known()
        parts = [message_of(1, number) for number in (9, 7)]
        news.note(PrepareTransaction(XID, parts, b"") if is_prepared else Atomic(parts))
        assert [news.is_new(message_of(1, number)) for number in (7, 9, 10)] == [False, False, True]

    @pytest.mark.parametrize(
        "id", ["ID:p:1:1:07", "ID:p:1:1:", "ID:p:1:1:+7", "ID:p:1:1:\u0667", "7", f"ID:p:1:1:{SEQUENCE_MAX + 1}"]
    )
    def test_an_id_without_a_number_is_searched(self, id: str) -> None:
        news = self.known()
        for _ in range(2):
            add = message_of(1, 0, id=id)
            assert not news.is_new(add)
            assert add.producer is None

    def test_beyond_a_bound_all_pairs_are_checked_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(submissions, "KNOWN_MAX", 4)
        news = self.known(owners=(1, 2))
        assert news.is_new(message_of(1, 6))
        for number in range(10):
            news.is_new(message_of(1, 1, f"other-{number}"))
            assert len(news._producers) <= 4
        assert not news.is_new(message_of(1, 7))


def append(term: Term, *operations: Operation) -> None:
    """Append the operations in one turn, and wait until all are durable."""
    for each in operations:
        term.store.append(each)
    term.wait(lambda: operations[-1] in term.durable_operations)


def send(term: Term, number: int, producer: str = "p") -> AddMessage:
    """Send a message in a separate turn."""
    add = message_of(term.store.queue(Q), number, producer)
    append(term, add)
    return add


def is_duplicate(term: Term, number: int, producer: str = "p") -> bool:
    return send(term, number, producer).is_duplicate


def is_queued(term: QueuedTerm, number: int, producer: str = "p") -> bool:
    """Return whether a message uses the queue once the queue is open."""
    term.wait_open()
    before = term.served
    assert not is_duplicate(term, number, producer)
    return term.served > before


def take(term: Term, *added: AddMessage) -> None:
    removed = [term.remove(each, each.owners[0]) for each in added]
    term.wait(lambda: removed[-1] in term.durable_operations)


@pytest.mark.usefixtures("native")
class TestAStore:
    def test_increasing_numbers_use_the_queue_and_are_known(self, directory: str) -> None:
        term = QueuedTerm.opened(directory)
        first = send(term, 1)
        assert first.is_newest
        assert is_queued(term, 2)
        assert is_queued(term, 7)
        assert [is_duplicate(term, number) for number in (2, 7, 5, 1)] == [True, True, False, True]
        assert is_queued(term, 8)
        term.crash()
        with QueuedTerm.opened(directory) as again:
            assert [is_duplicate(again, number) for number in (8, 7, 2)] == [True] * 3
            assert not is_queued(again, 9), "a new term asks anew"
            assert is_queued(again, 10)

    def test_a_producer_with_only_transactions_uses_the_queue(self, directory: str) -> None:
        """The first commit asks; those that follow are known, and nothing of them is stored twice."""
        term = QueuedTerm.opened(directory)
        local = LocalTransactionId("ID:c", 1)

        def commit(*numbers: int) -> list[AddMessage]:
            parts = [message_of(term.store.queue(Q), number, transaction=local) for number in numbers]
            append(term, Atomic(parts, encode_commit(local)))
            return parts

        assert [part.is_newest for part in commit(1, 2)] == [True, True]
        served = term.served
        while term.served == served:  # the queue is closed now and then
            highest = term.sequence = term.sequence + 5
            assert not any(part.is_duplicate for part in commit(highest, highest + 1))
        assert [part.is_duplicate for part in commit(highest, highest + 2)] == [True, False]
        assert is_duplicate(term, highest + 1)
        term.crash()
        with QueuedTerm.opened(directory) as again:
            assert [is_duplicate(again, number) for number in (1, highest, highest + 2)] == [True] * 3

    def test_a_message_that_is_moved_to_where_it_is_gets_another_id(self, directory: str) -> None:
        """The broker moves it, alone in its turn and with the id that its client made."""
        term = QueuedTerm.opened(directory)
        held = send(term, 1)
        term.wait_open()
        append(term, Atomic((AddMessage(held.message, held.owners, held.payload),)))
        assert term.bodies().count(held.message.body) == 2
        term.crash()
        with Term(directory) as again:
            assert again.bodies().count(held.message.body) == 2

    def test_messages_in_the_queue_are_known_after_they_were_consumed(self, directory: str) -> None:
        term = QueuedTerm.opened(directory)
        send(term, 1)
        take(term, send(term, 2), send(term, 3))
        assert [is_duplicate(term, number) for number in (2, 3)] == [True] * 2
        term.store.checkpoint()
        term.crash()
        with Term(directory) as again:
            assert [is_duplicate(again, number) for number in (2, 3, 4)] == [True, True, False]

    def test_messages_in_the_queue_are_known_after_the_audit_forgot_the_producer(self, directory: str) -> None:
        with QueuedTerm.opened(directory, max_failover_producers_to_track=1) as term:
            send(term, 1)
            assert is_queued(term, 2)
            send(term, 1, "other")
            assert is_duplicate(term, 2)

    def test_without_an_audit_stored_ids_are_known(self, directory: str) -> None:
        with QueuedTerm.opened(directory, failover_producers_audit_depth=0) as term:
            send(term, 1)
            assert is_queued(term, 2)
            assert is_duplicate(term, 2)

    @pytest.mark.parametrize("is_in_the_index", [False, True])
    def test_a_lower_number_is_not_the_newest_of_what_its_queue_holds(
        self, directory: str, is_in_the_index: bool
    ) -> None:
        """The audit has forgotten the producer."""
        term = Term(directory, settings=replace(SMALL, max_failover_producers_to_track=1))
        send(term, 9)
        send(term, 1, "other")
        term.close() if is_in_the_index else term.crash()
        again = QueuedTerm.opened(directory, max_failover_producers_to_track=1)
        asking = send(again, 4)
        assert asking.producer is not None
        assert not asking.is_newest
        assert is_duplicate(again, 9)
        assert is_queued(again, 10) is False
        again.close()

    def test_a_lower_number_is_not_the_newest_while_a_checkpoint_is_written(self, directory: str) -> None:
        term = QueuedTerm.opened(directory, max_failover_producers_to_track=1)
        send(term, 9)
        send(term, 1, "other")
        owner = term.store.queue(Q)

        def begin(state: State) -> bool:
            state._ids.freeze()
            return state.is_newest(owner, "ID:p:1:1:4")

        assert term.store.ask(begin).result() is False
        term.crash()

    def test_a_repeated_message_is_known_while_a_checkpoint_is_written(self, directory: str) -> None:
        """The index knows the first one, which is gone; the audit has forgotten the producer."""
        term = QueuedTerm.opened(directory, max_failover_producers_to_track=1)
        first = send(term, 9)
        for done in term.store.checkpoint():
            done.result()
        take(term, first)
        send(term, 1, "other")
        assert not is_duplicate(term, 9)
        owner = term.store.queue(Q)

        def begin(state: State) -> bool:
            state._ids.freeze()
            return state.has_id(owner, first.message.message_id)

        assert term.store.ask(begin).result() is True
        term.crash()

    def test_a_lower_number_is_not_the_newest_of_what_was_consumed(self, directory: str) -> None:
        with Term(directory) as term:
            take(term, send(term, 9))
        with QueuedTerm.opened(directory) as again:
            assert not send(again, 4).is_newest
            assert is_duplicate(again, 9)

    @pytest.mark.parametrize("id", ["\0", "p" * 401])
    def test_a_producer_that_the_index_cannot_sort_is_always_looked_up(self, directory: str, id: str) -> None:
        with QueuedTerm.opened(directory) as term:
            add = message_of(term.store.queue(Q), 1, id=f"ID:{id}:1:1:1")
            append(term, add)
            assert add.producer is not None
            assert not add.is_newest

    @pytest.mark.parametrize("is_part", [False, True])
    def test_a_message_is_stored_with_removals_for_subscriptions_without_a_match(
        self, directory: str, is_part: bool
    ) -> None:
        term = QueuedTerm.opened(directory)
        topic = Destination(DestinationKind.TOPIC, "T.A")
        wants, passes = (term.store.subscription("c", name, topic) for name in ("wants", "passes"))
        for owner, name in ((wants, "wants"), (passes, "passes")):
            append(term, AddSubscription(owner, encode_subscription(topic, "c", name)))
        for number in range(1, 20):  # the first ones ask; some of the others would be taken by the queue
            add = message_of(wants, number, destination=topic)
            key = subscription_key("c", "passes")
            add.unmatched_acks = (encode_remove(topic, add.message.message_id, None, key),)
            append(term, Atomic((add,)) if is_part else add)
        term.crash()
        with Term(directory) as again:
            assert {each.subscription_name: each.count for each in again.owners if each.client_id} == {
                "wants": 19,
                "passes": 0,
            }

    @pytest.mark.parametrize("is_of_this_term", [False, True])
    def test_prepared_messages_are_known_before_the_commit(self, directory: str, is_of_this_term: bool) -> None:
        """The audit has forgotten the producer, or never knew it."""
        term = QueuedTerm.opened(directory, max_failover_producers_to_track=1)
        prepared = message_of(term.store.queue(Q), 9, transaction=XID)
        append(term, PrepareTransaction(XID, [prepared], encode_prepare(XID)))
        send(term, 1, "other")
        if not is_of_this_term:
            term.crash()
            term = QueuedTerm.opened(directory, max_failover_producers_to_track=1)
        for done in term.store.checkpoint():
            done.result()
        assert not term.store.ask(lambda state: state.is_newest(term.store.queue(Q), "ID:p:1:1:4")).result()
        send(term, 4)
        assert not is_queued(term, 5)
        assert is_duplicate(term, 9)
        append(term, EndTransaction(XID, True, encode_commit(XID)))
        assert is_duplicate(term, 9)
        term.crash()

    def test_prepared_and_rolled_back_messages_may_be_sent_again(self, directory: str) -> None:
        with QueuedTerm.opened(directory) as term:
            prepared = message_of(term.store.queue(Q), 9, transaction=XID)
            append(term, PrepareTransaction(XID, [prepared], encode_prepare(XID)))
            append(term, EndTransaction(XID, False, encode_rollback(XID)))
            assert not is_duplicate(term, 9)


def test_a_copy_whose_queue_has_it_still_is_a_duplicate_where_the_audit_forgot_it(directory: str) -> None:
    """Sent to two queues again after one of them consumed it, by a producer that the audit does not know any more: who
    replays the journal takes the second for a duplicate, and so does the store."""
    term = Term(directory, settings=replace(SMALL, max_failover_producers_to_track=1))
    kept = send(term, 9)
    send(term, 1, "other")
    local = LocalTransactionId("ID:c", 1)
    parts = [message_of(term.store.queue(queue), 9, destination=queue, transaction=local) for queue in (OTHER_QUEUE, Q)]
    append(term, Atomic(parts, encode_commit(local)))
    assert [part.is_duplicate for part in parts] == [False, True]
    take(term, kept)
    term.close()


class History:
    """Actions of a few clients, the same for each term: messages with numbers that mostly grow, resent, sent twice at
    once, by two connections of one producer, together, prepared; and consumed."""

    def __init__(self, seed: int, term: Term) -> None:
        self._chance = random.Random(seed)
        self.term = term
        self._sent = dict.fromkeys(("p", "q", "r"), 0)
        self._held: list[AddMessage] = []
        self._awaited: list[AddMessage] = []
        self._transactions = 0
        self.outcomes: list[tuple[str, bool]] = []
        self.stored: list[tuple[Destination, str]] = []  # copies of one transaction have one id

    def _message(self, transaction: TransactionId | None = None) -> AddMessage:
        chance = self._chance
        producer = chance.choice("ppqr")
        highest = self._sent[producer]
        number = highest + 1 if chance.random() < 0.8 else max(0, highest + chance.randint(-6, 3))
        self._sent[producer] = max(highest, number)
        destination = chance.choice((Q, Q, OTHER_QUEUE))
        add = message_of(self.term.store.queue(destination), number, producer, destination, transaction)
        self._awaited.append(add)
        return add

    def turn(self) -> None:
        chance, store = self._chance, self.term.store
        deed = chance.choices(["send", "together", "prepare", "take"], [14, 2, 1, 3])[0]
        if deed == "send":
            for _ in range(chance.choice((1, 1, 1, 2, 6))):
                store.append(self._message())
        elif deed == "take":
            self.wait()
            for add in chance.sample(self._held, min(len(self._held), chance.choice((1, 4)))):
                self._held.remove(add)
                self.term.remove(add, add.owners[0])
        else:
            self._transactions += 1
            if deed == "together":
                local = LocalTransactionId("ID:c", self._transactions)
                parts = [self._message(local) for _ in range(chance.randint(1, 4))]
                store.append(Atomic(parts, encode_commit(local)))
            else:
                self._prepare(XaTransactionId(1, b"%d" % self._transactions, b"branch"))
        self.term.end_turn()
        # Sent again in one batch with its removal it is found, in the next one not, if the audit forgot its producer.
        if chance.random() < 0.6 or deed == "take":
            self.wait()

    def _prepare(self, xid: XaTransactionId) -> None:
        parts = [self._message(xid) for _ in range(self._chance.randint(1, 3))]
        prepare = PrepareTransaction(xid, parts, encode_prepare(xid))
        is_commit = self._chance.random() < 0.6
        end = EndTransaction(xid, is_commit, (encode_commit if is_commit else encode_rollback)(xid))
        append(self.term, prepare)
        held = list(self._held)
        self._note()
        self._held = held + [add for add in self._held[len(held) :] if add not in parts]  # no thread takes them
        if not is_commit:
            again = {add.message.message_id for add in parts if not add.is_duplicate}
            self.stored = [place for place in self.stored if place[1] not in again]
        append(self.term, end)

    def wait(self) -> None:
        term = self.term
        term.wait(lambda: not term.store.has_pending)
        self._note()

    def _note(self) -> None:
        for add in self._awaited:
            self.outcomes.append((add.message.message_id, add.is_duplicate))
            if not add.is_duplicate:
                self._held.append(add)
                self.stored.append((add.message.destination, add.message.message_id))
        self._awaited = []

    def ids(self) -> dict[str, list[str]]:
        """Return the ids in each queue."""
        found = {}
        for queue in (Q, OTHER_QUEUE):
            page = self.term.page(self.term.store.queue(queue), count=10_000)
            found[queue.name] = [each.message.message_id for each in page.messages]
        return found


@pytest.mark.usefixtures("native")
def test_any_history_has_the_outcome_that_it_has_without_a_queue(tmp_path: Path) -> None:
    """With an audit that remembers all producers, or too few; over several terms, with checkpoints and new files."""
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    through_the_queue = 0
    for number in range(rounds(3, 200)):
        producers = chance.choice((1, 2, 64))
        settings = replace(
            SMALL,
            journal_max_file_length=32 * KIB,
            max_failover_producers_to_track=producers,
            checkpoint_interval=chance.choice((0.0, 3600.0)),
            clock_mark_interval=3600.0,
        )
        seed = chance.randrange(1 << 32)
        told: list[tuple[object, object]] = []
        # Which producer was used longest ago is known behind a crash as of the last checkpoint.
        ends = [chance.choice(["close", "crash"]) if producers == 64 else "close" for _ in range(3)]
        for kind in (Term, QueuedTerm):
            directory = tmp_path / f"{number}-{kind.__name__}"
            directory.mkdir()
            history = History(seed, kind(str(directory), settings=settings))
            for end in ends:
                for _ in range(40):
                    history.turn()
                history.wait()
                left = history.ids()
                if isinstance(history.term, QueuedTerm):
                    through_the_queue += history.term.served
                history.term.close() if end == "close" else history.term.crash()
                history.term = kind(str(directory), settings=settings)
                assert history.ids() == left
            told.append((history.outcomes, left))
            history.term.close()
            report = check(str(directory))
            assert report.is_clean, report.problems
        assert told[0] == told[1], f"{producers} {ends} {settings.checkpoint_interval}"
        if producers == 64:
            assert len(set(history.stored)) == len(history.stored), "nothing was stored twice"
    assert through_the_queue > 5
