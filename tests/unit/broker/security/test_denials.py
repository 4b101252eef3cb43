"""The log tells who was refused what: once, then how often, and no more lines than it can bear."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tandemmq.broker.engine.denials import AGAIN_MS, LINES_MAX, REMEMBERED_MAX, Denials
from tests.unit.broker.security.test_branches import BILLS, SecuredHarness

SENTENCE = "User eve is not authorized to write to: queue://bills"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING, "tandemmq.broker.engine.denials")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_refusal_names_user_operation_and_destination(lines: Any) -> None:
    harness = SecuredHarness()
    eve, alice = harness.come("eve"), harness.come("alice")
    alice.send("bill", BILLS)
    assert lines() == []
    for _ in range(3):
        eve.send("bill", BILLS)
    eve.subscribe(destination=BILLS)
    assert [line.rpartition(": User ")[2] for line in lines()] == [
        "eve is not authorized to write to: queue://bills",
        "eve is not authorized to read from: queue://bills",
    ]
    assert all(line.startswith("denied: ") for line in lines())


def test_the_same_is_told_once_a_minute_with_its_number(lines: Any) -> None:
    denials = Denials()
    for now in (0, 1, AGAIN_MS - 1, AGAIN_MS, AGAIN_MS + 1):
        denials.note("peer", SENTENCE, now)
    assert lines() == [f"denied: 'peer': {SENTENCE}", f"denied: 'peer': {SENTENCE}, 2 times since it was told"]


def test_lines_have_a_bound_and_what_was_not_told_is_counted(lines: Any) -> None:
    denials = Denials()
    for number in range(LINES_MAX + 7):
        denials.note("peer", f"{SENTENCE}.{number}", 5)
    assert len(lines()) == LINES_MAX
    denials.note("peer", SENTENCE, 5 + AGAIN_MS)
    assert lines()[LINES_MAX] == "denied: 7 more refusals, of which no line was written"


def test_what_is_remembered_has_a_bound(lines: Any) -> None:
    denials = Denials()
    for number in range(2 * REMEMBERED_MAX):
        denials.note("peer", f"{SENTENCE}.{number}", AGAIN_MS * (1 + number // LINES_MAX))
    assert len(denials._told) == REMEMBERED_MAX
