"""Reader of ActiveMQ's index db.data: the state of a store at the last checkpoint (MessageDatabase; kahadb.md 4).

In a store of ActiveMQ, the index has facts that the journal does not have: deletions, unsubscribes and updates whose
records were removed, and the OpenWire version of the bodies. The reader supports index versions 1 (ActiveMQ 5.3) to 7:

    2   order indexes by priority             5   subscription locations, ack map, OpenWire version
    3   pending messages in a tree            6   sizes in locations
    4   pending messages as sets              7   counters

Nothing is written. Memory: one path of a tree, and the sets of pending messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import merge
from typing import NamedTuple, TypeVar

from tandemmq.disk import Disk
from tandemmq.journal.format import Location, location
from tandemmq.store.kahadb.java_stream import read_object
from tandemmq.store.kahadb.page_file import KahaIndexDamaged, PageFile
from tandemmq.store.kahadb.trees import Cursor, SequenceSet, Tree, read_list, read_sequence_set, read_whole
from tandemmq.store.records.commands import Subscription, decode
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.protobuf import decode_varint

VERSION_LATEST = 7
# OpenWire version of a store whose index does not state it (before index version 5).
OPENWIRE_LEGACY = 6
SUBSCRIPTION_COMMAND = b"\7"

T = TypeVar("T")


class KahaEntry(NamedTuple):
    """Message. ``sequence``: its number in the order of arrival at its destination. ``size``: bytes of its record; None
    before index version 6."""

    sequence: int
    message_id: str
    location: Location
    size: int | None


@dataclass(frozen=True, slots=True)
class KahaSubscription:
    """Durable subscription: its command as stored bytes (``payload``, with the command's number) and decoded.

    ``location``: place of its record in the journal; None before index version 5. ``pending``: the sequences of its
    pending messages; it may also contain the sequence of the next message.
    """

    key: str
    command: Subscription
    payload: bytes
    location: Location | None
    pending: SequenceSet
    last_acknowledged: int


class _Roots(NamedTuple):
    """First pages of the structures of a destination."""

    default: int
    locations: int
    ids: int
    subscriptions: int | None
    acknowledged: int | None
    pending: int | None
    subscription_locations: int | None
    low: int | None
    high: int | None


class KahaDestination:
    """Queue or topic of the index. Its iterators read the file during iteration, and may raise KahaIndexDamaged."""

    def __init__(self, pages: PageFile, version: int, destination: Destination, roots: _Roots) -> None:
        self.destination = destination
        self._pages = pages
        self._version = version
        self._roots = roots

    def high(self) -> Iterator[KahaEntry]:
        """Messages of a priority above 4, if the destination is prioritized."""
        return self._entries(self._roots.high)

    def default(self) -> Iterator[KahaEntry]:
        """All messages; if the destination is prioritized, only those of priority 4."""
        return self._entries(self._roots.default)

    def low(self) -> Iterator[KahaEntry]:
        """Messages of a priority below 4, if the destination is prioritized."""
        return self._entries(self._roots.low)

    def entries(self) -> Iterator[KahaEntry]:
        """All messages in the order of delivery: first high, then default, then low priorities, each by sequence."""
        yield from self.high()
        yield from self.default()
        yield from self.low()

    def by_sequence(self) -> Iterator[KahaEntry]:
        """All messages in the order of their arrival."""
        return merge(self.high(), self.default(), self.low())

    def _entries(self, root: int | None) -> Iterator[KahaEntry]:
        if root is None:
            return
        has_sizes = self._version >= 6

        def read(cursor: Cursor) -> tuple[str, Location, int | None]:
            message_id = cursor.utf()
            place = location(cursor.i32(), cursor.i32())
            size = cursor.i32() if has_sizes else -1
            return message_id, place, size if size >= 0 else None

        last = -1
        for sequence, (message_id, place, size) in Tree(self._pages, root, Cursor.i64, read):
            if sequence <= last:
                raise KahaIndexDamaged(
                    f"{self._pages.path}: message {message_id} of {self.destination.name} has sequence {sequence}, "
                    f"after {last}"
                )
            last = sequence
            yield KahaEntry(sequence, message_id, place, size)

    @cached_property
    def subscriptions(self) -> tuple[KahaSubscription, ...]:
        """Durable subscriptions of a topic; empty for a queue."""
        roots = self._roots
        if roots.subscriptions is None or roots.acknowledged is None:
            return ()
        acknowledged = dict(Tree(self._pages, roots.acknowledged, Cursor.utf, self._read_acknowledged))
        places: dict[str, Location] = {}
        if roots.subscription_locations is not None:
            places = dict(read_list(self._pages, roots.subscription_locations, Cursor.utf, _read_location))
        pending = self._pending(acknowledged)
        found = []
        for key, (command, payload) in Tree(self._pages, roots.subscriptions, Cursor.utf, _read_subscription):
            found.append(
                KahaSubscription(
                    key,
                    command,
                    payload,
                    places.get(key),
                    pending.get(key, SequenceSet([])),
                    acknowledged.get(key, -1),
                )
            )
        return tuple(found)

    def _read_acknowledged(self, cursor: Cursor) -> int:
        sequence = cursor.i64()
        if self._version >= 3:
            cursor.i8()  # the priority class
        return sequence

    def _pending(self, acknowledged: dict[str, int]) -> dict[str, SequenceSet]:
        root = self._roots.pending
        if root is None:  # up to version 2, all messages after the last acknowledged one are pending
            last = max((entry.sequence for entry in self.by_sequence()), default=-1)
            return {key: SequenceSet([(done + 1, last)] if done < last else []) for key, done in acknowledged.items()}
        if self._version >= 4:
            return dict(read_list(self._pages, root, Cursor.utf, read_sequence_set))
        sequences: dict[str, list[tuple[int, int]]] = {}
        for sequence, keys in Tree(self._pages, root, Cursor.i64, _read_string_set):
            for key in keys:
                sequences.setdefault(key, []).append((sequence, sequence))
        return {key: SequenceSet(ranges) for key, ranges in sequences.items()}


class KahaIndex:
    """Index that is open for reading, until ``close``.

    openwire_version   of all message bodies
    was_closed         ActiveMQ had stopped cleanly
    last_update        location of the last record that the index includes, or None
    first_in_progress  location of the first record of the transactions that were open at the checkpoint, or None
    """

    def __init__(self, pages: PageFile) -> None:
        self._pages = pages
        self.path = pages.path
        self.was_closed = pages.was_closed
        if pages.pages == 0:
            raise KahaIndexDamaged(f"{pages.path}: it holds no pages")
        read_whole(pages, 0, self._read_metadata)

    def _read_metadata(self, cursor: Cursor) -> None:
        cursor.i32()  # open or closed; ActiveMQ always writes "open"
        self._destinations_root = cursor.i64()
        self.last_update = _optional(cursor)
        self.first_in_progress = _optional(cursor)
        # Later versions added the following fields; an older index ends before them.
        self.producer_audit = None if cursor.is_end else _optional(cursor)
        self.version = 1 if cursor.is_end else cursor.i32()
        if not 1 <= self.version <= VERSION_LATEST:
            raise ValueError(f"index version {self.version}")
        self.ack_map = _optional(cursor) if self.version >= 5 else None
        self.openwire_version = OPENWIRE_LEGACY if cursor.is_end else cursor.i32()

    @property
    def is_minimal(self) -> bool:
        """True if the index contains only the OpenWire version. ActiveMQ then replays the whole journal."""
        return self.last_update is None and next(self.destinations(), None) is None

    def destinations(self) -> Iterator[KahaDestination]:
        """All queues and topics, by name. Iteration may raise KahaIndexDamaged."""
        tree = Tree(self._pages, self._destinations_root, Cursor.utf, partial(_read_roots, version=self.version))
        for name, roots in tree:
            yield KahaDestination(self._pages, self.version, self._destination(name), roots)

    def _destination(self, name: str) -> Destination:
        kind, colon, physical_name = name.partition(":")
        try:
            if not colon:
                raise ValueError
            return Destination(DestinationKind(int(kind)), physical_name)
        except ValueError:
            raise KahaIndexDamaged(f"{self.path}: a destination has the invalid name {name!r}") from None

    def close(self) -> None:
        self._pages.close()

    def __enter__(self) -> KahaIndex:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_index(directory: str, disk: Disk = os) -> KahaIndex | None:
    """Open the index in ``directory``. Return None if there is no db.data.

    Raises KahaIndexDamaged if the index is invalid, OSError if the volume fails. The iterators raise the same errors.
    """
    try:
        pages = PageFile(directory, disk)
    except FileNotFoundError:
        return None
    try:
        return KahaIndex(pages)
    except BaseException:
        pages.close()
        raise


def _read_roots(cursor: Cursor, version: int) -> _Roots:
    default, locations, ids = cursor.i64(), cursor.i64(), cursor.i64()
    subscriptions = acknowledged = pending = subscription_locations = low = high = None
    if cursor.boolean():
        subscriptions, acknowledged = cursor.i64(), cursor.i64()
        pending = cursor.i64() if version >= 3 else None
        subscription_locations = cursor.i64() if version >= 5 else None
    if version >= 2:
        low, high = cursor.i64(), cursor.i64()
    if version >= 7:
        cursor.i64()  # counters
    return _Roots(default, locations, ids, subscriptions, acknowledged, pending, subscription_locations, low, high)


def _read_location(cursor: Cursor) -> Location:
    return location(cursor.i32(), cursor.i32())


def _optional(cursor: Cursor) -> Location | None:
    return _read_location(cursor) if cursor.boolean() else None


def _read_subscription(cursor: Cursor) -> tuple[Subscription, bytes]:
    """Return the command and its payload. In the index, the number of the command is omitted."""
    start = cursor.at
    length, cursor.at = decode_varint(cursor.data, start)
    cursor.take(length)
    payload = SUBSCRIPTION_COMMAND + cursor.data[start : cursor.at]
    command = decode(payload)
    assert isinstance(command, Subscription), "the payload begins with the number of a subscription command"
    if command.info is None:
        raise ValueError(f"subscription {command.subscription_key} has no description")
    return command, payload


def _read_string_set(cursor: Cursor) -> list[str]:
    """Read a serialized java.util.HashSet of strings."""
    members = read_object(cursor.take(cursor.i32())).custom[1:]
    if not all(isinstance(member, str) for member in members):
        raise ValueError("a set of subscriptions holds something that is no name")
    return members
