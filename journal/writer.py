"""Writer of the last journal file. A store has one writer.

    append       one write of a whole batch, end record included        readable, not durable
    sync         fdatasync                                              durable, no receipt yet
    check_fence  does a successor's file exist? is our file still ours? receipts may be sent
    commit       these three in one call, if native.c was compiled
    serve        such calls, one after the other, for batches of another thread
    rotate       sync, check, publish the next file, check again        the same fence as a promotion

The order is the safety argument: a successor makes its file appear *before* it reads ours. If its file does not exist
when we check, after our sync, then it reads our file after our sync, and our batch counts (docs/formats/journal.md).

One thread owns a writer; only ``prepare_next`` may be called from another thread. Failure and deposition are final:
every later call raises the same error again. No sync is repeated: after a failed sync the kernel may have dropped the
pages that it could not write, and a second sync may succeed without them.
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

# Called with each batch after it was written and before it is synced: file, offset of the batch, its bytes with the end
# record, offset of the next batch. The bytes are not changed later.
OnWritten = Callable[[int, int, bytes | bytearray, int], object]
# A queued batch must end before this offset.
QUEUED_END_MAX = FILE_LENGTH_LIMIT - 64


class Served(NamedTuple):
    """Result of ``serve``. A step is one write, one sync and one fence check. ``start`` is the offset of the last
    batch, ``checked_at`` the seconds by CLOCK_BOOTTIME when the last fence check began."""

    batches: int
    steps: int
    records: int
    bytes_written: int
    start: int
    checked_at: float


class JournalWriter:
    """Writer of a journal file, for one thread. ``file`` and ``offset``: where the next batch begins. ``checksum``: of
    the batch that ends there, or 0. ``sync_seconds``: duration of the sync in the last ``commit``."""

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
        """Make a writer that continues ``own`` at ``offset``, the end of its last good batch. ``close`` closes ``own``.

        The caller must have published this file itself, or must know that no other process writes the journal.
        """
        self._files = files
        # The compiled module calls the kernel. A simulated disk may provide its own `journal_steps`.
        self._steps: Any = native if files.disk is os else getattr(files.disk, "journal_steps", None)
        self._broker = broker
        self._file_length_max = file_length_max
        self._on_written = on_written
        self._failure: tuple[str, OSError] | str | None = None
        self._preparing = files.make_lock()
        self._is_prepared = False
        self._is_dirty = False
        # After a rotation: descriptor and end of the former file, and the end marker to write there, once the header of
        # this file is durable
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
        """Write one batch with one record for each payload; at least one payload. Return the locations of the records.
        Not durable yet.

        Raises JournalFailed if the write fails; then it is unknown whether a later scan finds the batch.
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
        """Make all appended batches durable. No receipt may be sent before a later fence check."""
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
        """Raise Deposed if another broker made the next file, or if this broker's file lost its name; checked in this
        order.

        On return, batches that were synced before this call are confirmed; batches that were synced later are not.
        Raises JournalFailed if the result is unknown.
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
        """Return whether ``commit`` may be called: nothing is to be done between write and sync or after the sync."""
        return self._steps is not None and self._on_written is None and self._end_marker is None

    def commit(self, payloads: Sequence[bytes]) -> tuple[list[Location], float]:
        """Do ``append``, ``sync`` and ``check_fence``, with the same promises and errors, in one compiled call that
        releases the interpreter's lock. Return (locations of the records, seconds by CLOCK_BOOTTIME when the fence
        check began). Requires ``is_one_step``."""
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
        """Return a queue to which another thread submits batches for ``serve``, or None if ``is_one_step`` is False.
        The arguments are the bounds of its histograms: seconds of a sync, records of a step."""
        steps = self._steps
        return steps.CommitQueue(sync_bounds, record_bounds) if steps is not None and self.is_one_step else None

    def serve(self, queue: CommitQueue, bytes_max: int, batches_max: int, seconds: float) -> Served:
        """Do ``commit`` for the batches that are submitted to ``queue``, in the order of their submission. Return after
        ``seconds``, or after ``batches_max`` batches or ``bytes_max`` bytes.

        The thread waits and works without the interpreter's lock. Promises and errors are those of ``commit``. If it
        raises, ``queue.completed`` does not include the last step.
        """
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
        """Raise the error of a failed step of ``commit``, or Deposed if this broker's file has been replaced."""
        steps = self._steps
        assert steps is not None, "a step without the compiled module"
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
            self._fail("check its own file", not_opened(self._own_path, error))
        if identity != self._identity:
            self._depose("another file has its name")

    def is_full(self, payload_bytes: int) -> bool:
        """Return whether a batch with ``payload_bytes`` bytes of records must go to a new file.

        As in KahaDB, the limit is soft: a batch is never split, and a batch that is longer than a file gets its own.
        """
        return self.offset + payload_bytes >= self._file_length_max

    def prepare_next(self) -> None:
        """Prepare the file that the next rotation will publish, if it is not prepared. Any thread.

        Raises OSError (for example a full disk). The writer remains usable: the rotation tries again.
        """
        with self._preparing:
            if not self._is_prepared:
                self._files.prepare(self._broker, self._file_length_max)
                self._is_prepared = True

    def rotate(self, header: bytes, end_marker: bytes | None = None) -> None:
        """End this file and continue in the next one, whose first batch is ``header``; durable after the next ``sync``.

        Order: sync the old file, check the fence, publish the next file, check the fence again. The second check is
        needed because this process may have been suspended after the first. If it raises Deposed, the new file stays
        empty.

        The next ``sync`` writes ``end_marker`` as a batch after the end of the old file, when the header is durable. A
        reader that has the header does not read the marker. If the header is missing, the marker shows that a file is
        lost.
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
        self._take(own)  # before the close, so that no descriptor number is closed twice
        if end_marker is None:
            try:
                files.disk.close(ended)
            except OSError as error:
                self._fail("rotate", error)
        else:
            self._end_marker = ended, end, end_marker
        self.append((header,))

    def _check_rotation(self, following: int) -> None:
        """Raise Deposed if a successor made a file while this broker published the next file."""
        highest = self._files.list()[-1:]
        if highest and highest[0] > following:
            self._depose(f"db-{highest[0]}.log exists")  # prove: rotation-second-listing
        # Reclaiming removes the first file of an epoch only after all files before it. So if a successor made files and
        # removed them while this process was suspended, it removed this broker's file too.
        self._check_own_file()  # prove: rotation-own-file

    def close(self) -> None:
        """Close the file without writing or syncing. A second call does nothing; any other later call raises
        JournalFailed."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        if self._failure is None:
            self._failure = ("use a closed writer", OSError(errno.EBADF, os.strerror(errno.EBADF)))
        try:
            if self._end_marker is not None:
                self._files.disk.close(self._end_marker[0])
            self._files.disk.close(fd)
            self._files.abandon(self._broker)  # without the lock of prepare_next, which may hang on a dead volume
        except OSError:
            pass  # all confirmed batches were synced before

    def _write_end_marker(self) -> None:
        assert self._end_marker is not None, "no end marker to write"
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
            self._fail("check its own file", error)  # prove: own-file-failed-is-no-answer
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
