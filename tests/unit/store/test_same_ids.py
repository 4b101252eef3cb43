"""Two messages of one id that would meet in a queue or subscription: a replay of the journal takes the second for a
duplicate, so a running store never has both under that id. Each test ends with the checker."""

# proves: all-holders-are-asked, ended-is-not-prepared, ids-of-brokers-are-listed, moved-id-is-known
# proves: moved-onto-itself-has-its-own-id
# proves: named-before-its-queue-ends, named-by-another, passed-over-is-not-kept, prepared-id-is-known
# proves: what-meets-another-has-its-own-id

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tandemmq.store.operations import (
    AddMessage,
    AddSubscription,
    Atomic,
    EndTransaction,
    Operation,
    PrepareTransaction,
    RemoveMessage,
    RemoveOwner,
)
from tandemmq.store.records.commands import (
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_remove_destination,
    encode_rollback,
    encode_subscription,
    encode_unsubscribe,
)
from tandemmq.store.records.frames import open_message
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId
from tests.support.store.several_harness import A2, A, B, SeveralTerm
from tests.support.store.store_harness import SMALL, Term

pytestmark = pytest.mark.promise("moved-once")

# The audit has forgotten all producers.
SETTINGS = replace(SMALL, failover_producers_audit_depth=0)
CLIENTS, BROKERS = "ID:c:1:1:1", "ID:c:-1:1:1"
TOPIC = Destination(DestinationKind.TOPIC, "T")
XID = XaTransactionId(5, b"global", b"branch")
ANOTHER = XaTransactionId(5, b"another", b"branch")
LOCAL = LocalTransactionId("ID:c", 1)


@pytest.fixture
def term(directory: str) -> Iterator[Term]:
    with Term(directory, settings=SETTINGS) as term:
        yield term


def adding(
    term: Term,
    destination: Destination,
    body: str,
    id: str = CLIENTS,
    transaction: TransactionId | None = None,
    *,
    is_audited: bool = True,
) -> AddMessage:
    """Return a message that a client sends, or (not audited) the broker moves."""
    message = Message(destination, id, body.encode(), BodyKind.BYTES, persistent=True, timestamp=1)
    payload = encode_stored(message, transaction)
    return AddMessage(message, (term.store.queue(destination),), payload, is_audited=is_audited)


def removing(
    added: AddMessage, owner: int | None = None, key: str | None = None, transaction: TransactionId | None = None
) -> RemoveMessage:
    message = added.message
    payload = encode_remove(message.destination, message.message_id, transaction, key)
    place = added.owners[0] if owner is None else owner
    return RemoveMessage(place, added.order_key, added.location, message.message_id, payload, size=added.size)


def subscribing(term: Term, name: str) -> int:
    owner = term.store.subscription("c", name, TOPIC)
    term.do(AddSubscription(owner, encode_subscription(TOPIC, "c", name)))
    return owner


def held_after_a_replay(term: Term, directory: str, *destinations: Destination) -> list[list[bytes]]:
    """Return the messages that a replay of the journal alone restores."""
    term.crash()
    shutil.rmtree(f"{directory}/index")
    with Term(directory, settings=SETTINGS) as again:
        return [again.bodies(each) for each in destinations]


def test_a_message_moved_to_a_queue_with_its_id_gets_its_own_id(term: Term, directory: str) -> None:
    term.do(adding(term, A, "was there"))
    from_b = term.do(adding(term, B, "moved"))
    moved = adding(term, A, "moved", is_audited=False)
    term.do(Atomic([moved, removing(from_b)]))
    assert moved.message.message_id != CLIENTS
    assert moved.message.properties == {"originalMessageId": CLIENTS}
    assert held_after_a_replay(term, directory, A, B) == [[b"was there", b"moved"], []]


def test_a_moved_message_is_known_by_its_id(term: Term, directory: str) -> None:
    """The id is known before a checkpoint."""
    from_b = term.do(adding(term, B, "moved"))
    moved = adding(term, A, "moved", is_audited=False)
    term.do(Atomic([moved, removing(from_b)]))
    assert moved.message.message_id == CLIENTS
    assert term.do(adding(term, A, "sent again")).is_duplicate
    assert held_after_a_replay(term, directory, A, B) == [[b"moved"], []]


def test_a_property_that_java_has_no_room_for_keeps_its_bytes(term: Term, directory: str) -> None:
    """A name in plain UTF-8 that is too long in Java's, beside the property that is to be changed."""
    term.do(adding(term, A, "was there"))
    moved = adding(term, A, "odd", is_audited=False)
    name = "\N{GRINNING FACE}" * 16383
    moved.message.properties = {"originalMessageId": "the client's own", "a" * len(name.encode()): 7}
    frame = encode_message(moved.message).replace(b"a" * len(name.encode()), name.encode())
    moved.message = open_message(frame)
    moved.payload = encode_stored(moved.message)
    term.do(Atomic([moved]))
    assert moved.message.message_id != CLIENTS
    assert moved.message.properties == {"originalMessageId": CLIENTS, name: 7}
    assert held_after_a_replay(term, directory, A) == [[b"was there", b"odd"]]


@pytest.mark.parametrize("is_indexed", [True, False])
def test_an_unmarked_copy_gets_its_own_id_if_its_id_is_stored(directory: str, is_indexed: bool) -> None:
    """ActiveMQ leaves it in a composite queue, of a message whose id a broker made."""
    with Term(directory, settings=SETTINGS) as before:
        for queue in (A, B):
            before.do(adding(before, queue, f"in {queue.name}", BROKERS, is_audited=False))
        if is_indexed:
            for done in (*before.store.checkpoint(), *before.store.checkpoint()):
                before.wait(done.done)
        before.crash()
    with Term(directory, settings=SETTINGS) as term:
        [paged] = term.page(term.store.queue(A)).messages
        moved = adding(term, B, "in Q.A", BROKERS, is_audited=False)
        payload, owner = encode_remove(A, BROKERS), term.store.queue(A)
        removal = RemoveMessage(owner, paged.order_key, paged.location, BROKERS, payload, size=paged.size)
        term.do(Atomic([moved, removal]))
        assert moved.message.message_id != BROKERS
        assert [len(each) for each in held_after_a_replay(term, directory, A, B)] == [0, 2]


@pytest.mark.parametrize("id", [CLIENTS, BROKERS])
def test_a_message_that_moves_to_its_own_queue_is_not_lost(term: Term, directory: str, id: str) -> None:
    first = term.do(adding(term, A, "x", id, is_audited=id is CLIENTS))
    copies = [adding(term, each, "x", id, is_audited=False) for each in (A, B, B)]
    term.do(Atomic([*copies, removing(first)]))
    assert [each.message.message_id == id for each in copies] == [False, True, False]
    assert held_after_a_replay(term, directory, A, B) == [[b"x"], [b"x"] * 2]


def test_a_dead_letter_in_a_topic_keeps_who_is_to_have_it(term: Term) -> None:
    owners = {name: term.store.subscription("c", name, TOPIC) for name in ("takes", "passes")}
    for name, owner in owners.items():
        term.do(AddSubscription(owner, encode_subscription(TOPIC, "c", name)))
    both = adding(term, TOPIC, "letter")
    both.owners = tuple(owners.values())
    term.do(both)
    again = adding(term, TOPIC, "letter", is_audited=False)
    again.owners = (owners["takes"],)
    again.unmatched_acks = (encode_remove(TOPIC, CLIENTS, None, "c:passes", b""),)
    term.do(Atomic([again]))
    assert [len(term.page(owner).messages) for owner in owners.values()] == [2, 1]


@pytest.mark.parametrize("who_has_it", ["who takes it", "who passes it over"])
def test_an_id_in_one_subscription_of_a_topic_is_no_duplicate_for_another(term: Term, who_has_it: str) -> None:
    owners = {name: term.store.subscription("c", name, TOPIC) for name in ("first", "second")}
    for name, owner in owners.items():
        term.do(AddSubscription(owner, encode_subscription(TOPIC, "c", name)))
    sent = adding(term, TOPIC, "x")
    sent.owners = tuple(owners.values())
    term.do(sent)
    term.do(removing(sent, owners["first"], "c:first"))
    again = adding(term, TOPIC, "x")
    again.owners = sent.owners
    if who_has_it == "who passes it over":
        again.owners = (owners["first"],)
        again.unmatched_acks = (encode_remove(TOPIC, CLIENTS, None, "c:second", b""),)
    assert term.do(again).is_duplicate
    assert [len(term.page(owner).messages) for owner in owners.values()] == [0, 1]


@pytest.mark.parametrize("is_commit", [True, False])
def test_ids_in_a_prepared_transaction_are_known_until_its_outcome(term: Term, directory: str, is_commit: bool) -> None:
    """The rule holds after a checkpoint in between, and for the next master."""
    prepared = adding(term, A, "prepared", transaction=XID)
    term.do(PrepareTransaction(XID, [prepared], encode_prepare(XID)))
    for done in (*term.store.checkpoint(), *term.store.checkpoint()):
        term.wait(done.done)
    assert term.do(adding(term, A, "sent again")).is_duplicate
    term.crash()
    with Term(directory, settings=SETTINGS) as again:
        assert again.do(adding(again, A, "sent again")).is_duplicate
        payload = (encode_commit if is_commit else encode_rollback)(XID)
        again.do(EndTransaction(XID, is_commit, payload))
        assert again.do(adding(again, A, "sent again")).is_duplicate is is_commit
        assert again.bodies(A) == [b"prepared" if is_commit else b"sent again"]


@pytest.mark.parametrize("is_one_turn", [False, True])
def test_a_message_removed_by_a_prepared_transaction_is_not_stored_again_after_its_queue_ended(
    term: Term, directory: str, is_one_turn: bool
) -> None:
    """The outcome would remove the message: in the journal a Remove names a message by its queue and id."""
    removal = removing(term.do(adding(term, A, "ended with its queue")))
    removal.payload = encode_remove(A, CLIENTS, XID)
    operations: list[Operation] = [
        PrepareTransaction(XID, [removal], encode_prepare(XID)),
        RemoveOwner(term.store.queue(A), encode_remove_destination(A)),
    ]
    for operation in operations:
        term.do(operation) if not is_one_turn else term.store.append(operation)
    again = adding(term, A, "sent again")
    term.do(again)
    moved = adding(term, A, "moved", is_audited=False)
    term.do(Atomic([moved]))
    assert again.is_duplicate
    assert moved.message.message_id != CLIENTS
    term.do(EndTransaction(XID, True, encode_commit(XID)))
    assert not term.do(adding(term, A, "sent afterwards")).is_duplicate
    assert held_after_a_replay(term, directory, A) == [[b"moved", b"sent afterwards"]]


@pytest.mark.parametrize("other", [ANOTHER, LOCAL])
def test_an_id_removed_by_several_transactions_is_known_until_all_ended(
    directory: str, other: XaTransactionId | LocalTransactionId
) -> None:
    """Two durable subscriptions give up one message. The subscription of the transaction that is still prepared began
    anew: what is sent again would be removed by the outcome."""
    with Term(directory, settings=SETTINGS) as term:
        one, two = subscribing(term, "one"), subscribing(term, "two")
        sent = adding(term, TOPIC, "x")
        sent.owners = one, two
        term.do(sent)
        removals = [removing(sent, two, "c:two", XID)]
        term.do(PrepareTransaction(XID, removals, encode_prepare(XID)))
        removals = [removing(sent, one, "c:one", other)]
        if isinstance(other, XaTransactionId):
            term.do(PrepareTransaction(other, removals, encode_prepare(other)))
            term.do(EndTransaction(other, True, encode_commit(other)))
        else:
            term.do(Atomic(removals, encode_commit(other)))
            term.crash()
            shutil.rmtree(f"{directory}/index")
            term = Term(directory, settings=SETTINGS)
        term.do(RemoveOwner(term.store.subscription("c", "two", TOPIC), encode_unsubscribe(TOPIC, "c", "two")))
        again = adding(term, TOPIC, "x")
        again.owners = (subscribing(term, "two"),)
        again.unmatched_acks = (encode_remove(TOPIC, CLIENTS, None, "c:one", b""),)
        assert term.do(again).is_duplicate
        term.do(EndTransaction(XID, True, encode_commit(XID)))
        again.is_duplicate = False
        assert not term.do(again).is_duplicate
        assert len(term.page(again.owners[0]).messages) == 1
        term.crash()
        shutil.rmtree(f"{directory}/index")
        with Term(directory, settings=SETTINGS) as term:
            assert len(term.page(term.store.subscription("c", "two", TOPIC)).messages) == 1


def test_a_subscription_created_again_does_not_get_a_prepared_message_that_it_skipped(directory: str) -> None:
    """A replay took its prepared removal for that of a message of this id that it held before."""
    with Term(directory, settings=SETTINGS) as term:
        takes, passes = subscribing(term, "takes"), subscribing(term, "passes")
        held = adding(term, TOPIC, "x", BROKERS, is_audited=False)
        held.owners = (takes, passes)
        term.do(held)
        term.do(removing(held, takes, "c:takes"))
        prepared = adding(term, TOPIC, "x", BROKERS, XID, is_audited=False)
        # The store does not compare the id in the record, as an old index does not show what its journal had since.
        prepared.message = adding(term, TOPIC, "x", "ID:c:-1:1:2").message
        prepared.owners = (takes,)
        prepared.unmatched_acks = (encode_remove(TOPIC, BROKERS, XID, "c:passes", b""),)
        term.do(PrepareTransaction(XID, [prepared], encode_prepare(XID)))
        term.crash()
        shutil.rmtree(f"{directory}/index")
        term = Term(directory, settings=SETTINGS)
        term.do(RemoveOwner(term.store.subscription("c", "passes", TOPIC), encode_unsubscribe(TOPIC, "c", "passes")))
        subscribing(term, "passes")
        end = term.do(EndTransaction(XID, True, encode_commit(XID)))
        assert [owner for owner, _ in end.added] == [term.store.subscription("c", "takes", TOPIC)]
        assert not end.removed
        term.close()


def test_copies_in_one_of_several_stores_come_back_with_places_of_their_own(unchecked: str) -> None:
    """The copies have one id."""
    with SeveralTerm(unchecked, settings=SETTINGS) as term:
        copies = [adding(term, each, "x") for each in (A, A2, B)]
        term.do(Atomic(copies))
        for queue in (A, A2, B):
            [paged] = term.page(term.store.queue(queue)).messages
            assert [each.order_key for each in copies if each.message.destination == queue] == [paged.order_key]
        term.take(copies[:1], copies[0].owners[0])
        assert [term.bodies(each) for each in (A, A2, B)] == [[], [b"x"], [b"x"]]


def test_a_message_moved_to_another_store_with_its_id_gets_its_own_id(unchecked: str) -> None:
    with SeveralTerm(unchecked, settings=SETTINGS) as term:
        term.do(adding(term, A, "was there"))
        from_b = term.do(adding(term, B, "moved"))
        moved = adding(term, A, "moved", is_audited=False)
        term.do(Atomic([moved, removing(from_b)]))
        assert moved.message.message_id != CLIENTS
        assert moved.order_key == term.page(term.store.queue(A)).messages[1].order_key
    with SeveralTerm(unchecked, settings=SETTINGS) as again:
        assert [again.bodies(each) for each in (A, B)] == [[b"was there", b"moved"], []]
