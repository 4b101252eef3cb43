"""What the journal needs of a disk: a few functions of the ``os`` module, under their own names.

The ``os`` module itself is the disk of a running broker. Tests pass an object that records or fails. Nothing in this
room touches a file in any other way, so whatever a test does to these verbs happens to the whole journal.
"""

from __future__ import annotations

import os
from typing import Protocol

from tandemmq.disk import Bytes


class Disk(Protocol):
    """The verbs, with the meaning, the exceptions and the threading of their namesakes in ``os``."""

    def open(self, path: str, flags: int, mode: int = ..., /) -> int: ...

    def close(self, fd: int, /) -> None: ...

    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...

    def pwrite(self, fd: int, data: Bytes, offset: int, /) -> int: ...

    def fsync(self, fd: int, /) -> None: ...

    def fdatasync(self, fd: int, /) -> None: ...

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int, /) -> None: ...

    def link(self, source: str, target: str, /) -> None: ...

    def unlink(self, path: str, /) -> None: ...

    def listdir(self, path: str, /) -> list[str]: ...

    def stat(self, path: str, /) -> os.stat_result: ...

    def fstat(self, fd: int, /) -> os.stat_result: ...
