"""A disk that takes writes in part, or not at all: the journal has the whole batch, or has failed for good."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.journal.errors import JournalFailed
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.writer import JournalWriter
from tests.support.crash.unwilling_disk import ENDS_WITH, MOODS, UnwillingDisk
from tests.support.journal.in_memory import contents

PAYLOADS = [b"a payload of some length", b"x" * 300]


@pytest.fixture(params=MOODS)
def mood(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_batch_is_whole_or_the_journal_has_failed(
    new_writer: Callable[..., JournalWriter], files: JournalFiles, mood: str
) -> None:
    disk = UnwillingDisk(mood)
    disk.is_unwilling = False
    writer = new_writer(disk=disk)
    writer.append([b"before"])
    disk.is_unwilling, disk.calls = True, 0
    if mood not in ENDS_WITH:
        writer.append(PAYLOADS)
        writer.sync()
        assert contents(files, 1) == [[b"before"], PAYLOADS]
        return
    with pytest.raises(JournalFailed) as failure:
        writer.append(PAYLOADS)
    assert isinstance(failure.value.__cause__, OSError)
    assert failure.value.__cause__.errno == ENDS_WITH[mood]
    calls, disk.is_unwilling = disk.calls, False
    for again in (lambda: writer.append([b"after"]), writer.sync, writer.check_fence):
        with pytest.raises(JournalFailed):
            again()
    assert disk.calls == calls, "nothing is tried again"
    assert contents(files, 1) == [[b"before"]]


def test_a_file_is_prepared_as_a_whole_or_not_at_all(tmp_path: Path, mood: str) -> None:
    files = JournalFiles(str(tmp_path), UnwillingDisk(mood))
    if mood not in ENDS_WITH:
        files.prepare("a", 4096)
        files.publish("a", 1)
        assert files.size(1) == 4096
        assert contents(files, 1) == []
        return
    with pytest.raises(OSError) as failure:  # noqa: PT011 its number tells
        files.prepare("a", 4096)
    assert failure.value.errno == ENDS_WITH[mood]
    assert os.listdir(tmp_path) == [], "nothing is left of it"


def test_a_rotation_is_whole_or_the_journal_has_failed(
    new_writer: Callable[..., JournalWriter], files: JournalFiles, mood: str
) -> None:
    disk = UnwillingDisk(mood)
    disk.is_unwilling = False
    writer = new_writer(disk=disk)
    writer.append([b"before"])
    writer.sync()
    writer.prepare_next()
    disk.is_unwilling, disk.calls = True, 0
    if mood not in ENDS_WITH:
        writer.rotate(b"header", end_marker=b"farewell")
        writer.sync()
        assert contents(files, 1) == [[b"before"], [b"farewell"]]
        assert contents(files, 2) == [[b"header"]]
        return
    with pytest.raises(JournalFailed) as failure:
        writer.rotate(b"header", end_marker=b"farewell")
    assert isinstance(failure.value.__cause__, OSError)
    assert failure.value.__cause__.errno == ENDS_WITH[mood]
    with pytest.raises(JournalFailed):
        writer.sync()
    assert contents(files, 1) == [[b"before"]]
    assert contents(files, 2) == []
