"""Disks that record, and helpers for all tests of the index."""

import errno
import os
import random
import struct
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from tandemmq.index import Index
from tandemmq.index.check import check

PIECE_BYTES = 1024


class PlainDisk:
    """`os` without waiting for the platter: what a test does not look at need not be slow."""

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fsync(self, fd: int) -> None:
        pass

    fdatasync = fsync


class RecordingDisk(PlainDisk):
    """Keeps every write, cut and sync, by the file's name, so that any crash can be played back."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, int, bytes]] = []  # verb, file, offset or length, data
        self._names: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        fd = os.open(path, flags, mode)
        self._names[fd] = os.path.basename(path).removesuffix(".new")  # made under another name, recorded under its own
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        # In pieces: a disk may keep any of them and lose the others.
        for at in range(0, len(data), PIECE_BYTES):
            self.log.append(("write", self._names[fd], offset + at, bytes(data[at : at + PIECE_BYTES])))
        return os.pwrite(fd, data, offset)

    def ftruncate(self, fd: int, length: int) -> None:
        self.log.append(("cut", self._names[fd], length, b""))
        os.ftruncate(fd, length)

    def fsync(self, fd: int) -> None:
        self.log.append(("sync", self._names[fd], 0, b""))

    fdatasync = fsync


class FailingDisk(PlainDisk):
    """The n-th call of some verbs fails, all that follow succeed: a caller that tries again would be found out."""

    def __init__(self, verbs: set[str], fail_at: int) -> None:
        self.calls = 0
        self._verbs = verbs
        self.fail_at = fail_at

    def _count(self, verb: str) -> None:
        if verb in self._verbs:
            self.calls += 1
            if self.calls == self.fail_at:
                raise OSError(errno.EIO, "the disk says no")

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._count("pwrite")
        return os.pwrite(fd, data, offset)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._count("pread")
        return os.pread(fd, length, offset)

    def fdatasync(self, fd: int) -> None:
        self._count("fdatasync")


def apply(image: dict[str, bytearray], operation: tuple[str, str, int, bytes], length: int | None = None) -> None:
    """Apply one recorded operation to the image of a directory; of a write, only the first `length` bytes."""
    verb, name, at, data = operation
    content = image.setdefault(name, bytearray())
    if verb == "write":
        data = data if length is None else data[:length]
        if len(content) < at:
            content.extend(bytes(at - len(content)))
        content[at : at + len(data)] = data
    elif verb == "cut":
        del content[at:]
        content.extend(bytes(at - len(content)))


def images(log: list, stop: int, seed: int) -> Iterator[dict[str, bytearray]]:
    """Yield possible contents of the disk when the machine stops after `stop` operations: everything synced, and of the
    rest any part: nothing, all, one alone, all but one, one torn, and a few random choices."""
    settled: dict[str, bytearray] = {}
    waiting: list = []
    for operation in log[:stop]:
        if operation[0] == "sync":
            for earlier in [one for one in waiting if one[1] == operation[1]]:
                apply(settled, earlier)
            waiting = [one for one in waiting if one[1] != operation[1]]
        else:
            waiting.append(operation)
    count = len(waiting)
    choices = {(False,) * count, (True,) * count}
    source = random.Random(seed)
    for chosen in source.sample(range(count), min(count, 4)):
        choices.add(tuple(n == chosen for n in range(count)))
        choices.add(tuple(n != chosen for n in range(count)))
    if count <= 3:
        choices |= set(product((False, True), repeat=count))
    else:
        choices |= {tuple(source.random() < 0.5 for _ in range(count)) for _ in range(3)}
    for choice in sorted(choices):
        image = {name: bytearray(content) for name, content in settled.items()}
        for is_kept, operation in zip(choice, waiting, strict=True):
            if is_kept:
                apply(image, operation)
        yield image
    for torn in source.sample(range(count), min(count, 3)):
        operation = waiting[torn]
        size = len(operation[3])
        for length in {1, 511, 512, size // 2, size - 1}:
            if 0 < length < size:
                image = {name: bytearray(content) for name, content in settled.items()}
                for n, other in enumerate(waiting):
                    if n < torn or (n > torn and length % 2):
                        apply(image, other)
                    elif n == torn:
                        apply(image, other, length)
                yield image


def states(log: list, stop: int) -> Iterator[dict[str, bytearray]]:
    """Yield the states that running programs saw after each of the first `stop` operations."""
    image: dict[str, bytearray] = {}
    for operation in log[:stop]:
        apply(image, operation)
        yield image


class Tools:
    """Shared tools of the tests in this directory."""

    plain = PlainDisk()
    PlainDisk = PlainDisk
    RecordingDisk = RecordingDisk
    FailingDisk = FailingDisk
    images = staticmethod(images)
    states = staticmethod(states)

    @staticmethod
    def key(number: int, owner: int = 7) -> bytes:
        """A key as the store makes them: owner and order key."""
        return struct.pack(">IQI", owner, number, 0)

    @staticmethod
    def write(index: Index, changes: dict[bytes, bytes | None], meta: bytes = b"") -> None:
        """Write one complete checkpoint."""
        for _ in index.checkpoint(sorted(changes.items()), meta):
            pass

    @staticmethod
    def recover(index: Index) -> None:
        """Find the free pages, to the end."""
        for _ in index.recover_free_pages():
            pass

    @staticmethod
    def put(directory: str, image: dict[str, bytearray]) -> None:
        """Make a directory of an image."""
        os.makedirs(directory, exist_ok=True)
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
        for name, content in image.items():
            with open(os.path.join(directory, name), "wb") as file:
                file.write(content)

    @staticmethod
    def assert_sound_as_it_stands(directory: str, copied: str) -> None:
        """The checker has nothing to say about the files of an index that is open."""
        image = {}
        for name in ("db.data", "db.free"):
            with open(os.path.join(directory, name), "rb") as file:
                image[name] = bytearray(file.read())
        Tools.put(copied, image)
        Tools.assert_sound(copied)

    @staticmethod
    def assert_sound(directory: str, without_notes: bool = False) -> None:
        """The checker has nothing to say."""
        report = check(directory, PlainDisk())
        assert report.is_sound, report.problems
        if without_notes:
            assert not report.notes


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    """Disks and helpers."""
    return Tools


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index directory, checked when the test is done."""
    path = str(tmp_path_factory.mktemp("index"))
    yield path
    if os.path.exists(os.path.join(path, "db.data")) and not os.path.exists(os.path.join(path, "ruined")):
        Tools.assert_sound(path)


@pytest.fixture
def opened(directory: str) -> Iterator[Callable[..., Index]]:
    """Open the test's index; closed when the test is done."""
    made: list[Index] = []

    def open_index(disk: object = None, page_size: int = 512, **more: object) -> Index:
        index = Index.open(directory, disk or Tools.plain, page_size=page_size, **more)
        made.append(index)
        return index

    yield open_index
    for index in made:
        index.close()
