"""Promotions that sleep at the worst moment: others come first, and nothing of theirs or ours is taken for damage."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from store_harness import SMALL, Term

from journal.errors import Deposed, JournalMissing
from store.check import check
from store.follow import Follower
from store.promotion import Promotion
from store.standby import Standby


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    report = check(str(tmp_path))
    assert report.is_clean, report.problems


def standby(directory: str, name: str) -> Standby:
    return Standby(directory, f"{directory}/index", name, SMALL)


def begin(late: Standby) -> None:
    late.begin(
        has_proof=lambda: True, call_soon=lambda _: None, call_later_this_turn=lambda _: None, on_lost=lambda _: None
    )


@pytest.mark.parametrize("sleeps_again", [False, True])
def test_who_sleeps_between_fence_and_header_is_deposed_and_spoils_nothing(
    directory: str, sleeps_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Term(directory, "a")
    first.add_durably(10)
    first.crash()
    late = standby(directory, "late")
    late.fence()
    successor = standby(directory, "b")
    successor.fence()
    late.read()
    with monkeypatch.context() as patch:
        if sleeps_again:  # between its look and its header, so that the header is written all the same
            patch.setattr(Promotion, "_look", lambda self: None)
        with pytest.raises(Deposed):
            begin(late)
    late.close()
    successor.close()  # it came to nothing, too
    third = Term(directory, "c")
    assert len(third.bodies()) == 10
    third.close()


def test_a_file_that_others_remove_while_a_promotion_reads_is_no_damage(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Term(directory, "a")
    first.add_durably(10)
    first.crash()
    advance = Follower.advance
    missed: list[int] = []

    def miss_one(self: Follower, *, is_final: bool = False) -> dict[int, int]:
        if is_final and not missed:
            missed.append(1)
            raise JournalMissing(1, 0)
        return advance(self, is_final=is_final)

    monkeypatch.setattr(Follower, "advance", miss_one)
    term = Term(directory, "b")
    assert missed
    assert len(term.bodies()) == 10
    term.close()
