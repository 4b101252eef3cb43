# proves: journal

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.errors import FenceTaken, JournalFailed
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import END_RECORD
from tandemmq.journal.scan import scan
from tandemmq.journal.writer import JournalWriter
from tests.support.crash.unwilling_disk import ENDS_WITH, MOODS, UnwillingDisk
from tests.support.journal.in_memory import contents

LENGTH = 2 * 1024 * 1024 + 700


def test_only_names_of_journal_files_are_listed(files: JournalFiles) -> None:
    for name in ("db-10.log", "db-9.log", "db-007.log", "db-+3.log", "db--1.log", "db-.log", "db-1.log.bak", "db.data"):
        Path(files.directory, name).touch()
    for name in (".next-a", "db-9999999999.log", "db-٣.log", "lock"):
        Path(files.directory, name).touch()
    assert files.list() == [9, 10]


def test_a_prepared_file_is_whole_and_not_yet_a_fence(files: JournalFiles) -> None:
    files.prepare("a", LENGTH)
    assert Path(files.next_path("a")).read_bytes() == END_RECORD + bytes(LENGTH - 5)
    assert os.stat(files.next_path("a")).st_blocks * 512 >= LENGTH  # zeros are written, not a hole
    assert files.list() == []


def test_a_published_file_has_its_name_alone(files: JournalFiles) -> None:
    files.prepare("a", LENGTH)
    own = files.publish("a", 4)
    assert os.listdir(files.directory) == ["db-4.log"]
    assert files.identity(4) == own.identity
    assert files.size(4) == LENGTH
    assert files.exists(4)
    assert not files.exists(5)


def test_a_file_is_durable_before_its_name_and_its_name_before_publish_returns(
    files: JournalFiles, watched_disk: Any
) -> None:
    disk = watched_disk()
    files = JournalFiles(files.directory, disk)
    files.prepare("a", 4096)
    files.publish("a", 1)
    verbs = disk.verbs()
    last_write = len(verbs) - 1 - verbs[::-1].index("pwrite")
    assert last_write < verbs.index("fsync") < verbs.index("link")
    assert "fsync" in verbs[verbs.index("link") :]


def test_a_left_over_of_a_crashed_run_is_replaced(files: JournalFiles) -> None:
    Path(files.next_path("a")).write_bytes(b"half")
    files.prepare("a", 4096)
    assert Path(files.next_path("a")).read_bytes() == END_RECORD + bytes(4091)


def test_a_left_over_that_was_published_is_not_written_to(files: JournalFiles) -> None:
    Path(files.path(1)).write_bytes(b"the journal")
    os.link(files.path(1), files.next_path("a"))  # a crash between link and unlink
    files.prepare("a", 4096)
    assert Path(files.path(1)).read_bytes() == b"the journal"


def test_a_file_of_somebody_else_is_a_fence(files: JournalFiles) -> None:
    Path(files.path(1)).write_bytes(b"theirs")
    files.prepare("a", 4096)
    with pytest.raises(FenceTaken) as caught:
        files.publish("a", 1)
    assert caught.value.file == 1
    assert Path(files.path(1)).read_bytes() == b"theirs"


@pytest.mark.parametrize("is_older_first", [True, False])
def test_of_two_brokers_by_the_same_name_one_publishes(tmp_path: Path, is_older_first: bool) -> None:
    older, newer = JournalFiles(str(tmp_path)), JournalFiles(str(tmp_path))
    older.prepare("a", 4096)
    newer.prepare("a", 4096)  # replaces what the older one prepared
    published = []
    for each in (older, newer) if is_older_first else (newer, older):
        try:
            each.publish("a", 1)
        except FenceTaken:
            continue
        published.append(each)
    # the older one may have given its name to the newer one's file: then it is the newer one's
    assert published == [newer]
    assert older.list() == [1]


def test_a_file_that_is_written_whole_at_once_has_its_length_and_no_zeros(files: JournalFiles) -> None:
    files.prepare("a", 1 << 20, has_zeros=False)
    status = os.stat(files.next_path("a"))
    assert status.st_size == 1 << 20
    assert status.st_blocks * 512 < 1 << 20
    files.publish("a", 1)
    assert not list(scan(files, 1)), "it ends at once"


@pytest.mark.parametrize(("verb", "nth"), [("pwrite", 1), ("pwrite", 2), ("pwrite", 3), ("pwrite", 4), ("fsync", 1)])
def test_a_failed_preparation_leaves_no_file(files: JournalFiles, watched_disk: Any, verb: str, nth: int) -> None:
    watched = JournalFiles(files.directory, watched_disk([verb], nth, errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        watched.prepare("a", LENGTH)
    assert os.listdir(files.directory) == []
    watched.prepare("a", 4096)
    assert watched.publish("a", 1).identity == files.identity(1)


def test_removed_files_are_gone_for_good_when_it_returns(files: JournalFiles, watched_disk: Any) -> None:
    disk = watched_disk()
    for file in (1, 2, 3):
        Path(files.path(file)).touch()
    JournalFiles(files.directory, disk).remove([2, 1, 8])
    assert files.list() == [3]
    assert disk.verbs() == ["unlink", "unlink", "unlink", "open", "fsync", "close"]
    assert [arguments[0] for verb, arguments in disk.calls if verb == "unlink"] == [
        files.path(1),
        files.path(2),
        files.path(8),
    ]


def test_a_file_of_another_process_can_be_synced(files: JournalFiles, watched_disk: Any) -> None:
    Path(files.path(1)).write_bytes(b"written by a master that died")
    disk = watched_disk()
    JournalFiles(files.directory, disk).sync(1)
    assert disk.verbs() == ["open", "fstat", "fsync", "close"]


@pytest.mark.parametrize("name", ["", "a/b", "a\0b"])
def test_a_broker_name_that_cannot_be_a_file_name_is_refused(files: JournalFiles, name: str) -> None:
    with pytest.raises(ValueError, match="part of a file name"):
        files.prepare(name, 4096)


def test_a_file_that_was_given_a_second_name_meanwhile_is_no_fence(files: JournalFiles) -> None:
    files.prepare("b", 4096)
    os.link(files.next_path("b"), files.path(7))  # by a thread of a former life that hung before its link
    with pytest.raises(FenceTaken):
        files.publish("b", 8)


# ---- A disk that takes writes in part, or not at all: the journal has the whole batch, or has failed for good


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
