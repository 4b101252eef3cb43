"""Repairs sealed files of a node's own journal in place, and restores missing files, with copies of other members; and
gives copies to other members (docs/formats/replication.md, "Repair in place").

The scrubber's thread finds damage, requests copies, and syncs. Each write happens on the replica's thread, which also
truncates files and writes the bytes that the leader sends. The node requests one batch at a time, from one member after
the other. Sender and receiver each compare the batch with its checksum, and check that it belongs to the history that
both have.
"""

# proofs: replication-repair

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from tandemmq.broker.replication.follower import Follower
from tandemmq.broker.replication.messages import Fetch, Piece
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.peers import Known, Links
from tandemmq.broker.replication.quorum import Lineage, common_point
from tandemmq.broker.replication.state import NodeState
from tandemmq.broker.replication.stream import CHUNK_BYTES
from tandemmq.disk import has_name, identity_of, open_with_status, opened, unlink_if_there, write_fully
from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.format import CONTROL_SIZE, END_RECORD
from tandemmq.journal.scan import FileSource
from tandemmq.journal.verify import batch_length, is_sound_batch
from tandemmq.store.maintenance.scrubber import Damaged, Repaired
from tandemmq.store.recovery.header_reader import HeaderReader

#: A member that sends nothing for this long is no longer waited for.
SILENCE_SECONDS: Final = 1.0
#: Key in the status of a member that knows FETCH.
KNOWS_FETCH: Final = "scrub"


@dataclass(slots=True, eq=False)
class _Request:
    """A request to one member, and its answer so far. The network's thread fills it."""

    message: Fetch
    link: Link
    batch: bytearray = field(default_factory=bytearray)
    is_answered: bool = False


class MemberCopies:
    """Copies of batches in the journals of other members: requests them, and answers the requests of others."""

    def __init__(self, state: NodeState, links: Links, known: Known) -> None:
        self._state = state
        self._links = links
        self._known = known
        self._number = 0
        self._request: _Request | None = None
        self._changed = state.threads.event()
        self._is_ended = False
        self.without: set[str] = set()  # members asked in the last ``fetch`` that have no such file

    def end(self) -> None:
        """Stop all requests. Any thread; takes effect at once."""
        self._is_ended = True
        self._changed.set()

    # ---- the scrubber's thread

    def fetch(self, file: int, offset: int, lineage: Lineage) -> tuple[bytes, str] | None:
        """Return the batch at ``offset`` of ``file`` from another member, and the member's name; None: no member that
        answers has a batch that verifies. ``lineage``: of the own journal."""
        set_id = self._state.set
        self.without = set()
        if set_id is None:
            return None
        for link in list(self._links.ours.values()):
            heard = self._known.of(link.member.store)
            if self._is_ended:
                return None
            if heard is None or KNOWS_FETCH not in heard[0]:
                continue  # an older version, which would end the link
            self._number += 1
            batch = self._request_batch(link, Fetch(self._number, set_id, lineage, file, offset))
            if is_sound_batch(batch):  # prove: repair-is-verified
                return batch, link.member.node
        return None

    def _request_batch(self, link: Link, message: Fetch) -> bytes:
        request = self._request = _Request(message, link)
        link.send(message)
        had = -1
        while not request.is_answered and had < len(request.batch):
            had = len(request.batch)
            self._changed.clear()
            if not request.is_answered and not self._is_ended:
                self._changed.wait(SILENCE_SECONDS)
        self._request = None
        return bytes(request.batch)

    # ---- the network's thread

    def add_piece(self, link: Link, piece: Piece) -> None:
        """Add a piece of a batch, or note that the member has none."""
        request = self._request
        if request is None or request.link is not link or request.message.id != piece.id:
            return
        if not piece.length and piece.end:
            self.without.add(link.member.store)
        if piece.length and piece.offset == request.message.offset + len(request.batch):
            request.batch += piece.data
        request.is_answered = not piece.length or bool(piece.end)
        self._changed.set()

    # ---- the replica's thread

    def answer(self, link: Link, message: Fetch) -> None:
        """Answer the request of another node, whose own copy is damaged at this place."""
        batch = self._sound(message)
        if batch is None:
            is_gone = not self._state.files.exists(message.file)
            link.send(Piece(message.id, message.file, message.offset, int(is_gone), 0, b""))
            return
        length, end = len(batch), message.offset + len(batch)
        for at in range(0, length, CHUNK_BYTES):
            data = batch[at : at + CHUNK_BYTES]
            is_last = at + len(data) == length
            link.send(Piece(message.id, message.file, message.offset + at, end if is_last else 0, length, data))

    def _sound(self, message: Fetch) -> bytes | None:
        state, offset = self._state, message.offset
        common = common_point(state.lineage, message.lineage) if message.set == state.set else None
        if common is None:
            return None
        try:
            with closing(FileSource(state.files, message.file)) as source:
                length = batch_length(source.read(offset, CONTROL_SIZE))
                # prove: piece-of-the-common-history " or (message.file, offset + length) > common"
                if not length or (message.file, offset + length) > common:
                    return None
                batch = source.read(offset, length)
        except (OSError, JournalMissing):
            return None  # the file is missing or damaged here, too
        return batch if is_sound_batch(batch) else None  # prove: piece-is-verified


#: Suffix of a restored journal file until it is complete.
RESTORED_SUFFIX: Final = ".restored"


class OwnCopy:
    """A node's copy of the journal (store.maintenance.scrubber.Sealed). ``act`` calls a function on the replica's
    thread, and returns its result."""

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
        """No file below this one is truncated: final files are never truncated, and no node truncates the files of the
        leader or of an elected node."""
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
            if any(each.stop < stop for each, (_, stop) in zip(found, damaged.ranges, strict=True)):
                self._act(self._leave_if_given_up)
            if repaired:
                disk.fsync(fd)  # prove: repair-is-durable-before-it-counts
            return repaired
        finally:
            disk.close(fd)

    def _mend(self, fd: int, file: int, start: int, stop: int) -> Repaired:
        lineage = self._state.lineage

        def write(at: int, batch: bytes) -> bool:
            return self._act(lambda: self.write(fd, file, at, batch, lineage))

        return self._fetch(file, start, stop, lineage, write)

    def _leave_if_given_up(self) -> bool:
        """Leave the master if it has given up the damaged file, so that no repair is possible: when this node follows
        again, it removes the files that the master does not have. On the replica's thread."""
        master = self._follower.master
        if master is None or master.link.member.store not in self._copies.without:
            return False
        self._follower.leave("a damaged file was given up")
        return True

    def restore(self, file: int, end: int) -> Sequence[Repaired]:
        """Restore a file. It has another name until it is complete, so an incomplete file is never used."""
        disk, path, lineage = self.files.disk, self.files.path(file) + RESTORED_SUFFIX, self._state.lineage
        unlink_if_there(disk, path)
        try:
            with opened(disk, path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:

                def write(at: int, batch: bytes) -> bool:
                    write_fully(disk, fd, batch, at)
                    return True

                found = self._fetch(file, 0, end, lineage, write)
                write_fully(disk, fd, END_RECORD, found.stop)
                disk.fsync(fd)  # prove: restored-file-is-durable-before-its-name
            # prove: restored-file-is-whole "found.stop != end or "
            if found.stop != end or not self._act(lambda: self._publish(path, file, end, lineage)):
                return ()
            return (found,)
        finally:
            unlink_if_there(disk, path)

    def _fetch(
        self, file: int, start: int, stop: int, lineage: Lineage, write: Callable[[int, bytes], bool]
    ) -> Repaired:
        """Fetch batch by batch, until a batch cannot be fetched or written."""
        at, batches, node = start, 0, ""
        while at < stop and (found := self._copies.fetch(file, at, lineage)) is not None:
            if not write(at, found[0]):
                break
            at += len(found[0])
            batches, node = batches + 1, found[1]
        return Repaired(start, at, batches, node)

    def _publish(self, path: str, file: int, end: int, lineage: Lineage) -> bool:
        """Give a restored file its name, durably, unless another file has it. On the replica's thread."""
        if not self._is_sealed_history(file, end, lineage):
            return False
        try:
            self.files.disk.link(path, self.files.path(file))
        except FileExistsError:
            return False
        self.files.sync_directory()
        return True

    def _is_sealed_history(self, file: int, end: int, lineage: Lineage) -> bool:
        """Return whether the history up to ``end`` of ``file`` has not changed since ``lineage`` was sent, and the file
        is not the one that is being written."""
        state = self._state
        common = common_point(state.lineage, lineage)
        if common is None or (file, end) > common:  # prove: repair-of-what-was-not-cut
            return False
        return file < state.position.file  # prove: open-tail-is-not-repaired

    def write(self, fd: int, file: int, offset: int, batch: bytes, lineage: Lineage) -> bool:
        """Write a batch without a sync, and return whether it was written. ``lineage``: of the own journal when the
        batch was requested. On the replica's thread."""
        if not self._is_sealed_history(file, offset + len(batch), lineage):
            return False
        if not has_name(self.files.disk, fd, self.files.path(file)):  # prove: repair-under-the-journals-name
            return False
        write_fully(self.files.disk, fd, batch, offset)
        return True
