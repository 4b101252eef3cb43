"""Each rule by which a node would promise, promises, or refuses (docs/formats/replication.md, rules 1 to 4), and where
journals part."""

# proves: election, newest-common-epoch, smaller-end-is-common

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.replication.election import View, refusal_to_pre_vote, refusal_to_promise
from tandemmq.broker.replication.quorum import BEFORE_ALL, Founding, Lineage, Position, Voters, common_point, is_lineage
from tandemmq.broker.replication.replica import ALIVE
from tandemmq.broker.replication.state import WAIT
from tandemmq.broker.replication.term import LEASE

OWN, A, B = (f"{number:032x}" for number in (1, 2, 3))
SET, OTHER = "5e" * 16, "07" * 16
HERE = Position(4, 6, 1_000)
NOW = 100.0
FOUNDING = Founding(SET, Voters((OWN, A, B), {}))
VIEW = View(
    store=OWN,
    set=SET,
    founding=None,
    epoch=7,
    candidate=A,
    position=HERE,
    weight=1,
    may_be_candidate=True,
    is_voter=True,
    lease_until=NOW,
    leads=False,
)
UNFOUNDED = replace(VIEW, set=None, position=BEFORE_ALL, is_voter=False, epoch=0, candidate=None)


def pre_vote(view: View = VIEW, **changes: Any) -> str | None:
    asked = {"asker_set": SET, "position": HERE, "weight": 1, "now": NOW, "has_deferred": False} | changes
    return refusal_to_pre_vote(view, **asked)


def promise(view: View = VIEW, **changes: Any) -> str | None:
    asked = {"asker": B, "asker_set": SET, "epoch": 8, "position": HERE, "founding": None, "now": NOW} | changes
    return refusal_to_promise(view, **asked)


def test_a_candidate_with_the_same_position_is_promised() -> None:
    assert pre_vote() is None
    assert promise() is None


#: What is wrong for both questions: changes of the view, changes of the question, and how the answer begins.
REFUSED = {
    "a learner": ({"is_voter": False}, {}, "this node does not vote"),
    "another set": ({}, {"asker_set": OTHER}, "the nodes belong to different sets"),
    "no set": ({}, {"asker_set": None}, "the nodes belong to different sets"),
    "no set of mine": ({"set": None}, {}, "the nodes belong to different sets"),
    "an older epoch": ({}, {"position": Position(3, 9, 9_000)}, "behind"),
    "an older file": ({}, {"position": Position(4, 5, 9_000)}, "behind"),
    "a batch less": ({}, {"position": Position(4, 6, 999)}, "behind"),
    "a lease that runs": ({"lease_until": NOW + 0.001}, {}, "a master leads"),
    "my own lease": ({"leads": True}, {}, "a master leads"),
}


@pytest.mark.parametrize(("seen", "asked", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(seen: dict[str, Any], asked: dict[str, Any], reason: str) -> None:
    for answer in (pre_vote(replace(VIEW, **seen), **asked), promise(replace(VIEW, **seen), **asked)):
        assert answer is not None
        assert answer.startswith(reason)


def test_a_lease_that_is_over_binds_nobody() -> None:
    assert pre_vote(replace(VIEW, lease_until=NOW)) is None
    assert promise(replace(VIEW, lease_until=NOW)) is None


# ---- weight


def test_a_lighter_one_that_is_as_far_comes_after_me() -> None:
    heavy = replace(VIEW, weight=2)
    assert (pre_vote(heavy) or "").startswith("after me")


@pytest.mark.parametrize(
    ("seen", "asked"),
    [
        ({}, {"has_deferred": True}),  # once in T
        ({"may_be_candidate": False}, {}),
        ({}, {"weight": 2}),
        ({}, {"position": Position(4, 6, 1_001)}),
    ],
)
def test_a_weight_never_blocks(seen: dict[str, Any], asked: dict[str, Any]) -> None:
    assert pre_vote(replace(VIEW, weight=2, **seen), **asked) is None


def test_a_promise_asks_for_no_weight() -> None:
    assert promise(replace(VIEW, weight=9)) is None


# ---- the epoch


@pytest.mark.parametrize("epoch", [1, 6, 7])
def test_an_epoch_that_is_not_above_is_refused(epoch: int) -> None:
    assert promise(epoch=epoch) == "epoch 7 is promised"


def test_the_same_candidate_is_granted_the_same_epoch_again() -> None:
    assert promise(asker=A, epoch=7) is None
    assert promise(replace(VIEW, lease_until=NOW + 1), asker=A, epoch=7) is None, "the lease is its own"
    assert promise(replace(VIEW, candidate=None), asker=A, epoch=7) is not None, "it was promised to who led"


# ---- founding


def founded(view: View = UNFOUNDED, **changes: Any) -> str | None:
    return promise(view, **({"asker_set": None, "epoch": 1, "position": BEFORE_ALL, "founding": FOUNDING} | changes))


def test_an_empty_node_grants_a_founding() -> None:
    assert founded() is None
    assert founded(position=Position(0, 3, 50)) is None, "of the one that has a journal"


def test_a_founding_may_take_the_place_of_another() -> None:
    assert founded(replace(UNFOUNDED, founding=Founding(OTHER, FOUNDING.voters))) is None


@pytest.mark.parametrize(
    ("seen", "asked", "reason"),
    [
        ({"set": OTHER}, {}, "this node belongs to a set"),
        ({"set": SET}, {}, "this node belongs to a set"),
        ({"store": "9" * 32}, {}, "this node would be no voter"),
        ({"position": Position(0, 1, 10)}, {}, "this node has a journal"),
        ({"position": Position(0, 1, 10)}, {"position": Position(0, 3, 50)}, "this node has a journal"),
        ({"epoch": 1}, {}, "epoch 1 is promised"),
    ],
)
def test_a_founding_is_refused(seen: dict[str, Any], asked: dict[str, Any], reason: str) -> None:
    assert founded(replace(UNFOUNDED, **seen), **asked) == reason


def test_a_node_that_promised_a_founding_promises_to_a_candidate_of_that_set() -> None:
    view = replace(UNFOUNDED, founding=FOUNDING, is_voter=True, epoch=1)
    assert promise(view, epoch=2) is None
    assert promise(view, epoch=2, asker_set=OTHER) == "the nodes belong to different sets"
    assert pre_vote(view) is None


# ---- times, and what elections are for


def test_a_lease_is_over_before_the_promise_that_keeps_it_with_clocks_a_tenth_apart() -> None:
    assert LEASE * 1.1 <= 1.0
    assert ALIVE * 4 <= LEASE
    assert WAIT > 0


positions = st.builds(Position, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(positions, min_size=3, max_size=5), st.integers(0, 4), st.integers(0, 4))
def test_an_elected_node_has_all_that_any_quorum_has(all_of: list[Position], candidate: int, quorum_seed: int) -> None:
    candidate %= len(all_of)
    quorum = len(all_of) // 2 + 1
    granted = [
        number
        for number, position in enumerate(all_of)
        if number == candidate or promise(replace(VIEW, position=position), position=all_of[candidate]) is None
    ]
    if len(granted) >= quorum:
        reached = sorted(all_of, reverse=True)[quorum - 1]
        assert all_of[candidate] >= reached


# ---- where journals part, against journals that are there byte by byte


FILE_BYTES = 4


@dataclass
class Journal:
    """Each byte is (epoch that wrote it, file, offset). A master continues from a prefix of the bytes of some node."""

    content: list[tuple[int, int, int]] = field(default_factory=list)  # epoch, file, offset

    @property
    def lineage(self) -> Lineage:
        ends: dict[int, tuple[int, int]] = {}
        for epoch, file, offset in self.content:
            ends[epoch] = (file, offset + 1)
        return tuple((epoch, *end) for epoch, end in ends.items())

    @property
    def position(self) -> Position:
        return Position(*self.lineage[-1]) if self.content else BEFORE_ALL

    def append(self, epoch: int, count: int) -> None:
        for _ in range(count):
            last = self.content[-1] if self.content else None
            if last is None or last[0] != epoch:
                self.content.append((epoch, epoch, 0))
            elif last[2] + 1 == FILE_BYTES:
                self.content.append((epoch, last[1] + 1, 0))
            else:
                self.content.append((epoch, last[1], last[2] + 1))


def common_by_comparing(mine: Journal, theirs: Journal) -> tuple[int, int] | None:
    shared = [a for a, b in takewhile(lambda both: both[0] == both[1], zip(mine.content, theirs.content, strict=False))]
    return (shared[-1][1], shared[-1][2] + 1) if shared else None


@given(st.integers(0, 1 << 32))
def test_the_common_point_is_the_end_of_what_both_have(seed: int) -> None:
    dice = random.Random(seed)
    journals = [Journal() for _ in range(3)]
    epoch = 0
    if dice.randrange(2):
        journals[0].append(0, dice.randrange(1, 9))
    for _ in range(dice.randrange(1, 12)):
        master = dice.choice(journals)
        highest = max((file for journal in journals for _, file, _ in journal.content), default=0)
        epoch = max(epoch, highest) + 1
        master.append(epoch, dice.randrange(1, 9))
        for follower in journals:
            if follower is not master and dice.randrange(2):
                follower.content = master.content[: dice.randrange(len(master.content) + 1)]
        for mine in journals:
            assert is_lineage(mine.lineage)
            for theirs in journals:
                found = common_point(mine.lineage, theirs.lineage)
                assert found == common_by_comparing(mine, theirs)
                assert found == common_point(theirs.lineage, mine.lineage)


@given(st.integers(0, 1 << 32))
def test_a_node_that_is_not_behind_in_the_same_epoch_has_all_of_the_other(seed: int) -> None:
    dice = random.Random(seed)
    master = Journal()
    for epoch in (1, 9, 17):
        master.append(epoch, dice.randrange(1, 20))
    mine = Journal(master.content[: dice.randrange(1, len(master.content) + 1)])
    theirs = Journal(master.content[: dice.randrange(1, len(master.content) + 1)])
    behind, ahead = sorted((mine, theirs), key=lambda journal: journal.position)
    assert common_point(ahead.lineage, behind.lineage) == behind.position[1:]


def test_the_newest_epoch_counts_not_the_longest_file() -> None:
    assert common_point(((0, 3, 50), (4, 9, 100)), ((0, 3, 50), (4, 5, 900), (10, 11, 7))) == (5, 900)


def test_the_smaller_end_is_in_the_earlier_file_before_it_is_at_the_smaller_offset() -> None:
    assert common_point(((4, 5, 900),), ((4, 6, 1),)) == (5, 900)


def test_lineages_without_a_common_point() -> None:
    assert common_point(((4, 4, 1),), ((5, 5, 1),)) is None
    assert common_point((), ((5, 5, 1),)) is None
    assert common_point((), ()) is None


def test_a_position_is_compared_by_its_epoch_first() -> None:
    assert Position(5, 5, 0) > Position(4, 9, 100)
    assert Position(4, 9, 1) > Position(4, 8, 100)
    assert Position(4, 9, 2) > Position(4, 9, 1)
    assert min(Position(1, 1, 0), BEFORE_ALL) == BEFORE_ALL


def test_epochs_that_do_not_ascend_are_no_lineage() -> None:
    assert is_lineage(())
    assert is_lineage(((0, 3, 9), (4, 4, 1)))
    assert not is_lineage(((4, 4, 1), (4, 5, 1)))
    assert not is_lineage(((0, 4, 1), (4, 4, 9)))
    assert not is_lineage(((5, 5, 1), (4, 6, 1)))
