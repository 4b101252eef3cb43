"""Volume of a lock file: the system calls of the lock `shared-file`.

Production uses `OS_VOLUME`. A process has only this one, because in POSIX a process owns record locks: `guard` and
`held` concern the locks of this process. The simulator provides a volume for each broker, which can be faulty.

All calls block, raise OSError, and may hang as long as the volume does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from portalocker import LockFlags
from portalocker.exceptions import AlreadyLocked, LockException
from portalocker.portalocker import LockfLocker

from tandemmq.disk import Identity, Openable, Readable, Writable

# struct flock of fcntl(2): l_type, l_whence, l_start, l_len, l_pid. Linux, where off_t has 64 bits.
_FLOCK: Final = struct.Struct("hhqqi4x")

_posix = LockfLocker()


class LockVolume(Openable, Readable, Writable, Protocol):
    """System calls of one process. Without a docstring, a method works like the function of that name in `os`.

    As POSIX defines, `close` drops all locks of the process on that file, also those of another descriptor.
    """

    @property
    def guard(self) -> AbstractContextManager[Any]:
        """Thread lock that is held while a lock file is opened, locked, closed, or searched in `held`. It is not held
        during a keep-alive."""
        ...

    @property
    def held(self) -> MutableMapping[Identity, Any]:
        """Lock files that this process owns; only the locker reads and changes them, under `guard`."""
        ...

    def stat(self, path: str) -> os.stat_result: ...

    def ftruncate(self, descriptor: int, size: int) -> None: ...

    def fsync(self, descriptor: int) -> None: ...

    def touch(self, descriptor: int) -> None:
        """Set the modification time of the file to now, by the clock of the host that stores the file."""
        ...

    def makedirs(self, path: str) -> None:
        """Make the directory and its parents; do nothing if it exists."""
        ...

    def lock(self, descriptor: int) -> bool:
        """Take the record lock from byte 0 on, without waiting. Return False if another process has it. Return True
        also if this process has it already."""
        ...

    def holder_pid(self, descriptor: int) -> int | None:
        """Return the id of the process that holds byte 0: 0 or less if it runs on another host, None if no other
        process holds it."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 by this machine's clock. The value is written to the lock file for information
        only."""
        ...


class OsVolume:
    """Volume of the operating system. The only instance is `OS_VOLUME`."""

    __slots__ = ("guard", "held")

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    stat = staticmethod(os.stat)
    fstat = staticmethod(os.fstat)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    touch = staticmethod(os.utime)

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.held: dict[Identity, Any] = {}

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def lock(self, descriptor: int) -> bool:
        try:
            _posix.lock(descriptor, LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING)
        except AlreadyLocked:
            return False
        except LockException as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise OSError(errno.EIO, str(error)) from error
        return True

    def holder_pid(self, descriptor: int) -> int | None:
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
        return None if kind == fcntl.F_UNLCK else int(pid)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


OS_VOLUME: Final[LockVolume] = OsVolume()
