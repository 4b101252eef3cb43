"""When a scheduled message is due: ActiveMQ's properties AMQ_SCHEDULED_DELAY, _PERIOD, _REPEAT and _CRON. Pure.

    delay                     once, after so many milliseconds
    delay, period, repeat     1 + repeat times, the first after the delay (or, without one, after a period)
    cron                      at each minute that the five fields name
    cron, period, repeat      at each such minute a run of 1 + repeat messages begins, after the delay (or a period)

as SchedulerBroker and JobSchedulerImpl do it. Differences: times are not rounded to half a second; what fell due while
no broker ran is sent once, not once for each time that was missed; and what would never end or never begin is refused.
Times are milliseconds since 1970.
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
# On what the scheduler sent: of which message it is an occurrence. Such a message is not scheduled again.
JOB_ID = "scheduledJobId"

TIME_MS_MAX = 100 * 366 * 24 * 60 * 60 * 1000
REPEAT_MAX = 1000  # ActiveMQ's maxSchedulerRepeatAllowed, where nothing else is set
FOR_EVER = -1
# What repeats for ever does so ten times in a second at most.
ENDLESS_PERIOD_MS_MIN = 100
# Copies that one message may become each hour, of what never ends.
ENDLESS_COPIES_AN_HOUR_MAX = 36_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """When one message is to be sent. ``repeat``: so often after the first time; FOR_EVER: without an end."""

    delay_ms: int = 0
    period_ms: int = 0
    repeat: int = 0
    cron: Cron | None = None

    @classmethod
    def of(cls, properties: Mapping[str, Any] | None, repeat_max: int = REPEAT_MAX) -> Schedule | None:
        """What the properties of a message ask for; None: nothing, or the scheduler sent it itself. ``repeat_max``: so
        often it may come after the first time.

        Raises a ClientError, not fatal, for what cannot be done.
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
                raise _refused(f"{REPEAT} {repeat} with {CRON}", "Each minute named would begin what never ends.")
            if schedule.period_ms < ENDLESS_PERIOD_MS_MIN:
                raise _refused(
                    f"{REPEAT} {repeat} with {PERIOD} {schedule.period_ms}",
                    f"What repeats for ever needs a period of {ENDLESS_PERIOD_MS_MIN} ms at least.",
                )
        return schedule

    def check_copies(self, parts: int, repeat_max: int = REPEAT_MAX) -> None:
        """ClientError, not fatal, when a message to so many destinations would become more than one message may."""
        copies_max = 1 + repeat_max
        if self.cron is not None:
            an_hour = len(self.cron.minutes) * (1 + self.repeat) * parts
        elif self.repeat == FOR_EVER:
            an_hour = 3_600_000 * parts // self.period_ms
        elif (1 + self.repeat) * parts > copies_max:
            raise _refused(
                f"{1 + self.repeat} times to {parts} destinations", f"It may become {copies_max} messages at most."
            )
        else:
            return
        if an_hour > ENDLESS_COPIES_AN_HOUR_MAX:
            raise _refused(
                f"{an_hour} messages an hour, without an end",
                f"It may become {ENDLESS_COPIES_AN_HOUR_MAX} an hour at most.",
            )

    @property
    def run(self) -> Schedule | None:
        """What begins at each minute of the cron entry; None: the message is just sent then."""
        if self.cron is None or self.repeat == 0:
            return None
        return Schedule(self.delay_ms, self.period_ms, self.repeat)

    def first(self, now: int, zone: tzinfo) -> int:
        """When it is due first. ``zone``: whose minutes and hours a cron entry means."""
        if self.cron is not None:
            return self._next_minute(self.cron, now, zone)
        return now + (self.delay_ms or self.period_ms)

    def next(self, due: int, now: int, left: int, zone: tzinfo) -> tuple[int, int] | None:
        """After it was sent at ``now``, due at ``due`` with ``left`` repetitions to come: when it is due again, and
        what is left then. None: that was the last time."""
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
    """A number, or a text that is one (TypeConversionSupport). Absent: 0."""
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
