"""Make a broker's index anew from the journal, beside the old one, and put it in its place when it is complete.

This needs no lock of the store, because an index is private; no process may have this index open. The old one is set
aside, not deleted. A crash leaves the old one in place.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from dataclasses import dataclass

from tandemmq.disk import sync_directory
from tandemmq.index.index import Index
from tandemmq.index.lock import lock_directory
from tandemmq.journal.files import JournalFiles
from tandemmq.store.records.audit import ProducerAudit
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.index_directory import ASIDE
from tandemmq.store.recovery.index_trust import newest_meta, numbering_of
from tandemmq.store.recovery.trial import Trial
from tandemmq.store.settings import StoreSettings

# The new index is made in a directory that no search for indexes finds.
MAKING = ".rebuild"


class NotRebuilt(Exception):
    """The index cannot be made from this journal now; the text says why. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """``aside`` is where the old index is now, None if there was none."""

    path: str
    aside: str | None
    records: int
    messages: int
    owners: int
    seconds: float


class Rebuild:
    """Rebuild of an index: call ``run`` once. Any thread may read ``records`` and ``bytes_read`` meanwhile."""

    def __init__(self, directory: str, index_root: str, name: str, settings: StoreSettings) -> None:
        depth, producers = settings.failover_producers_audit_depth, settings.max_failover_producers_to_track
        self._audit = ProducerAudit(depth, producers) if depth and producers else None
        self._files = JournalFiles(directory)
        self._root = index_root
        self._path = os.path.join(index_root, name)
        self._making = os.path.join(index_root, MAKING, name)
        self._follower: Follower | None = None
        self._sizes = {file: self._files.size(file) for file in self._files.list()}

    @property
    def bytes_total(self) -> int:
        """The length of the journal."""
        return sum(self._sizes.values())

    @property
    def bytes_read(self) -> int:
        """Bytes that the replay has read; a file counts fully once the replay has left it."""
        position = None if self._follower is None else self._follower.state.position
        if position is None:
            return 0
        return sum(size for file, size in self._sizes.items() if file < position.file) + position.offset

    @property
    def records(self) -> int:
        """Number of records replayed so far."""
        return 0 if self._follower is None else self._follower.replay.records

    def run(self, *, is_live: bool) -> Rebuilt:
        """Replay, then swap; durable on return. ``is_live``: a master is writing; its last records are left for the
        broker to follow.

        Raises IndexInUse when a process has the index open, NotRebuilt, JournalCorrupt or JournalLost when the journal
        is damaged, the OSError of the volume.
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
        shutil.rmtree(self._making, ignore_errors=True)  # of a run that crashed
        index = Index.open(self._making)
        try:
            follower = Trial(self._files, index, first_owner=self._first_owner(), audit=self._audit)
            self._follower = follower
            follower.advance(is_final=not is_live)
            if not follower.epoch_history.headers:
                raise NotRebuilt("no file of this journal is ours: ActiveMQ's own index is read when a broker starts")
            if not follower.has_caught_up:
                raise NotRebuilt("the journal could not be read to its end: `tandemmq store check` says why")
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
        """Swap the directories. The old one is locked by us, and stays so under its new name: a process that opens the
        old name meanwhile finds it locked, or missing, or the new one."""
        aside = None
        if os.path.isdir(self._path):
            aside = f"{self._path}{ASIDE}{time.time_ns()}"
            os.rename(self._path, aside)
        try:
            os.rename(self._making, self._path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._discard()
            raise NotRebuilt(f"a broker began an index of its own in {self._path} at this moment") from error
        sync_directory(os, self._root)
        self._discard()
        return aside

    def _first_owner(self) -> int:
        """Return the first owner of the old index, so that a broker with several stores need not set the new one
        aside."""
        try:
            return numbering_of(newest_meta(self._path, os))
        except FileNotFoundError:
            return 0

    def _discard(self) -> None:
        shutil.rmtree(self._making, ignore_errors=True)
        try:
            os.rmdir(os.path.dirname(self._making))
        except OSError:
            pass  # another one is being made there
