"""Upkeep of a store: checkpoints, removal of files that are not needed, compaction.

The storage thread calls ``work`` between its batches. A background thread writes a checkpoint, in slices. It reports
the result, and a failed removal of files, to the inbox of the storage thread (``put``).
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

# A checkpoint works in slices of this length, with pauses: the event loop and the storage thread share the interpreter
# with it.
CHECKPOINT_SLICE_SECONDS = 0.001
CHECKPOINT_PAUSE_SECONDS = 0.001
# Upper bound of the bytes that an operation adds to the index, except for very long ids.
OPERATION_BYTES = 512
# Number of entries of ended owners that are removed in one step, and the pause after each step.
RECLAIM_ENTRIES = 500
RECLAIM_PAUSE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class CheckpointDone:
    """Report of a checkpoint that is durable, or failed with ``error``."""

    frozen: Frozen
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Report that background work failed. The failure is final for the store."""

    error: BaseException


@dataclass(eq=False, repr=False)
class Upkeep:
    """Upkeep of one store, on the storage thread. ``background`` runs long work; setting ``is_halted`` ends that work
    soon.

    If ``follower`` had begun a checkpoint before the promotion, that one is written first.
    """

    follower: InitVar[Follower]
    _end: JournalEnd
    _pages: Pages
    _settings: StoreSettings
    _figures: Figures
    _space: Space
    _: KW_ONLY
    background: Background
    put: Callable[[CheckpointDone | Failed], object]
    threads: Threads = OS_THREADS

    def __post_init__(self, follower: Follower) -> None:
        self.is_halted = False
        self._files = files = follower.files
        self._index = follower.index
        self._state = follower.state
        self._epoch_history = follower.epoch_history
        settings = self._settings
        self._clock = clock = self.threads.monotonic
        self._remover = _remover(files, settings, self._pause)
        # A checkpoint begins after this number of records.
        self._checkpoint_records = records_per_checkpoint(
            settings, follower.speed.seconds_per_record, follower.load_seconds
        )
        self._unfinished = follower.abandon_checkpoint()
        self._checkpoint: Future[None] | None = None
        self._unlinking: Future[None] | None = None
        self._compaction: Compaction | None = None
        self._compacted: list[tuple[Compaction, Position]] = []  # waiting for a checkpoint of the position
        self._unfit: set[int] = set()  # damaged files, which are not compacted
        self._next_step = 0.0
        self._next_reclaim = 0.0
        self._sizes: dict[int, int] = {}  # bytes of the files that do not grow any more
        # Two reasons for a checkpoint at the start. The index should show soon that this epoch began, so that the fence
        # is not the only evidence. And files that a former epoch emptied should be removed. A checkpoint syncs; so if
        # the settings disable syncs, only the second reason counts.
        left_over = self._state.reclaimable(self._epoch_history.first_of_epoch, self._end.writer.position[0])
        self._is_wanted = settings.journal_disk_sync_strategy == "always" or bool(left_over)
        self._has_left_over = False  # files can be removed, but the last cleanup was too recent
        self._is_urgent = False
        self._wanted_by: list[Future[None]] = []  # futures of the next checkpoint
        self._awaited_by: list[Future[None]] = []  # futures of the checkpoint in progress
        self._last_checkpoint = clock()
        # If cleanup_interval is infinite, only a stop cleans up; otherwise the first checkpoint does.
        self._last_cleanup = clock() if math.isinf(settings.cleanup_interval) else -math.inf
        self._bytes_at_checkpoint = 0

    @property
    def archive_problem(self) -> str | None:
        """Reason why files could not be moved to the archive; None: no problem, or no archive."""
        return self._remover.problem if isinstance(self._remover, Archive) else None

    @property
    def next_work(self) -> float | None:
        """Time of the next step of upkeep by ``threads.monotonic``; None: no step before the next batch."""
        reclaim = self._next_reclaim if self._state.may_reclaim else None
        if self._compaction is None:
            return reclaim
        return self._next_step if reclaim is None else min(self._next_step, reclaim)

    def compact(self, report: Future[CompactionReport]) -> None:
        """Begin to empty all sparse files. ``report`` is completed when these files are removed."""
        if self._compaction is None:
            self._begin_compaction(is_requested=True)
        if self._compaction is None:
            disk = self._disk_bytes()
            report.set_result(CompactionReport((), 0, 0, disk, disk))
        else:
            self._compaction.reports.append(report)

    def checkpoint_soon(self, done: Future[None]) -> None:
        """Request a checkpoint, which begins when no other is in progress. ``done`` is completed when it is durable."""
        self._is_wanted = True
        self._wanted_by.append(done)

    def clean_up_soon(self) -> None:
        """Request a checkpoint because a file was completed without changes of the state, and may be removable."""
        self._is_wanted = True

    def cancel_reports(self) -> None:
        """Cancel all futures of unfinished work."""
        for done in (*self._wanted_by, *self._awaited_by):
            done.cancel()
        for compaction in (self._compaction, *(compaction for compaction, _ in self._compacted)):
            for report in () if compaction is None else compaction.reports:
                report.cancel()

    def work(self) -> None:
        """Do the steps that are due. Called between two batches, and regularly if there are no batches."""
        self._end.prepare_next()
        if self._compaction is not None:
            self._compact_step(self._compaction)
        if self._state.ended:
            self._reclaim_step()
        settings = self._settings
        tail = self._state.tail
        if self._checkpoint is not None:
            if tail.operations > self._checkpoint_records:
                self._is_urgent = True
                self._await(self._checkpoint)  # limits the tail: producers wait for the checkpoint
            return
        now = self._clock()
        is_due = (
            tail.operations >= self._checkpoint_records
            or self._figures.bytes_written - self._bytes_at_checkpoint >= settings.checkpoint_bytes
            or now - self._last_checkpoint >= settings.checkpoint_interval
        ) and tail.has_changes
        if self._has_left_over and now - self._last_cleanup >= settings.cleanup_interval:
            self._is_wanted = True  # files of the last cleanup are removed even without traffic
        # Reasons for a checkpoint: many changes or a long time since the last one, or a request.
        if (
            (is_due or self._is_wanted or self._unfinished is not None)
            # Checked last, because it may query the volume.
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
        # A checkpoint may cover only synced records, for any sync strategy.
        self._end.settle()  # prove: checkpoint-covers-what-was-checked
        self._last_checkpoint = self._clock()
        self._bytes_at_checkpoint = self._figures.bytes_written
        return self._state.freeze(self._epoch_history.first_of_epoch, self._end.writer.position[0])

    def _write_checkpoint(self, frozen: Frozen) -> None:
        threads = self.threads
        started = threads.monotonic()
        try:
            # The first part does something only if db.free could not be trusted.
            steps = chain(self._index.recover_free_pages(), self._index.checkpoint(changes(frozen), frozen.meta))
            slice_end = threads.monotonic() + CHECKPOINT_SLICE_SECONDS
            for _ in steps:
                if self.is_halted:
                    return
                if threads.monotonic() > slice_end and not self._is_urgent:
                    threads.sleep(CHECKPOINT_PAUSE_SECONDS)
                    slice_end = threads.monotonic() + CHECKPOINT_SLICE_SECONDS
            self._figures.checkpoint_seconds.note(threads.monotonic() - started)
            self.put(CheckpointDone(frozen, None))
        except BaseException as error:
            self.put(CheckpointDone(frozen, error))
            raise

    def checkpoint_done(self, done: CheckpointDone) -> None:
        """Note the end of the checkpoint in progress. Raises its error if it failed."""
        self._checkpoint = None
        if done.error is not None:
            raise done.error  # prove: failed-checkpoint-is-final
        self._is_urgent = False
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
                # The emptied files are being removed only now. If no compaction could begin for lack of space, another
                # checkpoint follows, also without traffic, and tries again.
                self._has_left_over = has_compacted and self._compaction is None and self._space.is_short

    def _reclaim(self, files: tuple[int, ...]) -> None:
        """Remove files that are not needed. First a record that names them is written to the journal, synced and
        fence-checked. Then the files are removed in the background, oldest first."""
        records = [encode_gone(files)]  # prove: gone-names-the-files "files" -> "()"
        state = self._state
        audit = state.audit
        # The removed files may have the newest records of the producer audit and of the connections, so these are
        # written again; also if they have changed (AMQ-3833).
        if audit is not None and len(audit) and _must_record(state.audit_record, audit.revision, files):
            records.insert(0, encode_producer_audit(encode_audit(audit.image())))
        else:
            audit = None
        connections = state.connections
        knows_connections = len(connections) and _must_record(state.connections_record, connections.revision, files)
        if knows_connections:
            records.append(encode_connections(connections.pairs()))
        locations = self._end.write(records, sum(map(len, records)), is_upkeep=True)
        if audit is not None:
            state.audit_record = (locations[0], audit.revision)
        if knows_connections:
            state.connections_record = (locations[-1], connections.revision)
        self._end.settle()  # prove: gone-is-durable-before-unlink
        self._pages.forget(files)
        # A failed removal is final like a failed write: a file must not be removed before the files that it pins.
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
        """Wait for background work. Raises its error."""
        self.background.wait(work)
        work.result()

    def _unlink(self, files: tuple[int, ...]) -> None:
        for file in files:
            # One file at a time, each with a sync of the directory: after a power loss, an acknowledgement must not be
            # missing while the file of its message exists. A master that hung in a call of the volume and was halted
            # meanwhile removes nothing more; its successor does.
            if self.is_halted:  # prove: halted-removes-no-more
                return
            self._remover.remove([file])  # prove: directory-sync-after-each-unlink "[file]" -> "files"

    def _pause(self) -> None:
        """Pause between chunks of a file that is archived, in the background: the event loop and the storage thread
        share the interpreter."""
        if not self.is_halted:
            self.threads.sleep(CHECKPOINT_PAUSE_SECONDS)

    def _unlinked(self, unlinking: Future[None]) -> None:
        """Report a failed removal to the storage thread, which raises the error. Runs in the background."""
        error = None if unlinking.cancelled() else unlinking.exception()
        if error is not None:
            self.put(Failed(error))  # prove: failed-unlink-is-final

    # ---- ended owners

    def _reclaim_step(self) -> None:
        state = self._state
        if not state.may_reclaim or self._clock() < self._next_reclaim:
            return
        state.reclaim(RECLAIM_ENTRIES)
        self._next_reclaim = self._clock() + RECLAIM_PAUSE_SECONDS
        if state.ended and not state.may_reclaim:
            self._is_wanted = True  # the remaining entries are removed after the next checkpoint

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

    def _begin_compaction(self, *, is_requested: bool = False) -> None:
        if self._space.free_bytes < self._settings.journal_max_file_length:
            return  # there is no space for copies
        state = self._state
        sizes = self._file_sizes()
        current = self._end.writer.position[0]
        first_of_epoch = self._epoch_history.first_of_epoch
        held_by_records = state.held_by_records()
        if is_requested:
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
        files = self._fitting([file for file in files if file not in self._unfit])
        if files:
            self._compaction = Compaction(state, self._pages, self._write_copies, files, sum(sizes.values()))
            log.info("compaction begins: %d of %d journal files are to be emptied", len(files), len(sizes))

    def _write_copies(self, payloads: list[bytes]) -> list[int]:
        """Write a batch of a compaction, and return the locations of its records; durable and fence-checked on
        return."""
        size = sum(map(len, payloads))
        locations = self._end.write(payloads, size, is_upkeep=True)
        self._figures.bytes_copied += size
        return locations

    def _fitting(self, files: Sequence[int]) -> tuple[int, ...]:
        """Return the first of these files whose copies take at most half of the free space. No file is removed before
        all are copied. The next compaction handles the rest."""
        copied = accumulate(self._state.files[file].live_bytes for file in files)
        room = self._space.free_bytes // 2
        return tuple(file for file, total in zip(files, copied, strict=True) if total <= room)

    def _compact_step(self, compaction: Compaction) -> None:
        if self._clock() < self._next_step:
            return
        copied = compaction.step()
        # The rate limits how much a compaction slows down producers and consumers.
        self._next_step = self._clock() + copied / self._settings.compaction_rate
        if compaction.is_done:
            self._unfit |= compaction.unfit
            self._figures.compactions += 1
            assert self._state.position is not None, "the copies have a position"
            self._compacted.append((compaction, self._state.position))
            self._compaction = None
            self._is_wanted = True

    def _end_compactions(self, covered: Position) -> None:
        """Log and report the compactions whose copies a checkpoint at ``covered`` includes."""
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
                self.background.submit(self._report_when_removed, self._unlinking, compaction.reports, report)

    def _report_when_removed(
        self, unlinking: Future[None] | None, reports: Sequence[Future[CompactionReport]], report: CompactionReport
    ) -> None:
        if unlinking is not None:
            self.threads.wait([unlinking])
        for waiting in reports:
            waiting.set_result(report)

    def finish(self) -> None:
        """Write a last checkpoint, durable on return, unless ``is_halted`` is set."""
        if self._checkpoint is not None:
            self._is_urgent = True
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


def _must_record(record: tuple[int, int], revision: int, files: Container[int]) -> bool:
    """Return whether a state with this ``revision`` must be written again, because its newest ``record`` (location,
    revision) has an older revision or is in one of ``files``, which will be removed."""
    return record[1] != revision or record[0] >> 32 in files
