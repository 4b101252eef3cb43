"""The clocks of this machine, over a change to summer time and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.core.scheduling.cron import Cron
from tandemmq.broker.process.local_zone import LocalZone

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(scope="module", autouse=True)
def _in_berlin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def times(entry: str, start: str, count: int) -> list[str]:
    """As the clocks show them, with their offset."""
    cron, zone = Cron.of(entry), LocalZone()
    after = int(datetime.fromisoformat(start).timestamp() * 1000)
    found = []
    for _ in range(count):
        following = cron.next(after, zone)
        assert following is not None
        after = following
        found.append(datetime.fromtimestamp(after / 1000, BERLIN).isoformat(timespec="minutes"))
    return found


def test_a_cron_entry_keeps_its_hour_when_summer_time_begins_and_ends() -> None:
    assert times("0 9 * * *", "2024-03-30T12:00+01:00", 2) == ["2024-03-31T09:00+02:00", "2024-04-01T09:00+02:00"]
    assert times("0 9 * * *", "2024-10-26T12:00+02:00", 2) == ["2024-10-27T09:00+01:00", "2024-10-28T09:00+01:00"]


def test_skipped_and_repeated_hours_of_daylight_saving_time() -> None:
    assert times("30 2 * * *", "2024-03-31T00:00+01:00", 1) == ["2024-03-31T03:30+02:00"]
    assert times("30 2 * * *", "2024-10-27T00:00+02:00", 2) == ["2024-10-27T02:30+02:00", "2024-10-27T02:30+01:00"]


@settings(deadline=None)
@given(moment=st.datetimes(datetime(1980, 1, 1), datetime(2037, 1, 1)))
def test_it_shows_what_the_zone_of_that_name_shows(moment: datetime) -> None:
    here, there = (moment.replace(tzinfo=UTC).astimezone(zone) for zone in (LocalZone(), BERLIN))
    assert (here.isoformat(), here.fold, here.tzname()) == (there.isoformat(), there.fold, there.tzname())
    for fold in (0, 1):
        here, there = (moment.replace(tzinfo=zone, fold=fold).astimezone(UTC) for zone in (LocalZone(), BERLIN))
        assert here == there


@pytest.mark.parametrize("hour", ["00:59:59.999999", "01:00", "01:30", "00:00", "02:00"])
@pytest.mark.parametrize("day", ["2024-03-31", "2024-10-27"])
def test_it_knows_the_hours_of_a_change(day: str, hour: str) -> None:
    utc = datetime.fromisoformat(f"{day}T{hour}+00:00")
    here, there = (utc.astimezone(zone) for zone in (LocalZone(), BERLIN))
    assert (here.isoformat(), here.fold) == (there.isoformat(), there.fold)
    assert here.astimezone(UTC) == utc
