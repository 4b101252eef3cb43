"""Store of a standby: it follows the journal and writes only its own index.

In a set of brokers, each standby has its own journal; then it also removes the files that the master has given up.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable

from tandemmq.disk import Disk, exists
from tandemmq.index.index import Index
from tandemmq.journal.files import JournalFiles
from tandemmq.store.authority import SHARED_VOLUME, Authority
from tandemmq.store.kahadb.minimal import has_foreign_index
from tandemmq.store.kahadb.page_file import DATA
from tandemmq.store.records.audit import ProducerAudit
from tandemmq.store.records.transactions import TransactionId
from tandemmq.store.recovery.follow import Follower, IndexNotOfThisJournal
from tandemmq.store.recovery.index_directory import open_index, remove_stale, set_aside, takeover_path
from tandemmq.store.recovery.index_room import IndexRoom
from tandemmq.store.recovery.lag import Lag
from tandemmq.store.recovery.prediction import Prediction, end_seconds, records_per_checkpoint
from tandemmq.store.recovery.promotion import OnStep, Outcome, Promoted, Promotion, ignore_step, leave_prepared
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state.state import State
from tandemmq.store.store import Store, owners_of
from tandemmq.store.takeover import prepare_takeover
from tandemmq.store.threads import OS_THREADS, Threads
from tandemmq.store.writer.space import Space

log = logging.getLogger(__name__)

# Limit of the time for a checkpoint in each call of ``follow``.
CHECKPOINT_SLICE_SECONDS = 0.05
# Seconds between measurements of the time to load the queues.
MEASURE_SECONDS = 30.0
# Number of entries of ended owners that each call of ``follow`` removes.
RECLAIM_ENTRIES = 2_000


def _from_zero(meta: bytes) -> int:
    return 0


class Standby:
    """Store of a standby: call ``follow`` repeatedly, and ``promote`` or ``close`` at the end. Methods block; one
    thread at a time, unless stated otherwise.

    ``directory``, with the journal, must exist. The index directory is made in ``index_root``. ``number_owners`` is
    called with the meta of the opened index (b"" for a new one) and returns the first owner id of this store; an index
    with another first id is set aside. ``authority`` determines how far the journal may be followed, and whether a
    promotion counts.
    """

    def __init__(
        self,
        directory: str,
        index_root: str,
        broker: str,
        settings: StoreSettings,
        *,
        authority: Authority = SHARED_VOLUME,
        disk: Disk = os,
        threads: Threads = OS_THREADS,
        number_owners: Callable[[bytes], int] = _from_zero,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.broker = broker
        self._index_root = index_root
        self._authority = authority
        self._disk = disk
        self._files = JournalFiles(directory, disk, threads.lock)
        self._halted = threads.event()
        self._threads = threads
        self._last_checkpoint = threads.monotonic()
        self._measured_at = -math.inf
        self._hand_over_seconds = 0.0
        self._seen_alive = -math.inf
        self._number_owners = number_owners
        self.first_owner: int | None = None
        self._promotion = Promotion(
            self._files,
            broker=broker,
            max_file_length=settings.journal_max_file_length,
            sync=settings.journal_disk_sync_strategy,
            authority=authority,
            alive=self._note_life,
            threads=threads,
        )
        # For the thread that calls ``follow`` or ``promote``.
        self._path, self.follower = self._open()

    def _open(self) -> tuple[str, Follower]:
        path, index = self._open_index()
        try:
            return path, self._follower_with(path, index)
        except IndexNotOfThisJournal as reason:
            index.close()
            self._set_aside(path, str(reason))
            # The index of another broker may have the same error, so it is not copied.
            path, index = self._open_index(may_copy=False)
            return path, self._follower_with(path, index)

    def _open_index(self, *, may_copy: bool = True) -> tuple[str, Index]:
        return open_index(
            self._index_root,
            self.broker,
            self._disk,
            may_copy=may_copy,
            cache_pages=self.settings.index_cache_size,
            threads=self._threads,
        )

    def _set_aside(self, path: str, reason: str) -> None:
        set_aside(path, reason, self._disk, self._threads)

    def _follower_with(self, path: str, index: Index) -> Follower:
        if self.first_owner is None:
            self.first_owner = self._number_owners(index.meta)
        settings = self.settings
        depth, producers = settings.failover_producers_audit_depth, settings.max_failover_producers_to_track
        room = IndexRoom(path, settings.disk_reserve, self._disk, clock=self._threads.monotonic)
        return Follower(
            self._files,
            index,
            records_per_checkpoint=settings.checkpoint_records,
            should_halt=self._halted.is_set,
            # A standby with its own journal needs checkpoints to remove files, so these are not deferred.
            has_room=lambda: self._authority.horizon is not None or room.has_room(),
            ignores_missing=settings.ignore_missing_journalfiles,
            checks_all=settings.check_for_corrupt_journal_files,
            index_root=self._index_root,
            first_owner=self.first_owner,
            audit=ProducerAudit(depth, producers) if depth and producers else None,
            has_foreign_index=self._has_foreign_index,
            horizon=lambda: self._authority.horizon,
            mend=self._authority.mend,
            threads=self._threads,
        )

    def _has_foreign_index(self) -> bool:
        """Return whether ActiveMQ ran in this directory after the last TandemMQ broker."""
        return has_foreign_index(self._foreign_directory(), self._disk)

    def _foreign_directory(self) -> str:
        """Return the directory of ActiveMQ's index: its setting ``indexDirectory``, if that is our ``index_root``, or
        the journal's directory."""
        is_there = exists(self._disk, os.path.join(self._index_root, DATA))
        return self._index_root if is_there else self.directory

    # ---- standing by

    def follow(self) -> None:
        """Apply the records that the master has written since the last call, and write checkpoints regularly. Returns
        soon after ``halt``."""
        follower = self.follower
        try:
            follower.advance()
        except IndexNotOfThisJournal as reason:
            self._replace_index(str(reason))
            return
        now = self._threads.monotonic()
        self._measure(now)
        state = follower.state
        if state.may_reclaim:
            state.reclaim(RECLAIM_ENTRIES)
        is_due = now - self._last_checkpoint >= self.settings.checkpoint_interval
        removes = self._authority.horizon is not None  # no other process removes files here
        has_changes = state.tail.has_changes or (removes and follower.could_remove_more)
        if (has_changes and is_due) or (state.ended and not state.may_reclaim):
            self._last_checkpoint = now
            follower.begin_checkpoint()
        follower.work_on_checkpoint(CHECKPOINT_SLICE_SECONDS)
        if removes:
            follower.remove_given_up()

    def _measure(self, now: float) -> None:
        """Measure the time to load the queues. Derive the number of records between checkpoints from it and from the
        replay speed."""
        if now < self._measured_at + MEASURE_SECONDS:
            return
        follower = self.follower
        owners_of(follower.state)
        self._hand_over_seconds = self._threads.monotonic() - now
        self._measured_at = now
        follower.records_per_checkpoint = records_per_checkpoint(
            self.settings, follower.speed.seconds_per_record, follower.load_seconds
        )

    def _replace_index(self, reason: str) -> None:
        self.follower.abandon_checkpoint()
        self.follower.index.close()
        self._set_aside(self._path, reason)
        self._path, self.follower = self._open()

    @property
    def has_caught_up(self) -> bool:
        """True if the standby has recently read all settled batches of the journal."""
        return self.lag.has_caught_up

    @property
    def lag(self) -> Lag:
        """Lag behind the visible journal. Any thread."""
        return self.follower.lag()

    @property
    def state_position(self) -> tuple[int, int] | None:
        """Position up to which the journal was applied, as (file, end of a batch). Any thread."""
        position = self.follower.state.position
        return None if position is None else (position.file, position.offset)

    def prediction(self, lock_seconds: float = 0.0) -> Prediction:
        """Return the prediction of a take-over if the master dies now. ``lock_seconds``: time until this broker has the
        lock. Any thread."""
        follower = self.follower
        records = self.lag.records
        return Prediction(
            lock_seconds,
            end_seconds(self.settings) + records * follower.speed.seconds_per_record,
            self._hand_over_seconds,
            records,
            len(follower.state.owners),
            self.settings.failover_budget,
        )

    @property
    def messages(self) -> int:
        """Number of stored messages, as far as the journal was read. Any thread."""
        return sum(owner.count for owner in list(self.follower.state.owners.values()))

    def seen_busy(self) -> float:
        """Return the monotonic time of the last sign of life of a promotion that waits for other nodes. Any thread."""
        return self._seen_alive

    def _note_life(self) -> None:
        self._seen_alive = self._threads.monotonic()

    def halt(self) -> None:
        """Make a running ``follow`` return soon. Any thread."""
        self._halted.set()

    def close(self) -> None:
        """Close the index without a checkpoint, and the file of a failed promotion. The next standby reads the records
        after the last checkpoint again."""
        self.follower.abandon_checkpoint()
        self.follower.index.close()
        self._promotion.close()

    # ---- becoming master

    def promote(
        self,
        *,
        has_proof: Callable[[], bool],
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        on_lost: Callable[[BaseException], None],
        on_step: OnStep = ignore_step,
    ) -> Store:
        """Make the fence, read the rest of the journal, and begin the epoch. The caller holds the lock. The returned
        Store owns the journal and the index.

        has_proof   whether the lock is still known to be held
        call_soon, call_later  run a function on the event loop; any thread
        on_lost     called on the event loop with the error that ends the store
        on_step     called in this thread after each step: "fenced", "replayed" (records, seconds), "header"

        Raises the errors of ``store.recovery.promotion.Promotion``; after an error this standby can only be closed.
        """
        self.fence(has_proof)
        on_step("fenced")
        started = self._threads.monotonic()
        self.read()
        on_step("replayed", records=self.records_read, seconds=self._threads.monotonic() - started)
        store = self.begin(has_proof=has_proof, call_soon=call_soon, call_later=call_later, on_lost=on_lost)
        on_step("header")
        return store

    def fence(self, has_proof: Callable[[], bool]) -> None:
        """Do the first step of a promotion: make the fence. The steps are separate because of several stores: all of
        them are fenced before any is read. Raises the errors of ``store.recovery.promotion.Promotion.fence``."""
        self._promotion.fence(has_proof)

    def read(self) -> None:
        """Do the second step: read the rest of the journal. Raises the errors of
        ``store.recovery.promotion.Promotion.read``."""
        try:
            self._promotion.read(self.follower)
        except IndexNotOfThisJournal as reason:
            self._replace_index(str(reason))
            self._promotion.read(self.follower)

    @property
    def state(self) -> State:
        """State of this store. After ``read`` it includes all records."""
        return self.follower.state

    @property
    def records_read(self) -> int:
        """Number of records that ``read`` has read."""
        return self._promotion.records_read

    @property
    def next_epoch(self) -> int:
        """Lowest possible number of the new epoch. Valid after ``read``."""
        return self._promotion.next_epoch(self.follower)

    def begin(
        self,
        *,
        has_proof: Callable[[], bool],
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        on_lost: Callable[[BaseException], None],
        epoch: int | None = None,
        outcome_of: Outcome | None = None,
    ) -> Store:
        """Do the third step: write the header. The returned Store owns the journal and the index.

        ``outcome_of`` returns the outcome of a prepared transaction; default: that of the settings. For the other
        arguments see ``promote``.
        """
        takeover = self._promotion.undisturbed(
            lambda: prepare_takeover(
                self._files,
                self.follower,
                scratch=takeover_path(self._path),
                index_directory=self._foreign_directory(),
                disk=self._disk,
                ignores_missing=self.settings.ignore_missing_journalfiles,
            )
        )
        promoted = self._promotion.begin(
            self.follower,
            epoch=epoch,
            outcome_of=outcome_of or outcome_by(self.settings),
            records=() if takeover is None else takeover.batches(),
            foreign_openwire=0 if takeover is None else takeover.foreign_openwire,
        )
        if takeover is not None:
            try:
                takeover.finish()  # prove: takeover-is-finished
            except BaseException:
                promoted.close()
                raise
        self._log_begin(promoted)
        return Store(
            self.follower,
            promoted,
            self.settings,
            broker=self.broker,
            has_proof=has_proof,
            call_soon=call_soon,
            call_later=call_later,
            on_lost=on_lost,
            space=Space(
                (self.directory, self._path),
                self.settings.disk_reserve,
                self._disk,
                clock=self._threads.monotonic,
                now=self._threads.wall,
                others=lambda: self._authority.free_bytes,
            ),
            chores=(self._remove_stale,),
            threads=self._threads,
        )

    def _remove_stale(self) -> None:
        """Remove stale indexes of other brokers. Runs in the background. A failure is logged; the next promotion tries
        again."""
        try:
            for path in remove_stale(self._index_root, self._path, self._disk, self._threads):
                log.info("removed the stale index %s", path)
        except OSError as reason:
            log.warning("stale indexes below %s cannot be removed: %s", self._index_root, reason)

    def _log_begin(self, promoted: Promoted) -> None:
        log.info(
            "epoch %d begins: %d records replayed in %.3f s, %d queues and subscriptions, %d transactions rolled back",
            promoted.epoch,
            promoted.records_replayed,
            promoted.recovery_seconds,
            len(self.follower.state.owners),
            promoted.rolled_back,
        )


def outcome_by(settings: StoreSettings) -> Outcome:
    """Return the function that determines the outcome of prepared transactions according to the setting
    ``purge_recovered_xa_transaction_strategy``."""
    strategy = settings.purge_recovered_xa_transaction_strategy
    if strategy == "never":
        return leave_prepared
    is_commit = strategy == "commit"

    def outcome(transaction: TransactionId) -> bool:
        log.warning(
            "prepared transaction %s: %s, as configured", transaction.key, "commit" if is_commit else "rollback"
        )
        return is_commit

    return outcome
