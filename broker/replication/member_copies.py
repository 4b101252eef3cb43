"""Batches of sealed files, requested from other members that have them, and given to members that request them. One
batch at a time is requested, from one member after the other. Sender and receiver each compare the batch with its
checksum, and the batch belongs to the history that both have (docs/formats/replication.md, "Repair in place").
"""

# proofs: replication-repair

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from tandemmq.broker.replication.messages import Fetch, Piece
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.peers import Known, Links
from tandemmq.broker.replication.quorum import Lineage, common_point
from tandemmq.broker.replication.state import NodeState
from tandemmq.broker.replication.stream import CHUNK_BYTES
from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.format import CONTROL_SIZE
from tandemmq.journal.scan import FileSource
from tandemmq.journal.verify import batch_length, is_sound_batch

#: A member that sends nothing for this long is no longer waited for.
SILENCE_SECONDS: Final = 1.0
#: Key in the status of a member that knows FETCH.
KNOWS_FETCH: Final = "scrub"


@dataclass(slots=True, eq=False)
class _Asked:
    """A request to one member, and its answer so far. The network's thread fills it."""

    message: Fetch
    link: Link
    batch: bytearray = field(default_factory=bytearray)
    is_answered: bool = False


class MemberCopies:
    def __init__(self, state: NodeState, links: Links, known: Known) -> None:
        self._state = state
        self._links = links
        self._known = known
        self._number = 0
        self._asked: _Asked | None = None
        self._came = state.threads.event()
        self._is_ended = False
        self.without: set[str] = set()  # members asked in the last ``fetch`` that have no such file

    def end(self) -> None:
        """Stop all requests. Any thread; takes effect at once."""
        self._is_ended = True
        self._came.set()

    # ---- the scrubber's thread

    def fetch(self, file: int, offset: int, lineage: Lineage) -> tuple[bytes, str] | None:
        """Return the batch at ``offset`` of ``file`` from another member, and the member's name; None: no member that
        answers has a sound one. ``lineage``: of the own journal."""
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
            batch = self._ask(link, Fetch(self._number, set_id, lineage, file, offset))
            if is_sound_batch(batch):  # prove: repair-is-verified
                return batch, link.member.node
        return None

    def _ask(self, link: Link, message: Fetch) -> bytes:
        asked = self._asked = _Asked(message, link)
        link.send(message)
        had = -1
        while not asked.is_answered and had < len(asked.batch):
            had = len(asked.batch)
            self._came.clear()
            if not asked.is_answered and not self._is_ended:
                self._came.wait(SILENCE_SECONDS)
        self._asked = None
        return bytes(asked.batch)

    # ---- the network's thread

    def came(self, link: Link, piece: Piece) -> None:
        """Add a piece of a batch, or note that the member has none."""
        asked = self._asked
        if asked is None or asked.link is not link or asked.message.id != piece.id:
            return
        if not piece.length and piece.end:
            self.without.add(link.member.store)
        if piece.length and piece.offset == asked.message.offset + len(asked.batch):
            asked.batch += piece.data
        asked.is_answered = not piece.length or bool(piece.end)
        self._came.set()

    # ---- the replica's thread

    def answer(self, link: Link, message: Fetch) -> None:
        """Answer another node that has damage at this place."""
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
