"""Due times of scheduled messages, and the minutes that a cron entry names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.scheduling.schedule import REPEAT_MAX, TIME_MS_MAX, Cron, Schedule

NOW = int(datetime(2024, 1, 1, 12, 0, 30, tzinfo=UTC).timestamp() * 1000)
MINUTE = 60_000


def schedule(**properties: Any) -> Schedule:
    found = Schedule.of({f"AMQ_SCHEDULED_{name}": value for name, value in properties.items()})
    assert found is not None
    return found


def occurrences(which: Schedule, *, late: int = 0, limit: int = 20) -> list[int]:
    """Return when the message is sent, in milliseconds from now, by a scheduler that is always ``late``."""
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
        ({"DELAY": 500}, [500]), ({"DELAY": "500"}, [500]), ({"DELAY": -5}, [0]), ({"DELAY": 0}, [0]),
        ({"PERIOD": 100}, [100]), ({"PERIOD": 100, "REPEAT": 2}, [100, 200, 300]),
        ({"DELAY": 5, "PERIOD": "100", "REPEAT": "2"}, [5, 105, 205]), ({"DELAY": 5, "REPEAT": 1}, [5, 6]),
        ({"CRON": ""}, [0]),
    ],
)  # fmt: skip
def test_delays_periods_and_repetitions(properties: dict[str, Any], expected: list[int]) -> None:
    assert occurrences(schedule(**properties)) == expected


def test_for_ever_does_not_end() -> None:
    assert len(occurrences(schedule(PERIOD=100, REPEAT=-1), limit=2000)) == 2000


def test_a_missed_time_is_sent_only_once() -> None:
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
        {"DELAY": "soon"}, {"DELAY": 1.5}, {"DELAY": True}, {"DELAY": TIME_MS_MAX + 1}, {"DELAY": "9" * 5000},
        {"PERIOD": b"1"}, {"DELAY": 1, "REPEAT": REPEAT_MAX + 1}, {"PERIOD": 99, "REPEAT": -1}, {"CRON": "* * * *"},
        {"CRON": "* * * * *", "PERIOD": 1000, "REPEAT": -1},
    ],
)  # fmt: skip
def test_an_impossible_schedule_is_refused_by_name(properties: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="cannot be scheduled: AMQ_SCHEDULED_") as refusal:
        schedule(**properties)
    assert not refusal.value.is_fatal


@pytest.mark.parametrize(
    ("properties", "parts"),
    [
        ({"DELAY": 1}, 100), ({"DELAY": 1, "REPEAT": REPEAT_MAX}, 1), ({"DELAY": 1, "REPEAT": 9}, 100),
        ({"PERIOD": 100, "REPEAT": -1}, 1), ({"PERIOD": 10_000, "REPEAT": -1}, 100),
        ({"CRON": "* * * * *", "REPEAT": 5}, 100), ({"CRON": "0 * * * *", "REPEAT": 359}, 100),
    ],
)  # fmt: skip
def test_one_message_becomes_a_bounded_number(properties: dict[str, Any], parts: int) -> None:
    schedule(**properties).check_copies(parts)


@pytest.mark.parametrize(
    ("properties", "parts"),
    [
        ({"DELAY": 1, "REPEAT": REPEAT_MAX}, 2), ({"DELAY": 1, "REPEAT": 10}, 100), ({"PERIOD": 100, "REPEAT": -1}, 2),
        ({"PERIOD": 9_000, "REPEAT": -1}, 100), ({"CRON": "* * * * *", "REPEAT": 6}, 100),
        ({"CRON": "0 * * * *", "REPEAT": 360}, 100),
    ],
)  # fmt: skip
def test_a_message_that_would_become_too_many_is_refused(properties: dict[str, Any], parts: int) -> None:
    with pytest.raises(ClientError, match="cannot be scheduled") as refusal:
        schedule(**properties).check_copies(parts)
    assert not refusal.value.is_fatal


# ---- cron entries


BERLIN = ZoneInfo("Europe/Berlin")


def moment(text: str, zone: ZoneInfo | None = None) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone or UTC).timestamp() * 1000)


def times(text: str, start: str, count: int = 1, zone: ZoneInfo | None = None) -> list[str]:
    after = moment(start, zone)
    found = []
    for _ in range(count):
        following = Cron.of(text).next(after, zone or UTC)
        assert following is not None
        after = following
        found.append(datetime.fromtimestamp(after / 1000, zone or UTC).isoformat()[:16])
    return found


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("* * * * *", "2024-01-01T00:00:59", ["2024-01-01T00:01", "2024-01-01T00:02"]),
        ("*/20 * * * *", "2024-01-01T23:30", ["2024-01-01T23:40", "2024-01-02T00:00"]),
        ("0 9 * * 1-5", "2024-01-05T10:00", ["2024-01-08T09:00", "2024-01-09T09:00"]),
        ("15,45 3 ? 2 ?", "2024-01-05T10:00", ["2024-02-01T03:15", "2024-02-01T03:45"]),
        ("0 0 29 2 *", "2096-03-01T00:00", ["2104-02-29T00:00"]),
        ("0 0 31 * *", "2024-01-31T00:00", ["2024-03-31T00:00", "2024-05-31T00:00"]),
        ("0 0 */7 * *", "2024-01-01T00:00", ["2024-01-07T00:00", "2024-01-14T00:00"]),
        ("0 0 * * 7", "2024-01-01T00:00", ["2024-01-07T00:00"]),
        ("0 0 13 * 5", "2024-09-07T00:00", ["2024-09-13T00:00", "2024-09-20T00:00"]),
        ("0 0 1 * 1", "2024-09-28T00:00", ["2024-09-30T00:00", "2024-10-01T00:00", "2024-10-07T00:00"]),
        ("10-20/5 1 * * *", "2024-01-01T01:10", ["2024-01-01T01:15", "2024-01-01T01:20", "2024-01-02T01:10"]),
    ],
)
def test_the_next_minutes(text: str, start: str, expected: list[str]) -> None:
    assert times(text, start, len(expected)) == expected


def test_an_hour_that_is_leapt_over_comes_after_the_leap() -> None:
    assert times("30 2 * * *", "2024-03-31T00:00", 2, BERLIN) == ["2024-03-31T03:30", "2024-04-01T02:30"]


def test_an_hour_that_comes_twice_is_two() -> None:
    found = times("0,30 * * * *", "2024-10-27T01:45", 5, BERLIN)
    assert found == ["2024-10-27T02:00", "2024-10-27T02:30", "2024-10-27T02:00", "2024-10-27T02:30", "2024-10-27T03:00"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8"),
        *("5-3 * * * *", "*/0 * * * *", "*/61 * * * *", "a * * * *", "-1 * * * *", "/5 * * * *", ", * * * *"),
        *("\N{SUPERSCRIPT TWO} * * * *", "1" * 5000 + " * * * *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * * JAN *"),
    ],
)
def test_an_entry_without_a_minute_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|no |is not a valid "):
        Cron.of(text)


def field(first: int, last: int) -> st.SearchStrategy[str]:
    number = st.integers(first, last)
    some = st.lists(number, min_size=1, max_size=3).map(lambda all: ",".join(map(str, all)))
    between = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    return st.just("*") | some | between


entries = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6)).map(" ".join)


@settings(deadline=None)
@given(
    text=entries, start=st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)), zone=st.sampled_from([UTC, BERLIN])
)
def test_the_next_minute_is_named_and_none_is_passed_over(text: str, start: datetime, zone: ZoneInfo) -> None:
    cron = Cron.of(text)

    def is_named(local: datetime) -> bool:
        by_month, by_week = local.day in cron.days, local.isoweekday() % 7 in cron.weekdays
        is_day = (by_month or by_week) if cron.is_either_day else (by_month and by_week)
        return is_day and local.minute in cron.minutes and local.hour in cron.hours and local.month in cron.months

    after = start.replace(tzinfo=zone).astimezone(UTC)
    found = cron.next(int(after.timestamp() * 1000), zone)
    assert found is not None
    end = datetime.fromtimestamp(found / 1000, UTC)
    assert end > after - timedelta(seconds=1)
    shift = (end - timedelta(hours=1)).astimezone(zone).utcoffset() != end.astimezone(zone).utcoffset()
    assert is_named(end.astimezone(zone)) or shift, "what is leapt over comes up to an hour later"
    minute = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    for _ in range(2000):  # a day and more
        if minute >= end:
            break
        assert not is_named(minute.astimezone(zone))
        minute += timedelta(minutes=1)
