"""A host and its memory of a volume: pages, names and attributes that may be older than those of the server.

Written data waits here until it is synced, or until the host finds time. Read data is trusted until the file is opened
again, and names and attributes for the time of the mount (acdirmin of nfs(5)). Names that do not exist are looked up
each time (lookupcache=positive, which the start requires). On a host by itself all of this is exact.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field

from tandemmq.simulator.kernel import World
from tandemmq.simulator.link import Link
from tandemmq.simulator.server import SECTOR, File, Server, failure

#: Part of the writes that is written back before a sync, and the time until that.
WRITE_BACK_SHARE = 0.05
WRITE_BACK_SECONDS_MAX = 1.0


@dataclass(slots=True, eq=False)
class CachedFile:
    """Cached content of a file. ``data`` None: nothing is cached."""

    data: bytearray | None = None
    version: int = 0
    dirty: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of a directory, as ``os.scandir`` returns it."""

    name: str
    number: int

    def inode(self) -> int:
        """Return the inode number of the file that had this name when the directory was read."""
        return self.number


class Host:
    """Cache of the volume in a host. ``attribute_seconds``: how long it trusts cached names and attributes; 0: not at
    all.

    ``lock_link`` is the link to the record locks, which is separate in NFS; ``cut`` and ``mend`` are for both.
    """

    def __init__(self, world: World, name: str, server: Server, link: Link, *, attribute_seconds: float) -> None:
        self.world = world
        self.name = name
        self.server = server
        self.link = link
        self.lock_link = Link(world, link.timeout_seconds)
        self.attribute_seconds = attribute_seconds
        self.wall_offset = 1_700_000_000.0
        self.sees_lost_data = False  # a sync failed: the written data is seen on this host only
        self.failing: dict[str, int] = {}  # verb -> errno of its next call
        self.on_failure: Callable[[], None] = lambda: None  # a failure took effect
        self.names: dict[str, tuple[File, float]] = {}
        self.lists: dict[str, tuple[list[Entry], float]] = {}
        self._files: dict[int, CachedFile] = {}

    def wall(self) -> float:
        """Return the seconds since 1970 by the host's clock, which a fault may set."""
        return self.wall_offset + self.world.now

    def cut(self) -> None:
        """Cut the host off from the volume and its locks until ``mend``."""
        self.link.cut()
        self.lock_link.cut()

    def mend(self) -> None:
        self.link.mend()
        self.lock_link.mend()

    # ---- pages

    def cached(self, file: File) -> CachedFile:
        found = self._files.get(file.inode)
        if found is None:
            found = self._files[file.inode] = CachedFile()
        return found

    def revalidate(self, file: File) -> CachedFile:
        """Trust the cached content only if no other host has changed the file since."""
        cached = self.cached(file)
        if cached.data is not None and cached.version != file.version:
            cached.data = None
        return cached

    def fill(self, file: File) -> bytearray:
        """Return the file as this host sees it; at the server."""
        cached = self.cached(file)
        if cached.data is None:
            self.server.check_alive(file)
            cached.data = data = bytearray(file.data)
            cached.version = file.version
            for offset, written in cached.dirty:
                _put(data, offset, written)
        return cached.data

    def put(self, file: File, offset: int, data: bytes) -> None:
        """Write into the host's memory."""
        cached = self.cached(file)
        if cached.data is None:
            self.fill(file)
        assert cached.data is not None, "just filled"
        _put(cached.data, offset, data)
        cached.dirty.append((offset, data))
        if self.world.random.random() < WRITE_BACK_SHARE:
            self.world.after(WRITE_BACK_SECONDS_MAX * self.world.random.random(), lambda: self._write_back(file))

    def _write_back(self, file: File) -> None:
        if not self.link.is_cut:
            try:
                self.flush(file, is_stable=False)
            except OSError:
                pass  # the writer gets the error at the next sync, or closed it without one

    def flush(self, file: File, *, is_stable: bool) -> None:
        """Write the dirty data to the server. After a failure it is visible here, and lost there."""
        cached = self.cached(file)
        dirty, cached.dirty = cached.dirty, []
        was_current = cached.version == file.version
        for offset, data in dirty:
            self.server.write(file, offset, data, is_stable=is_stable)
        if was_current:  # our own writes do not make our own cache old
            cached.version = file.version

    def forget_pages(self, file: File) -> None:
        """Drop cached pages that are not dirty (POSIX_FADV_DONTNEED)."""
        cached = self.cached(file)
        if not cached.dirty:
            cached.data = None

    def died(self) -> None:
        """End the host: data that was not synced survives only as far as it was just being written."""
        chance = self.world.random
        for file in self.server.files():
            cached = self._files.get(file.inode)
            for offset, data in cached.dirty if cached is not None else ():
                for at in range(0, len(data), SECTOR):
                    if chance.random() < 0.3:
                        try:
                            self.server.write(file, offset + at, data[at : at + SECTOR], is_stable=False)
                        except OSError:
                            break
        self._files = {}
        self.names = {}
        self.lists = {}

    # ---- names

    def changed_names(self, path: str) -> None:
        """Drop the cached directory in which this host changed a name."""
        parent = posixpath.dirname(path)
        self.lists.pop(parent, None)
        for name in [name for name in self.names if posixpath.dirname(name) == parent]:
            del self.names[name]

    def remembered(self, path: str) -> File | None:
        known = self.names.get(path)
        if known is not None and self.world.now - known[1] < self.attribute_seconds:
            return known[0]
        return None

    def fail_if_planned(self, verb: str) -> None:
        """Raise a failure that was planned for this verb, once."""
        number = self.take_failure(verb)
        if number is not None:
            raise failure(number, verb)

    def take_failure(self, verb: str) -> int | None:
        """Return the errno of a failure that was planned for this verb, once."""
        number = self.failing.pop(verb, None)
        if number is not None:
            self.on_failure()
        return number


def _put(target: bytearray, offset: int, data: bytes) -> None:
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def unreachable(path: str) -> OSError:
    """Return the error of a soft mount when the server does not answer."""
    return failure(errno.EIO, path)
