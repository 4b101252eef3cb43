"""What a scrape and a status tell of a node's part in a set."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.admin.set_metrics import ROLES, problems, warnings
from tests.unit.broker.admin.test_rule_metrics import BARE, scrape

PART: dict[str, Any] = {
    "role": "master",
    "epoch": 12,
    "promised": 12,
    "voters": {"aa": "n1", "bb": "n2", "cc": "n3"},
    "is_voter": True,
    "is_whole": True,
    "has_quorum": True,
    "problem": "",
    "zookeeper": None,
    "elections": 2,
    "quorum_losses": 1,
    "followers": {"bb": {"node": "n2", "lag_bytes": 4096}, "cc": {"node": "n3", "lag_bytes": None}},
}


def test_the_part_of_a_master_is_shown() -> None:
    lines = scrape(BARE | {"replication": PART})
    roles = [line for line in lines if line.startswith("tandemmq_replication_role{")]
    assert len(roles) == len(ROLES)
    assert [line for line in roles if line.endswith(" 1.0")] == ['tandemmq_replication_role{role="master"} 1.0']
    for line in (
        "tandemmq_replication_epoch 12.0",
        "tandemmq_replication_voters 3.0",
        "tandemmq_replication_is_whole 1.0",
        "tandemmq_replication_has_quorum 1.0",
        "tandemmq_replication_has_problem 0.0",
        "tandemmq_replication_elections_total 2.0",
        "tandemmq_replication_quorum_losses_total 1.0",
        'tandemmq_replication_follower_lag_bytes{node="n2",store="bb"} 4096.0',
    ):
        assert line in lines
    assert not any('node="n3"' in line for line in lines), "what is not known is left out"


def test_a_broker_without_a_set_shows_nothing_of_one() -> None:
    assert not any("replication" in line for line in scrape(BARE))


@pytest.mark.parametrize(
    ("problem", "is_mended_by_a_start"),
    [
        ("BUG: KeyError('x')", True),
        (
            "/data/replication.promise could not be written before: this node takes no part until it is started again",
            True,
        ),
        ("FORK: db-3.log parts from the master's at 5", False),
        ("", False),
    ],
)
def test_only_what_a_start_mends_makes_it_unhealthy(problem: str, is_mended_by_a_start: bool) -> None:
    said = PART | {"problem": problem}
    assert problems(said) == ([problem] if is_mended_by_a_start else [])
    assert warnings(said) == ([problem] if problem and not is_mended_by_a_start else [])


def test_who_is_not_whole_and_a_directory_that_is_away_are_shown() -> None:
    shown = warnings(PART | {"is_whole": False, "zookeeper": "no server answered"})
    assert len(shown) == 2
    assert "no server answered" in shown[1]
