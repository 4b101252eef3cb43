"""The verbs of the disk that the index uses: the `os` module's own, so that `os` is the real one.

Crash tests pass an object that records, tears or refuses them.
"""

from os import stat_result
from typing import Protocol


class Disk(Protocol):
    """The part of `os` that the index touches files with; errors are OSError."""

    def open(self, path: str, flags: int, mode: int = ..., /) -> int: ...
    def close(self, fd: int, /) -> None: ...
    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...
    def pwrite(self, fd: int, data: bytes, offset: int, /) -> int: ...
    def ftruncate(self, fd: int, length: int, /) -> None: ...
    def fsync(self, fd: int, /) -> None: ...
    def fdatasync(self, fd: int, /) -> None: ...
    def fstat(self, fd: int, /) -> stat_result: ...
    def stat(self, path: str, /) -> stat_result: ...
    def listdir(self, path: str, /) -> list[str]: ...
    def makedirs(self, name: str, mode: int = ..., exist_ok: bool = ...) -> None: ...
    def replace(self, src: str, dst: str, /) -> None: ...
    def unlink(self, path: str, /) -> None: ...
    def rmdir(self, path: str, /) -> None: ...
    def urandom(self, size: int, /) -> bytes: ...


def exists(disk: Disk, path: str) -> bool:
    """Whether there is anything by that name. Any answer but yes and no is raised."""
    try:
        disk.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_fully(disk: Disk, fd: int, length: int, offset: int) -> bytes:
    """Read `length` bytes, fewer only where the file ends."""
    data = disk.pread(fd, length, offset)
    while 0 < len(data) < length:
        more = disk.pread(fd, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def write_fully(disk: Disk, fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`, however many calls the system makes of it."""
    written = disk.pwrite(fd, data, offset)
    while written < len(data):
        more = disk.pwrite(fd, data[written:], offset + written)
        if more <= 0:
            raise OSError(f"a write at {offset + written} took no bytes")
        written += more


def sync_directory(disk: Disk, directory: str) -> None:
    """Make names created, replaced or removed in `directory` durable."""
    fd = disk.open(directory, 0)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)
