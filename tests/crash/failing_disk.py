"""A disk that stops taking changes at one moment, as a volume does that is cut off."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

# What changes something, or makes it durable. Everything else goes to os as it is.
CHANGES = (
    "pwrite",
    "write",
    "fsync",
    "fdatasync",
    "link",
    "unlink",
    "replace",
    "rename",
    "ftruncate",
    "truncate",
    "makedirs",
    "mkdir",
)


class FailingDisk:
    """``os`` whose ``fail_at``-th change, and every change after it, fails with EIO. 0: none does.

    A write that fails leaves half of its bytes, as a torn one.
    """

    def __init__(self, fail_at: int) -> None:
        self.fail_at = fail_at
        self.count = 0
        self.failed: str | None = None

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._watched(name, real) if name in CHANGES else real

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.count += 1
            if self.fail_at and self.count >= self.fail_at:
                if self.failed is None:
                    self.failed = name
                    if name == "pwrite":
                        fd, data, offset = arguments
                        real(fd, bytes(data)[: len(data) // 2], offset)
                raise OSError(errno.EIO, f"injected at change {self.count}")
            return real(*arguments, **keywords)

        return call
