"""A node's own copy of the journal while another node writes the journal: its present content, the cut, and the bytes
received.

For one thread. This module writes the same bytes as the master. The standby that follows this directory (store.standby)
reads only the final part, so a cut never removes records that the standby has applied (docs/formats/replication.md).
"""

# proofs: journal-copy

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from tandemmq.broker.replication.quorum import BEFORE_ALL, Lineage, Position
from tandemmq.disk import (
    Bytes,
    Identity,
    identity_of,
    open_regular,
    read_fully,
    sync_directory,
    unlink_if_there,
    write_fully,
)
from tandemmq.journal.errors import FenceTaken, JournalCorrupt
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import END_RECORD
from tandemmq.journal.scan import scan
from tandemmq.modes import NEW_FILE
from tandemmq.store.records.headers import SetHeader
from tandemmq.store.recovery.header_reader import HeaderReader
from tandemmq.store.threads import Threads

QUARANTINE = "quarantine"
# Suffix of a file before the common point until it is complete, so that an incomplete file is never used.
PART_SUFFIX = ".part"
# Number of bytes that are read at once when cut-off bytes are copied.
CHUNK_BYTES = 1 << 20
# A file that arrives in pieces is synced in parts of this size while later pieces are written, because one sync of the
# whole file would delay other syncs on this disk.
UNSYNCED_BYTES_MAX = 4 << 20
# Owner of the next, prepared file. Masters prepare files under the names of brokers.
PREPARER = "replica"
BULK_PREPARER = "replica-bulk"


class Forked(Exception):
    """The master's journal differs from this node's before a point that is final: a node violated the rules."""


class Gap(Exception):
    """Received bytes do not follow the bytes before them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Content of a journal directory. ``lineage`` ends with the newest epoch and its present end; ``header`` is the
    set's part of the newest header (None: no such part). ``damage`` is the first damage found: the position is before
    it."""

    position: Position = BEFORE_ALL
    lineage: Lineage = ()
    header: SetHeader | None = None
    damage: JournalCorrupt | None = None


class JournalCopy:
    """The journal copy of this node. ``standing`` is the last state found or written; it is durable up to ``synced``, a
    (file, end).

    Passes on the volume's OSError: call ``scan`` again after it.
    """

    def __init__(self, files: JournalFiles, threads: Threads) -> None:
        self.standing = Standing()
        self.is_forgotten = False
        self.synced = (0, 0)
        self.lacking: set[int] = set()  # files before the common point that the master sends first
        self._files = files
        self._threads = threads
        self._headers = HeaderReader(files)
        self._background = threads.executor(1, "tandemmq-prepare")
        self._syncer = threads.executor(1, "tandemmq-copy-sync")
        self._syncing: Future[None] | None = None  # sync of the open file's bytes before the last pieces
        self._prepared: Future[None] | None = None
        self._length = 0
        self._file = 0
        self._fd = -1
        self._path = ""  # of the open file
        self._identity: Identity = (0, 0)
        self._there: set[int] = set()  # files that existed when a master was followed, or were made since
        self._dirty: set[int] = set()
        self._unsynced_bytes = 0
        self._began = (0, 0)  # the common point
        self._filled = (0, 0)  # end of the bytes that came without a gap

    @property
    def position(self) -> Position:
        return self.standing.position

    # ---- present content

    def scan(self) -> Standing:
        """Read the present content, and make it durable: a process that died may have left it in memory only."""
        self._close()
        self.is_forgotten = False
        self.lacking.clear()
        self._files.sync_directory()  # prove: own-names-are-synced-before-they-count
        self._headers = reader = HeaderReader(self._files)
        # Files whose end is in no header are synced, and then read from the disk: after a failed sync the kernel shows
        # more than is on the disk, and a later sync succeeds.
        # prove: own-tail-is-synced-before-it-is-claimed "refresh_from_disk" -> "refresh"
        reader.refresh_from_disk()
        history = reader.epoch_history
        file = next(
            (each for each in reversed(reader.ids) if history.ends.get(each) != 0 and reader.has_batches(each)), 0
        )
        end = 0
        damages: list[JournalCorrupt] = []
        if file:
            for batch in scan(self._files, file, end=history.ends.get(file), on_corrupt=damages.append):
                if damages:
                    break
                end = batch.end
        damage = damages[0] if damages else self._damage_behind(file)
        header = history.headers.get(file)
        newest = history.headers[max(history.headers)].set if history.headers else None
        epoch = header.epoch if header is not None and header.set is not None else 0
        position = Position(epoch, file, end) if file else BEFORE_ALL
        former = () if newest is None else newest.lineage
        lineage = (*(each for each in former if each[0] < epoch), (epoch, file, end)) if file else ()
        self.standing = Standing(position, lineage, newest, damage)
        self.synced = (file, end)
        return self.standing

    def _damage_behind(self, file: int) -> JournalCorrupt | None:
        """Return the damage of a later file whose first batch is bad but which has good batches, so it is not a torn
        write."""
        for later in (each for each in self._files.list() if each > file):
            damages: list[JournalCorrupt] = []
            for batch in scan(self._files, later, on_corrupt=damages.append):
                return JournalCorrupt(later, 0, batch.offset, "its first batch is bad")
            if damages:
                return damages[0]
        return None

    def end_tail(self) -> None:
        """Remove all bytes and files after the position; durable on return."""
        _, file, end = self.position
        if file:
            self._close()
            if self._files.exists(file):  # unless the master gave it up during the transfer
                self._cut(file, end)  # prove: own-torn-tail-is-cut
            for later in reversed(self._files.list()):
                if later > file:
                    self._files.remove([later])
            self.synced = (file, end)

    def forget(self) -> None:
        """Forget the state after a failure: the content is unknown until ``scan``."""
        self._close()
        self.is_forgotten = True

    # ---- following

    def is_forked(self, common: tuple[int, int], final: tuple[int, int]) -> bool:
        """Return whether the master's journal differs from this one before the final place of this node. False if the
        file of the final place was given up and removed: then this node is further back than before, but lacks
        nothing."""
        return common < final and final[0] in self._files.list()

    def begin(self, common: tuple[int, int], files: Collection[int], lacking: Collection[int]) -> None:
        """Remove bytes that the master does not have: first those after ``common``, newest first, then files before it
        that are not among ``files``, oldest first. Durable on return; the removed bytes after ``common`` are kept in
        ``quarantine/``. The master sends the files ``lacking`` first."""
        self._close()
        common_file, common_end = common
        there = self._files.list()
        position = self.position
        if position[1:] > common or self.standing.damage is not None:
            self._set_aside([file for file in there if file >= max(common_file, 1)], common)
        for file in reversed(there):
            if file > common_file:
                self._files.remove([file])  # prove: cut-newest-first-each-synced
        if common_file in there:  # also a torn batch after the position, because the next bytes may not cover it
            self._cut(common_file, common_end)  # prove: nothing-stands-behind-the-common-point
        for file in there:
            if file <= common_file and file not in files:
                self._files.remove([file])  # prove: delete-oldest-first-each-synced
        self.lacking = set(lacking)
        self._there = set(self._files.list())
        self._began = self._filled = common
        epoch = next((each[0] for each in self.standing.lineage if each[1:] >= common), 0)
        kept = tuple(each for each in self.standing.lineage if each[0] < epoch)
        cut = Position(epoch, *common) if common_file else BEFORE_ALL
        lineage = (*kept, (epoch, *common)) if common_file else ()
        self._headers = HeaderReader(self._files)
        self.standing = Standing(cut, lineage, self._newest_set())
        self.synced = common

    def _newest_set(self) -> SetHeader | None:
        self._headers.refresh()
        headers = self._headers.epoch_history.headers
        return headers[max(headers)].set if headers else None

    def _set_aside(self, files: Sequence[int], common: tuple[int, int]) -> None:
        """Copy the bytes that are cut off, for the operator. They were never confirmed to a client."""
        disk = self._files.disk
        directory = os.path.join(self._files.directory, QUARANTINE)
        disk.makedirs(directory, exist_ok=True)
        for file in files:
            start = common[1] if file == common[0] else 0
            source = open_regular(disk, self._files.path(file), os.O_RDONLY)
            try:
                path = os.path.join(directory, f"db-{file}.{self.position.epoch}.{start}.cut")
                unlink_if_there(disk, path)
                target = open_regular(disk, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, NEW_FILE)
                try:
                    offset = start
                    while chunk := read_fully(disk, source, CHUNK_BYTES, offset):
                        write_fully(disk, target, chunk, offset - start)
                        offset += len(chunk)
                    disk.fsync(target)
                finally:
                    disk.close(target)
            finally:
                disk.close(source)
        sync_directory(disk, directory)

    def _cut(self, file: int, end: int) -> None:
        disk = self._files.disk
        fd = open_regular(disk, self._files.path(file), os.O_RDWR)
        try:
            length = disk.fstat(fd).st_size
            disk.ftruncate(fd, end)
            disk.ftruncate(fd, max(length, end + len(END_RECORD)))
            write_fully(disk, fd, END_RECORD, end)
            disk.fsync(fd)  # prove: cut-is-synced
        finally:
            disk.close(fd)

    # ---- bytes

    def write(self, file: int, offset: int, data: Bytes, end: int, length: int) -> None:
        """Write the master's bytes at the same place; durable after ``sync``. ``end``: where its batch ends, 0 within a
        batch; ``length``: length of the master's file. Raises Gap for bytes that do not follow those before."""
        is_next = offset <= self._filled[1] if file == self._filled[0] else offset == 0
        if not is_next and not (file == self._began[0] and offset <= self._began[1]):
            raise Gap(f"db-{file}.log from {offset} on")  # prove: no-gap-is-written
        if file != self._file:
            self._open(file, length, is_whole=not end)
        disk = self._files.disk
        self._dirty.add(file)
        write_fully(disk, self._fd, data, offset)
        self._filled = file, offset + len(data)
        self._unsynced_bytes += len(data)
        if not end:
            # Starts to write the bytes to the disk and does not wait: the later sync finds little left to do.
            disk.posix_fadvise(self._fd, offset, len(data), os.POSIX_FADV_DONTNEED)
            if self._unsynced_bytes >= UNSYNCED_BYTES_MAX:
                self._await_sync()
                self._syncing = self._syncer.submit(disk.fdatasync, self._fd)
                self._unsynced_bytes = 0
        if end and (file, end) > self.position[1:]:
            self._reach(file, end)

    def _reach(self, file: int, end: int) -> None:
        standing = self.standing
        epoch = standing.position.epoch
        if file != standing.position.file:
            self._headers.refresh()
            header = self._headers.epoch_history.headers.get(file)
            if header is not None:
                if header.set is not None:
                    epoch = header.epoch
                    standing = replace(standing, header=header.set)
                self._prepare_next(header.length)
        position = Position(epoch, file, end)
        former = standing.lineage[:-1] if standing.lineage and standing.lineage[-1][0] == epoch else standing.lineage
        self.standing = replace(standing, position=position, lineage=(*former, (epoch, file, end)))

    def sync(self) -> None:
        """Sync all that was written; durable on return."""
        self._sync_file()
        self.synced = self.position[1:]

    def _ended_sync(self) -> Future[None] | None:
        """Wait for the sync in the background, and return it; it uses the descriptor until then."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            self._threads.wait([syncing])
        return syncing

    def _await_sync(self) -> None:
        syncing = self._ended_sync()
        if syncing is not None:
            syncing.result()  # prove: failed-sync-beside-is-a-failure

    def _sync_file(self) -> None:
        self._await_sync()  # the kernel reports an error to one sync of a descriptor only: the next sync would succeed
        if self._file in self._dirty:
            self._files.disk.fdatasync(self._fd)  # prove: have-disk-is-synced
            self._check_name()  # prove: synced-under-its-name
            self._dirty.discard(self._file)
        self._unsynced_bytes = 0

    def _check_name(self) -> None:
        """Check that the synced file still has its name. If another file has the name, or no file, the sync counts for
        nothing: a start would not find it."""
        if identity_of(self._files.disk.stat(self._path)) != self._identity:
            raise _replaced(self._path)

    def sealed(self, file: int, end: int | None) -> None:
        """Seal ``file``, which was written up to ``end``; None: the master gave it up, and its bytes here are removed.
        Raises Gap if its last bytes are missing."""
        if end is None:
            self._remove_skipped(file)
        elif file == self._file:
            if self._filled < (file, end):
                raise Gap(f"db-{file}.log up to {end}")  # prove: sealed-where-it-was-filled
            write_fully(self._files.disk, self._fd, END_RECORD, end)
            self._dirty.add(file)
            self.sync()
            if file in self.lacking:  # prove: lacking-file-is-whole-under-its-name
                self._files.disk.replace(self._part(file), self._files.path(file))
                self._files.sync_directory()
                self._there.add(file)
                self._close()
        self.lacking.discard(file)

    def _remove_skipped(self, file: int) -> None:
        """Remove a file that lacks its end, and the files after it: a later reader would report it as damaged."""
        self.sync()
        if file == self._file:
            self._close()
        if file in self.lacking:
            unlink_if_there(self._files.disk, self._part(file))
        elif self._files.exists(file):
            self._files.remove([file])  # prove: skipped-file-goes
        self._there.discard(file)

    def _open(self, file: int, length: int, *, is_whole: bool) -> None:
        """Open ``file`` for writing. ``is_whole``: the master sends the whole file in pieces."""
        self.sync()  # prove: a-file-is-synced-before-the-next
        self._close()
        disk = self._files.disk
        if file in self.lacking:
            path = self._part(file)
            unlink_if_there(disk, path)
            self._fd = open_regular(disk, path, os.O_RDWR | os.O_CREAT | os.O_EXCL, NEW_FILE)
            disk.ftruncate(self._fd, length)
        else:
            path = self._files.path(file)
            # A file that another process made is never overwritten.
            # prove: only-own-files-are-written "file in self._there" -> "self._files.exists(file)"
            is_ours = file in self._there
            self._fd = open_regular(disk, path, os.O_RDWR) if is_ours else self._made(file, length, is_whole=is_whole)
        self._file, self._path, self._identity = file, path, identity_of(disk.fstat(self._fd))

    def _part(self, file: int) -> str:
        return self._files.path(file) + PART_SUFFIX

    def _made(self, file: int, length: int, *, is_whole: bool) -> int:
        """Make a new file, and return its descriptor, open for writing."""
        preparer = BULK_PREPARER if is_whole else PREPARER
        prepared = None
        if not is_whole:
            prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._threads.wait([prepared])
        if prepared is None or length != self._length or prepared.exception() is not None:
            self._files.prepare(preparer, length, has_zeros=not is_whole)  # zeros would be overwritten at once
        try:
            own = self._files.publish(preparer, file)
        except FenceTaken as error:
            raise _replaced(self._files.path(file)) from error
        self._there.add(file)
        return own.fd

    def _prepare_next(self, length: int) -> None:
        """Prepare the next file in advance, because writing a whole file of zeros takes time."""
        if self._prepared is None and length:
            self._length = length
            self._prepared = self._background.submit(self._files.prepare, PREPARER, length)

    def _close(self) -> None:
        self._ended_sync()
        if self._fd >= 0:
            self._files.disk.close(self._fd)
        self._file, self._fd = 0, -1
        self._dirty.clear()

    def close(self) -> None:
        """Close the open files."""
        self._close()
        self._background.shutdown(wait=True)
        self._syncer.shutdown(wait=True)
        for preparer in (PREPARER, BULK_PREPARER):
            self._files.abandon(preparer)


def _replaced(path: str) -> OSError:
    return OSError(errno.ESTALE, "another process has made or removed it", path)
