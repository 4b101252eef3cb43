"""Rebuild of a broker's index from the journal. The new index is made in another directory, and replaces the old one
when it is complete.

The lock of the store is not needed, because an index belongs to one broker; but no process may have this index open.
The old index is set aside, not deleted. After a crash the old index is still in place.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from tandemmq.disk import sync_directory
from tandemmq.index.index import Index
from tandemmq.index.lock import lock_directory
from tandemmq.journal.files import JournalFiles
from tandemmq.store.records.audit import ProducerAudit
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.index_directory import ASIDE
from tandemmq.store.recovery.index_trust import newest_meta, numbering_of
from tandemmq.store.settings import StoreSettings

# Number of operations in memory after which a replay writes them to its temporary index.
RECORDS_PER_CHECKPOINT: Final = 100_000

Trial = partial(Follower, records_per_checkpoint=RECORDS_PER_CHECKPOINT, is_trial=True)


# Directory of the new index. Searches for indexes do not find it.
BUILD_DIRECTORY = ".rebuild"


class NotRebuilt(Exception):
    """The index cannot be made from this journal now; the text has the reason. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Result of a rebuild. ``aside``: new path of the old index, or None if there was none."""

    path: str
    aside: str | None
    records: int
    messages: int
    owners: int
    seconds: float


class Rebuild:
    """Rebuild of an index: call ``run`` once. Any thread may read the progress: ``records`` and ``bytes_read``."""

    def __init__(self, directory: str, index_root: str, name: str, settings: StoreSettings) -> None:
        depth, producers = settings.failover_producers_audit_depth, settings.max_failover_producers_to_track
        self._audit = ProducerAudit(depth, producers) if depth and producers else None
        self._files = JournalFiles(directory)
        self._root = index_root
        self._path = os.path.join(index_root, name)
        self._build_path = os.path.join(index_root, BUILD_DIRECTORY, name)
        self._follower: Follower | None = None
        self._sizes = {file: self._files.size(file) for file in self._files.list()}

    @property
    def bytes_total(self) -> int:
        """Bytes of all journal files at the start."""
        return sum(self._sizes.values())

    @property
    def bytes_read(self) -> int:
        """Bytes that the replay has read. Files before the present one count with their whole length."""
        position = None if self._follower is None else self._follower.state.position
        if position is None:
            return 0
        return sum(size for file, size in self._sizes.items() if file < position.file) + position.offset

    @property
    def records(self) -> int:
        """Number of records replayed so far."""
        return 0 if self._follower is None else self._follower.replay.records

    def run(self, *, is_live: bool) -> Rebuilt:
        """Replay the journal, then replace the index; durable on return. ``is_live``: a master is writing; its last
        records are not included, and the broker reads them later.

        Raises IndexInUse if a process has the index open, NotRebuilt, JournalCorrupt or JournalLost if the journal is
        damaged, OSError if the volume fails.
        """
        if not os.path.isdir(self._path):
            return self._replay(is_live)
        lock = lock_directory(os, self._path)
        try:
            return self._replay(is_live)
        finally:
            os.close(lock)

    def _replay(self, is_live: bool) -> Rebuilt:
        started = time.monotonic()
        shutil.rmtree(self._build_path, ignore_errors=True)  # left by a crash
        index = Index.open(self._build_path)
        try:
            follower = Trial(self._files, index, first_owner=self._first_owner(), audit=self._audit)
            self._follower = follower
            follower.advance(is_final=not is_live)
            if not follower.epoch_history.headers:
                raise NotRebuilt("no file of this journal has a header: a start takes over ActiveMQ's own index")
            if not follower.has_caught_up:
                raise NotRebuilt("the journal could not be read to its end: `tandemmq store check` shows the reason")
            follower.checkpoint()
        except BaseException:
            index.close()
            self._discard()
            raise
        index.close()
        aside = self._swap()
        owners = follower.state.owners.values()
        return Rebuilt(
            self._path,
            aside,
            follower.replay.records,
            sum(owner.count for owner in owners),
            len(owners),
            time.monotonic() - started,
        )

    def _swap(self) -> str | None:
        """Replace the directory. Return the new path of the old one, or None.

        The old directory is locked by this process, also after it was renamed. A process that opens the path meanwhile
        finds a locked index, or none, or the new one.
        """
        aside = None
        if os.path.isdir(self._path):
            aside = f"{self._path}{ASIDE}{time.time_ns()}"
            os.rename(self._path, aside)
        try:
            os.rename(self._build_path, self._path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._discard()
            raise NotRebuilt(f"a broker has just made an index in {self._path}") from error
        sync_directory(os, self._root)
        self._discard()
        return aside

    def _first_owner(self) -> int:
        """Return the first owner id of the old index, so that a broker with several stores can use the new index."""
        try:
            return numbering_of(newest_meta(self._path, os))
        except FileNotFoundError:
            return 0

    def _discard(self) -> None:
        shutil.rmtree(self._build_path, ignore_errors=True)
        try:
            os.rmdir(os.path.dirname(self._build_path))
        except OSError:
            pass  # another index is being rebuilt there
