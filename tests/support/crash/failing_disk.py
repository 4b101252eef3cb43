"""Recorded disks with a call that fails once, or with all calls failing from then on, as after the loss of a volume or
the kill of a process.

``FailingDisk`` fails a call by its number; ``MortalDisk`` kills its process at a call; ``SleepingDisk`` stops it for a
while before a call.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.support.crash.recording_disk import RecordingDisk, Sync
from tests.support.journal.recorded_steps import HasSteps

# Calls that change, sync or open a file. All others are passed to the disk.
CALLS = (
    "open", "pwrite", "fsync", "fdatasync", "link", "unlink", "replace", "rename", "ftruncate", "makedirs", "mkdir",
)  # fmt: skip
SYNCS = ("fsync", "fdatasync")
WRITES_AND_SYNCS = ("pwrite", *SYNCS)
SLEEP_SECONDS_MAX = 60.0


class Failure(Enum):
    ONCE = "fails once"
    LASTING = "fails from then on"
    SHORT = "takes half of the bytes, and says so"
    KILLED = "is never made, as the process is killed before it"


@dataclass(frozen=True, slots=True)
class Failed:
    """Event of a failed call. ``node`` and ``path``: the call's file, if it has one."""

    call: str
    node: int | None
    path: str


class Watched(HasSteps):
    """``disk`` with ``_watched`` around each call of CALLS."""

    disk: Any

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.disk, name)
        return self._watched(name, real) if name in CALLS else real

    def _watched(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        raise NotImplementedError


class FailingDisk(Watched):
    """The ``fail_at``-th of the calls of ``counted`` fails with the errno ``number``; 0: none fails. ``failed``: the
    failed call.

    A failed write leaves half of its bytes, like a torn one; the data of a failed sync never becomes durable.
    """

    def __init__(
        self,
        disk: RecordingDisk,
        fail_at: int,
        failure: Failure = Failure.ONCE,
        number: int = errno.EIO,
        counted: Collection[str] = CALLS,
    ) -> None:
        self.disk = disk
        self.fail_at = fail_at
        self.failure = failure
        self.number = number
        self.counted = counted
        self.count = 0
        self.failed: Failed | None = None

    def _watched(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            with self.disk.lock:
                is_counted = call in self.counted
                self.count += is_counted
                is_it = is_counted and self.count == self.fail_at
                is_behind = self.fail_at and self.failed is not None
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


class MortalDisk(Watched):
    """The process is killed before or directly after a call, and makes no further calls.

    ``before`` and ``after`` are called for each call of CALLS, with its name and its path; for a link, the new name.
    There is no kill while ``is_safe``.
    """

    def __init__(
        self,
        disk: RecordingDisk,
        *,
        before: Callable[[str, str], bool] = lambda call, path: False,
        after: Callable[[str, str], bool] = lambda call, path: False,
        is_safe: bool = False,
    ) -> None:
        self.disk = disk
        self.is_safe = is_safe
        self.is_dead = False
        self._before = before
        self._after = after

    def _watched(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            with self.disk.lock:
                path = _path_of(self.disk, call, arguments)
                if not self.is_safe and self._before(call, path):
                    self.is_dead = True
                if self.is_dead:
                    raise OSError(errno.EIO, f"the process was killed; it would have done {call} {path}")
                result = real(*arguments, **keywords)
                if not self.is_safe and self._after(call, path):
                    self.is_dead = True
                return result

        return watched


class SleepingDisk(Watched):
    """``fall_asleep`` stops the process before the next call of CALLS that ``before`` selects (as above).

    At ``wake`` it makes this call, whatever happened in the meantime.
    """

    def __init__(self, disk: RecordingDisk | MortalDisk, before: Callable[[str, str], bool]) -> None:
        self.disk = disk
        self._before = before
        self._is_tired = False
        self._sleeps = threading.Event()
        self._wakes = threading.Event()

    def fall_asleep(self, act: Callable[[], object]) -> None:
        """Run ``act``, which makes the call; return when the process has stopped before it."""
        self._sleeps.clear()
        self._wakes.clear()
        self._is_tired = True
        act()
        assert self._sleeps.wait(SLEEP_SECONDS_MAX), "the call is reached"

    @property
    def is_asleep(self) -> bool:
        return self._sleeps.is_set()

    def wake(self) -> None:
        self._wakes.set()

    def _watched(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            if self._is_tired and self._before(call, _path_of(self.disk, call, arguments)):
                self._is_tired = False
                self._sleeps.set()
                assert self._wakes.wait(SLEEP_SECONDS_MAX), "it is woken"
            return real(*arguments, **keywords)

        return watched


def _path_of(disk: Any, call: str, arguments: tuple[Any, ...]) -> str:
    """Return the path of a call; for a link or a rename the new name."""
    about = arguments[1] if call in ("link", "replace", "rename") else arguments[0]
    return str(disk.name_of(about)) if isinstance(about, int) else os.path.relpath(about, disk.root)
