"""What the store holds: the last checkpoint, and in memory what changed since. Pure but for look-ups in the index.

The B+tree says what was true at the last checkpoint. Two tails say what changed since: the *frozen* one, which a
checkpoint is writing into the tree at this moment, and the *live* one, which takes every change. A message that
comes and goes between two checkpoints never touches a page.

Recovery, a standby that follows the journal, and the running store all change this state through the same
methods (``add``, ``remove``, ``move``, ...). One thread owns it; nothing in here locks.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Protocol

from store import keys
from store.keys import Entry
from store.open_transactions import Transaction, decode_transactions, encode_transactions
from store.records.commands import subscription_key
from store.records.message import Destination
from store.tail import Frozen, Position, Tail, keys_after

OPENWIRE_VERSION = 11


class Snapshot(Protocol):
    """What the state reads of the index: the last published root."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]: ...


class OwnerState:
    """A queue or durable subscription, and how much it holds."""

    __slots__ = ("bytes", "client_id", "count", "destination", "id", "record_location", "subscription_name")

    def __init__(
        self,
        id: int,
        destination: Destination,
        client_id: str | None = None,
        subscription_name: str | None = None,
        record_location: int = 0,
        count: int = 0,
        bytes: int = 0,
    ) -> None:
        self.id = id
        self.destination = destination
        self.client_id = client_id
        self.subscription_name = subscription_name
        self.record_location = record_location
        self.count = count
        self.bytes = bytes

    @property
    def key(self) -> str:
        """A durable subscription's name in KahaDB."""
        assert self.client_id is not None, "a queue has no subscription key"
        assert self.subscription_name is not None, "a queue has no subscription key"
        return subscription_key(self.client_id, self.subscription_name)

    def record(self) -> keys.OwnerRecord:
        return keys.OwnerRecord(
            self.destination, self.client_id, self.subscription_name, self.record_location, self.count, self.bytes
        )


class FileState:
    """What holds a journal file: live messages in it, and the files whose dead messages its records killed."""

    __slots__ = ("live", "live_bytes", "pins")

    def __init__(self, live: int = 0, live_bytes: int = 0, pins: Iterable[int] = ()) -> None:
        self.live = live
        self.live_bytes = live_bytes
        self.pins = set(pins)


class State:
    """See the module. ``position`` is where the journal stands; only the caller moves it."""

    def __init__(self, index: Snapshot, meta: bytes) -> None:
        self.index = index
        self.tail = Tail()
        self.frozen: Tail | None = None
        self.owners: dict[int, OwnerState] = {}
        self.queues: dict[Destination, int] = {}
        self.subscriptions: dict[str, int] = {}  # KahaDB's subscription key -> owner
        self.topics: dict[Destination, tuple[int, ...]] = {}
        self.files: dict[int, FileState] = {}
        self.transactions: dict[str, Transaction] = {}
        self.transaction_chunks = 0
        self.transactions_touched = False
        self.next_owner = 1
        self.position: Position | None = None
        self.epoch = 0  # in which the file of ``position`` was written
        self._load(meta)

    def _load(self, meta: bytes) -> None:
        if not meta:
            return
        body = json.loads(meta)
        self.position = Position(*body["position"])
        self.epoch = body["epoch"]
        self.next_owner = body["next_owner"]
        self.transaction_chunks = body["transaction_chunks"]
        for key, value in self.index.scan(keys.OWNER, b"P"):
            owner, record = keys.owner_of(key, value)
            self._know(OwnerState(owner, *record))
        for key, value in self.index.scan(keys.FILE, b"G"):
            file, live, live_bytes, pins = keys.file_of_entry(key, value)
            known = self.files.setdefault(file, FileState(live, live_bytes))
            known.pins.update(pins)
        pieces = [self.index.get(keys.chunk_key(keys.TRANSACTIONS, n)) or b"" for n in range(self.transaction_chunks)]
        if pieces:
            self.transactions = decode_transactions(b"".join(pieces))

    # ---- owners

    def _know(self, owner: OwnerState) -> None:
        self.owners[owner.id] = owner
        if owner.subscription_name is None:
            self.queues[owner.destination] = owner.id
        else:
            self.subscriptions[owner.key] = owner.id
            self.topics[owner.destination] = (*self.topics.get(owner.destination, ()), owner.id)

    def queue(self, destination: Destination) -> int:
        """The owner id of a queue; a queue that is not known yet begins here."""
        found = self.queues.get(destination)
        if found is None:
            found = self.new_owner()
            self.know_queue(found, destination)
        return found

    def new_owner(self) -> int:
        owner = self.next_owner
        self.next_owner += 1
        return owner

    def know_queue(self, owner: int, destination: Destination) -> None:
        self._know(OwnerState(owner, destination))
        self.next_owner = max(self.next_owner, owner + 1)
        self.tail.touched_owners.add(owner)

    def subscribe(self, owner: int, destination: Destination, client_id: str, name: str, location: int) -> None:
        """A durable subscription begins, or (same owner again) its record was written anew."""
        known = self.owners.get(owner)
        if known is None:
            self._know(OwnerState(owner, destination, client_id, name, location))
            self.next_owner = max(self.next_owner, owner + 1)
        else:
            known.record_location = location
        self.tail.touched_owners.add(owner)

    def drop_owner(self, owner: int, file: int) -> None:
        """A queue or subscription ends with all it holds; the record that says so stands in ``file``."""
        state = self.owners.pop(owner, None)
        if state is None:
            return
        if state.subscription_name is None:
            self.queues.pop(state.destination, None)
        else:
            self.subscriptions.pop(state.key, None)
            self.topics[state.destination] = tuple(o for o in self.topics[state.destination] if o != owner)
            if state.record_location:
                self.pin(file, state.record_location >> 32)
        for order_key, entry in list(self.entries(owner, 0)):
            self._forget_in_file(entry.location, entry.size, file)
            self._tombstone(owner, order_key, entry.message_id)
        self.tail.added.pop(owner, None)
        self.tail.order.pop(owner, None)
        self.tail.touched_owners.discard(owner)
        self.tail.dropped_owners.add(owner)
        self.tail.operations += 1

    # ---- messages

    def add(self, owner: int, order_key: int, location: int, size: int, message_id: str) -> None:
        """``owner`` holds one message more; its record of ``size`` bytes stands at ``location``."""
        tail = self.tail
        tail.added[owner][order_key] = (location, size, message_id)
        tail.order[owner].append(order_key)  # order keys grow with time
        tail.operations += 1
        tail.touched_owners.add(owner)
        state = self.owners[owner]
        state.count += 1
        state.bytes += size
        file = location >> 32
        held = self.files.get(file)
        if held is None:
            held = self.files[file] = FileState()
        held.live += 1
        held.live_bytes += size
        tail.touched_files.add(file)

    def remove(self, owner: int, order_key: int, location: int, size: int, message_id: str, file: int) -> None:
        """``owner`` holds that message no more; the record that says so stands in ``file``."""
        tail = self.tail
        tail.operations += 1
        tail.touched_owners.add(owner)
        state = self.owners[owner]
        state.count -= 1
        state.bytes -= size
        self._forget_in_file(location, size, file)
        added = tail.added[owner]
        if added.pop(order_key, None) is None or location != order_key >> 32:
            self._tombstone(owner, order_key, message_id)

    def move(self, owner: int, order_key: int, old: Entry, location: int, size: int) -> None:
        """The same message stands at another place now (an Update, a compacted copy)."""
        tail = self.tail
        if order_key not in tail.added[owner]:
            insort(tail.order[owner], order_key)
        tail.added[owner][order_key] = (location, size, old.message_id)
        tail.operations += 1
        tail.touched_owners.add(owner)
        self.owners[owner].bytes += size - old.size
        self._forget_in_file(old.location, old.size, location >> 32)
        held = self.files.setdefault(location >> 32, FileState())
        held.live += 1
        held.live_bytes += size
        tail.touched_files.add(location >> 32)

    def _tombstone(self, owner: int, order_key: int, message_id: str) -> None:
        self.tail.removed[owner][order_key] = message_id

    def _forget_in_file(self, location: int, size: int, by_file: int) -> None:
        file = location >> 32
        held = self.files[file]
        held.live -= 1
        held.live_bytes -= size
        self.tail.touched_files.add(file)
        if file != by_file:
            self.pin(by_file, file)

    def pin(self, file: int, pinned: int) -> None:
        """A record in ``file`` killed something in ``pinned``: it must stay as long as that can come back."""
        if file == pinned:
            return
        held = self.files.get(file)
        if held is None:
            held = self.files[file] = FileState()
        if pinned not in held.pins:
            held.pins.add(pinned)
            self.tail.touched_files.add(file)

    def entry(self, owner: int, order_key: int) -> Entry | None:
        """What ``owner`` holds under ``order_key``, None if nothing."""
        for tail in (self.tail, self.frozen):
            if tail is None:
                continue
            added = tail.added.get(owner)
            if added and order_key in added:
                return Entry(*added[order_key])
            removed = tail.removed.get(owner)
            if (removed and order_key in removed) or owner in tail.dropped_owners:
                return None
        value = self.index.get(keys.message_key(owner, order_key))
        return None if value is None else keys.entry_of(order_key, value)

    def entries(self, owner: int, after: int) -> Iterator[tuple[int, Entry]]:
        """What ``owner`` holds behind ``after``, in order. Not to be carried on after a change of the state."""
        live_added = self.tail.added.get(owner, {})
        live_removed = self.tail.removed.get(owner, {})
        frozen_added: dict[int, tuple[int, int, str]] = {}
        frozen_removed: dict[int, str] = {}
        is_dropped = owner in self.tail.dropped_owners
        if self.frozen is not None:
            frozen_added = self.frozen.added.get(owner, {})
            frozen_removed = self.frozen.removed.get(owner, {})
            is_dropped = is_dropped or owner in self.frozen.dropped_owners

        if not is_dropped:
            start = keys.message_key(owner, after + 1)
            for key, value in self.index.scan(start, keys.owner_prefix(keys.MESSAGE, owner + 1)):
                order_key = keys.message_order(key)
                if order_key in live_added or order_key in frozen_added:
                    continue  # moved: comes below, with its new place
                if order_key in live_removed or order_key in frozen_removed:
                    continue
                yield order_key, keys.entry_of(order_key, value)
        # What is in a tail mostly stands behind what is in the tree; a moved message may stand anywhere.
        frozen_keys = iter(()) if self.frozen is None else keys_after(self.frozen, owner, after)
        for order_key in merge(frozen_keys, keys_after(self.tail, owner, after)):
            found = live_added.get(order_key)
            if found is None and order_key not in live_removed:
                found = frozen_added.get(order_key)
            if found is not None:
                yield order_key, Entry(*found)

    def place_of(self, owner: int, message_id: str) -> int | None:
        """The order key of a message that the last checkpoint knows under ``message_id``; tails are not searched."""
        value = self.index.get(keys.id_key(owner, message_id))
        return None if value is None else int.from_bytes(value, "big")

    # ---- checkpoint

    def freeze(self, first_of_epoch: Callable[[int], bool], current_file: int) -> Frozen:
        """Begin a checkpoint of what is true now; a new live tail takes what comes. ``thaw`` ends it."""
        assert self.frozen is None, "a checkpoint begins only when the one before has ended"
        assert self.position is not None, "a checkpoint names the place up to which it is true"
        tail, self.tail = self.tail, Tail()
        self.frozen = tail
        reclaimable = self.reclaimable(first_of_epoch, min(current_file, self.position.file))
        small: list[tuple[bytes, bytes | None]] = []
        for file in sorted(tail.touched_files):
            held = self.files.get(file)
            if held is None:
                small.extend((key, None) for key, _ in self.index.scan(*_file_range(file)))
            else:
                small.extend(keys.file_values(file, held.live, held.live_bytes, held.pins))
        owners = sorted(tail.touched_owners | tail.dropped_owners)
        for owner in owners:
            state = self.owners.get(owner)
            small.append((keys.owner_key(owner), None if state is None else keys.owner_value(state.record())))
        if self.transactions_touched:
            small.extend(self._transaction_changes())
            self.transactions_touched = False
        meta = json.dumps(
            {
                "position": list(self.position),
                "epoch": self.epoch,
                "next_owner": self.next_owner,
                "transaction_chunks": self.transaction_chunks,
                "openwire": OPENWIRE_VERSION,
            },
            separators=(",", ":"),
        ).encode()
        return Frozen(tail, small, meta, self.position, reclaimable)

    def thaw(self) -> None:
        """The checkpoint is durable: the index now says what the frozen tail said."""
        self.frozen = None

    def _transaction_changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        blob = encode_transactions(self.transactions) if self.transactions else b""
        pieces = [blob[n : n + keys.CHUNK_BYTES] for n in range(0, len(blob), keys.CHUNK_BYTES)]
        before, self.transaction_chunks = self.transaction_chunks, len(pieces)
        for n, piece in enumerate(pieces):
            yield keys.chunk_key(keys.TRANSACTIONS, n), piece
        for n in range(len(pieces), before):
            yield keys.chunk_key(keys.TRANSACTIONS, n), None

    # ---- reclaiming

    def reclaimable(self, first_of_epoch: Callable[[int], bool], before: int) -> tuple[int, ...]:
        """The files below ``before`` that nothing needs, oldest first (safety.md 5, kahadb.md 4.7).

        A file stays while it holds a live message, a subscription's record or an operation of an open transaction;
        while its records kill something in a file that stays; and, if it fenced off an epoch, while any file
        before it stays.
        """
        held_by_records = {owner.record_location >> 32 for owner in self.owners.values() if owner.record_location}
        for transaction in self.transactions.values():
            held_by_records.update(operation.location >> 32 for operation in transaction.operations)
        going: list[int] = []
        gone: set[int] = set()
        is_oldest_kept = False
        for file in sorted(self.files):
            if file >= before:
                break
            held = self.files[file]
            stays = (
                held.live > 0
                or file in held_by_records
                or any(pin in self.files and pin not in gone for pin in held.pins)
                or (is_oldest_kept and first_of_epoch(file))
            )
            if stays:
                is_oldest_kept = True
            else:
                going.append(file)
                gone.add(file)
        return tuple(going)

    def know_file(self, file: int) -> None:
        """A journal file exists; without this an empty one would never be reclaimed."""
        if file not in self.files:
            self.files[file] = FileState()
            self.tail.touched_files.add(file)

    def lose_file(self, file: int) -> None:
        """A master gave ``file`` up. What we still believe to live in it died in files that went with it."""
        held = self.files.get(file)
        if held is None:
            return
        if held.live > 0:
            for owner in list(self.owners):
                for order_key, entry in list(self.entries(owner, 0)):
                    if entry.location >> 32 == file:
                        self.remove(owner, order_key, entry.location, entry.size, entry.message_id, file)
        self.forget_files((file,))

    def forget_files(self, files: Iterable[int]) -> None:
        """Those files are gone from the disk."""
        for file in files:
            if self.files.pop(file, None) is not None:
                self.tail.touched_files.add(file)


def _file_range(file: int) -> tuple[bytes, bytes]:
    return keys.FILE + file.to_bytes(4, "big"), keys.FILE + (file + 1).to_bytes(4, "big")
