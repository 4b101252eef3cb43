"""Files of one journal directory: db-1.log, db-2.log, ..., and the next file, which a broker prepares.

A journal file gets its name only when it is complete: it is prepared as ``.next-<broker>``, synced, then linked.
link(2) fails if the name exists, on every file system that can be shared. So at most one broker makes db-N.log, and
the existence of db-N.log is the fence that deposes the former master (docs/formats/journal.md).

This module writes no content except the end record at the start of an empty file.
"""

# proofs: journal

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tandemmq.disk import (
    Disk,
    Identity,
    NotRegular,
    identity_now,
    identity_of,
    open_regular,
    open_with_status,
    sync_directory,
    unlink_if_there,
    write_fully,
)
from tandemmq.journal.errors import FenceTaken
from tandemmq.journal.format import END_RECORD, FILE_ID_LIMIT
from tandemmq.modes import NEW_FILE

PREFIX = "db-"
SUFFIX = ".log"
NEXT_PREFIX = ".next-"
ZEROS_CHUNK_BYTES = 1024 * 1024


def file_id(name: str) -> int | None:
    """Return the number in the name of a journal file, or None for any other name. As in KahaDB, the number has no
    leading zeros."""
    if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
        return None
    digits = name[len(PREFIX) : -len(SUFFIX)]
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(digits)
    return number if str(number) == digits and number <= FILE_ID_LIMIT else None


@dataclass(frozen=True, slots=True)
class OwnFile:
    """Journal file that this process writes. ``identity`` is the identity (device, inode) of the file that this process
    created. ``fd`` is open for writing: no other file can get the same identity while it is open. The holder closes
    ``fd``."""

    file: int
    fd: int
    identity: Identity


@dataclass(eq=False)
class JournalFiles:
    """Files of an existing journal directory. Any thread may call a method; for one broker name, ``prepare`` and
    ``publish`` may not run at the same time. Methods raise OSError.

    ``make_lock`` makes the lock that each reader and each writer of these files uses between its threads. The lock is
    held during disk operations.
    """

    directory: str
    disk: Disk = os
    make_lock: Callable[[], AbstractContextManager[Any]] = threading.Lock

    def __post_init__(self) -> None:
        self.directory = os.fspath(self.directory)
        # A prepared file stays open, so that its inode number is not reused if another process removes the file.
        self._prepared: dict[str, tuple[int, Identity]] = {}

    def list(self) -> Sequence[int]:
        """Return the ids of the existing files, ascending. Read from the directory at each call."""
        return sorted(number for name in self.disk.listdir(self.directory) if (number := file_id(name)) is not None)

    def inodes(self) -> dict[int, int]:
        """Return {id: inode number} of the existing files, ascending by id, from one read of the directory. A changed
        inode number shows that a name now belongs to another file."""
        with self.disk.scandir(self.directory) as entries:
            found = {number: entry.inode() for entry in entries if (number := file_id(entry.name)) is not None}
        return dict(sorted(found.items()))

    def path(self, file: int) -> str:
        return f"{self.directory}/{PREFIX}{file}{SUFFIX}"

    def next_path(self, broker: str) -> str:
        if not broker or "/" in broker or "\0" in broker:
            raise ValueError(f"the broker's name {broker!r} cannot be part of a file name")
        return f"{self.directory}/{NEXT_PREFIX}{broker}"

    def identity(self, file: int) -> Identity:
        return identity_of(self.disk.stat(self.path(file)))

    def identity_now(self, file: int) -> Identity:
        """Return the identity, fetched from the file server, not from the cache of this host."""
        return identity_now(self.disk, self.path(file))

    def size(self, file: int) -> int:
        """Return the length of the file in bytes. Only a scan finds the end of its batches."""
        return self.disk.stat(self.path(file)).st_size

    def exists(self, file: int) -> bool:
        """Return whether the file exists. Raises OSError if that is unknown."""
        try:
            self.disk.stat(self.path(file))
        except FileNotFoundError:
            return False
        return True

    def prepare(self, broker: str, length: int, *, has_zeros: bool = True) -> None:
        """Make ``.next-<broker>``: ``length`` bytes with an end record at offset 0, durable on return. A file of this
        name from before is replaced.

        With ``has_zeros`` the rest is filled with zeros, so that the sync of a later batch has no metadata to write.
        Without, the file has a hole. On return the file can be published. On OSError (for example a full disk) it is
        removed.
        """
        disk = self.disk
        path = self.next_path(broker)
        self.abandon(broker)
        # An existing file may be a second name of a published file, after a crash between link and unlink. So it is
        # removed, not overwritten.
        unlink_if_there(self.disk, path)
        fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE)
        try:
            if has_zeros:
                zeros = bytes(min(ZEROS_CHUNK_BYTES, length))
                for offset in range(0, length, ZEROS_CHUNK_BYTES):
                    write_fully(disk, fd, memoryview(zeros)[: length - offset], offset)
            else:
                disk.ftruncate(fd, length)
            write_fully(disk, fd, END_RECORD, 0)
            disk.fsync(fd)  # prove: prepared-file-sync
            identity = identity_of(disk.fstat(fd))
        except OSError as error:
            disk.close(fd)
            unlink_if_there(self.disk, path)  # a full disk gets its space back
            raise OSError(error.errno, error.strerror, path) from error
        self._prepared[broker] = fd, identity

    def publish(self, broker: str, file: int) -> OwnFile:
        """Link the prepared file as db-``file``.log and return it. On return the name is durable.

        Raises FenceTaken if another broker's file has that name. If the name already belongs to the prepared file (on
        NFS: the reply was lost, and the request was sent again), the call succeeds. The identity of the named file is
        compared with that of the file that this process prepared, so of two brokers with the same name only one
        continues. The next call needs another ``prepare``, also after an error.
        """
        source = self.next_path(broker)
        _, identity = self._prepared[broker]
        try:
            try:
                self.disk.link(source, self.path(file))  # prove: fence-by-link
            except FileExistsError:
                pass  # the identity of that file is checked next
            fd, status = open_with_status(self.disk, self.path(file), os.O_WRONLY)
            # The file should have two names: the new one, and the one to be unlinked. A third name was made by a thread
            # of a former life of this broker that hung between its fence check and its link: it linked our prepared
            # file instead of its own. The count is checked before the unlink, because it has just been read: a host may
            # cache it (FUSE).
            if identity_of(status) != identity or status.st_nlink > 2:  # prove: fence-is-our-file
                self.disk.close(fd)
                raise FenceTaken(file)
        except (FileNotFoundError, NotRegular) as error:  # the prepared file, or its new name, was removed
            raise FenceTaken(file) from error
        finally:
            self.abandon(broker)  # closed before the unlink: NFS would rename a file that is open
        try:
            unlink_if_there(self.disk, source)
            self.sync_directory()  # prove: fence-name-durable
        except BaseException:
            self.disk.close(fd)
            raise
        return OwnFile(file, fd, identity)

    def opened(self, file: int) -> OwnFile:
        """Open db-``file``.log to continue writing it. The caller ensures that no other process writes it."""
        fd, status = open_with_status(self.disk, self.path(file), os.O_WRONLY)
        return OwnFile(file, fd, identity_of(status))

    def abandon(self, broker: str) -> None:
        """Close the prepared file, if there is one. It is not removed, because a deposed broker may remove nothing; the
        next ``prepare`` replaces it."""
        prepared = self._prepared.pop(broker, None)
        if prepared is not None:
            self.disk.close(prepared[0])

    def remove(self, files: Iterable[int]) -> None:
        """Delete files, oldest first; durable on return. Files that do not exist are skipped."""
        for file in sorted(files):  # prove: removal-oldest-first "sorted(files)" -> "sorted(files, reverse=True)"
            unlink_if_there(self.disk, self.path(file))
        self.sync_directory()  # prove: removal-durable

    def sync(self, file: int) -> None:
        """Make the whole file durable, also bytes of a process that died before its sync."""
        fd = open_regular(self.disk, self.path(file), os.O_RDWR)
        try:
            self.disk.fsync(fd)  # prove: whole-file-sync
        finally:
            self.disk.close(fd)

    def sync_directory(self) -> None:
        sync_directory(self.disk, self.directory)
