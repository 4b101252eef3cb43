"""Follower: reads the journal into the state. A standby follows the master with it, and a promotion reads the rest.

It writes only its own index, and copies of damaged bytes into quarantine. A batch is settled if it is certain that it
counts; only settled batches are applied to the state. A standby settles a batch when a later batch of the same file
exists, or when a header states that the file ends after it: the last batch of a live file may still be undone. With a
horizon, all before the horizon is final and is settled at once, and nothing after it is read. When this broker owns the
lock and has made its fence, the journal does not change any more, and every good batch counts.

Damage or a loss ends a promotion with StoreCorrupt or JournalLost, which name file, range and message ids. With
``ignores_missing``, damage is skipped and reported in ``damages``; ``repairs`` are then the records that the promotion
must append so that later replays have the same result.

A file is given up if a TANDEMMQ-GONE record states that it is not needed any more.
"""

# proofs: journal-reading

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from tandemmq import log_events
from tandemmq.index.errors import IndexDamaged
from tandemmq.index.index import Index
from tandemmq.journal.errors import JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import RECORD_HEADER_SIZE, location
from tandemmq.journal.scan import Batch, EndingKind, scan, scanned_end
from tandemmq.store.damage.ledger import DamageLedger
from tandemmq.store.damage.reconciliation import reconcile
from tandemmq.store.damage.report import (
    WHOLE_FILE,
    Damage,
    JournalLost,
    StoreCorrupt,
    decode_next,
    describe_damages,
    encode_lost,
    listed,
)
from tandemmq.store.records.audit import ProducerAudit
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.records.marks import decode_gone
from tandemmq.store.recovery.header_reader import HeaderReader
from tandemmq.store.recovery.index_trust import IndexNotOfThisJournal, ProvenLoss, is_blank, judge
from tandemmq.store.recovery.lag import Lag, ReadProgress
from tandemmq.store.recovery.neighbours import known_to_neighbours, scratch_directory
from tandemmq.store.recovery.prediction import ReplaySpeed
from tandemmq.store.recovery.sealed_files import SealedFiles
from tandemmq.store.recovery.stepwise_checkpoint import StepwiseCheckpoint
from tandemmq.store.state.replay import Replay
from tandemmq.store.state.state import OtherNumbering, State
from tandemmq.store.state.tail import Frozen, Position
from tandemmq.store.threads import OS_THREADS, Threads

__all__ = ["Follower", "IndexNotOfThisJournal", "JournalLost", "StoreCorrupt"]

log = logging.getLogger(__name__)

# Seconds between checks whether the index still is ahead of the journal. Each check reads a file to its end.
JUDGE_SECONDS = 5.0
# Reading waits for the checkpoint if the tail has this multiple of the initial ``records_per_checkpoint``. The multiple
# is higher for a promotion, because clients wait for it.
TAILS_MAX = 2
TAILS_MAX_FINAL = 3


class _Hole(Exception):
    """Damage in bytes that were never synced. It is no loss: the file ends before the damage, at ``offset``."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


def _no_horizon() -> None:
    """Return None: without a horizon, all settled batches may be read."""


class Follower:
    """State that is kept up to date with a journal directory. One thread at a time. Raises IndexNotOfThisJournal.

    records_per_checkpoint  number of records after which a checkpoint begins; the initial value limits the memory
    should_halt             True: reading and checkpoints end soon
    has_room                False: a standby defers its checkpoints, and then its reading
    ignores_missing         ActiveMQ's ignoreMissingJournalfiles; only for ``advance(is_final=True)``
    checks_all              ActiveMQ's checkForCorruptJournalFiles; only for ``advance(is_final=True)``
    index_root              directory with the indexes of other brokers, which may show that batches are lost
    is_trial                nothing is copied into quarantine, and no repairs are determined
    has_foreign_index       whether ActiveMQ was the last broker of the directory
    on_read                 called after each batch with the position up to which the journal was read
    horizon                 position up to which a standby may read (``store.authority``); does not limit a promotion
    mend                    called with each file that a standby cannot read, at each attempt; does not block

    Between two calls of ``advance`` the owner calls ``work_on_checkpoint``.
    """

    def __init__(
        self,
        files: JournalFiles,
        index: Index,
        *,
        records_per_checkpoint: int,
        should_halt: Callable[[], bool] = lambda: False,
        has_room: Callable[[], bool] = lambda: True,
        ignores_missing: bool = False,
        checks_all: bool = False,
        index_root: str | None = None,
        is_trial: bool = False,
        first_owner: int = 0,
        audit: ProducerAudit | None = None,
        has_foreign_index: Callable[[], bool] = lambda: False,
        on_read: Callable[[Position], None] | None = None,
        horizon: Callable[[], tuple[int, int] | None] = _no_horizon,
        mend: Callable[[int], object] = lambda file: None,
        threads: Threads = OS_THREADS,
    ) -> None:
        self.files = files
        self.index = index
        self._clock = threads.monotonic
        started = self._clock()
        try:
            self.state = State(index, index.meta, first_owner=first_owner, audit=audit)
        except IndexDamaged as error:
            raise IndexNotOfThisJournal(f"it is damaged: {error}") from error
        except OtherNumbering as error:
            raise IndexNotOfThisJournal("it belongs to another store of this broker") from error
        if not self.state.knows_ranks:
            raise IndexNotOfThisJournal("it was made by a version that did not keep the priorities of messages")
        if not self.state.knows_later_records:
            raise IndexNotOfThisJournal("it was made by a version that did not keep all records of subscriptions")
        self.load_seconds = self._clock() - started  # duration of loading the last checkpoint
        self.replay = Replay(self.state)
        self.records_per_checkpoint = records_per_checkpoint
        self._tail_records = records_per_checkpoint
        self.has_caught_up = False  # the last ``advance`` read all settled batches
        self.speed = ReplaySpeed()
        self._progress = ReadProgress()
        self._horizon = horizon
        self._mend = mend
        # (live file, end of its last good batch, its records that are not settled)
        self._live_end = (0, 0, 0)
        self._headers = HeaderReader(files)
        self._sealed = SealedFiles(files, self._headers, checks_all=checks_all)
        self._checkpoint = StepwiseCheckpoint(index, self.state, self.replay, self._clock)
        self._ledger = DamageLedger(
            files,
            self.state,
            self._later_files,
            ignores_missing=ignores_missing,
            is_trial=is_trial,
            has_foreign_index=has_foreign_index,
        )
        self.damages = self._ledger.damages  # damage that was skipped
        self.torn = self._ledger.torn  # torn tails, which are ignored
        self.repairs: list[bytes] = []
        self._repairs_pin: set[int] = set()
        self._should_halt = should_halt
        self._has_room = has_room
        self._index_root = index_root
        self._is_trial = is_trial
        self._on_read = on_read
        self._disk = files.disk
        # (file, inode) -> end that was found by reading, for files whose end no header states. The inode is in the key
        # because another file may get the same number.
        self._ends_seen: dict[tuple[int, int], int] = {}
        self._known_at_start = set(self.state.files)
        self._unnamed_before: set[int] = set()  # result of ``_unnamed`` of the previous ``advance``
        self._start_position = self.state.position
        self._end_marker: tuple[int, int] | None = None  # (file, the next file according to the last end marker)
        self._loss: ProvenLoss | None = None
        self._is_waiting = False
        self._is_judged = False
        if self._may_read(limit := horizon()):
            self._judge(self.read_headers(limit))

    @property
    def epoch_history(self) -> EpochHistory:
        """Headers of all files as of the last read of the directory."""
        return self._headers.epoch_history

    def end_of(self, file: int) -> int | None:
        """Return the end of the file that a header states, or None."""
        return self.epoch_history.ends.get(file)

    # ---- check that the index belongs to the journal

    def _judge(self, ids: Sequence[int]) -> None:
        self._is_judged = True
        self._judged_at = self._clock()
        try:
            self._loss = judge(self.files, ids, self.epoch_history, self.state, self._headers.has_batches)
        except IndexDamaged as error:
            raise IndexNotOfThisJournal(f"it is damaged: {error}") from error
        except JournalMissing:
            self._loss = None  # the file was reclaimed during the check

    def read_headers(self, horizon: tuple[int, int] | None = None, *, at_disk: bool = False) -> Sequence[int]:
        """List the files up to ``horizon`` and read their headers. Return the ids of the files, ascending.

        ``at_disk``: headers that may not be synced are read from the disk, not from the page cache. Raises
        IndexNotOfThisJournal if the position of the index is after the end of its file.
        """
        if at_disk:
            ids = self._headers.refresh_from_disk()
        else:
            ids = self._headers.refresh(None if horizon is None else horizon[0])
        position = self.state.position
        if position is not None:
            end = self.epoch_history.ends.get(position.file)
            if end is not None and position.offset > end:  # prove: index-behind-end "position.offset > end" -> "False"
                raise IndexNotOfThisJournal(f"its position is after the end of file {position.file} ({end})")
        return ids

    # ---- following

    def _may_read(self, horizon: tuple[int, int] | None) -> bool:
        """Return whether the horizon is at or after the position of the index. At first it may be unknown, (0, 0)."""
        position = self.state.position
        return horizon is None or horizon >= ((0, 1) if position is None else (position.file, position.offset))

    def advance(self, *, is_final: bool = False) -> dict[int, int]:
        """Apply the settled records since the last call. With ``is_final``, apply all good batches of all files.

        Return {file: end} for files whose end no header states, if ``is_final``. If final, raises StoreCorrupt for
        damage and JournalLost for a missing file, unless ``ignores_missing``. A standby logs that it waits instead,
        because the batch may be incomplete at this moment. Raises IndexNotOfThisJournal.
        """
        try:
            return self._advance(is_final)
        except IndexDamaged as error:
            raise IndexNotOfThisJournal(f"it is damaged: {error}") from error
        except (JournalCorrupt, JournalMissing) as reason:
            if is_final:
                raise
            if isinstance(reason, JournalCorrupt):  # a missing file may have been given up
                self._mend(reason.file)
            self._wait(str(reason))
            return {}

    def _advance(self, is_final: bool) -> dict[int, int]:
        self.has_caught_up = False
        self._live_end = (0, 0, 0)
        started = self._clock()
        state = self.state
        found: dict[int, int] = {}
        horizon = None if is_final else self._horizon()
        if not self._may_read(horizon):
            return found
        ids = self.read_headers(horizon, at_disk=is_final and not self._is_trial)
        ends = self.epoch_history.ends
        if horizon is not None:
            ends = {horizon[0]: horizon[1], **ends}  # prove: read-up-to-the-horizon "horizon[0]: horizon[1], "
        if not self._is_judged:
            self._judge(ids)
        elif self._loss is not None and (is_final or self._clock() - self._judged_at > JUDGE_SECONDS):
            self._judge(ids)  # the cache of this host may have been out of date
        if self._loss is not None:
            if not is_final:
                self._wait(describe_damages(self._loss.damages))
                return found
            self._ledger.handle(self._loss.damages)
            state.position, self._loss = self._loss.resume, None
        self._note_missed(ids)
        unnamed = self._unnamed(ids)
        # prove: unnamed-file-is-missing " | unnamed"
        self.replay.missing = state.files.keys() - set(ids) | unnamed
        for file in ids:
            state.know_file(file)
        for file, other in self._headers.misplaced.items():
            misplaced = JournalCorrupt(file, 0, self.files.size(file), f"it has the header of db-{other}.log")
            if not is_final:
                raise misplaced
            self._on_corrupt(misplaced)
        if not ids:
            self._progress.reach(started, *self._live_end)
            self.has_caught_up = True
            return found
        if state.position is None:
            state.position = Position(ids[0], 0)
        start = state.position
        if not is_final and (hole := self._missing_content(start)) is not None:
            self._wait(f"db-{hole}.log is blank, but a header states that it was written")
            return found
        self._progress.refresh(ids, start, ends, self._headers.size)
        for number, file in enumerate(ids):
            position = state.position
            if file < position.file:
                if is_final and file not in self.epoch_history.ends and file not in self._headers.misplaced:
                    found[file] = self._ends_seen.get(self._headers.key(file)) or self._end_left_at(file, ids)
                continue
            if file > position.file:
                state.position = position = Position(file, 0)
            end = ends.get(file)
            if file in self._headers.misplaced and end is None:
                found[file] = 0
            # prove: misplaced-is-not-read " or file in self._headers.misplaced"
            if end == 0 or file in self._headers.misplaced:
                continue
            # A file is settled if a header states its end, or if a master has written to a later file.
            following = self._next_written(ids[number + 1 :], unnamed)
            is_settled = is_final or end is not None or following is not None
            if following is not None and end is None and not is_final and not self._headers.has_read(following):
                # The later file may have its header now, and that may state an end of this file.
                self.read_headers(horizon)  # prove: gone-on-may-name-the-end
                end = self.epoch_history.ends.get(file)
            if not self._read(file, position.offset, end, is_settled=is_settled, is_final=is_final):
                return found
            if is_settled and end is None:
                found[file] = self._ends_seen[self._headers.key(file)] = state.position.offset
            if not is_settled:
                break
        if is_final:
            self._check_unread(ids, start)
        else:
            self._sealed.check_ahead(ids, state.position.file)
        self._progress.reach(started, *self._live_end)
        self.has_caught_up = True
        self._drop_missing_files(set(ids), is_final=is_final)
        if is_final and self.damages and not self._is_trial:
            self._determine_repairs(found)
            self.pin_for_repairs(ids[-1])
        return found

    def _note_missed(self, ids: Sequence[int]) -> None:
        """Note the files that the newest header names but that are missing. The files after them are read anyway,
        because a later record may give the missing files up. Raises IndexNotOfThisJournal if such a file appears again,
        because it was not read."""
        state = self.state
        newest = self.epoch_history.newest
        if not newest:
            return
        named = {*self.epoch_history.named}
        state.missed.intersection_update(named)
        state.missed.difference_update(state.given_up)
        if back := state.missed.intersection(ids):  # prove: passed-file-that-is-back-is-read
            raise IndexNotOfThisJournal(f"db-{min(back)}.log was missing when later files were read")
        away = named.difference(ids, state.files, state.given_up)
        # Files before the position existed, or were given up, when the records in the index were read.
        first, ends = 0 if state.position is None else state.position.file, self.epoch_history.ends
        state.missed.update(file for file in away if first <= file < newest and ends.get(file) != 0)

    def _unnamed(self, ids: Iterable[int]) -> set[int]:
        """Return the files before the newest header that it does not name. They were given up before: either they are
        not removed yet, or a deposed broker linked an empty file with the number of a removed one."""
        newest = self.epoch_history.newest
        return {file for file in ids if file < newest} - {*self.epoch_history.named}

    def _next_written(self, later: Sequence[int], unnamed: set[int]) -> int | None:
        """Return the first of the files ``later`` that a master wrote to, or None. Fences of failed promotions and
        ``unnamed`` files do not count.

        Such a file shows that the files before it are complete, even if no header states their ends: ActiveMQ writes no
        ends, and a header may be reclaimed before the file whose end it states.
        """
        ends = self.epoch_history.ends
        following = next(
            (
                file
                for file in later
                if ends.get(file) != 0  # prove: standby-passes-empty-fences "ends.get(file) != 0" -> "True"
                and file not in unnamed  # prove: standby-passes-unnamed-files "and file not in unnamed"
            ),
            None,
        )
        return following if following is not None and self._headers.has_batches(following) else None

    def _missing_content(self, position: Position) -> int | None:
        """Return a blank file that a header names as written, or None. Its content may still appear, or the file may be
        given up."""
        named = self.epoch_history.named
        holes = (file for file in self._headers.listed if file >= position.file and file not in self._headers.ids)
        return next((file for file in holes if file in named and file not in self.state.given_up), None)

    def _end_left_at(self, file: int, ids: Sequence[int]) -> int:
        """Return the end of a file that is included in the index, but whose end no header states. This is usual if
        ActiveMQ wrote the next file.

        Raises IndexNotOfThisJournal if no later file was written: then the header with the end was never on the disk.
        """
        end = scanned_end(self.files, file, on_corrupt=self._on_corrupt)
        went_on = any(self._headers.has_batches(other) for other in ids if other > file)
        if end and not went_on:  # prove: end-never-on-disk " and not went_on" -> " and False"
            raise IndexNotOfThisJournal(f"it continued after db-{file}.log, whose end no header states")
        return end

    def _read(self, file: int, start: int, end: int | None, *, is_settled: bool, is_final: bool) -> bool:
        """Apply the batches of a file from ``start``. Return False if reading was interrupted."""
        is_unsynced = is_final and end is None and self.epoch_history.may_have_holes(file)

        def on_corrupt(damage: JournalCorrupt) -> None:
            if self._ledger.is_declared(damage.file, damage.start, damage.stop):
                return
            if not is_final:
                raise damage
            if is_unsynced:
                raise _Hole(damage.start) from damage
            self._on_corrupt(damage)

        # A promotion reads from the disk, not from this host's cache: after a failed sync the two may differ.
        batches = scan(
            self.files,
            file,
            start,
            end,  # prove: read-up-to-the-end "end" -> "None"
            is_live=not is_settled,
            drop_cache=is_final,  # prove: promotion-drops-cache
            on_corrupt=on_corrupt,
        )
        try:
            if is_final and end is None and not self._is_trial:
                # A checkpoint may follow before the end of the file, and may cover only synced records.
                self.files.sync(file)  # prove: sync-before-reading
            if not self._settle_all(file, batches, is_settled, is_final):
                return False
        except _Hole as hole:
            self._ledger.forget(file, hole.offset, "it was never synced; it and all later bytes are ignored")
        else:
            if is_final and end is None:
                self._check_end(file, batches.ending.offset, batches.ending.kind)
        self._is_waiting = self._is_waiting and not is_settled
        return True

    def _settle_all(self, file: int, batches: Iterable[Batch], is_settled: bool, is_final: bool) -> bool:
        """Apply the batches. Return False if reading was interrupted. The last batch of an unsettled file is not
        applied."""
        started = self._clock() - self._checkpoint.seconds
        records = self.replay.records
        held: Batch | None = None
        for batch in batches:
            if not is_final and self._is_full:  # prove: full-standby-stops-reading "self._is_full" -> "False"
                return False
            if is_settled:  # prove: last-batch-is-only-seen
                self._settle(file, batch, is_final)
            elif held is not None:
                self._settle(file, held, is_final)
            if not is_final and self._should_halt():
                return False
            held = batch
        self.speed.note(self.replay.records - records, self._clock() - self._checkpoint.seconds - started)
        if not is_settled:
            end = held.end if held is not None else self.state.position.offset if self.state.position else 0
            self._live_end = file, end, 0 if held is None else len(held.records)
        return True

    def _settle(self, file: int, batch: Batch, is_final: bool) -> None:
        apply = self.replay.apply
        base = location(file, 0)
        for offset, payload in batch.records:
            try:
                if not payload:
                    raise RecordDamaged("it is empty")
                apply(base + offset, payload)
                if payload[0] == 0:
                    self._note_trace(file, payload)
            except RecordDamaged as error:
                stop = offset + RECORD_HEADER_SIZE + len(payload)
                damage = JournalCorrupt(file, offset, stop, f"the record cannot be read: {error}")
                if not is_final:
                    raise damage from error
                self._on_corrupt(damage)
        self.state.position = Position(file, batch.end, batch.offset, batch.checksum)
        if self._on_read is not None:
            self._on_read(self.state.position)
        self._progress.read(len(batch.records), batch.end - batch.offset)
        if self.state.tail.operations >= self.records_per_checkpoint:
            self._bound_the_tail(is_final)

    def _note_trace(self, file: int, payload: bytes) -> None:
        self.state.given_up.update(decode_gone(payload))
        following = decode_next(payload)
        if following is not None:
            self._end_marker = file, following
        self._ledger.note_mark(file, payload)

    # ---- checkpoints

    def checkpoint(self) -> None:
        """Write the state into the index; durable on return. No files are reclaimed, because only a master may."""
        self._checkpoint.finish()
        if self.state.position is not None:
            self.begin_checkpoint()
            self._checkpoint.finish()

    def begin_checkpoint(self) -> None:
        """Begin a checkpoint of the current state, unless one is in progress or nothing was read yet."""
        if not self._checkpoint.is_under_way and self.state.position is not None:
            self.state.epoch = self.epoch_history.epoch_at(self.state.position.file)  # prove: index-names-its-epoch
            self._checkpoint.begin(self.epoch_history.first_of_epoch)

    def work_on_checkpoint(self, seconds: float) -> None:
        """Continue the checkpoint in progress for at most ``seconds``. Return early if ``should_halt`` or not
        ``has_room``."""
        stop = self._clock() + seconds
        self._checkpoint.work(lambda: self._clock() < stop and self._may_write())

    def _may_write(self) -> bool:
        return not self._should_halt() and self._has_room()  # prove: standby-spares-the-reserve " and self._has_room()"

    @property
    def _is_full(self) -> bool:
        """True if reading must wait for the checkpoint in progress, because the tail has too many operations."""
        return self._checkpoint.is_under_way and self.state.tail.operations >= TAILS_MAX * self._tail_records

    def abandon_checkpoint(self) -> Frozen | None:
        """Stop the checkpoint in progress and return its content, which the new owner of the index must write first.
        None: no checkpoint was in progress."""
        return self._checkpoint.abandon()

    @property
    def could_remove_more(self) -> bool:
        """True if files that were given up cannot be removed before a checkpoint, because the position of the index on
        the disk is in them or before them."""
        covered, position, given_up = self._checkpoint.covered, self.state.position, self.state.given_up
        reached = 0 if covered is None else covered.file
        if position is None:
            return False
        return any(reached <= file < position.file for file in self._headers.listed if file in given_up)

    def remove_given_up(self) -> None:
        """Remove files that were given up and that the index on the disk does not need, oldest first; durable on
        return.

        Only for a standby with its own journal: on a shared volume the master removes files. Returns soon if
        ``should_halt``.
        """
        covered, given_up = self._checkpoint.covered, self.state.given_up
        if covered is None:
            return
        # prove: needed-by-the-index-stays " and file < covered.file"
        removable = [file for file in self._headers.listed if file in given_up and file < covered.file]
        for file in removable:
            if self._should_halt():
                return
            # One at a time, each with a sync of the directory, as a master removes them.
            self.files.remove([file])  # prove: own-unlinks-are-synced-each "[file]" -> "removable"

    def _bound_the_tail(self, is_final: bool) -> None:
        operations = self.state.tail.operations
        if is_final:
            if not self._may_read(self._horizon()):
                return  # prove: index-waits-for-final
            if operations >= TAILS_MAX_FINAL * self._tail_records:
                if not self._is_trial and self.state.position is not None:
                    # A deposed master may have written after the file was synced.
                    self.files.sync(self.state.position.file)  # prove: checkpoint-while-reading-syncs
                self.checkpoint()
            return
        self.begin_checkpoint()
        if operations >= TAILS_MAX * self._tail_records:
            self._checkpoint.work(self._may_write)

    def lag(self) -> Lag:
        """Return the lag of the state behind the visible journal. Any thread."""
        return self._progress.lag(self.state.position, self._clock())

    def _wait(self, reason: str) -> None:
        """Log once that a standby cannot continue. The batch may become complete; otherwise a promotion will report
        the damage."""
        if not self._is_waiting:
            self._is_waiting = True
            log.warning("the standby waits: %s", reason, extra=log_events.STANDBY_WAITS)

    # ---- damage

    def _on_corrupt(self, damage: JournalCorrupt) -> None:
        self._ledger.handle([Damage(damage.file, damage.start, damage.stop, damage.reason)])

    def _later_files(self, file: int) -> dict[int, int | None]:
        return {number: self.epoch_history.ends.get(number) for number in self._headers.ids if number > file}

    def _check_end(self, file: int, end: int, kind: EndingKind) -> None:
        """Report batches that are missing after ``end``, the end of the last good batch, or note a torn tail there."""
        header = self.epoch_history.headers.get(file)
        size = self.files.size(file)
        if header is not None and size < header.length and kind is not EndingKind.END_RECORD:
            self._ledger.handle(
                [Damage(file, end, header.length, f"it was made {header.length} bytes long and has {size}")]
            )
        elif self._index_root is not None:
            root, place = self._index_root, (file, end)
            self._ledger.handle(
                known_to_neighbours(
                    root,
                    self.files,
                    self._headers.ids,
                    self.epoch_history,
                    self._headers.has_batches,
                    place,
                    self._disk,
                )
            )
        if kind is EndingKind.TORN and not any(each.file == file and each.start <= end for each in self.damages):
            self._ledger.forget(file, end, "the last write is incomplete, and got no receipt")

    def _check_unread(self, ids: Sequence[int], start: Position) -> None:
        for file in ids:
            was_just_read = file > start.file or (file == start.file and start.offset == 0)
            damages = [] if was_just_read else self._sealed.damage_in(file)
            if damages:
                self._ledger.handle(damages)

    def _drop_missing_files(self, existing: set[int], *, is_final: bool) -> None:
        """Remove missing files from the state; with ``is_final``, report those that are needed as lost.

        Files that the newest header does not name were reclaimed before it. The state may still have messages in them:
        these were removed by records in other files, which were also reclaimed before they were read.
        """
        state = self.state
        newest, named = self.epoch_history.newest, self.epoch_history.named
        began = self._start_position
        lost: list[Damage] = []
        gone = sorted({*state.files, *named} - existing)
        held_by_records = state.held_by_records() if gone and not newest else set()
        if newest:
            state.given_up.intersection_update({*named, *existing})  # other numbers need not be kept
            unnamed = self._unnamed(existing)
            for file in sorted(unnamed - self._unnamed_before):
                state.lose_file(file)  # prove: unnamed-file-holds-nothing
            self._unnamed_before = unnamed
            state.given_up.update(unnamed)
        for file in gone:
            held = state.files.get(file)
            if not newest:
                is_needed = held is not None and (held.live > 0 or file in held_by_records)
                reason = "messages or transactions in it are needed"
            else:
                # The index had all files up to its position that were not given up before. A file that was removed
                # after the directory was listed is in the state only because of that listing.
                was_given_up = file in state.given_up or (
                    began is not None
                    and file not in state.missed  # prove: passed-file-was-not-given-up " and file not in state.missed"
                    and file not in self._known_at_start
                    and (file < began.file or (file == began.file and held is None))
                )
                # A file whose stated end is 0 has no content, so it may be missing.
                is_needed = file in named and not was_given_up and self.epoch_history.ends.get(file) != 0
                reason = f"the header of db-{newest}.log names it, and no record gives it up"
            if is_needed:
                lost.append(Damage(file, 0, WHOLE_FILE, reason, is_lost=True))
            else:
                state.lose_file(file)
        if not is_final:
            return
        if self._end_marker is not None:
            former, following = self._end_marker
            if following > newest and not self._headers.has_batches(following):
                reason = f"the end marker of db-{former}.log shows that this file had its header"
                is_lost = is_blank(self.files, following)
                stop = WHOLE_FILE if is_lost else self.files.size(following)
                lost.append(Damage(following, 0, stop, reason, is_lost=is_lost))
        self._ledger.handle(lost)
        for file in self._headers.listed:  # a crash may have prevented the removal of a file that was given up
            state.know_file(file)
        # A deposed broker linked a file with the number of one that was given up: no header may name it.
        state.given_up.update({*self._headers.listed} - existing)  # prove: hole-is-given-up

    # ---- repairs

    def _determine_repairs(self, found: dict[int, int]) -> None:
        for damage in self.damages:
            end = found.get(damage.file)
            if not damage.is_lost and (end is None or damage.start < end):
                self.repairs.append(encode_lost(damage.file, damage.start, damage.stop))
                self._repairs_pin.add(damage.file)
        if self._start_position is None or all(
            (damage.file, damage.start) >= (self._start_position.file, self._start_position.offset)
            for damage in self.damages
        ):
            return  # the index was made before the damaged ranges, so a replay has the same result
        log.warning("the whole journal is replayed, to find records that the damage hides")
        with (
            scratch_directory(self._disk, "tandemmq-replay-") as scratch,
            Index.open(scratch, self._disk) as index,
        ):
            replayed = Follower(
                self.files,
                index,
                records_per_checkpoint=self.records_per_checkpoint,
                ignores_missing=True,
                is_trial=True,
            )
            replayed.advance(is_final=True)
            reconciliation = reconcile(self.files, self.state, replayed.state, self._ledger.dropped)
        self.repairs += reconciliation.payloads
        self._repairs_pin |= reconciliation.pins
        if reconciliation.rescued:
            log.warning(
                "rescued from older records: %s", listed([message_id for _, message_id in reconciliation.rescued])
            )
        for key in reconciliation.rolled_back:
            log.error("prepared transaction %s has lost a part of its operations, and is rolled back", key)

    def pin_for_repairs(self, file: int) -> None:
        """Note that ``file`` contains repairs: it is needed as long as the files whose records the repairs cancel.
        ``advance`` calls this for the newest file. A caller that writes repairs to a later file calls it for that
        file."""
        for pinned in self._repairs_pin:
            self.state.pin(file, pinned)
