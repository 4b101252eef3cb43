"""Cron entries beside ActiveMQ's own CronParser."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tandemmq.broker.core.scheduling.cron import Cron
from tests.support.interop.java_programs import program
from tests.support.prove import SEED

pytestmark = pytest.mark.service

ZONES = ("UTC", "Europe/Berlin")
START, END = 946_684_800_000, 2_000_000_000_000
MINUTE_MS = 60_000

# (time zone, after, entry)
Question = tuple[str, int, str]
CronParser = Callable[[Sequence[Question]], list[int]]


@pytest.fixture(scope="module")
def cron_parser(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> CronParser:
    """What CronParser answers, to the minute: it leaves the milliseconds as they were."""
    cron_times = program(require_service, tmp_path_factory.mktemp("cron"), "CronTimes")

    def answers(questions: Sequence[Question]) -> list[int]:
        output = cron_times(text="".join(f"{zone}\t{after}\t{entry}\n" for zone, after, entry in questions))
        return [int(line) // MINUTE_MS * MINUTE_MS for line in output.splitlines()]

    return answers


def random_field(source: random.Random, first: int, last: int) -> str:
    match source.randrange(6):
        case 0:
            return str(source.randint(first, last))
        case 1:
            return ",".join(str(source.randint(first, last)) for _ in range(3))
        case 2:
            return "-".join(map(str, sorted((source.randint(first, last), source.randint(first, last)))))
        case 3:
            return f"*/{source.randint(1, last // 2)}"
    return "*"


def is_named(cron: Cron, moment: int, zone: ZoneInfo) -> bool:
    local = datetime.fromtimestamp(moment / 1000, zone)
    in_month, in_week = local.day in cron.days, local.isoweekday() % 7 in cron.weekdays
    is_day = (in_month or in_week) if cron.is_either_day else (in_month and in_week)
    return is_day and local.minute in cron.minutes and local.hour in cron.hours and local.month in cron.months


def test_a_time_of_the_day_is_the_same(cron_parser: CronParser) -> None:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    source = random.Random(SEED)
    questions = []
    for _ in range(1000):
        days = [random_field(source, 1, 28), "*"] if source.random() < 0.5 else ["*", random_field(source, 0, 6)]
        entry = f"{source.randint(0, 59)} {source.randint(0, 23)} {days[0]} * {days[1]}"
        # Where clocks change CronParser is an hour wrong on that day.
        questions.append((source.choice(("UTC", "Asia/Kolkata")), source.randrange(START, END), entry))
    ours = [Cron.of(entry).next(after, ZoneInfo(zone)) for zone, after, entry in questions]
    assert list(zip(questions, ours, strict=True)) == list(zip(questions, cron_parser(questions), strict=True))


def test_no_time_that_it_names_is_passed_over(cron_parser: CronParser) -> None:
    """CronParser does pass over some: when it comes to a later hour it keeps the minute, and of two restricted day
    fields it looks for the one that today has not. It even names some that are none (31 June is 1 July)."""
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    source = random.Random(SEED)
    questions: list[Question] = []
    while len(questions) < 2000:
        ranges = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
        entry = " ".join(random_field(source, *each) for each in ranges)
        try:
            Cron.of(entry)
        except ValueError:  # a day that no month has, or that nothing divides
            continue
        questions.append((source.choice(ZONES), source.randrange(START, END), entry))
    same = 0
    for question, theirs in zip(questions, cron_parser(questions), strict=True):
        zone, after, entry = question
        cron = Cron.of(entry)
        ours = cron.next(after, ZoneInfo(zone))
        assert ours is not None
        same += ours == theirs
        assert ours <= theirs or not is_named(cron, theirs, ZoneInfo(zone)), question
    assert same > len(questions) // 2
