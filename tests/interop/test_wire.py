"""The codec against ActiveMQ's: what we write of any command, Java reads, and writes again byte for byte the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from tandemmq.broker.protocols.openwire.codec import WireFormat
from tandemmq.broker.protocols.openwire.schema import Command, WireFormatInfo
from tandemmq.broker.protocols.openwire.types import VERSION_MAX
from tests.support.interop.java_programs import program
from tests.support.protocols.openwire.samples import COMMANDS, structure
from tests.support.prove import SEED

pytestmark = [pytest.mark.service, pytest.mark.promise("bytes-are-activemqs", "jms-works-unmodified")]

TIMES = 3

Echo = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
def echo(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Echo:
    run = program(require_service, tmp_path_factory.mktemp("classes"), "Wire")
    return lambda lines: run(text="".join(line + "\n" for line in lines)).splitlines()


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
