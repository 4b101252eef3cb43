"""How many are enough, and what they have all reached."""

# proves: more-than-half, reached-by-a-quorum

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.replication.positions import Position
from tandemmq.broker.replication.voters import Voters, quorum_th

pytestmark = pytest.mark.promise("set-is-managed")

STORES = [f"{number:032x}" for number in range(1, 10)]


def voters(count: int) -> Voters:
    return Voters(tuple(STORES[:count]), {store: f"b{number}" for number, store in enumerate(STORES[:count], 1)})


@pytest.mark.parametrize(("count", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_quorum_is_more_than_half(count: int, quorum: int) -> None:
    assert voters(count).quorum == quorum


@pytest.mark.parametrize("count", range(1, 8))
def test_two_quorums_share_a_store_also_before_and_after_a_change_of_one(count: int) -> None:
    one = voters(count)
    for other in (one, one.add(STORES[count], "new"), *([one.remove(STORES[0])] if count > 1 else [])):
        for mine in combinations(one.ids, one.quorum):
            for theirs in combinations(other.ids, other.quorum):
                assert set(mine) & set(theirs)


def test_who_is_no_voter_does_not_count_for_a_quorum() -> None:
    three = voters(3)
    assert three.have_quorum([STORES[0], STORES[2]])
    assert not three.have_quorum([STORES[0], STORES[4], STORES[5]])


def test_one_more_and_one_less() -> None:
    three = voters(3)
    four = three.add(STORES[7], "b8")
    assert STORES[7] in four
    assert STORES[7] not in three
    assert four.name(STORES[7]) == "b8"
    assert four.remove(STORES[7]) == three
    assert STORES[0] not in three.remove(STORES[0])
    assert STORES[0] not in three.remove(STORES[0]).names
    assert three.name(STORES[8]) == STORES[8][:8]
    assert hash(four.remove(STORES[7])) == hash(three)


def test_a_voter_is_there_once() -> None:
    with pytest.raises(AssertionError):
        voters(3).add(STORES[0], "again")
    with pytest.raises(AssertionError):
        Voters((STORES[0], STORES[0]), {})
    with pytest.raises(AssertionError):
        voters(3).remove(STORES[5])
    with pytest.raises(AssertionError):
        voters(1).remove(STORES[0])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=7), st.integers(1, 7))
def test_the_greatest_value_that_a_quorum_reaches(values: list[tuple[int, int, int]], quorum: int) -> None:
    positions = [Position(*value) for value in values]
    reached = [value for value in positions if sum(other >= value for other in positions) >= quorum]
    assert quorum_th(positions, quorum) == max(reached, default=None)


def test_too_few_values_reach_nothing() -> None:
    assert quorum_th([5, 6], 3) is None
    assert quorum_th([5, 6, 7], 3) == 5
    assert quorum_th([7], 1) == 7
