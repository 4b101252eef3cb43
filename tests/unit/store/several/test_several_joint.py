"""Operations that concern several stores: whole or absent, in the order of each queue, told once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.store.operations import AddMessage, Atomic, EndTransaction, Engine, Operation, Page, PrepareTransaction
from tandemmq.store.records.commands import encode_add, encode_commit, encode_prepare, encode_rollback
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tandemmq.store.several.layout import OWNER_BITS
from tandemmq.store.tools.check_several import check_all
from tests.support.store.several_harness import REST, A, B, SeveralTerm

pytestmark = pytest.mark.promise("several-stores-are-atomic")

XID = XaTransactionId(5, b"global", b"branch")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "data"
    path.mkdir()
    yield str(path)
    report = check_all(str(path))
    assert report.is_clean, report.problems


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
    again = SeveralTerm(directory)
    assert again.bodies(A) == [b"before", b"after"]
    assert again.bodies(B) == []
    again.close()


def test_pages_and_additions_of_a_queue_agree_around_transactions(directory: str) -> None:
    """No addition is told before a Page that does not hold it, none after one that does."""
    term = SeveralTerm(directory)
    a, b = term.store.queue(A), term.store.queue(B)
    expected: list[Operation] = []
    for number in range(30):
        identity = LocalTransactionId("ID:c-1", number)
        parts = [term.adding(A, b"a%d" % number, identity), term.adding(B, b"b%d" % number, identity)]
        expected.append(term.committing(parts, identity))
        for owner in (a, b):
            page = Page(owner, 0, 1000, 1 << 30)
            term.store.append(page)
            expected.append(page)
        expected.append(term.add(A, b"plain %d" % number))
        if number % 7 == 0:
            term.end_turn()
    term.wait(lambda: not term.store.has_pending and len(term.durable_operations) >= len(expected))
    added: dict[int, list[bytes]] = {a: [], b: []}
    for operation in term.durable_operations:
        if isinstance(operation, Page):
            assert [paged.message.body for paged in operation.messages] == added[operation.owner]
        elif isinstance(operation, AddMessage):
            added[operation.owners[0]].append(operation.message.body)
        elif isinstance(operation, Atomic):
            for part in operation.operations:
                added[part.owners[0]].append(part.message.body)  # type: ignore[union-attr]
    term.close()


def test_an_empty_operation_comes_back_after_all_before_it(directory: str) -> None:
    term = SeveralTerm(directory)
    before = []
    for number in range(10):
        before += [term.add(A), term.add(B), term.add(REST)]
        identity = LocalTransactionId("ID:c-1", number)
        before.append(
            term.committing([term.adding(A, b"x", identity), term.adding(REST, b"y", identity)], identity)  # type: ignore[arg-type]
        )
    end_marker = Atomic(())
    term.store.append(end_marker)
    term.add(A)
    term.wait(lambda: end_marker in term.durable_operations)
    told = term.durable_operations[: term.durable_operations.index(end_marker)]
    assert set(before) <= set(told)
    quiet = Atomic(())
    term.wait(lambda: not term.store.has_pending)
    term.store.append(quiet)
    term.wait(lambda: quiet in term.durable_operations)
    term.close()


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


def test_a_dead_letter_goes_over_in_one_piece(directory: str) -> None:
    term = SeveralTerm(directory)
    added = term.add_durably(1, A, b"dead")[0]
    letter = term.adding(REST, b"dead")
    move = Atomic((letter, term.removing(added)))
    term.store.append(move)
    term.wait(lambda: move in term.durable_operations)
    assert letter.order_key > 0
    term.close()
    again = SeveralTerm(directory)
    assert again.bodies(A) == []
    assert again.bodies(REST) == [b"dead"]
    again.close()


def _prepare(term: SeveralTerm) -> PrepareTransaction:
    old = term.add_durably(1, B, b"old")[0]
    parts = [term.adding(A, b"new", XID), term.removing(old, XID)]
    prepare = PrepareTransaction(XID, parts, encode_prepare(XID))
    term.store.append(prepare)
    term.wait(lambda: prepare in term.durable_operations)
    return prepare


def test_a_transaction_is_prepared_once(directory: str) -> None:
    term = SeveralTerm(directory)
    _prepare(term)
    again = PrepareTransaction(
        XID, [term.adding(A, b"more", XID), term.adding(REST, b"more", XID)], encode_prepare(XID)
    )
    term.store.append(again)
    term.wait(lambda: again in term.durable_operations)
    assert again.is_refused
    end = EndTransaction(XID, True, encode_commit(XID))
    term.store.append(end)
    term.wait(lambda: end in term.durable_operations)
    assert (term.bodies(A), term.bodies(B), term.bodies(REST)) == ([b"new"], [], [])
    term.close()


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_clients_xa_transaction_over_two_stores(directory: str, is_commit: bool, restarts: bool) -> None:
    term = SeveralTerm(directory)
    _prepare(term)
    if restarts:
        term.crash()
        assert any("in doubt" in note for note in check_all(directory).notes)
        term = SeveralTerm(directory)
        assert [(each.transaction, each.added, each.removed) for each in term.several.prepared()] == [(XID, 1, 1)]
    end = EndTransaction(XID, is_commit, encode_commit(XID) if is_commit else encode_rollback(XID))
    term.store.append(end)
    term.wait(lambda: end in term.durable_operations)
    assert not end.is_unknown
    assert [message.message.body for _, message in end.added] == ([b"new"] if is_commit else [])
    assert [message.message.body for _, message in end.returned] == ([] if is_commit else [b"old"])
    unknown = EndTransaction(XID, True, encode_commit(XID))
    term.store.append(unknown)
    term.wait(lambda: unknown in term.durable_operations)
    assert unknown.is_unknown
    term.close()
    again = SeveralTerm(directory)
    assert again.bodies(A) == ([b"new"] if is_commit else [])
    assert again.bodies(B) == ([] if is_commit else [b"old"])
    assert again.several.prepared() == []
    again.close()


def test_a_client_made_id_is_stored_once_also_in_a_transaction(directory: str) -> None:
    term = SeveralTerm(directory)

    def parts(identity: LocalTransactionId) -> list[AddMessage]:
        found = []
        for destination in (A, B):
            message = term.message(destination, b"once")
            message.message_id = f"ID:client-{destination.name}:1:1:7"
            found.append(
                AddMessage(
                    message,
                    (term.store.queue(destination),),
                    encode_add(message, encode_message(message), identity),
                    is_audited=True,
                )
            )
        return found

    for number in range(2):
        identity = LocalTransactionId("ID:c-1", number)
        atomic = term.committing(parts(identity), identity)
        term.wait(lambda atomic=atomic: atomic in term.durable_operations)
        assert all(part.is_duplicate == (number == 1) for part in atomic.operations)  # type: ignore[union-attr]
    assert term.bodies(A) == [b"once"]
    assert term.bodies(B) == [b"once"]
    term.close()
