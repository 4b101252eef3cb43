"""Due times of scheduled messages: ActiveMQ's properties AMQ_SCHEDULED_DELAY, _PERIOD, _REPEAT and _CRON. Pure.

    delay                     once, after this many milliseconds
    delay, period, repeat     1 + repeat times, the first after the delay (or, without one, after a period)
    cron                      at each minute that the five fields name
    cron, period, repeat      at each such minute a run of 1 + repeat messages begins, after the delay (or a period)

SchedulerBroker and JobSchedulerImpl do the same, with these differences: times are not rounded to half a second; a
message that fell due while no broker ran is sent once, not once for each missed time; and a schedule that would never
end or never begin is refused. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.numbers import whole_number
from tandemmq.broker.core.scheduling.cron import Cron

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
