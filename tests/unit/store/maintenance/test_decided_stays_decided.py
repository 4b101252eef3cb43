"""What a commit took stays taken, whichever files go: said by an index made from the journal alone."""

# proves: copied-message-is-removed-again, live-files, pins, upkeep

from __future__ import annotations

import shutil
from dataclasses import replace

from tandemmq.journal.files import JournalFiles
from tandemmq.store.operations import AddMessage, EndTransaction, PrepareTransaction, RemoveMessage
from tandemmq.store.records.commands import encode_commit, encode_prepare, encode_remove
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import XaTransactionId
from tests.support.store.store_harness import KIB, SMALL, Q, Term

XID = XaTransactionId(5, b"global", b"branch")
OTHER = Destination(DestinationKind.QUEUE, "OTHER")
# Nothing moves, and nothing goes, but when it is asked to.
STILL = replace(SMALL, cleanup_interval=0.0, enable_compaction=False)


def rotate(term: Term) -> None:
    term.store.rotate().result(10)


def checkpoint(term: Term) -> None:
    """Twice: a file that goes in one is known to be gone in the next."""
    for _ in range(2):
        for each in term.store.checkpoint():
            each.result(10)


def prepare_removal(term: Term, taken: AddMessage) -> None:
    message = taken.message
    payload = encode_remove(message.destination, message.message_id, XID)
    removal = RemoveMessage(
        term.store.queue(Q), taken.order_key, taken.location, message.message_id, payload, size=taken.size
    )
    term.do(PrepareTransaction(XID, [removal], encode_prepare(XID)))


def commit(term: Term) -> None:
    ended = term.do(EndTransaction(XID, True, encode_commit(XID)))
    assert len(ended.removed) == 1


def compact(term: Term) -> None:
    asked = term.store.compact()
    term.wait(asked.done)


def by_the_journal_alone(directory: str) -> list[bytes]:
    shutil.rmtree(f"{directory}/index")
    term = Term(directory, "another", STILL)
    try:
        return term.bodies(Q)
    finally:
        term.close()


def test_the_file_of_a_committed_removal_stays_as_long_as_that_of_its_message(directory: str) -> None:
    term = Term(directory, settings=STILL)
    _, taken = term.add_durably(1, Q, b"kept"), *term.add_durably(1, Q, b"taken")
    rotate(term)
    prepare_removal(term, taken)
    rotate(term)
    commit(term)
    rotate(term)
    term.add_durably(1, OTHER)
    checkpoint(term)
    term.close()
    assert JournalFiles(directory).list()[:3] == [1, 2, 3]

    assert by_the_journal_alone(directory) == [b"kept"]


def test_a_message_that_was_copied_behind_its_prepared_removal_stays_taken(directory: str) -> None:
    """The copy stands in a later file than the removal, which goes with its file; the Commit alone takes nothing."""
    term = Term(directory, settings=STILL)
    kept = term.add_durably(9, Q, b"k" * 6 * KIB)
    (taken,) = term.add_durably(1, Q, b"taken")
    prepare_removal(term, taken)
    rotate(term)
    for added in kept[:3]:
        term.remove(added, term.store.queue(Q))
    filling = term.add_durably(5, OTHER, b"f" * 6 * KIB)
    # To here the transaction is copied; what it removes does not fit behind it.
    compact(term)
    file_of_removal = 2
    commit(term)
    for added in filling:
        term.remove(added, term.store.queue(OTHER))
    rotate(term)
    term.add_durably(1, OTHER)
    checkpoint(term)
    term.close()
    assert file_of_removal not in JournalFiles(directory).list(), "nothing needs it, and it would be no proof"

    assert by_the_journal_alone(directory) == [b"k" * 6 * KIB] * 6
