"""The writer of the journal's last file; there is only one.

    append       one write of a whole batch, end record included        readable, not durable
    sync         fdatasync                                              durable, no receipt yet
    check_fence  is there a successor? is our file still ours?          receipts may be sent
    commit       these three as one step of the disk, if that was compiled
    serve        such steps, one after the other, for batches of another thread
    rotate       sync, check, publish the next file, check again        the same fence as a promotion

The orders matter: a successor makes its file appear *before* it reads ours. If it is absent when we check, after our
sync, then its reading comes after our sync, and our batch counts (docs/formats/journal.md).

One thread owns a writer; only ``prepare_next`` may be called from another. Failure and deposition are final: every
later call raises the same error again. No sync is ever repeated: after a failed sync the kernel may have dropped the
pages that it could not write, and report success without writing them.
"""

# proofs: journal

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tandemmq.disk import Identity, not_opened, write_fully
from tandemmq.journal.errors import Deposed, FenceTaken, JournalFailed
from tandemmq.journal.files import JournalFiles, OwnFile
from tandemmq.journal.format import (
    END_RECORD_SIZE,
    FILE_LENGTH_DEFAULT,
    FILE_LENGTH_LIMIT,
    Location,
    batch_checksum,
    encode_batch,
    location,
)

try:
    from tandemmq.journal import native
except ImportError:  # not compiled
    native = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from tandemmq.journal.native import CommitQueue

# Called with each batch after it was written and before it is synced: file, offset, its bytes with the end record, and
# the start of the next batch. The bytes are those that were written, and do not change.
OnWritten = Callable[[int, int, bytes | bytearray, int], object]
# A queued batch does not begin so near to the limit of a file that it might end after the limit.
QUEUED_END_MAX = FILE_LENGTH_LIMIT - 64


class Served(NamedTuple):
    """Result of ``serve``: numbers of batches, of steps of the disk and of records, their bytes, the start of the last
    batch, and when the last fence check began, by CLOCK_BOOTTIME."""

    batches: int
    steps: int
    records: int
    bytes_written: int
    start: int
    checked_at: float


class JournalWriter:
    """Writer of a journal file. ``file``, ``offset``: start of the next batch. ``checksum``: that of the batch that
    ends there, 0 if none. ``sync_seconds``: duration of the sync in the last ``commit``."""

    def __init__(
        self,
        files: JournalFiles,
        broker: str,
        own: OwnFile,
        offset: int = 0,
        *,
        checksum: int = 0,
        file_length_max: int = FILE_LENGTH_DEFAULT,
        on_written: OnWritten | None = None,
    ) -> None:
        """Continue to write ``own`` at ``offset``, the end of its last good batch. Closes it with ``close``.

        The caller owns the fence: it published this file itself, or no other process can be writing.
        """
        self._files = files
        # Compiled code calls the kernel. A disk that is not the kernel's may have steps of its own.
        self._steps: Any = native if files.disk is os else getattr(files.disk, "journal_steps", None)
        self._broker = broker
        self._file_length_max = file_length_max
        self._on_written = on_written
        self._failure: tuple[str, OSError] | str | None = None
        self._preparing = files.make_lock()
        self._is_prepared = False
        self._is_dirty = False
        # The former file, its end, and the marker to write after it once the header of this file is durable
        self._end_marker: tuple[int, int, bytes] | None = None
        self.offset = offset
        self.checksum = checksum
        self.sync_seconds = 0.0
        self._fd: int
        self._identity: Identity
        self._take(own)

    @property
    def position(self) -> tuple[int, int]:
        return self.file, self.offset

    def append(self, payloads: Iterable[bytes]) -> list[Location]:
        """Write one batch with a record for each payload, at least one. Return the locations of the records. Not
        durable yet.

        Raises JournalFailed; then the content of the disk is unknown, and a later scan may find the batch.
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
        if self._on_written is not None:
            self._on_written(self.file, offset, batch, end)  # prove: written-is-told
        return locations

    def sync(self) -> None:
        """Sync what was appended; durable on return. No receipt may be sent before the fence check that follows."""
        if self._failure is not None:  # prove: no-sync-after-failure
            self._refuse()
        try:  # prove: header-sync-before-end-marker order end-marker-after-sync
            self._files.disk.fdatasync(self._fd)  # prove: batch-sync
        except OSError as error:
            self._fail("sync", error)
        self._is_dirty = False
        if self._end_marker is not None:  # prove: end-marker-after-sync
            self._write_end_marker()

    def check_fence(self) -> None:
        """Raise Deposed when another broker made the next file, or our file lost its name: checked in this order.

        When it returns, what was synced before this call may be confirmed, and nothing else.
        """
        if self._failure is not None:  # prove: no-fence-check-after-failure
            self._refuse()
        stat = self._files.disk.stat
        try:  # prove: successor-before-own-file order fence-check-own-file
            stat(self._next_path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._fail("look for a successor", error)  # prove: failed-fence-check-is-no-answer
        else:
            self._depose(f"db-{self.file + 1}.log exists")  # prove: fence-check-finds-successor
        self._check_own_file()  # prove: fence-check-own-file

    @property
    def is_one_step(self) -> bool:
        """Return whether ``commit`` may be called: no callback is due between write and sync, and no other work is."""
        return self._steps is not None and self._on_written is None and self._end_marker is None

    def commit(self, payloads: Sequence[bytes]) -> tuple[list[Location], float]:
        """Do ``append``, ``sync`` and ``check_fence``, with their promises and errors, in one call of the disk without
        the interpreter's lock. Return the locations of the records, and when the fence check began, by
        CLOCK_BOOTTIME."""
        steps = self._steps
        assert steps is not None, "is_one_step was checked"
        if self._failure is not None:
            self._refuse()
        self._is_dirty = True
        step, error, locations, length, checksum, checked_at, device, inode, self.sync_seconds = steps.commit(
            self._fd,
            payloads,
            self.offset,
            self._origin + self.offset,
            self._next_path,
            self._own_path,
        )
        self._judge(step, error, (device, inode))
        self.offset += length
        self.checksum = checksum
        self._is_dirty = False
        return locations, checked_at

    def commit_queue(
        self, sync_bounds: tuple[float, ...] = (), record_bounds: tuple[float, ...] = ()
    ) -> CommitQueue | None:
        """Return the queue to which another thread submits batches for ``serve``; None if that is not possible. The
        bounds are those of its histograms."""
        steps = self._steps
        return steps.CommitQueue(sync_bounds, record_bounds) if steps is not None and self.is_one_step else None

    def serve(self, queue: CommitQueue, bytes_max: int, batches_max: int, seconds: float) -> Served:
        """Do ``commit`` for the batches submitted to ``queue``, in their order, for ``seconds`` at most or until
        ``batches_max`` batches or ``bytes_max`` bytes were written. The thread waits and works without the
        interpreter's lock. Promises and errors are those of ``commit``; if it raises, the other thread was not notified
        of the last step."""
        assert self._steps is not None, "is_one_step was checked"
        if self._failure is not None:
            self._refuse()
        was_dirty, self._is_dirty = self._is_dirty, True
        failed, step, error, batches, steps, records, offset, start, checksum, checked_at, device, inode = queue.serve(
            self._fd,
            self.offset,
            self._origin,
            min(self._file_length_max, QUEUED_END_MAX),
            bytes_max,
            batches_max,
            seconds,
            self._next_path,
            self._own_path,
            *self._identity,
        )
        if failed:
            self._judge(step, error, (device, inode))
        self._is_dirty = was_dirty and not steps
        if not steps:
            return Served(0, 0, 0, 0, 0, 0.0)
        written, self.offset, self.checksum = offset - self.offset, offset, checksum
        return Served(batches, steps, records, written, start, checked_at)

    def _judge(self, step: int, error: int, identity: Identity) -> None:
        """Raise the error of a step of the disk that was not done, or was done to another broker's file."""
        steps = self._steps
        assert steps is not None, "it did the step"
        if step == steps.WRITE:
            self._fail("write", OSError(error, os.strerror(error)))
        if step == steps.SYNC:
            self._fail("sync", OSError(error, os.strerror(error)))
        if step == steps.SUCCESSOR_THERE:
            self._depose(f"db-{self.file + 1}.log exists")
        if step == steps.SUCCESSOR_UNKNOWN:
            self._fail("look for a successor", OSError(error, os.strerror(error), self._next_path))
        if step == steps.OWN_UNKNOWN and error == errno.ENOENT:
            self._depose("the file lost its name")
        if step != steps.DONE:
            self._fail("look at its own file", not_opened(self._own_path, error))
        if identity != self._identity:
            self._depose("another file has its name")

    def is_full(self, payload_bytes: int) -> bool:
        """Return whether a batch with ``payload_bytes`` bytes of records must go to a new file.

        KahaDB's test: the limit is soft, a batch is never split, and a batch that is longer than a file gets its own.
        """
        return self.offset + payload_bytes >= self._file_length_max

    def prepare_next(self) -> None:
        """Make the file that the next rotation will publish, unless it exists. May run in another thread.

        Raises OSError (for example a full disk), which does no harm: the rotation will try again.
        """
        with self._preparing:
            if not self._is_prepared:
                self._files.prepare(self._broker, self._file_length_max)
                self._is_prepared = True

    def rotate(self, header: bytes, end_marker: bytes | None = None) -> None:
        """End this file and continue in the next one, whose first batch is ``header``. Not durable until ``sync``.

        The old file is synced, and the fence is checked; then the next file appears; then the fence is checked again,
        because this process may have slept in between: in that case Deposed is raised, and the new file stays empty.

        ``end_marker`` is written as a batch of its own after the end of the old file by the next ``sync``, when the
        header is durable. A reader with that header never reads the marker; without the header the marker shows that a
        file is lost.
        """
        if self._is_dirty:
            self.sync()  # prove: rotation-syncs-former
        self.check_fence()  # prove: rotation-checks-fence-first
        following = self.file + 1
        files = self._files
        try:
            self.prepare_next()
            with self._preparing:
                self._is_prepared = False
                own = files.publish(self._broker, following)
        except FenceTaken:
            self._depose(f"db-{following}.log was made by another broker")
        except OSError as error:
            self._fail("rotate", error)
        try:
            self._check_rotation(following)
        except BaseException as error:
            files.disk.close(own.fd)
            if isinstance(error, OSError):
                self._fail("rotate", error)
            raise
        ended, end = self._fd, self.offset
        self.offset = 0
        self.checksum = 0
        self._take(own)  # before the close: a number is not closed twice
        if end_marker is None:
            try:
                files.disk.close(ended)
            except OSError as error:
                self._fail("rotate", error)
        else:
            self._end_marker = ended, end, end_marker
        self.append((header,))

    def _check_rotation(self, following: int) -> None:
        """Raise Deposed when a successor came while the next file was made."""
        highest = self._files.list()[-1:]
        if highest and highest[0] > following:
            self._depose(f"db-{highest[0]}.log exists")  # prove: rotation-second-listing
        # The first file of a successor's epoch stays until every file before it is gone (safety of reclaiming): a
        # successor whose files came and went while this process slept removed ours, too.
        self._check_own_file()  # prove: rotation-own-file

    def close(self) -> None:
        """Close the file; nothing is written or synced, and no other call may follow."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        if self._failure is None:
            self._failure = ("use a closed writer", OSError(errno.EBADF, os.strerror(errno.EBADF)))
        try:
            if self._end_marker is not None:
                self._files.disk.close(self._end_marker[0])
            self._files.disk.close(fd)
            self._files.abandon(self._broker)  # does not wait for a preparation that a dead volume may delay
        except OSError:
            pass  # whatever was confirmed had been synced

    def _write_end_marker(self) -> None:
        assert self._end_marker is not None, "a rotation left something to say"
        (fd, offset, payload), self._end_marker = self._end_marker, None
        disk = self._files.disk
        try:
            try:
                write_fully(disk, fd, encode_batch((payload,))[0], offset)
                disk.fdatasync(fd)  # prove: end-marker-sync
            finally:
                disk.close(fd)
        except OSError as error:
            self._fail("end the former file", error)

    def _take(self, own: OwnFile) -> None:
        self._fd, self._identity = own.fd, own.identity
        self.file = file = own.file
        self._origin = location(file, 0)
        self._own_path = self._files.path(file)
        self._next_path = self._files.path(file + 1)

    def _check_own_file(self) -> None:
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
