"""A disk that remembers what was done to it, and can say what it may hold after the power went.

The model is that of a POSIX file system with a journal of its metadata: what a sync covered is there; of what came
after, each write of a file is there, or not, or torn; and of what was done to the names of a directory after its last
sync, any prefix is there.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass, field
from typing import Any

Event = tuple[Any, ...]


class RecordingDisk:
    """``os``, with every change noted in ``events``. Directories are taken to be there; files are known by number."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._names: dict[str, int] = {}
        self._open: dict[int, int | str] = {}  # descriptor -> file number, or a directory's path
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def note(self, *event: Any) -> None:
        with self._lock:
            self.events.append(event)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        with self._lock:
            fd = os.open(path, flags, mode)
            if os.path.isdir(path):
                self._open[fd] = os.path.abspath(path)
                return fd
            path = os.path.abspath(path)
            if path not in self._names:
                self._count += 1
                self._names[path] = self._count
                self.events.append(("name", path, self._count))
            self._open[fd] = self._names[path]
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._open.pop(fd, None)
            os.close(fd)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        with self._lock:
            written = os.pwrite(fd, data, offset)
            self.events.append(("write", self._open[fd], offset, bytes(data)[:written]))
            return written

    def ftruncate(self, fd: int, length: int) -> None:
        with self._lock:
            os.ftruncate(fd, length)
            self.events.append(("truncate", self._open[fd], length))

    def fsync(self, fd: int) -> None:
        # Noted after it is done: what was written before it began is covered, and nothing else is relied on.
        with self._lock:
            before = len(self.events)
            os.fsync(fd)
            self.events.append(("sync", self._open[fd], before))

    fdatasync = fsync

    def link(self, source: str, target: str) -> None:
        with self._lock:
            os.link(source, target)
            number = self._names[os.path.abspath(source)]
            self._names[os.path.abspath(target)] = number
            self.events.append(("name", os.path.abspath(target), number))

    def unlink(self, path: str) -> None:
        with self._lock:
            os.unlink(path)
            self._names.pop(os.path.abspath(path), None)
            self.events.append(("unname", os.path.abspath(path)))

    def replace(self, source: str, target: str) -> None:
        with self._lock:
            os.replace(source, target)
            source, target = os.path.abspath(source), os.path.abspath(target)
            number = self._names.pop(source)
            self._names[target] = number
            self.events.append(("move", source, target, number))

    rename = replace


@dataclass
class Image:
    """What a disk may hold: content by path."""

    files: dict[str, bytearray] = field(default_factory=dict)

    def put(self, origin: str, directory: str) -> None:
        """Make the files below ``directory`` that were below ``origin``."""
        for path, content in self.files.items():
            target = os.path.join(directory, os.path.relpath(path, origin))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(content)


def image_at(events: list[Event], stop: int, dice: random.Random) -> Image:
    """One of the images that a power loss after the first ``stop`` events may leave."""
    happened = events[:stop]
    synced_at: dict[int | str, int] = {}
    for number, event in enumerate(happened):
        if event[0] == "sync":
            synced_at[event[1]] = number
    keep_all = dice.random() < 0.1
    names: dict[str, int] = {}
    lost_directories: set[str] = set()
    contents: dict[int, bytearray] = {}
    for number, event in enumerate(happened):
        kind = event[0]
        if kind in ("name", "unname", "move"):
            directory = os.path.dirname(event[1])
            is_sure = number < synced_at.get(directory, -1) or keep_all
            if not is_sure and (directory in lost_directories or dice.random() < 0.3):
                lost_directories.add(directory)
                continue
            if kind == "name":
                names[event[1]] = event[2]
            elif kind == "unname":
                names.pop(event[1], None)
            else:
                names.pop(event[1], None)
                names[event[2]] = event[3]
        elif kind in ("write", "truncate"):
            content = contents.setdefault(event[1], bytearray())
            is_sure = number < synced_at.get(event[1], -1) or keep_all
            fate = 1.0 if is_sure else dice.random()
            if fate < 0.4:
                continue
            if kind == "truncate":
                length = event[2]
                del content[length:]
                content.extend(bytes(length - len(content)))
                continue
            offset, data = event[2], event[3]
            if not is_sure and fate < 0.55 and len(data) > 1:
                data = data[: dice.randrange(1, len(data))]  # torn
            if len(content) < offset:
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(data)] = data
    return Image({path: contents.get(number, bytearray()) for path, number in names.items()})
