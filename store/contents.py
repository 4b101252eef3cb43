"""What a data directory holds, whoever wrote it: read once, then looked at page by page. Nothing is written there.

The journal is replayed into an index of its own (a scratch directory, which the caller removes), so memory stays
bounded however much is stored. Message bodies may have any version of OpenWire: each frame says it by its layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from index.index import Index
from journal.files import JournalFiles
from journal.reader import JournalReader
from journal.scan import scan
from store.follow import Follower
from store.headers import Chronicle, Header, decode_header, read_chronicle
from store.keys import Entry
from store.open_transactions import PendingOperation
from store.records.acknowledgements import decode_ack, encode_ack
from store.records.commands import AddMessage, Command, RemoveMessage, Subscription, UpdateMessage, decode
from store.records.errors import RecordDamaged
from store.records.message import Message
from store.records.openwire import VERSIONS_TRIED, decode_message, detect_version, encode_message
from store.state import OPENWIRE_VERSION, OwnerState, State

# Read and decoded at once; a longer message comes alone.
PAGE_MESSAGES = 1_000
PAGE_BYTES = 8 << 20
# A replay holds this many operations in memory before they go to the scratch index.
RECORDS_PER_CHECKPOINT = 100_000


class NotTransferable(Exception):
    """Something in a directory cannot be carried over as it is; the text says what, and where it stands."""


class Stored(NamedTuple):
    """A live message: its place in the order, its newest record's command (a plain Add), and what a receiver sees.

    ``is_current`` says whether the frame has our version of OpenWire.
    """

    order_key: int
    size: int
    add: AddMessage
    message: Message
    is_current: bool


class Contents:
    """A state and the files that it speaks of. The caller sees to it that neither changes meanwhile."""

    def __init__(self, files: JournalFiles, state: State) -> None:
        self.files = files
        self.state = state
        self.reader = JournalReader(files)

    def close(self) -> None:
        self.reader.close()

    def owners(self) -> list[OwnerState]:
        """Queues, then topics' subscriptions, by name. An empty queue leaves no record, and is left out."""
        known = [o for o in self.state.owners.values() if o.subscription_name is not None or o.count]
        return sorted(known, key=lambda o: (o.destination, owner_name(o)))

    def subscription(self, owner: OwnerState) -> Subscription:
        """The newest record of a durable subscription."""
        command = decode(self.reader.read(owner.record_location))
        if not isinstance(command, Subscription) or command.info is None:
            raise NotTransferable(f"{owner_name(owner)}: another record stands at its place")
        return command

    def messages(self, owner: int) -> Iterator[Stored]:
        """All that ``owner`` holds, in order of delivery, read page by page."""
        for stored, _ in self.together((owner,)):
            yield stored

    def together(self, owners: Sequence[int]) -> Iterator[tuple[Stored, list[int]]]:
        """What the subscriptions of one topic hold, in order, each message once with those that hold it."""
        page: list[tuple[int, Entry, list[int]]] = []
        size = 0
        for order_key, entry, holders in _merged(self.state, owners):
            if page and (len(page) >= PAGE_MESSAGES or size + entry.size > PAGE_BYTES):
                yield from self._read(page)
                page, size = [], 0
            page.append((order_key, entry, holders))
            size += entry.size
        yield from self._read(page)

    def _read(self, page: list[tuple[int, Entry, list[int]]]) -> Iterator[tuple[Stored, list[int]]]:
        by_place = sorted({(entry.location, entry.size) for _, entry, _ in page})
        payloads = dict(zip(by_place, self.reader.read_many(by_place), strict=True))
        for order_key, entry, holders in page:
            payload = payloads[entry.location, entry.size]
            add = _add_in(decode(payload))
            if add is None or add.message_id != entry.message_id:
                raise NotTransferable(f"{entry.message_id}: another record stands at its place")
            message, is_current = read_message(add)
            yield Stored(order_key, len(payload) + 5, add, message, is_current), holders

    def holds(self, owner: int, message_id: str) -> bool:
        """Whether ``owner`` held that message at the last checkpoint, and does still."""
        place = self.state.place_of(owner, message_id)
        return place is not None and self.state.entry(owner, place) is not None

    def operation(self, operation: PendingOperation) -> AddMessage | RemoveMessage:
        """An operation of an open transaction, its frames in our version of OpenWire."""
        command = decode(self.reader.read(operation.location))
        if isinstance(command, AddMessage):
            return current_add(command, *read_message(command))
        if isinstance(command, RemoveMessage):
            return command if not command.ack else command._replace(ack=_current_ack(command.ack))
        raise NotTransferable(f"{operation.message_id}: another record stands at its place")


def _merged(state: State, owners: Sequence[int]) -> Iterator[tuple[int, Entry, list[int]]]:
    def of(owner: int) -> Iterator[tuple[int, str, int, Entry]]:
        for order_key, entry in state.entries(owner, 0):
            yield order_key, entry.message_id, owner, entry

    merged = merge(*map(of, owners), key=itemgetter(0, 1, 2))
    for (order_key, _), same in groupby(merged, key=itemgetter(0, 1)):
        found = list(same)
        yield order_key, found[0][3], [owner for _, _, owner, _ in found]


def read_contents(directory: str, scratch: str, *, is_final: bool = True) -> tuple[Contents, Index]:
    """Replay the journal in ``directory`` into a new index in ``scratch``; the caller closes both.

    ``is_final`` is False for a directory in use: then what is not settled is left out. Raises JournalCorrupt,
    JournalLost and RecordDamaged for what is damaged, OSError as the volume gives it.
    """
    files = JournalFiles(directory)
    index = Index.open(scratch)
    try:
        follower = truth_of(files, index)
        follower.advance(is_final=is_final)
        follower.checkpoint()  # so that ids are found by look-up, whatever was read
    except BaseException:
        index.close()
        raise
    return Contents(files, follower.state), index


def truth_of(files: JournalFiles, index: Index) -> Follower:
    """Who knows what a directory holds, and is asked by ``advance``."""
    return Follower(files, index, records_per_checkpoint=RECORDS_PER_CHECKPOINT)


def chronicle_of(files: JournalFiles) -> Chronicle:
    """What the headers in a directory say: which files count, and where each of them ends."""

    def header_of(file: int) -> Header | None:
        batch = next(iter(scan(files, file, is_live=True)), None)
        return decode_header(batch.records[0][1]) if batch is not None and batch.records else None

    return read_chronicle(files.list(), header_of)


def owner_name(owner: OwnerState) -> str:
    """A queue or subscription in words."""
    if owner.subscription_name is None:
        return str(owner.destination)
    return f"{owner.destination} for {owner.key}"


def read_message(add: AddMessage) -> tuple[Message, bool]:
    """The message of an Add, and whether its frame has our version of OpenWire."""
    try:
        return decode_message(add.message, OPENWIRE_VERSION), True
    except RecordDamaged as damage:
        version = detect_version([add.message])
        if version is None:
            raise RecordDamaged(f"{add.message_id} in {add.destination}: {damage}") from damage
        return decode_message(add.message, version), False


def current_add(add: AddMessage, message: Message, is_current: bool) -> AddMessage:
    """The Add with its frame in our version of OpenWire."""
    return add if is_current else add._replace(message=encode_message(message))


def _add_in(command: Command) -> AddMessage | None:
    if isinstance(command, UpdateMessage):
        return command.add
    return command if isinstance(command, AddMessage) else None


def _current_ack(ack: bytes) -> bytes:
    for version in VERSIONS_TRIED:
        try:
            return encode_ack(decode_ack(ack, version))
        except RecordDamaged:
            continue
    raise RecordDamaged("an OpenWire MessageAck is of no known version")
