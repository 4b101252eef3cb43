"""Journal files that stay: those with needed content, and those whose records removed content of other files (safety.md
5)."""

# proves: live-files, pins, the-end-pins-its-messages, upkeep, committed-behind-its-record

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tandemmq.index.index import Index
from tandemmq.store.records.acknowledgements import SubscriptionInfo
from tandemmq.store.records.commands import ADD, REMOVE
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.state import keys
from tandemmq.store.state.file_states import FileState, reclaimable
from tandemmq.store.state.open_transactions import PendingOperation
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Position, changes

pytestmark = pytest.mark.promise("disk-use-is-bounded")

Q = Destination(DestinationKind.QUEUE, "Q")
T = Destination(DestinationKind.TOPIC, "T")
INFO = SubscriptionInfo("c", T, "s")
SIZE = 100


class EmptyIndex:
    """A checkpoint of nothing."""

    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


@pytest.fixture
def state() -> State:
    return State(EmptyIndex(), b"")


def at(file: int, offset: int = 500) -> int:
    """A location in a file."""
    return file << 32 | offset


def nobody(file: int) -> bool:
    return False


def holding(live: int = 0, pins: Iterable[int] = ()) -> FileState:
    held = FileState(pins=pins)
    held.live = live
    return held


def add(state: State, owner: int, file: int, number: int = 1) -> tuple[int, int]:
    """A message in a file: its order key and location."""
    location = at(file, 1000 + number)
    state.add(owner, location << 32, location, SIZE, f"m{number}")
    return location << 32, location


# ---- the rule


def test_a_file_with_a_live_message_or_a_needed_record_stays() -> None:
    files = {1: holding(live=1), 2: holding(), 3: holding(), 4: holding()}
    assert reclaimable(files, {3}, nobody, 9) == (2, 4)
    assert reclaimable(files, {3}, nobody, 9, emptied={1, 3}) == (1, 2, 3, 4)


def test_a_file_stays_as_long_as_what_its_records_killed_can_come_back() -> None:
    files = {1: holding(live=1), 2: holding(pins=[1]), 3: holding(pins=[2]), 4: holding(pins=[9])}
    assert reclaimable(files, set(), nobody, 9) == (4,)
    files[1].live = 0
    assert reclaimable(files, set(), nobody, 9) == (1, 2, 3, 4), "oldest first: what is pinned goes before"


def test_the_fence_of_an_epoch_is_removed_after_all_files_before_it() -> None:
    files = {1: holding(live=1), 2: holding(), 3: holding(), 4: holding()}
    assert reclaimable(files, set(), {3}.__contains__, 9) == (2, 4)
    files[1].live = 0
    assert reclaimable(files, set(), {3}.__contains__, 9) == (1, 2, 3, 4)


def test_neither_the_current_file_nor_one_without_a_checkpoint_is_removed(state: State) -> None:
    assert reclaimable({number: holding() for number in (1, 2, 3)}, set(), nobody, 2) == (1,)
    for file in (1, 2, 3, 4):
        state.know_file(file)
    state.position = Position(3, 700)
    assert state.freeze(nobody, 5).reclaimable == (1, 2)
    state.thaw()
    assert state.freeze(nobody, 2).reclaimable == (1,)


# ---- messages and subscriptions


def test_a_message_that_moved_is_dead_in_all_its_places(state: State) -> None:
    owner = state.queue(Q)
    order_key, _ = add(state, owner, 1)
    state.move(owner, order_key, at(3), SIZE)
    state.remove(owner, order_key, at(3), SIZE, "m1", 4)
    assert (state.files[3].pins, state.files[4].pins) == ({1}, {3})


def test_a_subscriptions_newer_record_keeps_its_older_one_dead(state: State) -> None:
    owner = state.new_owner()
    state.subscribe(owner, T, INFO, at(1), None)
    add(state, owner, 2)
    state.subscribe(owner, T, INFO, at(3), None)
    assert state.files[3].pins == {1}
    assert state.held_by_records() == {1, 3}, "what it holds stands behind the older one"
    state.subscribe(owner, T, INFO, at(4), None)
    assert state.files[4].pins == {3}
    state.settle_record(owner)
    assert state.files[4].pins == {1, 3}
    assert state.held_by_records() == {4}


@pytest.mark.parametrize("is_told_by_an_index", [False, True])
def test_a_subscription_whose_oldest_record_was_removed_keeps_the_messages_after_the_next(
    tmp_path: Path, is_told_by_an_index: bool
) -> None:
    """By its newest record alone it would lose what it got between the two."""
    with Index.open(str(tmp_path)) as index:
        state = State(index, b"")
        owner = state.new_owner()
        for file in range(1, 7):
            state.know_file(file)
        state.subscribe(owner, T, INFO, at(1), None)
        for file in (2, 3, 4, 5):
            add(state, owner, file, file)
            state.subscribe(owner, T, INFO, at(file, 2000), None)
            state.subscribe(owner, T, INFO, at(file, 3000), None)
        state.add(owner, at(6) << 32, at(3, 700), SIZE, "committed in 6")
        if is_told_by_an_index:
            state = checkpointed(state, index)
        late = {"committed in 6"}
        kept = {1: {"m3", "m4", "m5", *late}, 2: {"m4", "m5", *late}, 4: {"m5", *late}, 3: set[str](), 5: set[str]()}
        for gone, messages in kept.items():
            state.lose_file(gone)
            assert {entry.message_id for _, entry in state.entries(owner, 0)} == messages, gone
            if is_told_by_an_index:
                state = checkpointed(state, index)
        assert owner not in state.owners
        assert list(index.scan(keys.LATER_RECORD, b"T")) == []


def checkpointed(state: State, index: Index) -> State:
    """Return the state that a broker finds at its start."""
    state.position = Position(6, 0)
    frozen = state.freeze(nobody, 0)
    for _ in index.checkpoint(changes(frozen), frozen.meta):
        pass
    return State(index, index.meta)


def test_an_index_that_does_not_know_all_records_of_a_subscription_says_so(tmp_path: Path) -> None:
    with Index.open(str(tmp_path)) as index:
        state = State(index, b"")
        owner = state.new_owner()
        state.subscribe(owner, T, INFO, at(1), None)
        add(state, owner, 1)
        assert without_later_records(state, index).knows_later_records, "it has no others"
        state.subscribe(owner, T, INFO, at(2), None)
        assert checkpointed(state, index).knows_later_records
        state.thaw()
        assert not without_later_records(state, index).knows_later_records


def without_later_records(state: State, index: Index) -> State:
    """Return the state that an earlier version left."""
    state.position = Position(6, 0)
    frozen = state.freeze(nobody, 0)
    meta = json.loads(frozen.meta)
    del meta["later_records"]
    for _ in index.checkpoint(changes(frozen), json.dumps(meta).encode()):
        pass
    state.thaw()
    return State(index, index.meta)


def test_an_unsubscription_keeps_all_records_of_the_subscription_dead(state: State) -> None:
    owner = state.new_owner()
    state.subscribe(owner, T, INFO, at(1), None)
    add(state, owner, 2)
    state.subscribe(owner, T, INFO, at(3), None)
    state.drop_owner(owner, 5)
    assert state.files[5].pins == {1, 2, 3}
    assert state.held_by_records() == set()


# ---- transactions


def operation(file: int, kind: int = ADD, number: int = 1) -> PendingOperation:
    return PendingOperation(at(file, number), SIZE, kind, Q, f"m{number}", None)


def test_an_open_transaction_holds_the_files_of_all_that_it_consists_of(state: State) -> None:
    state.enlist("t", operation(1))
    state.enlist("t", operation(2, REMOVE, 2))
    assert state.held_by_records() == {1, 2}
    state.prepare("t", at(3), [None, None])
    assert state.held_by_records() == {1, 2, 3}
    state.end_transaction("t", at(5))
    assert state.held_by_records() == set()
    assert state.files[5].pins == {1, 2, 3}, "its outcome keeps it decided"


def test_a_copy_of_an_operation_keeps_the_original_dead(state: State) -> None:
    state.enlist("t", operation(1))
    state.prepare("t", at(2), [None])
    state.enlist("t", operation(4), replaces=at(1, 1))
    state.prepare("t", at(5), [None])
    assert state.files[4].pins == {1}
    assert state.files[5].pins == {2}, "the newer Prepare does the same with the older one"
    assert state.held_by_records() == {4, 5}
