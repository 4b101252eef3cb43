"""The messages that ActiveMQ would deliver from its directory, according to its index and the journal after it.

ActiveMQ starts in the same way (kahadb.md 4.8): db.data has the state up to its last update, and the journal is applied
from there on. Facts of db.data about later records are ignored; operations of transactions that were open at that point
are collected from the start of the first one. The result is a state in a temporary index, in which messages have keys
of their own: only the order of these keys is meaningful.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Set
from heapq import merge
from itertools import chain, repeat

from tandemmq.disk import Disk
from tandemmq.index.index import Index
from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import Location, file_of, location
from tandemmq.journal.scan import scan
from tandemmq.store.kahadb.index import KahaDestination, KahaEntry, KahaIndex, KahaSubscription
from tandemmq.store.records import commands
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.records.message import Destination
from tandemmq.store.recovery.index_directory import remove
from tandemmq.store.recovery.standing_checkpoint import StandingCheckpoint
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.open_transactions import PendingOperation, operation_of
from tandemmq.store.state.replay import Replay
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Position
from tandemmq.store.takeover.marks import BEGIN, END, is_mark

HIGH, DEFAULT, LOW = range(3)
# Maximum of operations that the temporary index holds in memory before it writes them to the disk.
OPERATIONS_MAX = 100_000
# End of an Add or Update whose destination is prioritized: field 6, true. Fields are in order.
_PRIORITIZED = b"\x30\x01"

OnCorrupt = Callable[[JournalCorrupt], None]


class Ranks:
    """The priority classes in which messages are delivered; messages that are not noted are DEFAULT."""

    def __init__(self) -> None:
        self._told: dict[tuple[Destination, str], int] = {}
        self._ordered: set[Destination] = set()
        # The original places of messages that an incomplete take-over has moved
        self._origins: dict[tuple[Destination, str], int] = {}
        self._pending: dict[str, list[tuple[Destination, str] | None]] = {}

    def note_origin(self, location: int, payload: bytes, moved: Set[tuple[Destination, str]]) -> None:
        """Note the place of a record of ActiveMQ at ``location`` if it stores one of the messages ``moved``."""
        command = commands.decode(payload)
        if isinstance(command, commands.AddMessage | commands.RemoveMessage):
            place = command.destination, command.message_id
            is_add = isinstance(command, commands.AddMessage)
            if command.transaction is not None:
                self._pending.setdefault(command.transaction.key, []).append(place if is_add else None)
            elif is_add and place in moved:
                self._origins.setdefault(place, location << 32)
            elif not is_add and not command.destination.is_topic:
                self._origins.pop(place, None)
        elif isinstance(command, commands.Commit):
            for number, known in enumerate(self._pending.pop(command.transaction.key, ())):
                if known in moved and known is not None:
                    self._origins.setdefault(known, location << 32 | number)

    def origin(self, destination: Destination, message_id: str, key: int) -> int:
        """Return the order key that the message had before an incomplete take-over moved it; ``key`` for all others."""
        return self._origins.get((destination, message_id), key)

    def tell(self, destination: Destination, message_id: str, rank: int) -> None:
        place = destination, message_id
        if rank != DEFAULT or place in self._told:
            self._told[place] = rank
            self._ordered.add(destination)

    def note(self, payload: bytes) -> None:
        """Note the class in an Add or Update, if its destination is prioritized."""
        kind = payload[0]
        if kind == commands.UPDATE or (kind == commands.ADD and payload.endswith(_PRIORITIZED)):
            add = commands.added(commands.decode(payload))
            assert add is not None, "its number says so"
            above = add.priority - commands.DEFAULT_PRIORITY if add.priority_supported else 0
            rank = HIGH if above > 0 else LOW if above < 0 else DEFAULT
            self.tell(add.destination, add.message_id, rank)

    def has_classes(self, destination: Destination) -> bool:
        """Return whether the order of delivery needs more than the keys."""
        return destination in self._ordered

    def rank(self, destination: Destination, message_id: str) -> int:
        return self._told.get((destination, message_id), DEFAULT)


class ActiveMQView:
    """The correct state, in the directory ``scratch``; ``close`` removes it. One thread at a time.

    ``is_journal_complete``: a former take-over has written all facts of db.data into the journal; this view is not
    needed.
    """

    def __init__(self, files: JournalFiles, epoch_history: EpochHistory, scratch: str, disk: Disk = os) -> None:
        self._files = files
        self._epoch_history = epoch_history
        self._scratch = scratch
        self._disk = disk
        remove(disk, scratch)  # of a take-over that crashed
        self._index = Index.open(scratch, disk)
        self.state = State(self._index, self._index.meta)
        self._replay = Replay(self.state)
        self._standing = StandingCheckpoint(self._index, self.state, self._replay, time.monotonic)
        self.state.position = Position(1, 0)  # a checkpoint wants one
        self.ranks = Ranks()
        self.subscriptions: dict[tuple[Destination, str], commands.Subscription] = {}  # as db.data has them
        self.is_journal_complete = False

    def close(self) -> None:
        self._index.close()
        remove(self._disk, self._scratch)

    def read(
        self,
        kaha: KahaIndex,
        size_of: Callable[[Location], int],
        record_of: Callable[[Destination, str], Location],
        on_corrupt: OnCorrupt | None = None,
    ) -> None:
        """Read all. ``size_of`` measures a record, ``record_of`` finds that of a subscription: old indexes lack both.

        Raises KahaIndexDamaged, JournalCorrupt (unless ``on_corrupt`` takes it), JournalMissing.
        """
        assert kaha.last_update is not None, "an index without a last update knows nothing"
        self._size_of, self._record_of = size_of, record_of
        for destination in kaha.destinations():
            self._load(destination, kaha.last_update)
        self._checkpoint()  # a replay looks for messages in the index, and among those that it added itself
        first = kaha.last_update if kaha.first_in_progress is None else min(kaha.first_in_progress, kaha.last_update)
        self._follow(first, kaha.last_update, on_corrupt)
        self._checkpoint()

    # ---- db.data

    def _load(self, kaha: KahaDestination, last_update: Location) -> None:
        state = self.state
        destination = kaha.destination
        held_by = self._subscribe(kaha, last_update)
        queue = () if destination.is_topic else (state.queue(destination),)
        classes = ((HIGH, kaha.high()), (DEFAULT, kaha.default()), (LOW, kaha.low()))
        key = 0
        # In order of arrival, because a later Update can move a message to another class.
        for entry, rank in merge(*(zip(entries, repeat(rank)) for rank, entries in classes)):
            if entry.location > last_update:
                continue
            owners = queue or tuple(owner for owner, kept in held_by if entry.sequence in kept.pending)
            # Usually the key that the journal gives it; always after the one before.
            key = max(key + 1, entry.location << 32)
            self._add(owners, key, entry)
            self.ranks.tell(destination, entry.message_id, rank)

    def _subscribe(self, kaha: KahaDestination, last_update: Location) -> list[tuple[int, KahaSubscription]]:
        found = []
        for kept in kaha.subscriptions:
            if kept.location is not None and kept.location > last_update:
                continue
            assert kept.command.info is not None, "the index holds no subscription without"
            owner = self.state.new_owner()
            place = self._record_of(kaha.destination, kept.key) if kept.location is None else kept.location
            self.subscriptions[kaha.destination, kept.key] = kept.command
            self.state.subscribe(owner, kaha.destination, kept.command.info, place, None)
            found.append((owner, kept))
        return found

    def _add(self, owners: tuple[int, ...], key: int, entry: KahaEntry) -> None:
        if not owners:
            return
        size = self._size_of(entry.location) if entry.size is None else entry.size
        for number, owner in enumerate(owners):
            self.state.add(owner, key, entry.location, size, entry.message_id, is_shared=number > 0)
        if self.state.tail.operations >= OPERATIONS_MAX:
            self._checkpoint()

    def _checkpoint(self) -> None:
        self._standing.begin(self._epoch_history.first_of_epoch)
        self._standing.finish()

    # ---- the journal after it

    def _follow(self, first: Location, last_update: Location, on_corrupt: OnCorrupt | None) -> None:
        is_skipping = False  # the records of an incomplete take-over
        is_behind = False
        for file in self._files.list():
            if file < file_of(first):
                continue
            header = self._epoch_history.headers.get(file)
            if header is None or header.reason == "promotion":
                is_skipping = False  # a crash ended it
            for place, payload in self._records(file, on_corrupt):
                if place < first:
                    continue
                if place <= last_update:
                    self._collect(place, payload)
                    continue
                if not is_behind:
                    is_behind = True
                    self._end_what_was_committed()
                if payload[0] == 0 and is_mark(payload):
                    is_skipping = payload == BEGIN
                    self.is_journal_complete = self.is_journal_complete or payload == END
                elif not is_skipping:
                    self.ranks.note(payload)
                    self._apply(place, payload)
            if self.state.tail.operations >= OPERATIONS_MAX:
                self._checkpoint()
        if not is_behind:
            self._end_what_was_committed()

    def _records(self, file: int, on_corrupt: OnCorrupt | None) -> Iterator[tuple[Location, bytes]]:
        end = self._epoch_history.ends.get(file)
        if end == 0:
            return
        base = location(file, 0)
        try:
            for batch in scan(self._files, file, 0, end, on_corrupt=on_corrupt):
                for offset, payload in batch.records:
                    yield base + offset, payload
        except JournalCorrupt:
            # No receipt was sent for bytes that were never synced; the previous read has reported them.
            if end is not None or not self._epoch_history.may_have_holes(file):
                raise

    def _collect(self, place: Location, payload: bytes) -> None:
        """Of a record that db.data already contains, keep only the part that belongs to open transactions."""
        kind = payload[0]
        if kind in (commands.ADD, commands.REMOVE):
            command = commands.decode(payload)
            assert isinstance(command, commands.AddMessage | commands.RemoveMessage), "its number says so"
            if command.transaction is not None:
                self.state.enlist(command.transaction.key, operation_of(place, payload, command))
                self.ranks.note(payload)
        elif kind in (commands.COMMIT, commands.ROLLBACK):
            command = commands.decode(payload)
            assert isinstance(command, commands.Commit | commands.Rollback), "its number says so"
            self.state.end_transaction(command.transaction.key, place)
        elif kind == commands.PREPARE:
            self._apply(place, payload)

    def _apply(self, place: Location, payload: bytes) -> None:
        if payload[0] == commands.PREPARE:
            command = commands.decode(payload)
            assert isinstance(command, commands.Prepare), "its number says so"
            if command.transaction.key not in self.state.transactions:
                return  # all of it was collected: it is over
        self._replay.apply(place, payload)

    def _end_what_was_committed(self) -> None:
        """End transactions whose messages are in db.data: they were committed, even if the Commit was collected
        since."""
        state = self.state
        for key, transaction in list(state.transactions.items()):
            if any(operation.kind == commands.ADD and self._is_held(operation) for operation in transaction.operations):
                state.end_transaction(key, transaction.operations[-1].location)

    def _is_held(self, operation: PendingOperation) -> bool:
        state = self.state
        for owner in state.holders(operation.destination):
            order_key = self.place_of(owner, operation.message_id)
            entry = None if order_key is None else state.entry(owner, order_key)
            if entry is not None and entry.location == operation.location:
                return True
        return False

    # ---- asking

    def place_of(self, owner: int, message_id: str) -> int | None:
        """Return the order key of a message that ``owner`` holds, None if it holds none of that id."""
        order_key = self.state.place_of(owner, message_id)
        return None if order_key is None or self.state.entry(owner, order_key) is None else order_key


def in_order_of_delivery(
    state: State, ranks: Ranks, destination: Destination, owner: int
) -> Iterator[tuple[int, Entry]]:
    """Iterate over the messages of ``owner`` of ``destination``: high, default, low, and in each class by key. If keys
    do not show the classes, all messages are in memory."""
    if not ranks.has_classes(destination):
        return state.entries(owner, 0)
    classes: tuple[list[tuple[int, Entry]], ...] = ([], [], [])
    for order_key, entry in state.entries(owner, 0):
        classes[ranks.rank(destination, entry.message_id)].append((order_key, entry))
    return chain(*classes)
