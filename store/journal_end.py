"""The end of the journal, where this epoch writes: batches, syncs, looks, rotation. For the storage thread alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future

from journal.writer import JournalWriter
from store.background import Background
from store.damage import encode_next
from store.figures import Figures
from store.headers import Header, encode_header
from store.marks import encode_clock
from store.settings import StoreSettings
from store.space import Space
from store.state import State
from store.tail import Position
from store.threads import OS_THREADS, Threads


class NoProof(Exception):
    """The locker cannot prove any more that this broker is the master: no proof, no receipt."""


class JournalEnd:
    """See the module. Every failure of the disk is final: the writer latches, and raises at each later call.

    ``has_proof``: is the locker's last proof of ownership young enough? ``background`` makes the next file.
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
        has_proof: Callable[[], bool],
        background: Background,
        clock: Callable[[], float],
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
        self._has_proof = has_proof
        self._background = background
        self._clock = clock
        self._threads = threads
        self._is_next_ready = False
        self._last_sync = clock()
        # When, by the clock, the next batch of operations begins with a mark: the first one of each file does.
        self._mark_due = self._first_mark = -math.inf if settings.clock_mark_interval < math.inf else math.inf

    def write(self, payloads: list[bytes], size: int, *, must_sync: bool = False, is_upkeep: bool = False) -> list[int]:
        """One batch of ``size`` bytes of payloads; the locations of their records. It was looked at on return, and is
        durable as far as the sync strategy goes.

        Unless ``is_upkeep``, a record that shows the time is written before them when ``clock_mark_interval`` is over.
        """
        writer = self.writer
        if writer.is_full(size + 5 * len(payloads)):
            self._rotate()
        start = writer.position[1]
        marks = 0
        if not is_upkeep and (now := self._clock()) >= self._mark_due:
            self._mark_due = now + self._settings.clock_mark_interval
            mark = encode_clock(int(self._threads.wall() * 1000))
            payloads = [mark, *payloads]
            size += len(mark)
            marks = 1
        locations = writer.append(payloads)
        self.is_unsynced = True  # prove: written-is-unsynced
        strategy = self._settings.journal_disk_sync_strategy
        if (  # prove: sync-before-look order look-before-answer
            must_sync  # prove: what-must-be-synced-is
            or strategy == "always"  # prove: every-batch-is-synced
            or (strategy == "periodic" and self._clock() - self._last_sync >= self._settings.journal_disk_sync_interval)
        ):
            self.sync()
        self.look()  # prove: look-before-answer
        file, end = writer.position
        self._state.position = Position(file, end, start, writer.checksum)
        self._figures.batches += 1
        self._figures.records += len(payloads)
        self._figures.bytes_written += size
        self._space.note_written(size)
        return locations[marks:] if marks else locations

    def sync(self) -> None:
        """All that was written is durable on return."""
        self.writer.sync()
        self.is_unsynced = False
        self._last_sync = self._clock()
        self._figures.syncs += 1

    def look(self) -> None:
        """Raises Deposed when another broker is master, NoProof when nobody can tell that it is still this one."""
        looked_at = self._threads.boottime()  # prove: look-time-from-before order look-asks-the-files
        self.writer.look()  # prove: look-asks-the-files
        if not self._has_proof():  # prove: no-proof-no-receipt
            raise NoProof("the locker's last proof of ownership is too old")
        self._figures.last_look = looked_at  # prove: look-time-noted
        if (
            self.is_unsynced
            and self._settings.journal_disk_sync_strategy == "periodic"
            and self._clock() - self._last_sync >= self._settings.journal_disk_sync_interval
        ):
            self.sync()

    def settle(self) -> None:
        """Whatever the strategy: all that was written is durable on return, and was looked at."""
        if self.is_unsynced:
            self.sync()  # prove: settling-syncs order settling-looks
            self.look()  # prove: settling-looks

    def _rotate(self) -> None:
        """Begin the next file as a promotion does, after the old file's last sync and look."""
        writer = self.writer
        if self.preparing is not None:
            self._background.wait(self.preparing)  # if it failed, the rotation tries itself, and fails for good
            self.preparing = None
        self._is_next_ready = False
        if self.is_unsynced:
            self.sync()
        # After what may take long: who has lost the lock meanwhile makes no file.
        self.look()  # prove: rotation-needs-proof
        file, end = writer.position
        header = Header(
            self._epoch,
            self._broker,
            "rotation",
            {file: end},  # prove: rotation-names-the-end "file: end"
            # Not what the directory lists: a file that was given up may not be unlinked yet.
            (*sorted(self._state.files.keys() | {file}), file + 1),
            sync=self._settings.journal_disk_sync_strategy,
            length=self._settings.journal_max_file_length,
        )
        writer.rotate(encode_header(header), encode_next(file + 1))
        # By itself: were it torn and the next batch whole, that would look like damage in the middle.
        self.sync()  # prove: rotation-header-sync
        self._state.know_file(writer.position[0])
        self._mark_due = self._first_mark

    def prepare_next(self) -> None:
        """Have the next file made ahead of need. A full disk is no failure yet: producers are refused then."""
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
