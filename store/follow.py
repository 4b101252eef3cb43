"""Reading the journal into the state: a standby follows the master with it, a promotion finishes with it.

It writes nothing but its own index. A standby settles a batch only when a later batch of that file, or an end that
a header names, covers it: the last batch of a live file may yet turn out not to count (safety.md 4). When this
broker owns the lock and has put up its fence, nothing more can change, and every good batch counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from index.index import Index
from journal.errors import JournalCorrupt, JournalMissing
from journal.files import JournalFiles
from journal.format import location
from journal.scan import Batch, FileSource, Scan, scan
from store.audit import ProducerAudit
from store.headers import Chronicle, Header, decode_header, read_chronicle
from store.replay import Replay
from store.state import OtherNumbering, State
from store.tail import Position, changes

log = logging.getLogger(__name__)

# Read of each file to see its header; a longer one takes a second read.
HEADER_BYTES = 4096


class IndexNotOfThisJournal(Exception):
    """The index tells of batches that are not in the journal, or do not count: it is to be set aside."""


class _Hole(Exception):
    """Damage in what was never synced: the file ends before it."""


def _stop_at_hole(damage: JournalCorrupt) -> None:
    raise _Hole from damage


class JournalLost(Exception):
    """A journal file that held live messages is not there, and nobody said that it would go."""


class Follower:
    """A state that keeps up with a journal directory. One thread at a time may use it.

    ``records_per_checkpoint`` bounds what is held in memory: beyond it the tail goes into the index at once.
    ``first_owner`` and ``audit``: see State.
    """

    def __init__(
        self,
        files: JournalFiles,
        index: Index,
        *,
        records_per_checkpoint: int,
        should_halt: Callable[[], bool] = lambda: False,
        first_owner: int = 0,
        audit: ProducerAudit | None = None,
    ) -> None:
        self.files = files
        self.index = index
        try:
            self.state = State(index, index.meta, first_owner=first_owner, audit=audit)
        except OtherNumbering as reason:
            raise IndexNotOfThisJournal(str(reason)) from reason
        self.replay = Replay(self.state)
        self.records_per_checkpoint = records_per_checkpoint
        self._should_halt = should_halt
        self.chronicle = Chronicle({}, {})
        self.has_caught_up = False
        self._headers: dict[int, Header] = {}
        self._ends_seen: dict[int, int] = {}  # of files that ActiveMQ wrote and left behind
        self._verify_index()

    # ---- the index and the journal belong together

    def _verify_index(self) -> None:
        position = self.state.position
        if position is None:
            return
        ids = self.read_headers()
        if position.file not in ids:
            if not ids or position.file > ids[-1]:
                last = ids[-1] if ids else 0
                raise IndexNotOfThisJournal(f"it stands in file {position.file}, the journal ends with file {last}")
            return  # reclaimed since: an index of any age catches up
        epoch = self.chronicle.epoch_at(position.file)
        if self.state.epoch != epoch:
            raise IndexNotOfThisJournal(f"it was made in epoch {self.state.epoch}, file {position.file} is of {epoch}")
        if position.offset == 0:
            return
        batches = iter(scan(self.files, position.file, position.batch, position.offset, is_live=True))
        found = next(batches, None)
        if found is None or found.end != position.offset or found.checksum != position.checksum:
            raise IndexNotOfThisJournal(
                f"its last batch, file {position.file} bytes {position.batch} to {position.offset}, reads differently"
            )

    def _header_of(self, file: int) -> Header | None:
        """The header of a file. It does not change any more, so it is read once; whoever has none may yet get one."""
        header = self._headers.get(file)
        if header is None:
            payload = self._first_payload(file)
            header = None if payload is None else decode_header(payload)
            if header is not None:
                self._headers[file] = header
        return header

    def _first_payload(self, file: int) -> bytes | None:
        """The first record of a file, None if it has no good batch."""
        source = partial(FileSource, self.files, file)
        try:
            batch = next(iter(Scan(source, file, is_live=True, chunk_bytes=HEADER_BYTES)), None)
        except JournalMissing:
            return None  # reclaimed while we listed
        return batch.records[0][1] if batch is not None and batch.records else None

    def read_headers(self) -> Sequence[int]:
        """Look which files exist and what their headers say; returns the ids. Names no end that is not named."""
        ids = self.files.list()
        for file in self._headers.keys() - set(ids):
            del self._headers[file]
        self.chronicle = read_chronicle(ids, self._header_of)
        position = self.state.position
        if position is not None:
            end = self.chronicle.ends.get(position.file)
            if end is not None and position.offset > end:
                raise IndexNotOfThisJournal(f"it stands behind the end of file {position.file} ({end})")
        return ids

    # ---- following

    def advance(self, *, is_final: bool = False) -> dict[int, int]:
        """Apply what came since the last call; with ``is_final`` to the very end of every file.

        Returns the ends found of files whose end no header names (only with ``is_final``). Raises JournalCorrupt
        for damage in the middle when final; a standby waits instead, for it may be reading what is being written.
        """
        ids = self.read_headers()
        state = self.state
        found: dict[int, int] = {}
        for file in ids:
            state.know_file(file)
        if not ids:
            self.has_caught_up = True
            return found
        if state.position is None:
            state.position = Position(ids[0], 0)
        for number, file in enumerate(ids):
            position = state.position
            if file < position.file:
                if is_final and file not in self.chronicle.ends:
                    found[file] = self._ends_seen.get(file) or self._end_of(file)
                continue
            if file > position.file:
                state.position = position = Position(file, 0)
            end = self.chronicle.ends.get(file)
            if end == 0:
                continue
            has_successor = number + 1 < len(ids)
            # A file is settled when its end is named, or when ActiveMQ, which names none, has gone on to the next.
            is_settled = is_final or end is not None or (has_successor and self._has_batches(ids[number + 1]))
            if not self._read(file, position.offset, end, settle_last=is_settled, is_final=is_final):
                return found
            if is_settled and end is None:
                found[file] = self._ends_seen[file] = state.position.offset
            if not is_settled:
                break
        self.has_caught_up = True
        self._drop_what_is_gone(set(ids), is_final=is_final)
        return found

    def _has_batches(self, file: int) -> bool:
        return self._first_payload(file) is not None

    def _end_of(self, file: int) -> int:
        end = 0
        for batch in scan(self.files, file):
            end = batch.end
        return end

    def _read(self, file: int, start: int, end: int | None, *, settle_last: bool, is_final: bool) -> bool:
        held: Batch | None = None
        on_corrupt = None
        if is_final and end is None and self.chronicle.may_have_holes(file):
            on_corrupt = _stop_at_hole
        try:
            # At a promotion the disk is read, not what this host remembers: after a failed sync the two may differ.
            batches = scan(
                self.files, file, start, end, is_live=not is_final, drop_cache=is_final, on_corrupt=on_corrupt
            )
            for batch in batches:
                if held is not None:
                    self._settle(file, held)
                if not is_final and self._should_halt():
                    return False
                held = batch
        except _Hole as hole:
            log.warning("%s: it was never synced; that and what stands behind it is forgotten", hole.__cause__)
        except (JournalCorrupt, JournalMissing):
            if is_final:
                raise
            return False
        if held is not None and settle_last:
            self._settle(file, held)
        return True

    def _settle(self, file: int, batch: Batch) -> None:
        apply = self.replay.apply
        base = location(file, 0)
        for offset, payload in batch.records:
            apply(base + offset, payload)
        self.state.position = Position(file, batch.end, batch.offset, batch.checksum)
        if self.state.tail.operations >= self.records_per_checkpoint:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write the state into the index; durable on return. Nothing is reclaimed: only a master may."""
        if self.state.position is None:
            return
        self.state.epoch = self.chronicle.epoch_at(self.state.position.file)
        frozen = self.state.freeze(self.chronicle.first_of_epoch, 0)
        for _ in self.index.checkpoint(changes(frozen), frozen.meta):
            pass
        self.state.thaw()
        self.replay.forget_ids()

    def _drop_what_is_gone(self, existing: set[int], *, is_final: bool) -> None:
        """Let go of files that are not there. Those that the newest header does not name were reclaimed before it, and
        what we still believe to live in them died in files that went, too, before we read them."""
        lost: list[str] = []
        for file in [file for file in self.state.files if file not in existing]:
            live = self.state.files[file].live
            if live == 0 or self.chronicle.is_reclaimed(file):
                self.state.lose_file(file)
            else:
                lost.append(f"db-{file}.log ({live} messages)")
        if not is_final:
            return
        if lost:
            raise JournalLost(f"journal files that hold messages are missing: {', '.join(lost)}")
        for file in existing:  # given up, yet a crash came before its unlink: to be reclaimed anew
            self.state.know_file(file)
