"""A disk that is cut off at a given call."""

from __future__ import annotations

import errno
import os
from typing import Any

CALLS = ("open", "pwrite", "fsync", "fdatasync", "link", "unlink", "replace", "ftruncate", "makedirs")


class CutOffDisk:
    """The system's disk. The ``at``-th call that changes or opens a file, and all later ones, fail; a failed write is
    half done. 0: no call fails. ``count``: number of calls."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.count = 0

    def __getattr__(self, verb: str) -> Any:
        real = getattr(os, verb)
        if verb not in CALLS:
            return real

        def call(*arguments: Any, **keywords: Any) -> Any:
            self.count += 1
            if not self.at or self.count < self.at:
                return real(*arguments, **keywords)
            if verb == "pwrite" and self.count == self.at:
                fd, data, offset = arguments
                real(fd, bytes(data)[: len(data) // 2], offset)
            raise OSError(errno.EIO, f"cut off at call {self.count}, {verb}")

        return call
