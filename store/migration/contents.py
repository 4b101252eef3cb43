"""Contents of a data directory of TandemMQ or ActiveMQ, read page by page.

Message bodies may have any OpenWire version, which is detected from the layout of each frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple

from tandemmq.index.index import Index
from tandemmq.journal.checked import CheckedReader
from tandemmq.store.damage.report import Damage
from tandemmq.store.records.acknowledgements import ack_of_branch, decode_ack, encode_ack
from tandemmq.store.records.commands import AddMessage, RemoveMessage, Subscription, added, decode
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.hints import user_in
from tandemmq.store.records.loose import OPENWIRE_VERSION
from tandemmq.store.records.message import Message
from tandemmq.store.records.openwire import VERSIONS_TRIED, decode_message, detect_version, encode_message
from tandemmq.store.records.transactions import XaTransactionId
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.open_transactions import PendingOperation
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.state.state import State

# Limits of a page: messages and bytes that are read and decoded at once. A longer message is read alone.
PAGE_MESSAGES = 1_000
PAGE_BYTES = 8 << 20


class NotTransferable(Exception):
    """A part of a directory cannot be transferred unchanged. The text names the part."""


class Stored(NamedTuple):
    """Live message: its order key, its record's size in bytes, the Add command in its newest record, and the decoded
    message.

    ``is_current``: the frame has the OpenWire version of TandemMQ's journals.
    """

    order_key: int
    size: int
    add: AddMessage
    message: Message
    is_current: bool


@dataclass(eq=False, repr=False)
class Contents:
    """State of a follower and its journal files. The caller must ensure that neither changes during a call.

    ``damages``: the damage that was skipped while the journal was read. Each read of a record compares it with its
    checksum again, and raises JournalCorrupt if it differs.
    """

    follower: Follower
    _index: Index | None = None
    damages: Sequence[Damage] = ()

    def __post_init__(self) -> None:
        self.files, self.state = self.follower.files, self.follower.state
        # prove: contents-are-compared ".end_of)" -> ".end_of)._reader"
        self.reader = CheckedReader(self.files, self.follower.end_of)

    def close(self) -> None:
        """Close the files, and the index if it was passed to the constructor."""
        self.reader.close()
        if self._index is not None:
            self._index.close()

    def __enter__(self) -> Contents:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def owners(self) -> list[OwnerState]:
        """Return all queues that have messages, then all durable subscriptions, sorted by name. An empty queue is
        omitted, because it has no record."""
        known = [o for o in self.state.owners.values() if o.subscription_name is not None or o.count]
        return sorted(known, key=lambda o: (o.destination, str(o)))

    def subscription(self, owner: OwnerState) -> Subscription:
        """Return the newest record of a durable subscription."""
        command, _ = self.subscription_of(owner)
        return command

    def subscription_of(self, owner: OwnerState) -> tuple[Subscription, str | None]:
        """Return the newest record and the user of a durable subscription. Raises NotTransferable.

        If the record is older than OpenWire 11, it has no value for noLocal; the value is then set to false, because
        ActiveMQ does not start with a store of version 11 without it.
        """
        payload = self.reader.read(owner.latest_record)
        command = decode(payload)
        if not isinstance(command, Subscription) or command.info is None:
            raise NotTransferable(f"{owner}: another record stands at its place")
        info = command.info._replace(no_local=bool(command.info.no_local))
        return command._replace(info=info), user_in(payload)

    def messages(self, owner: int) -> Iterator[Stored]:
        """Yield the messages of ``owner`` in the order of delivery. They are read page by page."""
        for stored, _ in self.together((owner,)):
            yield stored

    def together(self, owners: Sequence[int]) -> Iterator[tuple[Stored, list[int]]]:
        """Yield (message, owners that hold it) for the subscriptions ``owners`` of one topic, in order, each message
        once."""
        page: list[tuple[int, Entry]] = []
        who: list[list[int]] = []
        size = 0
        for order_key, entry, holders in _merged(self.state, owners):
            if page and (len(page) >= PAGE_MESSAGES or size + entry.size > PAGE_BYTES):
                yield from zip(self.read(page), who, strict=True)
                page, who, size = [], [], 0
            page.append((order_key, entry))
            who.append(holders)
            size += entry.size
        yield from zip(self.read(page), who, strict=True)

    def pages(self, owner: int) -> Iterator[list[tuple[int, Entry]]]:
        """Yield pages of (order key, entry) of ``owner``, in order. The state may change between two pages."""
        after = 0
        while page := list(islice(self.state.entries(owner, after), PAGE_MESSAGES)):
            yield page
            after = page[-1][0]

    def read(self, page: Sequence[tuple[int, Entry]]) -> Iterator[Stored]:
        """Read and yield the messages of the entries in ``page``, in the same order. Raises NotTransferable if the
        record of an entry is another one, JournalCorrupt."""
        by_place = sorted({(entry.location, entry.size) for _, entry in page})
        payloads = dict(zip(by_place, self.reader.read_many(by_place), strict=True))
        for order_key, entry in page:
            payload = payloads[entry.location, entry.size]
            add = added(decode(payload))
            if add is None or add.message_id != entry.message_id:
                raise NotTransferable(f"{entry.message_id}: another record stands at its place")
            message, is_current = read_message(add)
            yield Stored(order_key, len(payload) + 5, add, message, is_current)

    def holds(self, owner: int, message_id: str) -> bool:
        """Return whether ``owner`` had the message at the last checkpoint and still has it."""
        place = self.state.place_of(owner, message_id)
        return place is not None and self.state.entry(owner, place) is not None

    def operation(self, operation: PendingOperation) -> AddMessage | RemoveMessage:
        """Return the command of an operation of an open transaction, with frames in TandemMQ's OpenWire version.

        A removal always has an acknowledgement frame, because ActiveMQ needs it to recover a prepared transaction.
        """
        command = decode(self.reader.read(operation.location))
        if isinstance(command, AddMessage):
            return current_add(command, *read_message(command))
        if isinstance(command, RemoveMessage):
            return command._replace(ack=_current_ack(command))
        raise NotTransferable(f"{operation.message_id}: another record stands at its place")


def _merged(state: State, owners: Sequence[int]) -> Iterator[tuple[int, Entry, list[int]]]:
    def of(owner: int) -> Iterator[tuple[int, str, int, Entry]]:
        for order_key, entry in state.entries(owner, 0):
            yield order_key, entry.message_id, owner, entry

    merged = merge(*map(of, owners), key=itemgetter(0, 1, 2))
    for (order_key, _), same in groupby(merged, key=itemgetter(0, 1)):
        found = list(same)
        yield order_key, found[0][3], [owner for _, _, owner, _ in found]


def counterpart(owner: OwnerState, contents: Contents) -> OwnerState | None:
    """Return the queue or subscription with the same name in another directory, or None if it does not exist there."""
    state = contents.state
    found = state.owner_named(owner.destination, owner.subscription_key)
    return None if found is None else state.owners[found]


def read_message(add: AddMessage) -> tuple[Message, bool]:
    """Return the message of an Add, and whether its frame has TandemMQ's OpenWire version. Raises RecordDamaged."""
    try:
        return decode_message(add.message, OPENWIRE_VERSION), True
    except RecordDamaged as damage:
        version = detect_version([add.message])
        if version is None:
            raise RecordDamaged(f"{add.message_id} in {add.destination}: {damage}") from damage
        return decode_message(add.message, version), False


def current_add(add: AddMessage, message: Message, is_current: bool) -> AddMessage:
    """Return the Add with its frame in TandemMQ's OpenWire version."""
    return add if is_current else add._replace(message=encode_message(message))


def _current_ack(remove: RemoveMessage) -> bytes:
    if not remove.ack:
        assert isinstance(remove.transaction, XaTransactionId), "only an XA transaction can be prepared"
        is_unmatched = remove.ack is not None
        return ack_of_branch(remove.destination, remove.message_id, remove.transaction, is_unmatched=is_unmatched)
    for version in VERSIONS_TRIED:
        try:
            return encode_ack(decode_ack(remove.ack, version))
        except RecordDamaged:
            continue
    raise RecordDamaged(f"{remove.message_id}: its acknowledgement is of no known version of OpenWire")
