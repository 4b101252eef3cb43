"""Size of a quorum, the position that it has reached, and the progress of a term."""

# proves: first-batch-makes-final, more-than-half, reached-by-a-quorum

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.replication.election import Round
from tandemmq.broker.replication.messages import Promise
from tandemmq.broker.replication.quorum import BEFORE_ALL, NOWHERE, Founding, Marks, Place, Position, Voters, quorum_th
from tandemmq.config.replication import Sync, sync_of

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


def test_a_node_without_a_vote_does_not_count_for_a_quorum() -> None:
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


# ---- progress of a term, compared with the rule, counted in the test


OWN = STORES[0]
SYNCS = ["local_mem", "local_disk", "remote_mem", "remote_disk", "quorum_mem", "quorum_disk", "local_disk,remote_mem"]
places = st.tuples(st.integers(1, 3), st.integers(1, 5))
lists = st.integers(1, 5).map(lambda count: Voters(tuple(STORES[:count]), {}))
events = st.one_of(
    st.tuples(st.just("wrote"), places),
    st.tuples(st.just("sync"), places),
    st.tuples(st.just("have"), st.sampled_from(STORES[1:]), places, st.booleans()),
    st.tuples(st.just("change"), lists),
)


class Counted:
    """The rules, place by place."""

    def __init__(self, voters: Voters, sync: Sync) -> None:
        self.voters, self.sync = voters, sync
        self.written = self.synced = self.confirmed = self.final = NOWHERE
        self.first: Place | None = None
        self.haves: list[tuple[str, Place, bool]] = []

    def has(self, store: str, place: Place, *, on_disk: bool, own: Place) -> bool:
        if store == OWN:
            return own >= place
        return any(who == store and have >= place and (disk or not on_disk) for who, have, disk in self.haves)

    def is_with_quorum(self, place: Place, *, on_disk: bool, own: Place) -> bool:
        count = sum(self.has(store, place, on_disk=on_disk, own=own) for store in self.voters.ids)
        return 2 * count > len(self.voters.ids)

    def count(self) -> None:
        if self.first is None:
            return
        for place in [(file, end) for file in range(1, 4) for end in range(1, 6) if (file, end) <= self.written]:
            if place >= self.first and self.is_with_quorum(place, on_disk=True, own=self.synced):
                self.final = max(self.final, place)
            own = self.synced if self.sync.local_disk else self.written
            remote = self.sync.remote
            if own >= place and (
                remote == "none" or self.is_with_quorum(place, on_disk=remote == "disk", own=self.written)
            ):
                self.confirmed = max(self.confirmed, place)


@given(lists, st.sampled_from(SYNCS), st.lists(events, max_size=25))
def test_the_marks_are_what_a_quorum_has(voters: Voters, sync: str, happened: list[Any]) -> None:
    marks, counted = Marks(OWN, voters, sync_of(sync)), Counted(voters, sync_of(sync))
    for kind, *rest in happened:
        match kind:
            case "wrote" if rest[0] > marks.written:
                marks.wrote(rest[0])
                counted.written = rest[0]
                counted.first = counted.first or rest[0]
            case "sync" if marks.synced < rest[0] <= marks.written:
                marks.sync(rest[0])
                counted.synced = rest[0]
            case "have":
                store, place, on_disk = rest
                marks.have(store, place, on_disk=on_disk)
                counted.haves.append((store, place, on_disk))
            case "change":
                marks.change(rest[0])
                counted.voters = rest[0]
        counted.count()
        assert (marks.final, marks.confirmed) == (counted.final, counted.confirmed)


def three(sync: str = "quorum_disk") -> Marks:
    return Marks(OWN, Voters(tuple(STORES[:3]), {}), sync_of(sync))


def test_records_of_former_epochs_are_not_final_before_the_first_batch() -> None:
    marks = three()
    marks.have(STORES[1], (3, 500), on_disk=True)
    marks.have(STORES[2], (3, 500), on_disk=True)
    marks.wrote((5, 100))
    marks.sync((5, 100))
    assert marks.final == NOWHERE
    marks.have(STORES[1], (5, 100), on_disk=True)
    assert marks.final == (5, 100)


def test_bytes_in_a_memory_do_not_count_after_the_link_is_lost() -> None:
    marks = three("quorum_mem")
    marks.wrote((5, 100))
    marks.have(STORES[1], (5, 200), on_disk=False)
    marks.lost(STORES[1])
    marks.wrote((5, 200))
    assert marks.confirmed == (5, 100)
    marks.have(STORES[1], (5, 200), on_disk=False)
    assert marks.confirmed == (5, 200)


def test_bytes_on_a_disk_count_after_the_link_is_lost() -> None:
    marks = three()
    marks.have(STORES[1], (5, 100), on_disk=True)
    marks.lost(STORES[1])
    marks.wrote((5, 100))
    marks.sync((5, 100))
    assert marks.final == (5, 100)
    assert marks.places() == {STORES[1]: (5, 100)}


# proves: founded-by-all
@pytest.mark.parametrize(("is_founding", "won"), [(False, [False, True, True]), (True, [False, False, True])])
def test_a_set_is_founded_by_all_and_an_epoch_promised_by_a_quorum(is_founding: bool, won: list[bool]) -> None:
    founding = Founding("5e" * 16, voters(3)) if is_founding else None
    message = Promise(1, None, 1, BEFORE_ALL, founding, 10_000)
    rounds = [Round(message, voters(3), 0.0, 1.0, set(STORES[:count])) for count in (1, 2, 3)]
    assert [each.is_won for each in rounds] == won
