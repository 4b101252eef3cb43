"""A process's view of a volume: the calls of ``os`` that journal, index, space and lock make.

A simulated broker uses it instead of ``os`` (store.standby.Disk) and of the kernel's record locks
(locker.volume.LockVolume). Each call that needs the server takes time, and another thread, another broker or a fault
may come in between.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from tandemmq.simulator.host import Entry, Host, unreachable
from tandemmq.simulator.kernel import Killed, Process
from tandemmq.simulator.link import Link, NoAnswer
from tandemmq.simulator.server import DEVICE, File, failure
from tandemmq.simulator.steps import Steps
from tandemmq.simulator.threads import SimulatedLock

T = TypeVar("T")

SYNC_SECONDS = 0.001
BLOCK_BYTES = 512


class Status(NamedTuple):
    """Fields that are read from an ``os.stat_result``."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_size: int
    st_mtime: float
    st_nlink: int


class StatVfs(NamedTuple):
    """Fields that are read from an ``os.statvfs_result``."""

    f_frsize: int
    f_blocks: int
    f_bavail: int


class Descriptor(NamedTuple):
    path: str
    file: File


class SimulatedDisk:
    """The ``os`` calls of one simulated process. ``scratch``: its private directory. ``watch`` is called at each
    call."""

    def __init__(self, process: Process, host: Host, scratch: str, watch: Steps) -> None:
        self.host = host
        self.guard = SimulatedLock(process)
        self.held: dict[tuple[int, int], Any] = {}
        self.process = process
        self._server = host.server
        self._watch = watch
        self._scratch = scratch
        self._scratches = 0
        self._descriptors: dict[int, Descriptor] = {}
        self._next = 3

    def _call(
        self, verb: str, path: str, effect: Callable[[], T], cost_seconds: float = 0.0, link: Link | None = None
    ) -> T:
        number = self._watch.before(verb, path)
        if number is not None and verb != "close" and self.host.world.random.random() < 0.5:
            raise failure(number, path)  # otherwise the call takes effect, and then fails
        try:
            result = self._carry(path, effect, cost_seconds, link or self.host.link)
            self.host.fail_if_planned(verb)
            if number is not None:
                raise failure(number, path)
        except OSError:
            self._watch.after(verb, path)
            raise
        self._watch.after(verb, path)
        return result

    def _carry(self, path: str, effect: Callable[[], T], cost_seconds: float, link: Link) -> T:
        try:
            return link.call(self.process, effect, cost_seconds)
        except NoAnswer:
            raise unreachable(path) from None

    def _descriptor(self, fd: int) -> Descriptor:
        if self.process.is_dead:
            raise Killed  # a dying process closes nothing: the kernel does, in ``died``
        found = self._descriptors.get(fd)
        if found is None:
            raise failure(errno.EBADF, f"descriptor {fd}")
        return found

    # ---- files

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        def effect() -> File:
            file = self._server.open(path, flags)
            if self.process.is_dead:
                self._server.closed(file)
            if flags & os.O_CREAT:
                self.host.changed_names(path)
            self.host.revalidate(file)
            if flags & os.O_TRUNC:
                cached = self.host.cached(file)
                cached.data, cached.dirty = None, []
            return file

        file = self._call("open", path, effect)
        self._next += 1
        self._descriptors[self._next] = Descriptor(path, file)
        return self._next

    def close(self, fd: int, /) -> None:
        descriptor = self._descriptor(fd)
        path, file = descriptor
        del self._descriptors[fd]
        if file.lock is self or file.lock is descriptor or self.host.cached(file).dirty:
            # POSIX: closing any descriptor of the file drops the lock; NFS: written data is sent now at the latest.
            def effect() -> None:
                self._server.unlock(file, self)
                self._server.unlock(file, descriptor)
                try:
                    self.host.flush(file, is_stable=False)
                finally:
                    self._server.closed(file)

            self._call("close", path, effect)
        else:
            self._server.closed(file)

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        path, file = self._descriptor(fd)
        data = self.host.cached(file).data
        if data is None:
            data = self._call("pread", path, lambda: self.host.fill(file))
        return bytes(data[offset : offset + length])

    def lseek(self, fd: int, position: int, how: int, /) -> int:
        """Seek in a file: the files have no holes."""
        return position if how == os.SEEK_DATA else len(self._descriptor(fd).file.data)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int, /) -> int:
        path, file = self._descriptor(fd)
        host, server = self.host, self._server
        number = self._watch.before("pwrite", path)
        if number is not None:
            raise failure(number, path)
        host.fail_if_planned("pwrite")
        if host.cached(file).data is None:
            self._call("pread", path, lambda: host.fill(file))
        cached = host.cached(file).data
        known = len(file.data) if cached is None else max(len(cached), len(file.data))
        growth = offset + len(data) - known
        if growth > 0 and growth > server.free:
            raise failure(errno.ENOSPC, path)
        if growth > 0 and server.quota is not None and server.used + growth > server.quota:
            raise failure(errno.EDQUOT, path)
        host.put(file, offset, bytes(data))
        self._watch.wrote(path, bytes(data))
        self._watch.after("pwrite", path)
        return len(data)

    def ftruncate(self, fd: int, length: int, /) -> None:
        path, file = self._descriptor(fd)

        def effect() -> None:
            self.host.flush(file, is_stable=False)
            self._server.truncate(file, length)
            self.host.cached(file).data = None

        self._call("ftruncate", path, effect)

    def fsync(self, fd: int, /) -> None:
        path, file = self._descriptor(fd)
        host = self.host
        number = self._watch.before("fsync", path) or host.take_failure("fsync")

        def effect() -> None:
            if number is not None:
                # The kernel still marks the pages clean: a second sync would succeed without writing them.
                host.cached(file).dirty = []
                host.sees_lost_data = True
                raise failure(number, path)
            host.flush(file, is_stable=True)
            self._server.commit(file)

        self._carry(path, effect, SYNC_SECONDS * (0.5 + host.world.random.random()), host.link)
        self._watch.after("fsync", path)

    fdatasync = fsync

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int, /) -> None:
        if advice == os.POSIX_FADV_DONTNEED:
            self.host.forget_pages(self._descriptor(fd).file)

    # ---- names

    def link(self, source: str, target: str, /) -> None:
        def change() -> None:
            self._server.link(source, target)
            self._watch.linked(target)

        self._change_names("link", target, change)

    def unlink(self, path: str, /) -> None:
        self._change_names("unlink", path, lambda: self._server.unlink(path))

    def rmdir(self, path: str, /) -> None:
        self._change_names("rmdir", path, lambda: self._server.rmdir(path))

    def replace(self, source: str, target: str, /) -> None:
        def effect() -> None:
            self._server.replace(source, target)
            self.host.changed_names(source)
            self.host.names = {
                path: known for path, known in self.host.names.items() if not path.startswith(f"{source}/")
            }

        self._call("replace", target, effect)
        self.host.changed_names(target)

    def _change_names(self, verb: str, path: str, change: Callable[[], None]) -> None:
        is_repeated = verb in ("link", "unlink") and self.host.link.is_repeated()

        def effect() -> None:
            self.host.changed_names(path)
            change()
            if is_repeated:
                change()  # the answer was lost, the request came again: EEXIST or ENOENT for a request that succeeded

        self._call(verb, path, effect)

    def makedirs(self, name: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        def effect() -> None:
            self._server.makedirs(name)
            self.host.changed_names(name)

        self._call("makedirs", name, effect)

    def listdir(self, path: str, /) -> list[str]:
        return [entry.name for entry in self._entries(path)]

    @contextmanager
    def scandir(self, path: str, /) -> Iterator[list[Entry]]:
        yield self._entries(path)

    def _entries(self, path: str) -> list[Entry]:
        host = self.host
        known = host.lists.get(path)
        if known is not None and host.world.now - known[1] < host.attribute_seconds:
            return known[0]

        def effect() -> list[Entry]:
            entries = [Entry(name, file.inode) for name, file in self._server.entries(path).items()]
            if host.attribute_seconds:
                host.lists[path] = entries, host.world.now
            return entries

        return self._call("listdir", path, effect)

    def stat(self, path: str, /) -> Any:
        host = self.host
        file = host.remembered(path)
        if file is None:

            def effect() -> File:
                found = self._server.find(path)
                host.revalidate(found)
                if host.attribute_seconds:
                    host.names[path] = found, host.world.now
                return found

            file = self._call("stat", path, effect)
        return self._status(file)

    def fstat(self, fd: int, /) -> Any:
        return self._status(self._descriptor(fd).file)

    def _status(self, file: File) -> Status:
        cached = self.host.cached(file)
        data = file.data if cached.data is None else cached.data
        kind = stat.S_IFREG if file.entries is None else stat.S_IFDIR
        modified = file.modified + self.host.wall_offset
        return Status(kind | 0o644, file.inode, DEVICE, len(data), modified, file.links)

    def statvfs(self, path: str, /) -> Any:
        server = self._server
        free = self._call("statvfs", path, lambda: server.free)
        return StatVfs(BLOCK_BYTES, server.capacity // BLOCK_BYTES, free // BLOCK_BYTES)

    def touch(self, descriptor: int) -> None:
        path, file = self._descriptor(descriptor)

        def effect() -> None:
            file.modified = self.host.world.now

        self._call("touch", path, effect)

    # ---- locks

    def flock(self, fd: int, operation: int) -> None:
        """Lock an index directory: a descriptor holds the lock, not the process."""
        descriptor = self._descriptor(fd)
        path, file = descriptor
        if not self._call("flock", path, lambda: self._take(file, descriptor)):
            raise failure(errno.EWOULDBLOCK, path)

    def lock(self, descriptor: int) -> bool:
        path, file = self._descriptor(descriptor)
        was_mine = file.lock is self
        is_mine = self._call("lock", path, lambda: self._take(file, self), link=self.host.lock_link)
        if is_mine and not was_mine:
            self._watch.granted()
        return is_mine

    def _take(self, file: File, owner: object) -> bool:
        """Take a lock at the server. The kernel releases what a dead process requested while it lived."""
        return not self.process.is_dead and self._server.lock(file, owner)

    def holder_pid(self, descriptor: int) -> int | None:
        path, file = self._descriptor(descriptor)
        owner = self._call("getlk", path, lambda: file.lock, link=self.host.lock_link)
        return None if owner is None or owner is self else -1

    def wall_ms(self) -> int:
        return int(self.host.wall() * 1000)

    # ---- chance, and private directories

    def urandom(self, size: int, /) -> bytes:
        return self.host.world.random.randbytes(size)

    @contextmanager
    def scratch_directory(self, prefix: str) -> Iterator[str]:
        self._scratches += 1
        path = f"{self._scratch}/{prefix}{self._scratches}"
        self.makedirs(path)
        try:
            yield path
        finally:
            self._server.discard(path)

    # ---- the end of the process

    def died(self) -> None:
        """Close the descriptors of the dead process, and release its locks, as the kernel does. Its writes stay in the
        host."""
        for descriptor in self._descriptors.values():
            self._server.unlock(descriptor.file, self)
            self._server.unlock(descriptor.file, descriptor)
            self._server.closed(descriptor.file)
        self._descriptors = {}
