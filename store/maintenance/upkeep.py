"""Upkeep, so that a store stays small and recovers quickly: checkpoints, reclaimed files, compaction.

The storage thread calls ``work`` between its batches. A checkpoint is written by a separate thread, in slices; its
results come back through the storage thread's inbox (``tell``), as does a failed removal.
"""

# proofs: upkeep

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, InitVar, dataclass
from itertools import accumulate, chain

from tandemmq.journal.files import JournalFiles
from tandemmq.store.kahadb.java_objects import encode_audit
from tandemmq.store.maintenance.archive import DEFAULT_NAME, Archive
from tandemmq.store.maintenance.compaction import Compaction, CompactionReport, plan, sparse
from tandemmq.store.records.commands import encode_producer_audit
from tandemmq.store.records.marks import encode_connections, encode_gone
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.prediction import records_per_checkpoint
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state.tail import Frozen, Position, changes
from tandemmq.store.threads import OS_THREADS, Threads
from tandemmq.store.writer.background import Background
from tandemmq.store.writer.figures import Figures
from tandemmq.store.writer.journal_end import JournalEnd
from tandemmq.store.writer.pages import Pages
from tandemmq.store.writer.space import Space

log = logging.getLogger(__name__)

# A standing checkpoint works in slices of this length and then pauses for the others: the loop and the storage thread
# share one interpreter with it.
CHECKPOINT_SLICE_SECONDS = 0.001
CHECKPOINT_PAUSE_SECONDS = 0.001
# Upper bound of what an operation adds to the index, except for ids of unusual length.
OPERATION_BYTES = 512
# Entries of ended owners that are reclaimed at a time, and the pause after each such piece.
RECLAIM_ENTRIES = 500
RECLAIM_PAUSE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class CheckpointDone:
    """A checkpoint is durable, or failed."""

    frozen: Frozen
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Background work failed, and that is final."""

    error: BaseException


@dataclass(eq=False, repr=False)
class Upkeep:
    """Checkpoints, reclaims and compacts, one step a call. ``background`` runs long work; ``is_halted`` makes
    it end soon.

    A checkpoint that ``follower`` had begun before the promotion is written first.
    """

    follower: InitVar[Follower]
    _end: JournalEnd
    _pages: Pages
    _settings: StoreSettings
    _figures: Figures
    _space: Space
    _: KW_ONLY
    background: Background
    tell: Callable[[CheckpointDone | Failed], object]
    threads: Threads = OS_THREADS

    def __post_init__(self, follower: Follower) -> None:
        self.is_halted = False
        self._files = files = follower.files
        self._index = follower.index
        self._state = follower.state
        self._epoch_history = follower.epoch_history
        settings = self._settings
        self._clock = clock = self.threads.monotonic
        self._remover = _remover(files, settings, self._breathe)
        # Number of records after which a checkpoint begins.
        self._checkpoint_records = records_per_checkpoint(
            settings, follower.speed.seconds_per_record, follower.load_seconds
        )
        self._unfinished = follower.abandon_checkpoint()
        self._checkpoint: Future[None] | None = None
        self._unlinking: Future[None] | None = None
        self._compaction: Compaction | None = None
        self._compacted: list[tuple[Compaction, Position]] = []  # their files go when a checkpoint covers that
        self._unfit: set[int] = set()  # files with damage, which compaction leaves as they are
        self._next_step = 0.0
        self._next_reclaim = 0.0
        self._sizes: dict[int, int] = {}  # of files that do not grow any more
        # Until an index stands in its file, nothing but the file itself proves that this epoch began; and files that a
        # former epoch left to be emptied are handled at once. A checkpoint syncs: without syncs it is only for
        # removable files.
        left_over = self._state.reclaimable(self._epoch_history.first_of_epoch, self._end.writer.position[0])
        self._is_wanted = settings.journal_disk_sync_strategy == "always" or bool(left_over)
        self._has_left_over = False  # files that could go, but the last cleanup was too recent
        self._is_in_a_hurry = False
        self._wanted_by: list[Future[None]] = []  # futures of a checkpoint that has not begun
        self._awaited_by: list[Future[None]] = []  # futures of the checkpoint that is under way
        self._last_checkpoint = clock()
        # With an interval of 0 (infinite) only a stop cleans up; else the first checkpoint may.
        self._last_cleanup = clock() if math.isinf(settings.cleanup_interval) else -math.inf
        self._bytes_at_checkpoint = 0

    @property
    def archive_problem(self) -> str | None:
        """Reason why files that were given up are not in the archive; None: they are, or there is no archive."""
        return self._remover.problem if isinstance(self._remover, Archive) else None

    @property
    def next_work(self) -> float | None:
        """Time, by the clock, of the next work; None: after the next batch."""
        due = [] if self._compaction is None else [self._next_step]
        if self._state.may_reclaim:
            due.append(self._next_reclaim)
        return min(due, default=None)

    def compact(self, report: Future[CompactionReport]) -> None:
        """Begin to empty all files with more than a little dead content. ``report`` is completed when they are gone."""
        if self._compaction is None:
            self._begin_compaction(is_asked=True)
        if self._compaction is None:
            disk = self._disk_bytes()
            report.set_result(CompactionReport((), 0, 0, disk, disk))
        else:
            self._compaction.reports.append(report)

    def checkpoint_soon(self, done: Future[None]) -> None:
        """Begin a checkpoint as soon as none is under way. ``done`` is completed when it is published."""
        self._is_wanted = True
        self._wanted_by.append(done)

    def clean_up_soon(self) -> None:
        """Request a checkpoint: a file was closed without changes, so perhaps nothing needs it."""
        self._is_wanted = True

    def cancel_reports(self) -> None:
        """Cancel the reports of unfinished work."""
        for done in (*self._wanted_by, *self._awaited_by):
            done.cancel()
        for compaction in (self._compaction, *(compaction for compaction, _ in self._compacted)):
            for report in () if compaction is None else compaction.reports:
                report.cancel()

    def work(self) -> None:
        """Do the work that is due: between two batches, and regularly when there are none."""
        self._end.prepare_next()
        self._compact_a_little()
        self._reclaim_a_little()
        settings = self._settings
        tail = self._state.tail
        if self._checkpoint is not None:
            if tail.operations > self._checkpoint_records:
                self._is_in_a_hurry = True
                self._await(self._checkpoint)  # the bound of the live tail: producers wait for the checkpoint
            return
        now = self._clock()
        is_due = tail.has_changes and (
            tail.operations >= self._checkpoint_records
            or self._figures.bytes_written - self._bytes_at_checkpoint >= settings.checkpoint_bytes
            or now - self._last_checkpoint >= settings.checkpoint_interval
        )
        if self._has_left_over and now - self._last_cleanup >= settings.cleanup_interval:
            self._is_wanted = True  # the rest of the last cleanup must not wait for traffic
        # Two reasons: a replay would take long, because of the changes or the time since; or a caller waits.
        if (
            (is_due or self._is_wanted or self._unfinished is not None)
            # Last, because this reads the volume, too.
            and (tail.operations >= 2 * self._checkpoint_records or self._has_checkpoint_space())
        ):
            if self._unfinished is not None:
                frozen, self._unfinished = self._unfinished, None
                self._checkpoint = self.background.submit(self._write_checkpoint, frozen)
                return
            self._is_wanted = False
            self._awaited_by, self._wanted_by = self._wanted_by, []
            self._checkpoint = self.background.submit(self._write_checkpoint, self._freeze())

    def _has_checkpoint_space(self) -> bool:
        operations = self._state.tail.operations
        return self._space.has_checkpoint_space(
            lambda: self._index.growth_max(operations * OPERATION_BYTES, operations)
        )

    def _freeze(self) -> Frozen:
        # A checkpoint covers only what is on the disk, whatever the strategy.
        self._end.settle()  # prove: checkpoint-covers-what-was-checked
        self._last_checkpoint = self._clock()
        self._bytes_at_checkpoint = self._figures.bytes_written
        return self._state.freeze(self._epoch_history.first_of_epoch, self._end.writer.position[0])

    def _write_checkpoint(self, frozen: Frozen) -> None:
        threads = self.threads
        started = threads.monotonic()
        try:
            # Only when db.free was lost: its contents are found here, while others work.
            steps = chain(self._index.recover_free_pages(), self._index.checkpoint(changes(frozen), frozen.meta))
            slice_end = threads.monotonic() + CHECKPOINT_SLICE_SECONDS
            for _ in steps:
                if self.is_halted:
                    return
                if threads.monotonic() > slice_end and not self._is_in_a_hurry:
                    threads.sleep(CHECKPOINT_PAUSE_SECONDS)
                    slice_end = threads.monotonic() + CHECKPOINT_SLICE_SECONDS
            self._figures.checkpoint_seconds.note(threads.monotonic() - started)
            self.tell(CheckpointDone(frozen, None))
        except BaseException as error:
            self.tell(CheckpointDone(frozen, error))
            raise

    def checkpoint_done(self, done: CheckpointDone) -> None:
        """Note the end of the checkpoint that was under way; raise its error if it failed."""
        self._checkpoint = None
        if done.error is not None:
            raise done.error  # prove: failed-checkpoint-is-final
        self._is_in_a_hurry = False
        self.background.submit(self._state.thaw())
        self._figures.checkpoints += 1
        for waiting in self._awaited_by:
            if waiting.set_running_or_notify_cancel():
                waiting.set_result(None)
        self._awaited_by = []
        now = self._clock()
        self._has_left_over = bool(done.frozen.reclaimable)
        is_due = now - self._last_cleanup >= self._settings.cleanup_interval
        if is_due or self._compacted or self._space.is_short:
            self._last_cleanup = now
            self._has_left_over = False
            if done.frozen.reclaimable:
                self._reclaim(done.frozen.reclaimable)
            has_compacted = bool(self._compacted)
            self._end_compactions(done.frozen.position)
            if self._settings.enable_compaction and self._compaction is None:
                self._begin_compaction()
                # The files that it emptied are removed only now: their space may be enough for the rest, with or
                # without traffic.
                self._has_left_over = has_compacted and self._compaction is None and self._space.is_short

    def _reclaim(self, files: tuple[int, ...]) -> None:
        """Remove files that nothing needs: write this into the journal first, then remove them, oldest first."""
        records = [encode_gone(files)]  # prove: gone-names-the-files "files" -> "()"
        state = self._state
        audit = state.audit
        # The records from which a replay would learn these will go (AMQ-3833: only if they changed).
        if audit is not None and len(audit) and _must_tell(state.audit_record, audit.revision, files):
            records.insert(0, encode_producer_audit(encode_audit(audit.image())))
        else:
            audit = None
        connections = state.connections
        knows_connections = len(connections) and _must_tell(state.connections_record, connections.revision, files)
        if knows_connections:
            records.append(encode_connections(connections.pairs()))
        locations = self._end.write(records, sum(map(len, records)), is_upkeep=True)
        if audit is not None:
            state.audit_record = (locations[0], audit.revision)
        if knows_connections:
            state.connections_record = (locations[-1], connections.revision)
        self._end.settle()  # prove: gone-is-durable-before-unlink
        self._pages.forget(files)
        # A failed removal is final like a failed write: the files that pin a file that is still there must stay.
        if self._unlinking is not None:
            self._await(self._unlinking)  # prove: one-removal-after-the-other
        state.forget_files(files)
        for file in files:
            self._sizes.pop(file, None)
        self._figures.files_reclaimed += len(files)
        self._unlinking = self.background.submit(self._unlink, files)
        self._unlinking.add_done_callback(self._unlinked)
        log.info("reclaimed %d journal files (%d to %d)", len(files), files[0], files[-1])

    def _await(self, work: Future[None]) -> None:
        """Wait for background work; raise its error."""
        self.background.wait(work)
        work.result()

    def _unlink(self, files: tuple[int, ...]) -> None:
        for file in files:
            # One at a time, each with a sync of the directory: a removed acknowledgement must not be gone while the
            # message that it removed comes back after a power loss.
            # A master that hung in the volume removes no more: its successor does.
            if self.is_halted:  # prove: halted-removes-no-more
                return
            self._remover.remove([file])  # prove: directory-sync-after-each-unlink "[file]" -> "files"

    def _breathe(self) -> None:
        """Pause between chunks of a file that is archived, in the background: the loop and the storage thread share one
        interpreter with it."""
        if not self.is_halted:
            self.threads.sleep(CHECKPOINT_PAUSE_SECONDS)

    def _unlinked(self, unlinking: Future[None]) -> None:
        """Report a failure to the storage thread, which raises it. In the background."""
        error = None if unlinking.cancelled() else unlinking.exception()
        if error is not None:
            self.tell(Failed(error))  # prove: failed-unlink-is-final

    # ---- owners that ended

    def _reclaim_a_little(self) -> None:
        state = self._state
        if not state.may_reclaim or self._clock() < self._next_reclaim:
            return
        state.reclaim(RECLAIM_ENTRIES)
        self._next_reclaim = self._clock() + RECLAIM_PAUSE_SECONDS
        if state.ended and not state.may_reclaim:
            self._is_wanted = True  # the rest goes into the tail after it

    # ---- compaction

    def _disk_bytes(self) -> int:
        return sum(self._file_sizes().values())

    def _file_sizes(self) -> dict[int, int]:
        current = self._end.writer.position[0]
        sizes = {}
        for file in self._state.files:
            size = self._sizes.get(file)
            if size is None:
                try:
                    size = self._files.size(file)
                except FileNotFoundError:
                    continue
                if file < current:
                    self._sizes[file] = size
            sizes[file] = size
        return sizes

    def _begin_compaction(self, *, is_asked: bool = False) -> None:
        if self._space.free_bytes < self._settings.journal_max_file_length:
            return  # copies need space
        state = self._state
        sizes = self._file_sizes()
        current = self._end.writer.position[0]
        first_of_epoch = self._epoch_history.first_of_epoch
        held_by_records = state.held_by_records()
        if is_asked:
            files = sparse(state.files, sizes, current, held_by_records)
        else:
            files = plan(
                state.files,
                sizes,
                current,
                lambda emptied: state.reclaimable(first_of_epoch, current, emptied),
                file_length=self._settings.journal_max_file_length,
                held_by_records=held_by_records,
            )
        files = self._that_fit([file for file in files if file not in self._unfit])
        if files:
            self._compaction = Compaction(state, self._pages, self._write_copies, files, sum(sizes.values()))
            log.info("compaction begins: %d of %d journal files are to be emptied", len(files), len(sizes))

    def _write_copies(self, payloads: list[bytes]) -> list[int]:
        """Write a batch of a compaction; durable and fence-checked on return."""
        size = sum(map(len, payloads))
        locations = self._end.write(payloads, size, is_upkeep=True)
        self._figures.bytes_copied += size
        return locations

    def _that_fit(self, files: Sequence[int]) -> tuple[int, ...]:
        """Return the first of these files whose copies leave half of the free space: the files go when all of them were
        copied. The next compaction begins with the rest."""
        copied = accumulate(self._state.files[file].live_bytes for file in files)
        room = self._space.free_bytes // 2
        return tuple(file for file, total in zip(files, copied, strict=True) if total <= room)

    def _compact_a_little(self) -> None:
        compaction = self._compaction
        if compaction is None or self._clock() < self._next_step:
            return
        copied = compaction.step()
        # The rate bounds the loss of producers and consumers; checkpoints handle its changes of the state.
        self._next_step = self._clock() + copied / self._settings.compaction_rate
        if compaction.is_done:
            self._unfit |= compaction.unfit
            self._figures.compactions += 1
            assert self._state.position is not None, "the copies have a position"
            self._compacted.append((compaction, self._state.position))
            self._compaction = None
            self._is_wanted = True

    def _end_compactions(self, covered: Position) -> None:
        """End compactions whose copies a checkpoint covers, and whose files are given up."""
        while self._compacted and self._compacted[0][1][:2] <= covered[:2]:
            compaction, _ = self._compacted.pop(0)
            report = compaction.report(self._disk_bytes())
            log.info(
                "compaction: %d messages, %d bytes copied out of %d files; the journal went from %d to %d bytes",
                report.messages,
                report.bytes_copied,
                len(report.files),
                report.disk_before,
                report.disk_expected,
            )
            if compaction.reports:
                self.background.submit(self._tell_when_gone, self._unlinking, compaction.reports, report)

    def _tell_when_gone(
        self, unlinking: Future[None] | None, reports: Sequence[Future[CompactionReport]], report: CompactionReport
    ) -> None:
        if unlinking is not None:
            self.threads.wait([unlinking])
        for waiting in reports:
            waiting.set_result(report)

    def finish(self) -> None:
        """Write a last checkpoint; durable on return, unless halted meanwhile."""
        if self._checkpoint is not None:
            self._is_in_a_hurry = True
            self._await(self._checkpoint)
            self._state.thaw()
            self._checkpoint = None
        if (self._unfinished is not None or self._state.tail.has_changes) and self._has_checkpoint_space():
            if self._unfinished is not None:
                self._write_at_once(self._unfinished)
                self._unfinished = None
            if self.is_halted:
                return
            frozen = self._freeze()
            self._write_at_once(frozen)
            if self._settings.cleanup_on_stop and frozen.reclaimable and not self.is_halted:
                self._reclaim(frozen.reclaimable)
        else:
            self._end.settle()

    def _write_at_once(self, frozen: Frozen) -> None:
        for _ in self._index.checkpoint(changes(frozen), frozen.meta):
            if self.is_halted:
                return
        self._state.thaw()


def _remover(files: JournalFiles, settings: StoreSettings, pause: Callable[[], object]) -> JournalFiles | Archive:
    if not settings.archive_data_logs:
        return files
    return Archive(files, settings.directory_archive or os.path.join(files.directory, DEFAULT_NAME), files.disk, pause)


def _must_tell(record: tuple[int, int], revision: int, files: Container[int]) -> bool:
    """Return whether ``revision`` must be written again: its newest ``record`` (location, revision) is of an older one,
    or is in one of ``files``."""
    return record[1] != revision or record[0] >> 32 in files
