"""When scheduled messages are due."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.scheduling.schedule import REPEAT_MAX, TIME_MS_MAX, Schedule

NOW = int(datetime(2024, 1, 1, 12, 0, 30, tzinfo=UTC).timestamp() * 1000)
MINUTE = 60_000


def schedule(**properties: Any) -> Schedule:
    found = Schedule.of({f"AMQ_SCHEDULED_{name}": value for name, value in properties.items()})
    assert found is not None
    return found


def occurrences(which: Schedule, *, late: int = 0, limit: int = 20) -> list[int]:
    """When it is sent, in milliseconds from now, by a scheduler that is always ``late``."""
    due, left = which.first(NOW, UTC), which.repeat
    found = []
    while len(found) < limit:
        found.append(due - NOW)
        following = which.next(due, due + late, left, UTC)
        if following is None:
            break
        due, left = following
    return found


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"DELAY": 500}, [500]),
        ({"DELAY": "500"}, [500]),
        ({"DELAY": -5}, [0]),
        ({"DELAY": 0}, [0]),
        ({"PERIOD": 100}, [100]),
        ({"PERIOD": 100, "REPEAT": 2}, [100, 200, 300]),
        ({"DELAY": 5, "PERIOD": "100", "REPEAT": "2"}, [5, 105, 205]),
        ({"DELAY": 5, "REPEAT": 1}, [5, 6]),
        ({"CRON": ""}, [0]),
    ],
)
def test_delays_periods_and_repetitions(properties: dict[str, Any], expected: list[int]) -> None:
    assert occurrences(schedule(**properties)) == expected


def test_for_ever_does_not_end() -> None:
    assert len(occurrences(schedule(PERIOD=100, REPEAT=-1), limit=2000)) == 2000


def test_what_was_missed_is_not_made_up_for() -> None:
    assert occurrences(schedule(PERIOD=100, REPEAT=3), late=250) == [100, 400, 700, 1000]


def test_a_cron_entry_names_minutes() -> None:
    half = 30_000
    assert occurrences(schedule(CRON="* * * * *", DELAY=7), limit=3) == [half, half + MINUTE, half + 2 * MINUTE]
    assert occurrences(schedule(CRON="* * * * *"), late=3 * MINUTE, limit=2) == [half, half + 4 * MINUTE]
    assert schedule(CRON="* * * * *", DELAY=7).run is None


def test_a_cron_entry_with_repetitions_begins_runs() -> None:
    run = schedule(CRON="* * * * *", DELAY=7, PERIOD=10, REPEAT=2).run
    assert run == Schedule(7, 10, 2)
    assert occurrences(run) == [7, 17, 27]


@pytest.mark.parametrize(
    "properties",
    [None, {}, {"colour": "red"}, {"AMQ_SCHEDULED_REPEAT": 3}, {"AMQ_SCHEDULED_DELAY": 3, "scheduledJobId": "ID:a"}],
)
def test_others_are_not_scheduled(properties: dict[str, Any] | None) -> None:
    assert Schedule.of(properties) is None


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "soon"},
        {"DELAY": 1.5},
        {"DELAY": True},
        {"DELAY": TIME_MS_MAX + 1},
        {"DELAY": "9" * 5000},
        {"PERIOD": b"1"},
        {"DELAY": 1, "REPEAT": REPEAT_MAX + 1},
        {"PERIOD": 99, "REPEAT": -1},
        {"CRON": "* * * *"},
        {"CRON": "* * * * *", "PERIOD": 1000, "REPEAT": -1},
    ],
)
def test_what_cannot_be_done_is_refused_by_name(properties: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="cannot be scheduled: AMQ_SCHEDULED_") as refusal:
        schedule(**properties)
    assert not refusal.value.is_fatal


@pytest.mark.parametrize(
    ("properties", "parts"),
    [
        ({"DELAY": 1}, 100),
        ({"DELAY": 1, "REPEAT": REPEAT_MAX}, 1),
        ({"DELAY": 1, "REPEAT": 9}, 100),
        ({"PERIOD": 100, "REPEAT": -1}, 1),
        ({"PERIOD": 10_000, "REPEAT": -1}, 100),
        ({"CRON": "* * * * *", "REPEAT": 5}, 100),
        ({"CRON": "0 * * * *", "REPEAT": 359}, 100),
    ],
)
def test_one_message_becomes_a_bounded_number(properties: dict[str, Any], parts: int) -> None:
    schedule(**properties).check_copies(parts)


@pytest.mark.parametrize(
    ("properties", "parts"),
    [
        ({"DELAY": 1, "REPEAT": REPEAT_MAX}, 2),
        ({"DELAY": 1, "REPEAT": 10}, 100),
        ({"PERIOD": 100, "REPEAT": -1}, 2),
        ({"PERIOD": 9_000, "REPEAT": -1}, 100),
        ({"CRON": "* * * * *", "REPEAT": 6}, 100),
        ({"CRON": "0 * * * *", "REPEAT": 360}, 100),
    ],
)
def test_a_message_that_would_become_too_many_is_refused(properties: dict[str, Any], parts: int) -> None:
    with pytest.raises(ClientError, match="cannot be scheduled") as refusal:
        schedule(**properties).check_copies(parts)
    assert not refusal.value.is_fatal
