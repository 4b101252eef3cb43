"""Cron entry: five fields that select minutes. Pure.

    minute 0-59   hour 0-23   day of month 1-31   month 1-12   day of week 0-6 (Sunday is 0, and 7)

Each is ``*`` (or ``?``), a number, a range ``a-b``, or a list of these. With ``/n`` at its end, a field selects only
those of its values that are divisible by n. ActiveMQ's CronParser reads them the same way: ``*/7`` means the days 7,
14, 21, 28, not 1, 8, 15. A day matches when both its fields match; if both are restricted, one is enough (crontab(5),
and CronParser's own comment). CronParser skips some of these minutes (the first ones of a later hour, for example) and
is an hour wrong on days when clocks change; this module returns the first matching minute.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

TEXT_CHARACTERS_MAX = 500
# 29 February falls on a given day of the week at least once in 40 years, even across the turn of a century.
_YEARS_SEARCHED = 41
# Clocks are set back by less than this.
_REPEATED_HOURS_MAX = 2
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_ALL = frozenset("*?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """The minutes that ``text`` selects. Days of the week count from Sunday, which is 0."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_either_day: bool

    @classmethod
    def of(cls, text: str) -> Cron:
        """Parse ``text``. Raises ValueError, with the reason, if it is not a cron entry, or selects no minute."""
        tokens = text.split()
        if len(tokens) != len(_FIELDS) or len(text) > TEXT_CHARACTERS_MAX:
            raise ValueError("expected: minute, hour, day of month, month and day of week, separated by blanks")
        sets = [_values(token, *field) for token, field in zip(tokens, _FIELDS, strict=True)]
        minutes, hours, days, months, weekdays = sets
        cron = cls(
            text,
            tuple(sorted(minutes)),
            tuple(sorted(hours)),
            frozenset(days),
            frozenset(months),
            frozenset(day % 7 for day in weekdays),
            is_either_day=tokens[2] not in _ALL and tokens[4] not in _ALL,
        )
        if next(cron._dates(date(2000, 1, 1)), None) is None:
            raise ValueError("no day of the calendar matches it")
        return cron

    def next(self, after: int, zone: tzinfo) -> int | None:
        """Return the first matching minute after ``after``, by the clocks of ``zone``; None: there is none.

        A minute that the clocks skip comes right after the change; an hour that they repeat counts twice.
        """
        local = (_EPOCH + after * _MILLISECOND).astimezone(zone)
        for day in self._dates(local.date()):
            midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
            first_hour = local.hour - _REPEATED_HOURS_MAX if day == local.date() else 0
            found = self._first_of_day(midnight, first_hour, after)
            if found is not None:
                return found
        return None

    def _first_of_day(self, midnight: datetime, first_hour: int, after: int) -> int | None:
        best: int | None = None
        best_hour = 24
        for hour in self.hours:
            if hour < first_hour:
                continue
            if hour > best_hour + _REPEATED_HOURS_MAX:
                break
            for minute in self.minutes:
                for moment in _moments(midnight.replace(hour=hour, minute=minute)):
                    if moment > after and (best is None or moment < best):
                        best, best_hour = moment, hour
        return best

    def _dates(self, start: date) -> Iterator[date]:
        for year in range(start.year, min(start.year + _YEARS_SEARCHED, 9999)):
            for month in range(1, 13):
                if month not in self.months or (year, month) < (start.year, start.month):
                    continue
                for number in range(1, monthrange(year, month)[1] + 1):
                    day = date(year, month, number)
                    if day >= start and self._is_day(day):
                        yield day

    def _is_day(self, day: date) -> bool:
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.is_either_day else in_month and in_week


def _moments(local: datetime) -> Iterator[int]:
    """Yield the moments when the clocks show ``local``: one, or two when they are set back."""
    first, second = (_milliseconds(local.replace(fold=fold)) for fold in (0, 1))
    yield first
    if second > first:
        yield second


def _milliseconds(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND


def _values(token: str, name: str, first: int, last: int) -> set[int]:
    """Parse a field in the order of CronParser.calculateValues: a step applies to the whole field."""
    numerator, slash, denominator = token.partition("/")
    if slash:
        divisor = _number(denominator, name, 1, last)
        found = {value for value in _values(numerator, name, first, last) if value % divisor == 0}
        if name == "day of week" and numerator in _ALL:
            found.discard(7)  # which is Sunday, not one that 7 divides
    elif token in _ALL:
        found = set(range(first, last + 1))
    elif "," in token:
        found = {value for part in token.split(",") if part for value in _values(part, name, first, last)}
    elif "-" in token:
        low, _, high = token.partition("-")
        found = set(range(_number(low, name, first, last), _number(high, name, first, last) + 1))
    else:
        found = {_number(token, name, first, last)}
    if not found:
        raise ValueError(f"the field {name} has {token[:40]!r}, which is not a valid {name}")
    return found


def _number(text: str, name: str, first: int, last: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and first <= int(text) <= last):
        raise ValueError(f"the field {name} has {text[:40]!r}: a number from {first} to {last} is expected")
    return int(text)
