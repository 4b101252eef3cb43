"""The ids of messages in the tails: the highest sequence of each producer."""

from __future__ import annotations

from tandemmq.store.state.known_ids import KnownIds


def test_ids_that_came_before_number_count_too() -> None:
    ids = KnownIds()
    ids.add((1, "ID:p:1:1:7"))
    ids.freeze()
    ids.add((1, "ID:p:1:1:4"))
    ids.number()
    assert [ids.is_newest(1, "ID:p:1:1", sequence) for sequence in (6, 7)] == [False, True]
    ids.thaw()
    ids.add((1, "ID:p:1:1:5"))
    assert [ids.is_newest(1, "ID:p:1:1", sequence) for sequence in (4, 5)] == [False, True]
