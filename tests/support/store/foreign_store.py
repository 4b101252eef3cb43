"""A model of KahaDB for tests: a store as ActiveMQ leaves it, and the messages that ActiveMQ would deliver from it.

Commands are written to journal files of a few records; ``checkpoint`` writes db.data; ``collect`` removes files without
live messages at that checkpoint, even if other records in them are needed: these are KahaDB's defects.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from tandemmq.journal.format import encode_batch
from tandemmq.store.records.commands import (
    AddMessage,
    RemoveMessage,
    UpdateMessage,
    encode,
    encode_commit,
    encode_prepare,
    encode_remove_destination,
    encode_rollback,
    encode_subscription,
    encode_unsubscribe,
)
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tests.support.kahadb.index_images import Image, leaf, list_node, numbers, place, utf

HIGH, DEFAULT, LOW = range(3)


def queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


def topic(name: str) -> Destination:
    return Destination(DestinationKind.TOPIC, name)


@dataclass
class Stored:
    """A message in the index."""

    message_id: str
    place: tuple[int, int]
    size: int
    rank: int
    sequence: int


@dataclass
class Held:
    """A destination in the index."""

    next_sequence: int = 0
    messages: dict[str, Stored] = field(default_factory=dict)
    pending: dict[str, set[str]] = field(default_factory=dict)  # subscription -> ids
    records: dict[str, tuple[int, int]] = field(default_factory=dict)  # position of a subscription's record
    commands: dict[str, bytes] = field(default_factory=dict)

    def in_order(self) -> list[Stored]:
        return sorted(self.messages.values(), key=lambda stored: (stored.rank, stored.sequence))


class ForeignStore:
    """``prioritized``: destinations that deliver by priority. Every call writes one record, applied as in ActiveMQ."""

    def __init__(
        self,
        directory: Path,
        *,
        records_per_file: int = 5,
        prioritized: frozenset[Destination] = frozenset(),
        frame: bytes | None = None,
        openwire: int = 11,
    ) -> None:
        self.directory = directory
        self.records_per_file = records_per_file
        self.prioritized = prioritized
        self.frame = frame  # body of every message, in the version ``openwire``
        self.openwire = openwire
        self.held: dict[Destination, Held] = {}
        self.open: dict[str, list[tuple[tuple[int, int], int, AddMessage | RemoveMessage]]] = {}
        self.prepared: dict[str, tuple[int, int]] = {}  # transaction -> position of its Prepare
        self.outcomes: list[tuple[tuple[int, int], tuple[int, int]]] = []  # (last operation, its outcome)
        self.files: dict[int, bytearray] = {}
        self.count = 0
        self.sent = 0
        self.last = (0, 0)
        self.needed: set[int] = set()  # files that the last checkpoint needs

    # ---- the journal

    def append(self, payload: bytes) -> tuple[int, int]:
        if self.count % self.records_per_file == 0:
            self.files[len(self.files) + 1] = bytearray()
        self.count += 1
        file = len(self.files)
        content = self.files[file]
        batch, (offset,) = encode_batch([payload], len(content))
        content[:] = content[: len(content)] + batch[: len(batch) - 5]
        self.last = file, offset
        return self.last

    def write(self) -> None:
        for file, content in self.files.items():
            (self.directory / f"db-{file}.log").write_bytes(bytes(content) + b"-qMa4")

    # ---- commands

    def send(
        self,
        destination: Destination,
        priority: int = 4,
        transaction: LocalTransactionId | XaTransactionId | None = None,
        message_id: str | None = None,
    ) -> str:
        self.sent += 1
        if message_id is None:
            message_id = f"ID:host-1:1:{self.sent % 3}:{self.sent}"
        add = self._add(destination, message_id, priority, transaction)
        payload = encode(add)
        where = self.append(payload)
        self.held.setdefault(destination, Held())
        if transaction is None:
            self._apply_add(where, len(payload) + 5, add)
        else:
            self.open.setdefault(transaction.key, []).append((where, len(payload) + 5, add))
        return message_id

    def _add(
        self,
        destination: Destination,
        message_id: str,
        priority: int,
        transaction: LocalTransactionId | XaTransactionId | None,
    ) -> AddMessage:
        body = f"{message_id} {self.sent}".encode()
        message = Message(
            destination, message_id, body, BodyKind.BYTES, persistent=True, priority=priority, timestamp=1
        )
        frame = self.frame or encode_message(message)
        return AddMessage(destination, message_id, frame, transaction, priority, destination in self.prioritized)

    def update(self, destination: Destination, message_id: str, priority: int = 4) -> None:
        add = self._add(destination, message_id, priority, None)
        payload = encode(UpdateMessage(add))
        where = self.append(payload)
        known = self.held[destination].messages.get(message_id)
        if known is None:
            self._apply_add(where, len(payload) + 5, add)
        else:
            known.place, known.size, known.rank = where, len(payload) + 5, self._rank(add)

    def remove(
        self,
        destination: Destination,
        message_id: str,
        subscription: str | None = None,
        transaction: LocalTransactionId | XaTransactionId | None = None,
    ) -> None:
        remove = RemoveMessage(destination, message_id, transaction, subscription)
        where = self.append(encode(remove))
        if transaction is None:
            self._apply_remove(remove)
        else:
            self.open.setdefault(transaction.key, []).append((where, 0, remove))

    def commit(self, transaction: LocalTransactionId | XaTransactionId) -> None:
        outcome = self.append(encode_commit(transaction))
        for where, size, command in self.open.pop(transaction.key, ()):
            self.outcomes.append((where, outcome))
            if isinstance(command, AddMessage):
                self._apply_add(where, size, command)
            else:
                self._apply_remove(command)
        self.prepared.pop(transaction.key, None)

    def rollback(self, transaction: LocalTransactionId | XaTransactionId) -> None:
        outcome = self.append(encode_rollback(transaction))
        self.outcomes += [(where, outcome) for where, _, _ in self.open.pop(transaction.key, ())]
        self.prepared.pop(transaction.key, None)

    def prepare(self, transaction: XaTransactionId) -> None:
        self.prepared[transaction.key] = self.append(encode_prepare(transaction))

    def subscribe(self, destination: Destination, name: str) -> None:
        payload = encode_subscription(destination, "c", name)
        where = self.append(payload)
        held = self.held.setdefault(destination, Held())
        key = f"c:{name}"
        held.pending.setdefault(key, set())
        held.records[key], held.commands[key] = where, payload

    def unsubscribe(self, destination: Destination, name: str) -> None:
        self.append(encode_unsubscribe(destination, "c", name))
        held, key = self.held[destination], f"c:{name}"
        for table in (held.pending, held.records, held.commands):
            del table[key]
        self._drop_what_nobody_needs(held)
        if not held.pending:
            del self.held[destination]

    def delete(self, destination: Destination) -> None:
        self.append(encode_remove_destination(destination))
        self.held.pop(destination, None)

    def _rank(self, add: AddMessage) -> int:
        if not add.priority_supported or add.priority == 4:
            return DEFAULT
        return HIGH if add.priority > 4 else LOW

    def _apply_add(self, where: tuple[int, int], size: int, add: AddMessage) -> None:
        held = self.held.setdefault(add.destination, Held())
        if add.destination.is_topic and not held.pending:
            return
        if add.message_id in held.messages:
            return
        held.messages[add.message_id] = Stored(add.message_id, where, size, self._rank(add), held.next_sequence)
        held.next_sequence += 1
        for ids in held.pending.values():
            ids.add(add.message_id)

    def _apply_remove(self, remove: RemoveMessage) -> None:
        held = self.held.get(remove.destination)
        if held is None:
            return
        if remove.subscription_key is None:
            held.messages.pop(remove.message_id, None)
        elif remove.subscription_key in held.pending:
            held.pending[remove.subscription_key].discard(remove.message_id)
            self._drop_what_nobody_needs(held)

    @staticmethod
    def _drop_what_nobody_needs(held: Held) -> None:
        needed = set().union(*held.pending.values()) if held.pending else set()
        held.messages = {name: stored for name, stored in held.messages.items() if name in needed}

    # ---- db.data

    def checkpoint(self) -> None:
        """Write db.data with the current state."""
        operations = [where for open_ in self.open.values() for where, _, _ in open_]
        image = Image()
        image.metadata(last_update=self.last, in_progress=min(operations, default=None), openwire=self.openwire)
        entries = []
        for destination, held in sorted(self.held.items()):
            name = f"{int(destination.kind)}:{destination.name}"
            entries.append((utf(name), self._roots(image, destination, held)))
        image.put(leaf(sorted(entries)), 1)
        image.write(self.directory)
        self.needed = {where[0] for where in (*operations, *self.prepared.values())}
        # Without these files ActiveMQ itself would have the transactions in doubt again, because it replays from the
        # first open operation.
        first = min(operations, default=self.last)
        self.needed |= {outcome[0] for where, outcome in self.outcomes if where >= first}
        for held in self.held.values():
            self.needed |= {stored.place[0] for stored in held.messages.values()}
            self.needed |= {where[0] for where in held.records.values()}
        self.needed.add(self.last[0])

    def _roots(self, image: Image, destination: Destination, held: Held) -> bytes:
        pages = []
        for rank in (DEFAULT, LOW, HIGH):
            ordered = [stored for stored in held.in_order() if stored.rank == rank]
            pages.append(
                image.put(
                    leaf(
                        [(struct.pack(">q", s.sequence), utf(s.message_id) + place(*s.place, s.size)) for s in ordered]
                    )
                )
            )
        body = struct.pack(">qqq?", pages[0], 90, 91, destination.is_topic)
        if destination.is_topic:
            names = sorted(held.pending)
            sequences = {
                name: sorted(held.messages[message_id].sequence for message_id in held.pending[name]) for name in names
            }
            body += struct.pack(
                ">qqqq",
                image.put(leaf([(utf(name), held.commands[name][1:]) for name in names])),
                image.put(leaf([(utf(name), struct.pack(">qb", -1, 0)) for name in names])),
                image.put(
                    list_node(
                        [
                            (utf(name), numbers(*((n, n) for n in [*sequences[name], held.next_sequence])))
                            for name in names
                        ]
                    )
                ),
                image.put(list_node([(utf(name), place(*held.records[name])) for name in names])),
            )
        return body + struct.pack(">qqq", pages[1], pages[2], 92)

    def collect(self, files: set[int]) -> None:
        """Remove files, if the last checkpoint does not need them and they are older."""
        for file in files:
            if file < max(self.needed) and file not in self.needed:
                (self.directory / f"db-{file}.log").unlink(missing_ok=True)

    # ---- the expected content

    def deliverable(self) -> dict[str, list[str]]:
        """Return owner as text -> message ids in order, without empty owners."""
        found: dict[str, list[str]] = {}
        for destination, held in self.held.items():
            if not destination.is_topic:
                found[destination.name] = [stored.message_id for stored in held.in_order()]
            for key, ids in held.pending.items():
                name = f"{destination.name} for {key}"
                found[name] = [stored.message_id for stored in held.in_order() if stored.message_id in ids]
        return {name: ids for name, ids in found.items() if ids}

    def subscriptions(self) -> set[str]:
        return {key for held in self.held.values() for key in held.pending}
