"""Functions to open regular files, and to read and write them completely: one implementation for all packages.

The module imports no package, so that independent packages can share it.

A program that can write into the store's directory can replace a file there by something else. Opening a FIFO waits for
a peer, reading a device may never end, and a symbolic link leads to a file outside the store. So the last part of a
path is never followed, opening never waits, and the opened object is checked to be a regular file. The directory of a
path is chosen by the operator, and may be reached through links.

A call may transfer less than requested. That is no failure: the next call transfers the rest, or raises the reason.
Each call moves at least one byte or ends the loop, so there is at most one call more than bytes. No call is repeated
after an error, EAGAIN and EINTR included: ``os`` itself repeats a call that a signal interrupted (PEP 475), and a disk
that is not ready for a blocking descriptor has failed.
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
# (st_dev, st_ino): identity of a file, whatever its name
Identity = tuple[int, int]

# Opening neither waits nor leaves the directory; no effect on regular files.
_ONLY_HERE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# Errors of the system for links, for sockets and FIFOs without a reader, and for directories opened to write
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
    """The name of a file belongs to something else: ``kind`` ("a FIFO", "a symbolic link", ...)."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(errno.EINVAL, f"is {kind}, no regular file", path)
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


class Openable(Protocol):
    """Calls of ``os`` that open files."""

    def open(self, path: str, flags: int, mode: int = ..., /) -> int: ...

    def close(self, fd: int, /) -> None: ...

    def fstat(self, fd: int, /) -> os.stat_result: ...


class Readable(Protocol):
    """Call of ``os`` that reads files."""

    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...


class Seekable(Protocol):
    """Call of ``os`` that finds holes."""

    def lseek(self, fd: int, position: int, how: int, /) -> int: ...


class Writable(Protocol):
    """Call of ``os`` that writes files."""

    def pwrite(self, fd: int, data: Bytes, offset: int, /) -> int: ...


class Entry(Protocol):
    """Name in a directory, as ``os.scandir`` returns it."""

    @property
    def name(self) -> str: ...

    def inode(self) -> int: ...


class FileDisk(Openable, Readable, Writable, Protocol):
    """Calls of ``os`` for whole files and their names."""

    def fsync(self, fd: int, /) -> None: ...

    def link(self, source: str, target: str, /) -> None: ...

    def replace(self, source: str, target: str, /) -> None: ...

    def unlink(self, path: str, /) -> None: ...

    def makedirs(self, name: str, mode: int = ..., exist_ok: bool = ...) -> None: ...

    def listdir(self, path: str, /) -> list[str]: ...

    def stat(self, path: str, /) -> os.stat_result: ...


class Disk(FileDisk, Seekable, Protocol):
    """Interface of journal, index and store to a disk: calls of ``os``, with the meaning, the exceptions and the
    threading of their namesakes. ``os`` itself is the disk of a running broker; tests pass one that records, tears or
    refuses. Files are accessed in no other way, so a test controls all accesses of a store through these calls.
    """

    def ftruncate(self, fd: int, length: int, /) -> None: ...

    def fdatasync(self, fd: int, /) -> None: ...

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int, /) -> None: ...

    def rmdir(self, path: str, /) -> None: ...

    def scandir(self, path: str, /) -> AbstractContextManager[Iterable[Entry]]: ...

    def statvfs(self, path: str, /) -> os.statvfs_result: ...

    def urandom(self, size: int, /) -> bytes: ...


def identity_of(status: os.stat_result) -> Identity:
    """Return the identity of the file with this status."""
    return status.st_dev, status.st_ino


def identity_now(disk: Openable, path: str) -> Identity:
    """Return the identity of the file that has this name, as on the server and not as cached on this host: a host may
    trust a cached name for long (NFS, acdirmin); an open queries the server (close-to-open). Raises as
    ``open_with_status`` does."""
    fd, status = open_with_status(disk, path, os.O_RDONLY)
    disk.close(fd)
    return identity_of(status)


def has_name(disk: Openable, fd: int, path: str) -> bool:
    """Return whether ``path`` is a name of the file that is open as ``fd``: it was neither renamed nor replaced. The
    open descriptor keeps its inode from being used again (safety.md 9)."""
    try:
        return identity_now(disk, path) == identity_of(disk.fstat(fd))
    except FileNotFoundError:
        return False


def open_regular(disk: Openable, path: str, flags: int, mode: int = NEW_FILE) -> int:
    """Open a regular file without waiting, and return the descriptor; ``flags`` and ``mode`` as for ``os.open``.

    Raises NotRegular for a symbolic link, FIFO, socket, directory or device, else OSError as the system does.
    """
    return open_with_status(disk, path, flags, mode)[0]


@contextmanager
def opened(disk: Openable, path: str, flags: int, mode: int = NEW_FILE) -> Iterator[int]:
    """Open as ``open_regular`` does; close when the block ends."""
    fd = open_regular(disk, path, flags, mode)
    try:
        yield fd
    finally:
        disk.close(fd)


def open_with_status(disk: Openable, path: str, flags: int, mode: int = NEW_FILE) -> tuple[int, os.stat_result]:
    """Open as ``open_regular`` does; return the descriptor and its status."""
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
    """Return the reason for ``error`` of an opening, if it is the kind of the file."""
    kind = kind_of(path) if error in _NOT_TO_BE_OPENED else None
    return None if kind is None else NotRegular(path, kind)


def not_opened(path: str, error: int) -> OSError:
    """Return the exception of ``open_with_status``: for the system's ``error``, or for an opened object that is no file
    (0)."""
    if not error:
        return NotRegular(path, kind_of(path) or "something unknown")
    return _not_regular(path, error) or OSError(error, os.strerror(error), path)


def demand_directory(disk: Openable, path: str) -> None:
    """Raise NotRegular when ``path`` is a link, else OSError of the system when it is no directory."""
    try:
        disk.close(disk.open(path, os.O_RDONLY | os.O_DIRECTORY | _ONLY_HERE))
    except NotADirectoryError as error:
        if (kind := kind_of(path)) is not None:
            raise NotRegular(path, kind) from error
        raise


def kind_of(path: str) -> str | None:
    """Return the kind of a name's object ("a FIFO", "a symbolic link", ...), without opening it. None: a regular file,
    or not accessible."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    return None if stat.S_ISREG(mode) else _kind(mode)


def exists(disk: FileDisk, path: str) -> bool:
    """Return whether the name exists. Raises every error except "not found"."""
    try:
        disk.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def unlink_if_there(disk: FileDisk, path: str) -> None:
    """Remove a name; a missing name is no error."""
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
    """Return the errors for those of ``paths`` that exist and are no regular files."""
    return [NotRegular(path, kind) for path in paths if (kind := kind_of(path)) is not None]


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "something unknown")


def read_fully(disk: Readable, fd: int, length: int, offset: int) -> bytes:
    """Return ``length`` bytes from ``offset``; fewer only at the end of the file. Raises the system's errors."""
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
    """Return the position of the next byte from ``offset`` on that may not be zero: the length of the file if there is
    none, ``offset`` if the file system does not report holes. Moves the position of the descriptor."""
    try:
        return disk.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a hole up to the end, or the end
            return max(offset, disk.lseek(fd, 0, os.SEEK_END))
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY):
            return offset
        raise


def write_fully(disk: Writable, fd: int, data: Bytes, offset: int) -> None:
    """Write all of ``data``; it is not durable before a sync. Raises the system's errors.

    A call that writes no bytes without an error raises EIO. Not ENOSPC: a full disk reports that itself, and some
    callers wait for space. After an error any part of ``data`` may be in the file.
    """
    rest = memoryview(data)
    while rest:
        written = disk.pwrite(fd, rest, offset)
        if written <= 0:
            raise OSError(errno.EIO, f"the disk accepted no byte of {len(rest)} at offset {offset}")
        rest = rest[written:]
        offset += written
