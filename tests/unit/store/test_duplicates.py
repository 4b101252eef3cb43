"""Messages that a client sends again, in a real store: over crashes, lost indexes, reclaimed files; and the cost."""

# proves: a-new-index-has-new-ids, id-of-a-part-is-known, nothing-beyond-the-index, number-again-is-looked-up
# proves: outcome-before-what-asks, rolled-back-may-come-again, taken-plainly-is-asked

from __future__ import annotations

import glob
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.kahadb.java_objects import decode_audit
from tandemmq.store.operations import AddConnection, AddMessage, Atomic
from tandemmq.store.records.commands import ADD, AUDIT, ProducerAudit, decode, encode_add, encode_commit
from tandemmq.store.records.commands import AddMessage as AddCommand
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.message_ids import client_message_id
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId
from tests.support.journal.in_memory import scan_bytes
from tests.support.prove import SEED
from tests.support.store.store_harness import KIB, SMALL, Q, Term

pytestmark = pytest.mark.promise("sent-again-stored-once")

BUSY = replace(SMALL, checkpoint_interval=0.0, cleanup_interval=0.0)


def numbered(
    term: Term, number: int, producer: str = "p", transaction: TransactionId | None = None, body: bytes = b"x"
) -> AddMessage:
    """Return the message ``number`` as a client sends or resends it."""
    return audited(term, client_message_id(producer, number), transaction, body)


def send(term: Term, *numbers: int, producer: str = "p", body: bytes = b"x") -> list[AddMessage]:
    """Send in one turn of the loop, and wait until all came back."""
    added = [numbered(term, number, producer, body=body) for number in numbers]
    for each in added:
        term.store.append(each)
    term.wait_durable(len(term.durable_operations) + len(added))
    return added


def are_duplicates(added: list[AddMessage]) -> list[bool]:
    return [each.is_duplicate for each in added]


def fill(term: Term, count: int, body: bytes = b"f" * 500) -> None:
    """Store and remove so many messages."""
    term.take(term.add_durably(count, body=body))


def journal_of(directory: str) -> dict[str, bytes]:
    found = {}
    for name in glob.glob(f"{directory}/db-*.log"):
        with suppress(FileNotFoundError), open(name, "rb") as file:  # it may be reclaimed meanwhile
            found[name] = file.read()
    return found


class KeepingDisk:
    """The disk, but files that are removed are kept beside, to be counted."""

    def __init__(self, kept: str) -> None:
        self._kept = kept
        os.makedirs(kept)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def unlink(self, path: str) -> None:
        if os.path.basename(path).startswith("db-"):
            os.link(path, os.path.join(self._kept, os.path.basename(path)))
        os.unlink(path)


def records_of(directory: str) -> Iterator[bytes]:
    for content in journal_of(directory).values():
        for batch in scan_bytes(content):
            yield from (payload for _, payload in batch.records)


def of_connection(term: Term, connection_id: str, producer: int, number: int) -> AddMessage:
    """Return a message that a JMS client sends by one of its producers."""
    return audited(term, f"{connection_id}:1:{producer}:{number}")


def audited(term: Term, id: str, transaction: TransactionId | None = None, body: bytes = b"x") -> AddMessage:
    message = Message(Q, id, body, BodyKind.BYTES, persistent=True, timestamp=1)
    payload = encode_add(message, encode_message(message), transaction)
    return AddMessage(message, (term.store.queue(Q),), payload, is_audited=True)


@pytest.mark.parametrize("end", ["none", "crash", "index lost", "audit record alone"])
def test_a_message_of_one_user_is_no_duplicate_of_anothers(directory: str, end: str) -> None:
    """The messages of the first user were consumed, so only the audit knows them."""
    settings = replace(BUSY, journal_max_file_length=32 * KIB, max_failover_producers_to_track=16)
    term = Term(directory, settings=settings)

    def append(*operations: Any) -> None:
        for each in operations:
            term.store.append(each)
        term.wait(lambda: operations[-1] in term.durable_operations)

    append(AddConnection("ID:ann-1:1", "ann"), AddConnection("ID:mallory-1:1", "mallory"))
    hers = [of_connection(term, "ID:ann-1:1", producer, 1) for producer in range(4)]
    append(*hers)
    term.take(hers)
    if end == "audit record alone":
        first = max(journal_of(directory))
        while first in journal_of(directory):
            fill(term, 20)
    append(*[of_connection(term, "ID:mallory-1:1", producer, 1) for producer in range(100)])
    if end != "none":
        term.crash()
        if end != "crash":
            shutil.rmtree(f"{directory}/index")
        term = Term(directory, settings=settings)
    again = [of_connection(term, "ID:ann-1:1", producer, 1) for producer in range(4)]
    append(*again)
    assert are_duplicates(again) == [True] * 4
    term.close()


class TestStoredOnce:
    def test_a_copy_that_arrives_while_the_first_is_being_written(self, directory: str) -> None:
        term = Term(directory)
        first = numbered(term, 1)
        term.store.append(first)
        term.end_turn()
        second = numbered(term, 1)
        term.store.append(second)
        term.end_turn()
        term.wait_durable(2)
        assert term.durable_operations == [first, second], "the copy is told after the first one is durable"
        assert are_duplicates([first, second]) == [False, True]
        term.close()

    def test_a_message_that_was_not_durable_is_no_duplicate(self, directory: str) -> None:
        term = Term(directory)
        send(term, 1)
        term.store.append(numbered(term, 2))  # never handed over: the turn did not end
        term.crash()
        with Term(directory) as again:
            assert are_duplicates(send(again, 1, 2)) == [True, False]

    def test_a_message_of_a_transaction_is_known_from_its_commit_on(self, directory: str) -> None:
        term = Term(directory)
        for attempt in (1, 2):
            identity = LocalTransactionId("ID:c", attempt)
            parts = [numbered(term, number, transaction=identity) for number in (1, 2, attempt + 2)]
            term.store.append(Atomic(parts, encode_commit(identity)))
            term.wait_durable(attempt)
            assert are_duplicates(parts) == ([False] * 3 if attempt == 1 else [True, True, False])
        term.crash()
        again = Term(directory)
        assert len(again.bodies()) == 4
        identity = LocalTransactionId("ID:c", 3)
        parts = [numbered(again, number, transaction=identity) for number in (1, 2, 3, 4)]
        written = again.store.figures.records
        before = len(again.durable_operations)
        again.store.append(Atomic(parts, encode_commit(identity)))
        again.wait_durable(before + 1)
        assert are_duplicates(parts) == [True] * 4
        assert again.store.figures.records == written, "a commit of nothing new is not written"
        again.close()

    @pytest.mark.parametrize("end", ["crash", "clean"])
    def test_without_an_audit_only_stored_ids_are_known(self, directory: str, end: str) -> None:
        settings = replace(SMALL, failover_producers_audit_depth=0)
        term = Term(directory, settings=settings)
        term.take(send(term, 1, 2)[:1])
        assert are_duplicates(send(term, 1, 2)) == [False, True]
        term.crash() if end == "crash" else term.close()
        with Term(directory, settings=settings) as again:
            assert are_duplicates(send(again, 1, 2, 3)) == [True, True, False]
            assert len(again.bodies()) == 3

    def test_without_an_audit_a_transaction_knows_the_one_before_it_in_its_batch(self, directory: str) -> None:
        with Term(directory, settings=replace(SMALL, failover_producers_audit_depth=0)) as term:
            parts = []
            for identity in (LocalTransactionId("ID:c", 1), LocalTransactionId("ID:c", 2)):
                parts.append(numbered(term, 1, transaction=identity))
                term.store.append(Atomic(parts[-1:], encode_commit(identity)))
            term.wait_durable(2)
            assert are_duplicates(parts) == [False, True]

    def test_without_an_audit_a_lower_number_is_still_known_after_a_higher_one(self, directory: str) -> None:
        """The look-up of the higher one notes that the index has nothing from there on."""
        with Term(directory, settings=replace(SMALL, failover_producers_audit_depth=0)) as term:
            send(term, 5)
            for done in term.store.checkpoint():
                done.result()
            assert are_duplicates(send(term, 7)) == [False]
            assert are_duplicates(send(term, 5, 6)) == [True, False]

    def test_without_an_audit_an_id_is_known_when_a_checkpoint_took_it_into_the_index(self, directory: str) -> None:
        with Term(directory, settings=replace(SMALL, failover_producers_audit_depth=0)) as term:
            for number in (1, 2, 5):
                assert are_duplicates(send(term, number)) == [False]
            for done in term.store.checkpoint():
                done.result()
            assert are_duplicates(send(term, 5, 6)) == [True, False]

    def test_a_stored_message_is_a_duplicate_outside_the_window_too(self, directory: str) -> None:
        settings = replace(SMALL, failover_producers_audit_depth=1, max_failover_producers_to_track=1)
        term = Term(directory, settings=settings)
        send(term, *range(1, 1000, 100))
        send(term, 1, producer="other")
        assert all(are_duplicates(send(term, 1, 901)))
        term.crash()
        with Term(directory, settings=settings) as again:
            assert all(are_duplicates(send(again, 1, 901)))


def test_many_lives_against_a_set(directory: str) -> None:
    """Whatever happens to broker and index, exactly the stored messages are known."""
    seed = SEED
    print(f"TANDEMMQ_SEED={seed}")
    chance = random.Random(seed)
    settings = replace(BUSY, journal_max_file_length=32 * KIB)
    often = replace(settings, checkpoint_interval=3600.0)
    stored: dict[str, set[int]] = {"p": set(), "q": set()}
    held: list[tuple[str, int]] = []
    term = Term(directory, settings=settings)
    for _ in range(80):
        [what] = chance.choices(
            ["send", "transaction", "take", "fill", "crash", "clean", "lost"], [9, 4, 5, 3, 2, 1, 1]
        )
        match what:
            case "send" | "transaction" as how:
                producer = chance.choice(["p", "q"])
                highest = max(stored[producer], default=0)
                numbers = [max(0, highest + chance.randint(-8, 4)) for _ in range(chance.randint(1, 6))]
                identity = LocalTransactionId("ID:c", chance.randrange(1 << 40)) if how == "transaction" else None
                added = [numbered(term, number, producer, identity) for number in numbers]
                if identity is None:
                    for each in added:
                        term.store.append(each)
                    term.wait_durable(len(term.durable_operations) + len(added))
                else:
                    term.store.append(Atomic(added, encode_commit(identity)))
                    term.wait_durable(len(term.durable_operations) + 1)
                for number, each in zip(numbers, added, strict=True):
                    assert each.is_duplicate is (number in stored[producer]), f"{producer}:{number}"
                    if not each.is_duplicate:
                        stored[producer].add(number)
                        held.append((producer, number))
            case "take":
                page = term.page(term.store.queue(Q))
                assert [paged.message.message_id for paged in page.messages] == [
                    client_message_id(producer, number) for producer, number in held
                ]
                chosen = sorted(chance.sample(range(len(held)), min(len(held), chance.choice([1, 5, 1000]))))
                before = len(term.durable_operations)
                for place in chosen:
                    term.remove(page.messages[place], page.owner)
                term.wait_durable(before + len(chosen))
                held = [each for place, each in enumerate(held) if place not in chosen]
            case "fill":
                fill(term, 40)
            case end:
                if end == "clean":
                    term.close()
                else:
                    term.crash()
                if end == "lost":
                    shutil.rmtree(f"{directory}/index")
                term = Term(directory, settings=chance.choice([settings, often]))
    term.close()


class TestTheRecord:
    """KahaProducerAuditCommand: ids that a replay cannot learn from the messages, because these are removed."""

    @pytest.mark.parametrize("is_index_lost", [False, True])
    def test_the_audit_outlives_the_messages_that_it_came_from(self, directory: str, is_index_lost: bool) -> None:
        term = Term(directory, settings=BUSY)
        term.take(send(term, 1, 2, 3))
        term.take(send(term, 70, producer="q"))
        first = JournalFiles(directory).list()[0]
        for _ in range(20):
            fill(term, 50)  # rotates, and what was before is reclaimed
            if JournalFiles(directory).list()[0] > first + 3:
                break
        term.wait(lambda: JournalFiles(directory).list()[0] > first + 3)
        stored = {message.message_id for message in adds_of(directory)}
        assert not any("ID:p:" in id or "ID:q:" in id for id in stored), "their files are gone"
        term.crash()
        if is_index_lost:
            shutil.rmtree(f"{directory}/index")
        with Term(directory, settings=BUSY) as again:
            assert are_duplicates(send(again, 2, 3, 4)) == [True, True, False]
            assert are_duplicates(send(again, 70, 71, producer="q")) == [True, False]

    def test_an_idle_broker_writes_nothing(self, directory: str) -> None:
        """AMQ-3833: ActiveMQ wrote the audit at each checkpoint, whether it had changed or not."""
        settings = replace(SMALL, checkpoint_interval=0.02, cleanup_interval=0.0)
        term = Term(directory, settings=settings)
        send(term, 1)
        term.wait(lambda: term.store.figures.checkpoints == 1)
        before = journal_of(directory), term.store.figures.bytes_written
        time.sleep(20 * 0.02 + 2 * settings.fence_check_interval)  # twenty times the interval of checkpoints
        assert (journal_of(directory), term.store.figures.bytes_written) == before
        term.close()
        assert journal_of(directory) == before[0], "a clean stop has nothing to add either"

    def test_the_audit_is_written_before_a_file_goes_and_not_at_each_checkpoint(self, directory: str) -> None:
        """The test has one small message per second, and a checkpoint after each, as ActiveMQ's at five seconds or
        less."""
        kept = f"{directory}/kept"
        with Term(directory, settings=BUSY, disk=KeepingDisk(kept)) as term:
            for producer in range(64):
                term.take(send(term, 1, producer=f"one-of-many-producers-{producer}"))
            for number in range(2, 152):
                checkpoints = term.store.figures.checkpoints
                term.take(send(term, number, producer="one-of-many-producers-0", body=b"s" * 200))
                while term.store.figures.checkpoints == checkpoints:
                    time.sleep(0.001)
            checkpoints = term.store.figures.checkpoints
        audits = [[record for record in records_of(where) if record[0] == AUDIT] for where in (kept, directory)]
        count = sum(map(len, audits))
        assert count <= len(os.listdir(kept)), "at most one for each file that goes"
        assert count < checkpoints / 20
        if audits[1]:
            last = decode(audits[1][-1])
            assert isinstance(last, ProducerAudit)
            assert decode_audit(last.audit).windows


def adds_of(directory: str) -> list[AddCommand]:
    found = [decode(record) for record in records_of(directory) if record[0] == ADD]
    return [command for command in found if isinstance(command, AddCommand)]
