"""The one writer of the journal's last file.

    append   one write of a whole batch, end record included       readable, not durable
    sync     fdatasync                                             durable, not yet promised to anyone
    look     is there a successor? is my file still mine?          now it may be promised
    rotate   sync, look, publish the next file, look again         the same fence as a promotion

The orders matter: a successor makes its file appear *before* it reads ours. If it is absent when we look, after our
sync, then its reading comes after our sync, and our batch counts (docs/formats/journal.md, "Why the look is enough").

One thread owns a writer; only ``prepare_next`` may be called from another. Failure and deposition are final:
every later call raises the same again. No sync is ever repeated, since after a failed one the kernel may have
dropped the pages it could not write and report success for nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import NoReturn

from journal.errors import Deposed, FenceTaken, JournalFailed
from journal.files import Identity, JournalFiles, identity_of
from journal.format import (
    END_RECORD_SIZE,
    FILE_LENGTH_DEFAULT,
    FILE_LENGTH_LIMIT,
    Location,
    batch_checksum,
    encode_batch,
    location,
)
from tandemmq.disk import open_with_status, write_fully


class JournalWriter:
    """``file``, ``offset``: where the next batch begins. ``checksum``: that of the batch that ends there, 0 if none."""

    __slots__ = (
        "_broker",
        "_failure",
        "_farewell",
        "_fd",
        "_file_length_max",
        "_files",
        "_identity",
        "_is_dirty",
        "_is_prepared",
        "_next_path",
        "_origin",
        "_preparing",
        "checksum",
        "file",
        "offset",
    )

    def __init__(
        self,
        files: JournalFiles,
        broker: str,
        file: int,
        offset: int = 0,
        *,
        checksum: int = 0,
        file_length_max: int = FILE_LENGTH_DEFAULT,
    ) -> None:
        """Go on writing db-``file``.log at ``offset``, the end of its last good batch. Raises OSError.

        Whoever opens a writer owns the fence: it published this file itself, or nobody else can be writing.
        """
        self._files = files
        self._broker = broker
        self._file_length_max = file_length_max
        self._failure: tuple[str, OSError] | str | None = None
        self._preparing = files.make_lock()
        self._is_prepared = False
        self._is_dirty = False
        # The former file, its end and what is to stand behind it once the header of this one is durable
        self._farewell: tuple[int, int, bytes] | None = None
        self.offset = offset
        self.checksum = checksum
        self._fd, self._identity = self._open(file)
        self._take(file)

    @property
    def position(self) -> tuple[int, int]:
        return self.file, self.offset

    @property
    def identity(self) -> Identity:
        return self._identity

    def append(self, payloads: Iterable[bytes]) -> list[Location]:
        """Write one batch with a record for each payload, at least one; where the records are. Not durable yet.

        Raises JournalFailed; nothing is then known of what is on disk, and the batch may be found by a later scan.
        """
        if self._failure is not None:  # prove: no-append-after-failure
            self._refuse()
        offset = self.offset
        batch, locations = encode_batch(payloads, self._origin + offset)
        end = offset + len(batch) - END_RECORD_SIZE
        assert end <= FILE_LENGTH_LIMIT - END_RECORD_SIZE, "a journal file stays below 2 GiB"
        self._is_dirty = True  # prove: append-makes-dirty
        try:
            write_fully(self._files.disk, self._fd, batch, offset)
        except OSError as error:
            self._fail("write", error)
        self.offset = end
        self.checksum = batch_checksum(batch)
        return locations

    def sync(self) -> None:
        """On return all that was appended is durable. Not to be promised before the ``look`` that follows."""
        if self._failure is not None:  # prove: no-sync-after-failure
            self._refuse()
        try:  # prove: header-sync-before-farewell order farewell-after-sync
            self._files.disk.fdatasync(self._fd)  # prove: batch-sync
        except OSError as error:
            self._fail("sync", error)
        self._is_dirty = False
        if self._farewell is not None:  # prove: farewell-after-sync
            self._say_farewell()

    def look(self) -> None:
        """Raises Deposed when somebody made the file after mine, or mine lost its name: asked in this order.

        What was synced before this call may be promised when it returns, and only that.
        """
        if self._failure is not None:  # prove: no-look-after-failure
            self._refuse()
        stat = self._files.disk.stat
        try:  # prove: successor-before-own-file order look-own-file
            stat(self._next_path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._fail("look for a successor", error)  # prove: look-failed-is-no-answer
        else:
            self._depose(f"db-{self.file + 1}.log exists")  # prove: look-for-successor
        self._look_at_own()  # prove: look-own-file

    def is_full(self, payload_bytes: int) -> bool:
        """Should a batch with so many bytes of records go to a new file?

        KahaDB's test: the limit is soft, a batch is never split, and one that is longer than a file gets its own.
        """
        return self.offset + payload_bytes >= self._file_length_max

    def prepare_next(self) -> None:
        """Make the file that the next rotation will publish, unless it is there. May run in another thread.

        Raises OSError (a full disk, say), which harms nothing: the rotation will try again.
        """
        with self._preparing:
            if not self._is_prepared:
                self._files.prepare(self._broker, self._file_length_max)
                self._is_prepared = True

    def rotate(self, header: bytes, farewell: bytes | None = None) -> None:
        """End this file and go on in the next one, whose first batch is ``header``. Not durable until ``sync``.

        The old file is synced, whatever was synced before, and looked at; then the next appears; then it is looked
        again, because this process may have slept between: then Deposed, and the file just made stays empty.

        ``farewell`` is written as a batch of its own behind the end of the old file by the next ``sync``, when the
        header is durable. Who knows the header never reads it; who finds it counting knows that a file is lost.
        """
        if self._is_dirty:
            self.sync()  # prove: rotation-syncs-former
        self.look()  # prove: rotation-looks-first
        following = self.file + 1
        files = self._files
        try:
            self.prepare_next()
            with self._preparing:
                self._is_prepared = False
                published = files.publish(self._broker, following)
            highest = files.list()[-1:]
        except FenceTaken:
            self._depose(f"db-{following}.log was made by somebody else")
        except OSError as error:
            self._fail("rotate", error)
        if highest and highest[0] > following:
            self._depose(f"db-{highest[0]}.log exists")  # prove: rotation-second-listing
        # The first file of a successor's epoch stays until every file before it is gone (safety of reclaiming): a
        # successor whose files came and went while this process slept took ours away too.
        self._look_at_own()  # prove: rotation-own-file
        try:
            fd, identity = self._open(following)
            ended, self._fd, self._identity = self._fd, fd, identity
            if farewell is None:
                self._files.disk.close(ended)
            else:
                self._farewell = ended, self.offset, farewell
        except OSError as error:
            self._fail("rotate", error)
        self.offset = 0
        self.checksum = 0
        self._take(following)
        if identity != published:  # prove: rotation-file-is-published
            self._depose("the file just made was replaced")
        self.append((header,))

    def close(self) -> None:
        """Let go of the file; nothing is written or synced, and no other call may follow."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        if self._failure is None:
            self._failure = ("use a closed writer", OSError(errno.EBADF, os.strerror(errno.EBADF)))
        try:
            if self._farewell is not None:
                self._files.disk.close(self._farewell[0])
            self._files.disk.close(fd)
            self._files.abandon(self._broker)  # without waiting for a preparation that a dead volume may hold up
        except OSError:
            pass  # whatever was promised had been synced

    def _say_farewell(self) -> None:
        assert self._farewell is not None, "a rotation left something to say"
        (fd, offset, payload), self._farewell = self._farewell, None
        disk = self._files.disk
        try:
            try:
                write_fully(disk, fd, encode_batch((payload,))[0], offset)
                disk.fdatasync(fd)  # prove: farewell-sync
            finally:
                disk.close(fd)
        except OSError as error:
            self._fail("end the former file", error)

    def _open(self, file: int) -> tuple[int, Identity]:
        fd, status = open_with_status(self._files.disk, self._files.path(file), os.O_WRONLY)
        return fd, identity_of(status)

    def _take(self, file: int) -> None:
        self.file = file
        self._origin = location(file, 0)
        self._next_path = self._files.path(file + 1)

    def _look_at_own(self) -> None:
        try:
            identity = self._files.identity_now(self.file)
        except FileNotFoundError:
            self._depose("the file lost its name")  # prove: own-file-name-gone
        except OSError as error:
            self._fail("look at its own file", error)  # prove: own-file-failed-is-no-answer
        if identity != self._identity:  # prove: own-file-same-identity
            self._depose("another file has its name")

    def _fail(self, doing: str, error: OSError) -> NoReturn:
        self._failure = (doing, error)  # prove: failure-is-final
        raise JournalFailed(doing, error) from error

    def _depose(self, reason: str) -> NoReturn:
        self._failure = reason  # prove: deposition-is-final
        raise Deposed(self.file, reason)

    def _refuse(self) -> NoReturn:
        failure = self._failure
        if isinstance(failure, tuple):
            raise JournalFailed(*failure) from failure[1]
        raise Deposed(self.file, str(failure))
