"""The state of a store: the last checkpoint, and in memory the changes since. Pure except for look-ups in the index.

The B+tree has the state at the last checkpoint. Two tails have the changes since: the *frozen* one, which a
checkpoint is writing into the tree at this moment, and the *live* one, which takes every change. A message that
comes and goes between two checkpoints never touches a page.

Recovery, a standby that follows the journal, and the running store all change this state through the same
methods (``add``, ``remove``, ``move``, ...). One thread owns it; nothing in here locks.
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

# Maximum of entries of ended owners that are reclaimed before a checkpoint: until then they take memory.
RECLAIMED_MAX = 20_000
# Maximum of producers of which it is noted that the index has no higher number.
PRODUCERS_NOTED_MAX: Final = 10_000


# Replaces the frozen tail while there is none; it always stays empty.
_NO_TAIL: Final = Tail()
_NO_NUMBER: Final = SEQUENCE_MAX + 1


class OtherNumbering(Exception):
    """Raised if the index numbers its owners like another store of this broker."""


class State:
    """The content of one store. ``position`` is its journal position; only the caller moves it.

    Owners are numbered from ``first_owner`` on, so that several stores of one broker have different owners. ``audit``
    notes every message; None: no search for duplicates. Raises OtherNumbering.
    """

    def __init__(
        self, index: Snapshot, meta: bytes, *, first_owner: int = 0, audit: ProducerAudit | None = None
    ) -> None:
        self.index = index
        self.first_owner = first_owner
        self.audit = audit
        self.audit_chunks = 0
        self.audit_saved = 0  # the revision that the index has
        # The newest audit record and its revision; it is lost with its file.
        self.audit_record: tuple[int, int] = (0, 0)
        self.connections = ConnectionUsers()
        if audit is not None:
            audit.user_of = self.connections.user
        self._connection_chunks = 0
        self._connections_saved = 0  # as for the audit
        self.connections_record: tuple[int, int] = (0, 0)
        self.tail = Tail()
        self.frozen: Tail | None = None
        self.owners: dict[int, OwnerState] = {}
        self.ended: dict[int, OwnerState] = {}  # owners with entries left in the index or a tail (``reclaim``)
        self.queues: dict[Destination, int] = {}
        # Topic and KahaDB's subscription key -> owner: a subscription of a pattern has one owner for each topic that
        # matches.
        self.subscriptions: dict[tuple[Destination, str], int] = {}
        self.topics: dict[Destination, tuple[int, ...]] = {}
        self.files: dict[int, FileState] = {}
        self.users = UserBytes()
        self._user_chunks = 0
        self.open = OpenTransactions(self.pin, self.users.change)
        self.transaction_chunks = 0
        self.next_owner = first_owner + 1
        # Files from which records were moved: saved places in them must be looked up again.
        self.moved_from: set[int] = set()
        # Owner -> file: the index has the ranks (keys) of all messages that are stored after the start of that file.
        self.ranked: dict[int, int] = {}
        self._ranked_touched: set[int] = set()
        self.knows_ranks = True  # the index was made by a version that keeps them
        self.knows_later_records = True  # the same for later records, or there are none
        self._ids = KnownIds()
        # By owner and producer: the number from which on the index has no id. Until ``thaw``: the tails have the ids of
        # the next index until then.
        self._beyond_index: dict[tuple[int, str], int] = {}
        self.position: Position | None = None
        self.epoch = 0  # in which the file of ``position`` was written
        # Files that a master declared as removed, before ``position``: their absence is no loss, whatever a host that
        # saw them for longer has listed since.
        self.given_up: set[int] = set()
        # Files that a header names and that were not there when the files after them were read. Their contents are
        # unknown here.
        self.passed: set[int] = set()
        self._gone_chunks = 0
        self._gone_saved = b""  # the index's form of both
        self._load(meta)

    def _load(self, meta: bytes) -> None:
        if not meta:
            return
        body = json.loads(meta)
        if body["first_owner"] != self.first_owner:
            raise OtherNumbering(f"its owners begin at {body['first_owner']}, not at {self.first_owner}")
        self.position = Position(*body["position"])
        self.epoch = body["epoch"]
        gone = body  # older versions, which could not keep many of them, had them here
        self._gone_chunks = body.get("gone_chunks", 0)
        if blob := self._chunks(keys.GONE, self._gone_chunks):
            gone = json.loads(blob)
        self._gone_saved = blob
        self.given_up.update(gone.get("given_up", ()))
        self.passed.update(gone.get("passed", ()))
        self.knows_ranks = body.get("ranks", False)
        self.next_owner = body["next_owner"]
        self.transaction_chunks = body["transaction_chunks"]
        self.audit_chunks = body["audit_chunks"]
        knows_users = body.get("users", False)
        for key, value in self.index.scan(keys.OWNER, b"P"):
            owner, record = keys.owner_of(key, value)
            if not knows_users:  # the version that made it did not keep the user of a subscription: its record is read
                record = record._replace(terms=None)
            self._know(OwnerState(owner, *record))
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

    def _know(self, owner: OwnerState) -> None:
        self.owners[owner.id] = owner
        if owner.subscription_name is None:
            self.queues[owner.destination] = owner.id
        else:
            self.subscriptions[owner.destination, owner.key] = owner.id
            self.topics[owner.destination] = (*self.topics.get(owner.destination, ()), owner.id)

    def queue(self, destination: Destination) -> int:
        """Return the owner id of a queue; an unknown queue begins here."""
        found = self.queues.get(destination)
        if found is None:
            found = self.new_owner()
            self.know_queue(found, destination)
        return found

    def owner_named(self, destination: Destination, subscription_key: str | None) -> int | None:
        """Return the owner id of a durable subscription of a topic, or (None) of a queue; None: it is not known."""
        if subscription_key is None:
            return self.queues.get(destination)
        return self.subscriptions.get((destination, subscription_key))

    def holders(self, destination: Destination) -> Sequence[int]:
        """Return the owner ids of a topic's durable subscriptions, or of a queue if it is known."""
        if destination.is_topic:
            return self.topics.get(destination, ())
        queue = self.queues.get(destination)
        return () if queue is None else (queue,)

    def new_owner(self) -> int:
        owner = self.next_owner
        self.next_owner += 1
        return owner

    def know_queue(self, owner: int, destination: Destination) -> None:
        self._know(OwnerState(owner, destination))
        self.next_owner = max(self.next_owner, owner + 1)
        self.tail.touched_owners.add(owner)

    def subscribe(
        self, owner: int, destination: Destination, info: SubscriptionInfo, location: int, user: str | None
    ) -> None:
        """Begin a durable subscription, or (same owner again) note that its record was written again, with ``info`` and
        ``user``.

        Its messages must be after the record by which it began, so that record stays needed while it holds any.
        ``settle_record`` is called when no message is before the newest record any more.
        """
        known = self.owners.get(owner)
        if known is None:
            known = OwnerState(owner, destination, info.client_id, info.name, location)
            self._know(known)
            self.next_owner = max(self.next_owner, owner + 1)
        elif known.latest_record != location:
            # Were the newer record gone and the older one left, the older would count again.
            self.pin(location >> 32, known.latest_record >> 32)  # prove: new-record-pins-the-old
            known.latest_record = location
            if known.count == 0:
                self.settle_record(owner)
            elif location >> 32 > (known.later_records or (known.record_location,))[-1] >> 32:
                self._set_later_records(known, (*known.later_records, location))
        self.describe(owner, info, user)

    def describe(self, owner: int, info: SubscriptionInfo, user: str | None) -> None:
        """Note ``info`` and ``user`` of the newest record of a durable subscription."""
        known = self.owners[owner]
        known.terms = keys.terms_of(known.destination, info, user)
        self.tail.touched_owners.add(owner)

    def settle_record(self, owner: int) -> None:
        """Drop the older records of a subscription: all its messages are after its newest record."""
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
        """End a queue or subscription with all its messages; the record of this is in ``file``.

        The cost does not depend on the messages: it holds none from now on, and ``reclaim`` removes them from the
        index.
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
                held.live_bytes -= holder[1]  # for a topic's messages only the entries show the owner that counts them
            holder[:] = 0, 0, True
            self.tail.touched_files.add(number)
            self.pin(file, number)  # prove: the-end-pins-its-messages

    @property
    def may_reclaim(self) -> bool:
        """True if there are entries to reclaim, and space for them in the live tail: else a checkpoint comes first."""
        return bool(self.ended) and self.tail.reclaimed < RECLAIMED_MAX

    def reclaim(self, count: int) -> None:
        """Remove about ``count`` entries of ended owners from tail and index: the next checkpoint deletes them. No
        result of the state's methods changes, except the live bytes of files (docs/formats/store.md)."""
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
                # A file that was lost and is there again counts from zero.
                held.live_bytes = max(0, held.live_bytes - (size & SIZE_MASK))
                self.tail.touched_files.add(location >> 32)
                self._count_by_another(state, order_key, location, size)
        state.reclaimed_to = order_key
        state.count -= 1
        state.bytes -= size & SIZE_MASK
        self.tail.touched_ended.add(state.id)

    def _forget_ended(self, state: OwnerState) -> None:
        """Drop an ended owner; the next checkpoint deletes the rest."""
        owner = state.id
        del self.ended[owner]
        self.tail.added.pop(owner, None)
        self.tail.order.pop(owner, None)
        self._drop_ranks(owner)
        self.tail.touched_ended.add(owner)

    def know_connections(self, pairs: Sequence[tuple[str, str]], location: int) -> None:
        """Note the users of connection ids that a record at ``location`` names."""
        self.tail.operations += 1
        self.connections.know(pairs)
        if len(pairs) == len(self.connections):  # it has all that are known
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
        """Add a message to ``owner``; its record of ``size`` bytes stands at ``location``.

        ``is_shared``: another owner holds the same record, and counts its bytes. ``user``: the user charged for
        them.
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
            insort(order, order_key)  # a copy without its original
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
        # As _hold_in_file does, inlined: every message comes here.
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
        """Remove a message from ``owner``; the record of the removal is in ``file``.

        ``location`` and ``size`` may be those from before the message was moved.
        """
        tail = self.tail
        tail.operations += 1
        tail.touched_owners.add(owner)
        state = self.owners[owner]
        # prove: removal-finds-its-user " or self.users.is_counting"
        if state.subscription_name is not None or location >> 32 in self.moved_from or self.users.is_counting:
            raw = self._raw(owner, order_key)
            assert raw is not None, "a removed message was there"
            location, size, _ = raw
            if state.subscription_name is not None and not size & SHARED:
                self._count_by_another(state, order_key, location, size)
        state.count -= 1
        state.bytes -= size & SIZE_MASK
        self._forget_in_file(owner, location, size, file)
        is_new = tail.added[owner].pop(order_key, None) is not None and location == order_key >> 32
        if not is_new or state.subscription_name is not None:  # a subscription's message may be a changed older one
            self._tombstone(owner, order_key, location, message_id)
        self._ids.discard((owner, message_id))

    def move(self, owner: int, order_key: int, location: int, size: int, *, is_shared: bool = False) -> None:
        """Note the new place of a message that ``owner`` holds (an Update, a compacted copy)."""
        raw = self._raw(owner, order_key)
        assert raw is not None, "a moved message is there"
        old, old_size, message_id = raw
        tail = self.tail
        file = location >> 32
        if order_key not in tail.added[owner]:
            insort(tail.order[owner], order_key)
            self._carry_rank(owner, order_key)
        marked = size | old_size >> MARK_SHIFT << MARK_SHIFT  # prove: moved-message-keeps-its-user "old_size" -> "0"
        tail.added[owner][order_key] = (location, marked | SHARED if is_shared else marked, message_id)
        if not is_shared:
            self.users.hold(marked)
        tail.operations += 1
        tail.touched_owners.add(owner)
        self.owners[owner].bytes += size - (old_size & SIZE_MASK)
        # The new file pins the old one: a later removal of the message pins the new one, and so both.
        self._forget_in_file(owner, old, old_size, file)
        self._hold_in_file(owner, file, size, 0 if is_shared else size)
        if old >> 32 != order_key >> 64:
            tail.displaced[old >> 32, owner, order_key] = False
        if file != order_key >> 64:
            tail.displaced[file, owner, order_key] = True
        self.moved_from.add(old >> 32)

    def rekey(self, owner: int, old_key: int, order_key: int) -> None:
        """Give a message of ``owner`` another place in the order, as a take-over from ActiveMQ requires."""
        raw = self._raw(owner, old_key)
        assert raw is not None, "a message with a new place is there"
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
        """Pass the count of a topic's record to another subscription that has it.

        The search begins at the one after ``state``, and wraps. So however many subscriptions remove a message one
        after the other, all together they are compared once.
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
                self._carry_rank(other, order_key)
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
        """Note the priority of a new message of ``owner``, by a record in ``file`` or by one before its order key."""
        start = self.ranked.get(owner)
        if start is None:
            # All its messages are stored by now, so none of their order keys is in a later file.
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
        """Return the rank of a message. None: it has none, and the default priority."""
        for tail in (self.tail, self.frozen or _NO_TAIL):
            rank = tail.ranks.get(owner, {}).get(order_key)
            if rank is not None:
                return rank
        value = self.index.get(keys.message_key(owner, order_key))
        return None if value is None else keys.rank_in(value)

    def _carry_rank(self, owner: int, order_key: int) -> None:
        """Copy the rank, if any, of a message of the frozen tail or the index into the live tail."""
        if owner in self.ranked:
            rank = self._rank_of(owner, order_key)
            if rank is not None:
                self.tail.ranks[owner][order_key] = rank

    def _rerank(self, owner: int, old_key: int, order_key: int) -> None:
        """Move the rank of a message that will get another order key."""
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
        """Iterate over the ``entries`` of one priority. The cost depends on their number, not on that of all
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

    def _forget_in_file(self, owner: int, location: int, size: int, by_file: int) -> None:
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
        """Pin the Remove at ``removal``, by which a Commit took the message at ``location``: if the Remove were gone
        and the message's file left, the Commit would take nothing."""
        if removal > location:  # else the Commit is followed by a separate Remove (store.writer.outcomes)
            self.pin(removal >> 32, location >> 32)  # prove: committed-removal-pins-its-message

    def pin(self, file: int, pinned: int) -> None:
        """Pin ``file``, a record of which ended a record in ``pinned``: it must stay as long as that can come back."""
        if file == pinned:
            return
        held = self.files.get(file)
        if held is None:
            held = self.files[file] = FileState()
        if pinned not in held.pins:
            held.pins.add(pinned)
            self.tail.touched_files.add(file)

    def _raw(self, owner: int, order_key: int) -> tuple[int, int, str] | None:
        """Return the ``entry``, with the mark of a shared record still in its size."""
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
        """Iterate over the messages of ``owner`` after ``after``, in order. Must not continue after a change of the
        state."""
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
        # Most messages in a tail are behind those in the tree; a moved message may be anywhere.
        changed = _in_tails(frozen, self.tail, owner, after)
        waiting = next(changed, None)
        start = keys.message_key(owner, after + 1)
        for key, value in self.index.scan(start, keys.numbered(keys.MESSAGE, owner + 1)):
            order_key = keys.order_in(key)
            while waiting is not None and waiting[0] < order_key:
                yield waiting
                waiting = next(changed, None)
            if order_key in live_added or order_key in frozen_added:
                continue  # moved: the tail yields it, with its new place
            if order_key in live_removed or order_key in frozen_removed:
                continue
            yield order_key, keys.entry_of(order_key, value)
        if waiting is not None:
            yield waiting
            yield from changed

    def as_checkpointed(self, owner: int) -> Iterator[tuple[bytes, bytes]] | None:
        """Iterate over the entries of ``owner`` in the last checkpoint, in order: (order key, value as written). None
        if they changed since: then use ``entries``."""
        for tail in (self.tail, self.frozen or _NO_TAIL):
            if tail.added.get(owner) or tail.removed.get(owner):
                return None
        start, stop = keys.numbered(keys.MESSAGE, owner), keys.numbered(keys.MESSAGE, owner + 1)
        return ((key[5:], value) for key, value in self.index.scan(start, stop))

    def held_in(self, owner: int, file: int, after: int = 0) -> Iterator[tuple[int, Entry]]:
        """Iterate over the live messages of ``owner`` after ``after`` whose newest record is in ``file``, in order.

        Most are there under their order key. The cost depends on their number, not on the size of the file.
        """
        places = sorted({place for place in self._displaced_into(owner, file) if place > after})
        start, limit = file << 64, (file + 1) << 64
        yield from self._standing_in(owner, file, (place for place in places if place < start))
        for order_key, entry in self.entries(owner, max(after, start - 1)):
            if order_key >= limit:
                break
            if entry.location >> 32 == file:
                yield order_key, entry
        yield from self._standing_in(owner, file, (place for place in places if place >= limit))

    def _standing_in(self, owner: int, file: int, places: Iterable[int]) -> Iterator[tuple[int, Entry]]:
        """Iterate over those of ``places`` whose record is still in ``file``."""
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
        """Return the order key of a message that the last checkpoint has under ``message_id``; tails are not
        searched."""
        value = self.index.get(keys.id_key(owner, message_id))
        return None if value is None else int.from_bytes(value, "big")

    # ---- ids of messages

    def know_id(self, owner: int, message_id: str) -> None:
        """Note a new message of ``owner`` whose id a client made, or that the broker moved."""
        self._ids.add((owner, message_id))

    def number_ids(self) -> None:
        """Keep the numbers that ``is_newest`` needs, from now on."""
        self._ids.number()

    def note_id(self, owners: Iterable[int], message_id: str) -> None:
        """Note a message with a client-made id that takes effect without a check, or that was prepared: if it is sent
        again, it is a duplicate."""
        if self.audit is not None:
            self.audit.note(message_id)
        for owner in owners:
            self._ids.add((owner, message_id))

    def forget_id(self, owners: Iterable[int], message_id: str) -> None:
        """Forget a prepared message with a client-made id that was rolled back: it may come again."""
        if self.audit is not None:
            self.audit.forget(message_id)
        for owner in owners:
            self._ids.discard((owner, message_id))

    def has_id(self, owner: int, message_id: str) -> bool:
        """Return whether ``owner`` holds a message of that id. Reliable for ids of clients, at any age; for ids of
        brokers except messages that came in this term and are not in the index yet."""
        if (owner, message_id) in self._ids:
            return True
        known = self.owners.get(owner)
        if known is None or not known.count:
            return False
        producer, sequence = numbered(message_id)
        if sequence >= self._beyond_index.get((owner, producer), _NO_NUMBER):
            return False
        value = self._indexed_id(owner, message_id, producer)  # as place_of
        return value is not None and self._raw(owner, int.from_bytes(value, "big")) is not None

    def _indexed_id(self, owner: int, message_id: str, producer: str) -> bytes | None:
        """Return the value of an id in the index; None: it is not there. If no higher number of its producer is there
        either, that is noted for the ids to come."""
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
        """Return whether no higher number than this id's is known of its producer, neither for ``owner`` nor in the
        audit, and none of its messages is in a prepared transaction: then a higher number is new. False if unknown."""
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
        """Note that the index has no id of ``producer`` with this number or a higher one: a scan reads and checks a
        page."""
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
        """Begin a checkpoint of the present state; a new live tail takes all later changes. ``thaw`` ends it."""
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
        if not self.given_up and not self.passed:
            return b""
        gone = {"given_up": sorted(self.given_up), "passed": sorted(self.passed)}
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
                del self.ranked[owner]  # with this checkpoint it has no ranked message any more
                self._ranked_touched.add(owner)
        for owner in self._ranked_touched:
            file = self.ranked.get(owner)
            yield keys.numbered(keys.RANKED, owner), None if file is None else keys.ranked_value(file)
        self._ranked_touched.clear()

    def thaw(self) -> Callable[[], None]:
        """End a durable checkpoint: the index contains the frozen tail. Returns a function that frees its memory, on
        any thread."""
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
        """Return the files that hold a subscription's record or a part of an open transaction."""
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
        """Return the files below ``before`` that nothing needs, oldest first: see
        ``store.state.file_states.reclaimable``."""
        return reclaimable(self.files, self.held_by_records(), first_of_epoch, before, emptied)

    def know_file(self, file: int) -> None:
        """Note that a journal file exists; otherwise an empty one would never be reclaimed."""
        if file not in self.files:
            self.files[file] = FileState()
            self.tail.touched_files.add(file)

    def named_files(self) -> set[int]:
        """Return the files that a header written now names: not those given up, even if they are not unlinked yet."""
        return self.files.keys() - self.given_up  # prove: headers-name-no-holes " - self.given_up" -> " - set()"

    def lose_file(self, file: int, *, is_damage: bool = False) -> list[tuple[int, int, Entry]]:
        """Drop a file that is not there any more. Messages that the state still has in it are dropped, and returned as
        (owner, order key, entry), subscriptions and transactions too: a master gave the file up after all of these had
        ended, or had been written elsewhere and read there. Unless ``is_damage``, a subscription whose oldest record
        went loses all messages from before its first remaining record: it was moved after them, or had ended and began
        again there. Which of these records applies may be unknown, so no more can be derived."""
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
        """Begin a subscription, whose first record went with ``file``, at its next one; return its losses like
        ``lose_file``."""
        known.record_location = known.later_records[0]  # prove: begins-at-its-next-record "[0]" -> "[-1]"
        self._set_later_records(known, known.later_records[1:])
        self.tail.touched_owners.add(known.id)
        return self._let_go_before_record(known, file)

    def begin_at_newest_record(self, owner: int, file: int) -> None:
        """Do what ``settle_record`` does if the first record of a subscription is gone: its messages from before its
        newest record were those of a former subscription of that name. The record that proves this stands in
        ``file``."""
        self.settle_record(owner)
        self._let_go_before_record(self.owners[owner], file)

    def _let_go_before_record(self, known: OwnerState, file: int) -> list[tuple[int, int, Entry]]:
        """Drop messages that stand, and took effect, before ``known.record_location``; return them like
        ``lose_file``."""
        record = known.record_location
        # A transaction's message may be before the record, and its Commit after it.
        # prove: committed-behind-its-record "item[0] >> 32 < record" -> "True"
        before = takewhile(lambda item: item[0] >> 32 < record, self.entries(known.id, 0))
        dropped = [(known.id, order_key, entry) for order_key, entry in before if entry.location < record]
        for owner, order_key, entry in dropped:
            self.remove(owner, order_key, entry.location, entry.size, entry.message_id, file)
        return dropped

    def drop_range(self, file: int, start: int, stop: int) -> list[tuple[int, int, Entry]]:
        """Drop the live messages whose newest record is in ``file`` from ``start`` to before ``stop``; return them."""
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
        """Forget files that are gone from the disk."""
        for file in files:
            if self.files.pop(file, None) is not None:
                self.tail.touched_files.add(file)


def _in_tails(frozen: Tail, tail: Tail, owner: int, after: int) -> Iterator[tuple[int, tuple[int, int, str]]]:
    """Iterate over the live messages of ``owner`` behind ``after`` that only the tails have, in order."""
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
    """Return an unchanging copy of an owner."""
    return None if owner is None else owner.record()


def _put_chunks(changes: list[tuple[bytes, bytes | None]], kind: bytes, blob: bytes, before: int) -> int:
    """Add the changes that store ``blob`` in pieces where there were ``before``; return their present number."""
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
