"""Compaction: copies the live records of sparse journal files to the end of the journal, so that the files can be
removed.

Bound: disk space <= FACTOR x live bytes + two files. Acknowledgements and deletions are not copied: they are not needed
any more when the files with their messages are emptied. The storage thread decides what to copy when it forms the
batch. A copy keeps the message's place in the order of its queue; when it is applied, the entry of the message gets its
new location. Work is done in steps of STEP_BYTES, between the batches of clients, with a limited rate.

    message                 an Update with a hint; for a topic, with a Remove for each durable subscription for which it
                            is not pending
    subscription's record   written again, then all its pending messages, then a trace that marks their end
    prepared transaction    all its operations, with hints, and its Prepare, in one batch
"""

# proofs: compaction

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from tandemmq.journal.errors import JournalCorrupt
from tandemmq.store.records import commands
from tandemmq.store.records.hints import user_in, with_operation_hint, with_user_hint
from tandemmq.store.records.marks import encode_settled
from tandemmq.store.records.openwire import current_frame
from tandemmq.store.records.transactions import transaction_of_key
from tandemmq.store.state.file_states import FileState
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.open_transactions import PendingOperation, Transaction
from tandemmq.store.state.state import State
from tandemmq.store.writer.copying import copies_of, write
from tandemmq.store.writer.pages import Pages

log = logging.getLogger(__name__)

FACTOR = 2.0
FILES_BEYOND = 2
# A compaction that an operator requested empties every file of which less than this share is live.
DENSE_SHARE = 0.9
STEP_BYTES = 256 << 10
STEP_RECORDS = 500


def bound_bytes(live_bytes: int, file_length: int) -> int:
    """Return the largest size of a journal, in bytes, for which no compaction is needed."""
    return int(FACTOR * live_bytes) + FILES_BEYOND * file_length


def is_sparse(live_bytes: int, size: int) -> bool:
    """Return whether a requested compaction empties a file of ``size`` bytes with ``live_bytes``."""
    return live_bytes < DENSE_SHARE * size


class CompactionReport(NamedTuple):
    """Result of a compaction. ``files`` were emptied, so the next checkpoint removes them. ``disk_before`` and
    ``disk_expected``: bytes of the journal before the compaction and after the removal."""

    files: tuple[int, ...]
    messages: int
    bytes_copied: int
    disk_before: int
    disk_expected: int


def plan(
    files: Mapping[int, FileState],
    sizes: Mapping[int, int],
    before: int,
    reclaimable: Callable[[Set[int]], Iterable[int]],
    *,
    file_length: int,
    held_by_records: Set[int] = frozenset(),
) -> tuple[int, ...]:
    """Return the files to empty, oldest first, so that the journal is within its bound again; empty if it already is.

    Only as many files as needed are chosen, those with the smallest share of live bytes, because their live bytes must
    be copied. A file that is only needed for its acknowledgements is not copied: it is removed after the files of the
    acknowledged messages.
    """
    disk = sum(sizes.values())
    live = sum(min(held.live_bytes, sizes.get(file, 0)) for file, held in files.items())
    bound = bound_bytes(live, file_length)
    if disk <= bound:
        return ()
    by_share = sorted((files[file].live_bytes / max(size, 1), file) for file, size in sizes.items() if file < before)
    candidates = [file for _, file in by_share]

    def disk_after(count: int) -> float:
        emptied = frozenset(candidates[:count])
        copied = sum(files[file].live_bytes for file in emptied)
        return disk - sum(sizes.get(file, 0) for file in reclaimable(emptied)) + copied

    if disk_after(0) <= bound:
        return ()  # it is enough to remove files that nothing needs
    low, high = 0, len(candidates)  # emptying ``low`` files is not enough
    while high - low > 1:
        middle = (low + high) // 2
        if disk_after(middle) <= bound:
            high = middle
        else:
            low = middle
    gone = set(reclaimable(frozenset(candidates[:high])))
    return tuple(
        sorted(file for file in candidates[:high] if file in gone and (files[file].live > 0 or file in held_by_records))
    )


def sparse(
    files: Mapping[int, FileState], sizes: Mapping[int, int], before: int, held_by_records: Set[int]
) -> tuple[int, ...]:
    """Return all sparse files, oldest first, also if the journal is within its bound. See ``is_sparse``."""
    return tuple(
        file
        for file in sorted(sizes)
        if file < before
        and is_sparse(files[file].live_bytes, sizes[file])
        and (files[file].live > 0 or file in held_by_records)
    )


class Compaction:
    """Compaction of ``files``, on the storage thread. The caller calls ``step`` until ``is_done``.

    Records are compared with their checksums before they are copied, because a copy gets a new checksum. A file with
    damage is not emptied, and is added to ``unfit``. ``write_copies`` writes one batch and returns the locations of its
    records; the batch is synced and fence-checked on return. ``reports`` are completed when the files are removed.
    """

    def __init__(
        self,
        state: State,
        pages: Pages,
        write_copies: Callable[[list[bytes]], list[int]],
        files: Sequence[int],
        disk_before: int,
    ) -> None:
        self.reports: list[Future[CompactionReport]] = []
        self.files = tuple(files)
        self.unfit: set[int] = set()
        self.messages = 0
        self.bytes_copied = 0
        self.disk_before = disk_before
        self._state = state
        self._pages = pages
        self._write_copies = write_copies
        self._files = deque(files)
        # (owner, new record) of subscriptions whose pending messages must be copied next
        self._moving: deque[tuple[int, int]] = deque()
        self._owner = 0
        self._after = 0
        self._has_moved_records = False

    @property
    def is_done(self) -> bool:
        return not self._files

    def report(self, disk_expected: int) -> CompactionReport:
        return CompactionReport(self.files, self.messages, self.bytes_copied, self.disk_before, disk_expected)

    def step(self) -> int:
        """Do one step, and return the number of bytes written. 0: ``is_done`` is True."""
        while self._files:
            file = self._files[0]
            written = 0
            if not self._has_moved_records and file not in self._state.files:
                self._files.popleft()  # a checkpoint has removed the file meanwhile
                continue
            try:
                if not self._has_moved_records:
                    self._has_moved_records = True
                    written = self._move_records(file)
                elif self._moving:
                    written = self._follow_subscription()
                elif file in self._state.files and self._state.files[file].live:
                    written = self._move_messages(file)
                else:
                    self._end_file()
            except JournalCorrupt:
                self._skip_file(file)
            if written:
                self.bytes_copied += written
                return written
        return 0

    def _skip_file(self, file: int) -> None:
        """Stop emptying a damaged file. Its other records remain in it."""
        self.unfit.add(file)
        self.files = tuple(each for each in self.files if each != file)
        self._end_file()

    def _end_file(self) -> None:
        self._files.popleft()
        self._has_moved_records = False
        self._owner = self._after = 0

    # ---- messages

    def _move_messages(self, file: int) -> int:
        holders = self._state.files[file].holders
        if self._owner not in holders or not holders[self._owner][0]:
            self._owner = next(owner for owner, holder in holders.items() if holder[0])
            self._after = 0
        owner = self._owner
        chunk: list[tuple[int, Entry]] = []
        size = 0
        for order_key, entry in self._state.held_in(owner, file, self._after):
            chunk.append((order_key, entry))
            size += entry.size
            self._after = order_key
            if size >= STEP_BYTES or len(chunk) >= STEP_RECORDS:
                break
        assert chunk, "the file's count says that this owner has messages in it"
        return self._copy(owner, chunk)

    def _follow_subscription(self) -> int:
        """Copy pending messages of a subscription whose record was copied: they must be after the record."""
        owner, record = self._moving[0]
        state = self._state
        chunk: list[tuple[int, Entry]] = []
        size = 0
        if owner in state.owners:
            for order_key, entry in state.entries(owner, self._after):
                if order_key >> 32 > record:
                    break
                self._after = order_key
                # prove: pending-behind-its-subscription "entry.location < record" -> "False"
                if entry.location < record:
                    chunk.append((order_key, entry))
                    size += entry.size
                    if size >= STEP_BYTES or len(chunk) >= STEP_RECORDS:
                        break
        if chunk:
            try:
                return self._copy(owner, chunk)
            except JournalCorrupt:
                return sum(map(partial(self._copy_sound, owner), chunk))
        self._moving.popleft()
        self._after = 0
        # prove: settles-only-the-newest-record " or state.owners[owner].latest_record != record"
        if owner not in state.owners or state.owners[owner].latest_record != record:
            return 0  # the subscription was removed or changed meanwhile
        payload = encode_settled(state.owners[owner].destination, state.owners[owner].key)
        self._write_copies([payload])
        state.settle_record(owner)
        return len(payload)

    def _copy_sound(self, owner: int, found: tuple[int, Entry]) -> int:
        """Copy one message. If it is damaged, report that instead: no client can get it."""
        try:
            return self._copy(owner, [found])
        except JournalCorrupt:
            self._pages.report_damage(found[1])
            return 0

    def _copy(self, owner: int, chunk: list[tuple[int, Entry]]) -> int:
        copies = copies_of(self._state, self._pages, owner, chunk)
        self.messages += len(copies.moves)
        return write(self._state, copies, self._write_copies)

    # ---- subscriptions and transactions

    def _move_records(self, file: int) -> int:
        state = self._state
        written = 0
        for owner in list(state.owners.values()):
            # prove: first-record-moves "owner.record_location >> 32, "
            if owner.record_location and file in (owner.record_location >> 32, owner.latest_record >> 32):
                written += self._move_subscription(owner.id)
        for key, transaction in list(state.transactions.items()):
            places = {operation.location >> 32 for operation in transaction.operations}
            places.add(transaction.prepared_at >> 32)  # prove: prepare-alone-moves
            # prove: prepared-transaction-moves "transaction.is_prepared" -> "False"
            if transaction.is_prepared and file in places:
                written += self._move_transaction(key, transaction)
        return written

    def _move_subscription(self, owner: int) -> int:
        state = self._state
        known = state.owners[owner]
        payload = self._pages.read_record(known.latest_record)
        command = commands.decode(payload)
        assert isinstance(command, commands.Subscription), "the newest record of a subscription is a Subscription"
        assert command.info is not None, "the newest record of a live subscription has a description"
        user = user_in(payload)
        copy = with_user_hint(commands.encode(command), user)  # prove: copy-keeps-its-user "user)" -> "None)"
        location = self._write_copies([copy])[0]
        state.subscribe(owner, known.destination, command.info, location, user)
        if known.record_location != location:
            self._moving.append((owner, location))  # prove: pending-follows-its-subscription
        return len(copy)

    def _move_transaction(self, key: str, transaction: Transaction) -> int:
        state = self._state
        operations = list(transaction.operations)
        records = self._pages.read([(operation.location, operation.size) for operation in operations])
        payloads = [
            with_operation_hint(self._plain(record, operation), operation.location)
            for operation, record in zip(operations, records, strict=True)
        ]
        payloads.append(commands.encode_prepare(transaction_of_key(key)))  # prove: prepare-follows-its-operations
        locations = self._write_copies(payloads)
        for operation, payload, location in zip(operations, payloads[:-1], locations[:-1], strict=True):
            state.enlist(key, operation._replace(location=location, size=len(payload) + 5), operation.location)
        places = [
            (operation.owner, operation.order_key) if operation.order_key else None
            for operation in transaction.operations
        ]
        state.prepare(key, locations[-1], places)
        return sum(map(len, payloads))

    def _plain(self, record: bytes, operation: PendingOperation) -> bytes:
        """Return the operation's command without hints after it, its message in TandemMQ's OpenWire version."""
        command = commands.decode(record)
        assert isinstance(command, commands.AddMessage | commands.RemoveMessage), "a transaction adds and removes"
        if isinstance(command, commands.AddMessage):
            version = self._pages.version_at(operation.location >> 32)
            command = command._replace(message=current_frame(command.message, version))
        return commands.encode(command)
