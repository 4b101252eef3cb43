"""The contents of a data directory of any origin, read page by page.

Message bodies may have any version of OpenWire: the layout of each frame shows it.
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

# Messages, and bytes, that are read and decoded at once; a longer message is read alone.
PAGE_MESSAGES = 1_000
PAGE_BYTES = 8 << 20


class NotTransferable(Exception):
    """Part of a directory cannot be transferred unchanged; the text names the part and the place."""


class Stored(NamedTuple):
    """A live message: its place in the order, its newest record's command (a plain Add), and the receiver's message.

    ``is_current``: the frame has our version of OpenWire.
    """

    order_key: int
    size: int
    add: AddMessage
    message: Message
    is_current: bool


@dataclass(eq=False, repr=False)
class Contents:
    """The state of a follower and its files. The caller must ensure that neither changes meanwhile.

    ``damages``: the damage that was stepped over during the read. Records that are read now are compared with their
    checksums once more; raises JournalCorrupt if they differ.
    """

    follower: Follower
    _index: Index | None = None
    damages: Sequence[Damage] = ()

    def __post_init__(self) -> None:
        self.files, self.state = self.follower.files, self.follower.state
        # prove: contents-are-compared ".end_of)" -> ".end_of)._reader"
        self.reader = CheckedReader(self.files, self.follower.end_of)

    def close(self) -> None:
        """Close the files, and the index if it came with them."""
        self.reader.close()
        if self._index is not None:
            self._index.close()

    def __enter__(self) -> Contents:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def owners(self) -> list[OwnerState]:
        """Return queues, then topics' subscriptions, by name. An empty queue has no record, and is left out."""
        known = [o for o in self.state.owners.values() if o.subscription_name is not None or o.count]
        return sorted(known, key=lambda o: (o.destination, str(o)))

    def subscription(self, owner: OwnerState) -> Subscription:
        """Return the newest record of a durable subscription."""
        command, _ = self.subscription_of(owner)
        return command

    def subscription_of(self, owner: OwnerState) -> tuple[Subscription, str | None]:
        """Return the newest record and the user of a durable subscription. noLocal is false if the record, older than
        OpenWire 11, lacks it: ActiveMQ would expect it in a store of version 11, and not start."""
        payload = self.reader.read(owner.latest_record)
        command = decode(payload)
        if not isinstance(command, Subscription) or command.info is None:
            raise NotTransferable(f"{owner}: another record stands at its place")
        info = command.info._replace(no_local=bool(command.info.no_local))
        return command._replace(info=info), user_in(payload)

    def messages(self, owner: int) -> Iterator[Stored]:
        """Iterate over the messages of ``owner``, in order of delivery, read page by page."""
        for stored, _ in self.together((owner,)):
            yield stored

    def together(self, owners: Sequence[int]) -> Iterator[tuple[Stored, list[int]]]:
        """Iterate over the messages of one topic's subscriptions, in order, each message once with its holders."""
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
        """Iterate over pages of the entries of ``owner``, in order; between two pages the state may change."""
        after = 0
        while page := list(islice(self.state.entries(owner, after), PAGE_MESSAGES)):
            yield page
            after = page[-1][0]

    def read(self, page: Sequence[tuple[int, Entry]]) -> Iterator[Stored]:
        """Iterate over the messages of entries, given as (order key, entry), in that order."""
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
        """Return whether ``owner`` held that message at the last checkpoint, and still holds it."""
        place = self.state.place_of(owner, message_id)
        return place is not None and self.state.entry(owner, place) is not None

    def operation(self, operation: PendingOperation) -> AddMessage | RemoveMessage:
        """Return an operation of an open transaction, with its frames in our version of OpenWire.

        A removal has an acknowledgement, which ActiveMQ needs to recover a prepared transaction.
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
    """Return the same queue or subscription in another directory, None if it is unknown there."""
    state = contents.state
    found = state.owner_named(owner.destination, owner.subscription_key)
    return None if found is None else state.owners[found]


def read_message(add: AddMessage) -> tuple[Message, bool]:
    """Return the message of an Add, and whether its frame has our version of OpenWire."""
    try:
        return decode_message(add.message, OPENWIRE_VERSION), True
    except RecordDamaged as damage:
        version = detect_version([add.message])
        if version is None:
            raise RecordDamaged(f"{add.message_id} in {add.destination}: {damage}") from damage
        return decode_message(add.message, version), False


def current_add(add: AddMessage, message: Message, is_current: bool) -> AddMessage:
    """Return the Add with its frame in our version of OpenWire."""
    return add if is_current else add._replace(message=encode_message(message))


def _current_ack(remove: RemoveMessage) -> bytes:
    if not remove.ack:
        assert isinstance(remove.transaction, XaTransactionId), "only such a transaction is prepared"
        is_unmatched = remove.ack is not None
        return ack_of_branch(remove.destination, remove.message_id, remove.transaction, is_unmatched=is_unmatched)
    for version in VERSIONS_TRIED:
        try:
            return encode_ack(decode_ack(remove.ack, version))
        except RecordDamaged:
            continue
    raise RecordDamaged(f"{remove.message_id}: its acknowledgement is of no known version of OpenWire")
