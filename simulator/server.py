"""A file server in memory: files, names, locks; the content of its disk, and the part that would not survive a power
loss.

Each method takes place at one moment. The server is correct. Errors come from the link to it, the memory of the hosts
(simulator.host), and deliberate faults: locks forgotten or granted twice, no space, a power loss.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.simulator.kernel import World

SECTOR: Final = 512
DEVICE: Final = 42


@dataclass(slots=True, eq=False)
class File:
    """A file, or a directory with ``entries``. ``version`` grows with each change."""

    inode: int
    modified: float
    entries: dict[str, File] | None = None
    data: bytearray = field(default_factory=bytearray)
    version: int = 1
    links: int = 0
    uses: int = 0  # descriptors that keep it, if it outlives its names
    is_forgotten: bool = False
    unstable: dict[int, bytes] = field(default_factory=dict)  # sector -> its present content on the disk
    lock: object = None  # holder of the record lock

    def stable(self, length: int) -> bytes:
        """Return the first ``length`` bytes as they are after a power loss that undoes all unsynced writes."""
        data = self.data[:length]
        for sector, before in self.unstable.items():
            at = sector * SECTOR
            if at < len(data):
                data[at : at + SECTOR] = before[: len(data) - at]
        return bytes(data)


class Server:
    """A volume. ``capacity`` in bytes; ``filler``: bytes of other users.

    ``keeps_open``: a removed file exists while a descriptor is open (POSIX); otherwise its handle is stale (NFS).
    ``is_synchronous``: names are on the disk as soon as they are changed (NFS); otherwise with a sync of the directory.
    """

    def __init__(self, world: World, *, capacity: int, keeps_open: bool, is_synchronous: bool) -> None:
        self.world = world
        self.capacity = capacity
        self.filler = 0
        self.quota: int | None = None  # like ``capacity``, but not visible in the free bytes
        self.keeps_open = keeps_open
        self.is_synchronous = is_synchronous
        self.grants_next_lock = False
        self._next_inode = 100
        self.used = 0  # bytes of all files
        self._undo: list[Callable[[], None]] = []  # undo changes of names that are not on the disk yet
        self.root = self._new({})

    def _new(self, entries: dict[str, File] | None = None) -> File:
        self._next_inode += 1
        return File(self._next_inode, self.world.now, entries)

    # ---- names

    def find(self, path: str) -> File:
        """Return a file or directory. Raises the kernel's OSError."""
        file = self.root
        for name in path.strip("/").split("/"):
            if not name:
                continue
            if file.entries is None:
                raise failure(errno.ENOTDIR, path)
            found = file.entries.get(name)
            if found is None:
                raise failure(errno.ENOENT, path)
            file = found
        return file

    def _place(self, path: str, *, must_be: bool = False) -> tuple[dict[str, File], str, File]:
        parent, name = posixpath.split(path)
        directory = self.find(parent)
        if directory.entries is None:
            raise failure(errno.ENOTDIR, path)
        if must_be and name not in directory.entries:
            raise failure(errno.ENOENT, path)
        return directory.entries, name, directory

    def _set(self, directory: File, name: str, file: File | None) -> File | None:
        """Change a name. Return the file that had it before."""
        assert directory.entries is not None, "names stand in directories"
        before = directory.entries.pop(name, None)
        if file is not None:
            directory.entries[name] = file
            file.links += 1
        if before is not None:
            before.links -= 1
        directory.version += 1
        if not self.is_synchronous:
            self._undo.append(lambda: self._put_back(directory, name, before))
        return before

    def _put_back(self, directory: File, name: str, before: File | None) -> None:
        assert directory.entries is not None, "names stand in directories"
        now = directory.entries.pop(name, None)
        if now is not None:
            now.links -= 1
        if before is not None:
            directory.entries[name] = before
            before.links += 1
            before.is_forgotten = False

    def open(self, path: str, flags: int) -> File:
        if flags & os.O_CREAT:
            entries, name, directory = self._place(path)
            file = entries.get(name)
            if file is not None and flags & os.O_EXCL:
                raise failure(errno.EEXIST, path)
            if file is None:
                file = self._new()
                self._set(directory, name, file)
        else:
            file = self.find(path)
        if flags & os.O_TRUNC:
            self.truncate(file, 0)
        file.uses += 1
        return file

    def closed(self, file: File) -> None:
        """Close one descriptor of the file."""
        file.uses -= 1
        self._forget(file)

    def _forget(self, file: File) -> None:
        if file.links == 0 and (file.uses == 0 or not self.keeps_open) and not file.is_forgotten:
            file.is_forgotten = True
            if file.entries is None:
                self.used -= len(file.data)

    def link(self, source: str, target: str) -> None:
        file = self.find(source)
        entries, name, directory = self._place(target)
        if name in entries:
            raise failure(errno.EEXIST, target)
        self._set(directory, name, file)

    def unlink(self, path: str) -> None:
        _, name, directory = self._place(path, must_be=True)
        gone = self._set(directory, name, None)
        assert gone is not None, "it was there"
        self._forget(gone)

    def rmdir(self, path: str) -> None:
        entries, name, _ = self._place(path, must_be=True)
        if entries[name].entries:
            raise failure(errno.ENOTEMPTY, path)
        self.unlink(path)

    def replace(self, source: str, target: str) -> None:
        entries, name, directory = self._place(source, must_be=True)
        file = entries[name]
        _, target_name, target_directory = self._place(target)
        if target_directory is directory and target_name == name:
            return
        gone = self._set(target_directory, target_name, file)
        self._set(directory, name, None)
        if gone is not None and gone is not file:
            self._forget(gone)

    def makedirs(self, path: str) -> None:
        directory = self.root
        for name in path.strip("/").split("/"):
            assert directory.entries is not None, "directories only"
            if name not in directory.entries:
                self._set(directory, name, self._new({}))
            directory = directory.entries[name]

    def discard(self, path: str) -> None:
        """Remove a directory that has only files, even if they are open."""
        entries, name, _ = self._place(path, must_be=True)
        for file in (entries.pop(name).entries or {}).values():
            file.links -= 1
            self._forget(file)

    def entries(self, path: str) -> dict[str, File]:
        """Return the entries of a directory."""
        entries = self.find(path).entries
        if entries is None:
            raise failure(errno.ENOTDIR, path)
        return entries

    def listdir(self, path: str) -> list[str]:
        return list(self.entries(path))

    def sync_names(self) -> None:
        """Sync the names. Names are journalled in order: with the last, all others are on the disk."""
        self._undo = []

    # ---- content

    @property
    def free(self) -> int:
        return max(0, self.capacity - self.used - self.filler)

    def check_alive(self, file: File) -> None:
        if file.is_forgotten:
            raise failure(errno.ESTALE, f"inode {file.inode}")

    def write(self, file: File, offset: int, data: bytes | bytearray | memoryview, *, is_stable: bool) -> None:
        """Write bytes. ``is_stable``: followed by a sync; otherwise a power loss may still undo the write."""
        self.check_alive(file)
        end = offset + len(data)
        growth = max(0, end - len(file.data))
        if growth > self.free:
            raise failure(errno.ENOSPC, f"inode {file.inode}")
        if self.quota is not None and self.used + growth > self.quota:
            raise failure(errno.EDQUOT, f"inode {file.inode}")
        if not is_stable:
            for sector in range(offset // SECTOR, (end + SECTOR - 1) // SECTOR):
                at = sector * SECTOR
                file.unstable.setdefault(sector, bytes(file.data[at : at + SECTOR]).ljust(SECTOR, b"\0"))
        if offset > len(file.data):
            file.data.extend(bytes(offset - len(file.data)))
        file.data[offset:end] = data
        self.used += growth
        self._changed(file)

    def truncate(self, file: File, length: int) -> None:
        self.check_alive(file)
        self.used += length - len(file.data)
        if length < len(file.data):
            del file.data[length:]
            for sector in [sector for sector in file.unstable if sector * SECTOR >= length]:
                del file.unstable[sector]
        else:
            file.data.extend(bytes(length - len(file.data)))
        self._changed(file)

    def commit(self, file: File) -> None:
        """Sync all that any host wrote to the file."""
        self.check_alive(file)
        file.unstable.clear()
        if file.entries is not None:
            self.sync_names()

    def _changed(self, file: File) -> None:
        file.version += 1
        file.modified = self.world.now

    # ---- locks

    def lock(self, file: File, owner: object) -> bool:
        """Take the record lock, for an owner that is compared by identity."""
        self.check_alive(file)
        if self.grants_next_lock and file.lock is not None and file.lock is not owner:
            self.grants_next_lock = False
            file.lock = owner
        if file.lock is None:
            file.lock = owner
        return file.lock is owner

    def unlock(self, file: File, owner: object) -> None:
        if file.lock is owner:
            file.lock = None

    def unlock_all(self, is_owner: Callable[[Any], bool]) -> None:
        """Forget the locks of all owners that match."""
        for file in self.files():
            if file.lock is not None and is_owner(file.lock):
                file.lock = None

    def files(self) -> list[File]:
        """Return every file that has a name."""
        found: dict[int, File] = {}
        waiting = [self.root]
        while waiting:
            for file in (waiting.pop().entries or {}).values():
                found[file.inode] = file
                if file.entries is not None:
                    waiting.append(file)
        return list(found.values())

    # ---- faults

    def lose_power(self) -> None:
        """Lose the power. Each unsynced sector is lost by chance, and so are some of the last unsynced changes of
        names."""
        chance = self.world.random
        for _ in range(chance.randint(0, len(self._undo)) if self._undo else 0):
            self._undo.pop()()
        self._undo = []
        for file in self.files():
            for sector, before in file.unstable.items():
                at = sector * SECTOR
                if chance.random() < 0.5 and at < len(file.data):
                    file.data[at : at + SECTOR] = before[: len(file.data) - at]
            file.unstable.clear()
            file.lock = None
            file.version += 1
        self.used = sum(len(file.data) for file in self.files() if file.entries is None)


def failure(number: int, what: str) -> OSError:
    """Return the error as the kernel raises it: FileNotFoundError for ENOENT, and so on."""
    return OSError(number, os.strerror(number), what)
