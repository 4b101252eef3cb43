"""State of a store: the last checkpoint, in the index, and the later changes, in memory. Pure except for reads of the
index.

Two tails have the changes after the last checkpoint: the *frozen* tail, which a checkpoint is writing into the index at
this moment, and the *live* tail, which gets all new changes. A message that is added and removed between two
checkpoints is not written into the index.

Recovery, a standby and the running store change the state with the same methods (``add``, ``remove``, ``move``, ...).
One thread owns the state; there are no locks.
"""

# proofs: pins

from __future__ import annotations

import json
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from heapq import merge
from itertools import islice, takewhile
from typing import Final

from tandemmq.store.records.acknowledgements import SubscriptionInfo
from tandemmq.store.records.audit import AuditImage, ProducerAudit
from tandemmq.store.records.commands import DEFAULT_PRIORITY
from tandemmq.store.records.connection_owners import ConnectionUsers, decode_pairs, encode_pairs
from tandemmq.store.records.message import Destination
from tandemmq.store.records.message_ids import SEQUENCE_MAX, numbered
from tandemmq.store.state import keys
from tandemmq.store.state.file_states import FileState, Snapshot, file_changes, reclaimable
from tandemmq.store.state.keys import MARK_SHIFT, SHARED, SIZE_MASK, Entry
from tandemmq.store.state.known_ids import KnownIds
from tandemmq.store.state.open_transactions import OpenTransactions, PendingOperation, Transaction
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.state.tail import Frozen, Position, Tail, keys_after, ranked_after, unranked_after
from tandemmq.store.state.user_bytes import UserBytes

# Limit of the entries of ended owners that are removed between two checkpoints, because the removals need memory.
RECLAIMED_MAX = 20_000
# Limit of the producers in ``State._beyond_index``.
PRODUCERS_NOTED_MAX: Final = 10_000


# Stands for the frozen tail if there is none. It is always empty.
_NO_TAIL: Final = Tail()
_NO_NUMBER: Final = SEQUENCE_MAX + 1


class OtherNumbering(Exception):
    """The index has the owner ids of another store of this broker."""


class State:
    """State of one store. ``position``: place up to which the journal was applied; the caller sets it.

    Owner ids begin after ``first_owner``, so that several stores of one broker have different ids. ``audit``: the
    producer audit; None: no search for duplicates. Raises OtherNumbering.
    """

    def __init__(
        self, index: Snapshot, meta: bytes, *, first_owner: int = 0, audit: ProducerAudit | None = None
    ) -> None:
        self.index = index
        self.first_owner = first_owner
        self.audit = audit
        self.audit_chunks = 0
        self.audit_saved = 0  # revision of the audit in the index
        # (location, revision) of the newest audit record in the journal
        self.audit_record: tuple[int, int] = (0, 0)
        self.connections = ConnectionUsers()
        if audit is not None:
            audit.user_of = self.connections.user
        self._connection_chunks = 0
        self._connections_saved = 0  # revision of the connections in the index
        self.connections_record: tuple[int, int] = (0, 0)
        self.tail = Tail()
        self.frozen: Tail | None = None
        self.owners: dict[int, OwnerState] = {}
        # Ended owners that still have entries in the index or a tail (``reclaim``)
        self.ended: dict[int, OwnerState] = {}
        self.queues: dict[Destination, int] = {}
        # (topic, KahaDB's subscription key) -> owner. A subscription with a pattern has an owner for each matching
        # topic.
        self.subscriptions: dict[tuple[Destination, str], int] = {}
        self.topics: dict[Destination, tuple[int, ...]] = {}
        self.files: dict[int, FileState] = {}
        self.users = UserBytes()
        self._user_chunks = 0
        self.open = OpenTransactions(self.pin, self.users.change)
        self.transaction_chunks = 0
        self.next_owner = first_owner + 1
        # Files from which messages were moved: locations in them may be outdated.
        self.moved_from: set[int] = set()
        # Owner -> file: all messages that are stored from the start of this file on have a rank (see ``keys``).
        self.ranked: dict[int, int] = {}
        self._ranked_touched: set[int] = set()
        self.knows_ranks = True  # False: the version that made the index did not keep ranks
        self.knows_later_records = True  # False: that version did not keep later records, and there may be some
        self._ids = KnownIds()
        # (owner, producer) -> number from which on the index has no ids. It is cleared by ``thaw``, after which the
        # index has new ids.
        self._beyond_index: dict[tuple[int, str], int] = {}
        self.position: Position | None = None
        self.epoch = 0  # epoch in which the file of ``position`` was written
        # Files that a record before ``position`` gives up (TANDEMMQ-GONE): if they are missing, that is no loss.
        self.given_up: set[int] = set()
        # Files that a header names, but that were missing when later files were read. Their contents were not applied.
        self.missed: set[int] = set()
        self._gone_chunks = 0
        self._gone_saved = b""  # encoding of ``given_up`` and ``missed`` in the index
        self._load(meta)

    def _load(self, meta: bytes) -> None:
        if not meta:
            return
        body = json.loads(meta)
        if body["first_owner"] != self.first_owner:
            raise OtherNumbering(f"its owners begin at {body['first_owner']}, not at {self.first_owner}")
        self.position = Position(*body["position"])
        self.epoch = body["epoch"]
        gone = body  # older versions stored these files in the meta
        self._gone_chunks = body.get("gone_chunks", 0)
        if blob := self._chunks(keys.GONE, self._gone_chunks):
            gone = json.loads(blob)
        self._gone_saved = blob
        self.given_up.update(gone.get("given_up", ()))
        self.missed.update(gone.get("passed", ()))
        self.knows_ranks = body.get("ranks", False)
        self.next_owner = body["next_owner"]
        self.transaction_chunks = body["transaction_chunks"]
        self.audit_chunks = body["audit_chunks"]
        knows_users = body.get("users", False)
        for key, value in self.index.scan(keys.OWNER, b"P"):
            owner, record = keys.owner_of(key, value)
            if not knows_users:  # the version that made the index did not keep users, so the records must be read
                record = record._replace(terms=None)
            self._add_owner(OwnerState(owner, *record))
        for key, value in self.index.scan(keys.ENDED, keys.FILE):
            owner, record = keys.owner_of(key, value)
            self.ended[owner] = OwnerState(owner, *record)
        for key, value in self.index.scan(keys.RANKED, keys.LATER_RECORD):
            owner, first_file = keys.ranked_of(key, value)
            self.ranked[owner] = first_file
        for key, _ in self.index.scan(keys.LATER_RECORD, b"T"):
            owner, location = keys.later_record_of(key)
            self.owners[owner].later_records += (location,)
        self.knows_later_records = body.get("later_records", False) or all(
            owner.latest_record >> 32 == owner.record_location >> 32 for owner in self.owners.values()
        )
        for key, value in self.index.scan(keys.FILE, b"G"):
            file, live_bytes, pins = keys.file_of_entry(key, value)
            self.files.setdefault(file, FileState(live_bytes)).pins.update(pins)
        for key, value in self.index.scan(keys.HOLDER, keys.ID):
            file, owner, count, size = keys.holder_of(key, value)
            held = self.files[file]
            held.holders[owner] = [count, size, False]
            held.live += count
        if blob := self._chunks(keys.TRANSACTIONS, self.transaction_chunks):
            self.open.load(blob)
        self._user_chunks = body.get("user_chunks", 0)
        if blob := self._chunks(keys.USERS, self._user_chunks):
            self.users.load(blob)
        self._connection_chunks = body.get("connection_chunks", 0)
        if blob := self._chunks(keys.CONNECTIONS, self._connection_chunks):
            self.connections.know(decode_pairs(blob.decode()))
            self._connections_saved = self.connections.revision
            location, is_current = body["connections_record"]
            self.connections_record = (location, self.connections.revision if is_current else -1)
        if self.audit is not None:
            if blob := self._chunks(keys.AUDIT, self.audit_chunks):
                self.audit.load(_audit_of(blob))
            self.audit_saved = self.audit.revision
            location, is_current = body["audit_record"]
            self.audit_record = (location, self.audit.revision if is_current else -1)

    def _chunks(self, kind: bytes, count: int) -> bytes:
        return b"".join(self.index.get(keys.chunk_key(kind, n)) or b"" for n in range(count))

    # ---- owners

    def _add_owner(self, owner: OwnerState) -> None:
        self.owners[owner.id] = owner
        if owner.subscription_name is None:
            self.queues[owner.destination] = owner.id
        else:
            self.subscriptions[owner.destination, owner.key] = owner.id
            self.topics[owner.destination] = (*self.topics.get(owner.destination, ()), owner.id)

    def queue(self, destination: Destination) -> int:
        """Return the owner id of a queue. An unknown queue is created."""
        found = self.queues.get(destination)
        if found is None:
            found = self.new_owner()
            self.know_queue(found, destination)
        return found

    def owner_named(self, destination: Destination, subscription_key: str | None) -> int | None:
        """Return the owner id of a durable subscription or, if ``subscription_key`` is None, of a queue. None: it does
        not exist."""
        if subscription_key is None:
            return self.queues.get(destination)
        return self.subscriptions.get((destination, subscription_key))

    def holders(self, destination: Destination) -> Sequence[int]:
        """Return the owner ids of a topic's durable subscriptions, or that of a queue, if it exists."""
        if destination.is_topic:
            return self.topics.get(destination, ())
        queue = self.queues.get(destination)
        return () if queue is None else (queue,)

    def new_owner(self) -> int:
        owner = self.next_owner
        self.next_owner += 1
        return owner

    def know_queue(self, owner: int, destination: Destination) -> None:
        self._add_owner(OwnerState(owner, destination))
        self.next_owner = max(self.next_owner, owner + 1)
        self.tail.touched_owners.add(owner)

    def subscribe(
        self, owner: int, destination: Destination, info: SubscriptionInfo, location: int, user: str | None
    ) -> None:
        """Create a durable subscription. If ``owner`` exists, note that its record was written again, with ``info`` and
        ``user``, at ``location``.

        A replay needs the first record of a subscription before all its messages. So the first record is needed as long
        as the subscription has messages from before its newest record. Then ``settle_record`` is called.
        """
        known = self.owners.get(owner)
        if known is None:
            known = OwnerState(owner, destination, info.client_id, info.name, location)
            self._add_owner(known)
            self.next_owner = max(self.next_owner, owner + 1)
        elif known.latest_record != location:
            # If only the newer record were reclaimed, the older one would count again.
            self.pin(location >> 32, known.latest_record >> 32)  # prove: new-record-pins-the-old
            known.latest_record = location
            if known.count == 0:
                self.settle_record(owner)
            elif location >> 32 > (known.later_records or (known.record_location,))[-1] >> 32:
                self._set_later_records(known, (*known.later_records, location))
        self.describe(owner, info, user)

    def describe(self, owner: int, info: SubscriptionInfo, user: str | None) -> None:
        """Set the terms of a durable subscription from ``info`` and ``user`` of its newest record."""
        known = self.owners[owner]
        known.terms = keys.terms_of(known.destination, info, user)
        self.tail.touched_owners.add(owner)

    def settle_record(self, owner: int) -> None:
        """Note that the older records of a subscription are not needed, because all its messages are after its newest
        record."""
        known = self.owners[owner]
        self.pin(known.latest_record >> 32, known.record_location >> 32)  # prove: settled-record-pins-the-first
        known.record_location = known.latest_record
        self._set_later_records(known, ())
        self.tail.touched_owners.add(owner)

    def _set_later_records(self, known: OwnerState, locations: tuple[int, ...]) -> None:
        if locations != known.later_records:
            known.later_records = locations
            self.tail.touched_records.add(known.id)

    def drop_owner(self, owner: int, file: int) -> None:
        """End a queue or subscription and remove all its messages, because of a record in ``file``.

        The cost does not depend on the number of messages: they do not count any more at once, and ``reclaim`` removes
        them from the index later.
        """
        state = self.owners.pop(owner, None)
        if state is None:
            return
        if state.subscription_name is None:
            self.queues.pop(state.destination, None)
        else:
            self.subscriptions.pop((state.destination, state.key), None)
            self.topics[state.destination] = tuple(o for o in self.topics[state.destination] if o != owner)
            for location in {state.record_location, state.latest_record}:
                self.pin(file, location >> 32)  # prove: unsubscribe-pins-its-records
        self.tail.touched_owners.add(owner)
        if state.later_records:
            self.tail.touched_records.add(owner)
        self.tail.operations += 1
        self.open.withheld.pop(owner, None)
        self.ended[owner] = state
        if state.count == 0:
            self._forget_ended(state)
            return
        self.tail.touched_ended.add(owner)
        for number, held in list(self.files.items()):
            holder = held.holders.get(owner)
            if holder is None or holder[0] == 0:
                continue
            held.live -= holder[0]
            if state.subscription_name is None:
                # Of a topic's messages, only the entries show which owner counts the bytes.
                held.live_bytes -= holder[1]
            holder[:] = 0, 0, True
            self.tail.touched_files.add(number)
            self.pin(file, number)  # prove: the-end-pins-its-messages

    @property
    def may_reclaim(self) -> bool:
        """True if there are entries to reclaim and the live tail has space for their removals. Otherwise a checkpoint
        must come first."""
        return bool(self.ended) and self.tail.reclaimed < RECLAIMED_MAX

    def reclaim(self, count: int) -> None:
        """Remove about ``count`` entries of ended owners from the tail and, with the next checkpoint, from the index.
        Results of other methods do not change, except the live bytes of files (docs/formats/store.md)."""
        while self.ended and count > 0:
            state = next(iter(self.ended.values()))
            found = list(islice(self._raw_entries(state.id, state.reclaimed_to), count))
            for order_key, entry in found:
                self._reclaim_entry(state, order_key, *entry)
            if len(found) < count:
                self._forget_ended(state)
            count -= len(found) + 1
            self.tail.reclaimed += len(found) + 1

    def _reclaim_entry(self, state: OwnerState, order_key: int, location: int, size: int, message_id: str) -> None:
        self.tail.added[state.id].pop(order_key, None)
        self._tombstone(state.id, order_key, location, message_id)
        self.users.release(size)  # prove: who-ended-counts-until-reclaimed
        if state.subscription_name is not None and not size & SHARED:
            held = self.files.get(location >> 32)
            if held is not None:
                # A file that was missing and exists again counts from zero.
                held.live_bytes = max(0, held.live_bytes - (size & SIZE_MASK))
                self.tail.touched_files.add(location >> 32)
                self._count_by_another(state, order_key, location, size)
        state.reclaimed_to = order_key
        state.count -= 1
        state.bytes -= size & SIZE_MASK
        self.tail.touched_ended.add(state.id)

    def _forget_ended(self, state: OwnerState) -> None:
        """Drop an ended owner without entries. The next checkpoint deletes its record."""
        owner = state.id
        del self.ended[owner]
        self.tail.added.pop(owner, None)
        self.tail.order.pop(owner, None)
        self._drop_ranks(owner)
        self.tail.touched_ended.add(owner)

    def know_connections(self, pairs: Sequence[tuple[str, str]], location: int) -> None:
        """Note the users of connection ids in a record at ``location``."""
        self.tail.operations += 1
        self.connections.know(pairs)
        if len(pairs) == len(self.connections):  # the record has all known pairs
            self.connections_record = (location, self.connections.revision)

    # ---- messages

    def add(
        self,
        owner: int,
        order_key: int,
        location: int,
        size: int,
        message_id: str,
        priority: int = DEFAULT_PRIORITY,
        is_shared: bool = False,
        user: str | None = None,
    ) -> None:
        """Add a message to ``owner``. Its record of ``size`` bytes is at ``location``.

        ``is_shared``: another owner has the same record and counts its bytes. ``user``: the user that is charged for
        the bytes.
        """
        tail = self.tail
        file = location >> 32
        marked = size | SHARED if is_shared else size
        if user is not None:
            marked |= self.users.mark(user)
            self.users.hold(marked)
        tail.added[owner][order_key] = (location, marked, message_id)
        order = tail.order[owner]
        if order and order_key < order[-1]:
            insort(order, order_key)  # a copy whose original was not read
        else:
            order.append(order_key)
        if order_key >> 64 != file:
            tail.displaced[file, owner, order_key] = True
        if priority != DEFAULT_PRIORITY or owner in self.ranked:
            self._rank(owner, order_key, file, priority)
        tail.operations += 1
        tail.touched_owners.add(owner)
        state = self.owners[owner]
        state.count += 1
        state.bytes += size
        # The rest is ``_hold_in_file``, inlined for speed.
        held = self.files.get(file)
        holder = None if held is None else held.holders.get(owner)
        if held is None or holder is None:
            self._hold_in_file(owner, file, size, 0 if is_shared else size)
            return
        holder[0] += 1
        holder[1] += size
        holder[2] = True
        held.live += 1
        if not is_shared:
            held.live_bytes += size
        tail.touched_files.add(file)

    def remove(self, owner: int, order_key: int, location: int, size: int, message_id: str, file: int) -> None:
        """Remove a message from ``owner``, because of a record in ``file``.

        ``location`` and ``size`` may be outdated, if the message was moved.
        """
        tail = self.tail
        tail.operations += 1
        tail.touched_owners.add(owner)
        state = self.owners[owner]
        # prove: removal-finds-its-user " or self.users.is_counting"
        if state.subscription_name is not None or location >> 32 in self.moved_from or self.users.is_counting:
            raw = self._raw(owner, order_key)
            assert raw is not None, "a removed message exists"
            location, size, _ = raw
            if state.subscription_name is not None and not size & SHARED:
                self._count_by_another(state, order_key, location, size)
        state.count -= 1
        state.bytes -= size & SIZE_MASK
        self._release_in_file(owner, location, size, file)
        is_new = tail.added[owner].pop(order_key, None) is not None and location == order_key >> 32
        if not is_new or state.subscription_name is not None:  # a subscription's message may be an older, changed one
            self._tombstone(owner, order_key, location, message_id)
        self._ids.discard((owner, message_id))

    def move(self, owner: int, order_key: int, location: int, size: int, *, is_shared: bool = False) -> None:
        """Set the new location of a message of ``owner``, because of an Update or a copy."""
        raw = self._raw(owner, order_key)
        assert raw is not None, "a moved message exists"
        old, old_size, message_id = raw
        tail = self.tail
        file = location >> 32
        if order_key not in tail.added[owner]:
            insort(tail.order[owner], order_key)
            self._copy_rank(owner, order_key)
        marked = size | old_size >> MARK_SHIFT << MARK_SHIFT  # prove: moved-message-keeps-its-user "old_size" -> "0"
        tail.added[owner][order_key] = (location, marked | SHARED if is_shared else marked, message_id)
        if not is_shared:
            self.users.hold(marked)
        tail.operations += 1
        tail.touched_owners.add(owner)
        self.owners[owner].bytes += size - (old_size & SIZE_MASK)
        # The new file pins the old one. A later removal pins the new file, so it is needed as long as either exists.
        self._release_in_file(owner, old, old_size, file)
        self._hold_in_file(owner, file, size, 0 if is_shared else size)
        if old >> 32 != order_key >> 64:
            tail.displaced[old >> 32, owner, order_key] = False
        if file != order_key >> 64:
            tail.displaced[file, owner, order_key] = True
        self.moved_from.add(old >> 32)

    def rekey(self, owner: int, old_key: int, order_key: int) -> None:
        """Give a message of ``owner`` another order key. A take-over from ActiveMQ needs this."""
        raw = self._raw(owner, old_key)
        assert raw is not None, "a message that gets a new order key exists"
        location, _, message_id = raw
        tail = self.tail
        if owner in self.ranked:
            self._rerank(owner, old_key, order_key)
        tail.added[owner].pop(old_key, None)
        self._tombstone(owner, old_key, location, message_id)
        tail.added[owner][order_key] = raw
        tail.removed[owner].pop(order_key, None)
        insort(tail.order[owner], order_key)
        if location >> 32 != order_key >> 64:
            tail.displaced[location >> 32, owner, order_key] = True
        tail.operations += 1
        tail.touched_owners.add(owner)
        self.open.rekey(owner, old_key, order_key)

    def _count_by_another(self, state: OwnerState, order_key: int, location: int, size: int) -> None:
        """Let another subscription that has the same record of a topic count its bytes.

        The search begins after ``state`` in the list of subscriptions, and continues at its start. So if all
        subscriptions remove a message one after the other, each is examined about once.
        """
        others = self.topics.get(state.destination, ())
        behind = bisect_right(others, state.id)
        for at in range(behind - len(others), behind):
            other = others[at]
            if other == state.id:
                continue
            raw = self._raw(other, order_key)
            if raw is None or raw[0] != location:
                continue
            tail = self.tail
            if order_key not in tail.added[other]:
                insort(tail.order[other], order_key)
                self._copy_rank(other, order_key)
            tail.added[other][order_key] = (location, size, raw[2])
            self.files[location >> 32].live_bytes += size & SIZE_MASK
            self.users.hold(size)  # prove: another-counts-for-the-user
            return

    def _tombstone(self, owner: int, order_key: int, location: int, message_id: str) -> None:
        self.tail.removed[owner][order_key] = message_id
        if owner in self.ranked:
            rank = self._rank_of(owner, order_key)
            if rank is not None:
                self.tail.unranked.append((owner, rank, order_key))
        if location >> 32 != order_key >> 64:
            self.tail.displaced[location >> 32, owner, order_key] = False

    # ---- ranks

    def _rank(self, owner: int, order_key: int, file: int, priority: int) -> None:
        """Note the priority of a new message of ``owner``, whose record is in ``file``."""
        start = self.ranked.get(owner)
        if start is None:
            # The present messages have no order keys in later files, so all messages in later files get a rank.
            start = self.ranked[owner] = max(file, order_key >> 64) + 1
            self._ranked_touched.add(owner)
        if priority == DEFAULT_PRIORITY and order_key >> 64 < start:
            return
        rank = keys.rank_of(priority)
        self.tail.ranks[owner][order_key] = rank
        order = self.tail.rank_order[owner, rank]
        if order and order_key < order[-1]:
            insort(order, order_key)
        else:
            order.append(order_key)

    def _rank_of(self, owner: int, order_key: int) -> int | None:
        """Return the rank of a message. None: it has no rank, and so the default priority."""
        for tail in (self.tail, self.frozen or _NO_TAIL):
            rank = tail.ranks.get(owner, {}).get(order_key)
            if rank is not None:
                return rank
        value = self.index.get(keys.message_key(owner, order_key))
        return None if value is None else keys.rank_in(value)

    def _copy_rank(self, owner: int, order_key: int) -> None:
        """Copy the rank of a message, if it has one, from the frozen tail or the index into the live tail."""
        if owner in self.ranked:
            rank = self._rank_of(owner, order_key)
            if rank is not None:
                self.tail.ranks[owner][order_key] = rank

    def _rerank(self, owner: int, old_key: int, order_key: int) -> None:
        """Set the rank of a message for its new order key."""
        rank = self._rank_of(owner, old_key)
        if rank is None:
            if order_key >> 64 < self.ranked[owner]:
                return
            rank = keys.DEFAULT_RANK
        self.tail.ranks[owner][order_key] = rank
        insort(self.tail.rank_order[owner, rank], order_key)

    def _drop_ranks(self, owner: int) -> None:
        if self.ranked.pop(owner, None) is not None:
            self._ranked_touched.add(owner)
        self.tail.ranks.pop(owner, None)
        for rank in range(keys.RANKS):
            self.tail.rank_order.pop((owner, rank), None)

    def of_priority(self, owner: int, priority: int, after: int) -> Iterator[tuple[int, Entry]]:
        """Yield the ``entries`` with one priority. The cost depends on their number, not on the number of all
        entries."""
        start = self.ranked.get(owner)
        if start is None:
            if priority == DEFAULT_PRIORITY:
                yield from self.entries(owner, after)
            return
        rank = keys.rank_of(priority)
        tails = [tail for tail in (self.frozen or _NO_TAIL, self.tail) if owner in tail.added]
        found = [ranked_after(tail, owner, rank, after) for tail in tails]
        found.append(self._ranked_in_index(owner, rank, after))
        limit = start << 64
        if priority == DEFAULT_PRIORITY and after < limit:
            unranked = [unranked_after(tail, owner, after) for tail in tails]
            unranked.append(self._unranked_in_index(owner, after, limit))
            found += [takewhile(limit.__gt__, order) for order in unranked]
        last = -1
        for order_key in merge(*found):
            raw = None if order_key == last else self._raw(owner, order_key)
            last = order_key
            if raw is not None:
                yield order_key, Entry(raw[0], raw[1] & SIZE_MASK, raw[2])

    def _ranked_in_index(self, owner: int, rank: int, after: int) -> Iterator[int]:
        for key, _ in self.index.scan(keys.rank_key(owner, rank, after + 1), keys.rank_key(owner, rank + 1, 0)):
            yield keys.order_in(key)

    def _unranked_in_index(self, owner: int, after: int, limit: int) -> Iterator[int]:
        start, stop = keys.message_key(owner, after + 1), keys.message_key(owner, limit)
        for key, value in self.index.scan(start, stop):
            if keys.rank_in(value) is None:
                yield keys.order_in(key)

    def _hold_in_file(self, owner: int, file: int, size: int, counted: int) -> None:
        held = self.files.get(file)
        if held is None:
            held = self.files[file] = FileState()
        holder = held.holders.get(owner)
        if holder is None:
            held.holders[owner] = [1, size, True]
        else:
            holder[0] += 1
            holder[1] += size
            holder[2] = True
        held.live += 1
        held.live_bytes += counted
        self.tail.touched_files.add(file)

    def _release_in_file(self, owner: int, location: int, size: int, by_file: int) -> None:
        file = location >> 32
        held = self.files[file]
        holder = held.holders[owner]
        holder[0] -= 1
        holder[1] -= size & SIZE_MASK
        holder[2] = True
        held.live -= 1
        if not size & SHARED:
            held.live_bytes -= size & SIZE_MASK
            if size >> MARK_SHIFT:
                self.users.release(size)
        self.tail.touched_files.add(file)
        if file != by_file:
            self.pin(by_file, file)  # prove: removal-pins-its-message

    def pin_for_removal(self, removal: int, location: int) -> None:
        """Note that the file of the Remove at ``removal``, which a Commit applied, is needed as long as that of its
        message at ``location``. Without the Remove, a replay of the Commit would not remove the message."""
        if removal > location:  # otherwise a separate Remove follows the Commit (store.writer.outcomes)
            self.pin(removal >> 32, location >> 32)  # prove: committed-removal-pins-its-message

    def pin(self, file: int, pinned: int) -> None:
        """Note that a record in ``file`` ended a record in ``pinned``: ``file`` is needed as long as ``pinned``
        exists."""
        if file == pinned:
            return
        held = self.files.get(file)
        if held is None:
            held = self.files[file] = FileState()
        if pinned not in held.pins:
            held.pins.add(pinned)
            self.tail.touched_files.add(file)

    def _raw(self, owner: int, order_key: int) -> tuple[int, int, str] | None:
        """Return the message of ``owner`` under ``order_key`` as (location, size with its marks, message id), or
        None."""
        if owner in self.ended:
            return None  # prove: who-ended-holds-nothing
        for tail in (self.tail, self.frozen):
            if tail is None:
                continue
            added = tail.added.get(owner)
            if added and order_key in added:
                return added[order_key]
            removed = tail.removed.get(owner)
            if removed and order_key in removed:
                return None
        value = self.index.get(keys.message_key(owner, order_key))
        return None if value is None else keys.entry_of(order_key, value)

    def entry(self, owner: int, order_key: int) -> Entry | None:
        """Return the message of ``owner`` under ``order_key``, or None."""
        raw = self._raw(owner, order_key)
        return None if raw is None else Entry(raw[0], raw[1] & SIZE_MASK, raw[2])

    def entries(self, owner: int, after: int) -> Iterator[tuple[int, Entry]]:
        """Yield (order key, entry) of the messages of ``owner`` after ``after``, in order. The iterator must not be
        used after a change of the state."""
        if owner in self.ended:  # prove: who-ended-has-no-entries
            return
        for order_key, (location, size, message_id) in self._raw_entries(owner, after):
            yield order_key, Entry(location, size & SIZE_MASK, message_id)

    def _raw_entries(self, owner: int, after: int) -> Iterator[tuple[int, tuple[int, int, str]]]:
        live_added = self.tail.added.get(owner, {})
        live_removed = self.tail.removed.get(owner, {})
        frozen = self.frozen or _NO_TAIL
        frozen_added = frozen.added.get(owner, {})
        frozen_removed = frozen.removed.get(owner, {})
        # Most messages in a tail are after those in the index; a moved message may be anywhere.
        changed = _in_tails(frozen, self.tail, owner, after)
        waiting = next(changed, None)
        start = keys.message_key(owner, after + 1)
        for key, value in self.index.scan(start, keys.numbered(keys.MESSAGE, owner + 1)):
            order_key = keys.order_in(key)
            while waiting is not None and waiting[0] < order_key:
                yield waiting
                waiting = next(changed, None)
            if order_key in live_added or order_key in frozen_added:
                continue  # moved: the tail yields it, with its new location
            if order_key in live_removed or order_key in frozen_removed:
                continue
            yield order_key, keys.entry_of(order_key, value)
        if waiting is not None:
            yield waiting
            yield from changed

    def as_checkpointed(self, owner: int) -> Iterator[tuple[bytes, bytes]] | None:
        """Yield (order key, encoded value) of the entries of ``owner`` in the last checkpoint, in order. Return None if
        they have changed since: then use ``entries``."""
        for tail in (self.tail, self.frozen or _NO_TAIL):
            if tail.added.get(owner) or tail.removed.get(owner):
                return None
        start, stop = keys.numbered(keys.MESSAGE, owner), keys.numbered(keys.MESSAGE, owner + 1)
        return ((key[5:], value) for key, value in self.index.scan(start, stop))

    def held_in(self, owner: int, file: int, after: int = 0) -> Iterator[tuple[int, Entry]]:
        """Yield (order key, entry) of the live messages of ``owner`` after ``after`` whose newest record is in
        ``file``, in order.

        The order keys of most of them are in the same file. The cost depends on the number of the messages, not on the
        size of the file.
        """
        places = sorted({place for place in self._displaced_into(owner, file) if place > after})
        start, limit = file << 64, (file + 1) << 64
        yield from self._still_in(owner, file, (place for place in places if place < start))
        for order_key, entry in self.entries(owner, max(after, start - 1)):
            if order_key >= limit:
                break
            if entry.location >> 32 == file:
                yield order_key, entry
        yield from self._still_in(owner, file, (place for place in places if place >= limit))

    def _still_in(self, owner: int, file: int, places: Iterable[int]) -> Iterator[tuple[int, Entry]]:
        """Yield those of ``places`` (order keys) whose newest record is still in ``file``, with their entries."""
        for order_key in places:
            entry = self.entry(owner, order_key)
            if entry is not None and entry.location >> 32 == file:
                yield order_key, entry

    def _displaced_into(self, owner: int, file: int) -> Iterator[int]:
        start = keys.displaced_prefix(file, owner)
        for key, _ in self.index.scan(start, keys.displaced_prefix(file, owner + 1)):
            yield keys.order_in(key)
        for tail in (self.frozen or _NO_TAIL, self.tail):
            yield from (place[2] for place in tail.displaced if place[0] == file and place[1] == owner)

    def place_of(self, owner: int, message_id: str) -> int | None:
        """Return the order key of the message with this id in the last checkpoint, or None. The tails are not
        searched."""
        value = self.index.get(keys.id_key(owner, message_id))
        return None if value is None else int.from_bytes(value, "big")

    # ---- ids of messages

    def know_id(self, owner: int, message_id: str) -> None:
        """Note the id of a new message of ``owner``: a client made the id, or the message was moved."""
        self._ids.add((owner, message_id))

    def number_ids(self) -> None:
        """Maintain from now on the numbers that ``is_newest`` needs."""
        self._ids.number()

    def note_id(self, owners: Iterable[int], message_id: str) -> None:
        """Note the client-made id of a message that takes effect without a check, or that was prepared. If the client
        sends it again, it is a duplicate."""
        if self.audit is not None:
            self.audit.note(message_id)
        for owner in owners:
            self._ids.add((owner, message_id))

    def forget_id(self, owners: Iterable[int], message_id: str) -> None:
        """Remove the client-made id of a prepared message that was rolled back: the client may send it again."""
        if self.audit is not None:
            self.audit.forget(message_id)
        for owner in owners:
            self._ids.discard((owner, message_id))

    def has_id(self, owner: int, message_id: str) -> bool:
        """Return whether ``owner`` has a message with this id. The result is right for ids that clients made. For ids
        that brokers made, messages of this epoch that are not in the index yet are not found."""
        if (owner, message_id) in self._ids:
            return True
        known = self.owners.get(owner)
        if known is None or not known.count:
            return False
        producer, sequence = numbered(message_id)
        if sequence >= self._beyond_index.get((owner, producer), _NO_NUMBER):
            return False
        value = self._indexed_id(owner, message_id, producer)  # like ``place_of``
        return value is not None and self._raw(owner, int.from_bytes(value, "big")) is not None

    def _indexed_id(self, owner: int, message_id: str, producer: str) -> bytes | None:
        """Return the value of an id in the index, or None. If the index has no higher number of its producer either,
        note that for later ids."""
        prefix, sequence = keys.producer_key(owner, message_id)
        if sequence is None:
            return self.index.get(prefix)
        key = prefix + sequence.to_bytes(8, "big")
        found = next(self.index.scan(key, prefix[:-1] + b"\1"), None)
        if found is not None:
            return found[1] if found[0] == key else None
        # prove: nothing-beyond-the-index ", sequence)" -> ", 0)"
        self._note_beyond(owner, producer, sequence)
        return None

    def is_newest(self, owner: int, message_id: str) -> bool:
        """Return whether no higher number of the id's producer was stored for ``owner`` or is in the audit, and no
        prepared transaction has a message of this producer. Then a higher number is certainly new. False: unknown."""
        producer, sequence = numbered(message_id)
        prefix, indexed = keys.producer_key(owner, message_id)
        if indexed is None:  # prove: newest-is-sorted
            return False
        if self.audit is not None and not self.audit.is_newest(producer, sequence):  # prove: newest-of-the-audit
            return False
        if not self._ids.is_newest(owner, producer, sequence):  # prove: newest-of-the-tails
            return False
        if producer in self.open.producers:  # prove: newest-of-the-prepared
            return False
        if sequence + 1 >= self._beyond_index.get((owner, producer), _NO_NUMBER):
            return True
        later = self.index.scan(prefix + (sequence + 1).to_bytes(8, "big"), prefix[:-1] + b"\1")
        # prove: newest-of-the-index "next(later, None) is not None" -> "False"
        if next(later, None) is not None:
            return False
        self._note_beyond(owner, producer, sequence + 1)
        return True

    def _note_beyond(self, owner: int, producer: str, sequence: int) -> None:
        """Note that the index has no id of ``producer`` with this number or a higher one, to avoid further scans."""
        if len(self._beyond_index) >= PRODUCERS_NOTED_MAX:
            self._beyond_index.clear()
        self._beyond_index[owner, producer] = sequence

    # ---- transactions (documented in store.state.open_transactions)

    @property
    def transactions(self) -> dict[str, Transaction]:
        return self.open.by_key

    @property
    def withheld(self) -> dict[int, set[int]]:
        return self.open.withheld

    def enlist(self, key: str, operation: PendingOperation, replaces: int = 0) -> None:
        self.tail.operations += 1
        self.open.enlist(key, operation, replaces)

    def prepare(self, key: str, location: int, places: Iterable[tuple[int, int] | None]) -> None:
        self.tail.operations += 1
        self.open.prepare(key, location, places)

    def resolve(self, owner: int, order_key: int, message_id: str) -> None:
        known = self.owners[owner]
        self.open.resolve((known.destination, known.subscription_key, message_id), owner, order_key)

    def end_transaction(self, key: str, location: int) -> Transaction | None:
        self.tail.operations += 1
        return self.open.end(key, location)

    # ---- checkpoint

    def freeze(self, first_of_epoch: Callable[[int], bool], current_file: int) -> Frozen:
        """Begin a checkpoint of the present state, and return its content. Later changes go to a new live tail.
        ``thaw`` ends the checkpoint."""
        assert self.frozen is None, "a checkpoint begins only when the one before has ended"
        assert self.position is not None, "a checkpoint names its position"
        tail, self.tail = self.tail, Tail()
        self.frozen = tail
        before = min(current_file, self.position.file)  # prove: only-covered-files-go ", self.position.file"
        reclaimable = self.reclaimable(first_of_epoch, before)
        small: list[tuple[bytes, bytes | None]] = []
        for file in sorted(tail.touched_files):
            small.extend(file_changes(self.index, file, self.files.get(file)))
        for owner in tail.touched_records:
            small.extend(self._later_record_changes(owner))
        if self.open.is_touched:
            blob = self.open.encode()
            self.transaction_chunks = _put_chunks(small, keys.TRANSACTIONS, blob, self.transaction_chunks)
            self.open.is_touched = False
        if self.users.is_touched:
            self._user_chunks = _put_chunks(small, keys.USERS, self.users.encode(), self._user_chunks)
        small.extend(self._ranked_changes())
        self._ids.freeze()
        if self.audit is not None and self.audit.revision != self.audit_saved:
            self.audit_saved = self.audit.revision
            self.audit_chunks = _put_chunks(small, keys.AUDIT, _audit_bytes(self.audit), self.audit_chunks)
        if self.connections.revision != self._connections_saved:
            self._connections_saved = self.connections.revision
            blob = encode_pairs(self.connections.pairs()).encode()
            self._connection_chunks = _put_chunks(small, keys.CONNECTIONS, blob, self._connection_chunks)
        if (blob := self._encode_gone()) != self._gone_saved:
            self._gone_saved = blob
            self._gone_chunks = _put_chunks(small, keys.GONE, blob, self._gone_chunks)  # prove: gone-files-fit
        meta = json.dumps(
            {
                "position": list(self.position),
                "epoch": self.epoch,
                "first_owner": self.first_owner,
                "gone_chunks": self._gone_chunks,
                "ranks": True,
                "later_records": True,
                "users": True,
                "next_owner": self.next_owner,
                "transaction_chunks": self.transaction_chunks,
                "user_chunks": self._user_chunks,
                "audit_chunks": self.audit_chunks,
                "connection_chunks": self._connection_chunks,
                "connections_record": [
                    self.connections_record[0],
                    self.connections_record[1] == self._connections_saved,
                ],
                "audit_record": [self.audit_record[0], self.audit_record[1] == self.audit_saved],
            },
            separators=(",", ":"),
        ).encode()
        owners = [(id, _record(self.owners.get(id))) for id in tail.touched_owners]
        ended = [(id, _record(self.ended.get(id))) for id in tail.touched_ended]
        return Frozen(tail, small, owners, ended, meta, self.position, reclaimable)

    def _encode_gone(self) -> bytes:
        if not self.given_up and not self.missed:
            return b""
        gone = {"given_up": sorted(self.given_up), "passed": sorted(self.missed)}
        return json.dumps(gone, separators=(",", ":")).encode()

    def _later_record_changes(self, owner: int) -> Iterator[tuple[bytes, bytes | None]]:
        state = self.owners.get(owner)
        wanted = set() if state is None else {keys.later_record_key(owner, place) for place in state.later_records}
        prefix = keys.numbered(keys.LATER_RECORD, owner)
        stored = {key for key, _ in self.index.scan(prefix, keys.numbered(keys.LATER_RECORD, owner + 1))}
        yield from ((key, b"\1") for key in wanted - stored)
        yield from ((key, None) for key in stored - wanted)

    def _ranked_changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        for owner in list(self.ranked):
            if owner not in self.ended and self.owners[owner].count == 0:
                del self.ranked[owner]  # after this checkpoint it has no message with a rank
                self._ranked_touched.add(owner)
        for owner in self._ranked_touched:
            file = self.ranked.get(owner)
            yield keys.numbered(keys.RANKED, owner), None if file is None else keys.ranked_value(file)
        self._ranked_touched.clear()

    def thaw(self) -> Callable[[], None]:
        """End a durable checkpoint: the index includes the frozen tail. Return a function that frees the memory of the
        tail; any thread may call it."""
        tail, self.frozen = self.frozen, None
        ids = self._ids.thaw()
        self._beyond_index.clear()  # prove: a-new-index-has-new-ids

        def free() -> None:
            if tail is not None:
                tail.free()
            while ids:
                ids.pop()

        return free

    # ---- reclaiming

    def held_by_records(self) -> set[int]:
        """Return the files with a needed record of a subscription or a record of an open transaction."""
        held: set[int] = set()
        for state in self.owners.values():
            if state.record_location:
                held.add(state.record_location >> 32)  # prove: first-record-stays
            if state.latest_record:
                held.add(state.latest_record >> 32)  # prove: newest-record-stays
        for transaction in self.transactions.values():
            held.update(self.open.files(transaction))  # prove: open-transaction-holds-its-files
        return held

    def reclaimable(
        self, first_of_epoch: Callable[[int], bool], before: int, emptied: Set[int] = frozenset()
    ) -> tuple[int, ...]:
        """Return the files below ``before`` that are not needed, oldest first. See
        ``store.state.file_states.reclaimable``."""
        return reclaimable(self.files, self.held_by_records(), first_of_epoch, before, emptied)

    def know_file(self, file: int) -> None:
        """Note that a journal file exists. Otherwise a file without messages would never be reclaimed."""
        if file not in self.files:
            self.files[file] = FileState()
            self.tail.touched_files.add(file)

    def named_files(self) -> set[int]:
        """Return the files that a new header must name: without files that were given up, also if these are not removed
        yet."""
        return self.files.keys() - self.given_up  # prove: headers-name-no-holes " - self.given_up" -> " - set()"

    def lose_file(self, file: int, *, is_damage: bool = False) -> list[tuple[int, int, Entry]]:
        """Drop a file that does not exist any more. Return the messages that were dropped, as (owner, order key,
        entry).

        Messages, subscriptions and transactions that the state still has in the file are dropped: a master gave the
        file up after they had ended, or had been copied to later files. If the oldest record of a subscription was in
        the file, the subscription also loses all messages from before its next record, unless ``is_damage``: either it
        was copied after them, or it had ended and begun again with that record.
        """
        held = self.files.get(file)
        if held is None:
            return []
        dropped = self.drop_range(file, 0, 1 << 32)
        for owner in list(self.owners.values()):
            if owner.latest_record and owner.latest_record >> 32 == file:
                dropped += [(owner.id, order_key, entry) for order_key, entry in self.entries(owner.id, 0)]
                self.drop_owner(owner.id, file)
            elif owner.record_location and owner.record_location >> 32 == file:
                if is_damage:
                    self.settle_record(owner.id)
                else:
                    dropped += self._begin_at_next_record(owner, file)
            elif owner.later_records:
                self._set_later_records(owner, tuple(place for place in owner.later_records if place >> 32 != file))
        for key, transaction in list(self.transactions.items()):
            if file in self.open.files(transaction):
                self.tail.operations += 1
                self.open.forget(key, file << 32)
        self.forget_files((file,))
        return dropped

    def _begin_at_next_record(self, known: OwnerState, file: int) -> list[tuple[int, int, Entry]]:
        """Let a subscription, whose first record was in the missing ``file``, begin with its next record. Return the
        dropped messages, as ``lose_file`` does."""
        known.record_location = known.later_records[0]  # prove: begins-at-its-next-record "[0]" -> "[-1]"
        self._set_later_records(known, known.later_records[1:])
        self.tail.touched_owners.add(known.id)
        return self._remove_before_record(known, file)

    def begin_at_newest_record(self, owner: int, file: int) -> None:
        """Do the same as ``settle_record``, for a subscription whose first record is missing. Its messages from before
        its newest record are dropped, because they belong to a former subscription with the same name. The record that
        proves this is in ``file``."""
        self.settle_record(owner)
        self._remove_before_record(self.owners[owner], file)

    def _remove_before_record(self, known: OwnerState, file: int) -> list[tuple[int, int, Entry]]:
        """Drop the messages whose location and order key are before ``known.record_location``. Return them, as
        ``lose_file`` does."""
        record = known.record_location
        # A message of a transaction may be stored before the record, and committed after it.
        # prove: committed-behind-its-record "item[0] >> 32 < record" -> "True"
        before = takewhile(lambda item: item[0] >> 32 < record, self.entries(known.id, 0))
        dropped = [(known.id, order_key, entry) for order_key, entry in before if entry.location < record]
        for owner, order_key, entry in dropped:
            self.remove(owner, order_key, entry.location, entry.size, entry.message_id, file)
        return dropped

    def drop_range(self, file: int, start: int, stop: int) -> list[tuple[int, int, Entry]]:
        """Drop the live messages whose newest record is in ``file``, from offset ``start`` to before ``stop``. Return
        them as (owner, order key, entry)."""
        held = self.files.get(file)
        dropped: list[tuple[int, int, Entry]] = []
        if held is None or held.live == 0:
            return dropped
        for owner in [owner for owner, holder in held.holders.items() if holder[0]]:
            for order_key, entry in list(self.held_in(owner, file)):
                if start <= entry.location & 0xFFFFFFFF < stop:
                    self.remove(owner, order_key, entry.location, entry.size, entry.message_id, file)
                    dropped.append((owner, order_key, entry))
        return dropped

    def forget_files(self, files: Iterable[int]) -> None:
        """Drop files that were removed from the disk."""
        for file in files:
            if self.files.pop(file, None) is not None:
                self.tail.touched_files.add(file)


def _in_tails(frozen: Tail, tail: Tail, owner: int, after: int) -> Iterator[tuple[int, tuple[int, int, str]]]:
    """Yield the live messages of ``owner`` after ``after`` that are in the tails, in order."""
    added, removed = tail.added.get(owner, {}), tail.removed.get(owner, {})
    frozen_added = frozen.added.get(owner, {})
    last = -1
    for order_key in merge(keys_after(frozen, owner, after), keys_after(tail, owner, after)):
        found = added.get(order_key)
        if found is None and order_key not in removed:
            found = frozen_added.get(order_key)
        if found is not None and order_key != last:
            last = order_key
            yield order_key, found


def _record(owner: OwnerState | None) -> keys.OwnerRecord | None:
    """Return the record of an owner, which does not change later, or None."""
    return None if owner is None else owner.record()


def _put_chunks(changes: list[tuple[bytes, bytes | None]], kind: bytes, blob: bytes, before: int) -> int:
    """Append the changes that store ``blob`` in chunks to ``changes``. ``before``: former number of chunks. Return the
    new number."""
    pieces = [blob[n : n + keys.CHUNK_BYTES] for n in range(0, len(blob), keys.CHUNK_BYTES)]
    changes += ((keys.chunk_key(kind, n), piece) for n, piece in enumerate(pieces))
    changes += ((keys.chunk_key(kind, n), None) for n in range(len(pieces), before))
    return len(pieces)


def _audit_bytes(audit: ProducerAudit) -> bytes:
    windows = audit.image().windows
    return json.dumps(
        {producer: [first, f"{bitmap:x}"] for producer, (first, bitmap) in windows.items()}, separators=(",", ":")
    ).encode()


def _audit_of(blob: bytes) -> AuditImage:
    windows = {producer: (first, int(bitmap, 16)) for producer, (first, bitmap) in json.loads(blob).items()}
    return AuditImage(0, 0, windows)
