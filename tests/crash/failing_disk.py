"""A recorded disk one of whose calls fails: once, or from then on, as when a volume is cut off or a process killed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from recording_disk import RecordingDisk, Sync

# What changes something, makes it durable, or opens it. Everything else goes to the disk as it is.
CALLS = (
    "open",
    "pwrite",
    "fsync",
    "fdatasync",
    "link",
    "unlink",
    "replace",
    "rename",
    "ftruncate",
    "makedirs",
    "mkdir",
)
SYNCS = ("fsync", "fdatasync")


class Failure(Enum):
    ONCE = "fails once"
    LASTING = "fails from then on"
    SHORT = "takes half of the bytes, and says so"
    KILLED = "is never made, as the process is killed before it"


@dataclass(frozen=True, slots=True)
class Failed:
    """Noted on the disk when the call fails. ``node`` and ``path`` are the file's, as far as the call has one."""

    call: str
    node: int | None
    path: str


class FailingDisk:
    """The ``fail_at``-th call fails with this errno (``number``); 0: none does. ``failed`` says which it was.

    A write that fails leaves half of its bytes, as a torn one; what a failed sync was to make durable never is.
    """

    def __init__(
        self, disk: RecordingDisk, fail_at: int, failure: Failure = Failure.ONCE, number: int = errno.EIO
    ) -> None:
        self.disk = disk
        self.fail_at = fail_at
        self.failure = failure
        self.number = number
        self.count = 0
        self.failed: Failed | None = None

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.disk, name)
        return self._watched(name, real) if name in CALLS else real

    def _watched(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            with self.disk.lock:
                self.count += 1
                is_it = self.count == self.fail_at
                is_behind = self.fail_at and self.count > self.fail_at
                if not is_it and not (is_behind and self.failure in (Failure.LASTING, Failure.KILLED)):
                    return real(*arguments, **keywords)
                if self.failure is Failure.SHORT and call != "pwrite":
                    return real(*arguments, **keywords)
                node, path = self._file(arguments[0])
                if is_it:
                    self.failed = Failed(call, node, path)
                    self.disk.note(self.failed)
                if self.failure is not Failure.KILLED:
                    if call == "pwrite" and is_it:
                        fd, data, offset = arguments
                        written = real(fd, bytes(data)[: len(data) // 2], offset)
                        if self.failure is Failure.SHORT:
                            return written
                    if call in SYNCS and node is not None:
                        self.disk.events.append(Sync(node, has_failed=True))
                raise OSError(self.number, f"injected: {call} {path}, call {self.count}")

        return watched

    def _file(self, first: int | str) -> tuple[int | None, str]:
        if isinstance(first, int):
            return self.disk.node_of(first), self.disk.name_of(first)
        return None, os.path.relpath(first, self.disk.root)
