"""Opens files that are to be regular ones, and reads and writes them to the end: once, for all rooms.

Imports no room, so that rooms which do not know each other share it.

Under the name of a file of the store anybody who may write into its directory can put something else. To open a FIFO
waits for a peer, a device may be read for ever, and a symbolic link leads to a file that is not the store's. So the
last part of a path is never followed, no opening waits, and what was opened is asked whether it is a regular file. The
directory of a path is the operator's to choose, and may be reached by links.

A call may transfer less than it was asked to. That is no failure yet: the next call transfers the rest, or says why
not. Every call moves at least one byte or ends the loop, so there are never more calls than bytes, and one more.
Nothing is tried again after an error, EAGAIN and EINTR included: ``os`` itself repeats what a signal interrupted
(PEP 475), and a disk that is not ready for a blocking descriptor has failed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from tandemmq.modes import NEW_FILE

Bytes = bytes | bytearray | memoryview
# (st_dev, st_ino): which file it is, whatever its name
Identity = tuple[int, int]

# So that an opening neither waits nor leaves the directory; of no effect on regular files.
_ONLY_HERE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# What the system says of links, of sockets and FIFOs without a reader, and of directories that are to be written
_NOT_TO_BE_OPENED: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegular(OSError):
    """What has the name of a file is something else: ``kind`` ("a FIFO", "a symbolic link", ...)."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(errno.EINVAL, f"is {kind}, no regular file", path)
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


class Openable(Protocol):
    """The verbs of ``os`` by which files are opened."""

    def open(self, path: str, flags: int, mode: int = ..., /) -> int: ...

    def close(self, fd: int, /) -> None: ...

    def fstat(self, fd: int, /) -> os.stat_result: ...


class Readable(Protocol):
    """The verb of ``os`` by which files are read."""

    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...


class Seekable(Protocol):
    """The verb of ``os`` by which holes are found."""

    def lseek(self, fd: int, position: int, how: int, /) -> int: ...


class Writable(Protocol):
    """The verb of ``os`` by which files are written."""

    def pwrite(self, fd: int, data: Bytes, offset: int, /) -> int: ...


class Entry(Protocol):
    """A name in a directory, as ``os.scandir`` finds it."""

    @property
    def name(self) -> str: ...

    def inode(self) -> int: ...


class FileDisk(Openable, Readable, Writable, Protocol):
    """The verbs of ``os`` by which whole files are kept, and their names."""

    def fsync(self, fd: int, /) -> None: ...

    def link(self, source: str, target: str, /) -> None: ...

    def replace(self, source: str, target: str, /) -> None: ...

    def unlink(self, path: str, /) -> None: ...

    def makedirs(self, name: str, mode: int = ..., exist_ok: bool = ...) -> None: ...

    def listdir(self, path: str, /) -> list[str]: ...

    def stat(self, path: str, /) -> os.stat_result: ...


class Disk(FileDisk, Seekable, Protocol):
    """All that journal, index and store ask of a disk: verbs of ``os``, with the meaning, the exceptions and the
    threading of their namesakes. ``os`` itself is the disk of a running broker; tests pass one that records, tears or
    refuses. They touch files in no other way, so whatever a test does to these verbs happens to all of a store.
    """

    def ftruncate(self, fd: int, length: int, /) -> None: ...

    def fdatasync(self, fd: int, /) -> None: ...

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int, /) -> None: ...

    def rmdir(self, path: str, /) -> None: ...

    def scandir(self, path: str, /) -> AbstractContextManager[Iterable[Entry]]: ...

    def statvfs(self, path: str, /) -> os.statvfs_result: ...

    def urandom(self, size: int, /) -> bytes: ...


def identity_of(status: os.stat_result) -> Identity:
    """Which file this is the status of."""
    return status.st_dev, status.st_ino


def identity_now(disk: Openable, path: str) -> Identity:
    """Of the file that has this name, as the server has it and not as this host caches it: a host may trust a cached
    name for long (NFS, acdirmin); an open asks the server (close-to-open). Raises as ``open_with_status``."""
    fd, status = open_with_status(disk, path, os.O_RDONLY)
    disk.close(fd)
    return identity_of(status)


def has_name(disk: Openable, fd: int, path: str) -> bool:
    """Whether ``path`` is a name of the file that is open as ``fd``: it was neither renamed nor replaced. The open
    descriptor keeps its inode from being used again (safety.md 9)."""
    try:
        return identity_now(disk, path) == identity_of(disk.fstat(fd))
    except FileNotFoundError:
        return False


def open_regular(disk: Openable, path: str, flags: int, mode: int = NEW_FILE) -> int:
    """Open a regular file, never waiting; ``flags`` and ``mode`` as for ``os.open``. The descriptor.

    Raises NotRegular for a symbolic link, FIFO, socket, directory or device, else OSError as the system does.
    """
    return open_with_status(disk, path, flags, mode)[0]


@contextmanager
def opened(disk: Openable, path: str, flags: int, mode: int = NEW_FILE) -> Iterator[int]:
    """As ``open_regular``; closed when the block ends."""
    fd = open_regular(disk, path, flags, mode)
    try:
        yield fd
    finally:
        disk.close(fd)


def open_with_status(disk: Openable, path: str, flags: int, mode: int = NEW_FILE) -> tuple[int, os.stat_result]:
    """As ``open_regular``; the descriptor, and what ``fstat`` says of it."""
    try:
        fd = disk.open(path, flags | _ONLY_HERE, mode)
    except OSError as error:
        if (irregular := _not_regular(path, error.errno)) is not None:
            raise irregular from error
        raise
    try:
        status = disk.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegular(path, _kind(status.st_mode))
    except BaseException:
        disk.close(fd)
        raise
    return fd, status


def _not_regular(path: str, error: int | None) -> NotRegular | None:
    """Why an opening failed with ``error``, if that is because of what is there."""
    kind = kind_of(path) if error in _NOT_TO_BE_OPENED else None
    return None if kind is None else NotRegular(path, kind)


def not_opened(path: str, error: int) -> OSError:
    """What ``open_with_status`` raises: the system said ``error``, or opened something else than a file (0)."""
    if not error:
        return NotRegular(path, kind_of(path) or "something unknown")
    return _not_regular(path, error) or OSError(error, os.strerror(error), path)


def demand_directory(disk: Openable, path: str) -> None:
    """Raises NotRegular when ``path`` is a link, else OSError as the system does when it is no directory."""
    try:
        disk.close(disk.open(path, os.O_RDONLY | os.O_DIRECTORY | _ONLY_HERE))
    except NotADirectoryError as error:
        if (kind := kind_of(path)) is not None:
            raise NotRegular(path, kind) from error
        raise


def kind_of(path: str) -> str | None:
    """What a name stands for ("a FIFO", "a symbolic link", ...), without opening it. None: a regular file, or nothing
    that can be looked at."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    return None if stat.S_ISREG(mode) else _kind(mode)


def exists(disk: FileDisk, path: str) -> bool:
    """Whether there is anything by that name. Any answer but yes and no is raised."""
    try:
        disk.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def unlink_if_there(disk: FileDisk, path: str) -> None:
    """Remove a name; that there is none is no error."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        pass


def sync_directory(disk: FileDisk, directory: str) -> None:
    """Make names that were created, replaced or removed in ``directory`` durable."""
    fd = disk.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)


def irregular(paths: Iterable[str]) -> list[NotRegular]:
    """What is there under one of these names and is no regular file."""
    return [NotRegular(path, kind) for path in paths if (kind := kind_of(path)) is not None]


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "something unknown")


def read_fully(disk: Readable, fd: int, length: int, offset: int) -> bytes:
    """``length`` bytes from ``offset``; fewer only where the file ends. Errors are the system's own."""
    data = disk.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    have = len(data)
    while have < length:
        data = disk.pread(fd, length - have, offset + have)
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def data_from(disk: Seekable, fd: int, offset: int) -> int:
    """Where the next byte from ``offset`` on is that may be other than zero: the length of the file if there is none,
    ``offset`` where the file system does not tell its holes. Moves the position of the descriptor."""
    try:
        return disk.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a hole as far as the end, or the end
            return max(offset, disk.lseek(fd, 0, os.SEEK_END))
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY):
            return offset
        raise


def write_fully(disk: Writable, fd: int, data: Bytes, offset: int) -> None:
    """All of ``data`` is in the file on return; not durable before a sync. Errors are the system's own.

    A call that takes no bytes and names no reason raises EIO. Not ENOSPC: a full disk says so itself, and there are
    callers that wait for space. After an error any part of ``data`` may be in the file.
    """
    rest = memoryview(data)
    while rest:
        written = disk.pwrite(fd, rest, offset)
        if written <= 0:
            raise OSError(errno.EIO, f"the disk took no byte of {len(rest)} at offset {offset}")
        rest = rest[written:]
        offset += written
