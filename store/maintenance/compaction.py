"""Empty sparse journal files: copy their live records to the end, so that the files can go (safety.md 5).

The bound is disk <= FACTOR x live + two files. Acknowledgements and deletions are never copied: when the files with the
messages that they removed are emptied, they are not needed any more. A copy is decided when its batch is formed, on the
storage thread; it keeps the message's place in the order, and applying it moves the entry. Work is done in steps of
STEP_BYTES, between the batches of clients, and no faster than a rate.

    message                 an Update with a hint; for a topic, with a Remove for each durable subscription that does
                            not have it pending
    subscription's record   written again, then all its pending messages, then a trace that marks this
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
# A requested compaction empties every file of which less than this share is live.
DENSE_SHARE = 0.9
STEP_BYTES = 256 << 10
STEP_RECORDS = 500


def bound_bytes(live_bytes: int, file_length: int) -> int:
    """Return the largest size of a journal that compaction accepts."""
    return int(FACTOR * live_bytes) + FILES_BEYOND * file_length


def is_sparse(live_bytes: int, size: int) -> bool:
    """Return whether a requested compaction empties a file of that size."""
    return live_bytes < DENSE_SHARE * size


class CompactionReport(NamedTuple):
    """Result of a compaction. ``files`` were emptied; the next checkpoint removes them."""

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
    """Return the files to empty, oldest first, so that the journal is within its bound again; none if it already is.

    Files with the smallest share of live bytes come first, and no more than needed: each costs the copying of its live
    bytes. A file that stays only because of its acknowledgements needs no copying: it is removed after the files of the
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
        return ()  # the files that are reclaimed anyway are enough
    low, high = 0, len(candidates)  # ``low`` files are not enough; all of them is the maximum
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
    """Return all files worth emptying, whatever the bound: less than DENSE_SHARE of each is live. Oldest first."""
    return tuple(
        file
        for file in sorted(sizes)
        if file < before
        and is_sparse(files[file].live_bytes, sizes[file])
        and (files[file].live > 0 or file in held_by_records)
    )


class Compaction:
    """Run over ``files``. All on the storage thread; call ``step`` until ``is_done``.

    A file is verified when its turn comes, because that takes a while; parts that do not verify are not copied (a copy
    gets its own checksum), and such files are ``unfit``. The storage thread completes ``reports`` when the files are
    gone. ``write_copies`` writes a batch, synced and fence-checked on return; returns the locations of its records.
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
        """Copy one step; return the bytes written. 0 with ``is_done`` when nothing is left."""
        while self._files:
            file = self._files[0]
            written = 0
            if not self._has_moved_records and file not in self._state.files:
                self._files.popleft()  # a checkpoint found meanwhile that nothing needed it, and it was removed
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
                self._leave(file)
            if written:
                self.bytes_copied += written
                return written
        return 0

    def _leave(self, file: int) -> None:
        """Give up emptying a file of which a part does not verify. Records that were not copied stay in it."""
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
        assert chunk, "the file's counts say that this owner has something in it"
        return self._copy(owner, chunk)

    def _follow_subscription(self) -> int:
        """Copy pending messages of a moved subscription: they must be after its record."""
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
            return 0  # unsubscribed, or changed meanwhile
        payload = encode_settled(state.owners[owner].destination, state.owners[owner].key)
        self._write_copies([payload])
        state.settle_record(owner)
        return len(payload)

    def _copy_sound(self, owner: int, found: tuple[int, Entry]) -> int:
        """Copy a message, unless it does not verify: then no client gets it, and a copy would not help."""
        try:
            return self._copy(owner, [found])
        except JournalCorrupt:
            self._pages.tell_damage(found[1])
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
        assert isinstance(command, commands.Subscription), "a subscription's record says what it is"
        assert command.info is not None, "a subscription's record says what it is"
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
        """Return the operation's command without hints after it, its message in our version."""
        command = commands.decode(record)
        assert isinstance(command, commands.AddMessage | commands.RemoveMessage), "a transaction adds and removes"
        if isinstance(command, commands.AddMessage):
            version = self._pages.version_at(operation.location >> 32)
            command = command._replace(message=current_frame(command.message, version))
        return commands.encode(command)
