"""Why a set has no master, by what its members say."""

from __future__ import annotations

from typing import Any

from tandemmq.cli.replication.reasons import Seen, master_of, why_no_master


def seen(node: str, is_voter: bool = True, **said: Any) -> Seen:
    status = {"role": "looking", "set": "5e7", "is_whole": True, "position": [3, 4, 100], "epoch": 0, "problem": ""}
    return Seen(node * 2, node, is_voter, status | said, 0.5)


def away(node: str, ago: float | None = None) -> Seen:
    return Seen(node * 2, node, True, None, ago)


def test_a_master_with_a_quorum_needs_no_reason() -> None:
    master = seen("a", role="master", epoch=3, has_quorum=True)
    assert why_no_master([master, away("b"), away("c")]) == []


def test_of_two_that_call_themselves_master_the_later_epoch_leads() -> None:
    old, new = seen("a", role="master", epoch=3), seen("b", role="master", epoch=4)
    assert master_of([old, new]) is new


def test_a_master_without_a_quorum_says_who_is_missed() -> None:
    reasons = why_no_master([seen("a", role="master", epoch=3, has_quorum=False), away("b", 12.4), away("c")])
    assert reasons == [
        "a was master, and no quorum answers it any more",
        "2 of 3 voters have to be there and whole; 1 are",
        "b is not there: it was heard of 12 s ago",
        "c is not there",
    ]


def test_who_is_damaged_does_not_count() -> None:
    reasons = why_no_master(
        [seen("a"), seen("b", is_whole=False), seen("c", problem="FORK: db-3.log parts from the master's")]
    )
    assert reasons == [
        "2 of 3 voters have to be there and whole; 1 are",
        "b lacks files of the journal and does not count until it has them",
        "c: FORK: db-3.log parts from the master's",
    ]


def test_who_is_behind_cannot_lead() -> None:
    reasons = why_no_master([seen("a"), seen("b", position=[3, 4, 90]), away("c")])
    assert reasons[0] == "2 of 3 voters are there and whole: an election should end soon"
    assert "b is behind a, which has to lead" in reasons


def test_learners_are_not_missed() -> None:
    reasons = why_no_master([seen("a"), seen("b"), Seen("dd", "d", False, None)])
    assert reasons == ["2 of 2 voters are there and whole: an election should end soon"]


def test_a_set_that_is_not_founded_says_what_it_waits_for() -> None:
    waits = "waits for 3 nodes to found the set; there are 2"
    found = [seen("a", False, set=None, problem=waits), seen("b", False, set=None, problem=waits)]
    assert why_no_master(found) == ["the set is not founded yet", f"a: {waits}", f"b: {waits}"]
