# proves: journal

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandemmq.journal.errors import Deposed, JournalFailed
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import CONTROL_SIZE, END_RECORD, RECORD_HEADER_SIZE, file_of, location, offset_of
from tandemmq.journal.reader import JournalReader
from tandemmq.journal.scan import scan
from tandemmq.journal.writer import JournalWriter
from tests.support.journal.in_memory import contents

pytestmark = pytest.mark.fence

NewWriter = Callable[..., JournalWriter]


# --- writing -------------------------------------------------------------------------------------------------------


def test_batches_follow_each_other_and_end_in_an_end_record(new_writer: NewWriter, files: JournalFiles) -> None:
    writer = new_writer()
    places = [*writer.append([b"one", b"two"]), *writer.append([b"three"])]
    assert [(file_of(place), offset_of(place)) for place in places] == [(1, 28), (1, 36), (1, 72)]
    assert writer.position == (1, 82)
    assert contents(files, 1) == [[b"one", b"two"], [b"three"]]
    assert Path(files.path(1)).read_bytes()[82:88] == END_RECORD + b"\0"
    *_, last = scan(files, 1)
    assert (writer.checksum, writer.offset) == (last.checksum, last.end)


def test_a_batch_is_one_write_and_a_sync_syncs_only_data(new_writer: NewWriter, watched_disk: Any) -> None:
    disk = watched_disk()
    writer = new_writer(disk=disk)
    disk.calls.clear()
    writer.append([b"a" * 100] * 10)
    writer.sync()
    writer.check_fence()
    # Its own file is opened: what stat says of a name may be what this host remembers (NFS).
    assert disk.verbs() == ["pwrite", "fdatasync", "stat", "open", "fstat", "close"]


def test_the_written_callback_gets_the_bytes_before_the_sync_without_a_copy(
    new_writer: NewWriter, files: JournalFiles, watched_disk: Any
) -> None:
    first = new_writer()
    disk = watched_disk()
    told: list[tuple[int, int, bytes | bytearray, int]] = []

    def note(*batch: Any) -> None:
        told.append(batch)
        disk.calls.append(("told", ()))

    watched = JournalFiles(files.directory, disk)
    writer = JournalWriter(watched, "a", watched.opened(1), first.offset, on_written=note)
    for payload in (b"one", b"another"):
        disk.calls.clear()
        writer.append([payload])
        writer.sync()
        file, offset, data, end = told[-1]
        assert (file, end) == writer.position
        assert Path(files.path(1)).read_bytes()[offset : offset + len(data)] == data
        assert data.endswith(END_RECORD)
        verb, arguments = disk.calls[0]
        assert verb == "pwrite"
        assert arguments[1].obj is data
        assert disk.verbs()[1:] == ["told", "fdatasync"]


def test_a_header_is_told_like_any_batch(new_writer: NewWriter, files: JournalFiles) -> None:
    new_writer().close()
    told: list[tuple[int, int, int]] = []
    own = files.opened(1)
    writer = JournalWriter(files, "a", own, on_written=lambda file, offset, _, end: told.append((file, offset, end)))
    writer.append([b"one"])
    writer.rotate(b"header", b"end marker")
    writer.sync()
    assert told == [(1, 0, 36), (2, 0, 39)], "nobody is told of what stands behind an end"


def test_a_writer_goes_on_over_a_torn_tail(new_writer: NewWriter, files: JournalFiles) -> None:
    first = new_writer()
    first.append([b"kept"])
    kept = first.position[1]
    first.append([b"t" * 500])
    first.close()
    with open(files.path(1), "r+b") as file:
        file.seek(kept + 100)
        file.write(b"\0" * 10)
    torn = scan(files, 1)
    *_, last = torn
    writer = JournalWriter(files, "a", files.opened(1), torn.ending.offset, checksum=last.checksum)
    writer.append([b"new"])
    assert contents(files, 1) == [[b"kept"], [b"new"]]


def test_a_batch_longer_than_the_file_makes_the_file_longer(new_writer: NewWriter, files: JournalFiles) -> None:
    writer = new_writer(file_length=4096)
    assert not writer.is_full(4095)
    assert writer.is_full(4096)
    writer.append([b"x" * 10_000])
    assert writer.is_full(1)
    assert contents(files, 1) == [[b"x" * 10_000]]


# --- rotation ------------------------------------------------------------------------------------------------------


def test_a_rotation_ends_the_old_file_before_the_next_appears(
    new_writer: NewWriter, files: JournalFiles, watched_disk: Any
) -> None:
    disk = watched_disk()
    writer = new_writer(disk=disk)
    writer.prepare_next()
    writer.append([b"never synced until now"])
    disk.calls.clear()
    writer.rotate(b"header")
    verbs = disk.verbs()
    own = [i for i, (verb, arguments) in enumerate(disk.calls) if verb == "open" and arguments[0] == files.path(1)]
    publish = verbs.index("link")
    assert verbs.index("fdatasync") < own[0] < publish < own[1] < verbs.index("pwrite")
    assert writer.position == (2, 28 + 5 + len(b"header"))
    assert contents(files, 1) == [[b"never synced until now"]]
    assert contents(files, 2) == [[b"header"]]
    assert set(os.listdir(files.directory)) == {"db-1.log", "db-2.log"}


def test_a_file_prepared_ahead_deposes_nobody(new_writer: NewWriter, files: JournalFiles) -> None:
    writer = new_writer()
    thread = threading.Thread(target=writer.prepare_next)
    thread.start()
    thread.join()
    writer.prepare_next()
    writer.check_fence()
    assert files.list() == [1]
    for file in (2, 3, 4):
        writer.rotate(b"header")
        writer.sync()
        writer.check_fence()
        assert writer.file == file
    assert files.list() == [1, 2, 3, 4]


def test_a_full_disk_while_preparing_harms_nothing_until_the_room_is_needed(
    new_writer: NewWriter, files: JournalFiles, watched_disk: Any
) -> None:
    disk = watched_disk()
    writer = new_writer(disk=disk)
    disk.failing, disk.countdown, disk.error = frozenset(["fsync"]), 1, errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        writer.prepare_next()
    writer.append([b"fine"])
    writer.sync()
    writer.check_fence()
    disk.countdown = 1
    with pytest.raises(JournalFailed, match="rotate"):
        writer.rotate(b"header")
    assert files.list() == [1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(st.lists(st.lists(st.binary(max_size=900), min_size=1, max_size=4), max_size=12))
def test_each_appended_record_is_found_by_scan_and_by_location(
    new_writer: NewWriter, files: JournalFiles, batches: list[list[bytes]]
) -> None:
    writer = new_writer(file_length=2048)
    first = writer.file
    written: list[tuple[int, bytes]] = []
    for payloads in batches:
        if writer.is_full(sum(map(len, payloads))):
            writer.rotate(b"header")
        written += zip(writer.append(payloads), payloads, strict=True)
    scanned = [
        (location(file, offset), payload)
        for file in range(first, writer.file + 1)
        for batch in scan(files, file)
        for offset, payload in batch.records
        if not (offset == CONTROL_SIZE and file > first)  # the header
    ]
    assert scanned == written
    sizes = [(where, RECORD_HEADER_SIZE + len(payload)) for where, payload in written]
    with closing(JournalReader(files)) as reader:
        assert reader.read_many(sizes) == [payload for _, payload in written]
    writer.close()


# --- the disk says no ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.ESTALE])
@pytest.mark.parametrize("verb", ["pwrite", "fdatasync", "stat", "link", "listdir", "unlink", "open", "fsync"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_failure_is_final_wherever_it_happens(
    new_writer: NewWriter, files: JournalFiles, watched_disk: Any, verb: str, nth: int, error: int
) -> None:
    disk = watched_disk()
    writer = new_writer(disk=disk)
    disk.failing, disk.countdown, disk.error = frozenset([verb]), nth, error
    promised: list[list[bytes]] = []

    def serve() -> None:
        for number in range(100):
            if number % 3 == 2:
                writer.rotate(b"header")
            writer.append([b"%d" % number])
            writer.sync()
            writer.check_fence()
            promised.append([b"%d" % number])

    with pytest.raises(JournalFailed) as caught:
        serve()
    assert caught.value.errno == error
    assert isinstance(caught.value.__cause__, OSError)
    assert disk.has_failed
    disk.calls.clear()
    for call in (
        lambda: writer.append([b"later"]),
        writer.sync,
        writer.check_fence,
        lambda: writer.rotate(b"later"),
    ):
        with pytest.raises(JournalFailed) as again:
            call()
        assert again.value.errno == error
    assert disk.calls == []  # nothing is tried again
    writer.close()
    found = [batch for file in files.list() for batch in contents(files, file) if batch != [b"header"]]
    assert found[: len(promised)] == promised


def test_a_closed_writer_refuses(new_writer: NewWriter) -> None:
    writer = new_writer()
    writer.close()
    writer.close()
    with pytest.raises(JournalFailed, match="closed"):
        writer.append([b"x"])


# --- two masters ---------------------------------------------------------------------------------------------------


def test_a_deposed_master_learns_it_when_it_looks(new_writer: NewWriter) -> None:
    old = new_writer("old")
    old.append([b"x"])
    old.sync()
    old.check_fence()
    new = new_writer("new")
    old.append([b"too late"])
    old.sync()
    with pytest.raises(Deposed, match=r"db-2\.log exists"):
        old.check_fence()
    with pytest.raises(Deposed):
        old.append([b"never"])
    with pytest.raises(Deposed):
        old.sync()
    new.append([b"y"])
    new.sync()
    new.check_fence()


def test_a_farewell_stands_behind_the_old_end_when_the_new_header_is_durable(
    new_writer: NewWriter, files: JournalFiles, watched_disk: Any
) -> None:
    disk = watched_disk()
    writer = new_writer(disk=disk)
    writer.append([b"last"])
    end = writer.position[1]
    writer.rotate(b"header", b"went on")
    assert contents(files, 1) == [[b"last"]], "not before the header is on the disk"
    disk.calls.clear()
    writer.sync()
    assert disk.verbs() == ["fdatasync", "pwrite", "fdatasync", "close"]
    assert contents(files, 1, end) == [[b"last"]], "who knows the end does not read it"
    assert contents(files, 1) == [[b"last"], [b"went on"]]
    assert contents(files, 2) == [[b"header"]]
    disk.calls.clear()
    writer.sync()
    assert disk.verbs() == ["fdatasync"], "it is said once"


@pytest.mark.parametrize("verb", ["pwrite", "fdatasync"])
def test_a_farewell_that_cannot_be_written_is_final(new_writer: NewWriter, watched_disk: Any, verb: str) -> None:
    disk = watched_disk()
    writer = new_writer(disk=disk)
    writer.append([b"last"])
    writer.rotate(b"header", b"went on")
    disk.failing, disk.countdown = frozenset([verb]), 2 if verb == "fdatasync" else 1
    with pytest.raises(JournalFailed, match="end the former file"):
        writer.sync()
    with pytest.raises(JournalFailed):
        writer.append([b"more"])


def test_a_writer_closed_before_its_end_marker_writes_nothing(new_writer: NewWriter, files: JournalFiles) -> None:
    writer = new_writer()
    writer.append([b"last"])
    writer.rotate(b"header", b"went on")
    writer.close()
    assert contents(files, 1) == [[b"last"]]


def test_a_deposed_master_cannot_rotate(new_writer: NewWriter, files: JournalFiles) -> None:
    old = new_writer("old")
    new = new_writer("new")
    new.append([b"mine"])
    with pytest.raises(Deposed):
        old.rotate(b"header")
    assert contents(files, 2) == [[b"mine"]]


def test_a_zombie_finds_its_own_file_gone_when_the_successors_first_file_is(
    new_writer: NewWriter, files: JournalFiles
) -> None:
    zombie = new_writer("old")
    zombie.append([b"unconfirmed"])
    new = new_writer("new")
    for _ in range(3):
        new.rotate(b"header")
    files.remove([1])  # everything before the first file of an epoch goes first
    files.remove([2])
    zombie.sync()
    with pytest.raises(Deposed, match="lost its name"):
        zombie.check_fence()
    assert files.list() == [3, 4, 5]


def test_a_zombie_that_slept_before_its_link_writes_nothing(
    new_writer: NewWriter, files: JournalFiles, watched_disk: Any
) -> None:
    class Sleeping(watched_disk):  # type: ignore[misc]
        is_asleep = False

        def link(self, source: str, target: str) -> None:
            if self.is_asleep:
                new = new_writer("new")
                for _ in range(3):
                    new.rotate(b"header")
                files.remove([1, 2])
            os.link(source, target)

    disk = Sleeping()
    zombie = new_writer("old", disk=disk)
    disk.is_asleep = True
    with pytest.raises(Deposed, match=r"db-5\.log exists"):
        zombie.rotate(b"header of the zombie")
    assert contents(files, 2) == []
    assert files.list() == [2, 3, 4, 5]


def test_a_successor_between_look_and_link_deposes(
    new_writer: NewWriter, files: JournalFiles, watched_disk: Any
) -> None:
    class Overtaken(watched_disk):  # type: ignore[misc]
        is_overtaken = False

        def link(self, source: str, target: str) -> None:
            if self.is_overtaken:
                new_writer("new").append([b"header of the successor"])
            os.link(source, target)

    disk = Overtaken()
    old = new_writer("old", disk=disk)
    disk.is_overtaken = True
    with pytest.raises(Deposed, match="made by another broker"):
        old.rotate(b"header of the deposed")
    assert contents(files, 2) == [[b"header of the successor"]]


def test_a_file_put_in_the_place_of_ours_deposes(new_writer: NewWriter, files: JournalFiles) -> None:
    writer = new_writer()
    writer.append([b"x"])
    content = Path(files.path(1)).read_bytes()
    Path(files.directory, "copy").write_bytes(content)
    os.replace(Path(files.directory, "copy"), files.path(1))
    with pytest.raises(Deposed, match="another file has its name"):
        writer.check_fence()


def test_a_file_put_in_the_place_of_the_one_just_made_deposes(
    new_writer: NewWriter, files: JournalFiles, watched_disk: Any
) -> None:
    """The file is replaced between the link and the open. The writer writes nothing into it."""

    class Replacing(watched_disk):  # type: ignore[misc]
        def open(self, path: str, flags: int, *mode: int) -> int:
            if path == files.path(2) and flags & os.O_WRONLY and not os.path.exists(f"{path}.old"):
                os.rename(path, f"{path}.old")
                Path(path).write_bytes(Path(f"{path}.old").read_bytes())
            return os.open(path, flags, *mode)

    old = new_writer("old", disk=Replacing())
    with pytest.raises(Deposed, match=r"db-2\.log was made by another broker"):
        old.rotate(b"header of the deposed")
    assert contents(files, 2) == []


def test_a_link_whose_reply_was_lost_is_our_rotation(
    new_writer: NewWriter, files: JournalFiles, watched_disk: Any
) -> None:
    class LostReply(watched_disk):  # type: ignore[misc]
        def link(self, source: str, target: str) -> None:
            os.link(source, target)
            raise FileExistsError(errno.EEXIST, "the request was sent again", target)

    writer = new_writer(disk=LostReply())
    writer.rotate(b"header")
    writer.append([b"goes on"])
    writer.sync()
    writer.check_fence()
    assert contents(files, 2) == [[b"header"], [b"goes on"]]
