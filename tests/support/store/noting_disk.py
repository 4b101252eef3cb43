"""A disk that records the calls on the files of a journal, in order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tandemmq.journal.files import file_id


class NotingDisk:
    """The system's disk, or another one; records the writes, syncs and stats of journal files."""

    def __init__(self, disk: Any = os) -> None:
        self._disk = disk
        self.steps: list[str] = []
        self.on_stat: Callable[[], None] = lambda: None  # called before a stat of a journal file
        self.on_write: Callable[[], None] = lambda: None
        self._files: dict[int, int] = {}
        self._directories: set[int] = set()

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._disk, verb)

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        fd = os.open(path, flags, mode)
        self._files.pop(fd, None)
        number = file_id(os.path.basename(path))
        self._directories.discard(fd)
        if number is not None:
            self._files[fd] = number
        if flags & os.O_DIRECTORY:
            self._directories.add(fd)
        return fd

    def fsync(self, fd: int, /) -> None:
        if fd in self._directories:
            self.steps.append("sync names")
        self._disk.fsync(fd)

    def unlink(self, path: str, /) -> None:
        number = file_id(os.path.basename(path))
        if number is not None:
            self.steps.append(f"remove {number}")
        os.unlink(path)

    def pwrite(self, fd: int, data: bytes, offset: int, /) -> int:
        if fd in self._files:
            self.steps.append(f"write {self._files[fd]}")
            self.on_write()
        return os.pwrite(fd, data, offset)

    def fdatasync(self, fd: int, /) -> None:
        if fd in self._files:
            self.steps.append(f"sync {self._files[fd]}")
        self._disk.fdatasync(fd)

    def stat(self, path: str, /) -> os.stat_result:
        number = file_id(os.path.basename(path))
        if number is not None:
            self.steps.append(f"look for {number}")
            self.on_stat()
        return os.stat(path)
