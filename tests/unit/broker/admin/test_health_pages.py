"""The plain pages of health: whom a prober may kill, where clients go, and who stands by."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.admin.server import HEALTH_PAGES

pytestmark = pytest.mark.promise("health")

LIVE, READY, STANDBY = "/health/live", "/health/ready", "/health/standby"


def pages(role: str, *problems: str) -> set[str]:
    status: dict[str, Any] = {"role": role, "epoch": 3, "problems": list(problems)}
    return {page for page, is_well in HEALTH_PAGES.items() if is_well(status)}


@pytest.mark.parametrize(
    ("role", "well"),
    [("master", {LIVE, READY}), ("standby", {LIVE, STANDBY}), ("starting", {LIVE}), ("demoted", {LIVE})],
)
def test_a_promotion_that_takes_its_time_is_no_reason_to_kill(role: str, well: set[str]) -> None:
    assert pages(role) == well


@pytest.mark.parametrize("role", ["master", "standby", "starting", "demoted"])
def test_a_problem_is_one(role: str) -> None:
    assert pages(role, "the storage thread has shown no life for 12 s") == set()
