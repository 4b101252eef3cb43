"""A disk that loses unsynced writes at a power loss: each write separately, so that a later one may be there without an
earlier one. Names are kept."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


class LosingDisk:
    """The system's disk. From ``cut_power`` until ``power_up`` every call that changes something fails."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_off = False
        # By inode: the content of the disk, and the later writes, in order.
        self._durable: dict[int, bytes] = {}
        self._written: dict[int, list[tuple[int, bytes]]] = {}

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def unsynced(self, path: Path) -> int:
        """Return the number of unsynced writes to this file."""
        with self._lock:
            return len(self._written.get(path.stat().st_ino, ()))

    def cut_power(self) -> None:
        with self._lock:
            self._is_off = True

    def power_up(self, directory: Path, is_lost: Callable[[int], bool]) -> None:
        """Give the files their content after a restart. ``is_lost``: decides by number which unsynced writes to a file
        are lost."""
        with self._lock:
            for path in directory.iterdir():
                node = path.stat().st_ino
                if node in self._durable:
                    content = bytearray(self._durable[node])
                    for number, (offset, data) in enumerate(self._written[node]):
                        if not is_lost(number):
                            content[offset : offset + len(data)] = data
                    path.write_bytes(content)
            self._durable.clear()
            self._written.clear()
            self._is_off = False

    def pwrite(self, fd: int, data: bytes, offset: int, /) -> int:
        with self._lock:
            self._demand_power()
            node = os.fstat(fd).st_ino
            if node not in self._durable:
                self._durable[node] = Path(f"/proc/self/fd/{fd}").read_bytes()
                self._written[node] = []
            written = os.pwrite(fd, data, offset)
            self._written[node].append((offset, bytes(data[:written])))
            return written

    def ftruncate(self, fd: int, length: int, /) -> None:
        with self._lock:
            self._demand_power()
            os.ftruncate(fd, length)
            self._forget(fd)

    def fsync(self, fd: int, /) -> None:
        with self._lock:
            self._demand_power()
            os.fsync(fd)
            self._forget(fd)

    fdatasync = fsync

    def _demand_power(self) -> None:
        if self._is_off:
            raise OSError(errno.EIO, "the power is off")

    def _forget(self, fd: int) -> None:
        node = os.fstat(fd).st_ino
        self._durable.pop(node, None)
        self._written.pop(node, None)
