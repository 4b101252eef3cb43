"""Beside ActiveMQ's own classes: commands of OpenWire, the Java objects of KahaDB's journal, and cron entries."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tandemmq.broker.core.scheduling.schedule import Cron
from tandemmq.broker.protocols.openwire.codec import WireFormat
from tandemmq.broker.protocols.openwire.schema import Command, WireFormatInfo
from tandemmq.broker.protocols.openwire.types import VERSION_MAX
from tandemmq.store.kahadb.java_objects import AuditImage, decode_audit, encode_audit
from tests.support.interop.java_programs import program
from tests.support.protocols.openwire.samples import COMMANDS, structure
from tests.support.prove import SEED

pytestmark = pytest.mark.service


TIMES = 3
Echo = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
def echo(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Echo:
    run = program(require_service, tmp_path_factory.mktemp("classes"), "Wire")
    return lambda lines: run(text="".join(line + "\n" for line in lines)).splitlines()


@pytest.mark.promise("bytes-are-activemqs", "jms-works-unmodified")
def test_java_reads_any_command_that_we_write_and_writes_it_the_same(echo: Echo) -> None:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    asked = list(_frames(random.Random(SEED)))
    answers = echo([f"{form} {frame.hex()}" for _, form, frame in asked])
    assert len(answers) == len(asked)
    wrong = [
        f"{command} in {form}: {frame.hex()} came back as {answer}"
        for (command, form, frame), answer in zip(asked, answers, strict=True)
        if answer != frame.hex()
    ]
    assert not wrong, "\n".join(wrong[:5])


def _frames(dice: random.Random) -> Iterator[tuple[Command, str, bytes]]:
    for row in COMMANDS:
        if row.cls is WireFormatInfo:
            continue  # always loose, and Java writes its own properties
        for version in range(row.since, VERSION_MAX + 1):
            for _ in range(TIMES):
                flags = [dice.random() < 0.5 for _ in range(3)]
                is_tight, is_cached, has_stack_traces = flags
                command = structure(dice, row, version)
                wire = WireFormat(version, is_tight=is_tight, is_cached=is_cached, has_stack_traces=has_stack_traces)
                yield command, " ".join(map(str, (version, *map(int, flags)))), wire.encode(command)


Ask = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ask(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Ask:
    run = program(require_service, tmp_path_factory.mktemp("classes"), "Audit")

    def answers(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        return [json.loads(line) for line in run(text=lines).splitlines()]

    return answers


def test_the_same_bytes_both_ways(ask: Ask) -> None:
    audits: list[dict[str, Any]] = [
        {"depth": 2048, "producers": 64, "ids": [f"ID:a-{n % 70}-1:1:1:{n * 37}" for n in range(1000)]},
        {"depth": 100, "producers": 3, "ids": [f"ID:é-{n % 2}-1:1:1:{n * 3}" for n in range(1000)]},
        {"depth": 2048, "producers": 64, "ids": [f"p:{n}" for n in range(3000)]},
        {"depth": 0, "producers": 0, "ids": []},
    ]
    written = ask([{"do": "write audit", **a} for a in audits])
    payloads = [bytes.fromhex(answer["bytes"]) for answer in written]
    for audit, payload in zip(audits, payloads, strict=True):
        image = decode_audit(payload)
        assert (image.depth, image.producers_max) == (audit["depth"], audit["producers"])
        assert encode_audit(image) == payload
    first, last = decode_audit(payloads[2]).windows["p"]
    assert [first + bit for bit in range(last.bit_length()) if not last >> bit & 1] == []
    assert first + last.bit_length() == 3000


def test_activemq_reads_an_audit_of_ours(ask: Ask) -> None:
    image = AuditImage(500, 8, {"ID:x-1:1:1": (640, 0b1011), "ID:ü-2:1:1": (64, (1 << 300) - 1)})
    (audit,) = ask([{"do": "read audit", "bytes": encode_audit(image).hex()}])
    assert (audit["depth"], audit["producers"]) == (500, 8)
    assert [(name, first, last) for name, first, _, last in audit["windows"]] == [
        ("ID:x-1:1:1", 640, 643),
        ("ID:ü-2:1:1", 64, 363),
    ]


ZONES = ("UTC", "Europe/Berlin")
START, END = 946_684_800_000, 2_000_000_000_000
MINUTE_MS = 60_000
# (time zone, after, entry)
Question = tuple[str, int, str]
CronParser = Callable[[Sequence[Question]], list[int]]


@pytest.fixture(scope="module")
def cron_parser(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> CronParser:
    """Return the answer of CronParser, to the minute: it does not change the milliseconds."""
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
