"""Repairs sealed files of a node's own journal in place, with batches that other members have.

The scrubber's thread finds damage, asks, and syncs; each write is done on the replica's thread, which also cuts and
follows (docs/formats/replication.md, "Repair in place").
"""

# proofs: replication-repair

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from tandemmq.broker.replication.follower import Follower
from tandemmq.broker.replication.member_copies import MemberCopies
from tandemmq.broker.replication.positions import Lineage, common_point
from tandemmq.broker.replication.state import NodeState
from tandemmq.disk import has_name, identity_of, open_with_status, write_fully
from tandemmq.store.maintenance.scrubber import Damaged, Repaired
from tandemmq.store.recovery.header_reader import HeaderReader


class OwnCopy:
    """A node's copy of the journal (store.maintenance.scrubber.Sealed). ``act`` calls a function on the replica's
    thread, and returns what it returns."""

    def __init__(
        self,
        state: NodeState,
        follower: Follower,
        copies: MemberCopies,
        act: Callable[[Callable[[], bool]], bool],
    ) -> None:
        self.files = state.files
        self.headers = HeaderReader(state.files)
        self._state = state
        self._follower = follower
        self._copies = copies
        self._act = act

    @property
    def below(self) -> int:
        """What is final is not cut; and nobody cuts what the leader, or who was elected, has."""
        # prove: only-final-files-are-scrubbed "self._follower.final[0]" -> "1 << 31"
        return self._follower.final[0] if self._state.term is None else self._state.position.file

    def mend(self, damaged: Damaged) -> Sequence[Repaired]:
        disk = self.files.disk
        fd, status = open_with_status(disk, self.files.path(damaged.file), os.O_RDWR)
        try:
            # prove: repair-of-the-file-that-was-read
            if identity_of(status) != identity_of(damaged.source.status):
                return ()
            found = [self._mend(fd, damaged.file, *each) for each in damaged.ranges]
            repaired = [each for each in found if each.batches]
            if repaired:
                disk.fsync(fd)  # prove: repair-is-durable-before-it-counts
            return repaired
        finally:
            disk.close(fd)

    def _mend(self, fd: int, file: int, start: int, stop: int) -> Repaired:
        at, batches, node = start, 0, ""
        while at < stop:
            lineage = self._state.lineage
            found = self._copies.fetch(file, at, lineage)
            if found is None:
                break
            batch, node = found
            if not self._act(partial(self.write, fd, file, at, batch, lineage)):
                break
            at += len(batch)
            batches += 1
        return Repaired(start, at, batches, node)

    def write(self, fd: int, file: int, offset: int, batch: bytes, lineage: Lineage) -> bool:
        """On the replica's thread. ``lineage``: the own, as it was sent. Whether it was written; it is not synced."""
        state = self._state
        common = common_point(state.lineage, lineage)
        if common is None or (file, offset + len(batch)) > common:  # prove: repair-of-what-was-not-cut
            return False
        if file >= state.position.file:  # prove: open-tail-is-not-repaired
            return False
        if not has_name(self.files.disk, fd, self.files.path(file)):  # prove: repair-under-the-journals-name
            return False
        write_fully(self.files.disk, fd, batch, offset)
        return True
