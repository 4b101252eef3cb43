"""The files of one journal directory: db-1.log, db-2.log, ... and the next one, which a broker prepares.

A journal file appears under its name only when it is whole: prepared beside as ``.next-<broker>``, synced, then linked.
link(2) fails when the name exists, on every file system that can be shared. So at most one broker makes db-N.log, and
its appearance is the fence that deposes the former master (docs/formats/journal.md).

Knows nothing of the content of the files except the end record at the start of an empty one.
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
    """Return the number in the name of a journal file; None for any other name. KahaDB pads no zeros."""
    if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
        return None
    digits = name[len(PREFIX) : -len(SUFFIX)]
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(digits)
    return number if str(number) == digits and number <= FILE_ID_LIMIT else None


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A journal file that this process writes. ``identity`` is the identity of the file that it created, and ``fd``
    keeps the file open for writing: while it is open, no other file gets its identity (safety.md 9). The holder closes
    ``fd``."""

    file: int
    fd: int
    identity: Identity


@dataclass(eq=False)
class JournalFiles:
    """Files of a journal directory, which must exist. Any thread may call; ``prepare`` and ``publish`` of one broker
    name one at a time.

    ``make_lock`` makes the lock of each reader and writer of these files, for the threads that share one; it is held
    during disk operations.
    """

    directory: str
    disk: Disk = os
    make_lock: Callable[[], AbstractContextManager[Any]] = threading.Lock

    def __post_init__(self) -> None:
        self.directory = os.fspath(self.directory)
        # A prepared file stays open: the inode number of a deleted file may be reused, that of an open file may not.
        self._prepared: dict[str, tuple[int, Identity]] = {}

    def list(self) -> Sequence[int]:
        """Return the ids of the existing files, ascending. Read from the directory at each call."""
        return sorted(number for name in self.disk.listdir(self.directory) if (number := file_id(name)) is not None)

    def inodes(self) -> dict[int, int]:
        """Return the inode number of each existing file, by id, ascending, from the directory: one call for all files.
        They show whether a name belongs to another file than before."""
        with self.disk.scandir(self.directory) as entries:
            found = {number: entry.inode() for entry in entries if (number := file_id(entry.name)) is not None}
        return dict(sorted(found.items()))

    def path(self, file: int) -> str:
        return f"{self.directory}/{PREFIX}{file}{SUFFIX}"

    def next_path(self, broker: str) -> str:
        if not broker or "/" in broker or "\0" in broker:
            raise ValueError(f"a broker's name is part of a file name: {broker!r} cannot be")
        return f"{self.directory}/{NEXT_PREFIX}{broker}"

    def identity(self, file: int) -> Identity:
        return identity_of(self.disk.stat(self.path(file)))

    def identity_now(self, file: int) -> Identity:
        """Return the identity as the server has it, not as this host caches it."""
        return identity_now(self.disk, self.path(file))

    def size(self, file: int) -> int:
        """Return the physical length; only a scan shows how much of it counts."""
        return self.disk.stat(self.path(file)).st_size

    def exists(self, file: int) -> bool:
        """Return whether the file exists. Any other answer than "there" and "not there" is raised."""
        try:
            self.disk.stat(self.path(file))
        except FileNotFoundError:
            return False
        return True

    def prepare(self, broker: str, length: int, *, has_zeros: bool = True) -> None:
        """Make ``.next-<broker>``: ``length`` bytes that are really written, an end record at 0, synced. Replaces a
        left-over file.

        Zeros are written, not reserved: a sync of a later batch then has no metadata to write. ``has_zeros`` is False
        for a file that is written whole at once: then it has a hole. On return the file can be published. On OSError
        (for example a full disk) it is removed.
        """
        disk = self.disk
        path = self.next_path(broker)
        self.abandon(broker)
        # A left-over file may be a second name of a published file (a crash between link and unlink): never write into
        # it.
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
        """Give the prepared file its name: db-``file``.log. On return the name is durable, and the file is ours.

        Raises FenceTaken when another broker's file has that name. If the name already belongs to the file that we
        prepared (NFS: the reply was lost and the request sent again), that is success. The file after the name is
        compared with the one that this process prepared, so of two brokers with the same name only one continues. In
        any case another publication needs another ``prepare``.
        """
        source = self.next_path(broker)
        _, identity = self._prepared[broker]
        try:
            try:
                self.disk.link(source, self.path(file))  # prove: fence-by-link
            except FileExistsError:
                pass  # the owner is checked next
            fd, status = open_with_status(self.disk, self.path(file), os.O_WRONLY)
            # Two names are expected, this one and the one to be unlinked. A third name means: a thread of a former life
            # that hung between its fence check and its link woke up, and gave our file the name intended for its own.
            # Checked before the unlink, while the look-up is fresh: a host may cache the number of names for a while
            # (FUSE).
            if identity_of(status) != identity or status.st_nlink > 2:  # prove: fence-is-our-file
                self.disk.close(fd)
                raise FenceTaken(file)
        except (FileNotFoundError, NotRegular) as error:  # the prepared file, or its new name, was removed
            raise FenceTaken(file) from error
        finally:
            self.abandon(broker)  # before the unlink: NFS keeps an open file under a name of its own
        try:
            unlink_if_there(self.disk, source)
            self.sync_directory()  # prove: fence-name-durable
        except BaseException:
            self.disk.close(fd)
            raise
        return OwnFile(file, fd, identity)

    def opened(self, file: int) -> OwnFile:
        """Open db-``file``.log, to continue it where no other process can be writing. Raises OSError."""
        fd, status = open_with_status(self.disk, self.path(file), os.O_WRONLY)
        return OwnFile(file, fd, identity_of(status))

    def abandon(self, broker: str) -> None:
        """Forget the prepared file, if there is one. The file stays and is replaced later: a deposed broker removes
        nothing."""
        prepared = self._prepared.pop(broker, None)
        if prepared is not None:
            self.disk.close(prepared[0])

    def remove(self, files: Iterable[int]) -> None:
        """Delete files, oldest first. After return no power loss brings them back."""
        for file in sorted(files):  # prove: removal-oldest-first "sorted(files)" -> "sorted(files, reverse=True)"
            unlink_if_there(self.disk, self.path(file))
        self.sync_directory()  # prove: removal-durable

    def sync(self, file: int) -> None:
        """Make durable what any process wrote to the file, also one that died before its own sync."""
        fd = open_regular(self.disk, self.path(file), os.O_RDWR)
        try:
            self.disk.fsync(fd)  # prove: whole-file-sync
        finally:
            self.disk.close(fd)

    def sync_directory(self) -> None:
        sync_directory(self.disk, self.directory)
