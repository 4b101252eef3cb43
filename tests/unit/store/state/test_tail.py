"""What a checkpoint writes is in order, however much it is, and is freed piece by piece."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.state import tail
from tandemmq.store.state.keys import OwnerRecord
from tandemmq.store.state.tail import Frozen, Position, Tail, changes, in_order
from tests.support.prove import SEED

Q = Destination(DestinationKind.QUEUE, "q")


@given(st.lists(st.integers(), unique=True), st.integers(1, 7))
def test_pieces_come_out_in_order(items: Sequence[int], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "SORTED_AT_ONCE", piece)
        assert list(in_order(items)) == sorted(items)


def test_what_many_owners_got_and_lost_is_written_in_the_order_of_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "SORTED_AT_ONCE", 50)
    changed = Tail()
    seed = SEED
    print(f"seed {seed} (TANDEMMQ_SEED)")
    chance = random.Random(seed)
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


def test_what_is_freed_is_empty() -> None:
    changed = Tail()
    for owner in range(3):
        changed.added[owner][1 << 32] = (1 << 32, 10, "ID:a")
        changed.removed[owner][2 << 32] = "ID:b"
        changed.ranks[owner][1 << 32] = 1
        changed.displaced[1, owner, 1 << 32] = True
    changed.free()
    assert not changed.displaced
    assert not any([*changed.added.values(), *changed.removed.values(), *changed.ranks.values()])
