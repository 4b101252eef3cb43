"""Operations in several stores: complete or absent, in the order of each queue, reported once."""

from __future__ import annotations

import pytest

from tandemmq.store.operations import AddMessage, AddSubscription, EndTransaction, Engine, Operation, PrepareTransaction
from tandemmq.store.records.commands import encode_add, encode_commit, encode_prepare, encode_subscription
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tandemmq.store.several.filters import FilteredStore
from tandemmq.store.several.layout import OWNER_BITS
from tests.support.store.several_harness import REST, TOPIC, TWO, A, B, SeveralTerm
from tests.support.store.store_harness import SMALL

pytestmark = pytest.mark.promise("several-stores-are-atomic")


def test_a_transaction_over_two_stores_is_visible_in_both_in_its_order(directory: str) -> None:
    term = SeveralTerm(directory)
    old = term.add_durably(1, A)[0]
    identity = LocalTransactionId("ID:c-1", 7)
    before = term.add(A, b"before")
    parts = [term.adding(A, b"a1", identity), term.adding(B, b"b1", identity), term.removing(old, identity)]
    parts.append(term.adding(A, b"a2", identity))
    atomic = term.committing(parts, identity)
    after = term.add(A, b"after")
    term.wait_durable(4)
    assert term.durable_operations[1:] == [before, atomic, after]
    keys = [before.order_key, parts[0].order_key, parts[3].order_key, after.order_key]
    assert keys == sorted(keys)
    assert 0 < keys[0] < keys[-1]
    assert term.bodies(A) == [b"before", b"a1", b"a2", b"after"]
    assert term.bodies(B) == [b"b1"]
    for part in parts:
        if isinstance(part, AddMessage):
            term.remove(part, part.owners[0])
    term.wait_durable(len(term.durable_operations) + 3)
    assert term.bodies(A) == [b"before", b"after"]
    term.wait(lambda: not term.store.has_pending)
    term.close()
    with SeveralTerm(directory) as again:
        assert again.bodies(A) == [b"before", b"after"]
        assert again.bodies(B) == []


def test_a_prepared_message_for_a_topic_without_subscriptions_waits_in_the_topics_store(directory: str) -> None:
    entries = [FilteredStore(topic="T.>", settings=SMALL), *TWO]
    identity = XaTransactionId(1, b"g", b"b")
    with SeveralTerm(directory, entries) as term:
        parts = [term.adding(TOPIC, b"t", identity), term.adding(A, b"a", identity)]
        term.do(PrepareTransaction(identity, parts, encode_prepare(identity)))
    with SeveralTerm(directory, entries) as term:
        owner = term.store.subscription("client", "d", TOPIC)
        term.do(AddSubscription(owner, encode_subscription(TOPIC, "client", "d")))
        term.do(EndTransaction(identity, True, encode_commit(identity)))
        assert [each.message.body for each in term.page(owner).messages] == [b"t"]
        assert term.bodies(A) == [b"a"]
        term.wait(lambda: not term.store.has_pending)


class _Late:
    """Is told in the place of an engine what one of several stores reports, and passes the ends of transactions on only
    when they are let go."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: list[Operation] | None = []

    def durable(self, operations: list[Operation]) -> None:
        held = self._held
        if held is not None and (held or any(isinstance(each, EndTransaction) for each in operations)):
            held += operations
        else:
            self._engine.durable(operations)

    def drained(self) -> None:
        self._engine.drained()

    def let_go(self) -> None:
        held, self._held = self._held, None
        self._engine.durable(held or [])


def test_a_transaction_is_told_after_one_that_another_store_has_not_ended_yet(directory: str) -> None:
    term = SeveralTerm(directory)
    first, second = LocalTransactionId("ID:c-1", 1), LocalTransactionId("ID:c-1", 2)
    one = [term.adding(A, b"1", first), term.adding(B, b"1", first)]
    two = [term.adding(A, b"2", second), term.adding(REST, b"2", second)]
    in_a, in_b = (term.several._by_number[part.owners[0] >> OWNER_BITS] for part in one)
    assert in_b.store is not None
    assert in_b.store._engine is not None
    late = in_b.store._engine = _Late(in_b.store._engine)
    before = term.committing(one, first)
    after = term.committing(two, second)
    term.wait(lambda: len(in_a.unreported) > 0)
    assert term.durable_operations == []
    late.let_go()
    term.wait_durable(2)
    assert term.durable_operations == [before, after]
    term.close()


def test_a_client_made_id_is_stored_once_also_in_a_transaction(directory: str) -> None:
    term = SeveralTerm(directory)

    def parts(identity: LocalTransactionId) -> list[AddMessage]:
        found = []
        for destination in (A, B):
            message = term.message(destination, b"once")
            message.message_id = f"ID:client-{destination.name}:1:1:7"
            payload = encode_add(message, encode_message(message), identity)
            found.append(AddMessage(message, (term.store.queue(destination),), payload, is_audited=True))
        return found

    for number in range(2):
        identity = LocalTransactionId("ID:c-1", number)
        atomic = term.committing(parts(identity), identity)
        term.wait(lambda atomic=atomic: atomic in term.durable_operations)
        assert all(part.is_duplicate == (number == 1) for part in atomic.operations)  # type: ignore[union-attr]
    assert term.bodies(A) == [b"once"]
    assert term.bodies(B) == [b"once"]
    term.close()
