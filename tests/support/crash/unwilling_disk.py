"""A disk that writes fewer bytes than requested, or none, and returns this number or an error.

A caller must write all bytes, or end with the error number in ``ENDS_WITH``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Final

from tests.support.journal.recorded_steps import HasSteps

# Far more calls than any of these tests needs. A caller with more calls is in an endless loop.
CALLS_MAX: Final = 200_000


class Endless(BaseException):
    """Not caught by the tested code, so that an endless loop fails its test."""


def _interrupted(_: int, __: int) -> int:
    raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))


def _not_ready(_: int, __: int) -> int:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


# Number of bytes that the n-th call, counted from 1, writes of the requested ones.
MOODS: Final[dict[str, Callable[[int, int], int]]] = {
    "a byte at a time": lambda length, call: 1,
    "half of it": lambda length, call: (length + 1) // 2,
    "nothing": lambda length, call: 0,
    "half, then nothing": lambda length, call: length // 2 if call == 1 else 0,
    "interrupted": _interrupted,
    "not ready": _not_ready,
}
ENDS_WITH: Final = {
    "nothing": errno.EIO,
    "half, then nothing": errno.EIO,
    "interrupted": errno.EINTR,
    "not ready": errno.EAGAIN,
}


class UnwillingDisk(HasSteps):
    """``disk`` with this behaviour while ``is_unwilling``. ``calls``: number of writes."""

    def __init__(self, mood: str, disk: Any = os) -> None:
        self.disk = disk
        self.is_unwilling = True
        self.calls = 0
        self._takes = MOODS[mood]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        self.calls += 1
        if self.calls > CALLS_MAX:
            raise Endless(f"{self.calls} writes")
        if not self.is_unwilling:
            return int(self.disk.pwrite(fd, data, offset))
        taken = self._takes(len(data), self.calls)
        return int(self.disk.pwrite(fd, bytes(data[:taken]), offset)) if taken else 0
