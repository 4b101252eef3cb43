"""Where journals part, against journals that are there byte by byte."""

# proves: newest-common-epoch, smaller-end-is-common

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.replication.positions import BEFORE_ALL, Lineage, Position, common_point, is_lineage

FILE_BYTES = 4


@dataclass
class Journal:
    """Each byte is (the epoch that wrote it, where it lies). A master goes on from a prefix of what some node has."""

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
def test_who_is_not_behind_in_the_same_epoch_has_all_that_the_other_has(seed: int) -> None:
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


def test_nothing_in_common() -> None:
    assert common_point(((4, 4, 1),), ((5, 5, 1),)) is None
    assert common_point((), ((5, 5, 1),)) is None
    assert common_point((), ()) is None


def test_a_position_is_compared_by_its_epoch_first() -> None:
    assert Position(5, 5, 0) > Position(4, 9, 100)
    assert Position(4, 9, 1) > Position(4, 8, 100)
    assert Position(4, 9, 2) > Position(4, 9, 1)
    assert min(Position(1, 1, 0), BEFORE_ALL) == BEFORE_ALL


def test_what_does_not_ascend_is_no_lineage() -> None:
    assert is_lineage(())
    assert is_lineage(((0, 3, 9), (4, 4, 1)))
    assert not is_lineage(((4, 4, 1), (4, 5, 1)))
    assert not is_lineage(((0, 4, 1), (4, 4, 9)))
    assert not is_lineage(((5, 5, 1), (4, 6, 1)))
