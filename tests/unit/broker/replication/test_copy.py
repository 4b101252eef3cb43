"""A node's copy of the journal: received bytes, truncated bytes, and the state after failures."""

# proves: journal-copy

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandemmq.broker.replication import copy as copy_module
from tandemmq.broker.replication.copy import PART_SUFFIX, QUARANTINE, Gap, JournalCopy
from tandemmq.broker.replication.quorum import Position, common_point
from tandemmq.disk import Disk
from tandemmq.journal.files import JournalFiles
from tandemmq.store.threads import OS_THREADS, Threads
from tests.support.crash.crash_images import Disk as DiskModel
from tests.support.crash.explorer import scratch_directory
from tests.support.crash.failing_disk import Failed, FailingDisk, Failure
from tests.support.crash.recording_disk import Note, RecordingDisk
from tests.support.prove import SEED, rounds
from tests.support.replication.source_journal import LENGTH, SET, SourceJournal, texts_of
from tests.support.virtual_time import VirtualTime

FEW_IMAGES = 40  # of those after each event
OF_EACH_FAILURE = rounds(FEW_IMAGES, FEW_IMAGES, quick=3)  # where each call fails in turn


@pytest.fixture
def scratch() -> Iterator[Path]:
    with scratch_directory() as directory:
        yield Path(directory)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The directory of the node."""
    return tmp_path / "own"


@pytest.fixture
def source(tmp_path: Path) -> SourceJournal:
    """The journal of its master, of epoch 1."""
    return SourceJournal(tmp_path / "source")


def but_for(**calls: Callable[..., object]) -> Any:
    """The real disk, but for these calls."""
    return SimpleNamespace(**vars(os) | calls)


OPENED: list[JournalCopy] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def open_copy(directory: Path, disk: Any = os, threads: Threads = OS_THREADS) -> JournalCopy:
    """Closed at the end of the test."""
    directory.mkdir(exist_ok=True)
    OPENED.append(JournalCopy(JournalFiles(str(directory), cast(Disk, disk), threads.lock), threads))
    return OPENED[-1]


def scanned(directory: Path) -> JournalCopy:
    copy = open_copy(directory)
    copy.scan()
    copy.close()
    return copy


def copied(source: SourceJournal, directory: Path) -> JournalCopy:
    copy = open_copy(directory)
    copy.begin((0, 0), source.files.list(), ())
    source.send(copy)
    copy.sync()
    return copy


def files_in(directory: Path) -> JournalFiles:
    return JournalFiles(str(directory))


def content(files: JournalFiles, file: int, end: int) -> bytes:
    return Path(files.path(file)).read_bytes()[:end]


# ---- the content at the start


def test_received_bytes_are_there_after_a_restart(tmp_path: Path, own: Path) -> None:
    source = SourceJournal(tmp_path / "source", 3)
    source.write("a", "b")
    source.rotate()
    end = source.write("c")
    copy = copied(source, own)
    copy.close()
    assert copy.position == Position(3, *end)
    again = scanned(own)
    assert again.standing == copy.standing
    assert again.standing.header is not None
    assert again.standing.header.id == SET
    assert again.synced == copy.synced == end
    assert texts_of(files_in(own)) == ["a", "b", "c"]


@pytest.mark.parametrize("file", [1, 2])
def test_bad_bytes_are_damage_and_the_position_is_before_them(tmp_path: Path, source: SourceJournal, file: int) -> None:
    """The bad bytes are before good bytes, or at the beginning of the last file."""
    end = source.write("a")
    if file == 2:
        source.rotate()
    source.write("b", "c")
    with open(source.files.path(file), "r+b") as rotten:
        rotten.seek(end[1] + 20 if file == 1 else 50)
        rotten.write(b"rotten")
    copy = scanned(tmp_path / "source")
    assert copy.position == Position(1, *end)
    assert copy.standing.damage is not None
    assert copy.standing.damage.file == file


def test_bytes_in_the_kernel_after_a_failed_sync_do_not_count(source: SourceJournal, own: Path) -> None:
    """A sync that fails once; then the page is clean, and gone when the cache is dropped."""
    source.write("a")
    synced = 0

    def fdatasync(fd: int) -> None:
        if synced:
            raise OSError(errno.EIO, "the disk is broken")
        os.fdatasync(fd)

    def posix_fadvise(*_: int) -> None:
        if synced:
            Path(files_in(own).path(1)).write_bytes(content(files_in(own), 1, synced).ljust(LENGTH, b"\0"))

    copy = open_copy(own, but_for(fdatasync=fdatasync, posix_fadvise=posix_fadvise))
    copy.begin((0, 0), [1], ())
    source.send(copy)
    copy.sync()
    synced = copy.synced[1]
    source.write("b")
    source.send(copy, copy.synced)
    with pytest.raises(OSError, match="broken"):
        copy.sync()
    copy.forget()
    assert copy.scan().position == Position(1, 1, synced)
    assert copy.synced == (1, synced)


# ---- the cut


@pytest.fixture
def parted(tmp_path: Path) -> tuple[Path, SourceJournal, SourceJournal, tuple[int, int]]:
    """A directory with "a", "b", "c", "d" of epoch 1 in two files, and a master of epoch 5 who only had "a" of it."""
    old = SourceJournal(tmp_path / "old")
    common = old.write("a")
    old.write("b")
    old.rotate()
    old.write("c", "d")
    new = SourceJournal(tmp_path / "new", 5, former=old, common=common)
    new.write("x", "y")
    shutil.copytree(tmp_path / "old", tmp_path / "own")
    return tmp_path / "own", old, new, common


def test_bytes_after_the_common_point_are_cut_and_kept_in_quarantine(parted: Any) -> None:
    own, old, new, common = parted
    before = Path(old.files.path(1)).read_bytes()
    copy = open_copy(own)
    standing = copy.scan()
    assert common_point(new.lineage, standing.lineage) == common
    copy.begin(common, new.files.list(), ())
    assert texts_of(files_in(own)) == ["a"]
    assert copy.position == Position(1, *common)
    assert copy.standing.lineage == ((1, *common),)
    assert list(files_in(own).list()) == [1]
    assert (own / QUARANTINE / f"db-1.1.{common[1]}.cut").read_bytes() == before[common[1] :]
    assert (own / QUARANTINE / "db-2.1.0.cut").read_bytes() == Path(old.files.path(2)).read_bytes()
    assert os.path.getsize(files_in(own).path(1)) == LENGTH
    new.send(copy)
    copy.sync()
    copy.close()
    assert texts_of(files_in(own)) == ["a", "x", "y"]
    again = scanned(own)
    assert again.standing.lineage == new.lineage
    assert again.standing == copy.standing


def test_files_that_the_master_does_not_have_are_deleted(source: SourceJournal, own: Path) -> None:
    source.write("a")
    source.rotate()
    source.write("b")
    source.rotate()
    end = source.write("c")
    copy = copied(source, own)
    copy.begin(end, [2, 3], ())
    assert list(files_in(own).list()) == [2, 3]
    assert copy.position == Position(1, *end)
    copy.close()
    assert not (own / QUARANTINE).exists()


def test_a_torn_batch_behind_the_common_point_is_cut_too(tmp_path: Path, source: SourceJournal, own: Path) -> None:
    """The next batch may be shorter, and bytes that come from a file have no end record after them."""
    end = source.write("a")
    long = source.write("b" * 500, "c")
    shutil.copytree(tmp_path / "source", own)
    with open(own / "db-1.log", "r+b") as file:
        file.seek(end[1] + 30)
        file.write(b"torn")
        file.seek(long[1] - 60)
        file.write(bytes(80))
    copy = open_copy(own)
    assert copy.scan().position == Position(1, *end)
    copy.begin(end, [1], ())
    other = SourceJournal(tmp_path / "other", 2, former=source, common=end)
    other.send(copy)
    copy.close()
    assert not any(Path(files_in(own).path(1)).read_bytes()[end[1] + 5 :])


def test_bytes_after_damage_are_kept_in_quarantine_and_cut(tmp_path: Path, source: SourceJournal, own: Path) -> None:
    end = source.write("a")
    source.write("b", "c")
    shutil.copytree(tmp_path / "source", own)
    with open(own / "db-1.log", "r+b") as file:
        file.seek(end[1] + 20)
        file.write(b"rotten")
    copy = open_copy(own)
    assert copy.scan().damage is not None
    rotten = Path(files_in(own).path(1)).read_bytes()
    copy.begin(end, [1], ())
    assert (own / QUARANTINE / f"db-1.1.{end[1]}.cut").read_bytes() == rotten[end[1] :]
    source.send(copy, end)
    copy.sync()
    copy.close()
    assert scanned(own).standing.damage is None
    assert texts_of(files_in(own)) == ["a", "b", "c"]


def test_the_own_tail_ends_at_the_position(tmp_path: Path, source: SourceJournal) -> None:
    end = source.write("a")
    with open(source.files.path(1), "r+b") as file:
        file.seek(end[1])
        file.write(b"half of a batch")
    source.files.prepare("m", LENGTH)
    source.files.publish("m", 2)
    copy = open_copy(tmp_path / "source")
    copy.scan()
    copy.end_tail()
    copy.close()
    assert list(source.files.list()) == [1]
    assert not any(Path(source.files.path(1)).read_bytes()[end[1] + 5 :])
    assert copy.synced == end


# ---- the position afterwards


def test_a_node_that_differs_before_its_final_place_is_forked(tmp_path: Path, source: SourceJournal) -> None:
    """Not one who let a file go that was given up: it stands further back than what it knows as final, and the master
    agrees with all that it has."""
    for _ in range(2):
        source.rotate()
    copy = open_copy(tmp_path / "source")
    file, end = final = copy.scan().position[1:]
    assert copy.is_forked((file, end - 1), final)
    assert not copy.is_forked(final, final)
    copy.begin(final, (1, 2), ())
    common = copy.scan().position[1:]
    assert common < final
    assert not copy.is_forked(common, final)


# ---- received bytes


@pytest.mark.parametrize(("file", "offset"), [(1, 600), (2, 1), (5, 100)])
def test_bytes_behind_a_gap_are_not_written(source: SourceJournal, own: Path, file: int, offset: int) -> None:
    end = source.write("a")
    copy = copied(source, own)
    assert end[1] < 600
    with pytest.raises(Gap):
        copy.write(file, offset, b"x", offset + 1, LENGTH)
    assert copy.position == Position(1, *end)


def test_a_file_of_another_length_waits_for_the_one_that_is_prepared(
    source: SourceJournal, own: Path, virtual: VirtualTime
) -> None:
    source.write("a")
    released, prepared = virtual.threads.event(), []

    def slow_open(path: str, flags: int, mode: int = 0o777) -> int:
        """The first prepared file is that which was needed; the next one takes its time."""
        if path.endswith(".next-replica") and flags & os.O_CREAT:
            prepared.append(path)
            if len(prepared) == 2:
                released.wait()
        return os.open(path, flags, mode)

    copy = open_copy(own, but_for(open=slow_open), virtual.threads)
    copy.begin((0, 0), [1], ())
    source.send(copy)

    def release() -> None:
        virtual.sleep(10)
        released.set()

    virtual.threads.thread(release, "later").start()
    copy.write(2, 0, b"x", 0, 2 * LENGTH)
    assert os.path.getsize(files_in(own).path(2)) == 2 * LENGTH


def test_a_file_is_synced_before_the_next_one_is_made(source: SourceJournal, own: Path) -> None:
    first = source.write("a")
    source.rotate()
    copy = open_copy(own)
    copy.begin((0, 0), [1, 2], ())
    source.send(copy)
    assert copy.synced == first
    copy.sync()
    assert copy.synced == source.place


def test_a_lacking_file_has_its_name_when_all_of_it_is_there(source: SourceJournal, own: Path) -> None:
    first = source.write("a", "b")
    source.rotate()
    end = source.write("c")
    copy = copied(source, own)
    data = content(source.files, 1, first[1])
    os.unlink(files_in(own).path(1))
    copy.begin(end, [1, 2], [1])
    copy.write(1, 0, data[:100], 0, LENGTH)
    assert list(files_in(own).list()) == [2], "a part is not taken for the whole"
    copy.begin(end, [1, 2], [1])  # the link broke
    assert copy.lacking == {1}
    for at in range(0, len(data), 100):
        copy.write(1, at, data[at : at + 100], first[1] if at + 100 >= len(data) else 0, LENGTH)
    assert copy.position == Position(1, *end), "what it has counts up to there only"
    copy.sealed(1, first[1])
    assert not copy.lacking
    assert list(files_in(own).list()) == [1, 2]
    assert not list((own).glob(f"*{PART_SUFFIX}"))
    source.write("d")
    source.send(copy, end)
    copy.close()
    assert texts_of(files_in(own)) == ["a", "b", "c", "d"]


def test_a_file_does_not_end_before_its_last_bytes_came(source: SourceJournal, own: Path) -> None:
    first = source.write("a")
    copy = open_copy(own)
    copy.begin((0, 0), [1], [])
    source.send(copy)
    last = source.write("b")
    with pytest.raises(Gap, match=f"up to {last[1]}"):
        copy.sealed(1, last[1])
    source.send(copy, first)
    copy.sealed(1, last[1])


def test_a_lacking_file_that_is_given_up_is_lacking_no_more(tmp_path: Path, own: Path) -> None:
    source = SourceJournal(tmp_path / "source", 3)
    copy = copied(source, own)
    copy.begin(source.place, [1, 2, 3], [1, 2])
    copy.sealed(1, None)
    assert copy.lacking == {2}
    copy.sealed(2, None)
    assert not copy.lacking


@pytest.mark.parametrize("is_lacking", [False, True])
def test_a_file_given_up_during_its_transfer_is_removed(source: SourceJournal, own: Path, is_lacking: bool) -> None:
    """An incomplete file with others after it would be damage for the next reader."""
    first = source.write("a", "b")
    source.rotate()
    source.write("c")
    if is_lacking:
        copy = copied(source, own)
        os.unlink(files_in(own).path(1))
    else:
        copy = open_copy(own)
    begin = source.place if is_lacking else (0, 0)
    copy.begin(begin, [1, 2], [1] if is_lacking else [])
    copy.write(1, 0, content(source.files, 1, first[1])[:100], 0, LENGTH)
    copy.sealed(1, None)
    source.send(copy, max(begin, first))
    copy.close()
    assert sorted(path.name for path in (own).glob("db-*.log*")) == ["db-2.log"]


def test_a_node_that_lost_its_last_file_by_that_can_be_a_candidate(source: SourceJournal, own: Path) -> None:
    source.write("a")
    copy = open_copy(own)
    copy.begin((0, 0), [1], [])
    source.send(copy)
    copy.sealed(1, None)
    copy.end_tail()
    assert copy.synced == copy.position[1:]


def test_a_file_that_another_process_began_is_not_written_over(source: SourceJournal, own: Path) -> None:
    copy = copied(source, own)
    source.rotate()
    foreign = Path(files_in(own).path(2))
    foreign.write_bytes(b"of a broker of an older version")
    with pytest.raises(OSError, match="another process"):
        source.send(copy, copy.synced)
    assert foreign.read_bytes() == b"of a broker of an older version"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_bytes_written_into_a_renamed_file_are_not_claimed(source: SourceJournal, own: Path, is_replaced: bool) -> None:
    copy = copied(source, own)
    had = copy.synced
    path = Path(files_in(own).path(1))
    content = path.read_bytes()
    path.unlink()
    if is_replaced:
        path.write_bytes(content)
    source.write("b")
    source.send(copy, had)
    with pytest.raises(OSError, match=r"another process|No such file"):
        copy.sync()
    assert copy.synced == had


# ---- the content after a power loss, or after a failed call


class ForgettingDisk(FailingDisk):
    """Disk that loses unsynced data when the cache is dropped after a failed sync: then the kernel reads the disk."""

    def __init__(self, disk: RecordingDisk, fail_at: int, failure: Failure = Failure.ONCE) -> None:
        super().__init__(disk, fail_at, failure)
        self._durable = {node: read(path) for path, node in disk._nodes.items() if os.path.isfile(path)}
        self._lost: set[int | None] = set()

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def _sync(self, call: str, fd: int) -> None:
        node, path = self.disk.node_of(fd), os.path.join(self.disk.root, self.disk.name_of(fd))
        try:
            self._watched(call, getattr(self.disk, call))(fd)
        except OSError:
            self._lost.add(node)
            raise
        if node is not None and node not in self._lost and os.path.isfile(path):
            self._durable[node] = read(path)

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int) -> None:
        node = self.disk.node_of(fd)
        if node in self._lost and node is not None:
            self._lost.discard(node)
            Path(self.disk.root, self.disk.name_of(fd)).write_bytes(self._durable.get(node, bytes(LENGTH)))


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def follow(own: Path, disk: Any, note: RecordingDisk, new: SourceJournal, common: tuple[int, int]) -> None:
    """A life that follows ``new``: what it is rid of and what it claims to have is noted."""
    copy = open_copy(own, disk)
    try:
        standing = copy.scan()
        point = common_point(new.lineage, standing.lineage)
        assert point is not None
        assert point >= common
        copy.begin(point, new.files.list(), ())
        note.note("cut")
        for number, (file, offset, data, end) in enumerate(new.batches):
            if (file, end) > point:
                copy.write(file, offset, data, end, LENGTH)
                if number % 2:
                    copy.sync()
                    note.note(copy.synced)
        copy.sync()
        note.note(copy.synced)
    finally:
        copy.close()


def images_hold(
    disk: RecordingDisk, scratch: Path, old: SourceJournal, new: SourceJournal, common: Any, few: int = FEW_IMAGES
) -> int:
    was, will = texts_of(old.files), texts_of(new.files)
    model, dice = DiskModel(random.Random(1)), random.Random(2)
    known: set[tuple[bytes, bool, tuple[int, int]]] = set()
    is_cut, have = False, common
    for number, event in enumerate(disk.events):
        model.apply(event)
        if isinstance(event, Note):
            is_cut = is_cut or event.what == "cut"
            have = max(have, event.what) if isinstance(event.what, tuple) else have
        if number < disk.start:
            continue
        images = list(model.images())
        for image in dice.sample(images, min(len(images), few)):
            key = image.key, is_cut, have
            if key in known:
                continue
            known.add(key)
            directory = scratch / str(len(known))
            directory.mkdir(parents=True)
            image.put(str(directory))
            copy = scanned(directory)
            found = texts_of(files_in(directory), copy.position)
            where = f"{found} at {copy.position} after {event}: {image.story}"
            assert copy.position[1:] >= have, where
            assert found == will[: len(found)] or (not is_cut and found == was[: len(found)]), where
            assert copy.standing.damage is not None or texts_of(files_in(directory)) == found, where
            if is_cut:
                assert (directory / QUARANTINE / f"db-1.1.{common[1]}.cut").read_bytes().rstrip(b"\0"), where
            shutil.rmtree(directory)
    return len(known)


def test_the_power_goes_at_any_moment_of_a_cut(scratch: Path, tmp_path: Path, parted: Any) -> None:
    own, old, new, common = parted
    directory = scratch / "own"
    shutil.copytree(own, directory)
    disk = RecordingDisk(str(directory))
    follow(directory, disk, disk, new, common)
    assert images_hold(disk, scratch / "images", old, new, common) > 20


def is_sync_of_a_name(failed: Failed) -> bool:
    """In the model, a name is never durable after a failed sync, so no promise about it can hold."""
    return failed.call == "fsync" and failed.path in (".", QUARANTINE)


# By default every third call, from another one on each time.
@pytest.mark.parametrize(
    ("failure", "step"),
    [
        (Failure.ONCE, 3),
        *[pytest.param(each, 1, marks=pytest.mark.thorough) for each in (Failure.ONCE, Failure.KILLED)],
    ],
)
def test_each_call_fails_then_it_begins_again(scratch: Path, parted: Any, failure: Failure, step: int) -> None:
    own, old, new, common = parted
    at, is_over = -random.Random(SEED).randrange(step), False
    while not is_over:
        at += step
        directory = scratch / str(at)
        shutil.copytree(own, directory)
        recording = RecordingDisk(str(directory))
        disk = ForgettingDisk(recording, at, failure)
        try:
            follow(directory, disk, recording, new, common)
        except OSError:
            pass
        is_over = disk.count < at
        disk.fail_at = 0
        follow(directory, disk, recording, new, common)
        if disk.failed is None or not is_sync_of_a_name(disk.failed):
            images_hold(recording, scratch / f"images-{at}", old, new, common, OF_EACH_FAILURE)
        shutil.rmtree(directory)
    assert at > 20


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each hundred bytes there is a sync."""
    monkeypatch.setattr(copy_module, "UNSYNCED_BYTES_MAX", 100)


def test_a_file_received_in_pieces_is_synced_in_pieces(source: SourceJournal, own: Path, in_pieces: None) -> None:
    """A whole file at once would hold up who else syncs on this disk; nothing more is claimed by it."""
    end = source.write("x" * 1_000)
    data = content(source.files, 1, end[1])
    syncs: list[int] = []
    begun: list[tuple[int, int, int]] = []

    disk = but_for(posix_fadvise=lambda _, *advised: begun.append(advised), fdatasync=syncs.append)
    copy = open_copy(own, disk)
    copy.begin((0, 0), [1], ())
    for at in range(0, 200, 50):
        copy.write(1, at, data[at : at + 50], 0, LENGTH)
    copy.sync()
    assert len(syncs) == 3, "two pieces beside what came then, and the end"
    assert begun == [(at, 50, os.POSIX_FADV_DONTNEED) for at in range(0, 200, 50)], "each before its sync"
    assert copy.synced == (0, 0)


def test_an_error_of_a_background_sync_is_reported_by_the_next_one(
    source: SourceJournal, own: Path, in_pieces: None
) -> None:
    """The system tells an error to one sync of a descriptor only."""
    end = source.write("x" * 1_000)
    data = content(source.files, 1, end[1])
    failures = [OSError(errno.EIO, "the disk is broken")]

    def fails_once(fd: int) -> None:
        if failures:
            raise failures.pop()
        os.fdatasync(fd)

    copy = open_copy(own, but_for(fdatasync=fails_once))
    copy.begin((0, 0), [1], ())
    copy.write(1, 0, data[:100], 0, LENGTH)
    copy.write(1, 100, data[100:], end[1], LENGTH)
    with pytest.raises(OSError, match="broken"):
        copy.sync()
    assert copy.synced == (0, 0)
