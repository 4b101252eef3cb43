"""Follow a master: find it, accept its BEGIN, write its bytes at the same place, and report the position of this node.

Everything runs on the replica's thread (docs/formats/replication.md, rules 6 and 7).
"""

# proofs: replication-rules

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from tandemmq.broker.replication.copy import Forked, Gap
from tandemmq.broker.replication.messages import Begin, Bytes, FinalUpTo, Follow, Have, Sealed, Skipped
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.peers import Links
from tandemmq.broker.replication.quorum import BEFORE_ALL, NOWHERE, Lineage, Place
from tandemmq.broker.replication.state import NodeState

log = logging.getLogger(__name__)

FOLLOW_SECONDS: Final = 0.1
#: In memory mode received bytes are synced at least this often.
SYNC_SECONDS: Final = 0.1


#: Content of a FOLLOW: set, lineage and files.
Here = tuple[str | None, Lineage, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Master:
    """The master that this node follows. ``end``: its position when it began; ``wants_disk``: it waits until bytes are
    synced."""

    link: Link
    epoch: int
    end: Place
    wants_disk: bool


class Follower:
    """Follower part of a node. ``final``: the place up to which everything is final and on the own disk. ``free_bytes``
    returns the free bytes to report to the master."""

    def __init__(self, state: NodeState, links: Links, free_bytes: Callable[[], int]) -> None:
        self.master: Master | None = None
        self.final = NOWHERE
        self._state = state
        self._copy = state.copy
        self._links = links
        self._free_bytes = free_bytes
        self._received_final = NOWHERE
        # Places last reported to the master: received, and on this disk.
        self._reported_memory = self._reported_disk = NOWHERE
        self._reported_free = 0  # free bytes, reported without other news
        self._asked_at = float("-inf")
        self._asks = 0
        # Content of the last FOLLOW, and the number of the FOLLOW that first had it.
        self._said_here: Here | None = None
        self._said_since = 0
        self._synced_at = 0.0

    # ---- the master

    def seek(self) -> None:
        """Ask all members for the master, at most once in FOLLOW_SECONDS."""
        state = self._state
        now = state.now()
        if now - self._asked_at >= FOLLOW_SECONDS:
            self._asked_at = now
            self._asks += 1
            here = self._here()
            if here != self._said_here:
                self._said_here, self._said_since = here, self._asks
            self._links.tell(Follow(self._asks, state.promise.epoch, *here))

    def _here(self) -> Here:
        state = self._state
        return state.set, self._copy.standing.lineage, tuple(state.files.list())

    @property
    def seeks_at(self) -> float:
        """Time on the clock at which the requests to all members are sent again."""
        return self._asked_at + FOLLOW_SECONDS

    def seek_soon(self) -> None:
        self._asked_at = float("-inf")

    def begin(self, link: Link, message: Begin) -> None:
        """Accept BEGIN while this node follows no master. Raises Forked; then only the promise may have changed."""
        state, copy = self._state, self._copy
        promise = state.promise
        if message.epoch < promise.epoch:
            link.close("a later epoch is promised")
            return
        # A FOLLOW may arrive late: a BEGIN for an old FOLLOW would cut off bytes that arrived and were acknowledged
        # since.
        if message.follow < self._said_since or self._here() != self._said_here:  # prove: begin-answers-what-is-here
            return
        refusal = self._refusal(message)
        if refusal is not None:
            state.set_problem(refusal)
            return
        state.note(replace(promise, set=message.set))
        if message.epoch > promise.epoch:
            state.promise_epoch(message.epoch, None)  # prove: epoch-is-promised-before-its-first-byte
        if copy.is_forked(message.common, self.final):
            raise Forked(
                f"db-{message.common[0]}.log differs from the master's from {message.common[1]}, before {self.final}"
            )
        # A node that has all it acknowledged is ahead of a master that lost some of it.
        # prove: ahead-is-not-restored "copy.position[1:]" -> "message.common"
        if message.acknowledged > copy.position[1:]:
            state.set_whole(False)  # prove: restored-disk-is-not-whole
            state.record("restored", has=list(message.common), acknowledged=list(message.acknowledged))
            log.warning(
                "this disk has less than it had acknowledged: db-%d.log %d of db-%d.log %d. It was restored, or lost "
                "synced data. This node does not vote until it has all of it again",
                *(*message.common, *message.acknowledged),
            )
        if message.lacking or copy.standing.damage is not None:
            state.set_whole(False)  # prove: not-whole-until-caught-up
        cut = copy.position
        copy.begin(message.common, message.files, message.lacking)
        if cut[1:] > message.common:
            log.warning("cut: %s, back to db-%d.log %d; it is in quarantine/", tuple(cut), *message.common)
            state.record("cut", file=message.common[0], end=message.common[1], had=list(cut))
        state.set_problem("")
        state.timer.follow(link, message.epoch)
        self.master = Master(link, message.epoch, message.end, message.wants_disk)
        self._reported_memory = self._reported_disk = NOWHERE
        self._synced_at = state.threads.monotonic()
        self._see_final(message.final)
        state.record("following", master=link.member.node, epoch=message.epoch)
        log.info("following %s in epoch %d from db-%d.log %d", link.member.node, message.epoch, *message.common)
        self._have("disk")

    def _refusal(self, message: Begin) -> str | None:
        state = self._state
        if state.position > BEFORE_ALL and state.set not in (None, message.set):
            return f"the master is of the set {message.set}, this node of {state.set}"
        if state.position > BEFORE_ALL and state.set is None:  # prove: other-journal-is-no-copy
            return "this directory has a journal that belongs to no set: empty it, or found a set with it"
        return None

    def leave(self, reason: str, *, ends_link: bool = True) -> None:
        """Stop following the master. Close its link if the same epoch may be followed again: otherwise messages that
        are still on the link would be taken for those of the next BEGIN."""
        master = self._let_go()
        if master is None:
            return
        log.info("no longer following %s: %s", master.link.member.node, reason)
        self._copy.sync()  # prove: left-copy-is-synced
        if ends_link:
            master.link.close(reason)

    def disk_failed(self, reason: str) -> None:
        """Forget the state of the copy: it is unknown until the next scan."""
        master = self._let_go()
        if master is not None:
            master.link.close(reason)
        self._copy.forget()  # prove: failed-disk-is-scanned-anew

    def _let_go(self) -> Master | None:
        master, self.master = self.master, None
        if master is not None:
            self._state.timer.leave()
        return master

    # ---- received

    def _is_of_master(self, link: Link, epoch: int) -> bool:
        master = self.master
        return master is not None and master.link is link and master.epoch == epoch

    def bytes_received(self, link: Link, message: Bytes) -> None:
        if self._is_of_master(link, message.epoch):  # prove: bytes-of-the-followed-master
            try:
                self._copy.write(message.file, message.offset, message.data, message.end, message.length)
            except Gap as error:
                self.leave(f"bytes after a gap: {error}")

    def file_sealed(self, link: Link, message: Sealed | Skipped) -> None:
        if self._is_of_master(link, message.epoch):
            copy = self._copy
            was_lacking = bool(copy.lacking)
            try:
                copy.sealed(message.file, message.end if isinstance(message, Sealed) else None)
            except Gap as error:
                self.leave(f"bytes after a gap: {error}")
                return
            if copy.lacking:  # its files count for nothing yet
                link.send(Have(message.epoch, *NOWHERE, "memory", self._free_bytes()))
            elif was_lacking:
                self._have("disk")  # these may be all files for a long time, and no other message may follow

    def final_received(self, link: Link, message: FinalUpTo) -> None:
        if self._is_of_master(link, message.epoch):
            self._see_final((message.file, message.end))

    def _see_final(self, place: Place) -> None:
        """Advance ``final``. It never moves back, and never beyond the bytes on this disk.

        A node that is far behind first receives the whole journal. The work of its standby would delay that, and one
        more copy on a disk is more important than an index."""
        self._received_final = place
        copy, master = self._copy, self.master
        known = min(place, copy.synced)  # prove: final-is-on-this-disk "min(place, copy.synced)" -> "place"
        if known > self.final and not copy.lacking and (master is None or copy.synced >= master.end):
            self.final = known

    # ---- report

    def report_bytes(self) -> None:
        """Report the bytes received in this burst. Report nothing if no batch ended, so that a file that arrives in
        pieces is synced once."""
        master, copy = self.master, self._copy
        if master is None:
            return
        place = copy.position[1:]
        if not master.wants_disk and place > self._reported_memory:
            self._have("memory")
        if place > copy.synced:
            now = self._state.threads.monotonic()
            if master.wants_disk or now - self._synced_at >= SYNC_SECONDS:
                copy.sync()
                self._synced_at = now
        if copy.synced > self._reported_disk:
            self._have("disk")

    def report_free_bytes(self) -> None:
        """Report the free bytes when they change. While producers wait for space on a quorum nothing is written, so no
        HAVE would report the space."""
        master, free = self.master, self._free_bytes()
        if master is not None and free != self._reported_free and self._reported_disk > NOWHERE:
            self._reported_free = free
            master.link.send(Have(master.epoch, *self._reported_disk, "disk", free))

    def _have(self, on: Literal["memory", "disk"]) -> None:
        master, copy = self.master, self._copy
        if master is None or copy.lacking:  # prove: lacking-copy-claims-nothing " or copy.lacking"
            return
        if on == "disk":
            if copy.synced > NOWHERE:
                self._state.end_founding()  # prove: founding-ends-before-the-disk-counts
            self._see_final(self._received_final)
        place = copy.synced if on == "disk" else copy.position[1:]
        master.link.send(Have(master.epoch, *place, on, self._free_bytes()))
        self._reported_memory = place
        if on == "memory":
            return
        self._reported_disk = place
        # prove: whole-when-caught-up "place >= master.end and "
        if place >= master.end and not self._state.promise.is_whole:
            self._state.set_whole(True)
            log.info("this node is whole again")
