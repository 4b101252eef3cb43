"""Operations that an engine requests for XA, in each kind of store: the real one, several of them, and the one in
memory."""

# proves: outcome-before-what-asks, place-counts-every-record, prepare-is-synced, rolled-back-may-come-again

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tandemmq.store.operations import (
    AddMessage,
    AddSubscription,
    EndTransaction,
    Operation,
    PagedMessage,
    PreparedTransaction,
    PrepareTransaction,
    RemoveMessage,
    RemoveOwner,
)
from tandemmq.store.records.commands import (
    encode_add,
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_remove_destination,
    encode_rollback,
    encode_subscription,
    encode_unsubscribe,
    subscription_key,
    with_sender,
)
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import XaTransactionId
from tests.support.store.memory_store import MemoryStore
from tests.support.store.several_harness import REST, A, B, SeveralTerm
from tests.support.store.store_harness import Term

pytestmark = pytest.mark.promise("xa-branches")

XID = XaTransactionId(5, b"global", b"branch")
OTHER = XaTransactionId(5, b"global", b"other")
Asked = TypeVar("Asked", bound=Operation)

TOPIC = Destination(DestinationKind.TOPIC, "T.one")
PATTERN = Destination(DestinationKind.TOPIC, "T.>")


class MemoryTerm(Term):
    """Engines one after the other on a store in memory."""

    def __init__(self, before: MemoryTerm | None = None) -> None:
        self.loop: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue() if before is None else before.loop
        self.turn: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.durable_operations: list[Operation] = []
        self.lost: BaseException | None = None
        self.sequence = 0 if before is None else before.sequence  # its epoch, a part of its ids, stays the same
        self.memory: MemoryStore = MemoryStore(self.loop.put) if before is None else before.memory
        self.memory.start(self)
        self.store = self.memory  # type: ignore[assignment]
        self.owners = self.memory.owners()

    def close(self) -> None:
        pass


class World:
    """A store of one kind, whose engines come and go."""

    def __init__(self, kind: str, directory: str) -> None:
        self._kind = kind
        self._directory = directory
        self.term = self._open(None)

    def _open(self, before: Term | None) -> Term:
        if self._kind == "real":
            return Term(self._directory)
        if self._kind == "several":
            return SeveralTerm(self._directory)
        return MemoryTerm(before if isinstance(before, MemoryTerm) else None)

    def fail_over(self) -> Term:
        """Return the state that the next master finds."""
        self.term.close()
        self.term = self._open(self.term)
        return self.term

    # what an engine would ask

    def adding(
        self, destination: Destination, body: bytes, xid: XaTransactionId = XID, *, owners: tuple[int, ...] = ()
    ) -> AddMessage:
        message = self.term.message(destination, body)
        held_by = owners or (self.term.store.queue(destination),)
        return AddMessage(message, held_by, encode_add(message, encode_message(message), xid))

    def removing(self, added: AddMessage | PagedMessage, owner: int, xid: XaTransactionId = XID) -> RemoveMessage:
        message = added.message
        payload = encode_remove(message.destination, message.message_id, xid)
        return RemoveMessage(owner, added.order_key, added.location, message.message_id, payload, size=added.size)

    def prepare(self, parts: Sequence[AddMessage | RemoveMessage], xid: XaTransactionId = XID) -> PrepareTransaction:
        return self.do(PrepareTransaction(xid, parts, encode_prepare(xid)))

    def end(self, is_commit: bool, xid: XaTransactionId = XID) -> EndTransaction:
        return self.do(EndTransaction(xid, is_commit, (encode_commit if is_commit else encode_rollback)(xid)))

    def do(self, operation: Asked) -> Asked:
        self.term.store.append(operation)
        self.term.wait(lambda: operation in self.term.durable_operations)
        return operation

    def subscribe(self, name: str) -> int:
        owner = self.term.store.subscription("client", name, TOPIC)
        self.do(AddSubscription(owner, encode_subscription(TOPIC, "client", name)))
        return owner

    def held(self, owner: int) -> list[bytes]:
        return [paged.message.body for paged in self.term.page(owner).messages]

    def counts(self) -> dict[str, int]:
        return {owner.subscription_name or owner.destination.name: owner.count for owner in self.term.owners}


@pytest.fixture(params=["real", "several", "memory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    directory = tmp_path / "data"
    directory.mkdir()
    world = World(request.param, str(directory))
    yield world
    world.term.close()


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("fails_over", [True, False])
def test_a_prepared_transaction_waits_for_its_outcome(world: World, is_commit: bool, fails_over: bool) -> None:
    kept, taken = world.term.add_durably(2, A)
    a, b = (world.term.store.queue(each) for each in (A, B))
    world.prepare([world.adding(A, b"a new"), world.adding(B, b"b new"), world.removing(taken, a)])
    if fails_over:
        term = world.fail_over()
        assert term.store.prepared() == [PreparedTransaction(XID, 2, 1, frozenset({A, B}), frozenset({A}))]
        assert world.counts().get("A.one") == 1, "what is withheld does not count"
        a, b = (term.store.queue(each) for each in (A, B))
    assert world.held(a) == [kept.message.body]
    assert world.held(b) == []
    late = world.term.add_durably(1, A)[0]

    end = world.end(is_commit)

    assert not end.is_unknown
    if is_commit:
        assert sorted((owner, paged.message.body) for owner, paged in end.added) == sorted(
            [(a, b"a new"), (b, b"b new")]
        )
        assert (end.removed, end.returned) == ([(a, taken.order_key)], [])
        assert all(paged.order_key > late.order_key for owner, paged in end.added if owner == a)
    else:
        assert (end.added, end.removed) == ([], [])
        assert [(owner, paged.order_key, paged.message.body) for owner, paged in end.returned] == [
            (a, taken.order_key, taken.message.body)
        ]
    expected = [kept.message.body, *([] if is_commit else [taken.message.body]), late.message.body]
    expected += [b"a new"] if is_commit else []
    assert world.held(a) == expected
    assert world.held(b) == ([b"b new"] if is_commit else [])
    term = world.fail_over()
    assert term.store.prepared() == []
    assert world.held(term.store.queue(A)) == expected


@pytest.mark.parametrize("fails_over", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
def test_added_messages_count_for_their_user(world: World, is_commit: bool, fails_over: bool) -> None:
    """``charged`` is what the user of the store counts until the store does."""
    adds = [world.adding(A, b"a new"), world.adding(B, b"b new")]
    for add in adds:
        add.message.sender = "ann"
        add.payload = with_sender(add.payload, "ann")
        add.charged = len(add.payload) + 5
    counted = charged = sum(add.charged for add in adds)
    world.prepare(adds)
    assert world.term.store.user_balance("ann") == 0
    if fails_over:
        world.fail_over()
        charged = 0
        assert world.term.store.user_balance("ann") == counted
    world.end(is_commit)
    assert world.term.store.user_balance("ann") == (counted if is_commit else 0) - charged
    world.fail_over()
    assert world.term.store.user_balance("ann") == (counted if is_commit else 0)


def test_a_message_that_became_visible_can_be_removed(world: World) -> None:
    world.prepare([world.adding(A, b"one"), world.adding(A, b"two")])
    end = world.end(True)
    owner = world.term.store.queue(A)

    for held, paged in end.added:
        assert held == owner
        world.term.remove(paged, owner)

    assert world.held(owner) == []


def test_an_outcome_is_told_once(world: World) -> None:
    world.prepare([world.adding(A, b"one")])

    ends = [world.end(True), world.end(True), world.end(False, OTHER)]

    assert [end.is_unknown for end in ends] == [False, True, True]
    assert world.held(world.term.store.queue(A)) == [b"one"]


def test_a_transaction_is_prepared_once(world: World) -> None:
    world.prepare([world.adding(A, b"one")])

    again = world.prepare([world.adding(A, b"two")])

    assert again.is_refused
    world.end(True)
    assert world.held(world.term.store.queue(A)) == [b"one"]
    assert not world.prepare([world.adding(A, b"three")]).is_refused, "the name is free"


def test_an_empty_transaction_is_prepared_too(world: World) -> None:
    world.prepare([])
    term = world.fail_over()

    assert term.store.prepared() == [PreparedTransaction(XID, 0, 0)]
    assert not world.end(True).is_unknown


def test_several_wait_side_by_side(world: World) -> None:
    first, second = world.term.add_durably(2, A)
    owner = world.term.store.queue(A)
    world.prepare([world.removing(first, owner)])
    world.prepare([world.removing(second, owner, OTHER), world.adding(REST, b"new", OTHER)], OTHER)
    term = world.fail_over()
    assert {each.transaction for each in term.store.prepared()} == {XID, OTHER}

    world.end(True, OTHER)
    world.end(False)

    assert world.held(owner) == [first.message.body]
    assert world.held(term.store.queue(REST)) == [b"new"]


@pytest.mark.parametrize("fails_over", [True, False])
def test_durable_subscriptions_get_what_is_committed_but_those_passed_over(world: World, fails_over: bool) -> None:
    wanted, passed = world.subscribe("wanted"), world.subscribe("passed")
    adding = world.adding(TOPIC, b"news", owners=(wanted,))
    key = subscription_key("client", "passed")
    adding.unmatched_acks = (encode_remove(TOPIC, adding.message.message_id, XID, key),)
    world.prepare([adding])
    if fails_over:
        world.fail_over()

    end = world.end(True)

    assert [(owner, paged.message.body) for owner, paged in end.added] == [(wanted, b"news")]
    assert (world.held(wanted), world.held(passed)) == ([b"news"], [])


@pytest.mark.parametrize("fails_over", [True, False])
def test_a_subscription_skipped_in_one_topic_gets_the_message_of_another(world: World, fails_over: bool) -> None:
    other = TOPIC._replace(name=f"{TOPIC.name}.OTHER")
    owners = {}
    for topic in (TOPIC, other):
        owners[topic] = world.term.store.subscription("client", "wild", topic)
        world.do(AddSubscription(owners[topic], encode_subscription(topic, "client", "wild", subscribed=PATTERN)))
    passed = world.adding(TOPIC, b"passed", owners=(world.subscribe("tame"),))
    key = subscription_key("client", "wild")
    passed.unmatched_acks = (encode_remove(TOPIC, passed.message.message_id, XID, key),)
    world.prepare([passed, world.adding(other, b"wanted", owners=(owners[other],))])
    if fails_over:
        world.fail_over()

    end = world.end(True)

    assert sorted(paged.message.body for _, paged in end.added) == [b"passed", b"wanted"]
    assert (world.held(owners[TOPIC]), world.held(owners[other])) == ([], [b"wanted"])
    world.fail_over()
    assert (world.held(owners[TOPIC]), world.held(owners[other])) == ([], [b"wanted"])


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_subscription_that_ended_meanwhile_gets_nothing(world: World, is_commit: bool) -> None:
    stays, ends = world.subscribe("stays"), world.subscribe("ends")
    world.prepare([world.adding(TOPIC, b"news", owners=(stays, ends))])
    world.do(RemoveOwner(ends, encode_unsubscribe(TOPIC, "client", "ends")))

    end = world.end(is_commit)

    assert [(owner, paged.message.body) for owner, paged in end.added] == ([(stays, b"news")] if is_commit else [])


@pytest.mark.parametrize("fails_over", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_queue_that_was_removed_meanwhile_begins_anew(world: World, is_commit: bool, fails_over: bool) -> None:
    taken = world.term.add_durably(1, A)[0]
    owner = world.term.store.queue(A)
    world.prepare([world.adding(A, b"new"), world.removing(taken, owner)])
    world.do(RemoveOwner(owner, encode_remove_destination(A)))
    if fails_over:
        world.fail_over()

    end = world.end(is_commit)

    again = world.term.store.queue(A)
    assert [(held, paged.message.body) for held, paged in end.added] == ([(again, b"new")] if is_commit else [])
    assert (end.removed, end.returned) == ([], [])
    assert world.held(again) == ([b"new"] if is_commit else [])
    assert world.term.add_durably(1, B)[0].owners != (again,)
    assert world.held(world.fail_over().store.queue(A)) == ([b"new"] if is_commit else [])


def test_a_message_that_was_prepared_is_a_duplicate_until_it_is_rolled_back(world: World) -> None:
    adding = world.adding(A, b"once")
    adding.is_audited = True
    world.prepare([adding])
    payload = encode_add(adding.message, encode_message(adding.message))
    owner = world.term.store.queue(A)
    world.term.store.append(EndTransaction(XID, False, encode_rollback(XID)))  # in one turn with what comes again

    again = world.do(AddMessage(adding.message, (owner,), payload, is_audited=True))
    twice = world.do(AddMessage(adding.message, (owner,), payload, is_audited=True))

    assert (again.is_duplicate, twice.is_duplicate) == (False, True)
