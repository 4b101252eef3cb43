"""A disk that records all changes as events, in order.

``crash_images`` computes what a record may leave after a power loss.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
from dataclasses import dataclass
from typing import Any

from tests.support.journal.recorded_steps import HasSteps

ROOT = 0


@dataclass(frozen=True, slots=True)
class Write:
    """A write to a file. Files and directories are identified by number (node), because names may change."""

    node: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    node: int
    length: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync of a file or a directory. A failed one covers nothing, and no later one covers its data."""

    node: int
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A new name in a directory, by creation or by link(2)."""

    directory: int
    name: str
    node: int
    is_directory: bool = False


@dataclass(frozen=True, slots=True)
class Unlink:
    directory: int
    name: str


@dataclass(frozen=True, slots=True)
class Move:
    """rename(2), also from one directory into another."""

    directory: int
    name: str
    into: int
    as_name: str
    node: int


@dataclass(frozen=True, slots=True)
class Note:
    """A promise at this moment; it does not change the disk."""

    what: Any


Event = Write | Truncate | Sync | Link | Unlink | Move | Note


class RecordingDisk(HasSteps):
    """``os`` for the files below ``root``, which must exist. Existing files are durable.

    The events from ``start`` on were made through this object. Calls of several threads happen one at a time, under
    ``lock``. The random seed depends on the existing files, so that the same life leaves the same bytes.
    """

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.events: list[Event] = []
        self.lock = threading.RLock()
        self._nodes: dict[str, int] = {self.root: ROOT}
        self._open: dict[int, int] = {}
        self._count = ROOT
        self._adopt()
        self.start = len(self.events)
        found = b"".join(event.data for event in self.events if isinstance(event, Write))
        self._chance = random.Random(hashlib.blake2b(found).digest())

    def _adopt(self) -> None:
        known: dict[tuple[int, int], int] = {}
        for directory, directories, names in os.walk(self.root):
            for name in directories:
                self._known(os.path.join(directory, name), is_directory=True)
            for name in names:
                path = os.path.join(directory, name)
                status = os.stat(path)
                inode = status.st_dev, status.st_ino
                if inode in known:  # with another name
                    self._named(path, known[inode])
                    continue
                node = self._known(path)
                assert node is not None
                known[inode] = node
                with open(path, "rb") as file:
                    self.events.append(Write(node, 0, file.read()))
        self.events += [Sync(node) for node in self._nodes.values()]

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def urandom(self, size: int) -> bytes:
        with self.lock:
            return self._chance.randbytes(size)

    def note(self, what: Any) -> None:
        with self.lock:
            self.events.append(Note(what))

    # ---- names

    def _place(self, path: str) -> tuple[int, str] | None:
        """Return the directory and the name in it; None if the path is not below the root."""
        directory, name = os.path.split(os.path.abspath(path))
        if directory != self.root and not directory.startswith(self.root + "/"):
            return None
        node = self._known(directory, is_directory=True)
        assert node is not None
        return node, name

    def _known(self, path: str, *, is_directory: bool = False) -> int | None:
        """Return the node of an existing path; an unknown one has just been created with this name."""
        path = os.path.abspath(path)
        node = self._nodes.get(path)
        if node is None:
            place = self._place(path)
            if place is not None:
                self._count += 1
                node = self._nodes[path] = self._count
                self.events.append(Link(*place, node, is_directory))
        return node

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        with self.lock:
            fd = os.open(path, flags, mode)
            node = self._known(path, is_directory=os.path.isdir(path))
            if node is not None:
                self._open[fd] = node
                if flags & os.O_TRUNC:
                    self.events.append(Truncate(node, 0))
            return fd

    def close(self, fd: int) -> None:
        with self.lock:
            self._open.pop(fd, None)
            os.close(fd)

    def makedirs(self, name: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        with self.lock:
            os.makedirs(name, mode, exist_ok)
            self._known(name, is_directory=True)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        with self.lock:
            os.mkdir(path, mode)
            self._known(path, is_directory=True)

    def link(self, source: str, target: str) -> None:
        with self.lock:
            os.link(source, target)
            node = self._known(source)
            assert node is not None
            self._named(target, node)

    def _named(self, path: str, node: int) -> None:
        """Record a further name of a known file."""
        place = self._place(path)
        if place is not None:
            self._nodes[os.path.abspath(path)] = node
            self.events.append(Link(*place, node))

    def unlink(self, path: str) -> None:
        with self.lock:
            os.unlink(path)
            place = self._place(path)
            if place is not None:
                self._nodes.pop(os.path.abspath(path), None)
                self.events.append(Unlink(*place))

    remove = unlink

    def rmdir(self, path: str) -> None:
        with self.lock:
            os.rmdir(path)
            place = self._place(path)
            if place is not None:
                self._nodes.pop(os.path.abspath(path), None)
                self.events.append(Unlink(*place))

    def replace(self, source: str, target: str) -> None:
        with self.lock:
            node = self._known(source)
            os.replace(source, target)
            places = self._place(source), self._place(target)
            if node is None or places[0] is None or places[1] is None:
                return
            source, target = os.path.abspath(source), os.path.abspath(target)
            for path in [path for path in self._nodes if path == source or path.startswith(source + "/")]:
                self._nodes[target + path[len(source) :]] = self._nodes.pop(path)
            self.events.append(Move(*places[0], *places[1], node))

    rename = replace

    # ---- contents

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        with self.lock:
            written = os.pwrite(fd, data, offset)
            if fd in self._open:
                self.events.append(Write(self._open[fd], offset, bytes(data)[:written]))
            return written

    def ftruncate(self, fd: int, length: int) -> None:
        with self.lock:
            os.ftruncate(fd, length)
            if fd in self._open:
                self.events.append(Truncate(self._open[fd], length))

    def fsync(self, fd: int) -> None:
        with self.lock:
            os.fsync(fd)
            if fd in self._open:
                self.events.append(Sync(self._open[fd]))

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def still_open(self) -> list[str]:
        """Return the current names of the open files below the root."""
        return [self.name_of(fd) for fd in self._open]

    def node_of(self, fd: int) -> int | None:
        return self._open.get(fd)

    def name_of(self, fd: int) -> str:
        """Return a current path of an open file below the root; empty if it has none."""
        with self.lock:
            node = self._open.get(fd)
            return next((os.path.relpath(path, self.root) for path, n in self._nodes.items() if n == node), "")
