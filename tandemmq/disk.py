"""Reads and writes a file to the end, however little one call of the system takes: one loop for each, for all rooms.

Imports nothing of ours, so that rooms which do not know each other share it.

A call may transfer less than it was asked to. That is no failure yet: the next call transfers the rest, or says why
not. Every call moves at least one byte or ends the loop, so there are never more calls than bytes, and one more.
Nothing is tried again after an error, EAGAIN and EINTR included: ``os`` itself repeats what a signal interrupted
(PEP 475), and a disk that is not ready for a blocking descriptor has failed.
"""

from __future__ import annotations

import errno
from typing import Protocol

Bytes = bytes | bytearray | memoryview


class Readable(Protocol):
    """The verb of ``os`` by which files are read."""

    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...


class Writable(Protocol):
    """The verb of ``os`` by which files are written."""

    def pwrite(self, fd: int, data: Bytes, offset: int, /) -> int: ...


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
