"""The model of a disk: the images that a power loss can leave."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.crash.crash_images import SECTOR_BYTES, Disk
from tests.support.crash.recording_disk import RecordingDisk, Sync

S = SECTOR_BYTES


def model_of(disk: RecordingDisk) -> Disk:
    model = Disk(random.Random(1))
    for event in disk.events:
        model.apply(event)
    return model


def possible(disk: RecordingDisk) -> set[tuple[tuple[str, bytes | None], ...]]:
    """Return each image that a power loss now could leave."""
    model = model_of(disk)
    found = {tuple((p, c and c.data) for p, c in image.entries) for image in model.images()}
    assert not model.is_capped
    sampled = {tuple((p, c and c.data) for p, c in model.image().entries) for _ in range(50)}
    assert sampled <= found
    return found


@pytest.fixture
def disk(tmp_path: Path) -> RecordingDisk:
    (tmp_path / "old").write_bytes(b"old")
    return RecordingDisk(str(tmp_path))


def make(disk: RecordingDisk, name: str, *, is_durable: bool = False) -> int:
    fd = disk.open(f"{disk.root}/{name}", os.O_RDWR | os.O_CREAT)
    if is_durable:
        sync_directory(disk)
    return fd


def sync_directory(disk: RecordingDisk) -> None:
    fd = disk.open(disk.root, os.O_RDONLY)
    disk.fsync(fd)
    disk.close(fd)


def test_what_was_there_is_there(disk: RecordingDisk) -> None:
    assert possible(disk) == {(("old", b"old"),)}


def test_a_sync_of_the_file_and_one_of_its_directory_make_it_sure(disk: RecordingDisk) -> None:
    fd = make(disk, "new")
    disk.pwrite(fd, b"12", 0)
    without, empty, there = (("old", b"old"),), (("new", b""), ("old", b"old")), (("new", b"12"), ("old", b"old"))
    assert possible(disk) == {without, empty, there, (("new", b"\0\0"), ("old", b"old"))}
    disk.fsync(fd)
    assert possible(disk) == {without, there}, "the name is no part of the file"
    sync_directory(disk)
    assert possible(disk) == {there}


def test_unsynced_writes_are_lost_in_any_combination(disk: RecordingDisk) -> None:
    fd = make(disk, "old")
    for offset, byte in enumerate(b"abc"):
        disk.pwrite(fd, bytes([byte]), offset)
    contents = {image[0][1] for image in possible(disk)}
    assert contents == {bytes(x) for x in ((a, b, c) for a in b"ao" for b in b"bl" for c in b"cd")}


def test_a_write_is_torn_at_sectors_only(disk: RecordingDisk) -> None:
    fd = make(disk, "new", is_durable=True)
    disk.pwrite(fd, bytes(4 * S), 0)
    disk.fsync(fd)
    disk.pwrite(fd, b"x" * 3 * S, 100)  # parts of four sectors
    contents = {image[0][1] or b"" for image in possible(disk)}
    first, middle, last = b"x" * (S - 100), b"x" * 2 * S, b"x" * 100

    def written(*parts: tuple[int, bytes]) -> bytes:
        content = bytearray(4 * S)
        for offset, part in parts:
            content[offset : offset + len(part)] = part
        return bytes(content)

    assert contents == {
        written(),
        written((100, b"x" * 3 * S)),
        written((100, first)),
        written((100, first), (S, middle)),
        written((100, first), (3 * S, last)),
        written((3 * S, last)),
    }


def test_names_of_a_directory_are_lost_from_the_newest_on(disk: RecordingDisk) -> None:
    disk.link(f"{disk.root}/old", f"{disk.root}/one")
    disk.unlink(f"{disk.root}/old")
    disk.replace(f"{disk.root}/one", f"{disk.root}/two")
    names = {tuple(path for path, _ in image) for image in possible(disk)}
    assert names == {("old",), ("old", "one"), ("one",), ("two",)}


def test_a_rename_into_another_directory_happens_in_both_or_in_neither(disk: RecordingDisk) -> None:
    disk.makedirs(f"{disk.root}/archive")
    sync_directory(disk)
    disk.rename(f"{disk.root}/old", f"{disk.root}/archive/old")
    names = {tuple(path for path, _ in image) for image in possible(disk)}
    assert names == {("archive", "archive/old"), ("archive", "old")}
    sync_directory(disk)
    assert {tuple(path for path, _ in image) for image in possible(disk)} == {("archive", "archive/old")}


def test_a_directory_that_is_lost_takes_along_what_is_in_it(disk: RecordingDisk) -> None:
    disk.makedirs(f"{disk.root}/index")
    fd = disk.open(f"{disk.root}/index/db.data", os.O_RDWR | os.O_CREAT)
    disk.fsync(fd)
    names = {tuple(path for path, _ in image) for image in possible(disk)}
    assert names == {("old",), ("index", "old"), ("index", "index/db.data", "old")}


def test_two_names_of_a_file_have_one_content(disk: RecordingDisk, tmp_path_factory: pytest.TempPathFactory) -> None:
    fd = make(disk, "old")
    disk.pwrite(fd, b"1", 0)
    disk.link(f"{disk.root}/old", f"{disk.root}/too")
    both = [image for image in model_of(disk).images() if len(image.entries) == 2]
    assert {tuple(content.data for _, content in image.entries if content) for image in both} == {
        (b"1ld", b"1ld"),
        (b"old", b"old"),
    }
    copy = tmp_path_factory.mktemp("image")
    both[0].put(str(copy))
    assert os.path.samefile(copy / "old", copy / "too")
    again = model_of(RecordingDisk(str(copy)))
    assert [image.second_names for image in again.images()] == [(("too", "old"),)]


def test_no_sync_makes_up_for_one_that_failed(disk: RecordingDisk) -> None:
    fd = make(disk, "old")
    disk.pwrite(fd, b"1", 0)
    node = disk.node_of(fd)
    assert node is not None
    disk.events.append(Sync(node, has_failed=True))
    disk.pwrite(fd, b"2", 1)
    disk.fsync(fd)
    assert {image[0][1] for image in possible(disk)} == {b"12d", b"o2d"}
