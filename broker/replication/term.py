"""A term of one master of a set: the bytes that it writes, the followers that have them, and those that still answer
(docs/formats/replication.md).

The storage thread writes and waits; the network's thread notes HAVEs and ALIVE answers; the replica's thread begins
streams. One guard is held for moments only.
"""

# proofs: term

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterable
from typing import Final

from tandemmq.broker.replication.messages import Alive, Bytes, FinalUpTo, Have, Message
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.quorum import NOWHERE, ChangeRefused, Lineage, Marks, Place, Voters, quorum_th
from tandemmq.broker.replication.stream import CHUNK_BYTES, Journal, Stream
from tandemmq.config.replication import Sync
from tandemmq.journal.errors import Deposed
from tandemmq.journal.files import JournalFiles
from tandemmq.store.records.headers import SetHeader
from tandemmq.store.threads import Threads
from tandemmq.store.writer.journal_end import NoProof

log = logging.getLogger(__name__)

#: Part of T, the session time-out: the lease of a master, which it counts from before its question.
LEASE: Final = 0.9
#: A master that waits for followers calls ``alive`` at this interval.
PATIENCE_SECONDS: Final = 0.1
LINEAGE_MAX: Final = 1_000
DEPOSED: Final = "this node no longer leads"


class Term:
    """A term of one master. ``epoch`` is the number of its first file. ``header``: the set's part of its headers.

    ``granted``: for each store whose promise elected it, the time on the clock at which the promise was requested.
    """

    def __init__(
        self,
        store: str,
        epoch: int,
        header: SetHeader,
        files: JournalFiles,
        *,
        sync: Sync,
        timeout_seconds: float,
        granted: dict[str, float],
        threads: Threads,
    ) -> None:
        self.epoch = epoch
        self.header = header
        self.marks = Marks(store, Voters(header.voters, header.names), sync)
        self.lease_seconds = LEASE * timeout_seconds
        self.journal = Journal(epoch, files, self.marks, threads)
        self.is_over = False
        self.is_taken = False  # by the lock thread, until it releases it
        self.has_begun = False
        self.has_ended = threads.event()
        self.has_ended_cleanly = False  # the store ended the term itself: it was not lost
        self.streams: dict[str, Stream] = {}
        self._store = store
        self._threads = threads
        self._answered = granted
        self._asked: dict[int, float] = {}
        self._numbers = itertools.count(1)
        self._guard = threads.lock()
        self._changed = threads.event()
        self._wanted: tuple[Place, bool] | None = None
        self._free: dict[str, int] = {}  # bytes that others reported free on their volumes
        # How far the disk of each follower was, by its reports on links before this one.
        self._acknowledged: dict[str, tuple[Link, Place]] = {}
        self._wrote_at = 0.0
        self._sent_final = NOWHERE
        self._changed_at = NOWHERE  # where the header of the last change ends
        self._needed: Callable[[], tuple[int, ...]] = tuple
        self._next: SetHeader | None = None  # with other voters, until a file begins with it
        self._newest_header = header  # content of the newest header, which may not be written yet

    # ---- the lease

    @property
    def lease_from(self) -> float:
        """Time on the clock since which a quorum is known to follow: a question was sent then, and the quorum has
        answered."""
        now = self._threads.boottime()
        voters = self.marks.voters
        answered = [now if each == self._store else self._answered.get(each, -1e9) for each in voters.ids]
        since = quorum_th(answered, voters.quorum)  # prove: lease-by-a-quorum "voters.quorum" -> "1"
        return -1e9 if since is None else since

    @property
    def has_lease(self) -> bool:
        return not self.is_over and self._threads.boottime() - self.lease_from < self.lease_seconds

    def live_stores(self) -> set[str]:
        """Return this node, and the followers that have caught up and answered within the lease. Any thread."""
        oldest = self._threads.boottime() - self.lease_seconds
        streams = list(self.streams.items())
        return {self._store} | {
            store for store, stream in streams if stream.is_live and self._answered.get(store, -math.inf) > oldest
        }

    def ask_alive(self, milliseconds: int) -> None:
        """Ask all followers whether they still follow; an answer binds them to this node for ``milliseconds``."""
        self.tell(self.alive(milliseconds))

    def alive(self, milliseconds: int) -> Alive:
        """Return the next ALIVE. Any thread."""
        number = next(self._numbers)
        self._asked[number] = self._threads.boottime()  # prove: lease-from-before-asking
        self._asked.pop(number - 1_000, None)
        return Alive(self.epoch, number, milliseconds)

    def alive_answered(self, store: str, number: int) -> None:
        asked_at = self._asked.get(number)
        if asked_at is not None:
            self._answered[store] = max(asked_at, self._answered.get(store, asked_at))

    def tell(self, message: Message) -> None:
        """Send a message to all followers."""
        for stream in list(self.streams.values()):
            stream.link.send(message)

    # ---- followers

    def lineage(self) -> Lineage:
        """Return the end of each epoch; of this epoch, the present end."""
        return (*self.header.lineage, (self.epoch, *self.marks.written))

    def add(self, stream: Stream) -> None:
        """Add a stream, after ``drop`` of an older one of that store."""
        self.streams[stream.link.member.store] = stream
        stream.start()

    def remove(self, stream: Stream) -> None:
        if self.streams.get(stream.link.member.store) is stream:
            self.drop(stream.link.member.store)

    def drop(self, store: str) -> None:
        """End the follower's stream. Bytes that it had only in memory no longer count: it may have been restarted."""
        stream = self.streams.pop(store, None)
        if stream is not None:
            stream.end()
        with self._guard:
            self.marks.lost(store)  # prove: memory-of-a-former-life

    def returned(self, link: Link, common: Place, known: Place) -> Place:
        """Note a follower that has everything up to ``common``. Return how far its disk was, by its reports on former
        links and by the ``known`` reports of former terms. If that was more, only its present bytes count. The
        replica's thread."""
        store = link.member.store
        former, acknowledged = self._acknowledged.get(store, (None, known))
        # A FOLLOW may come late. Before the first FOLLOW of a link no HAVE came on it, so all places come from former
        # links.
        if former is link:  # prove: own-haves-are-no-former-ones "former is link" -> "False"
            return acknowledged
        with self._guard:
            acknowledged = max(acknowledged, self.marks.places().get(store, NOWHERE))
        if common < acknowledged:
            acknowledged = max(common, self._still_there(common, acknowledged))
        self._acknowledged[store] = link, acknowledged
        if common < acknowledged:
            log.warning(
                "%s came back with less than its disk had: db-%d.log %d of db-%d.log %d. It does not vote until it "
                "has all of it again",
                *(link.member.node, *common, *acknowledged),
            )
            with self._guard:
                self.marks.has_less(store, common)  # prove: restored-disk-counts-for-what-it-has
        return acknowledged

    def _still_there(self, common: Place, acknowledged: Place) -> Place:
        """Return the last place up to ``acknowledged`` that this journal still has. Files that the state does not need
        are given up: a follower that removed them lacks nothing. NOWHERE: all after ``common`` was given up."""
        for file in reversed(self.journal.files.list()):
            if common[0] <= file <= acknowledged[0]:
                try:
                    end = self.journal.end_of(file)
                except FileNotFoundError:
                    continue  # it was given up just now
                # prove: files-between-are-not-given-up "min(acknowledged, (file, end))" -> "NOWHERE"
                return acknowledged if end is None else min(acknowledged, (file, end))
        return NOWHERE

    def stream(self, link_store: str) -> Stream | None:
        return self.streams.get(link_store)

    def have(self, link: Link, message: Have) -> None:
        """Note that a follower has more. The network's thread."""
        store = link.member.store
        stream = self.streams.get(store)
        if stream is None or stream.link is not link:  # prove: have-of-this-life
            return
        stream.had((message.file, message.end))
        self._free[store] = message.free
        if not message.file:
            return
        with self._guard:
            self.marks.have(store, (message.file, message.end), on_disk=message.on == "disk")
            self._after_change()

    def _after_change(self) -> None:
        if self._wanted is not None and self._is_reached(*self._wanted):
            self._changed.set()

    def send_final(self) -> None:
        """Tell followers the final place, if it has changed. The replica's thread calls it at intervals: only their
        standbys wait for it, and a frame for each batch would wake every follower twice."""
        final = self.marks.final
        if final > self._sent_final:
            self._sent_final = final
            self.tell(FinalUpTo(self.epoch, *final))

    def _is_reached(self, place: Place, must_be_final: bool) -> bool:
        return (self.marks.final if must_be_final else self.marks.confirmed) >= place

    @property
    def free_bytes(self) -> int | None:
        """Free bytes that a quorum has, this node not counted; None: this node is the only voter."""
        voters = self.marks.voters
        if len(voters.ids) == 1:
            return None
        free = [1 << 62 if each == self._store else self._free.get(each, 0) for each in voters.ids]
        return quorum_th(free, voters.quorum)

    # ---- the storage thread

    def begin(self, needed: Callable[[], tuple[int, ...]]) -> None:
        """Begin to write: all former records are read, and the header comes next. ``needed`` returns the files that the
        state needs."""
        with self._guard:
            if self.is_over:  # prove: deposed-begins-nothing
                raise Deposed(self.epoch, DEPOSED)
            self._needed = needed
            self.has_begun = True

    def needed_files(self) -> tuple[int, ...]:
        """Return the files that the state needs."""
        return self._needed()

    def wrote(self, file: int, offset: int, data: bytes | bytearray, end: int) -> None:
        self._wrote_at = self._threads.monotonic()
        messages = self._messages(file, offset, data, end)
        with self._guard:
            if self.is_over:  # prove: deposed-writes-nothing-that-counts
                raise Deposed(self.epoch, DEPOSED)
            if file > self.marks.written[0] and self._newest_header is not self.header:
                self.header = self._newest_header
                self.marks.change(Voters(self.header.voters, self.header.names))  # prove: new-voters-count-from-header
                self._changed_at = (file, end)  # prove: one-change-at-a-time
                if self._next is self.header:
                    self._next = None
            self.marks.wrote((file, end))
            self._after_change()
            streams = list(self.streams.values())
        for stream in streams:
            stream.wrote(messages, (file, end))

    def _messages(self, file: int, offset: int, data: bytes | bytearray, end: int) -> list[Bytes]:
        length = self._length(file)
        if len(data) <= CHUNK_BYTES:
            return [Bytes(self.epoch, file, offset, end, length, data)]
        starts = range(0, len(data), CHUNK_BYTES)
        return [
            Bytes(
                self.epoch,
                file,
                offset + start,
                end if start == starts[-1] else 0,
                length,
                data[start : start + CHUNK_BYTES],
            )
            for start in starts
        ]

    def _length(self, file: int) -> int:
        try:
            return self.journal.files.size(file)
        except FileNotFoundError as error:
            raise Deposed(file, "its name is gone") from error

    def sealed(self, file: int, end: int) -> None:
        self.journal.sealed(file, end)
        for stream in list(self.streams.values()):
            stream.sealed(file, end)

    def synced(self, file: int, end: int) -> None:
        with self._guard:
            self.marks.sync((file, end))
            self._after_change()

    def settle(self, place: Place, *, must_be_final: bool, alive: Callable[[], object]) -> None:
        """Wait until everything up to there is confirmed, or final. Raises Deposed, and NoProof without a lease."""
        while True:
            with self._guard:
                if self.is_over:  # prove: deposed-confirms-nothing
                    raise Deposed(self.epoch, DEPOSED)
                if not self.has_lease:  # prove: no-lease-no-receipt
                    raise NoProof("no quorum answers")
                if self._is_reached(place, must_be_final):
                    self._wanted = None
                    if not must_be_final:
                        self.journal.pace.settled(self._threads.monotonic() - self._wrote_at)
                    return
                self._wanted = place, must_be_final
                self._changed.clear()
            alive()
            self._changed.wait(PATIENCE_SECONDS)

    def next_header(self) -> SetHeader:
        """Return the set's part of the header of the next file, which is made now. The storage thread."""
        with self._guard:
            self._newest_header = self._next or self.header
            return self._newest_header

    @property
    def is_settled(self) -> bool:
        """Return whether the list of voters and the first batch of this epoch are final."""
        before = max(self._changed_at, self.marks.first or (self.epoch, 1))
        is_changing = self._next is not None or self._newest_header is not self.header
        # prove: change-waits-for-the-one-before "self.marks.final >= before" -> "True"
        return not is_changing and self.marks.final >= before

    def propose(self, voters: Voters) -> None:
        """Propose the voters for the header of the next file. Raises ChangeRefused while the former change is not
        final."""
        with self._guard:
            if not self.is_settled:
                raise ChangeRefused("the change before it, or the first batch of this epoch, is not final yet")
            self._next = SetHeader(self.header.id, voters.ids, voters.names, self.header.lineage)

    def give_up_change(self) -> None:
        """Withdraw the proposal: its file was not begun."""
        with self._guard:
            if self._next is not None:
                self._next, self._changed_at = None, NOWHERE

    def end_unbegun(self) -> None:
        """End a term that has not begun. If it has begun, the store ends it."""
        with self._guard:
            if self.has_begun:
                return
            self.is_over = True
        self.end()

    def depose(self) -> None:
        """Stop confirming: after the return nothing is confirmed. Any thread."""
        with self._guard:
            self.is_over = True
        self._changed.set()

    def end(self) -> None:
        """End the term: the store no longer writes."""
        with self._guard:
            self.has_ended_cleanly = self.has_ended_cleanly or not self.is_over
        self.depose()
        for stream in list(self.streams.values()):
            stream.end()
        self.has_ended.set()


def header_of_term(set_id: str, voters: Voters, lineage: Iterable[tuple[int, int, int]]) -> SetHeader:
    """Return the set's part of the headers of a new epoch. ``lineage``: the end of each former epoch."""
    return SetHeader(set_id, voters.ids, voters.names, tuple(lineage)[-LINEAGE_MAX:])
