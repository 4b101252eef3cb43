"""The messages that ActiveMQ would deliver from its directory, according to its index and the journal after it.

ActiveMQ starts in the same way (kahadb.md 4.8): db.data has the state up to its *last update*, the place of a record,
and the later records of the journal are applied to it. Entries of db.data for later records are ignored. Operations of
transactions that were open at the last update are collected from the journal, from the start of the oldest transaction.
The result is a state in a temporary index. Its order keys are not those of the journal: only their order has a meaning.

The trace commands `TANDEMMQ-TAKEOVER begin` and `TANDEMMQ-TAKEOVER end` stand around the records of a take-over. A
crash between them leaves only some of the records in the journal. The next take-over starts from the same db.data and
must skip those records, because it makes all of them again. If the end mark exists, the journal has all facts of
db.data. ActiveMQ ignores traces.
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
from tandemmq.store.records.commands import encode_trace
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.records.message import Destination
from tandemmq.store.recovery.index_directory import remove
from tandemmq.store.recovery.stepwise_checkpoint import StepwiseCheckpoint
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.open_transactions import PendingOperation, operation_of
from tandemmq.store.state.replay import Replay
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Position

_MARK = b"TANDEMMQ-TAKEOVER "

BEGIN = encode_trace("TANDEMMQ-TAKEOVER begin")
END = encode_trace("TANDEMMQ-TAKEOVER end")


def is_mark(payload: bytes) -> bool:
    """Return whether a record's payload is one of the two marks."""
    return _MARK in payload[:32]


HIGH, DEFAULT, LOW = range(3)
# Maximum number of operations in memory before a checkpoint of the temporary index.
OPERATIONS_MAX = 100_000
# Last bytes of an Add whose destination is prioritized: field 6, true. Fields are in ascending order.
_PRIORITIZED = b"\x30\x01"

OnCorrupt = Callable[[JournalCorrupt], None]


class Ranks:
    """Priority classes of messages: HIGH, DEFAULT or LOW. A message that was not noted has DEFAULT."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[Destination, str], int] = {}
        self._ordered: set[Destination] = set()
        # The original order keys of messages that an incomplete take-over has moved
        self._origins: dict[tuple[Destination, str], int] = {}
        # Key of an open transaction -> its operations; None stands for a Remove
        self._pending: dict[str, list[tuple[Destination, str] | None]] = {}

    def note_origin(self, location: int, payload: bytes, moved: Set[tuple[Destination, str]]) -> None:
        """Note the order key that a record of ActiveMQ at ``location`` gives to a message, if ``moved`` has it."""
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
        """Return the order key that the message had before an incomplete take-over moved it; ``key`` if it was not
        moved."""
        return self._origins.get((destination, message_id), key)

    def set_rank(self, destination: Destination, message_id: str, rank: int) -> None:
        place = destination, message_id
        if rank != DEFAULT or place in self._ranks:
            self._ranks[place] = rank
            self._ordered.add(destination)

    def note(self, payload: bytes) -> None:
        """Note the class that an Add or Update gives to its message, if its destination is prioritized."""
        kind = payload[0]
        if kind == commands.UPDATE or (kind == commands.ADD and payload.endswith(_PRIORITIZED)):
            add = commands.added(commands.decode(payload))
            assert add is not None, "an Add or Update stores a message"
            above = add.priority - commands.DEFAULT_PRIORITY if add.priority_supported else 0
            rank = HIGH if above > 0 else LOW if above < 0 else DEFAULT
            self.set_rank(add.destination, add.message_id, rank)

    def has_classes(self, destination: Destination) -> bool:
        """Return whether the order of delivery depends on classes, not only on the order keys."""
        return destination in self._ordered

    def rank(self, destination: Destination, message_id: str) -> int:
        return self._ranks.get((destination, message_id), DEFAULT)


class ActiveMQView:
    """State of the messages that ActiveMQ would deliver. Its index is in the directory ``scratch``, which ``close``
    removes. One thread at a time.

    ``is_journal_complete``: a former take-over has written all facts of db.data into the journal, so this view is not
    needed.
    """

    def __init__(self, files: JournalFiles, epoch_history: EpochHistory, scratch: str, disk: Disk = os) -> None:
        self._files = files
        self._epoch_history = epoch_history
        self._scratch = scratch
        self._disk = disk
        remove(disk, scratch)  # a take-over that crashed may have left it
        self._index = Index.open(scratch, disk)
        self.state = State(self._index, self._index.meta)
        self._replay = Replay(self.state)
        self._stepwise = StepwiseCheckpoint(self._index, self.state, self._replay, time.monotonic)
        self.state.position = Position(1, 0)  # a checkpoint needs a position
        self.ranks = Ranks()
        self.subscriptions: dict[tuple[Destination, str], commands.Subscription] = {}  # the records in db.data
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
        """Read db.data, and the journal after its last update.

        Old versions of db.data lack the sizes of records and the places of subscriptions' records: ``size_of`` and
        ``record_of`` return them. Raises KahaIndexDamaged, JournalMissing, and JournalCorrupt, unless ``on_corrupt`` is
        given: it is called with the JournalCorrupt, and reading continues.
        """
        assert kaha.last_update is not None, "an index without a last update has no messages"
        self._size_of, self._record_of = size_of, record_of
        for destination in kaha.destinations():
            self._load(destination, kaha.last_update)
        self._checkpoint()  # a replay finds messages only in the index, and among those that it added itself
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
            # Usually the order key that the journal gives to it; always after the key of the previous message.
            key = max(key + 1, entry.location << 32)
            self._add(owners, key, entry)
            self.ranks.set_rank(destination, entry.message_id, rank)

    def _subscribe(self, kaha: KahaDestination, last_update: Location) -> list[tuple[int, KahaSubscription]]:
        found = []
        for kept in kaha.subscriptions:
            if kept.location is not None and kept.location > last_update:
                continue
            assert kept.command.info is not None, "every subscription in the index has its description"
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
        self._stepwise.begin(self._epoch_history.first_of_epoch)
        self._stepwise.finish()

    # ---- the journal after the last update

    def _follow(self, first: Location, last_update: Location, on_corrupt: OnCorrupt | None) -> None:
        is_skipping = False  # within the records of an incomplete take-over
        is_after_update = False
        for file in self._files.list():
            if file < file_of(first):
                continue
            header = self._epoch_history.headers.get(file)
            if header is None or header.reason == "promotion":
                is_skipping = False  # a crash ended the take-over
            for place, payload in self._records(file, on_corrupt):
                if place < first:
                    continue
                if place <= last_update:
                    self._collect(place, payload)
                    continue
                if not is_after_update:
                    is_after_update = True
                    self._end_committed()
                if payload[0] == 0 and is_mark(payload):
                    is_skipping = payload == BEGIN
                    self.is_journal_complete = self.is_journal_complete or payload == END
                elif not is_skipping:
                    self.ranks.note(payload)
                    self._apply(place, payload)
            if self.state.tail.operations >= OPERATIONS_MAX:
                self._checkpoint()
        if not is_after_update:
            self._end_committed()

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
            # The unreadable bytes were never synced, so no receipt was sent for them. An earlier read has reported
            # them.
            if end is not None or not self._epoch_history.may_have_holes(file):
                raise

    def _collect(self, place: Location, payload: bytes) -> None:
        """Apply only the transaction of a record that db.data already contains: open transactions are not in it."""
        kind = payload[0]
        if kind in (commands.ADD, commands.REMOVE):
            command = commands.decode(payload)
            assert isinstance(command, commands.AddMessage | commands.RemoveMessage), "``kind`` is its type"
            if command.transaction is not None:
                self.state.enlist(command.transaction.key, operation_of(place, payload, command))
                self.ranks.note(payload)
        elif kind in (commands.COMMIT, commands.ROLLBACK):
            command = commands.decode(payload)
            assert isinstance(command, commands.Commit | commands.Rollback), "``kind`` is its type"
            self.state.end_transaction(command.transaction.key, place)
        elif kind == commands.PREPARE:
            self._apply(place, payload)

    def _apply(self, place: Location, payload: bytes) -> None:
        if payload[0] == commands.PREPARE:
            command = commands.decode(payload)
            assert isinstance(command, commands.Prepare), "the first byte is its type"
            if command.transaction.key not in self.state.transactions:
                return  # ActiveMQ has removed the files of its operations, so it has ended
        self._replay.apply(place, payload)

    def _end_committed(self) -> None:
        """End transactions whose messages are in db.data: they were committed, even if ActiveMQ has removed the file
        with the Commit."""
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

    # ---- queries

    def place_of(self, owner: int, message_id: str) -> int | None:
        """Return the order key of the message with that id; None if ``owner`` does not hold it."""
        order_key = self.state.place_of(owner, message_id)
        return None if order_key is None or self.state.entry(owner, order_key) is None else order_key


def in_order_of_delivery(
    state: State, ranks: Ranks, destination: Destination, owner: int
) -> Iterator[tuple[int, Entry]]:
    """Iterate over the messages of ``owner`` of ``destination`` in ActiveMQ's order of delivery: first HIGH, then
    DEFAULT, then LOW; within a class by order key. If there are classes, all messages are in memory at once."""
    if not ranks.has_classes(destination):
        return state.entries(owner, 0)
    classes: tuple[list[tuple[int, Entry]], ...] = ([], [], [])
    for order_key, entry in state.entries(owner, 0):
        classes[ranks.rank(destination, entry.message_id)].append((order_key, entry))
    return chain(*classes)
