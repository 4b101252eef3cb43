"""Keys of the index: decoding returns the encoded values, and keys sort in the order that the store needs."""

# proves: a-copy-is-there-once

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.state import keys, tail
from tandemmq.store.state.copies import Copies
from tandemmq.store.state.keys import Entry, OwnerRecord
from tandemmq.store.state.tail import Frozen, Position, Tail, changes, in_order
from tests.support.prove import SEED

IDS = st.one_of(
    st.text(max_size=30),
    st.builds("{}:{}".format, st.text(max_size=20), st.integers(0, 1 << 65)),
    st.builds("ID:a-{}:1:1:{}".format, st.integers(0, 3), st.integers(0, 50)),
    st.builds("{}:0{}".format, st.text(max_size=3), st.integers(0, 9)),
)


@given(owner=st.integers(1, 3), ids=st.lists(IDS, max_size=30))
def test_many_ids_have_the_keys_that_each_has(owner: int, ids: list[str]) -> None:
    assert list(keys.id_keys(owner, ids)) == [keys.id_key(owner, message_id) for message_id in ids]


@given(ids=st.sets(IDS, max_size=60))
def test_different_ids_have_different_keys(ids: set[str]) -> None:
    assert len({keys.id_key(1, message_id) for message_id in ids}) == len(ids)


@given(first=st.integers(0, 1 << 63), second=st.integers(0, 1 << 63))
def test_the_ids_of_a_producer_stand_in_their_order(first: int, second: int) -> None:
    one, other = keys.id_key(1, f"ID:x:1:1:{first}"), keys.id_key(1, f"ID:x:1:1:{second}")
    assert (one < other) == (first < second)


@given(
    order_key=st.integers(0, (1 << 96) - 1),
    location=st.integers(0, (1 << 64) - 1),
    size=st.integers(0, (1 << 32) - 1),
    message_id=st.text(max_size=40),
)
def test_an_entry_reads_back(order_key: int, location: int, size: int, message_id: str) -> None:
    for place in (location, order_key >> 32):
        value = keys.message_value(order_key, (place, size, message_id))
        assert keys.entry_of(order_key, value) == Entry(place, size, message_id)
    assert keys.order_in(keys.message_key(7, order_key)) == order_key


@given(pins=st.sets(st.integers(1, (1 << 31) - 1), max_size=2000), live=st.integers(0, 1 << 40))
def test_a_files_holders_read_back_however_many_they_are(pins: set[int], live: int) -> None:
    found: set[int] = set()
    for key, value in keys.file_values(5, live * 7, pins):
        assert len(value) <= 2048, "a value fits a quarter of a page"
        file, size, some = keys.file_of_entry(key, value)
        assert (file, size) == (5, live * 7)
        found.update(some)
    assert found == pins
    assert keys.holder_of(keys.holder_key(5, 9), keys.holder_value(live, live * 7)) == (5, 9, live, live * 7)


@given(file=st.integers(1, (1 << 31) - 1), owner=st.integers(1, (1 << 32) - 1), place=st.integers(0, (1 << 96) - 1))
def test_a_displaced_message_reads_back(file: int, owner: int, place: int) -> None:
    key = keys.displaced_key(file, owner, place)
    assert key.startswith(keys.displaced_prefix(file, owner))
    assert keys.order_in(key) == place


@given(
    name=st.text(max_size=50), client=st.none() | st.text(max_size=20), count=st.integers(0), location=st.integers(0)
)
def test_an_owner_reads_back(name: str, client: str | None, count: int, location: int) -> None:
    record = OwnerRecord(Destination(DestinationKind.TOPIC, name), client, client, location, count, count * 3)
    assert keys.owner_of(keys.numbered(keys.OWNER, 9), keys.owner_value(record)) == (9, record)


# ---- What a checkpoint writes is in order, however much it is, and is freed piece by piece


Q = Destination(DestinationKind.QUEUE, "q")


@given(st.lists(st.integers(), unique=True), st.integers(1, 7))
def test_pieces_come_out_in_order(items: Sequence[int], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "SORTED_AT_ONCE", piece)
        assert list(in_order(items)) == sorted(items)


def test_changes_of_many_owners_are_written_in_key_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "SORTED_AT_ONCE", 50)
    changed = Tail()
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    owners = chance.sample(range(1, 10_000), 300)
    for owner in owners:
        for number in chance.sample(range(1, 1_000), 8):
            changed.added[owner][number << 32] = (number << 32, 10, f"ID:a-1:{chance.randrange(9)}:{number}")
        for number in chance.sample(range(1_001, 2_000), 8):
            changed.removed[owner][number << 32] = f"ID:b-1:{chance.randrange(9)}:{number}"
        changed.displaced[number, owner, number << 32] = chance.random() < 0.5
    record = OwnerRecord(Q, None, None, 0, 1, 1, 0, None)
    told = [(owner, None if chance.random() < 0.5 else record) for owner in owners]
    frozen = Frozen(changed, [(b"X", b""), (b"A", b"")], told, told, b"", Position(1, 0), ())
    keys = [key for key, _ in changes(frozen)]
    assert keys == sorted(set(keys))
    assert len(keys) == 2 + 300 * (2 + 1 + 2 * 16)


def test_a_freed_tail_is_empty() -> None:
    changed = Tail()
    for owner in range(3):
        changed.added[owner][1 << 32] = (1 << 32, 10, "ID:a")
        changed.removed[owner][2 << 32] = "ID:b"
        changed.ranks[owner][1 << 32] = 1
        changed.displaced[1, owner, 1 << 32] = True
    changed.free()
    assert not changed.displaced
    assert not any([*changed.added.values(), *changed.removed.values(), *changed.ranks.values()])


# ---- Copies of one message for several queues are none of each other; the same one twice in a queue is


def add(owner: int, id: str = "ID:c:1:1:1", *, is_audited: bool = True) -> AddMessage:
    message = Message(Destination(DestinationKind.QUEUE, f"q{owner}"), id)
    return AddMessage(message, (owner,), b"", is_audited=is_audited)


def told(copies: Copies, *adds: AddMessage) -> list[bool]:
    found = [copies.is_duplicate(each) for each in adds]
    assert found == [each.is_duplicate for each in adds]
    return found


@pytest.mark.parametrize(
    ("came_before", "stored_in", "queues", "duplicates"),
    [
        (False, 0, [1, 2, 3], [False, False, False]),
        (False, 0, [1, 1, 2, 2], [False, True, False, True]),
        (False, 2, [1, 2, 3], [False, True, False]),
        (True, 0, [1, 2], [True, True]),
    ],
)
def test_each_queue_has_one_copy(came_before: bool, stored_in: int, queues: list[int], duplicates: list[bool]) -> None:
    copies = Copies(lambda add: came_before, lambda add: add.owners == (stored_in,))
    assert told(copies, *map(add, queues)) == duplicates


@pytest.mark.parametrize("came_before", [True, False])
def test_an_id_that_is_not_audited_is_no_duplicate(came_before: bool) -> None:
    copies = Copies(lambda add: came_before, lambda add: came_before)
    assert told(copies, add(1, is_audited=False), add(1, is_audited=False)) == [False, False]
