"""Bytes counted for each user: in the index, in open transactions, and between the store and the sender."""

# proves: another-counts-for-the-user, moved-message-keeps-its-user, prepared-messages-count, removal-finds-its-user
# proves: who-ended-counts-until-reclaimed

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandemmq.index.index import Index
from tandemmq.store.records.acknowledgements import SubscriptionInfo
from tandemmq.store.records.commands import ADD, AddMessage, UpdateMessage, decode, encode
from tandemmq.store.records.hints import CopyHint, OperationHint, hint_of, with_copy_hint, with_operation_hint
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.state.keys import DEFAULT_RANK, MARK_SHIFT, SHARED, entry_of, message_value, rank_in
from tandemmq.store.state.open_transactions import PendingOperation, decode_transactions, encode_transactions
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Position, changes

Q = Destination(DestinationKind.QUEUE, "Q")
T = Destination(DestinationKind.TOPIC, "T")


@pytest.mark.parametrize("rank", [None, 0, DEFAULT_RANK, 9])
@pytest.mark.parametrize("user", [0, 1, 77_000])
@pytest.mark.parametrize("shared", [0, SHARED])
def test_an_entry_says_for_whom_it_counts(rank: int | None, user: int, shared: int) -> None:
    entry = (5 << 32 | 7, 1234 | shared | user << MARK_SHIFT, "ID:a:1:1:1")
    value = message_value(9 << 64, entry, rank)
    assert entry_of(9 << 64, value) == entry
    assert rank_in(value) == rank


@pytest.mark.parametrize("sender", [None, "ann", "", "\ud800é", "x" * 70_000], ids=range(5))
def test_a_record_says_its_sender_beside_any_other_hint(sender: str | None) -> None:
    said = sender if sender is None or len(sender) < 70_000 else None
    add = AddMessage(Q, "ID:a:1:1:1", b"frame", sender=sender)
    update = encode(UpdateMessage(add))
    assert decode(encode(add)) == add._replace(sender=said)
    assert hint_of(encode(add)) is None
    for payload, hint in (
        (with_copy_hint(update, 7, 8), CopyHint(7, 8)),
        (with_operation_hint(update, 9), OperationHint(9)),
    ):
        assert hint_of(payload) == hint
        assert decode(payload) == UpdateMessage(add._replace(sender=said))


def prepared(state: State, key: str = "x", sizes: tuple[int, ...] = (100, 20)) -> None:
    for number, size in enumerate(sizes):
        state.enlist(key, PendingOperation(1 << 32 | number, size, ADD, Q, f"m{number}", None, sender="ann"))
    state.prepare(key, 1 << 32 | 900, [None] * len(sizes))


def checkpointed(state: State, index: Index) -> State:
    state.position = Position(1, 1000)
    frozen = state.freeze(lambda file: False, 1)
    for _ in index.checkpoint(changes(frozen), frozen.meta):
        pass
    state.thaw()
    return State(index, index.meta)


@pytest.mark.parametrize("is_between", [False, True])
def test_messages_of_a_transaction_count_while_it_is_prepared(tmp_path: Path, is_between: bool) -> None:
    """``is_between``: a checkpoint comes between the copies of its operations and that of its Prepare."""
    with Index.open(str(tmp_path)) as index:
        state = State(index, b"")
        prepared(state)
        assert state.users.counts() == {"ann": 120}
        state = checkpointed(state, index)
        assert state.users.counts() == {"ann": 120}
        state.enlist("x", state.transactions["x"].operations[0]._replace(location=2 << 32, size=150), 1 << 32)
        if is_between:
            state = checkpointed(state, index)
        state.prepare("x", 2 << 32 | 900, [None, None])
        assert state.users.counts() == {"ann": 170}, "its copies take its place"
        state.end_transaction("x", 2 << 32 | 950)
        assert state.users.counts() == {}
        state = checkpointed(state, index)
        assert state.users.counts() == {}
        assert not state.users.is_counting


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_record_counts_once_until_nobody_holds_it(tmp_path: Path, is_checkpointed: bool) -> None:
    with Index.open(str(tmp_path)) as index:
        state = State(index, b"")
        first, second = state.new_owner(), state.new_owner()
        for owner in (first, second):
            state.subscribe(owner, T, SubscriptionInfo("c", T, f"s{owner}"), 1 << 32 | owner, None)
            state.add(owner, 5 << 64, 5 << 32, 40, "t", is_shared=owner == second, user="ann")
        queue = state.queue(Q)
        state.add(queue, 6 << 64, 6 << 32, 100, "q", user="ann")
        assert state.users.counts() == {"ann": 140}
        if is_checkpointed:
            state = checkpointed(state, index)
        state.move(queue, 6 << 64, 7 << 32, 121)
        assert state.users.counts() == {"ann": 161}
        state.remove(queue, 6 << 64, 7 << 32, 121, "q", 7)
        assert state.users.counts() == {"ann": 40}
        state.remove(first, 5 << 64, 5 << 32, 40, "t", 7)
        assert state.users.counts() == {"ann": 40}, "the other has it"
        state.drop_owner(second, 7)
        assert state.users.counts() == {"ann": 40}
        state.reclaim(9)
        assert state.users.counts() == {}


def test_an_entry_whose_user_an_older_version_forgot_counts_for_nobody(tmp_path: Path) -> None:
    with Index.open(str(tmp_path)) as index:
        state = State(index, b"")
        queue = state.queue(Q)
        for number, user in ((1, "ann"), (2, "bob")):
            state.add(queue, number << 64, number << 32, 100, f"m{number}", user=user)
        checkpointed(state, index)
        meta = json.loads(index.meta)
        del meta["user_chunks"]
        state = State(index, json.dumps(meta).encode())
        state.add(queue, 3 << 64, 3 << 32, 50, "m3", user="eve")
        state.remove(queue, 2 << 64, 2 << 32, 100, "m2", 3)
        assert state.users.counts() == {"eve": 50}


def test_a_transaction_that_counts_for_nobody_is_written_as_before() -> None:
    state = State(Nothing(), b"")
    state.enlist("x", PendingOperation(1, 2, ADD, Q, "m", None))
    assert encode_transactions(state.transactions) == b'[["x",false,0,[[1,2,1,0,"Q","m",null,0,0]]]]'
    state.enlist("x", PendingOperation(1, 2, ADD, Q, "m", None, sender="ann"))
    again = decode_transactions(encode_transactions(state.transactions))["x"].operations
    assert [each.sender for each in again] == [None, "ann"]


class Nothing:
    """An index without anything."""

    def get(self, key: bytes) -> None:
        return None

    def scan(self, start: bytes, stop: bytes | None) -> object:
        return iter(())


def test_operations_in_progress_are_in_the_balance(tmp_path: Path) -> None:
    """Handed over 100 and 50, of which the second was a duplicate, then 100 go: nothing is left."""
    with Index.open(str(tmp_path)) as index:
        state = State(index, b"")
        owner = state.queue(Q)
        handed_over = 150
        state.add(owner, 1 << 64, 1 << 32, 100, "m", user="ann")
        state.users.taken("ann", 100)
        assert handed_over + state.users.balances["ann"] == 150
        state.users.taken("ann", 50)
        assert handed_over + state.users.balances["ann"] == 100
        state.remove(owner, 1 << 64, 1 << 32, 100, "m", 1)
        assert handed_over + state.users.balances["ann"] == 0
        assert state.users.counts() == {}
