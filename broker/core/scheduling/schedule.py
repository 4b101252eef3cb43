"""Due times of scheduled messages: ActiveMQ's properties AMQ_SCHEDULED_DELAY, _PERIOD, _REPEAT and _CRON. Pure.

    delay                     once, after this many milliseconds
    delay, period, repeat     1 + repeat times, the first after the delay (or, without one, after a period)
    cron                      at each minute that the five fields name
    cron, period, repeat      at each such minute a run of 1 + repeat messages begins, after the delay (or a period)

SchedulerBroker and JobSchedulerImpl do the same, with these differences: times are not rounded to half a second; a
message that fell due while no broker ran is sent once, not once for each missed time; and a schedule that would never
end or never begin is refused. Times are milliseconds since 1970.

Cron entry: five fields that select minutes. Pure.

    minute 0-59   hour 0-23   day of month 1-31   month 1-12   day of week 0-6 (Sunday is 0, and 7)

Each is ``*`` (or ``?``), a number, a range ``a-b``, or a list of these. With ``/n`` at its end, a field selects only
those of its values that are divisible by n. ActiveMQ's CronParser reads them the same way: ``*/7`` means the days 7,
14, 21, 28, not 1, 8, 15. A day matches when both its fields match; if both are restricted, one is enough (crontab(5),
and CronParser's own comment). CronParser skips some of these minutes (the first ones of a later hour, for example) and
is an hour wrong on days when clocks change; this module returns the first matching minute.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.numbers import whole_number

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
        divisor = _in_field(denominator, name, 1, last)
        found = {value for value in _values(numerator, name, first, last) if value % divisor == 0}
        if name == "day of week" and numerator in _ALL:
            found.discard(7)  # which is Sunday, not one that 7 divides
    elif token in _ALL:
        found = set(range(first, last + 1))
    elif "," in token:
        found = {value for part in token.split(",") if part for value in _values(part, name, first, last)}
    elif "-" in token:
        low, _, high = token.partition("-")
        found = set(range(_in_field(low, name, first, last), _in_field(high, name, first, last) + 1))
    else:
        found = {_in_field(token, name, first, last)}
    if not found:
        raise ValueError(f"the field {name} has {token[:40]!r}, which is not a valid {name}")
    return found


def _in_field(text: str, name: str, first: int, last: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and first <= int(text) <= last):
        raise ValueError(f"the field {name} has {text[:40]!r}: a number from {first} to {last} is expected")
    return int(text)


DELAY = "AMQ_SCHEDULED_DELAY"
PERIOD = "AMQ_SCHEDULED_PERIOD"
REPEAT = "AMQ_SCHEDULED_REPEAT"
CRON = "AMQ_SCHEDULED_CRON"
PROPERTIES = (DELAY, PERIOD, REPEAT, CRON)
# Property of messages that the scheduler sent: the id of the scheduled message. Such a message is not scheduled again.
JOB_ID = "scheduledJobId"

TIME_MS_MAX = 100 * 366 * 24 * 60 * 60 * 1000
REPEAT_MAX = 1000  # ActiveMQ's maxSchedulerRepeatAllowed, if nothing else is set
FOR_EVER = -1
# Minimum period of an endless repetition: ten times a second.
ENDLESS_PERIOD_MS_MIN = 100
# Maximum number of copies per hour of one endless message.
ENDLESS_COPIES_AN_HOUR_MAX = 36_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """Times at which one message is sent. ``repeat``: number of repetitions after the first time; FOR_EVER: no end."""

    delay_ms: int = 0
    period_ms: int = 0
    repeat: int = 0
    cron: Cron | None = None

    @classmethod
    def of(cls, properties: Mapping[str, Any] | None, repeat_max: int = REPEAT_MAX) -> Schedule | None:
        """Return the schedule in the properties of a message; None: there is none, or the scheduler sent the message.
        ``repeat_max``: maximum number of repetitions after the first time.

        Raises ClientError, not fatal, for an impossible schedule.
        """
        if not properties or JOB_ID in properties:
            return None
        delay, period, cron = (properties.get(name) for name in (DELAY, PERIOD, CRON))
        if delay is None and period is None and cron is None:
            return None
        repeat = properties.get(REPEAT)
        schedule = cls(
            max(0, _number(DELAY, delay, TIME_MS_MAX)),
            max(0, _number(PERIOD, period, TIME_MS_MAX)),
            max(FOR_EVER, _number(REPEAT, repeat, repeat_max)),
            None if cron is None or cron == "" else _cron(str(cron)),
        )
        if schedule.repeat == FOR_EVER:
            if schedule.cron is not None:
                raise _refused(
                    f"{REPEAT} {repeat} with {CRON}", "Each minute of the entry would begin an endless repetition."
                )
            if schedule.period_ms < ENDLESS_PERIOD_MS_MIN:
                raise _refused(
                    f"{REPEAT} {repeat} with {PERIOD} {schedule.period_ms}",
                    f"An endless repetition needs a period of at least {ENDLESS_PERIOD_MS_MIN} ms.",
                )
        return schedule

    def check_copies(self, parts: int, repeat_max: int = REPEAT_MAX) -> None:
        """Raise ClientError, not fatal, if a message to that many destinations would become more copies than
        allowed."""
        copies_max = 1 + repeat_max
        if self.cron is not None:
            an_hour = len(self.cron.minutes) * (1 + self.repeat) * parts
        elif self.repeat == FOR_EVER:
            an_hour = 3_600_000 * parts // self.period_ms
        elif (1 + self.repeat) * parts > copies_max:
            raise _refused(
                f"{1 + self.repeat} times to {parts} destinations", f"At most {copies_max} messages are allowed."
            )
        else:
            return
        if an_hour > ENDLESS_COPIES_AN_HOUR_MAX:
            raise _refused(
                f"{an_hour} messages an hour, without an end",
                f"At most {ENDLESS_COPIES_AN_HOUR_MAX} an hour are allowed.",
            )

    @property
    def run(self) -> Schedule | None:
        """Schedule that begins at each minute of the cron entry; None: the message is just sent then."""
        if self.cron is None or self.repeat == 0:
            return None
        return Schedule(self.delay_ms, self.period_ms, self.repeat)

    def first(self, now: int, zone: tzinfo) -> int:
        """Return the first due time. ``zone``: time zone of a cron entry."""
        if self.cron is not None:
            return self._next_minute(self.cron, now, zone)
        return now + (self.delay_ms or self.period_ms)

    def next(self, due: int, now: int, left: int, zone: tzinfo) -> tuple[int, int] | None:
        """Return the next due time and the repetitions left then, after a message due at ``due`` with ``left``
        repetitions was sent at ``now``. None: that was the last time."""
        if self.cron is not None:
            return self._next_minute(self.cron, max(due, now), zone), left
        if left == 0:
            return None
        period = max(1, self.period_ms)
        missed = max(0, now - due) // period
        return due + (missed + 1) * period, left if left == FOR_EVER else left - 1

    @staticmethod
    def _next_minute(cron: Cron, after: int, zone: tzinfo) -> int:
        found = cron.next(after, zone)
        assert found is not None, "a cron entry that names no minute is refused"
        return found


def _number(name: str, value: object, greatest: int) -> int:
    """Return the number of a property, which may be a text (TypeConversionSupport). Absent: 0."""
    if value is None:
        return 0
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = int(value)
    elif isinstance(value, str) and len(value) <= _DIGITS_MAX:
        try:
            number = whole_number(value)
        except ValueError:
            number = None
    if number is None or number > greatest:
        raise _refused(f"{name} {str(value)[:40]!r}", f"A number up to {greatest} is expected.")
    return number


_DIGITS_MAX = 20


def _cron(text: str) -> Cron:
    try:
        return Cron.of(text)
    except ValueError as error:
        raise _refused(f"{CRON} {text[:80]!r}", f"{error}.") from None


def _refused(what: str, why: str) -> ClientError:
    return refusal(f"The message cannot be scheduled: {what}", why, ErrorKind.FORMAT)
