"""The end of the journal, to which this epoch writes: batches, syncs, fence checks, rotation. Only for the storage
thread."""

# proofs: journal-end

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tandemmq.journal.writer import JournalWriter
from tandemmq.store.authority import Authority
from tandemmq.store.damage.report import encode_next
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.records.marks import encode_clock
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Position
from tandemmq.store.threads import OS_THREADS, Threads
from tandemmq.store.writer.background import Background
from tandemmq.store.writer.figures import Figures
from tandemmq.store.writer.space import Space

if TYPE_CHECKING:
    from tandemmq.journal.native import CommitQueue


# Maximum number of batches in one call of ``serve``. Then the storage thread updates the state; until the next call the
# queue is not served.
SERVED_MAX = 256


class NoProof(Exception):
    """The locker can no longer prove that this broker is the master, so the broker must not send receipts."""


class JournalEnd:
    """Writer of batches at the end of the journal. Every failure of the disk is final: after it, every call raises.

    ``has_proof`` returns whether the locker's last proof of ownership is recent enough. ``background`` makes the next
    file. ``authority`` gets notice of each write, and confirms it. While a batch waits for that, ``alive`` is called at
    intervals; if it raises an error, the wait ends with that error.
    """

    def __init__(
        self,
        writer: JournalWriter,
        state: State,
        settings: StoreSettings,
        figures: Figures,
        space: Space,
        *,
        broker: str,
        epoch: int,
        authority: Authority,
        has_proof: Callable[[], bool],
        alive: Callable[[], object],
        background: Background,
        threads: Threads = OS_THREADS,
    ) -> None:
        self.writer = writer
        self.is_unsynced = False
        self.preparing: Future[None] | None = None
        self._state = state
        self._settings = settings
        self._figures = figures
        self._space = space
        self._broker = broker
        self._epoch = epoch
        self._authority = authority
        self._has_proof = has_proof
        self._alive = alive
        self._background = background
        self._clock = clock = threads.monotonic
        self._threads = threads
        self._is_next_ready = False
        self._last_sync = clock()
        # Monotonic time from which on the next batch of operations begins with a clock mark. The first batch of each
        # file begins with one; inf: no marks.
        self._mark_due = self._first_mark = -math.inf if settings.clock_mark_interval < math.inf else math.inf

    def write(self, payloads: list[bytes], size: int, *, must_sync: bool = False, is_upkeep: bool = False) -> list[int]:
        """Write a batch whose payloads have ``size`` bytes; return the locations of its records.

        On return the fence was checked, the authority has confirmed the batch, and with ``must_sync`` or the strategy
        "always" it is synced. If ``clock_mark_interval`` has passed, a record with the time is written first, but not
        with ``is_upkeep``. Raises Deposed, NoProof, and the OSError of the volume.
        """
        writer = self.writer
        if writer.is_full(size + 5 * len(payloads)):
            self.rotate()
        start = writer.offset
        marks = 0
        if not is_upkeep and (now := self._clock()) >= self._mark_due:
            self._mark_due = now + self._settings.clock_mark_interval
            mark = encode_clock(int(self._threads.wall() * 1000))
            payloads = [mark, *payloads]
            marks = 1
        strategy = self._settings.journal_disk_sync_strategy
        is_to_be_synced = (
            must_sync  # prove: what-must-be-synced-is
            or strategy == "always"  # prove: every-batch-is-synced
            or (strategy == "periodic" and self._clock() - self._last_sync >= self._settings.journal_disk_sync_interval)
        )
        if is_to_be_synced and writer.is_one_step:  # one call writes, syncs and checks the fence
            locations, checked_at = writer.commit(payloads)
            self._figures.sync_seconds.note(writer.sync_seconds)
            self._note_sync()
            self._note_fence_check(checked_at)
        else:
            locations = writer.append(payloads)
            self.is_unsynced = True  # prove: written-is-unsynced
            if is_to_be_synced:  # prove: sync-before-fence-check order fence-check-before-answer
                self.sync()
            self.check_fence()  # prove: fence-check-before-answer
        file, end = writer.file, writer.offset
        self._authority.settle(file, end, alive=self._alive)  # prove: confirmed-before-answer
        self._state.position = Position(file, end, start, writer.checksum)
        self._figures.batches += 1
        self._figures.batch_records.note(len(payloads))
        self._figures.records += len(payloads)
        self._figures.bytes_written += end - start
        self._space.note_written(end - start)
        return locations[marks:] if marks else locations

    @property
    def may_serve(self) -> bool:
        """True if ``serve`` may be called: a batch is one step of the disk and is synced, the file has room, and no
        clock mark is due."""
        writer = self.writer
        return (
            writer.is_one_step
            and self._settings.journal_disk_sync_strategy == "always"  # prove: queued-batches-are-synced
            and self._clock() < self._mark_due
            and not writer.is_full(0)
        )

    def serve(self, queue: CommitQueue, seconds: float) -> int:
        """Write the batches that the loop submits to ``queue``, for at most ``seconds``; return their number.

        Each batch is written, synced and fence-checked as in ``write``; the queue has already reported it to the loop.
        The authority is not asked: if it must confirm each batch, ``is_one_step`` is False.
        """
        writer = self.writer
        seconds = max(0.0, min(seconds, self._mark_due - self._clock()))
        served = writer.serve(queue, self._settings.journal_max_write_batch_size, SERVED_MAX, seconds)
        if served.batches:
            self._note_sync(served.steps)
            self._note_fence_check(served.checked_at)  # prove: queued-batch-needs-proof
            self._state.position = Position(writer.file, writer.offset, served.start, writer.checksum)
            self._figures.batches += served.steps
            self._figures.records += served.records
            self._figures.bytes_written += served.bytes_written
            self._space.note_written(served.bytes_written)
        return served.batches

    def sync(self) -> None:
        """Sync the file: all written batches are durable on return."""
        writer = self.writer
        began = self._clock()
        writer.sync()  # prove: sync-before-it-is-told order own-sync-is-told
        self._authority.synced(writer.file, writer.offset)  # prove: own-sync-is-told
        self._note_sync()
        self._figures.sync_seconds.note(self._last_sync - began)

    def _note_sync(self, count: int = 1) -> None:
        self.is_unsynced = False
        self._last_sync = self._clock()
        self._figures.syncs += count

    def check_fence(self) -> None:
        """Raise Deposed if another broker is master, and NoProof if the locker cannot prove that this broker is the
        master. With the strategy "periodic", sync if the interval has passed."""
        checked_at = self._threads.boottime()  # prove: fence-check-time-from-before order fence-check-asks-the-files
        self.writer.check_fence()  # prove: fence-check-asks-the-files
        self._note_fence_check(checked_at)
        if (
            self.is_unsynced
            and self._settings.journal_disk_sync_strategy == "periodic"
            and self._clock() - self._last_sync >= self._settings.journal_disk_sync_interval
        ):
            self.sync()  # prove: idle-master-syncs

    def _note_fence_check(self, began: float) -> None:
        """Note a fence check that began at ``began`` and found no other master. Raises NoProof without a proof of
        ownership."""
        if not self._has_proof():  # prove: no-proof-no-receipt
            raise NoProof("the locker's last proof of ownership is too old")
        self._figures.last_fence_check = began  # prove: fence-check-time-noted

    def settle(self) -> None:
        """Make all written batches durable, fence-checked and final, with any sync strategy."""
        if self.is_unsynced:
            self.sync()  # prove: settling-syncs order settling-checks-fence
            self.check_fence()  # prove: settling-checks-fence
        file, end = self.writer.position
        self._authority.settle(file, end, must_be_final=True, alive=self._alive)  # prove: settled-is-final

    def close(self) -> None:
        """Close the file without a further write, and notify the authority of the end."""
        self.writer.close()
        self._authority.end()

    def rotate(self) -> None:
        """Begin the next file with a header, after the last sync and fence check of the old file. On return the header
        is durable."""
        writer, authority = self.writer, self._authority
        if self.preparing is not None:
            self._background.wait(self.preparing)  # if that failed, the rotation tries again; its failure is final
            self.preparing = None
        self._is_next_ready = False
        if self.is_unsynced:
            self.sync()
        # The steps above may take long. A broker that lost the lock meanwhile must not make a file.
        self.check_fence()  # prove: rotation-needs-proof
        file, end = writer.position
        header = Header(
            self._epoch,
            self._broker,
            "rotation",
            {file: end},  # prove: rotation-names-the-end "file: end"
            (*sorted(self._state.named_files() | {file}), file + 1),
            sync=self._settings.journal_disk_sync_strategy,
            length=self._settings.journal_max_file_length,
            set=authority.set_header(),
        )
        authority.sealed(file, end)  # prove: followers-learn-the-end
        # prove: end-marker-where-it-may-be " if authority.leaves_end_markers else None"
        writer.rotate(encode_header(header), encode_next(file + 1) if authority.leaves_end_markers else None)
        # The header is synced before the next batch, because a torn header before a good batch would look like damage.
        self.sync()  # prove: rotation-header-sync
        self._state.know_file(writer.file)
        self._state.position = Position(writer.file, writer.offset, 0, writer.checksum)
        self._mark_due = self._first_mark

    def prepare_next(self) -> None:
        """Make the next file in advance, in the background, when half of this one is used. If that fails because the
        disk is full, producers are refused; the store continues."""
        preparing = self.preparing
        if preparing is not None and preparing.done() and not self._is_next_ready:
            error = preparing.exception()
            if error is not None and not isinstance(error, OSError):
                raise error
            self._space.note_prepared(error)
            self._is_next_ready = error is None
            if error is not None:
                self.preparing = preparing = None
        if (
            preparing is None
            and self.writer.position[1] * 2 > self._settings.journal_max_file_length
            and self._space.may_prepare
        ):
            self.preparing = self._background.submit(self.writer.prepare_next)
