"""Epoch of a command, without a broker. It writes records in batches, each synced and fence-checked, and updates the
state.

It is for commands that write records that a broker does not write (for operations of a broker: store.tools.offline). It
begins with a fence, like the promotion of a broker. The caller must hold the lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from tandemmq.disk import Disk
from tandemmq.index.index import Index
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import FILE_LENGTH_DEFAULT
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.damage.report import encode_next
from tandemmq.store.kahadb.minimal import has_foreign_index
from tandemmq.store.migration.contents import Contents
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.promotion import Promotion
from tandemmq.store.recovery.rebuild import RECORDS_PER_CHECKPOINT
from tandemmq.store.state.tail import Position
from tandemmq.store.takeover import prepare_takeover
from tandemmq.store.writer.journal_end import NoProof

BATCH_BYTES = 1 << 20


class OfflineEpoch:
    """Open epoch. ``contents`` are the contents of the directory, including all flushed records.

    ``scratch`` is the path of an index that only this epoch uses; a take-over uses ``scratch``.takeover, too.
    ``on_read`` is called with the position up to which the journal was read. Raises the errors of
    ``store.recovery.promotion.Promotion``. After JournalFailed, Deposed or NoProof nothing more can be written.
    """

    def __init__(
        self,
        directory: str,
        scratch: str,
        *,
        name: str,
        has_proof: Callable[[], bool] = lambda: True,
        journal_max_file_length: int = FILE_LENGTH_DEFAULT,
        disk: Disk = os,
        on_read: Callable[[Position], None] | None = None,
    ) -> None:
        self._name = name
        self._has_proof = has_proof
        self._units: list[bytes] = []
        self._bytes = 0
        self.set_aside: tuple[str, ...] = ()
        self._max_file_length = journal_max_file_length
        self._batch_bytes = min(BATCH_BYTES, journal_max_file_length // 4)
        self._files = JournalFiles(directory, disk)
        self._index = Index.open(scratch)
        try:
            self._follower = Follower(
                self._files,
                self._index,
                records_per_checkpoint=RECORDS_PER_CHECKPOINT,
                has_foreign_index=lambda: has_foreign_index(directory, disk),
                on_read=on_read,
            )
            self._writer = self._promote(f"{scratch}.takeover", disk)
            self._follower.checkpoint()
        except BaseException:
            self._index.close()
            raise
        self.epoch = self._follower.state.epoch
        self.contents = Contents(self._follower)

    def _promote(self, scratch: str, disk: Disk) -> JournalWriter:
        follower = self._follower
        promotion = Promotion(self._files, broker=self._name, max_file_length=self._max_file_length, sync="always")
        try:
            promotion.fence(self._has_proof)
            promotion.read(follower)
            takeover = prepare_takeover(self._files, follower, scratch=scratch, disk=disk)
            if takeover is None:
                return promotion.begin(follower).writer
            promoted = promotion.begin(follower, records=takeover.batches(), foreign_openwire=takeover.foreign_openwire)
        finally:
            promotion.close()
        self.set_aside = takeover.finish().set_aside
        return promoted.writer

    def write(self, payloads: Sequence[bytes]) -> None:
        """Add records to the current batch; all of them are in one batch. They are durable when ``flush`` returns."""
        size = sum(map(len, payloads))
        if self._units and self._bytes + size > self._batch_bytes:
            self.flush()
        self._units += payloads
        self._bytes += size

    def flush(self) -> None:
        """Make all written records durable, check the fence, and apply the records to the state."""
        if not self._units:
            return
        payloads, self._units, self._bytes = self._units, [], 0
        if self._writer.is_full(sum(map(len, payloads)) + 5 * len(payloads)):
            self._rotate()
        self._append(payloads)
        if self._follower.state.tail.operations >= self._follower.records_per_checkpoint:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Add the flushed records to the index, so that messages can be found by id."""
        self._follower.checkpoint()

    def check_fence(self) -> None:
        """Check the lock and the fence. Raises NoProof or Deposed if this process does not own the directory any
        more."""
        if not self._has_proof():
            raise NoProof(f"the lock on {self._files.directory} is no longer held by this process")
        self._writer.check_fence()

    def _append(self, payloads: list[bytes]) -> None:
        if not self._has_proof():
            raise NoProof(f"the lock on {self._files.directory} is no longer held by this process")
        writer = self._writer
        start = writer.offset
        locations = writer.append(payloads)
        writer.sync()  # prove: offline-sync-before-fence-check order offline-fence-check
        writer.check_fence()  # prove: offline-fence-check
        for location, payload in zip(locations, payloads, strict=True):
            self._follower.replay.apply(location, payload)
        self._follower.state.position = Position(writer.file, writer.offset, start, writer.checksum)

    def _rotate(self) -> None:
        file, end = self._writer.position
        files = (*sorted(self._follower.state.named_files() | {file}), file + 1)
        length = self._max_file_length
        header = Header(self.epoch, self._name, "rotation", {file: end}, files, length=length)
        self._writer.rotate(encode_header(header), encode_next(file + 1))
        self._writer.sync()
        self._writer.check_fence()
        self._follower.state.know_file(file + 1)
        self._follower.state.position = Position(*self._writer.position, 0, self._writer.checksum)
        self._follower.read_headers()

    def into_contents(self) -> Contents:
        """End the epoch, and return the contents of the directory. The caller closes them; until then, no process may
        write to the directory."""
        self.flush()
        self.checkpoint()
        self.contents.close()
        self._writer.close()
        return Contents(self._follower, self._index)

    def close(self) -> None:
        """Close all files without a flush: records that were not flushed are lost."""
        self.contents.close()
        self._writer.close()
        self._index.close()

    def __enter__(self) -> OfflineEpoch:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.close()
